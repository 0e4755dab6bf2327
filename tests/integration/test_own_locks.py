"""postgres/privileges/acl_locks: other sessions lock the tables of schema pgrole, or tables with names like theirs."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import asyncpg
import pytest
import pytest_asyncio

from pgrole_controller.controller.leadership import Leadership
from pgrole_controller.controller.privileges import privilege_records, read_pace
from pgrole_controller.core.backoff import Backoff
from pgrole_controller.core.errors import Reason
from pgrole_controller.kube.lease import Term
from pgrole_controller.local.postgres import PostgresServer
from pgrole_controller.local.process import reached
from tests.integration.database_world import DEADLINE, READ, DatabaseWorkerWorld, make_world


class ConfirmedTerm(Term):
    """The Lease is held, and each renewal succeeds at once."""

    async def confirm(self) -> None:
        await anyio.lowlevel.checkpoint()


@pytest_asyncio.fixture(loop_scope="session")
async def led(postgres_server: PostgresServer) -> AsyncIterator[DatabaseWorkerWorld]:
    """One of several replicas, which leads."""
    async with make_world(postgres_server) as world:
        term = ConfirmedTerm()
        term.hold(anyio.current_time(), anyio.current_time() + 1000.0)
        world.leadership = Leadership(term, "i1", "one")
        world.declare(READ)
        yield world


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_pace, "LOCK_RETRY", Backoff(0.2, 0.5))
    monkeypatch.setattr(privilege_records, "RECORD_SECONDS", 0.3)


@asynccontextmanager
async def locking(world: DatabaseWorkerWorld, statement: str) -> AsyncIterator[int]:
    """Another superuser's open transaction; its process."""
    other = await asyncpg.connect(world.server.dsn(database=world.database))
    try:
        async with other.transaction():
            await other.execute(statement)
            yield other.get_server_pid()
    finally:
        await other.close()


@pytest.mark.parametrize(
    ("table", "statement"),
    [
        ("leader", "LOCK TABLE pgrole.leader IN ACCESS EXCLUSIVE MODE"),
        ("applied", "LOCK TABLE pgrole.applied IN ACCESS EXCLUSIVE MODE"),
        ("applied", "LOCK TABLE pgrole.applied IN SHARE MODE"),
        ("ddl_event", "LOCK TABLE pgrole.ddl_event IN ACCESS EXCLUSIVE MODE"),
        ("turn_to_change", "SELECT pgrole.lock_changes()"),
    ],
)
async def test_the_locked_table_and_whoever_locks_it_are_named(
    led: DatabaseWorkerWorld, table: str, statement: str
) -> None:
    async with led.working():
        await led.wait_settled()
        async with locking(led, statement) as process:
            await led.hand.execute(f"GRANT DELETE ON app.orders TO {led.role}")
            result = await led.wait(lambda result: result.error is not None)
            assert result.error is not None
            assert result.error.reason is Reason.PROGRESSING
            assert f'table pgrole.{table} is locked by role "postgres" (process {process}); ' in result.error.message
            assert await led.may("DELETE", "app.orders")
        await led.wait_may("DELETE", "app.orders", expected=False)
        await led.wait_settled()
        assert await led.count_drifts() == 1


async def test_a_locked_row_of_what_was_applied_names_its_table(led: DatabaseWorkerWorld) -> None:
    async with led.working():
        await led.wait_settled()
        async with locking(led, "UPDATE pgrole.applied SET updated_at = now()"):
            await led.hand.execute(f"GRANT DELETE ON app.orders TO {led.role}")
            result = await led.wait(lambda result: result.error is not None)
            assert result.error is not None
            assert "table pgrole.applied is locked by another transaction" in result.error.message
        await led.wait_may("DELETE", "app.orders", expected=False)


@pytest.mark.parametrize("table", ["drift_history", "drift_history_3"])
async def test_a_locked_history_delays_no_repair_and_gets_its_rows_later(
    led: DatabaseWorkerWorld, table: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with led.working():
        await led.wait_settled()
        async with locking(led, f"LOCK TABLE pgrole.{table} IN ACCESS EXCLUSIVE MODE"):
            took = list[float]()
            for number, privilege in enumerate(("DELETE", "INSERT", "UPDATE"), start=1):
                began = anyio.current_time()
                await led.hand.execute(f"GRANT {privilege} ON app.orders TO {led.role}")
                await led.wait_may(privilege, "app.orders", expected=False)
                took.append(anyio.current_time() - began)
                await led.wait(lambda result, number=number: result.drift_count == number)  # type: ignore[misc]
            assert min(took) < 2.0  # the machine may have been busy in the others
            await led.wait_settled()
            await anyio.sleep(1.0)
            said = [record for record in caplog.records if record.message == "drifts are recorded later"]
            assert "is locked by" in vars(said[0])["error"]

        async def is_recorded() -> bool:
            return await led.count_drifts() == 3

        assert await reached(is_recorded, DEADLINE)
        words = await led.hand.fetch("SELECT details #>> '{words,0}' FROM pgrole.history ORDER BY at")
        assert [tuple(row) for row in words] == [
            (f"{privilege} on table app.orders was granted",) for privilege in ("DELETE", "INSERT", "UPDATE")
        ]
        await anyio.sleep(1.0)
        assert await led.count_drifts() == 3


@pytest.mark.parametrize(
    "name",
    ["check_lead", "record_drifts", 'x\nSQL function "record_drifts" statement 1', "x\npgrole.check_lead(text,bigint)"],
)
async def test_a_table_with_a_misleading_name_delays_only_itself(led: DatabaseWorkerWorld, name: str) -> None:
    quoted = '"' + name.replace('"', '""') + '"'
    await led.hand.execute(f"CREATE TABLE app.{quoted} ()")
    async with led.working():
        await led.wait_settled()
        async with locking(led, f"LOCK TABLE app.{quoted} IN ACCESS EXCLUSIVE MODE"):
            other = led.declare_other(READ)
            await led.wait_may("SELECT", "app.orders", role=other)
        await led.wait_may("SELECT", f"app.{quoted}", role=other)
        await led.wait_other_settled()
