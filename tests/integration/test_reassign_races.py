"""postgres: whatever is renamed, swapped or given away while a role is emptied, nothing that others own is taken."""

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import anyio
import asyncpg
import pytest
import pytest_asyncio

from pgrole_controller.core.ddl import quote_identifier
from pgrole_controller.core.errors import PgRoleError, Reason, Waiting
from pgrole_controller.local.postgres import PostgresServer
from pgrole_controller.postgres import reassign as module
from pgrole_controller.postgres.connection import Connection, Endpoint
from tests.integration.test_reassign import SETTINGS, WAITS, ReassignTrial, reached
from tests.servers import Servers

OWNER = "SELECT relowner FROM pg_class WHERE oid = $1"
BOTH = pytest.mark.parametrize(
    "superuser",
    [pytest.param(True, marks=pytest.mark.slow, id="superuser"), pytest.param(False, id="no superuser")],
)

#: Changes to the role's schema mine and the team's schema theirs, by the session that has locked the role's tables.
MEANWHILE = {
    "schemas renamed": "ALTER SCHEMA mine RENAME TO gone; ALTER SCHEMA theirs RENAME TO mine",
    "tables renamed": "ALTER TABLE mine.t RENAME TO x; ALTER TABLE mine.u RENAME TO y;"
    "ALTER TABLE theirs.t SET SCHEMA mine; ALTER TABLE theirs.u SET SCHEMA mine",
    "tables swapped": "ALTER TABLE mine.t RENAME TO x; ALTER TABLE mine.u RENAME TO y;"
    "ALTER TABLE theirs.t SET SCHEMA mine; ALTER TABLE theirs.u SET SCHEMA mine;"
    "ALTER TABLE mine.x SET SCHEMA theirs; ALTER TABLE mine.y SET SCHEMA theirs",
    "dropped, and made by others": "DROP TABLE mine.t, mine.u; "
    "CREATE TABLE mine.t (a int); CREATE TABLE mine.u (a int);"
    "ALTER TABLE mine.t OWNER TO {team}; ALTER TABLE mine.u OWNER TO {team}",
    "a sequence of theirs": "ALTER SCHEMA mine RENAME TO gone; ALTER SCHEMA theirs RENAME TO mine;"
    "ALTER SEQUENCE gone.q OWNED BY gone.t.a",
}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def server(servers: Servers) -> AsyncIterator[PostgresServer]:
    async with servers.run(settings=SETTINGS) as own:
        yield own


class Race(ReassignTrial):
    """`team` is another team's role. The controller has its privileges, too, and could harm it."""

    team: str = ""
    endpoint: Endpoint | None = None
    members: int = 0  # the controller, if it must be a member

    async def oid_of(self, connection: Connection, relation: str) -> int:
        return int(await connection.fetchval("SELECT $1::regclass::oid", relation))

    async def prepare(self, *, superuser: bool) -> None:
        self.team = f"team_{self.tag}"
        await self.home.execute(f"CREATE ROLE {self.team}; SET lock_timeout = '300ms'")
        if not superuser:
            user = f"controller_{self.tag}"
            await self.home.execute(f"CREATE ROLE {user} LOGIN CREATEROLE PASSWORD 'p'")
            await self.home.execute(f"GRANT {self.q}, {self.new_owner}, {self.team} TO {user}")
            self.members = 1
            self.endpoint = Endpoint(self.server.dsn(user, password="p"))

    async def stage(self) -> Connection:
        """Returns a superuser's session in a database where role and team have tables with the same names."""
        name = await self.create_database()
        setup = (
            f"CREATE SCHEMA mine AUTHORIZATION {self.q}; CREATE SCHEMA theirs AUTHORIZATION {self.team};"
            f"GRANT ALL ON SCHEMA mine, theirs TO {self.new_owner}; GRANT CREATE ON DATABASE {name} TO PUBLIC;"
        )
        for schema, owner in (("mine", self.q), ("theirs", self.team)):
            for table in ("t", "u"):
                setup += f"CREATE TABLE {schema}.{table} (a int); ALTER TABLE {schema}.{table} OWNER TO {owner};"
            setup += f"CREATE SEQUENCE {schema}.q; ALTER SEQUENCE {schema}.q OWNER TO {owner};"
        return await self.enter(name, "postgres", setup)

    async def empty_during(self, work: Callable[[], Awaitable[None]]) -> None:
        """Empties the role, which waits for a lock. Runs `work` meanwhile, and then empties the role completely."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.attempt)
            await reached(self.home, WAITS)
            await work()
        await self.converge()

    async def attempt(self) -> None:
        try:
            await self.reassign(self.endpoint)
        except PgRoleError as error:
            assert error.reason in {Reason.DROP_BLOCKED, Reason.PROGRESSING}, error  # noqa: PT017

    async def converge(self) -> None:
        await self.reassign(self.endpoint)

    async def swap(self, one: str, other: str) -> bool:
        """Returns whether two roles could swap their names."""
        try:
            await self.home.execute(
                f"BEGIN; ALTER ROLE {one} RENAME TO swapping; ALTER ROLE {other} RENAME TO {one};"
                f"ALTER ROLE swapping RENAME TO {other}; COMMIT"
            )
        except asyncpg.LockNotAvailableError:
            await self.home.execute("ROLLBACK")
            return False
        return True


@pytest_asyncio.fixture(loop_scope="session")
async def race(server: PostgresServer) -> AsyncIterator[Race]:
    home: Connection = await asyncpg.connect(server.dsn())
    try:
        async with AsyncExitStack() as stack:
            race = Race(server, home, stack, secrets.token_hex(3))
            await race.start("ro")
            yield race
        for name in race.databases:
            await home.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
    finally:
        await home.close()


@BOTH
@pytest.mark.parametrize("piece", [1, 300])
@pytest.mark.parametrize("meanwhile", list(MEANWHILE))
async def test_another_owners_table_that_gets_the_name_of_the_roles_table_keeps_its_owner(
    race: Race, monkeypatch: pytest.MonkeyPatch, meanwhile: str, piece: int, superuser: bool
) -> None:
    monkeypatch.setattr(module, "PIECE", piece)
    await race.prepare(superuser=superuser)
    holder = await race.stage()
    theirs = [await race.oid_of(holder, name) for name in ("theirs.t", "theirs.u", "theirs.q")]
    mine = [await race.oid_of(holder, name) for name in ("mine.t", "mine.u", "mine.q")]
    await holder.execute("BEGIN; LOCK TABLE mine.t, mine.u")

    async def work() -> None:
        try:
            await holder.execute(MEANWHILE[meanwhile].format(team=race.team))
            await holder.execute("COMMIT")
        except (asyncpg.DeadlockDetectedError, asyncpg.LockNotAvailableError):
            await holder.execute("ROLLBACK")

    await race.empty_during(work)
    team, new_owner = [
        await holder.fetchval("SELECT oid FROM pg_roles WHERE rolname = $1", name)
        for name in (race.team, race.new_owner)
    ]
    assert [await holder.fetchval(OWNER, oid) for oid in theirs] == [team] * 3
    assert {await holder.fetchval(OWNER, oid) for oid in mine} <= {new_owner, None}
    others = "SELECT count(*) FROM pg_class WHERE relowner = $1 AND relkind IN ('r', 'S') AND NOT oid = ANY ($2)"
    assert await holder.fetchval(others, new_owner, mine) == 0
    await race.drop(race.members)


@pytest.mark.parametrize("piece", [1, 300])
async def test_an_object_given_to_others_before_its_turn_keeps_that_owner(
    race: Race, monkeypatch: pytest.MonkeyPatch, piece: int
) -> None:
    monkeypatch.setattr(module, "PIECE", piece)
    await race.prepare(superuser=True)
    giver = await race.stage()
    await giver.execute(
        f"CREATE FUNCTION mine.f() RETURNS int LANGUAGE sql AS 'SELECT 1'; ALTER FUNCTION mine.f() OWNER TO {race.q};"
        f"BEGIN; ALTER TABLE mine.t OWNER TO {race.team}; ALTER TABLE mine.u OWNER TO {race.team};"
        f"ALTER FUNCTION mine.f() OWNER TO {race.team}"
    )

    async def work() -> None:
        await giver.execute("COMMIT")

    await race.empty_during(work)
    assert await race.owner(giver, "mine.t") == race.team
    assert await race.owner(giver, "mine.u") == race.team
    assert await race.owner(giver, "mine.q") == race.new_owner
    assert await giver.fetchval("SELECT proowner::regrole::text FROM pg_proc WHERE proname = 'f'") == race.team
    await race.drop(race.members)


#: What makes the statement wait, after its text was built (DROP OWNED) or while it runs.
HOLDS = {
    "REASSIGN OWNED": "BEGIN; LOCK TABLE mine.t",
    "DROP OWNED": "CREATE FUNCTION hold() RETURNS event_trigger LANGUAGE plpgsql "
    "AS 'BEGIN PERFORM pg_advisory_xact_lock(7); END';"
    "CREATE EVENT TRIGGER hold ON ddl_command_start WHEN TAG IN ('DROP OWNED') EXECUTE FUNCTION hold();"
    "SELECT pg_advisory_lock(7)",
}
RELEASES = {"REASSIGN OWNED": "COMMIT", "DROP OWNED": "SELECT pg_advisory_unlock(7)"}


@BOTH
@pytest.mark.parametrize(
    ("statement", "swapped"), [("REASSIGN OWNED", "role"), ("REASSIGN OWNED", "heir"), ("DROP OWNED", "role")]
)
async def test_roles_that_swap_names_meanwhile_keep_their_objects_and_privileges(
    race: Race, statement: str, swapped: str, superuser: bool
) -> None:
    await race.prepare(superuser=superuser)
    holder = await race.stage()
    await holder.execute(f"GRANT USAGE ON SCHEMA mine TO {race.team}; GRANT USAGE ON SCHEMA theirs TO {race.q}")
    one = {"role": race.role, "heir": race.new_owner}[swapped]
    team, new_owner = [
        await holder.fetchval("SELECT oid FROM pg_roles WHERE rolname = $1", name)
        for name in (race.team, race.new_owner)
    ]
    mine, theirs = [await race.oid_of(holder, name) for name in ("mine.t", "theirs.t")]
    await holder.execute(HOLDS[statement])
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(race.attempt)
        await reached(race.home, WAITS)
        done = await race.swap(one, race.team)
        await holder.execute(RELEASES[statement])
    assert done is not superuser  # a superuser locks the names
    if done:
        assert await race.swap(one, race.team)
    await race.converge()
    assert await holder.fetchval(OWNER, theirs) == team
    assert await holder.fetchval(OWNER, mine) == new_owner
    acl = "SELECT count(*) FROM pg_namespace AS n, aclexplode(n.nspacl) AS a WHERE nspname = 'mine' AND grantee = $1"
    assert await holder.fetchval(acl, team) == 1
    await race.drop(race.members)


@BOTH
@pytest.mark.since(16, "grants by several grantors")
async def test_memberships_that_others_granted_are_not_revoked_when_grantors_swap_names(
    race: Race, superuser: bool
) -> None:
    await race.prepare(superuser=superuser)
    groups, member = [f"g{number}_{race.tag}" for number in (1, 2)], f"member_{race.tag}"
    await race.home.execute(f"CREATE ROLE {member}")
    for group in groups:
        await race.home.execute(f"CREATE ROLE {group}; GRANT {group} TO {race.q}, {race.team} WITH ADMIN OPTION")
        for grantor in (race.q, race.team):
            await race.home.execute(f"SET ROLE {grantor}; GRANT {group} TO {member}; RESET ROLE")
    holder = await race.enter("postgres", "postgres", "BEGIN", *(f"COMMENT ON ROLE {g} IS 'held'" for g in groups))
    team = await race.home.fetchval("SELECT oid FROM pg_roles WHERE rolname = $1", race.team)
    done: list[bool] = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(race.attempt)
        await reached(race.home, WAITS)
        done.append(await race.swap(race.q, race.team))
        await holder.execute("ROLLBACK")
    assert done == [not superuser]
    granted = "SELECT count(*) FROM pg_auth_members WHERE grantor = $1 AND member = $2::regrole"
    assert await race.home.fetchval(granted, team, member) == 2
    if done == [True]:
        assert await race.swap(race.q, race.team)
    await race.converge()
    assert await race.home.fetchval(granted, team, member) == 2
    await race.drop(race.members)


@BOTH
async def test_grantors_that_swap_names_while_one_may_use_a_schema_keep_what_they_had(
    race: Race, superuser: bool
) -> None:
    """A grantor who lost the schema gets USAGE while its grant is revoked, and must not keep it."""
    await race.prepare(superuser=superuser)
    holder = await race.stage()
    locked_out, user = f"out_{race.tag}", f"user_{race.tag}"
    await holder.execute(
        f"CREATE ROLE {locked_out}; CREATE ROLE {user}; GRANT USAGE ON SCHEMA theirs TO {locked_out}, {user};"
        f"GRANT SELECT ON theirs.t TO {locked_out} WITH GRANT OPTION; SET ROLE {locked_out};"
        f"GRANT SELECT ON theirs.t TO {race.q}; RESET ROLE; REVOKE USAGE ON SCHEMA theirs FROM {locked_out}"
    )
    if not superuser:
        await holder.execute(f"GRANT {locked_out}, {user} TO controller_{race.tag}")
    schema = "SELECT array_agg(a::text) FROM pg_namespace AS n, aclexplode(n.nspacl) AS a WHERE nspname = 'theirs'"
    before = await holder.fetchval(schema)
    await holder.execute(f"BEGIN; GRANT SELECT ON theirs.t TO {user}")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(race.attempt)
        await reached(race.home, WAITS)
        assert await race.swap(locked_out, user)
        await holder.execute("ROLLBACK")
    assert await race.swap(locked_out, user)
    await race.converge()
    assert await holder.fetchval(schema) == before
    await race.drop(race.members)
    await holder.execute(f"DROP OWNED BY {locked_out}, {user}; DROP ROLE {locked_out}, {user}")


async def test_the_controller_does_not_run_a_tenants_function_by_an_event_trigger(race: Race) -> None:
    await race.prepare(superuser=True)
    superuser = await race.stage()
    await superuser.execute(
        "CREATE FUNCTION sneak() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'ran'; END $$;"
        "CREATE EVENT TRIGGER \"sne'ak\" ON ddl_command_start WHEN TAG IN ('DROP OWNED') EXECUTE FUNCTION sneak();"
        "CREATE EVENT TRIGGER elsewhere ON ddl_command_start WHEN TAG IN ('CREATE CAST') EXECUTE FUNCTION sneak();"
        f"ALTER FUNCTION sneak() OWNER TO {race.team}"
    )
    message = await race.refused()
    assert race.databases[0] in message
    assert '"sne\'ak"' in message
    assert "elsewhere" not in message
    assert await race.owner(superuser, "mine.t") == race.role
    await superuser.execute('ALTER EVENT TRIGGER "sne\'ak" DISABLE')
    await race.converge()
    await race.drop(race.members)


@pytest.mark.parametrize("tag", ["ALTER TABLE", "DROP OWNED", "GRANT", "REVOKE"])
async def test_no_statement_runs_a_tenants_function_by_an_event_trigger(race: Race, tag: str) -> None:
    """Privileges that a role without USAGE on the schema granted take most statements: also GRANT and REVOKE."""
    await race.prepare(superuser=True)
    superuser = await race.stage()
    await superuser.execute(
        f"GRANT USAGE ON SCHEMA theirs TO {race.team}; ALTER TABLE theirs.t OWNER TO {race.new_owner};"
        f"GRANT SELECT ON theirs.t TO {race.team} WITH GRANT OPTION;"
        f"SET ROLE {race.team}; GRANT SELECT ON theirs.t TO {race.q}; RESET ROLE;"
        f"ALTER SCHEMA theirs OWNER TO postgres; REVOKE ALL ON SCHEMA theirs FROM {race.team};"
        "CREATE TABLE ran (); CREATE FUNCTION sneak() RETURNS event_trigger LANGUAGE plpgsql AS "
        "$$ BEGIN INSERT INTO public.ran DEFAULT VALUES; END $$;"
        f"CREATE EVENT TRIGGER sneak ON ddl_command_end WHEN TAG IN ('{tag}') EXECUTE FUNCTION sneak();"
        f"ALTER FUNCTION sneak() OWNER TO {race.team}"
    )
    assert "sneak" in await race.refused()
    assert not await superuser.fetchval("SELECT count(*) FROM ran")
    await superuser.execute("DROP EVENT TRIGGER sneak")
    await race.converge()
    await race.drop(race.members)


async def test_blockers_are_reported_even_when_time_runs_out(race: Race) -> None:
    await race.prepare(superuser=True)
    blockers = [await race.stage() for _ in range(6)]
    for blocker in blockers:
        await blocker.execute("BEGIN; LOCK TABLE mine.t")
    with pytest.raises(Waiting) as raised:
        await race.reassign(deadline=8.0)
    assert raised.value.reason is Reason.DROP_BLOCKED
    assert f'in database "{race.databases[0]}": a lock was not available in time' in raised.value.message
    for blocker in blockers:
        await blocker.execute("ROLLBACK")
    await race.converge()
    await race.drop(race.members)


@pytest.mark.parametrize("piece", [1, 300])
@pytest.mark.parametrize("encoding", ["UTF8", "LATIN1", "EUC_JP", "SQL_ASCII"])
async def test_a_table_with_any_name_in_any_encoding_is_reassigned(
    race: Race, monkeypatch: pytest.MonkeyPatch, encoding: str, piece: int
) -> None:
    monkeypatch.setattr(module, "PIECE", piece)
    await race.start("rô\"l'e % \\ 字")
    name = await race.create_database("", f"TEMPLATE template0 ENCODING '{encoding}' LOCALE 'C'")
    superuser = await race.enter(name)
    oid = await race.oid()
    odd = ["t\"a'b %I %% $$ \\ ;--", "x" * 63, "日本" * 10 if encoding != "LATIN1" else "é" * 31]
    for schema in odd:
        await superuser.execute(f"CREATE SCHEMA {quote_identifier(schema)}")
        for table in odd:
            relation = f"{quote_identifier(schema)}.{quote_identifier(table)}"
            await superuser.execute(f"CREATE TABLE {relation} (a serial)")
    # the role's name, in the encoding in which it was created, cannot be sent here
    await superuser.execute(
        f"DO $do$ DECLARE t record; BEGIN FOR t IN SELECT oid::regclass AS name FROM pg_class "
        f"WHERE relkind = 'r' AND relnamespace >= 16384 LOOP EXECUTE format('ALTER TABLE %s OWNER TO %I', t.name, "
        f"(SELECT rolname FROM pg_roles WHERE oid = {oid})); END LOOP; END $do$"
    )
    owned = "SELECT count(*) FROM pg_class WHERE relkind IN ('r', 'S') AND relowner = $1"
    assert await superuser.fetchval(owned, oid) == 18
    await race.reassign()
    assert await superuser.fetchval(owned, oid) == 0
    assert await superuser.fetchval(owned.replace("$1", "$1::regrole"), race.new_owner) == 18
    await race.drop()
