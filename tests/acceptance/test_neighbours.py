"""One team cannot affect names, claims, new owners or Secrets of another."""

import secrets
from base64 import b64encode

import asyncpg
import pytest

from pgrole_controller.local.manifests import create_namespace
from tests.acceptance.service_account import OWN_NAMESPACE
from tests.acceptance.two_teams import CONTROLLER_ROLE, SERVER, TwoTeams, joining, role, setting
from tests.acceptance.world import Json, Kube, says

pytestmark = pytest.mark.slow


#: What keeps an object from having a role, the first of them for a while; the reason, and words of its message.
SHIELDS: list[tuple[Json, str, str]] = [
    ({"suspend": True}, "Suspended", "spec.suspend"),
    ({"superuser": True}, "NotAllowed", "superuser"),
    (joining("@b_app"), "NotAllowed", "@b_app"),
    (joining("@a_way"), "NotAllowed", "@a_way"),
    (joining("readers", admin=True), "NotAllowed", "admin"),
    (setting("log_statement", "all"), "NotAllowed", "log_statement"),
    (setting("role", "postgres"), "NotAllowed", "role"),
    (setting("no_such_thing"), "InvalidSpec", "no_such_thing"),
]


async def wait_refused(two_teams: TwoTeams, kube: Kube, name: str, reason: str, words: str) -> None:
    await kube.wait_for(name, lambda obj: says(obj, reason, two_teams.fill(words)), f"{reason} {words}")


class TestNeighbours:
    async def test_a_retained_role_is_not_taken_by_its_name_from_another_namespace(self, two_teams: TwoTeams) -> None:
        a, b = two_teams.teams
        await b.apply("left", name="shared_left", serverRef={"name": SERVER})
        await b.wait_ready("left")
        await b.delete("left")
        await b.wait_gone("left")
        await two_teams.database.wait_value(
            "SELECT released_at IS NOT NULL FROM pgrole.claim WHERE role_name = 'shared_left'", True
        )
        before = await two_teams.snapshot()
        await a.apply("left", name="shared_left", login=True, deletionPolicy="Drop", serverRef={"name": SERVER})
        await two_teams.refused(a, "left", "RoleExists", "shared_left")
        await a.delete("left")
        await a.wait_gone("left")
        assert await two_teams.snapshot() == before

    async def test_an_object_that_cannot_have_a_role_does_not_reserve_its_name(self, two_teams: TwoTeams) -> None:
        a, b = two_teams.teams
        name = f"shared_{secrets.token_hex(4)}"
        for number, (shield, *_) in enumerate(SHIELDS):
            spec = two_teams.fill(shield)
            await a.apply(f"squat-{number}", name=f"{name}_{number}", **spec, serverRef={"name": SERVER})
        for number, (_, reason, words) in enumerate(SHIELDS):
            await wait_refused(two_teams, a, f"squat-{number}", reason, words)
        await _next_second(two_teams)
        for number in range(len(SHIELDS)):
            await b.apply(f"needs-{number}", name=f"{name}_{number}", serverRef={"name": SERVER})
        for number in range(len(SHIELDS)):
            await b.wait_ready(f"needs-{number}")
        await a.patch("squat-0", {"spec": {"suspend": False}})
        await two_teams.refused(a, "squat-0", "Conflict", "@b/needs-0")

    async def test_an_object_without_adopt_does_not_reserve_an_existing_role(self, two_teams: TwoTeams) -> None:
        a, b = two_teams.teams
        name = f"shared_{secrets.token_hex(4)}"
        await two_teams.database.execute(f"CREATE ROLE {name}")
        await a.apply("squat", name=name, serverRef={"name": SERVER})
        await two_teams.refused(a, "squat", "RoleExists", name)
        await _next_second(two_teams)
        await b.apply("needs", name=name, adopt=True, serverRef={"name": SERVER})
        await b.wait_ready("needs")

    async def test_a_recreated_namespace_does_not_inherit_roles(self, two_teams: TwoTeams) -> None:
        a, _ = two_teams.teams
        again = Kube(a.server, f"{two_teams.a}-again")
        await create_namespace(a.server, again.namespace)
        name = f"shared_{secrets.token_hex(4)}"
        await two_teams.allow(namespaces={"matchNames": [two_teams.a, two_teams.b, again.namespace]})
        await again.apply("app", name=name, serverRef={"name": SERVER})
        await again.wait_ready("app")
        await again.delete("app")
        await again.wait_gone("app")
        released = f"SELECT released_at IS NOT NULL FROM pgrole.claim WHERE role_name = '{name}'"
        await two_teams.database.wait_value(released, True)
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
        before = await two_teams.snapshot()
        await again.apply("app", name=name, login=True, serverRef={"name": SERVER})
        await two_teams.refused(again, "app", "RoleExists", name)
        assert await two_teams.snapshot() == before
        await again.delete("app")
        await again.wait_gone("app")

    @pytest.mark.since(16, "a grant depends on its grantor's")
    async def test_a_group_granted_to_a_neighbour_within_postgresql_is_revoked(self, two_teams: TwoTeams) -> None:
        group, name = role(), role()
        a, _ = two_teams.teams
        await two_teams.declare("group", group)
        await a.apply_secret("tenant", password="tenant")
        await two_teams.declare(
            "tenant",
            name,
            login=True,
            password={"secretRef": {"name": "tenant"}},
            **joining(group, admin=True),
        )
        await two_teams.database.wait_password(two_teams.fill(name), "tenant")
        before = await two_teams.database.fetchval(ROLES_OF, f"{two_teams.b}_app")
        group, name = two_teams.fill(group), two_teams.fill(name)
        tenant = await asyncpg.connect(two_teams.postgres.dsn(name, password="tenant"))
        try:
            await tenant.execute(f"GRANT {group} TO {two_teams.b}_app")
            await two_teams.database.wait_value(
                f"SELECT count(*) FROM pg_auth_members WHERE member = '{two_teams.b}_app'::regrole", 0
            )
            for statement in (
                "GRANT readers TO {0}",
                f"GRANT {two_teams.b}_app TO {{0}}",
                "ALTER ROLE {0} SUPERUSER",
                "ALTER ROLE {0} CREATEROLE",
                "ALTER ROLE {0} SET log_statement = 'all'",
                f"REASSIGN OWNED BY {{0}} TO {CONTROLLER_ROLE}",
                f"SET ROLE {CONTROLLER_ROLE}",
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
        assert await two_teams.database.fetchval(ROLES_OF, f"{two_teams.b}_app") == before


ROLES_OF = "SELECT to_jsonb(a)::text FROM pg_authid AS a WHERE rolname = $1"


async def _next_second(two_teams: TwoTeams) -> None:
    """Waits until new objects are younger than existing ones: ages are whole seconds."""
    sql = "SELECT extract(epoch FROM date_trunc('second', clock_timestamp()))::bigint"
    now = await two_teams.database.fetchval(sql)
    with_deadline = f"SELECT ({sql}) > {now}"
    await two_teams.database.wait_value(with_deadline, True)


NEW_OWNERS = [
    ("postgres", ["an initial role of PostgreSQL"]),
    (CONTROLLER_ROLE, ["the controller's own role"]),
    ("@b_app", ["no PgRole in namespace"]),
    ("shared_theirs", ["no PgRole in namespace"]),
    ("readers", ["no PgRole in namespace"]),
    ("@a_way", ["no PgRole in namespace"]),
    ("pg_execute_server_program", ["is a role of PostgreSQL itself"]),
    ("@a_holy_one", ["protected by the server's pattern"]),
    ("@a_mighty", ["reaches", "pg_execute_server_program"]),
    ("@a_maker_too", ["reaches", "@a_step (createrole)"]),
]


class TestNewOwners:
    """A function that runs with its owner's privileges would let its author act with those of the new owner."""

    async def test_a_new_owner_that_is_protected_powerful_or_foreign_is_refused(self, two_teams: TwoTeams) -> None:
        a, database = two_teams.teams[0], two_teams.database
        await database.execute(two_teams.fill("CREATE ROLE @a_step; CREATE ROLE @a_climb"))
        await two_teams.declare("heir-0", two_teams.fill("@a_mighty"), **joining("@a_climb"))
        await two_teams.declare("heir-1", two_teams.fill("@a_maker_too"), **joining("@a_step"))
        await database.execute(
            two_teams.fill("GRANT pg_execute_server_program TO @a_climb; ALTER ROLE @a_step CREATEROLE")
        )
        names = {f"mine-{number}": two_teams.fill(role()) for number in range(len(NEW_OWNERS))}
        try:
            for (obj_name, own), (new_owner, _) in zip(names.items(), NEW_OWNERS, strict=True):
                heir = two_teams.fill(new_owner)
                await two_teams.declare(obj_name, own, deletionPolicy="Drop", reassignOwnedTo=heir, login=True)
                await database.execute(
                    f"CREATE FUNCTION {own}() RETURNS void LANGUAGE sql SECURITY DEFINER AS '';"
                    f"ALTER FUNCTION {own}() OWNER TO {own}"
                )
            before = await two_teams.snapshot()
            await a.delete_each(names)
            for obj_name, (_, words) in zip(names, NEW_OWNERS, strict=True):
                await two_teams.refused(a, obj_name, "DropBlocked", "spec.reassignOwnedTo", *words)
            assert await two_teams.snapshot() == before
            for own in names.values():
                owner = f"SELECT proowner::regrole::text FROM pg_proc WHERE proname = '{own}'"
                assert await database.fetchval(owner) == own
            for obj_name in names:
                await a.patch(obj_name, {"spec": {"deletionPolicy": "Retain"}})
            for obj_name, own in names.items():
                await a.wait_gone(obj_name)
                await database.execute(f"DROP FUNCTION {own}()")
        finally:
            await a.delete_each(["heir-0", "heir-1"])
            for heir in ("heir-0", "heir-1"):
                await a.wait_gone(heir)
            await database.execute(two_teams.fill("DROP ROLE @a_step; DROP ROLE @a_climb"))


#: Template of a connection Secret, reason of the refusal, and words of its message.
TEMPLATES: list[tuple[Json, str, str]] = [
    ({"metadata": {"labels": {"kubernetes.io/service-name": "api"}}}, "NotAllowed", "kubernetes.io/service-name"),
    ({"metadata": {"labels": {"app.kubernetes.io/managed-by": "Helm"}}}, "NotAllowed", "app.kubernetes.io/managed-by"),
    ({"metadata": {"annotations": {"pgrole.dev/hash": "forged"}}}, "NotAllowed", "pgrole.dev/hash"),
    (
        {"metadata": {"annotations": {"Kubernetes.IO/service-account.name": "admin"}}},
        "NotAllowed",
        "Kubernetes.IO/service-account.name",
    ),
    ({"data": {"url": "{password.__class__}"}}, "InvalidSpec", "password.__class__"),
    ({"data": {"url": "{0}"}}, "InvalidSpec", "{0}"),
    ({"data": {"url": "{admin_password}"}}, "InvalidSpec", "admin_password"),
    ({"data": {"url": "{password!r}"}}, "InvalidSpec", "password!r"),
]


class TestSecretsOfNeighbours:
    async def test_a_service_account_token_is_not_accepted_as_password(self, two_teams: TwoTeams) -> None:
        a, name = two_teams.teams[0], role()
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
        await a.apply("mine", name=two_teams.fill(name), serverRef={"name": SERVER}, **spec)
        await two_teams.refused(a, "mine", "NotAllowed", "spec.password.secretRef", "service-account-token")
        assert await two_teams.database.verifier(two_teams.fill(name)) is None
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
    async def test_the_controllers_own_credentials_are_neither_copied_nor_overwritten(
        self, two_teams: TwoTeams, spec: Json, words: str
    ) -> None:
        before = await two_teams.own.secret(SERVER)
        name = f"{OWN_NAMESPACE}_{secrets.token_hex(4)}"
        await two_teams.own.apply("mine", name=name, serverRef={"name": SERVER}, **spec)
        await two_teams.refused(two_teams.own, "mine", "NotAllowed", words, "PgServer")
        assert await two_teams.database.verifier(name) is None
        assert await two_teams.own.secret("copied") is None
        assert await two_teams.own.secret(SERVER) == before

    async def test_a_secret_without_this_owner_is_not_written(self, two_teams: TwoTeams) -> None:
        a, name = two_teams.teams[0], role()
        await a.apply_secret("theirs", password="theirs")
        before = await a.secret("theirs")
        spec = {"password": {"generate": {}}, "connectionSecret": {"name": "theirs"}}
        await a.apply("mine", name=two_teams.fill(name), serverRef={"name": SERVER}, **spec)
        await two_teams.refused(a, "mine", "Conflict", '"theirs"')
        assert await a.secret("theirs") == before
        assert await two_teams.database.verifier(two_teams.fill(name)) is None

    async def test_a_template_with_reserved_metadata_or_unknown_fields_is_refused(self, two_teams: TwoTeams) -> None:
        a = two_teams.teams[0]
        names = {f"mine-{number}": two_teams.fill(role()) for number in range(len(TEMPLATES))}
        for (obj_name, name), (template, *_) in zip(names.items(), TEMPLATES, strict=True):
            spec = {"password": {"generate": {}}, "connectionSecret": {"name": obj_name, "template": template}}
            await a.apply(obj_name, name=name, serverRef={"name": SERVER}, **spec)
        for (obj_name, name), (_, reason, words) in zip(names.items(), TEMPLATES, strict=True):
            await wait_refused(two_teams, a, obj_name, reason, words)
            assert await a.secret(obj_name) is None
            assert await two_teams.database.verifier(name) is None

    async def test_a_verifier_with_unacceptable_iterations_is_not_set(self, two_teams: TwoTeams) -> None:
        a, hashed = two_teams.teams[0], b64encode(bytes(32)).decode()
        names = {
            f"mine-{iterations}": two_teams.fill(role()) for iterations in (1, 4095, 100_001, 2_000_000_000, 2**63)
        }
        for obj_name, name in names.items():
            iterations = obj_name.removeprefix("mine-")
            verifier = f"SCRAM-SHA-256${iterations}:{b64encode(bytes(16)).decode()}${hashed}:{hashed}"
            await a.apply_secret(obj_name, password=verifier)
            await a.apply(obj_name, name=name, serverRef={"name": SERVER}, password={"secretRef": {"name": obj_name}})
        for obj_name, name in names.items():
            await two_teams.refused(a, obj_name, "InvalidSpec", "iterations")
            assert await two_teams.database.verifier(name) is None
