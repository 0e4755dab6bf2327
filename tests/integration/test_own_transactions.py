"""The worker of a database does not read its own changes again, and nothing that others do hides theirs behind that."""

from typing import Any

import anyio
import pytest

from pgrole_controller import resources
from pgrole_controller.local.postgres import PostgresServer
from pgrole_controller.local.process import reached
from pgrole_controller.postgres.capabilities import identify
from pgrole_controller.postgres.connection import Connection, Endpoint, connect
from pgrole_controller.postgres.privileges import database_session, reading_connection, searches
from pgrole_controller.postgres.privileges.database_session import DatabaseSession
from pgrole_controller.postgres.privileges.ddl_events import PrivilegeRead, Scope
from pgrole_controller.postgres.privileges.searches import (
    NOTE_OWN_TRANSACTION,
    Fingerprints,
    OwnSession,
    Searches,
    UnexplainedWrites,
    forget_own_transactions,
    read_own_session,
)
from tests.integration.database_world import DEADLINE, KEY, READ, DatabaseWorkerWorld, make_world

#: Writes an ACL as a superuser can without any event. {r}: a role; {t}: a table.
SILENT = """
UPDATE pg_class
SET relacl = array_replace(relacl, format(o.entry, 'r')::aclitem, format(o.entry, 'rd')::aclitem)
FROM (SELECT r.oid, format('%s=%%s/%s', '{r}', r.rolname) AS entry FROM pg_roles AS r) AS o
WHERE pg_class.oid = '{t}'::regclass AND o.oid = relowner
"""
#: The next 900 transaction ids.
NEXT_IDS = "SELECT string_agg(n::text, ',') FROM generate_series(1, 900) AS s (i), LATERAL (SELECT {} + i) AS t (n)"


class Asked:
    """What the worker read, and how often it asked for writes without an event. `closed`: such writes are not found."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.scopes: list[Scope] = []
        self.times = 0
        self.closed = False
        read, run, ask = DatabaseSession.read, Searches.run, UnexplainedWrites.ask

        async def note_read(
            session: DatabaseSession, roles: Any, reach: Any, to_read: PrivilegeRead, *a: Any, **o: Any
        ) -> Any:
            self.scopes.append(to_read.scope)
            return await read(session, roles, reach, to_read, *a, **o)

        async def note_ask(writes: UnexplainedWrites, *arguments: Any) -> PrivilegeRead:
            return PrivilegeRead() if self.closed else await ask(writes, *arguments)

        async def note_run(searches: Searches, search: Any, since: str | None) -> Any:
            answer = await run(searches, search, since)
            if isinstance(search.__self__, UnexplainedWrites) and not self.closed:
                self.times += 1
            return answer

        monkeypatch.setattr(DatabaseSession, "read", note_read)
        monkeypatch.setattr(UnexplainedWrites, "ask", note_ask)
        monkeypatch.setattr(Searches, "run", note_run)
        monkeypatch.setattr(searches, "UNEXPLAINED_SECONDS", 0.02)

    async def wait_more(self, times: int = 3) -> None:
        enough = self.times + times

        async def is_so() -> bool:
            return self.times >= enough

        assert await reached(is_so, DEADLINE)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    return Asked(monkeypatch)


async def wait_drifts(world: DatabaseWorkerWorld, count: int) -> None:
    await world.wait(lambda result: result.drift_count == count and result.error is None)


async def check_a_repair_is_not_read_again(world: DatabaseWorkerWorld, asked: Asked) -> None:
    await world.wait_settled()
    await asked.wait_more()
    del asked.scopes[:]
    await world.hand.execute(f"GRANT DELETE ON app.orders TO {world.role}")
    await wait_drifts(world, 1)
    await asked.wait_more()
    assert asked.scopes == [Scope.NAMED]


async def test_a_repair_is_not_read_again(world: DatabaseWorkerWorld, asked: Asked) -> None:
    world.declare(READ)
    world.declare_other(READ)
    async with world.working():
        await check_a_repair_is_not_read_again(world, asked)


async def test_a_change_without_an_event_is_found_although_its_author_claims_to_be_the_controller(
    world: DatabaseWorkerWorld, asked: Asked
) -> None:
    world.declare(READ)
    own = "pgrole.own_transactions"
    ids = await world.hand.fetchval(NEXT_IDS.format("pg_current_xact_id()::text::bigint"))
    await world.hand.execute(f"ALTER DATABASE {world.database} SET {own} = '{ids}'")
    async with world.working():
        await world.wait_settled()
        await asked.wait_more()
        await world.hand.execute(f"SET {own} = '{ids}'")
        await world.hand.execute(SILENT.format(r=world.role, t="app.orders"))
        await world.wait_may("DELETE", "app.orders", expected=False)
        await wait_drifts(world, 1)


async def test_a_change_of_another_role_is_found_after_the_controller_wrote_the_same_row(
    world: DatabaseWorkerWorld, asked: Asked
) -> None:
    """It reads everything for one role, and repairs that role's privilege only."""
    world.declare(READ)
    other = world.declare_other(READ)
    async with world.working() as worker:
        await world.wait_settled()
        await world.wait_may("SELECT", "app.items", role=other)
        await asked.wait_more()
        asked.closed = True
        for role in (other, world.role):
            await world.hand.execute(SILENT.format(r=role, t="app.orders"))
        worker.note_grantee(KEY)
        await world.wait_may("DELETE", "app.orders", expected=False)
        assert await world.may("DELETE", "app.orders", other), "it was found otherwise: the test shows nothing"
        asked.closed = False
        await world.wait_may("DELETE", "app.orders", expected=False, role=other)


async def test_a_change_is_found_that_follows_the_controllers_own(world: DatabaseWorkerWorld, asked: Asked) -> None:
    world.declare(READ)
    async with world.working():
        await world.wait_settled()
        for count in (1, 3):
            await world.hand.execute(f"GRANT DELETE ON app.orders TO {world.role}")
            await wait_drifts(world, count)
            await world.hand.execute(SILENT.format(r=world.role, t="app.orders"))
            await wait_drifts(world, count + 1)


async def test_a_transaction_that_fails_notes_nothing(world: DatabaseWorkerWorld) -> None:
    setting = "SELECT current_setting('pgrole.own_transactions')"
    async with connect(Endpoint(world.server.dsn(database=world.database)), "test") as connection:
        await forget_own_transactions(connection)
        await connection.execute(NOTE_OWN_TRANSACTION)
        noted = await connection.fetchval(setting)
        assert noted.isdecimal()
        await connection.execute(f"BEGIN; {NOTE_OWN_TRANSACTION}; ROLLBACK")
        assert await connection.fetchval(setting) == noted
        for _ in range(1010):
            await connection.execute(NOTE_OWN_TRANSACTION)
        ids = (await connection.fetchval(setting)).split(",")
        assert len(ids) == 1000
        assert noted not in ids
        assert sorted(map(int, ids), reverse=True) == list(map(int, ids))


async def test_the_backstop_reads_everything_only_if_events_do_not_explain_a_difference(
    world: DatabaseWorkerWorld,
) -> None:
    async with connect(Endpoint(world.server.dsn(database=world.database)), "test") as connection:
        fingerprints = Fingerprints(connection, await identify(connection), events=True, guarded=False)
        assert not (await fingerprints.compare()).is_needed
        for change, expected in (
            (f"GRANT DELETE ON app.orders TO {world.role}", Scope.RECENT),
            (f"GRANT SELECT (total) ON app.orders TO {world.role}", Scope.RECENT),
            ("CREATE TABLE app.new (id int)", Scope.RECENT),
            ("DROP TABLE app.new", Scope.RECENT),
            (f"ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO {world.role}", Scope.RECENT),
            ("COMMENT ON TABLE app.orders IS 'no privilege'", Scope.NOTHING),
            (SILENT.format(r=world.role, t="app.items"), Scope.FULL),
            ("ALTER SCHEMA app RENAME TO other; ALTER SCHEMA other RENAME TO app", Scope.FULL),
            ("CREATE TYPE app.mood AS ENUM ('good')", Scope.FULL),
            ("TRUNCATE app.orders", Scope.FULL),
        ):
            await world.hand.execute(change)
            to_read = await fingerprints.compare()
            assert to_read.scope is expected, change
            assert (to_read.defaults and "table" in to_read.dropped) is (expected is Scope.RECENT), change


async def test_explained_changes_cause_no_full_read_by_the_backstop(
    world: DatabaseWorkerWorld, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_session, "BACKSTOP_SECONDS", 0.05)
    compared = anyio.Event()
    compare = Fingerprints.compare

    async def note(fingerprints: Fingerprints, *arguments: Any) -> PrivilegeRead:
        to_read = await compare(fingerprints, *arguments)
        if to_read.is_needed:
            compared.set()
        return to_read

    world.declare(READ)
    async with world.working():
        await world.wait_settled()
        await asked.wait_more()
        monkeypatch.setattr(Fingerprints, "compare", note)
        del asked.scopes[:]
        await world.hand.execute(f"GRANT DELETE ON app.orders TO {world.role}")
        await wait_drifts(world, 1)
        with anyio.fail_after(DEADLINE):
            await compared.wait()
        await asked.wait_more()
        assert Scope.RECENT in asked.scopes
        assert Scope.FULL not in asked.scopes


async def test_the_backstop_notices_a_dropped_object_that_no_event_tells(
    world: DatabaseWorkerWorld, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A catalog row that is gone leaves nothing recent to read."""
    asked.closed = True
    async with connect(Endpoint(world.server.dsn(database=world.database)), "test") as connection:
        fingerprints = Fingerprints(connection, await identify(connection), events=True, guarded=False)
        await fingerprints.compare()
        await world.hand.execute(
            f"ALTER DEFAULT PRIVILEGES FOR ROLE {world.alice} GRANT SELECT ON TABLES TO {world.role}"
        )
        assert (await fingerprints.compare()).defaults
        await world.hand.execute("DELETE FROM pg_default_acl")
        to_read = await fingerprints.compare()
    assert to_read.defaults
    assert to_read.dropped


async def test_writes_are_not_searched_while_no_transaction_ends(own_postgres: PostgresServer) -> None:
    async with make_world(own_postgres) as world:
        query = resources.text("sql", "events", "unexplained.sql")
        snapshot = await world.hand.fetchval("SELECT pg_current_snapshot()::text")
        await world.hand.execute(f"PREPARE search AS {query}")
        lines = await world.hand.fetch(f"EXPLAIN (ANALYZE, COSTS OFF) EXECUTE search ('{snapshot}', NULL, NULL, NULL)")
    scans = [row[0] for row in lines if "Scan on pg_class" in row[0] or "on pg_class" in row[0]]
    assert scans
    assert all("never executed" in scan for scan in scans)


async def test_a_search_beside_the_session_finds_what_one_within_finds(
    world: DatabaseWorkerWorld, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large database is searched on another connection, which has not the session's own settings and process."""
    others: list[Connection] = []
    ask = UnexplainedWrites.ask

    async def note(
        writes: UnexplainedWrites, another: Connection | None = None, own: OwnSession | None = None
    ) -> PrivilegeRead:
        assert another is not None
        others.append(another)
        return await ask(writes, another, own)

    monkeypatch.setattr(UnexplainedWrites, "ask", note)
    monkeypatch.setattr(reading_connection, "LARGE_CATALOGS", 0)
    world.declare(READ)
    world.declare_other(READ)
    async with world.working():
        await check_a_repair_is_not_read_again(world, asked)
        await world.hand.execute(SILENT.format(r=world.role, t="app.orders"))
        await world.wait_may("DELETE", "app.orders", expected=False)
        await wait_drifts(world, 2)
    assert others


@pytest.mark.parametrize("silent", [False, True])
async def test_what_ends_while_a_search_connects_is_left_for_the_next_search(
    world: DatabaseWorkerWorld, *, silent: bool
) -> None:
    """By then, the session has noted the transaction if it was its own."""
    endpoint = Endpoint(world.server.dsn(database=world.database))
    async with connect(endpoint, "session") as session, connect(endpoint, "search") as another:
        await forget_own_transactions(session)
        writes = UnexplainedWrites(session, await session.fetchval("SELECT pg_current_snapshot()::text"), guarded=False)
        own = await read_own_session(session)
        await world.hand.execute(f"GRANT SELECT ON app.orders, app.items TO {world.role}")
        async with session.transaction():
            await session.execute(SILENT.format(r=world.role, t="app.orders"))
            await session.execute(NOTE_OWN_TRANSACTION)
        if silent:
            await world.hand.execute(SILENT.format(r=world.role, t="app.items"))
        assert await writes.ask(another, own) == PrivilegeRead()
        found = await writes.ask(another, await read_own_session(session))
    assert found.scope is (Scope.RECENT if silent else Scope.NOTHING)
