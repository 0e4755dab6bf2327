"""controller/privileges/small_rounds with a real database: while everything is read and applied, events are served."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any, NoReturn

import anyio
import asyncpg
import pytest

from pgrole_controller.controller.privileges import large_rounds
from pgrole_controller.controller.privileges.grantees import Grantees
from pgrole_controller.controller.privileges.small_rounds import Notice, SmallRounds
from pgrole_controller.core.errors import Reason, Transient
from pgrole_controller.core.privileges.grantee import Access, Grantee, SchemaAccess, Takeover
from pgrole_controller.core.privileges.privilege_result import Evidence, News, PrivilegeResult
from pgrole_controller.core.server_options import DatabaseMode
from pgrole_controller.local.process import reached
from pgrole_controller.postgres.connection import Connection
from pgrole_controller.postgres.privileges import acl_apply, reading_connection
from pgrole_controller.postgres.privileges.acl_transaction import AclTransactions
from pgrole_controller.postgres.privileges.database_session import DatabaseSession
from pgrole_controller.postgres.privileges.ddl_events import PrivilegeRead, Scope
from pgrole_controller.postgres.privileges.privilege_reading import PrivilegeReader
from pgrole_controller.postgres.privileges.reading_connection import ReadingConnections
from pgrole_controller.postgres.privileges.searches import UnexplainedWrites
from tests.integration.database_world import (
    DEADLINE,
    KEY,
    READ,
    SERVER,
    DatabaseWorkerWorld,
    full_queue,
    make_world,
)
from tests.integration.test_database_worker import find_nothing
from tests.servers import Servers


class HeldReads:
    """Complete reads that a test can hold. A held one returns what it found before. `starting`: set while none waits
    to begin.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.connections: set[Connection] = set()
        self.starting = anyio.Event()
        self.starting.set()
        self.waits = anyio.Event()
        self._passing = 0
        self._held, self._open = anyio.Event(), anyio.Event()
        self._open.set()
        read = PrivilegeReader._read_everything

        async def read_and_wait(reader: PrivilegeReader, connection: Connection, *arguments: Any) -> Any:
            self.waits.set()
            await self.starting.wait()
            answer = await read(reader, connection, *arguments)
            self.connections.add(connection)
            if self._passing:
                self._passing -= 1
                return answer
            self._held.set()
            await self._open.wait()
            return answer

        monkeypatch.setattr(PrivilegeReader, "_read_everything", read_and_wait)
        monkeypatch.setattr(reading_connection, "LARGE_CATALOGS", 0)
        monkeypatch.setattr(UnexplainedWrites, "ask", find_nothing)

    @asynccontextmanager
    async def hold(self, passing: int = 0) -> AsyncIterator[anyio.Event]:
        """Yields an event that is set once a read is held, after so many others. All go on at the end."""
        self._passing, self._held, self._open = passing, anyio.Event(), anyio.Event()
        try:
            with anyio.fail_after(2 * DEADLINE):
                yield self._held
        finally:
            self._open.set()

    async def wait_more(self, count: int) -> None:
        """Waits until more connections than these were used."""

        async def are_more() -> bool:
            return len(self.connections) > count

        assert await reached(are_more, DEADLINE)

    async def wait_ended(self) -> None:
        async def are_closed() -> bool:
            return len([one for one in self.connections if not one.is_closed()]) <= 1

        assert await reached(are_closed, DEADLINE)


run_at_once = AclTransactions.run


async def run_slowly(*arguments: Any, **options: Any) -> None:
    await run_at_once(*arguments, **options)
    await anyio.sleep(0.05)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> HeldReads:
    return HeldReads(monkeypatch)


async def test_a_reported_drift_whose_row_was_changed_during_a_complete_read_has_its_author(
    world: DatabaseWorkerWorld, reads: HeldReads
) -> None:
    world.declare(READ, report_only=True)
    world.declare_other(READ)
    async with world.working() as worker:
        await world.wait_settled()
        await world.wait_other_settled()
        async with reads.hold() as held:
            worker.note_everything()
            await held.wait()
            await world.hand.execute(f"GRANT DELETE ON app.orders TO {world.role}, {world.other}")
            await world.wait_may("DELETE", "app.orders", expected=False, role=world.other)
        result = await world.wait(lambda result: bool(result.last_drifts))
    assert [(one.by.login, one.by.proof) for one in result.last_drifts] == [("postgres", Evidence.TRANSACTION)]


async def test_a_drift_during_a_complete_read_is_corrected_and_counted_once(
    world: DatabaseWorkerWorld, reads: HeldReads
) -> None:
    world.declare(READ)
    async with world.working() as worker:
        await world.wait_settled()
        world.news()
        async with reads.hold() as held:
            worker.note_everything()
            await held.wait()
            await world.hand.execute(f"GRANT DELETE ON app.orders TO {world.role}")
            await world.wait_may("DELETE", "app.orders", expected=False)
            result = await world.wait(lambda result: result.drift_count == 1)
        assert result.error is None
        await reads.wait_ended()
        await world.hand.execute(f"GRANT DELETE ON app.items TO {world.role}")
        result = await world.wait(lambda result: result.drift_count != 1)
    assert result.drift_count == 2
    assert [reason for reason, _ in world.news()] == [News.DRIFT_CORRECTED] * 2
    assert await world.count_drifts() == 2


async def test_a_declaration_that_is_published_while_events_are_read_is_not_reported_before_it_is_applied(
    world: DatabaseWorkerWorld, reads: HeldReads, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.declare(READ)
    published: list[Grantee] = []
    next_read = DatabaseSession.next_read

    async def read_and_publish(session: DatabaseSession) -> PrivilegeRead:
        found = await next_read(session)
        if not published:
            published.append(world.declare(SchemaAccess("app", frozenset({Access.WRITE}))))
        return found

    async with world.working():
        await world.wait_settled()
        async with reads.hold() as held:
            monkeypatch.setattr(DatabaseSession, "next_read", read_and_publish)
            await world.hand.execute(f"GRANT TRUNCATE ON app.items TO {world.role}")
            await held.wait()
            assert world.result is not None
            assert world.result.digest != published[0].digest_of(world.database)
        await world.wait_settled()
        assert await world.may("DELETE", "app.orders")


async def test_drifts_that_a_do_block_hides_are_corrected_one_after_another_during_a_complete_read(
    world: DatabaseWorkerWorld, reads: HeldReads
) -> None:
    """Each asks for a read of recent rows, and these get half of the time."""
    world.declare(READ)
    async with world.working() as worker:
        await world.wait_settled()
        async with reads.hold() as held:
            worker.note_everything()
            await held.wait()
            for privilege in ("DELETE", "UPDATE", "INSERT"):
                await world.hand.execute(
                    f"DO $$ BEGIN EXECUTE 'GRANT {privilege} ON app.or' || 'ders TO {world.role}'; END $$"
                )
                await world.wait_may(privilege, "app.orders", expected=False)
        result = await world.wait_settled()
    assert result.drift_count == 3


async def check_a_drift_during_a_complete_read_is_corrected(world: DatabaseWorkerWorld, reads: HeldReads) -> None:
    world.declare(READ)
    async with world.working() as worker:
        await world.wait_settled()
        assert worker.mode is DatabaseMode.EVENTS
        async with reads.hold() as held:
            worker.note_everything()
            await held.wait()
            await world.hand.execute(f"GRANT DELETE ON app.orders TO {world.role}")
            await world.wait_may("DELETE", "app.orders", expected=False)
            await world.wait(lambda result: result.drift_count == 1)


async def test_a_drift_during_a_complete_read_needs_no_notification_where_transactions_can_be_prepared(
    servers: Servers, reads: HeldReads
) -> None:
    async with servers.run({"max_prepared_transactions": "5"}) as own, make_world(own) as world:
        await check_a_drift_during_a_complete_read_is_corrected(world, reads)


@pytest.mark.since(17, "max_notify_queue_pages: before, the queue has 8 GB")
async def test_a_drift_during_a_complete_read_is_corrected_while_the_servers_notification_queue_is_nearly_full(
    servers: Servers, reads: HeldReads
) -> None:
    async with servers.run({"max_notify_queue_pages": "64"}) as own, make_world(own) as world, full_queue(own):
        await check_a_drift_during_a_complete_read_is_corrected(world, reads)


async def test_a_drift_between_two_steps_needs_no_notification_where_transactions_can_be_prepared(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(UnexplainedWrites, "ask", find_nothing)
    monkeypatch.setattr(acl_apply, "OBJECTS", 1)
    many = "DO $$ BEGIN FOR i IN 1..400 LOOP EXECUTE format('CREATE TABLE app.t%s ()', i); END LOOP; END $$"
    async with servers.run({"max_prepared_transactions": "5"}) as own, make_world(own) as world:
        await world.hand.execute(many)
        world.declare()
        async with world.working():
            await world.wait_settled()
            monkeypatch.setattr(AclTransactions, "run", run_slowly)
            other = world.declare_other(READ)
            await world.wait_may("SELECT", "app.t1", role=other)
            await world.hand.execute(f"GRANT DELETE ON app.t1 TO {world.role}")
            await world.wait_may("DELETE", "app.t1", expected=False)
            assert not await world.may("SELECT", "app.t400", other), "the drift waited for all grants"


@pytest.mark.parametrize("granted", ["DELETE", "UPDATE (total)"])
async def test_what_a_complete_read_found_before_a_small_round_corrected_it_is_not_counted_again(
    world: DatabaseWorkerWorld, reads: HeldReads, monkeypatch: pytest.MonkeyPatch, granted: str
) -> None:
    world.declare(READ)
    await world.hand.execute(f"GRANT {granted} ON app.orders TO pg_monitor")  # what is revoked writes the row
    async with world.working() as worker:
        await world.wait_settled()
        async with reads.hold() as held:
            reads.starting, reads.waits = anyio.Event(), anyio.Event()
            to_read = DatabaseSession.read_events

            async def read_events_after_the_read(session: DatabaseSession, *, gated: bool = False) -> PrivilegeRead:
                await held.wait()
                return await to_read(session, gated=gated)

            worker.note_everything()
            await reads.waits.wait()
            monkeypatch.setattr(DatabaseSession, "read_events", read_events_after_the_read)
            await world.hand.execute(f"GRANT {granted} ON app.orders TO {world.role}")
            reads.starting.set()
            await world.wait(lambda result: result.drift_count == 1)
        monkeypatch.setattr(DatabaseSession, "read_events", to_read)
        await reads.wait_ended()
        await world.hand.execute("CREATE TABLE app.last (id int)")
        await world.wait_may("SELECT", "app.last")
        result = world.result
    assert result is not None
    assert (result.drift_count, result.error) == (1, None)
    assert await world.count_drifts() == 1


async def test_what_a_small_round_could_not_repair_is_not_over_when_a_complete_read_that_began_before_ends(
    world: DatabaseWorkerWorld, reads: HeldReads, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.declare(READ)
    finish, report = SmallRounds.finish, Grantees.report
    ended, reported = anyio.Event(), list[PrivilegeResult]()

    def finish_and_note(rounds: SmallRounds) -> None:
        finish(rounds)
        ended.set()

    def report_and_note(grantees: Grantees, server: str, result: PrivilegeResult) -> None:
        reported.append(result)
        report(grantees, server, result)

    other = await asyncpg.connect(world.server.dsn(database=world.database))
    async with world.working() as worker:
        await world.wait_settled()
        async with reads.hold() as held:
            worker.note_everything()
            await held.wait()
            await other.execute("BEGIN; LOCK TABLE app.orders IN SHARE UPDATE EXCLUSIVE MODE")
            await world.hand.execute(f"GRANT UPDATE ON app.orders TO {world.role}")
            before = await world.wait(lambda result: result.error is not None)
            monkeypatch.setattr(SmallRounds, "finish", finish_and_note)
            monkeypatch.setattr(Grantees, "report", report_and_note)
        with anyio.fail_after(DEADLINE):
            await ended.wait()
        assert {(one.error, one.confirmed) for one in reported} == {(before.error, False)}
        await other.close()
        await world.wait(lambda result: result.error is None and result.drift_count == 1)


async def test_a_revoke_on_a_table_of_a_small_round_is_drift(world: DatabaseWorkerWorld, reads: HeldReads) -> None:
    world.declare(READ)
    world.declare_other(READ)
    async with world.working() as worker:
        await world.wait_settled()
        await world.wait_may("SELECT", "app.items", role=world.other)
        async with reads.hold() as held:
            worker.note_grantee(KEY)  # everything is read for this role only
            await held.wait()
            await world.hand.execute("CREATE TABLE app.invoices (id int)")
            await world.wait_may("SELECT", "app.invoices")
        await reads.wait_ended()
        await world.hand.execute(f"REVOKE SELECT ON app.invoices FROM {world.role}")
        await world.wait(lambda result: result.drift_count == 1)


@pytest.mark.parametrize("report_only", [False, True])
async def test_a_table_made_during_a_complete_read_is_new_and_no_drift(
    world: DatabaseWorkerWorld, reads: HeldReads, *, report_only: bool
) -> None:
    world.declare(READ, report_only=report_only)
    other = world.declare_other(READ)
    async with world.working() as worker:
        await world.wait_settled()
        await world.wait_may("SELECT", "app.items", role=other)
        async with reads.hold() as held:
            worker.note_everything()
            await held.wait()
            await world.hand.execute("CREATE TABLE app.invoices (id int)")
            await world.wait_may("SELECT", "app.invoices")
            await world.wait_may("SELECT", "app.invoices", role=other)
        await reads.wait_ended()
        await world.hand.execute("CREATE TABLE app.last (id int)")
        await world.wait_may("SELECT", "app.last")
        result = world.result
        assert result is not None
        assert (result.drift_count, result.reported, result.error) == (0, (), None)
        await world.hand.execute(f"REVOKE SELECT ON app.invoices FROM {world.role}")
        await world.wait(lambda result: result.drift_count == 1 or bool(result.reported))


async def test_a_drift_that_is_only_reported_is_reported_after_a_complete_read_that_began_before(
    world: DatabaseWorkerWorld, reads: HeldReads
) -> None:
    world.declare(READ, report_only=True)
    async with world.working() as worker:
        await world.wait_settled()
        async with reads.hold() as held:
            worker.note_everything()
            await held.wait()
            await world.hand.execute(f"GRANT DELETE ON app.orders TO {world.role}; CREATE TABLE app.invoices (id int)")
            await world.wait_may("SELECT", "app.invoices")
        await world.wait(lambda result: result.reported == ("DELETE on table app.orders was granted",))


async def test_a_role_whose_declaration_is_not_applied_yet_gets_what_happened_meanwhile_afterwards(
    world: DatabaseWorkerWorld, reads: HeldReads
) -> None:
    world.declare(READ)
    async with world.working():
        await world.wait_settled()
        async with reads.hold(passing=1) as held:
            other = world.declare_other(READ)
            await held.wait()
            await world.hand.execute(f"CREATE TABLE app.invoices (id int); GRANT DELETE ON app.orders TO {other}")
            await world.wait_may("SELECT", "app.invoices")
            assert not await world.may("SELECT", "app.invoices", other)
        await world.wait_may("SELECT", "app.invoices", role=other)
        await world.wait_may("SELECT", "app.orders", role=other)
        await world.wait_may("DELETE", "app.orders", role=other, expected=False)
        await reads.wait_ended()


async def test_a_role_that_changes_during_a_complete_read_is_treated_as_declared_then(
    world: DatabaseWorkerWorld, reads: HeldReads
) -> None:
    world.declare(READ)
    world.declare_other(READ)
    async with world.working() as worker:
        await world.wait_settled()
        async with reads.hold() as held:
            worker.note_everything()
            await held.wait()
            world.declare(READ, report_only=True)
            await world.hand.execute(f"GRANT DELETE ON app.orders TO {world.role}; CREATE TABLE app.invoices (id int)")
            await world.wait_may("SELECT", "app.invoices", role=world.other)
        await world.wait(lambda result: bool(result.reported))
        assert await world.may("DELETE", "app.orders")


@pytest.mark.parametrize(("owned", "corrected"), [({1, 2}, True), ({2}, False)], ids=["one-more", "one-less"])
async def test_a_drift_during_a_complete_read_waits_only_if_the_namespace_owns_fewer_roles_by_then(
    world: DatabaseWorkerWorld, reads: HeldReads, owned: set[int], corrected: bool
) -> None:
    reader = replace(world.declare(READ), owned=frozenset({1}))
    world.grantees.publish(SERVER, reader)
    world.declare_other(READ)
    async with world.working() as worker:
        await world.wait_settled()
        async with reads.hold() as held:
            worker.note_everything()
            await held.wait()
            world.grantees.publish(SERVER, replace(reader, owned=frozenset(owned)))
            await world.hand.execute(f"GRANT DELETE ON app.orders TO {world.role}, {world.other}")
            await world.wait_may("DELETE", "app.orders", expected=False, role=world.other)
            await world.wait_may("DELETE", "app.orders", expected=not corrected)
        await world.wait_may("DELETE", "app.orders", expected=False)


@asynccontextmanager
async def working_since(world: DatabaseWorkerWorld, reads: HeldReads, statements: str) -> AsyncIterator[None]:
    """Runs a worker. These statements create app.invoices while it applies a changed declaration."""
    world.declare(READ)
    world.declare_other(READ)
    await world.hand.execute("CREATE SCHEMA elsewhere; CREATE TABLE elsewhere.first (id int)")
    async with world.working() as worker:
        await world.wait_settled()
        async with reads.hold(passing=1) as held:
            declared = world.declare(READ, SchemaAccess("elsewhere", READ.access))
            worker.note_everything()
            await held.wait()
            await world.hand.execute(statements)
            await world.wait_may("SELECT", "app.invoices", role=world.other)
        await world.wait(lambda result: result.digest == declared.digest_of(world.database) and result.error is None)
        yield


async def test_a_new_table_is_no_drift_for_a_role_whose_changed_declaration_is_being_applied(
    world: DatabaseWorkerWorld, reads: HeldReads
) -> None:
    async with working_since(world, reads, "CREATE TABLE app.invoices (id int)"):
        await world.wait_may("SELECT", "app.invoices")
        await world.hand.execute("CREATE TABLE elsewhere.last (id int)")
        await world.wait_may("SELECT", "elsewhere.last")
        result = world.result
    assert result is not None
    assert result.drift_count == 0
    assert News.DRIFT_CORRECTED not in {reason for reason, _ in world.news()}


async def test_a_revoke_on_a_table_that_needed_no_grant_during_a_complete_read_is_drift(
    world: DatabaseWorkerWorld, reads: HeldReads
) -> None:
    statements = f"CREATE TABLE app.invoices (id int); GRANT SELECT ON app.invoices TO {world.role}"
    async with working_since(world, reads, statements):
        for name in ("one", "two"):  # what was put off is read before the second
            await world.hand.execute(f"CREATE TABLE app.{name} (id int)")
            await world.wait_may("SELECT", f"app.{name}")
        await world.hand.execute(f"REVOKE SELECT ON app.invoices FROM {world.role}")
        await world.wait_may("SELECT", "app.invoices")
        await world.wait(lambda result: result.drift_count == 1)


async def test_a_new_table_is_no_drift_for_a_role_that_the_small_round_did_not_get_to(
    world: DatabaseWorkerWorld, reads: HeldReads, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.declare(READ)
    world.declare_other(READ)
    async with world.working() as worker:
        await world.wait_settled()
        await world.wait_may("SELECT", "app.items", role=world.other)
        monkeypatch.setattr(large_rounds, "MOST_CHANGES", 1)
        async with reads.hold() as held:
            worker.note_everything()
            await held.wait()
            await world.hand.execute("CREATE TABLE app.invoices (id int)")

            async def is_granted_once() -> bool:
                held = [await world.may("SELECT", "app.invoices", role) for role in (world.role, world.other)]
                return sum(held) == 1

            assert await reached(is_granted_once, DEADLINE)
            await world.hand.execute("ALTER TABLE app.invoices ADD COLUMN name text")
            await world.wait_may("SELECT", "app.invoices")
            await world.wait_may("SELECT", "app.invoices", role=world.other)
        await reads.wait_ended()
        await world.hand.execute("CREATE TABLE app.last (id int)")
        await world.wait_may("SELECT", "app.last")
        await world.wait_may("SELECT", "app.last", role=world.other)
        assert [await world.count_drifts(role) for role in (world.role, world.other)] == [0, 0]


async def test_what_a_search_finds_during_a_complete_read_is_read_afterwards(
    world: DatabaseWorkerWorld, reads: HeldReads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without any event that would ask for another round."""
    found = PrivilegeRead(Scope.RECENT, xid=3, searches=True)
    sessions, served, was_read = list[DatabaseSession](), anyio.Event(), anyio.Event()
    to_read, read_events = DatabaseSession.next_read, DatabaseSession.read_events

    async def next_read_and_note(session: DatabaseSession) -> PrivilegeRead:
        sessions.append(session)
        answer = await to_read(session)
        if answer == found:
            was_read.set()
        return answer

    async def read_events_and_note(session: DatabaseSession, *, gated: bool = False) -> PrivilegeRead:
        answer = await read_events(session, gated=gated)
        served.set()
        return answer

    monkeypatch.setattr(DatabaseSession, "next_read", next_read_and_note)
    world.declare(READ)
    async with world.working() as worker:
        await world.wait_settled()
        async with reads.hold() as held:
            worker.note_everything()
            await held.wait()
            monkeypatch.setattr(DatabaseSession, "read_events", read_events_and_note)
            sessions[-1].read_again(found)
            await served.wait()
        with anyio.fail_after(DEADLINE):
            await was_read.wait()


async def test_a_change_while_an_adoptee_is_compared_is_compared_afterwards(
    world: DatabaseWorkerWorld, reads: HeldReads
) -> None:
    await world.hand.execute(f"GRANT TRUNCATE ON app.items TO {world.role}")
    other = world.declare_other(READ)
    world.grantees.publish(SERVER, replace(world.declare(READ), adoptee=Takeover.NEW))
    async with world.working() as worker:
        await world.wait_may("SELECT", "app.items", role=other)
        await world.wait(lambda result: result.adoption is not None)
        async with reads.hold() as held:
            worker.note_grantee(KEY)
            await held.wait()
            await world.hand.execute(f"REVOKE TRUNCATE ON app.items FROM {world.role}; CREATE TABLE app.last (id int)")
            await world.wait_may("SELECT", "app.last", role=other)
        await world.wait(lambda result: result.adoption is not None and result.adoption.revoked == ())


async def create_tables(world: DatabaseWorkerWorld, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Creates app.t1 and so on. From now on, each is granted in a transaction of its own."""
    monkeypatch.setattr(acl_apply, "OBJECTS", 1)
    await world.hand.execute(
        f"DO $$ BEGIN FOR i IN 1..{number} LOOP EXECUTE format('CREATE TABLE app.t%s ()', i); END LOOP; END $$"
    )


async def correct_beside_grants(world: DatabaseWorkerWorld, other: str) -> None:
    """Has a drift of the first role corrected once the other role is granted its first privilege."""
    await world.wait_may("SELECT", "app.t1", role=other)
    await world.hand.execute(f"GRANT DELETE ON app.t1 TO {world.role}")
    await world.wait_may("DELETE", "app.t1", expected=False)


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_drift_is_corrected_between_the_transactions_of_a_first_declaration(
    world: DatabaseWorkerWorld, monkeypatch: pytest.MonkeyPatch, *, restarted: bool
) -> None:
    """`restarted`: the process knows nothing yet, and reads everything for both roles together."""
    monkeypatch.setattr(UnexplainedWrites, "ask", find_nothing)
    await create_tables(world, monkeypatch, 400)
    world.declare()
    async with AsyncExitStack() as working:
        await working.enter_async_context(world.working())
        await world.wait_settled()
        if restarted:
            await working.aclose()
        monkeypatch.setattr(AclTransactions, "run", run_slowly)
        other = world.declare_other(READ)
        if restarted:
            await working.enter_async_context(world.working())
        await correct_beside_grants(world, other)
        result = await world.wait(lambda result: result.drift_count == 1)
        assert not await world.may("SELECT", "app.t400", other), "the drift waited for all grants"
        monkeypatch.setattr(AclTransactions, "run", run_at_once)
        await world.wait_may("SELECT", "app.t400", role=other)
    assert result.error is None


async def test_a_revoke_is_drift_of_a_role_beside_whose_first_grants_a_drift_of_another_was_corrected(
    world: DatabaseWorkerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The complete read for the declared role was the first to find its objects. The small round read only one."""
    monkeypatch.setattr(UnexplainedWrites, "ask", find_nothing)
    await create_tables(world, monkeypatch, 40)
    world.declare()
    async with world.working():
        await world.wait_settled()
        monkeypatch.setattr(AclTransactions, "run", run_slowly)
        other = world.declare_other(READ)
        await correct_beside_grants(world, other)
        assert not await world.may("SELECT", "app.t40", other)
        monkeypatch.setattr(AclTransactions, "run", run_at_once)
        await world.wait_other_settled()
        await world.hand.execute(f"REVOKE SELECT ON app.t20 FROM {other}")
        await world.wait_may("SELECT", "app.t20", role=other)
        assert await world.count_drifts(other) == 1


async def test_without_a_second_connection_the_only_one_reads_everything(
    world: DatabaseWorkerWorld, reads: HeldReads, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_connections: ReadingConnections) -> NoReturn:
        raise Transient(Reason.SERVER_NOT_READY, "sorry, too many clients already")

    monkeypatch.setattr(ReadingConnections, "_connect", refuse)
    world.declare(READ)
    async with world.working() as worker:
        await world.wait_settled()
        assert await world.may("SELECT", "app.orders")
        async with reads.hold() as held:
            worker.note_everything()
            await held.wait()
            await world.hand.execute(f"GRANT DELETE ON app.orders TO {world.role}")
        await world.wait_may("DELETE", "app.orders", expected=False)
    assert len(reads.connections) == 1


async def test_a_drift_does_not_wait_for_a_second_connection_that_cannot_be_opened(
    world: DatabaseWorkerWorld, reads: HeldReads, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.declare(READ)
    async with world.working() as worker:
        await world.wait_settled()
        used = len(reads.connections)
        connecting, given_up = anyio.Event(), anyio.Event()

        async def hang(_connections: ReadingConnections) -> None:
            connecting.set()
            await given_up.wait()

        monkeypatch.setattr(ReadingConnections, "_take", hang)
        worker.note_everything()
        with anyio.fail_after(DEADLINE):
            await connecting.wait()
        await world.hand.execute(f"GRANT DELETE ON app.orders TO {world.role}")
        await world.wait_may("DELETE", "app.orders", expected=False)
        assert not given_up.is_set()
        assert len(reads.connections) == used
        given_up.set()
        await reads.wait_more(used)


async def test_a_notice_counts_from_the_first_one() -> None:
    notice = Notice()
    with anyio.move_on_after(0.01) as scope:
        await notice.wait()
    assert scope.cancelled_caught
    began = anyio.current_time()
    notice.give()
    since = notice.since
    assert since >= began
    notice.give()
    await notice.wait()
    assert notice.take() == since
    assert notice.take() == float("inf")
