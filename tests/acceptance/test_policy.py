"""Ways to climb, tried by the author of PgRoles of one team: each is refused in words, with nothing changed.

Team a may have roles and Secrets of its own, and log in as them; team b is its neighbour on the same server. Names that
begin with shared_ are allowed to both.
"""

import secrets
from base64 import b64encode
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import asyncpg
import pytest
import pytest_asyncio

from pgrole_controller.local.apiserver import ApiError, ApiServer
from pgrole_controller.local.manifests import create_namespace
from pgrole_controller.local.postgres import PostgresServer
from tests.acceptance.conftest import remove
from tests.acceptance.servers import OWN_NAMESPACE, PgServers, pgservers
from tests.acceptance.world import (
    PATIENCE,
    Controller,
    Database,
    Json,
    Kube,
    condition,
    is_ready,
    open_database,
    running,
    says,
)
from tests.servers import Servers

STEWARD, STEWARD_PASSWORD = "steward", "steward's own"
SERVER = "court"

#: All that a role is and has, and whose it is.
ROLES = """
SELECT jsonb_build_object(
    'roles', (SELECT jsonb_agg(to_jsonb(a) ORDER BY a.oid) FROM pg_authid AS a),
    'members', (SELECT jsonb_agg(to_jsonb(m) ORDER BY m::text) FROM pg_auth_members AS m),
    'settings', (SELECT jsonb_agg(to_jsonb(s) ORDER BY s::text) FROM pg_db_role_setting AS s),
    'comments', (SELECT jsonb_agg(to_jsonb(d) ORDER BY d::text) FROM pg_shdescription AS d),
    'claims', (SELECT jsonb_agg(to_jsonb(c) ORDER BY c.role_name) FROM pgrole.claim AS c)
)::text
"""


@dataclass(frozen=True, slots=True)
class Court:
    """Two teams on one server with a policy; `a` and `b` are what the names of their roles begin with."""

    postgres: PostgresServer
    database: Database
    servers: PgServers
    teams: tuple[Kube, Kube]
    own: Kube

    @property
    def a(self) -> str:
        return self.teams[0].namespace

    @property
    def b(self) -> str:
        return self.teams[1].namespace

    def fill(self, value: Any) -> Any:
        """With @a and @b in texts replaced by the names of the teams."""
        if isinstance(value, str):
            return value.replace("@a", self.a).replace("@b", self.b)
        if isinstance(value, dict):
            return {self.fill(key): self.fill(one) for key, one in value.items()}
        return [self.fill(one) for one in value] if isinstance(value, list) else value

    async def allow(self, **changed: Any) -> None:
        """The policy, with these fields of `allow` in place of the usual ones."""
        await self.servers.patch(SERVER, {"spec": {"allow": self.policy() | changed}})

    def policy(self) -> Json:
        return {
            "namespaces": {"matchNames": [self.a, self.b, OWN_NAMESPACE]},
            "roleNames": ["{namespace}_*", "shared_*"],
            "attributes": [],
            "memberOf": ["readers", "{namespace}_*"],
            "parameters": [],
            "reassignTo": [],
            "adopt": True,
            "drop": True,
        }

    async def picture(self) -> tuple[Any, ...]:
        """Everything that an attack might change: roles, claims, and the Secrets of all three namespaces."""
        found = [await self.database.fetchval(ROLES)]
        for kube in (*self.teams, self.own):
            items = (await kube.server.request("GET", kube.secret_path()))["items"]
            found += [(kube.namespace, one["metadata"]["name"], one.get("data")) for one in items]
        return tuple(found)

    async def refused(self, kube: Kube, name: str, reason: str, *words: str) -> Json:
        """The object as soon as it is refused so, by a condition and by an Event."""
        obj = await kube.wait_for(name, lambda obj: says(obj, reason, *map(self.fill, words)), f"{reason} {words}")
        await kube.wait_event(reason, about=name)
        return obj


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def court(
    api_server: ApiServer, servers: Servers, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Court]:
    token = secrets.token_hex(3)
    teams = Kube(api_server, f"a{token}"), Kube(api_server, f"b{token}")
    for team in teams:
        await create_namespace(api_server, team.namespace)
    controller = Controller(api_server.kubeconfig, "", tmp_path_factory.mktemp("court"))
    async with servers.run() as server, pgservers(api_server) as declared, open_database(server.dsn()) as database:
        made = Court(server, database, declared, teams, Kube(api_server, OWN_NAMESPACE))
        await _furnish(made)
        async with running(controller, connected=False):
            await made.servers.wait_ready(SERVER)
            await teams[1].apply("app", name=f"{made.b}_app", login=True, serverRef={"name": SERVER})
            await teams[1].apply("shared", name="shared_theirs", login=True, serverRef={"name": SERVER})
            await teams[0].apply("mate", name=f"{made.a}_mate", serverRef={"name": SERVER})
            for kube, name in ((teams[1], "app"), (teams[1], "shared"), (teams[0], "mate")):
                await kube.wait_ready(name)
            yield made
        for kube in (*teams, made.own):
            await remove(kube)


async def _furnish(court: Court) -> None:
    a = court.a
    await court.database.execute(
        f"CREATE ROLE {STEWARD} SUPERUSER LOGIN PASSWORD '{STEWARD_PASSWORD.replace(chr(39), chr(39) * 2)}';"
        "CREATE ROLE readers; CREATE ROLE finance; CREATE ROLE rds_superuser;"
        f"CREATE ROLE {a}_way; GRANT postgres TO {a}_way; CREATE ROLE {a}_far; GRANT {a}_way TO {a}_far;"
        f"CREATE ROLE {a}_near; GRANT {STEWARD} TO {a}_near;"
        f"CREATE ROLE {a}_program; GRANT pg_execute_server_program TO {a}_program;"
        f"CREATE ROLE {a}_maker CREATEROLE; CREATE ROLE {a}_clone REPLICATION; CREATE ROLE {a}_seer BYPASSRLS;"
        f"CREATE ROLE {a}_guard; GRANT rds_superuser TO {a}_guard;"
        f"CREATE ROLE {a}_legacy; GRANT finance TO {a}_legacy"
    )
    await court.servers.apply_credentials(SERVER, STEWARD, STEWARD_PASSWORD)
    connection = {
        "hosts": [court.postgres.host],
        "port": court.postgres.port,
        "sslMode": "disable",
        "credentialsSecretRef": {"name": SERVER},
    }
    spec = {"connection": connection, "allow": court.policy(), "protectedRoles": ["rds*", "@a_holy*"]}
    await court.servers.apply_spec(SERVER, court.fill(spec))


def joining(*groups: str, **options: bool) -> Json:
    return {"memberOf": [{"role": group, **options} for group in groups]}


def setting(name: str, value: str = "x") -> Json:
    return {"parameters": {name: value}}


OWN = {"name": "@a_new"}

#: What is asked for, the reason of the refusal, and words of it.
ATTACKS: dict[str, tuple[Json, str, list[str]]] = {
    **{
        f"is {power}": ({**OWN, power: True}, "NotAllowed", [power])
        for power in ("superuser", "createrole", "createdb")
    },
    **{f"is {power}": ({**OWN, power: True}, "NotAllowed", [power]) for power in ("replication", "bypassrls")},
    "adopts the bootstrap superuser": ({"name": "postgres"}, "Protected", ["postgres"]),
    "adopts the controller's role": ({"name": STEWARD}, "Protected", ["the controller's own role"]),
    "takes another team's name": ({"name": "@b_app"}, "NotAllowed", ["spec.name", "@a_*"]),
    "takes another team's free name": ({"name": "@b_free"}, "NotAllowed", ["spec.name"]),
    "takes a group": ({"name": "readers"}, "NotAllowed", ["spec.name"]),
    "takes what another team has under a shared name": ({"name": "shared_theirs"}, "Conflict", ["@b/shared"]),
    "takes a protected name": ({"name": "rds_superuser"}, "Protected", ["rds*"]),
    "takes a protected name of its own": ({"name": "@a_holy_one"}, "Protected", ["@a_holy*"]),
    "adopts a way to the superuser": ({"name": "@a_way"}, "NotAllowed", ["adoption", "postgres"]),
    "adopts a long way to the superuser": ({"name": "@a_far"}, "NotAllowed", ["adoption", "postgres"]),
    "adopts a way to the controller": ({"name": "@a_near"}, "NotAllowed", ["adoption", STEWARD]),
    "adopts createrole": ({"name": "@a_maker"}, "NotAllowed", ["adoption", "createrole"]),
    "adopts bypassrls": ({"name": "@a_seer"}, "NotAllowed", ["adoption", "bypassrls"]),
    "adopts a member of what it may not join": ({"name": "@a_legacy"}, "NotAllowed", ["adoption", "finance"]),
    "adopts it and leaves the membership to others": (
        {"name": "@a_legacy", "drift": {"ignore": ["memberOf"]}},
        "NotAllowed",
        ["adoption", "finance"],
    ),
    "adopts it and only reports": (
        {"name": "@a_legacy", "drift": {"policy": "Report"}},
        "NotAllowed",
        ["adoption", "finance"],
    ),
    "joins a superuser": ({**OWN, **joining("postgres")}, "NotAllowed", ['membership in "postgres"']),
    "joins the controller": ({**OWN, **joining(STEWARD)}, "NotAllowed", [f'membership in "{STEWARD}"']),
    "joins another team": ({**OWN, **joining("@b_app")}, "NotAllowed", ['membership in "@b_app"']),
    "joins another team without inheriting": (
        {**OWN, **joining("@b_app", inherit=False, set=False)},
        "NotAllowed",
        ['membership in "@b_app"'],
    ),
    "joins what reads all": ({**OWN, **joining("pg_read_all_data")}, "NotAllowed", ["pg_read_all_data"]),
    "joins what runs programs": ({**OWN, **joining("pg_execute_server_program")}, "NotAllowed", ["pg_execute"]),
    "joins a way to the superuser": ({**OWN, **joining("@a_way")}, "NotAllowed", ["would reach", "postgres"]),
    "joins a long way to it": ({**OWN, **joining("readers", "@a_far")}, "NotAllowed", ["would reach", "postgres"]),
    "joins a way to the controller": ({**OWN, **joining("@a_near")}, "NotAllowed", ["would reach", STEWARD]),
    "joins a way to programs": ({**OWN, **joining("@a_program")}, "NotAllowed", ["pg_execute_server_program"]),
    "joins createrole": ({**OWN, **joining("@a_maker")}, "NotAllowed", ["@a_maker (createrole)"]),
    "joins replication": ({**OWN, **joining("@a_clone")}, "NotAllowed", ["@a_clone (replication)"]),
    "joins bypassrls": ({**OWN, **joining("@a_seer")}, "NotAllowed", ["@a_seer (bypassrls)"]),
    "joins a way to a protected role": ({**OWN, **joining("@a_guard")}, "NotAllowed", ["rds_superuser (protected)"]),
    "passes a common group on": ({**OWN, **joining("readers", admin=True)}, "NotAllowed", ['admin of "readers"']),
    "joins a look-alike of readers": ({**OWN, **joining("re\u0430ders")}, "NotAllowed", ["re\u0430ders"]),
    "joins readers in capitals": ({**OWN, **joining("READERS")}, "NotAllowed", ["READERS"]),
    "joins readers and a space": ({**OWN, **joining("readers ")}, "NotAllowed", ["membership"]),
    "joins readers and nothing visible": ({**OWN, **joining("readers\u200b")}, "NotAllowed", ["membership"]),
    "joins whatever there is": ({**OWN, **joining("*")}, "NotAllowed", ['membership in "*"']),
    "sets role": ({**OWN, **setting("role", "postgres")}, "NotAllowed", ['"role"']),
    "sets session_authorization": (
        {**OWN, **setting("Session_Authorization", "postgres")},
        "NotAllowed",
        ['"session_authorization"'],
    ),
    "sets role in one database": (
        {**OWN, "databaseParameters": [{"database": "postgres", "parameters": {"ROLE": "postgres"}}]},
        "NotAllowed",
        ['"role"'],
    ),
    **{
        f"sets {name}": ({**OWN, **setting(name, value)}, "NotAllowed", [f'"{name.lower()}"'])
        for name, value in {
            "session_preload_libraries": "evil",
            "Log_Statement": "none",
            "log_min_duration_statement": "-1",
            "log_min_messages": "panic",
            "session_replication_role": "replica",
            "allow_system_table_mods": "on",
            "dynamic_library_path": "/tmp",
            "lo_compat_privileges": "on",
            "plpgsql.variable_conflict": "use_variable",
            "auto_explain.log_min_duration": "0",
            "plperl.on_init": "system('id')",
            "PLPerl.On_Init": "system('id')",
            "pg_stat_statements.track": "none",
        }.items()
    },
    "sets what only the server sets": (
        {**OWN, **setting("shared_preload_libraries")},
        "InvalidSpec",
        ["shared_preload"],
    ),
    "sets what there is not": ({**OWN, **setting("no_such_thing")}, "InvalidSpec", ["no_such_thing"]),
}

NAMES = [
    "{A}_app",
    "@b_",
    "@",
    "@a",
    "\u0430@a_x",
    "@a\u200b_x",
    " @a_x",
    "@a _x",
    "@a\uff3fx",
    "@a-x",
    "\n@a_x",
    "*",
    "?*",
    "[a-z]*",
    "[@a]_x",
    "{namespace}_x",
    "Shared_x",
    "sh\u0430red_x",
]


@pytest.mark.parametrize("attack", ATTACKS)
async def test_whoever_asks_for_more_is_told_the_rule_and_changes_nothing(court: Court, attack: str) -> None:
    spec, reason, words = ATTACKS[attack]
    before = await court.picture()
    team = court.teams[0]
    await team.apply(
        "attack", **{"adopt": True, "deletionPolicy": "Drop", **court.fill(spec)}, serverRef={"name": SERVER}
    )
    await court.refused(team, "attack", reason, *words)
    assert await court.picture() == before
    await team.delete("attack")
    await team.wait_gone("attack")
    assert await court.picture() == before


@pytest_asyncio.fixture(autouse=True, loop_scope="session")
async def tidy(court: Court) -> AsyncIterator[None]:
    """The policy is the usual one, and of the objects of a test nothing is left but roles that it made itself."""
    yield
    await court.allow()
    kept = {"app", "shared", "mate"}
    for kube in (*court.teams, court.own):
        for obj in await kube.objects():
            name = obj["metadata"]["name"]
            if name not in kept:
                await kube.patch(name, {"spec": {"deletionPolicy": "Retain"}})
                await kube.delete(name)
                await kube.wait_gone(name)


def role() -> str:
    return f"@a_{secrets.token_hex(4)}"


async def declare(court: Court, name: str, role_name: str, **spec: Any) -> Json:
    """An object of team a that becomes Ready."""
    team = court.teams[0]
    await team.apply(name, name=court.fill(role_name), serverRef={"name": SERVER}, **court.fill(spec))
    return await team.wait_ready(name)


async def test_no_name_that_only_looks_like_the_teams_own_passes(court: Court) -> None:
    before = await court.picture()
    team = court.teams[0]
    names = [court.fill(name.replace("{A}", court.a.upper())) for name in NAMES]
    await team.apply_all(
        {
            f"name-{number}": {"name": name, "adopt": True, "deletionPolicy": "Drop", "serverRef": {"name": SERVER}}
            for number, name in enumerate(names)
        }
    )
    for number in range(len(names)):
        await court.refused(team, f"name-{number}", "NotAllowed", "spec.name", "@a_*")
    assert await court.picture() == before


@pytest.mark.parametrize(
    "spec",
    [
        {"name": "pg_mine"},
        {"name": "public"},
        {"name": "@a_" + "x" * 63},
        {"name": "@a_" + "\u00fc" * 30},
        {"name": "@a_nul\0"},
        {"name": ""},
        {**OWN, **joining("x" * 64)},
        {**OWN, **joining(*(f"@a_{number}" for number in range(65)))},
        {**OWN, **setting("work_mem; ALTER ROLE x SUPERUSER")},
        {**OWN, **setting("work_mem", "x" * 1025)},
        {**OWN, "comment": "x" * 1025},
        {**OWN, "reassignOwnedTo": "x" * 64, "deletionPolicy": "Drop"},
    ],
)
async def test_what_cannot_be_is_refused_at_admission(court: Court, spec: Json) -> None:
    with pytest.raises(ApiError) as caught:
        await court.teams[0].apply("unfit", **court.fill(spec), serverRef={"name": SERVER})
    assert caught.value.status == 422


@pytest.mark.parametrize("change", [{"name": "@b_app"}, {"name": None}, {"serverRef": {"name": "default"}}])
async def test_an_object_that_has_a_role_does_not_become_another_ones(court: Court, change: Json) -> None:
    await declare(court, "mine", role())
    before = await court.picture()
    with pytest.raises(ApiError) as caught:
        await court.teams[0].patch("mine", {"spec": court.fill(change)})
    assert caught.value.status == 422
    assert await court.picture() == before


async def test_a_refused_change_of_a_role_changes_nothing_of_it(court: Court) -> None:
    name = role()
    await declare(court, "mine", name, comment="as it was", memberOf=[{"role": "readers"}])
    before = await court.picture()
    await court.teams[0].apply(
        "mine", name=court.fill(name), serverRef={"name": SERVER}, login=True, comment="mine", superuser=True
    )
    await court.refused(court.teams[0], "mine", "NotAllowed", "superuser")
    assert await court.picture() == before


class TestNeighbours:
    async def test_a_retained_role_is_not_taken_by_name(self, court: Court) -> None:
        a, b = court.teams
        await b.apply("left", name="shared_left", serverRef={"name": SERVER})
        await b.wait_ready("left")
        await b.delete("left")
        await b.wait_gone("left")
        await court.database.wait_value(
            "SELECT released_at IS NOT NULL FROM pgrole.claim WHERE role_name = 'shared_left'", True
        )
        before = await court.picture()
        await a.apply("left", name="shared_left", login=True, deletionPolicy="Drop", serverRef={"name": SERVER})
        await court.refused(a, "left", "RoleExists", "shared_left")
        await a.delete("left")
        await a.wait_gone("left")
        assert await court.picture() == before

    @pytest.mark.parametrize(
        "shield",
        [
            {"suspend": True},
            {"superuser": True},
            joining("@b_app"),
            joining("@a_way"),
            joining("readers", admin=True),
            setting("log_statement", "all"),
            setting("role", "postgres"),
            setting("no_such_thing"),
        ],
    )
    async def test_who_may_not_have_a_name_does_not_keep_it_from_others(self, court: Court, shield: Json) -> None:
        a, b = court.teams
        name = f"shared_{secrets.token_hex(4)}"
        await a.apply("squat", name=name, **court.fill(shield), serverRef={"name": SERVER})
        await a.wait_for("squat", lambda obj: condition(obj, "Ready").get("status") == "False", "refused")
        await _next_second(court)
        await b.apply("needs", name=name, serverRef={"name": SERVER})
        await b.wait_ready("needs")
        if "suspend" in shield:
            await a.patch("squat", {"spec": {"suspend": False}})
            await court.refused(a, "squat", "Conflict", "@b/needs")

    async def test_who_does_not_adopt_does_not_keep_a_role_from_who_does(self, court: Court) -> None:
        a, b = court.teams
        name = f"shared_{secrets.token_hex(4)}"
        await court.database.execute(f"CREATE ROLE {name}")
        await a.apply("squat", name=name, serverRef={"name": SERVER})
        await court.refused(a, "squat", "RoleExists", name)
        await _next_second(court)
        await b.apply("needs", name=name, adopt=True, serverRef={"name": SERVER})
        await b.wait_ready("needs")

    async def test_a_namespace_that_was_made_again_inherits_nothing(self, court: Court) -> None:
        a, _ = court.teams
        again = Kube(a.server, f"{court.a}-again")
        await create_namespace(a.server, again.namespace)
        name = f"shared_{secrets.token_hex(4)}"
        await court.allow(namespaces={"matchNames": [court.a, court.b, again.namespace]})
        await again.apply("app", name=name, serverRef={"name": SERVER})
        await again.wait_ready("app")
        await again.delete("app")
        await again.wait_gone("app")
        path = f"/api/v1/namespaces/{again.namespace}"
        await a.server.request("DELETE", path)
        body = {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": again.namespace},
            "spec": {"finalizers": []},
        }
        await a.server.request("PUT", f"{path}/finalize", body)
        await create_namespace(a.server, again.namespace)
        before = await court.picture()
        await again.apply("app", name=name, login=True, serverRef={"name": SERVER})
        await court.refused(again, "app", "RoleExists", name)
        assert await court.picture() == before
        await again.delete("app")
        await again.wait_gone("app")

    @pytest.mark.since(16, "a grant hangs on the one of its grantor")
    async def test_a_group_that_is_passed_on_within_postgresql_stays_with_who_declares_it(self, court: Court) -> None:
        group, name = role(), role()
        a, _ = court.teams
        await declare(court, "group", group)
        await a.apply_secret("tenant", password="tenant")
        await declare(
            court,
            "tenant",
            name,
            login=True,
            password={"secretRef": {"name": "tenant"}},
            **joining(group, admin=True),
        )
        await court.database.wait_password(court.fill(name), "tenant")
        before = await court.database.fetchval(ROLES_OF, f"{court.b}_app")
        group, name = court.fill(group), court.fill(name)
        tenant = await asyncpg.connect(court.postgres.dsn(name, password="tenant"))
        try:
            await tenant.execute(f"GRANT {group} TO {court.b}_app")
            await court.database.wait_value(
                f"SELECT count(*) FROM pg_auth_members WHERE member = '{court.b}_app'::regrole", 0
            )
            for statement in (
                "GRANT readers TO {0}",
                f"GRANT {court.b}_app TO {{0}}",
                "ALTER ROLE {0} SUPERUSER",
                "ALTER ROLE {0} CREATEROLE",
                "ALTER ROLE {0} SET log_statement = 'all'",
                f"REASSIGN OWNED BY {{0}} TO {STEWARD}",
                f"SET ROLE {STEWARD}",
                "SELECT * FROM pgrole.claim",
                "UPDATE pgrole.claim SET object_uid = ''",
                "SELECT pgrole.forget_claim('shared_theirs', '')",
                "COPY (SELECT 1) TO PROGRAM 'id'",
            ):
                with pytest.raises(asyncpg.PostgresError) as caught:
                    await tenant.execute(statement.format(name))
                assert caught.value.sqlstate == "42501", statement
        finally:
            await tenant.close()
        assert await court.database.fetchval(ROLES_OF, f"{court.b}_app") == before


ROLES_OF = "SELECT to_jsonb(a)::text FROM pg_authid AS a WHERE rolname = $1"


async def _next_second(court: Court) -> None:
    """Until objects that are made now are younger than those there are: their age has whole seconds."""
    sql = "SELECT extract(epoch FROM date_trunc('second', clock_timestamp()))::bigint"
    now = await court.database.fetchval(sql)
    with_deadline = f"SELECT ({sql}) > {now}"
    await court.database.wait_value(with_deadline, True)


class TestPowersThatWereAcquired:
    @pytest.mark.parametrize(
        "drift",
        [{}, {"policy": "Report"}, {"ignore": ["superuser", "bypassrls", "memberOf"]}],
        ids=["", "Report", "ignore"],
    )
    async def test_are_taken_away_whatever_the_object_leaves_to_others(self, court: Court, drift: Json) -> None:
        name = role()
        await declare(court, "mine", name, drift=drift, memberOf=[{"role": "readers"}])
        name = court.fill(name)
        await court.database.execute(f"ALTER ROLE {name} SUPERUSER BYPASSRLS; GRANT finance, {STEWARD} TO {name}")
        await court.database.wait_role(name, lambda row: not row["rolsuper"] and not row["rolbypassrls"], "neither")
        await court.database.wait_value(GROUPS.format(name), ["readers"])
        await court.teams[0].wait_event("DriftCorrected", about="mine")
        await court.teams[0].wait_ready("mine")

    @pytest.mark.parametrize("drift", [{"policy": "Report"}, {"ignore": ["memberOf", "connectionLimit"]}])
    async def test_what_the_object_could_have_asked_for_is_left(self, court: Court, drift: Json) -> None:
        name = role()
        await declare(court, "mine", name, drift=drift)
        name = court.fill(name)
        await court.database.execute(f"GRANT readers TO {name}; ALTER ROLE {name} CONNECTION LIMIT 5 SUPERUSER")
        held = await court.database.wait_role(name, lambda row: not row["rolsuper"], "no superuser")
        assert held["rolconnlimit"] == 5
        assert await court.database.fetchval(GROUPS.format(name)) == ["readers"]

    @pytest.mark.parametrize(
        "refused", [{"bypassrls": True}, joining("readers", "@b_app"), setting("log_statement", "all")]
    )
    async def test_are_taken_away_while_the_object_is_refused_for_something_else(
        self, court: Court, refused: Json
    ) -> None:
        name = role()
        a = court.teams[0]
        await declare(court, "mine", name, login=True, comment="as it was")
        spec = {"login": True, "comment": "never", **court.fill(refused)}
        await a.apply("mine", name=court.fill(name), serverRef={"name": SERVER}, **spec)
        obj = await a.wait_reason("mine", "NotAllowed")
        said = condition(obj, "Ready")["message"]
        name = court.fill(name)
        await court.database.execute(f"ALTER ROLE {name} SUPERUSER; GRANT finance TO {name}")
        row = await court.database.wait_role(name, lambda row: not row["rolsuper"], "no superuser")
        await court.database.wait_value(GROUPS.format(name), None)
        assert (row["comment"], row["rolcanlogin"], row["rolbypassrls"]) == ("as it was", True, False)
        await a.wait_event("DriftCorrected", about="mine")
        obj = await a.wait_for("mine", lambda obj: obj["status"].get("driftCount", 0) >= 1, "driftCount")
        assert condition(obj, "Ready")["message"] == said


GROUPS = "SELECT array_agg(roleid::regrole::text ORDER BY 1) FROM pg_auth_members WHERE member = '{0}'::regrole"


async def test_a_chain_that_an_administrator_makes_powerful_is_said_of_every_link_and_no_link_is_added(
    court: Court,
) -> None:
    lower, upper, third = role(), role(), role()
    a = court.teams[0]
    await declare(court, "upper", upper, **joining("readers"))
    await declare(court, "lower", lower, **joining(upper))
    await court.database.execute("GRANT pg_execute_server_program TO readers")
    before = await court.picture()
    # What lies behind a role that was joined is seen when the object is looked at.
    await a.patch("lower", {"metadata": {"labels": {"looked": "at"}}})
    try:
        await a.apply("third", name=court.fill(third), serverRef={"name": SERVER}, **court.fill(joining(lower)))
        await court.refused(a, "third", "NotAllowed", "pg_execute_server_program")
        await court.refused(a, "upper", "NotAllowed", "pg_execute_server_program")
        assert await court.picture() == before
    finally:
        await court.database.execute("REVOKE pg_execute_server_program FROM readers")
    for name in ("upper", "lower", "third"):
        await a.wait_ready(name)


class TestHeirs:
    """A function that runs with its owner's privileges would do what its author wants with those of the heir."""

    @pytest.mark.parametrize(
        ("heir", "words"),
        [
            ("postgres", ["set up with"]),
            (STEWARD, ["the controller's own role"]),
            ("@b_app", ["no PgRole's of namespace"]),
            ("shared_theirs", ["no PgRole's of namespace"]),
            ("readers", ["no PgRole's of namespace"]),
            ("@a_way", ["no PgRole's of namespace"]),
            ("pg_execute_server_program", ["PostgreSQL's own"]),
            ("@a_holy_one", ["protected by the pattern"]),
            ("@a_mighty", ["reaches", "pg_execute_server_program"]),
            ("@a_maker_too", ["reaches", "@a_step (createrole)"]),
        ],
    )
    async def test_that_could_do_more_get_nothing(self, court: Court, heir: str, words: list[str]) -> None:
        a, name = court.teams[0], role()
        heir = court.fill(heir)
        grant = ""
        if heir in court.fill(["@a_mighty", "@a_maker_too"]):
            await court.database.execute(f"CREATE ROLE {court.a}_step")
            await declare(court, "heir", heir, **joining("@a_step"))
            grant = (
                "GRANT pg_execute_server_program TO {0}_step" if "mighty" in heir else "ALTER ROLE {0}_step CREATEROLE"
            )
            await court.database.execute(grant.format(court.a))
        try:
            await declare(court, "mine", name, deletionPolicy="Drop", reassignOwnedTo=heir, login=True)
            own = court.fill(name)
            await court.database.execute(
                f"CREATE FUNCTION {own}() RETURNS void LANGUAGE sql SECURITY DEFINER AS '';"
                f"ALTER FUNCTION {own}() OWNER TO {own}"
            )
            before = await court.picture()
            await a.delete("mine")
            await court.refused(a, "mine", "DropBlocked", "spec.reassignOwnedTo", *words)
            assert await court.picture() == before
            owner = f"SELECT proowner::regrole::text FROM pg_proc WHERE proname = '{own}'"
            assert await court.database.fetchval(owner) == own
            await a.patch("mine", {"spec": {"deletionPolicy": "Retain"}})
            await a.wait_gone("mine")
            await court.database.execute(f"DROP FUNCTION {own}()")
        finally:
            if grant:
                await a.delete("heir")
                await a.wait_gone("heir")
                await court.database.execute(f"DROP ROLE {court.a}_step")


class TestSecrets:
    async def test_a_password_is_not_made_of_a_token_of_kubernetes(self, court: Court) -> None:
        a, name = court.teams[0], role()
        body = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "token", "annotations": {"kubernetes.io/service-account.name": "default"}},
            "type": "kubernetes.io/service-account-token",
            "data": {"token": b64encode(b"a token").decode()},
        }
        await a.server.request("POST", a.secret_path(), body)
        spec = {
            "password": {"secretRef": {"name": "token", "key": "token"}},
            "connectionSecret": {"name": "copied"},
        }
        await a.apply("mine", name=court.fill(name), serverRef={"name": SERVER}, **spec)
        await court.refused(a, "mine", "NotAllowed", "spec.password.secretRef", "service-account-token")
        assert await court.database.verifier(court.fill(name)) is None
        assert await a.secret("copied") is None

    @pytest.mark.parametrize(
        ("spec", "words"),
        [
            (
                {"password": {"secretRef": {"name": SERVER}}, "connectionSecret": {"name": "copied"}},
                "spec.password.secretRef",
            ),
            (
                {"password": {"generate": {}}, "connectionSecret": {"name": SERVER}},
                "spec.connectionSecret",
            ),
        ],
    )
    async def test_what_the_controller_logs_in_with_is_for_nobody_else(
        self, court: Court, spec: Json, words: str
    ) -> None:
        before = await court.own.secret(SERVER)
        name = f"{OWN_NAMESPACE}_{secrets.token_hex(4)}"
        await court.own.apply("mine", name=name, serverRef={"name": SERVER}, **spec)
        await court.refused(court.own, "mine", "NotAllowed", words, "PgServer")
        assert await court.database.verifier(name) is None
        assert await court.own.secret("copied") is None
        assert await court.own.secret(SERVER) == before

    async def test_a_secret_of_somebody_else_is_not_written(self, court: Court) -> None:
        a, name = court.teams[0], role()
        await a.apply_secret("theirs", password="theirs")
        before = await a.secret("theirs")
        spec = {"password": {"generate": {}}, "connectionSecret": {"name": "theirs"}}
        await a.apply("mine", name=court.fill(name), serverRef={"name": SERVER}, **spec)
        await court.refused(a, "mine", "Conflict", '"theirs"')
        assert await a.secret("theirs") == before
        assert await court.database.verifier(court.fill(name)) is None

    @pytest.mark.parametrize(
        "template",
        [
            {"metadata": {"labels": {"kubernetes.io/service-name": "api"}}},
            {"metadata": {"labels": {"app.kubernetes.io/managed-by": "Helm"}}},
            {"metadata": {"annotations": {"pgrole.dev/hash": "forged"}}},
            {"metadata": {"annotations": {"Kubernetes.IO/service-account.name": "admin"}}},
            {"data": {"url": "{password.__class__}"}},
            {"data": {"url": "{0}"}},
            {"data": {"url": "{admin_password}"}},
            {"data": {"url": "{password!r}"}},
        ],
    )
    async def test_no_template_reaches_further_than_its_fields(self, court: Court, template: Json) -> None:
        a, name = court.teams[0], role()
        spec = {"password": {"generate": {}}, "connectionSecret": {"name": "mine", "template": template}}
        await a.apply("mine", name=court.fill(name), serverRef={"name": SERVER}, **spec)
        await a.wait_for(
            "mine", lambda obj: condition(obj, "Ready").get("reason") in ("NotAllowed", "InvalidSpec"), "refused"
        )
        assert await a.secret("mine") is None
        assert await court.database.verifier(court.fill(name)) is None

    @pytest.mark.parametrize("iterations", [1, 4095, 100_001, 2_000_000_000, 2**63])
    async def test_a_verifier_that_would_keep_the_server_busy_is_not_set(self, court: Court, iterations: int) -> None:
        a, name = court.teams[0], role()
        hashed = b64encode(bytes(32)).decode()
        verifier = f"SCRAM-SHA-256${iterations}:{b64encode(bytes(16)).decode()}${hashed}:{hashed}"
        await a.apply_secret("verifier", password=verifier)
        await a.apply(
            "mine", name=court.fill(name), serverRef={"name": SERVER}, password={"secretRef": {"name": "verifier"}}
        )
        await court.refused(a, "mine", "InvalidSpec", "iterations")
        assert await court.database.verifier(court.fill(name)) is None


#: What an object asks for, and the policy by which it may, or may not.
POLICIES: dict[str, tuple[Json, Json, Json]] = {
    "attributes": (
        {"createdb": True, "bypassrls": True},
        {"attributes": ["createdb", "bypassrls"]},
        {"attributes": []},
    ),
    "memberOf": (joining("finance", "readers"), {"memberOf": ["finance", "readers"]}, {"memberOf": ["readers"]}),
    "a way to programs": (
        joining("@a_program"),
        {"memberOf": ["{namespace}_*", "pg_execute_server_program"]},
        {"memberOf": ["{namespace}_*"]},
    ),
    "parameters": (
        {"parameters": {"log_statement": "all", "work_mem": "8MB"}},
        {"parameters": ["LOG_STATEMENT"]},
        {"parameters": []},
    ),
    "roleNames": ({"comment": "mine"}, {}, {"roleNames": ["shared_*"]}),
    "namespaces": ({"comment": "mine"}, {}, {"namespaces": {"matchNames": ["nobody"]}}),
}


class TestAPolicyThatChanges:
    @pytest.mark.parametrize("which", POLICIES)
    async def test_refuses_and_keeps_what_is_there_and_applies_at_once_what_it_allows_again(
        self, court: Court, which: str
    ) -> None:
        spec, loose, tight = POLICIES[which]
        a, name = court.teams[0], role()
        await court.allow(**loose)
        await a.apply("mine", name=court.fill(name), serverRef={"name": SERVER}, **court.fill(spec))
        await a.wait_ready("mine")
        before = await court.picture()
        await court.allow(**tight)
        await court.refused(a, "mine", "NotAllowed")
        late = role()
        await a.apply("late", name=court.fill(late), serverRef={"name": SERVER}, **court.fill(spec))
        await court.refused(a, "late", "NotAllowed")
        assert await court.picture() == before
        await self._drift(court, court.fill(name))
        await court.allow(**loose)
        # At once: the back-off of what was refused is longer by now.
        await a.wait_for("mine", is_ready, "Ready", 5)
        await a.wait_for("late", is_ready, "Ready", 5)

    async def _drift(self, court: Court, name: str) -> None:
        """What others do meanwhile is taken back as far as it gives something, and not where it takes something."""
        await court.database.execute(
            f"ALTER ROLE {name} SUPERUSER REPLICATION LOGIN CONNECTION LIMIT 7; GRANT {STEWARD} TO {name};"
            f"ALTER ROLE {name} SET temp_buffers = '1MB'"
        )
        row = await court.database.wait_role(
            name, lambda row: not (row["rolsuper"] or row["rolreplication"] or row["rolcanlogin"]), "nothing given"
        )
        assert row["rolconnlimit"] == 7
        assert STEWARD not in (await court.database.fetchval(GROUPS.format(name)) or [])
        assert "temp_buffers=1MB" not in (row["rolconfig"] or [])
        obj = await court.teams[0].get("mine")
        assert obj is not None
        assert condition(obj, "Ready")["reason"] == "NotAllowed"

    async def test_protects_a_role_from_then_on(self, court: Court) -> None:
        a, name = court.teams[0], role()
        await declare(court, "mine", name, deletionPolicy="Drop")
        before = await court.picture()
        await court.servers.patch(SERVER, {"spec": {"protectedRoles": [court.fill(name)]}})
        await court.refused(a, "mine", "Protected", name)
        await a.patch("mine", {"spec": {"comment": "changed"}})
        await a.delete("mine")
        await a.wait_reason("mine", "DropBlocked")
        assert await court.picture() == before
        await court.servers.patch(SERVER, {"spec": {"protectedRoles": court.fill(["rds*", "@a_holy*"])}})
        await a.wait_gone("mine")

    async def test_forbids_adoption_and_drops(self, court: Court) -> None:
        a, there, mine = court.teams[0], court.fill(role()), role()
        await court.database.execute(f"CREATE ROLE {there}")
        await declare(court, "mine", mine, deletionPolicy="Drop")
        await court.allow(adopt=False, drop=False)
        before = await court.picture()
        await a.apply("there", name=there, adopt=True, serverRef={"name": SERVER})
        await court.refused(a, "there", "NotAllowed", "adoption")
        await a.delete("mine")
        await court.refused(a, "mine", "DropBlocked", "does not allow objects to drop")
        assert await court.picture() == before
        await court.allow()
        await a.wait_for("there", is_ready, "Ready", 5)
        await a.wait_gone("mine", 5)


async def test_none_of_this_disturbed_the_neighbour(court: Court) -> None:
    b = court.teams[1]
    for name in ("app", "shared"):
        obj = await b.wait_ready(name, PATIENCE)
        assert obj["status"]["role"]["name"] in (f"{court.b}_app", "shared_theirs")
