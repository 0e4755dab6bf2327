"""Which objects are new to which role, with a real database: what a new object lacks is granted and is no drift."""

from dataclasses import replace
from typing import Any

import anyio
import pytest

from pgrole_controller.controller.privileges import (
    privilege_memory,
    read_pace,
    small_rounds,
)
from pgrole_controller.core.backoff import Backoff
from pgrole_controller.core.privileges.grantee import Access, Refusal, SchemaAccess
from pgrole_controller.core.privileges.privilege_result import News
from pgrole_controller.local.process import reached
from pgrole_controller.postgres.connection import Endpoint, connect
from pgrole_controller.postgres.privileges.ddl_events import Scope
from pgrole_controller.postgres.privileges.privilege_reading import PrivilegeReader
from pgrole_controller.postgres.privileges.searches import UnexplainedWrites
from tests.integration.database_world import DEADLINE, READ, SERVER, DatabaseWorkerWorld, note_sessions
from tests.integration.test_database_worker import find_nothing, note_rounds


async def test_objects_created_while_a_role_was_suspended_or_ignored_are_not_drift(
    world: DatabaseWorkerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions = note_sessions(monkeypatch)
    plain = world.declare(READ, report_only=True)
    async with world.working():
        await world.wait_settled()
        for number, resting in enumerate((replace(plain, suspended=True), replace(plain, ignored=True))):
            async with sessions[0].lock:  # no round is running
                world.grantees.publish(SERVER, resting)
            other = world.declare_other(READ)
            await world.hand.execute(f"CREATE TABLE app.meanwhile{number} (id int)")
            await world.wait_may("SELECT", f"app.meanwhile{number}", role=other)
            assert not await world.may("SELECT", f"app.meanwhile{number}")
            world.grantees.publish(SERVER, plain)
            await world.wait_may("SELECT", f"app.meanwhile{number}")
        result = await world.wait_settled()
    assert result.reported == ()


async def test_objects_created_before_a_restart_and_while_suspended_are_not_drift(
    world: DatabaseWorkerWorld,
) -> None:
    plain = world.declare(READ, report_only=True)
    async with world.working():
        await world.wait_settled()
    await world.hand.execute("CREATE TABLE app.before (id int)")
    world.grantees.publish(SERVER, replace(plain, suspended=True))
    other = world.declare_other(READ)
    async with world.working():
        await world.wait_may("SELECT", "app.before", role=other)
        await world.hand.execute("CREATE TABLE app.after (id int)")
        await world.wait_may("SELECT", "app.after", role=other)
        assert not await world.may("SELECT", "app.before")
        world.grantees.publish(SERVER, plain)
        await world.wait_may("SELECT", "app.before")
        await world.wait_may("SELECT", "app.after")
        result = await world.wait_settled()
    assert result.reported == ()


@pytest.mark.parametrize("restarted", [False, True])
async def test_the_role_of_a_refused_object_gains_nothing_until_that_is_accepted(
    world: DatabaseWorkerWorld, restarted: bool
) -> None:
    plain = world.declare(READ)
    async with world.working():
        await world.wait_settled()
        world.grantees.publish(SERVER, replace(plain, refused=Refusal.KNOWN))
        await world.wait_settled()
        other = world.declare_other(READ)
        await world.hand.execute(f"REVOKE SELECT ON app.orders FROM {world.role}; CREATE TABLE app.invoices (id int)")
        await world.wait_may("SELECT", "app.invoices", role=other)
        await world.hand.execute(f"GRANT DELETE ON app.items TO {world.role}")
        await world.wait_more_drifts(0)
        assert not await world.may("DELETE", "app.items")
        if not restarted:
            world.grantees.publish(SERVER, plain)
            await world.wait_may("SELECT", "app.invoices")
    async with world.working() as worker:
        worker.note_everything()
        await world.wait_settled()
        if restarted:
            assert not await world.may("SELECT", "app.invoices")
            world.grantees.publish(SERVER, plain)
        for table in ("app.orders", "app.invoices"):
            await world.wait_may("SELECT", table)
        result = await world.wait_settled()
    assert (result.drift_count, await world.count_drifts()) == (1, 1)


async def test_a_new_table_is_granted_while_a_reported_drift_stays(world: DatabaseWorkerWorld) -> None:
    world.declare(READ, report_only=True)
    async with world.working():
        await world.wait_settled()
        await world.hand.execute(f"GRANT UPDATE ON app.orders TO {world.role}")
        await world.wait(lambda result: bool(result.reported))
        told = world.news()
        await world.hand.execute("CREATE TABLE app.invoices (id int)")
        await world.wait_may("SELECT", "app.invoices")

        async def is_told() -> bool:
            told.extend(world.news())
            return News.PRIVILEGES_EXTENDED in {reason for reason, _ in told}

        assert await reached(is_told, DEADLINE)
        result = world.result
    assert result is not None
    assert result.reported == ("UPDATE on table app.orders was granted",)
    assert result.drift_count == 0
    assert News.DRIFT_CORRECTED not in {reason for reason, _ in told}


async def test_a_new_table_is_not_drift_for_a_role_that_waits_for_something_else(world: DatabaseWorkerWorld) -> None:
    world.declare_other(READ)
    world.declare(READ, SchemaAccess("absent", frozenset({Access.READ})), report_only=True)
    async with world.working():
        await world.wait(lambda result: result.error is not None)
        await world.hand.execute("CREATE TABLE app.invoices (id int)")
        await world.wait_may("SELECT", "app.invoices")
        assert world.result is not None
        assert world.result.reported == ()


async def test_a_table_that_could_not_be_granted_stays_new_while_others_change(
    world: DatabaseWorkerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(UnexplainedWrites, "ask", find_nothing)
    monkeypatch.setattr(read_pace, "RETRY", Backoff(3600.0, 3600.0))
    for name in ("_REST_TIMES", "_LONGEST_REST"):
        monkeypatch.setattr(read_pace, name, 1e9)
    world.declare(READ)
    async with world.working() as worker:
        await world.wait_settled()
        rounds = note_rounds(monkeypatch)
        world.suspended = True

        async def wait_read(scope: Scope) -> None:
            async def was_read() -> bool:
                return any(scope in one for one in rounds)

            assert await reached(was_read, DEADLINE)
            del rounds[:]

        await world.hand.execute("CREATE TABLE app.invoices (id int)")
        await wait_read(Scope.NAMED)
        await world.hand.execute(f"GRANT UPDATE ON app.items TO {world.role}")
        await wait_read(Scope.FULL)  # because the role is not as declared
        await world.hand.execute(f"GRANT UPDATE ON app.orders TO {world.role}")
        await wait_read(Scope.NAMED)
        await world.hand.execute(f"REVOKE UPDATE ON app.items, app.orders FROM {world.role}")
        await wait_read(Scope.NAMED)
        world.suspended = False
        worker.note_everything()
        await world.wait_settled()
        assert await world.may("SELECT", "app.invoices")
        assert await world.count_drifts() == 0
    assert News.DRIFT_CORRECTED not in {reason for reason, _ in world.news()}


async def test_a_table_made_before_everything_is_read_for_one_role_stays_new_to_others(
    world: DatabaseWorkerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(UnexplainedWrites, "ask", find_nothing)
    for name in ("_REST_TIMES", "_LONGEST_REST"):
        monkeypatch.setattr(read_pace, name, 0.0)
    monkeypatch.setattr(small_rounds, "_SHORT_SECONDS", 3600.0)
    world.declare(READ, report_only=True)
    other = world.declare_other(READ)
    created = anyio.Event()
    read = PrivilegeReader._read_everything

    async def create_and_read(*arguments: Any) -> Any:
        if not created.is_set():
            async with connect(Endpoint(world.server.dsn(database=world.database)), "test") as another:
                await another.execute("CREATE TABLE app.invoices (id int)")
            created.set()
        return await read(*arguments)

    async with world.working():
        await world.wait_settled()
        await world.wait_may("SELECT", "app.items", role=other)
        await world.hand.execute(f"GRANT DELETE ON app.orders TO {world.role}")
        await world.wait(lambda result: bool(result.reported))
        monkeypatch.setattr(PrivilegeReader, "_read_everything", create_and_read)
        await world.hand.execute("ALTER TABLE app.items ADD COLUMN name text")
        await created.wait()
        await world.wait_may("SELECT", "app.invoices", role=other)
        await world.wait_may("SELECT", "app.invoices")
        await world.hand.execute("CREATE TABLE app.last (id int)")
        await world.wait_may("SELECT", "app.last", role=other)
        assert world.result is not None
        assert world.result.reported == ("DELETE on table app.orders was granted",)
        assert await world.count_drifts(other) == 0


async def test_a_revoke_is_drift_of_a_role_that_is_declared_for_tables_which_no_other_reaches(
    world: DatabaseWorkerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The complete read for the declared role is the first that finds its tables."""
    monkeypatch.setattr(UnexplainedWrites, "ask", find_nothing)
    world.declare()
    async with world.working():
        await world.wait_settled()
        other = world.declare_other(READ)
        await world.wait_other_settled()
        await world.hand.execute(f"REVOKE SELECT ON app.orders FROM {other}")
        await world.wait_may("SELECT", "app.orders", role=other)
        assert await world.count_drifts(other) == 1


async def test_a_revoke_on_a_table_is_drift_once_every_role_was_granted_what_it_declares_there(
    world: DatabaseWorkerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(UnexplainedWrites, "ask", find_nothing)
    sessions = note_sessions(monkeypatch)
    world.declare(READ)
    async with world.working():
        await world.wait_settled()
        await world.hand.execute("CREATE TABLE app.invoices (id int)")
        await world.wait_may("SELECT", "app.invoices")
        async with sessions[0].lock:  # no round is running
            pass
        await world.hand.execute(f"REVOKE SELECT ON app.invoices FROM {world.role}")
        await world.wait_more_drifts(0)
        assert await world.may("SELECT", "app.invoices")


async def test_a_revoke_during_a_restart_is_drift_of_a_role_that_is_published_after_others(
    world: DatabaseWorkerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(UnexplainedWrites, "ask", find_nothing)
    world.declare()
    other = world.declare_other(READ)
    async with world.working():
        await world.wait_settled()
        await world.wait_other_settled()
    world.grantees.withdraw_all(SERVER)
    await world.hand.execute(f"REVOKE SELECT ON app.orders FROM {other}")
    world.declare()
    async with world.working():
        await world.wait_settled()
        world.declare_other(READ)
        await world.wait_other_settled()
        assert await world.may("SELECT", "app.orders", other)
        assert await world.count_drifts(other) == 1


async def test_tables_that_come_and_go_are_not_remembered_until_the_resync(
    world: DatabaseWorkerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever may create tables could fill the controller's memory, at 150 a second."""
    monkeypatch.setattr(privilege_memory, "MOST_NOTED", 10)
    world.declare(READ)
    async with world.working() as worker:
        await world.wait_settled()
        known = len(worker.memory._known or ())
        for number in range(25):
            await world.hand.execute(f"CREATE TABLE app.t{number} ()")
            await world.wait_may("SELECT", f"app.t{number}")
            await world.hand.execute(f"DROP TABLE app.t{number}")
            assert len(worker.memory._known or ()) <= known + 12
