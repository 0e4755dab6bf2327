"""postgres/apply: statements name roles, but whatever is renamed meanwhile, no other role is altered or dropped."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

import anyio
import asyncpg
import pytest
import pytest_asyncio

from pgrole_controller.core.ddl import quote_identifier
from pgrole_controller.core.diff import (
    Change,
    Create,
    Drop,
    GrantMembership,
    Rename,
    RevokeMembership,
    SetAttribute,
    SetComment,
    SetParameter,
)
from pgrole_controller.core.errors import PgRoleError, Reason
from pgrole_controller.core.plan import Plan
from pgrole_controller.core.role import Membership, Role
from pgrole_controller.local.postgres import PostgresServer
from pgrole_controller.postgres.apply import Dialect, apply_plans
from pgrole_controller.postgres.capabilities import identify
from pgrole_controller.postgres.connection import Connection, Endpoint, connect
from pgrole_controller.postgres.database_claims import DatabaseClaims
from pgrole_controller.postgres.schema import install
from pgrole_controller.postgres.status_claims import StatusClaims
from tests.integration.test_reassign import reached

#: 63 bytes, with everything that a name can contain.
OURS = "o\"u'r$s %s \\ " + "日" * 16 + "xy"
THEIRS = "theirs"
GROUP = "gr'o\"up"

#: Changes that may follow a statement that waits. `EVERYTHING` shows each of them.
CHANGES: dict[str, Change] = {
    "attribute": SetAttribute(OURS, "createdb", True),
    "rename": Rename(OURS, "renamed"),
    "comment": SetComment(OURS, "by us"),
    "grant": GrantMembership(OURS, Membership(GROUP)),
    "revoke": RevokeMembership(OURS, "before", ("postgres",)),
    "setting": SetParameter(OURS, None, "work_mem", "1MB"),
    "setting in a database": SetParameter(OURS, "postgres", "work_mem", "1MB"),
    "reset": SetParameter(OURS, None, "app.x", None),
    "drop": Drop(OURS),
}

#: What another session does to the names meanwhile.
MEANWHILE = {
    "swapped": f"ALTER ROLE {quote_identifier(OURS)} RENAME TO away; "
    f"ALTER ROLE {THEIRS} RENAME TO {quote_identifier(OURS)}",
    "made again": f"DROP ROLE {quote_identifier(OURS)}; CREATE ROLE {quote_identifier(OURS)} SUPERUSER",
}

EVERYTHING = """
SELECT jsonb_build_object(
    'role', (SELECT to_jsonb(r) - 'rolname' - 'rolpassword' FROM pg_roles AS r WHERE r.oid = $1),
    'comment', shobj_description($1, 'pg_authid'),
    'groups', ARRAY(SELECT m.roleid::regrole::text FROM pg_auth_members AS m WHERE m.member = $1 ORDER BY 1),
    'settings', ARRAY(SELECT s.setconfig::text FROM pg_db_role_setting AS s WHERE s.setrole = $1 ORDER BY 1)
)::text
"""

WAITS = "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1 AND wait_event_type = 'Lock')"


@dataclass
class NamingScene:
    """`ours` and `theirs` are oids. A lock of `holder` makes a COMMENT on our role wait."""

    writer: Connection
    holder: Connection
    hand: Connection
    ours: int
    theirs: int
    dialect: Dialect

    def plan(self, *changes: Change) -> Plan:
        return Plan(OURS, changes, self.ours, OURS)

    async def everything(self, oid: int) -> str | None:
        found = await self.hand.fetchval(EVERYTHING, oid)
        return None if found is None else str(found)

    async def carry_out_during(self, statements: str, *plans: Plan) -> tuple[list[PgRoleError | None], bool]:
        """Returns the results of the plans, which wait first, and whether the statements were committed meanwhile."""
        results: list[PgRoleError | None] = []
        done = False

        async def carry() -> None:
            results.extend(await apply_plans(self.writer, plans, self.dialect))

        await self.holder.execute(f"BEGIN; COMMENT ON ROLE {quote_identifier(OURS)} IS 'held'")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(carry)
            await reached(self.hand, WAITS, self.writer.get_server_pid())
            try:
                await self.holder.execute(statements)
                done = True
            except asyncpg.LockNotAvailableError:
                pass
            await self.holder.execute("COMMIT" if done else "ROLLBACK")
        return results, done


async def find(connection: Connection, name: str) -> int | None:
    found = await connection.fetchval("SELECT oid FROM pg_roles WHERE rolname = $1", name)
    return None if found is None else int(found)


@pytest_asyncio.fixture(loop_scope="session", params=["schema", "without_schema"])
async def scene(request: pytest.FixtureRequest, server: PostgresServer) -> AsyncIterator[NamingScene]:
    async with (
        connect(Endpoint(server.dsn()), "test") as writer,
        connect(Endpoint(server.dsn()), "holder", lock_timeout="300ms") as holder,
        connect(Endpoint(server.dsn()), "hand") as hand,
    ):
        identity = await identify(hand)
        version = identity.version_number >= 160000
        if request.param == "schema":
            await install(hand)
            dialect = Dialect(options=version)
        else:
            status_claims = StatusClaims().open(identity.system_identifier)
            dialect = Dialect(options=version, claims=status_claims)
        ours = quote_identifier(OURS)
        await hand.execute(
            f"CREATE ROLE {ours}; CREATE ROLE {THEIRS}; CREATE ROLE {quote_identifier(GROUP)}; CREATE ROLE before;"
            f"GRANT before TO {ours}; GRANT before TO {THEIRS};"
            f"ALTER ROLE {ours} SET app.x = '1'; ALTER ROLE {THEIRS} SET app.x = '1'; COMMENT ON ROLE {THEIRS} IS 'c'"
        )
        try:
            oids = [await find(hand, name) for name in (OURS, THEIRS)]
            assert None not in oids
            yield NamingScene(writer, holder, hand, oids[0] or 0, oids[1] or 0, dialect)
        finally:
            for name in (OURS, THEIRS, GROUP, "before", "away", "renamed"):
                await hand.execute(f"DROP ROLE IF EXISTS {quote_identifier(name)}")


@pytest.mark.parametrize(
    "superuser",
    [pytest.param(True, marks=pytest.mark.slow, id="superuser"), pytest.param(False, id="no superuser")],
)
@pytest.mark.parametrize(
    ("kind", "meanwhile"),
    [
        *((kind, "swapped") for kind in CHANGES),  # another role may have the name for each kind of change
        *((kind, "made again") for kind in ("attribute", "rename", "drop")),
    ],
)
async def test_no_other_role_is_touched_whatever_is_renamed_meanwhile(
    scene: NamingScene, kind: str, meanwhile: str, superuser: bool
) -> None:
    scene.dialect = replace(scene.dialect, superuser=superuser)
    before = await scene.everything(scene.theirs)
    plan = scene.plan(SetComment(OURS, "waits"), CHANGES[kind])
    (failure,), done = await scene.carry_out_during(MEANWHILE[meanwhile], plan)
    assert done is not superuser  # a superuser locks the names
    assert await scene.everything(scene.theirs) == before
    if done:
        assert failure is not None
        assert failure.reason is Reason.PROGRESSING
        named = await find(scene.hand, OURS)
        assert named not in (None, scene.ours)
        assert await scene.hand.fetchval("SELECT shobj_description($1, 'pg_authid')", named) != "waits"
    else:
        assert failure is None
        gone = await scene.hand.fetchval("SELECT NOT EXISTS (SELECT FROM pg_roles WHERE oid = $1)", scene.ours)
        assert gone is (kind == "drop")


@pytest.mark.parametrize("superuser", [True, False], ids=["superuser", "no superuser"])
async def test_plans_of_a_batch_that_find_their_own_roles_are_all_applied(scene: NamingScene, superuser: bool) -> None:
    scene.dialect = replace(scene.dialect, superuser=superuser)
    plans = [
        scene.plan(Rename(OURS, "renamed"), SetAttribute("renamed", "login", True)),
        Plan(THEIRS, (Drop(THEIRS),), scene.theirs, THEIRS),
        Plan("away", (Create(Role("away")),), None, "away"),
    ]
    assert await apply_plans(scene.writer, plans, scene.dialect) == [None, None, None]
    assert await find(scene.hand, "renamed") == scene.ours
    assert await find(scene.hand, THEIRS) is None
    assert await find(scene.hand, "away") is not None


async def test_names_that_are_reused_within_a_batch_are_verified_at_its_end(scene: NamingScene) -> None:
    plans = [
        Plan(THEIRS, (Drop(THEIRS),), scene.theirs, THEIRS),
        scene.plan(Rename(OURS, THEIRS)),
    ]
    assert await apply_plans(scene.writer, plans, scene.dialect) == [None, None]
    assert await find(scene.hand, THEIRS) == scene.ours


async def test_only_renaming_and_dropping_wait_for_a_locked_name(scene: NamingScene) -> None:
    """A lock on a name does not delay sessions that change the role or make others its members."""
    ours = quote_identifier(OURS)
    async with scene.writer.transaction():
        await scene.writer.execute(f"SELECT FROM pg_catalog.pg_authid AS a WHERE a.oid = {scene.ours} FOR KEY SHARE")
        for statement in (f"ALTER ROLE {ours} LOGIN", f"GRANT {ours} TO {THEIRS}", f"ALTER ROLE {ours} SET a.b = 'c'"):
            await scene.holder.execute(statement)
        for statement in (f"ALTER ROLE {ours} RENAME TO away", f"DROP ROLE {ours}"):
            with pytest.raises(asyncpg.LockNotAvailableError):
                await scene.holder.execute(statement)


async def test_a_controller_that_is_no_longer_a_superuser_continues_without_locking(
    scene: NamingScene, server: PostgresServer
) -> None:
    await scene.hand.execute("CREATE ROLE steward LOGIN CREATEROLE PASSWORD 'p'")
    if scene.hand.get_server_version().major >= 16:
        await scene.hand.execute(f"GRANT {quote_identifier(OURS)} TO steward WITH ADMIN OPTION")
    if isinstance(scene.dialect.claims, DatabaseClaims):
        await scene.hand.execute(
            "GRANT USAGE ON SCHEMA pgrole TO steward; GRANT ALL ON ALL TABLES IN SCHEMA pgrole TO steward;"
            "GRANT EXECUTE ON ALL ROUTINES IN SCHEMA pgrole TO steward"
        )
    try:
        async with connect(Endpoint(server.dsn("steward", password="p")), "test") as steward:
            dialect = replace(scene.dialect, superuser=True)
            plan = scene.plan(SetAttribute(OURS, "login", True))
            assert await apply_plans(steward, [plan], dialect) == [None]
            assert await apply_plans(steward, [scene.plan(Drop(OURS))], dialect) == [None]
    finally:
        await scene.hand.execute("DROP OWNED BY steward; DROP ROLE steward")
