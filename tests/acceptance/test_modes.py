"""The same drifts in every detection mode; the mode follows PostgreSQL's privileges, and changes with them."""

import secrets
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import anyio
import pytest
import pytest_asyncio

from pgrole_controller.core.role import POWERS
from pgrole_controller.local.apiserver import ApiServer
from pgrole_controller.local.postgres import PostgresServer
from pgrole_controller.local.process import reached
from pgrole_controller.postgres import queries
from tests.acceptance.drifts import ATTRIBUTES, DROPPED, OTHERS, POWERFUL, Tampering
from tests.acceptance.world import (
    PATIENCE,
    Controller,
    Database,
    Json,
    Kube,
    Stage,
    condition,
    is_ready,
    make_kube,
    open_database,
    remove,
    running,
)
from tests.servers import Servers

CONTROLLER_ROLE = "controller_role"
PASSWORD = "of-the-steward"

#: Only the privileges to change roles: neither schema pgrole nor pg_authid.
BARE = f"CREATE ROLE {CONTROLLER_ROLE} LOGIN CREATEROLE CREATEDB PASSWORD '{PASSWORD}'"
#: What Watch requires in addition.
CREATE = f"GRANT CREATE ON DATABASE postgres TO {CONTROLLER_ROLE}"
READ = f"GRANT SELECT (oid, xmin) ON pg_authid TO {CONTROLLER_ROLE}"
#: Includes password verifiers.
READ_ALL = f"GRANT SELECT ON pg_authid TO {CONTROLLER_ROLE}"

DECLARED: dict[str, Any] = {
    "login": True,
    "connectionLimit": 7,
    "validUntil": "2031-01-01T00:00:00Z",
    "comment": "as declared",
    "parameters": {"work_mem": "8MB"},
    "databaseParameters": [{"database": "template1", "parameters": {"work_mem": "4MB"}}],
}


@dataclass(frozen=True, slots=True)
class ModeKind:
    """One way to run: as a superuser (`grants` None) or as a role with these grants; and the expected choice."""

    arguments: tuple[str, ...]
    says: tuple[str, ...]
    grants: tuple[str, ...] | None = None

    @property
    def sees_passwords(self) -> bool:
        return self.grants is None or READ_ALL in self.grants

    @property
    def has_claims(self) -> bool:
        return "claims=Database" in self.says


POLL = ("--detection", "poll", "--poll-interval", "200ms")

KINDS = {
    "watch": ModeKind(("--detection", "watch"), ("detection=Watch", "claims=Database")),
    "watch without a superuser": ModeKind(
        ("--detection", "watch"), ("detection=Watch", "claims=Database"), (BARE, CREATE, READ)
    ),
    "poll with the schema": ModeKind(POLL, ("detection=Poll", "claims=Database")),
    "poll without the schema": ModeKind(
        ("--poll-interval", "200ms"), ("detection=Poll", "claims=Status", "detection mode is Poll"), (BARE,)
    ),
    "poll without the schema, seeing passwords": ModeKind(
        ("--poll-interval", "200ms"), ("detection=Poll", "claims=Status"), (BARE, READ_ALL)
    ),
    "resync with the schema": ModeKind(
        ("--detection", "resync", "--resync-interval", "2s"), ("detection=Resync", "claims=Database")
    ),
    "resync without the schema": ModeKind(
        ("--detection", "resync", "--resync-interval", "2s"), ("detection=Resync", "claims=Status"), (BARE,)
    ),
}


def kinds(*names: str, fast: tuple[str, ...]) -> list[Any]:
    """The parameters of these kinds; all but those in `fast` are slow."""
    return [pytest.param(KINDS[name], id=name, marks=[] if name in fast else pytest.mark.slow) for name in names]


#: One of each way to keep claims is enough for `make test`.
EVERY = kinds(*KINDS, fast=("watch", "poll without the schema"))
#: One of each way to detect, of each way to keep claims, and of each set of privileges.
MECHANISMS = (
    "watch without a superuser",
    "poll without the schema",
    "poll without the schema, seeing passwords",
    "resync with the schema",
)
as_everywhere = pytest.mark.parametrize(
    "running_place",
    kinds("watch", *MECHANISMS, fast=("watch", "poll without the schema")),
    indirect=True,
    scope="module",
)
#: Tests of the shared controller, whose kind is "watch", prove the same: test_roles.py, test_drift.py and so on.
as_elsewhere = pytest.mark.parametrize(
    "running_place", kinds(*MECHANISMS, fast=("poll without the schema",)), indirect=True, scope="module"
)
#: The other kinds: they combine a way to detect and a way to keep claims that two of `MECHANISMS` have.
as_combined = pytest.mark.parametrize(
    "running_place",
    kinds(*(name for name in KINDS if name not in ("watch", *MECHANISMS)), fast=()),
    indirect=True,
    scope="module",
)
#: What depends on where claims are kept and with which privileges, and not on detection.
each_way_to_keep_claims = pytest.mark.parametrize(
    "running_place",
    kinds(
        "watch without a superuser",
        "poll with the schema",
        "poll without the schema",
        fast=("poll without the schema",),
    ),
    indirect=True,
    scope="module",
)


@dataclass(frozen=True, slots=True)
class ModePlace:
    """A server, a namespace and a controller of one kind."""

    kind: ModeKind
    kube: Kube
    server: PostgresServer
    database: Database
    controller: Controller
    version: int


@pytest_asyncio.fixture(scope="module", loop_scope="session", params=EVERY)
async def running_place(
    request: pytest.FixtureRequest, servers: Servers, api_server: ApiServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[ModePlace]:
    kind: ModeKind = request.param
    async with servers.run() as server, open_database(server.dsn()) as database:
        for statement in kind.grants or ():
            await database.execute(statement)
        dsn = server.dsn() if kind.grants is None else server.dsn(CONTROLLER_ROLE, password=PASSWORD)
        kube = await make_kube(api_server)
        folder = tmp_path_factory.mktemp("modes")
        made = Controller(api_server, dsn, folder, "--namespace", kube.namespace, *kind.arguments)
        async with running(made) as started:
            yield ModePlace(kind, kube, server, database, started, servers.version)
        await remove(kube)


@pytest_asyncio.fixture(loop_scope="session")
async def place(running_place: ModePlace) -> AsyncIterator[ModePlace]:
    """Lends the place. The objects of one test are deleted before the next begins, and the controller's session must
    not have ended.
    """
    yield running_place
    await running_place.kube.delete_all()
    await running_place.kube.wait_number(0)
    assert "session with PostgreSQL ended" not in running_place.controller.log
    assert "reclaimed" not in running_place.controller.log


@pytest.fixture
def role() -> str:
    return f"n{secrets.token_hex(4)}"


def drifts(count: int) -> Callable[[Json], bool]:
    return lambda obj: obj.get("status", {}).get("driftCount", 0) >= count


def ready_after(count: int) -> Callable[[Json], bool]:
    return lambda obj: drifts(count)(obj) and is_ready(obj)


async def declare(kube: Kube, role: str, **spec: Any) -> Json:
    await kube.apply("app", name=role, **{**DECLARED, **spec})
    return await kube.wait_ready("app")


async def test_the_log_names_the_mode_in_use(place: ModePlace) -> None:
    for words in place.kind.says:
        await place.controller.wait_log(words)
    seen = await place.database.fetchval("SELECT to_regnamespace('pgrole') IS NOT NULL")
    assert seen is place.kind.has_claims


IN_DATABASE = """SELECT s.setconfig FROM pg_db_role_setting AS s JOIN pg_database AS d ON d.oid = s.setdatabase
                 WHERE d.datname = 'template1' AND s.setrole = to_regrole($1)"""


def test_every_privileged_attribute_has_a_drift_in_the_tables() -> None:
    assert set(POWERS) <= {drift.field for drift in (*ATTRIBUTES, *POWERFUL)}


async def test_every_drift_is_detected_reported_and_repaired(place: ModePlace, role: str) -> None:
    kube, database = place.kube, place.database
    made = (await declare(kube, role))["status"]["role"]
    before, count, told = await read_role(place, role), 0, Counter[frozenset[str]]()
    powerful = POWERFUL if place.kind.grants is None else ()
    for count, drift in enumerate((*ATTRIBUTES, *powerful, *OTHERS), 1):
        await database.execute(drift.statement.format(role, role))
        obj = await tell(kube, told, count, drift)
        assert await read_role(place, role) == before
        assert obj["status"]["role"] == made
    assert await database.role(f"{role}_stolen") is None
    await database.execute(DROPPED.statement.format(role))
    obj = await tell(kube, told, count + 1, DROPPED)
    again = await read_role(place, role)
    assert obj["status"]["role"] == made | {"oid": again["oid"]}
    assert again == before | {"oid": again["oid"]}
    assert again["oid"] != before["oid"]


async def read_role(place: ModePlace, role: str) -> Json:
    """Returns its row of pg_roles, and its settings in template1."""
    row = await place.database.role(role)
    assert row is not None
    return dict(row) | {"template1": await place.database.fetchval(IN_DATABASE, role)}


async def tell(kube: Kube, told: Counter[frozenset[str]], count: int, drift: Tampering) -> Json:
    """Returns the object once it is Ready after this many drifts, the last of which status and an Event report.

    `told` counts by fields what Events have reported so far.
    """
    obj = await kube.wait_for("app", ready_after(count), f"driftCount {count} and Ready after {drift.statement}")
    assert obj["status"]["driftCount"] == count
    fields = obj["status"]["lastDrift"]["fields"]
    assert (fields[:1] if drift is DROPPED else fields) == [drift.field]
    assert obj["status"]["lastDrift"]["corrected"] is True
    told[frozenset(fields)] += 1
    found: Counter[frozenset[str]] = Counter()

    async def is_told() -> bool:
        found.clear()
        for event in await kube.events("DriftCorrected"):
            if event["regarding"]["uid"] == obj["metadata"]["uid"]:
                of = frozenset(event["note"].removeprefix("corrected drift: ").split(", "))
                found[of] += event["series"]["count"] if event.get("series") else 1
        return found == told

    assert await reached(is_told, PATIENCE), f"{told} expected, but Events tell of {found}"
    return obj


def granted_by(place: ModePlace) -> str:
    """Returns what GRANT and REVOKE of a membership need in addition, if the controller granted it."""
    return f" GRANTED BY {CONTROLLER_ROLE}" if place.kind.grants and place.version >= 16 else ""


@as_elsewhere
async def test_membership_drift_is_repaired(place: ModePlace, role: str) -> None:
    kube, database = place.kube, place.database
    await kube.apply("group", name=f"{role}_group")
    await kube.apply("other", name=f"{role}_other")
    await kube.wait_ready("other")
    await declare(kube, role, memberOf=[{"role": f"{role}_group"}])
    by = granted_by(place)
    await database.execute(f"REVOKE {role}_group FROM {role}{by}")
    await kube.wait_for("app", drifts(1), "driftCount 1")
    await database.execute(f"GRANT {role}_other TO {role}{by}")
    obj = await kube.wait_for("app", drifts(2), "driftCount 2")
    assert obj["status"]["lastDrift"]["fields"] == ["memberOf"]
    await database.wait_value(
        f"SELECT array_agg(roleid::regrole::text) FROM pg_auth_members WHERE member = '{role}'::regrole",
        [f"{role}_group"],
    )


@as_elsewhere
async def test_a_membership_waits_until_its_role_is_created(place: ModePlace, role: str) -> None:
    await place.kube.apply("app", name=role, memberOf=[{"role": f"{role}_group"}])
    await place.kube.wait_reason("app", "MembershipPending")
    await place.kube.apply("group", name=f"{role}_group")
    await place.kube.wait_ready("app")


@as_elsewhere
async def test_a_password_follows_its_secret_and_is_restored_if_verifiers_are_readable(
    place: ModePlace, role: str
) -> None:
    kube, database = place.kube, place.database
    await kube.apply_secret("source", password="first")
    await declare(kube, role, password={"secretRef": {"name": "source"}})
    await database.wait_password(role, "first")
    await kube.apply_secret("source", password="second")
    await database.wait_password(role, "second")
    obj = await kube.wait_ready("app")
    assert obj["status"]["driftCount"] == 0
    if place.kind.sees_passwords:
        await database.execute(f"ALTER ROLE {role} PASSWORD 'tampered'")
        obj = await kube.wait_for("app", drifts(1), "driftCount 1")
        assert obj["status"]["lastDrift"]["fields"] == ["password"]
        await database.wait_password(role, "second")


@as_elsewhere
async def test_a_generated_password_is_delivered_and_survives_a_drift(place: ModePlace, role: str) -> None:
    await declare(place.kube, role, password={"generate": {}}, connectionSecret={"name": "app-connection"})
    secret = await place.kube.wait_secret("app-connection")
    await place.database.wait_password(role, secret["text"]["password"])
    await place.database.execute(f"ALTER ROLE {role} CREATEDB")
    await place.kube.wait_for("app", drifts(1), "driftCount 1")
    again = await place.kube.secret("app-connection")
    assert again is not None
    assert again["metadata"]["uid"] == secret["metadata"]["uid"]
    assert again["text"]["password"] == secret["text"]["password"]


@as_combined
async def test_memberships_passwords_and_a_drop_work_in_combined_kinds(place: ModePlace, role: str) -> None:
    """In short what other tests show of each way to detect and each way to keep claims."""
    kube, database = place.kube, place.database
    await kube.apply_secret("source", password="first")
    await kube.apply(
        "made", name=f"{role}_made", password={"generate": {}}, connectionSecret={"name": "made-connection"}
    )
    await kube.apply("group", name=f"{role}_group")
    source, groups = {"secretRef": {"name": "source"}}, [{"role": f"{role}_group"}]
    await declare(kube, role, password=source, memberOf=groups, deletionPolicy="Drop")
    await database.wait_password(role, "first")
    await kube.apply_secret("source", password="second")
    await database.wait_password(role, "second")
    made = await kube.wait_secret("made-connection")
    await database.wait_password(f"{role}_made", made["text"]["password"])
    await database.execute(f"REVOKE {role}_group FROM {role}{granted_by(place)}")
    obj = await kube.wait_for("app", ready_after(1), "driftCount 1")
    assert obj["status"]["lastDrift"]["fields"] == ["memberOf"]
    assert await database.fetchval(f"SELECT pg_has_role('{role}', '{role}_group', 'MEMBER')")
    if place.kind.sees_passwords:
        await database.execute(f"ALTER ROLE {role} PASSWORD 'tampered'")
        obj = await kube.wait_for("app", drifts(2), "driftCount 2")
        assert obj["status"]["lastDrift"]["fields"] == ["password"]
        await database.wait_password(role, "second")
    again = await kube.wait_secret("made-connection")
    assert again["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]
    await kube.delete("app")
    await kube.wait_gone("app")
    assert await database.role(role) is None


async def test_repeated_drift_is_always_repaired(place: ModePlace, role: str) -> None:
    """Each drift follows the last repair immediately: one poll may see the same state as the previous one."""
    await declare(place.kube, role)
    for _ in range(4):  # one more would be a contest
        await place.database.execute(f"ALTER ROLE {role} CREATEDB")
        await place.database.wait_role(role, lambda row: not row["rolcreatedb"], "repaired")
    await place.kube.wait_for("app", drifts(4), "driftCount 4")


@each_way_to_keep_claims
async def test_a_changed_spec_is_no_drift(place: ModePlace, role: str) -> None:
    await declare(place.kube, role)
    obj = await declare(place.kube, role, connectionLimit=8, comment="changed")
    assert obj["status"]["driftCount"] == 0
    row = await place.database.role(role)
    assert row is not None
    assert (row["rolconnlimit"], row["comment"]) == (8, "changed")


@as_elsewhere
async def test_policy_report_changes_nothing_and_ends_when_the_drift_is_undone(place: ModePlace, role: str) -> None:
    await declare(place.kube, role, drift={"policy": "Report"})
    await place.database.execute(f"ALTER ROLE {role} CREATEDB")
    obj = await place.kube.wait_reason("app", "DriftReported")
    assert obj["status"]["lastDrift"]["fields"] == ["createdb"]
    await place.database.execute(f"ALTER ROLE {role} NOCREATEDB")
    obj = await place.kube.wait_ready("app")
    assert obj["status"]["driftCount"] == 0


@each_way_to_keep_claims
async def test_an_existing_role_is_not_taken_without_adopt(place: ModePlace, role: str) -> None:
    await place.database.execute(f"CREATE ROLE {role} CREATEDB")
    if place.kind.grants and place.version >= 16:
        await place.database.execute(f"GRANT {role} TO {CONTROLLER_ROLE} WITH ADMIN TRUE, INHERIT FALSE, SET FALSE")
    await place.kube.apply("app", name=role, **DECLARED)
    await place.kube.wait_reason("app", "RoleExists")
    row = await place.database.role(role)
    assert row is not None
    assert row["rolcreatedb"]
    await declare(place.kube, role, adopt=True)


@each_way_to_keep_claims
async def test_two_objects_do_not_share_a_role(place: ModePlace, role: str) -> None:
    await declare(place.kube, role)
    await place.kube.apply("late", name=role, adopt=True, comment="another's")
    obj = await place.kube.wait_reason("late", "Conflict")
    assert "/app" in condition(obj, "Ready")["message"]
    await place.kube.wait_ready("app")
    row = await place.database.role(role)
    assert row is not None
    assert row["comment"] == "as declared"


@as_elsewhere
async def test_a_renamed_role_whose_name_is_taken_is_refused_until_the_name_is_free(
    place: ModePlace, role: str
) -> None:
    await declare(place.kube, role)
    stolen = f"{role}_stolen"
    await place.database.execute(f"BEGIN; ALTER ROLE {role} RENAME TO {stolen}; CREATE ROLE {role}; COMMIT")
    obj = await place.kube.wait_reason("app", "NameTaken")
    assert stolen in condition(obj, "Ready")["message"]
    await place.database.execute(f"DROP ROLE {role}")
    await place.kube.wait_ready("app")
    assert await place.database.role(stolen) is None


async def test_a_role_renamed_to_the_name_in_another_object_is_not_taken_over(place: ModePlace, role: str) -> None:
    await place.kube.apply("victim", name=f"{role}_victim")
    victim = await place.kube.wait_ready("victim")
    await place.database.execute(f"ALTER ROLE {role}_victim RENAME TO {role}")
    await place.kube.apply("app", name=role, adopt=True)
    await place.kube.wait_for("victim", drifts(1), "driftCount 1")
    obj = await place.kube.wait_ready("app")
    assert obj["status"]["role"]["oid"] != victim["status"]["role"]["oid"]


@as_elsewhere
async def test_a_deleted_object_drops_its_role_and_reassigns_its_objects(place: ModePlace, role: str) -> None:
    kube, database = place.kube, place.database
    await kube.apply("heir", name=f"{role}_heir")
    await kube.wait_ready("heir")
    await declare(kube, role, deletionPolicy="Drop", reassignOwnedTo=f"{role}_heir")
    if place.kind.grants:
        options = "WITH INHERIT TRUE, SET TRUE" if place.version >= 16 else ""
        for name in (role, f"{role}_heir"):
            await database.execute(f"GRANT {name} TO {CONTROLLER_ROLE} {options}")
    # not in the home database, where the new owner's privileges would let the controller install its schema
    await database.execute(f"CREATE DATABASE of_{role}")
    async with open_database(place.server.dsn(database=f"of_{role}")) as other:
        await other.execute(f"CREATE SCHEMA mine AUTHORIZATION {role}")
        if place.kind.grants:
            await other.execute(f"GRANT CREATE ON DATABASE of_{role} TO {role}_heir")
        await kube.delete("app")
        await kube.wait_gone("app")
        assert await database.role(role) is None
        await other.wait_value(
            "SELECT nspowner::regrole::text FROM pg_namespace WHERE nspname = 'mine'", f"{role}_heir"
        )
    await database.execute(f"DROP DATABASE of_{role}")


@each_way_to_keep_claims
async def test_a_recreated_object_takes_its_retained_role_back(place: ModePlace, role: str) -> None:
    await declare(place.kube, role)
    await place.kube.delete("app")
    await place.kube.wait_gone("app")
    before = await place.database.role(role)
    assert before is not None
    obj = await declare(place.kube, role)
    assert obj["status"]["role"]["oid"] == before["oid"]


@as_everywhere
async def test_a_name_in_another_encoding_does_not_end_the_session(place: ModePlace, role: str) -> None:
    await declare(place.kube, role)
    await place.database.execute(f"CREATE DATABASE latin_{role} ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    async with open_database(place.server.dsn(database=f"latin_{role}")) as latin:
        await latin.execute(f'CREATE ROLE "{role}_ä"; COMMENT ON ROLE "{role}_ä" IS \'ö\'')
        await latin.execute(f"COMMENT ON ROLE {role} IS 'ü'")
        await place.kube.wait_for("app", drifts(1), "driftCount 1")
        await latin.execute(f'DROP ROLE "{role}_ä"')
    await place.database.execute(f"ALTER ROLE {role} CREATEDB")
    await place.kube.wait_for("app", drifts(2), "driftCount 2")
    await place.database.execute(f"DROP DATABASE latin_{role} WITH (FORCE)")


SLOW_TO_ASK = ("--poll-interval", "100ms")  # privileges are checked every 60 polls, 6 s


@pytest_asyncio.fixture(loop_scope="session")
async def admin(stage: Stage) -> AsyncIterator[Database]:
    async with stage.database() as opened:
        await opened.execute(BARE)
        yield opened


def steward(stage: Stage, *arguments: str) -> Controller:
    return stage.controller(stage.postgres.dsn(CONTROLLER_ROLE, password=PASSWORD), *SLOW_TO_ASK, *arguments)


@pytest.mark.slow
class TestSwitching:
    async def test_auto_switches_with_the_grants_to_watch_and_back_and_to_watching_passwords(
        self, stage: Stage, admin: Database
    ) -> None:
        async with running(steward(stage)) as controller:
            await stage.kube.apply("app", login=True)
            obj = await stage.kube.wait_ready("app")
            assert "GRANT CREATE ON DATABASE postgres" in controller.log
            await admin.execute(CREATE)
            await controller.wait_log("detection=Poll schema=made passwords=False claims=Database")
            await controller.wait_log("GRANT SELECT (oid, xmin)")
            await admin.execute("ALTER ROLE app NOLOGIN")
            await stage.kube.wait_for("app", drifts(1), "driftCount 1")
            await admin.execute(READ)
            await controller.wait_log("detection=Watch")
            await admin.execute("ALTER ROLE app CREATEDB")
            await stage.kube.wait_for("app", drifts(2), "driftCount 2")
            await admin.execute(
                f"REVOKE SELECT (oid, xmin) ON pg_authid FROM {CONTROLLER_ROLE}; ALTER ROLE app CREATEROLE"
            )
            await stage.kube.wait_for("app", drifts(3), "driftCount 3")
            await controller.wait_count("detection=Poll", 3)
            await admin.execute(f"REVOKE CREATE ON DATABASE postgres FROM {CONTROLLER_ROLE}")
            await admin.drop_schema()
            await controller.wait_count("claims=Status", 2)
            await admin.execute("ALTER ROLE app CREATEDB")
            again = await stage.kube.wait_for("app", drifts(4), "driftCount 4")
            assert again["status"]["role"]["oid"] == obj["status"]["role"]["oid"]
            assert again["status"]["driftCount"] == 4

            await stage.kube.apply_secret("source", password="given")
            await stage.kube.apply("secured", login=True, password={"secretRef": {"name": "source"}})
            await stage.kube.wait_ready("secured")
            assert "passwords=True" not in controller.log
            await admin.execute(READ_ALL)
            await controller.wait_log("passwords=True")
            await admin.wait_password("secured", "given")
            await admin.execute("ALTER ROLE secured PASSWORD 'tampered'")
            obj = await stage.kube.wait_for("secured", drifts(1), "driftCount 1")
            assert obj["status"]["lastDrift"]["fields"] == ["password"]
            await admin.wait_password("secured", "given")

    async def test_a_reported_drift_that_is_undone_before_the_next_poll_is_no_longer_reported(
        self, stage: Stage, admin: Database
    ) -> None:
        """A change of the object shows the drift between two polls, which then find the same."""
        async with running(steward(stage, "--poll-interval", "5s")):
            await stage.kube.apply("app", login=True, drift={"policy": "Report"})
            await stage.kube.wait_ready("app")
            await anyio.sleep(11.0)  # two polls, which look at the created role in any case
            await admin.execute("ALTER ROLE app CREATEDB")
            await stage.kube.patch("app", {"metadata": {"annotations": {"example.com/poke": "1"}}})
            await stage.kube.wait_reason("app", "DriftReported")
            await admin.execute("ALTER ROLE app NOCREATEDB")
            await stage.kube.wait_ready("app")

    async def test_an_explicit_watch_mode_is_not_replaced_by_another(self, stage: Stage, admin: Database) -> None:
        controller = steward(stage, "--detection", "watch")
        await controller.start()
        await stage.kube.apply("app", login=True)
        obj = await stage.kube.wait_reason("app", "ServerNotReady")
        assert "GRANT CREATE ON DATABASE postgres" in condition(obj, "Ready")["message"]
        await admin.execute(f"{CREATE}; {READ}")
        await stage.kube.wait_ready("app")
        assert "detection=Watch" in controller.log
        assert await controller.stop() == 0

    async def test_an_inaccessible_schema_is_reported_instead_of_ignored(self, stage: Stage, admin: Database) -> None:
        """It may contain claims of others."""
        await admin.execute(f"BEGIN; {queries.install()}; COMMIT")
        controller = steward(stage)
        await controller.start()
        await stage.kube.apply("app", login=True)
        obj = await stage.kube.wait_reason("app", "ServerNotReady")
        assert "GRANT USAGE ON SCHEMA pgrole" in condition(obj, "Ready")["message"]
        assert await admin.role("app") is None
        assert await controller.stop() == 0


_SOURCE: Json = {"password": {"secretRef": {"name": "source"}}, "drift": {"ignore": ["password"]}}


@dataclass(frozen=True, slots=True)
class RestartedPlace:
    """A controller that keeps claims in status, after a restart; `before`: an object, and a Secret, from before."""

    kube: Kube
    admin: Database
    controller: Controller
    before: Json
    secret: Json


@pytest_asyncio.fixture(scope="class", loop_scope="session")
async def restarted(
    servers: Servers, api_server: ApiServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[RestartedPlace]:
    async with servers.run() as server, open_database(server.dsn()) as admin:
        await admin.execute(f"{BARE}; CREATE ROLE adopted LOGIN PASSWORD 'theirs'")
        await admin.execute(f"GRANT adopted TO {CONTROLLER_ROLE} WITH ADMIN OPTION")
        stage = Stage(await make_kube(api_server), server, tmp_path_factory.mktemp("restarted"))
        kube = stage.kube
        await kube.apply_secret("source", password="first")
        await kube.apply_all(
            {
                **{name: {"login": True, "deletionPolicy": "Drop"} for name in ("app", "gone")},
                "reported": {"login": True, "drift": {"policy": "Report"}},
                "replaced": {"login": True},
                "ignoring": {"login": True, **_SOURCE},
                "adopted": {"login": True, "adopt": True, **_SOURCE},
                "generated": {"login": True, "password": {"generate": {}}, "connectionSecret": {"name": "made"}},
            }
        )
        async with running(steward(stage)):
            await kube.wait_all_ready()
            await admin.execute("ALTER ROLE app CREATEDB")
            before = await kube.wait_for("app", drifts(1), "driftCount 1")
            await admin.wait_password("ignoring", "first")
            await admin.execute("ALTER ROLE ignoring PASSWORD 'theirs'")
            secret = await kube.wait_secret("made")
        await admin.execute(
            "ALTER ROLE app CREATEDB; DROP ROLE gone, reported, replaced; CREATE ROLE replaced CREATEDB"
        )
        async with running(steward(stage)) as controller:
            yield RestartedPlace(kube, admin, controller, before, secret)
        await remove(kube)


@pytest.mark.slow
class TestClaimsInStatus:
    """What a restarted controller knows about the roles that it created."""

    async def test_a_restart_reclaims_nothing_and_counts_drift_made_meanwhile(self, restarted: RestartedPlace) -> None:
        kube, admin = restarted.kube, restarted.admin
        obj = await kube.wait_for("app", drifts(2), "driftCount 2")
        assert obj["status"]["driftCount"] == 2
        assert obj["status"]["role"] == restarted.before["status"]["role"]
        await admin.wait_role("gone", lambda row: row["rolcanlogin"], "recreated")
        await admin.execute("ALTER ROLE app CREATEDB")
        await kube.wait_for("app", drifts(3), "driftCount 3")
        assert await kube.events("ClaimRestored") == []
        assert "reclaimed" not in restarted.controller.log
        await kube.delete("app")
        await kube.wait_gone("app")
        assert await admin.role("app") is None

    async def test_policy_report_creates_no_role_dropped_meanwhile(self, restarted: RestartedPlace) -> None:
        kube = restarted.kube
        obj = await kube.wait_reason("reported", "DriftReported")
        assert obj["status"]["lastDrift"]["fields"] == ["role"]
        assert await restarted.admin.role("reported") is None
        await kube.apply("reported", login=True, drift={"policy": "Report"}, comment="again")
        await kube.wait_ready("reported")
        assert await restarted.admin.role("reported")

    async def test_a_new_role_of_the_same_name_is_not_taken_over(self, restarted: RestartedPlace) -> None:
        await restarted.kube.wait_reason("replaced", "RoleExists")
        row = await restarted.admin.role("replaced")
        assert row is not None
        assert row["rolcreatedb"]

    @pytest.mark.parametrize("role", ["ignoring", "adopted"])
    async def test_an_ignored_password_stays_unchanged(self, restarted: RestartedPlace, role: str) -> None:
        await restarted.admin.execute(f"ALTER ROLE {role} CREATEDB")
        await restarted.kube.wait_for(role, drifts(1), "driftCount 1")
        await restarted.admin.wait_password(role, "theirs")

    async def test_a_password_that_others_set_before_it_was_declared_and_ignored_stays(
        self, restarted: RestartedPlace
    ) -> None:
        kube, admin = restarted.kube, restarted.admin
        await kube.apply("late", login=True)
        await kube.wait_ready("late")
        await admin.execute("ALTER ROLE late PASSWORD 'theirs'")
        await kube.apply("late", login=True, connectionLimit=3, **_SOURCE)
        await kube.wait_ready("late")
        await admin.wait_password("late", "theirs")

    async def test_a_generated_password_stays(self, restarted: RestartedPlace) -> None:
        before = restarted.secret
        await restarted.admin.execute("ALTER ROLE generated CREATEDB")
        await restarted.kube.wait_for("generated", drifts(1), "driftCount 1")
        after = await restarted.kube.secret("made")
        assert after is not None
        assert after["text"] == before["text"]
        await restarted.admin.wait_password("generated", before["text"]["password"])
