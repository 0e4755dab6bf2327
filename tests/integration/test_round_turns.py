"""A round of thousands of roles: other tasks have turns between them, and what is unchanged costs little."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from pgrole_controller import event_loop
from pgrole_controller.controller.privileges import database_worker, grantees, privilege_reconcile, privilege_round
from pgrole_controller.controller.privileges.database_worker import DatabaseWorker
from pgrole_controller.controller.privileges.privilege_memory import PrivilegeMemory
from pgrole_controller.controller.privileges.privilege_reconcile import PrivilegeReconcile
from pgrole_controller.core.privileges.privilege_result import PrivilegeResult
from pgrole_controller.core.request import Key
from pgrole_controller.local.process import reached
from tests.integration.database_world import DEADLINE, KEY, OTHER, READ, SERVER, DatabaseWorkerWorld


@pytest.fixture(autouse=True)
def _share_after_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if each role took long."""
    monkeypatch.setattr(event_loop, "TURN_SECONDS", 0.0)
    monkeypatch.setattr(privilege_round, "_REPORTED_AT_ONCE", 1)


@asynccontextmanager
async def two_settled(world: DatabaseWorkerWorld) -> AsyncIterator[DatabaseWorker]:
    world.declare(READ)
    world.declare_other(READ)
    async with world.working() as worker:
        await world.wait_settled()
        await world.wait_other_settled()
        yield worker


async def wait_two(seen: list[Any]) -> None:
    async def are_two() -> bool:
        return len(seen) >= 2

    assert await reached(are_two, DEADLINE)


@pytest.mark.parametrize(
    ("where", "step"),
    [
        (PrivilegeMemory, "role"),
        (privilege_reconcile, "restore_applied"),
        (PrivilegeReconcile, "_result"),
        (DatabaseWorker, "report"),
    ],
    ids=["begins", "restores", "concludes", "reports"],
)
async def test_other_tasks_have_turns_between_two_roles_of_a_round(
    world: DatabaseWorkerWorld, monkeypatch: pytest.MonkeyPatch, where: Any, step: str
) -> None:
    turns, seen, take = 0, list[int](), getattr(where, step)

    async def count() -> None:
        nonlocal turns
        while True:
            await checkpoint()
            turns += 1

    def note(*arguments: Any, **options: Any) -> Any:
        seen.append(turns)
        return take(*arguments, **options)

    async with two_settled(world) as worker, anyio.create_task_group() as tasks:
        monkeypatch.setattr(where, step, note)
        tasks.start_soon(count)
        worker.note_everything()
        await wait_two(seen)
        tasks.cancel_scope.cancel()
    assert seen[0] < seen[1]


async def test_a_role_that_is_published_while_others_are_reported_has_no_answer(
    world: DatabaseWorkerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported, report = list[tuple[Key, bool]](), DatabaseWorker.report
    async with two_settled(world) as worker:
        other = world.grantees.get(SERVER, OTHER)
        assert other is not None

        def note(worker: DatabaseWorker, result: PrivilegeResult) -> None:
            if not reported:
                asyncio.get_running_loop().call_soon(world.grantees.publish, SERVER, replace(other, report_only=True))
            reported.append((result.key, bool(result.digest)))
            report(worker, result)

        monkeypatch.setattr(DatabaseWorker, "report", note)
        worker.note_everything()
        await wait_two(reported)
    assert reported[:2] == [(KEY, True), (OTHER, False)]


async def test_a_session_that_ends_while_results_are_reported_keeps_none_back(
    world: DatabaseWorkerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported, report = list[Key](), DatabaseWorker.report

    def note(worker: DatabaseWorker, result: PrivilegeResult) -> None:
        if not reported:
            assert worker._scope is not None
            worker._scope.cancel()
        reported.append(result.key)
        report(worker, result)

    async with two_settled(world) as worker:
        monkeypatch.setattr(DatabaseWorker, "report", note)
        worker.note_everything()
        await wait_two(reported)
    assert reported[:2] == [KEY, OTHER]


async def test_an_unchanged_result_without_an_error_is_not_copied(
    world: DatabaseWorkerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied, reported, report = list[object](), list[PrivilegeResult](), DatabaseWorker.report

    def copy(one: Any, **changes: Any) -> Any:
        copied.append(one)
        return replace(one, **changes)

    def note(worker: DatabaseWorker, result: PrivilegeResult) -> None:
        report(worker, result)
        reported.append(result)

    async with two_settled(world) as worker:
        monkeypatch.setattr(DatabaseWorker, "report", note)
        for module in (database_worker, grantees):
            monkeypatch.setattr(module, "replace", copy)
        worker.note_everything()
        await wait_two(reported)
    assert copied == []
