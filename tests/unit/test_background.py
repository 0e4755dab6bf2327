"""controller/background: work beside the workers is done only for the current version of an object.

Its result is used by one reconcile of that object.
"""

import gc
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest

from pgrole_controller.controller import background as background_module
from pgrole_controller.controller.background import EMPTYING, EMPTYING_OF_NAMESPACE, Background, EmptyingLimits
from pgrole_controller.controller.objects import Target, index_pgrole
from pgrole_controller.controller.passwords import PasswordTasks
from pgrole_controller.controller.queue import Endings, Queue
from pgrole_controller.controller.reporter import Reporter
from pgrole_controller.controller.result import Result
from pgrole_controller.core.connection_secret import Address
from pgrole_controller.core.contest import Contests
from pgrole_controller.core.errors import Reason, Waiting
from pgrole_controller.core.next_attempt import CONFLICT_SECONDS, UNREACHABLE_SECONDS
from pgrole_controller.core.password import (
    DesiredPassword,
    ObservedSecrets,
    PasswordRecord,
    PasswordResult,
    PasswordTask,
)
from pgrole_controller.core.plan import ReassignOwned, ReassignResult
from pgrole_controller.core.request import Key, Request, RequestReason
from pgrole_controller.kube.client import Client
from pgrole_controller.kube.errors import ApiError, Unreachable
from pgrole_controller.kube.store import Store
from pgrole_controller.kube.stored_object import Stored, pack
from pgrole_controller.postgres.connection import Endpoint
from tests.timelapse import in_timelapse

KEY = Key("shop", "app")
ENDPOINT = cast("Endpoint", None)
TASK = PasswordTask(
    "shop",
    "app",
    DesiredPassword(),
    None,
    ObservedSecrets(),
    PasswordRecord(),
    Address("pg", 5432, "orders", "require"),
    datetime(2027, 1, 1, tzinfo=UTC),
    4096,
)
REASSIGN = cast("ReassignOwned", "reassign")


def made(version: int, name: str = "app", namespace: str = "shop", **more: Any) -> Stored:
    metadata = {
        "namespace": namespace,
        "name": name,
        "uid": f"uid-{namespace}-{name}",
        "resourceVersion": str(version),
        "generation": version,
    }
    return pack({"apiVersion": "pgrole.dev/v1alpha1", "kind": "PgRole", "metadata": metadata | more, "spec": {}})


class FakePasswords:
    """Records in `run_for` the version of each task's object. Raises `failure` while it is set. `meanwhile` is called
    while a task runs.
    """

    def __init__(self) -> None:
        self.run_for: list[str] = []
        self.failure: Exception | None = None
        self.meanwhile: Callable[[], object] = lambda: None

    async def run(self, task: PasswordTask, owner: Stored, is_current: Callable[[], bool]) -> PasswordResult | None:
        self.run_for.append(owner.resource_version)
        if self.failure is not None:
            raise self.failure
        assert is_current()
        self.meanwhile()
        return PasswordResult(source="s", password_task=task) if is_current() else None


class BackgroundWorld:
    def __init__(self) -> None:
        self.store, self.queue, self.passwords = Store(index_pgrole), Queue(), FakePasswords()
        self.client = SimpleNamespace(may_write=True)
        self.background = Background(
            cast("Client", self.client),
            self.store,
            Endings(self.queue, Contests()),
            cast("PasswordTasks", self.passwords),
            cast("Reporter", None),
        )
        self.store.put(made(1))

    async def reconcile(self, stored: Stored | None = None, **prerequisite: Any) -> Result:
        """Starts a reconcile, and returns a result with these prerequisites."""
        stored = stored or made(1)
        self.queue.put("main", Request(stored.key, RequestReason.OBJECT))
        await self.queue.take("main", 1)
        return Result(Target(stored.key, stored), **prerequisite)

    async def prepare(self) -> float:
        """Runs a password task. Returns the seconds until its object is reconciled again."""
        result = await self.reconcile(password_task=TASK)
        self.background.prepare_password(result)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.background.run)
            began = anyio.current_time()
            assert [item.key for item in await self.queue.take("main", 1)] == [KEY]
            seconds = anyio.current_time() - began
            self.background.close()
        return seconds


@in_timelapse
async def test_a_password_is_prepared_for_one_reconcile_which_follows_at_once() -> None:
    world = BackgroundWorld()
    assert await world.prepare() < 0.1
    assert world.background.take(KEY) == PasswordResult(source="s")
    assert world.background.take(KEY) is None


@in_timelapse
async def test_namespaces_take_turns_with_their_password_tasks() -> None:
    world = BackgroundWorld()
    for number, (namespace, name) in enumerate([("shop", "a"), ("shop", "b"), ("shop", "c"), ("lake", "d")], start=1):
        stored = made(number, name, namespace)
        world.store.put(stored)
        task = replace(TASK, namespace=namespace)
        world.background.prepare_password(await world.reconcile(stored, password_task=task))
    world.background.close()
    await world.background.run()
    assert world.passwords.run_for == ["1", "4", "2", "3"]


@pytest.mark.parametrize("now", [made(2), made(2, deletionTimestamp="2027-01-01T00:00:00Z"), None])
@in_timelapse
async def test_no_password_task_runs_for_a_changed_or_deleted_object(now: Stored | None) -> None:
    world = BackgroundWorld()
    result = await world.reconcile(password_task=TASK)
    world.background.prepare_password(result)
    if now is None:
        world.store.remove(KEY, made(1).uid)
    else:
        world.store.put(now)
    world.background.close()
    await world.background.run()
    assert world.passwords.run_for == []
    assert [item.key for item in await world.queue.take("main", 1)] == [KEY]


@in_timelapse
async def test_a_password_task_sees_that_its_object_changed_meanwhile_and_the_next_reconcile_gets_no_result() -> None:
    world = BackgroundWorld()
    world.passwords.meanwhile = lambda: world.store.put(made(2))
    assert await world.prepare() < 0.1
    assert world.passwords.run_for == ["1"]
    assert world.background.take(KEY) is None


@in_timelapse
async def test_a_former_leader_starts_no_password_task() -> None:
    world = BackgroundWorld()
    world.client.may_write = False
    assert await world.prepare() >= UNREACHABLE_SECONDS
    assert world.passwords.run_for == []


@pytest.mark.parametrize(
    ("failure", "seconds"),
    [
        (Unreachable("no route"), UNREACHABLE_SECONDS),
        (TimeoutError(), UNREACHABLE_SECONDS),
        (ApiError(409, "Conflict", "another came first"), CONFLICT_SECONDS),
        (ApiError(429, "TooManyRequests", "later", retry_after=7.0), 7.0),
    ],
)
@in_timelapse
async def test_a_password_task_is_retried_after_an_api_server_error(failure: Exception, seconds: float) -> None:
    world = BackgroundWorld()
    world.passwords.failure = failure
    assert await world.prepare() == pytest.approx(seconds, abs=0.1)
    assert world.background.take(KEY) is None


@in_timelapse
async def test_the_next_reconcile_reports_an_unexpected_password_task_error() -> None:
    world = BackgroundWorld()
    world.passwords.failure = KeyError("hunter2")
    assert await world.prepare() < 0.1
    prepared = world.background.take(KEY)
    assert prepared is not None
    assert prepared.problem is not None
    assert prepared.problem.reason is Reason.INTERNAL_ERROR
    assert "hunter2" not in prepared.problem.message


async def test_results_for_deleted_objects_are_not_kept() -> None:
    world = BackgroundWorld()
    stored = made(1)
    world.store.remove(stored.key, stored.uid)
    world.background.keep(stored, PasswordResult(source="s"))
    world.store.put(made(2, uid="another"))
    world.background.keep(stored, PasswordResult(source="s"))
    assert world.background.take(KEY) is None
    assert not world.background._results
    world.background.keep(made(2, uid="another"), PasswordResult(source="s"))
    world.background.forget("another")
    assert not world.background._results


class FakeEmptying:
    """Replaces `reassign_owned`: counts concurrent calls, which end once `may_end` is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.running, self.most, self.done = 0, 0, 0
        self.may_end = anyio.Event()
        self.failure: Exception | None = None
        monkeypatch.setattr(background_module, "reassign_owned", self.run)

    async def run(self, *_: object, **__: object) -> None:
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await self.may_end.wait()
        finally:
            self.running -= 1
        self.done += 1
        if self.failure is not None:
            raise self.failure


async def test_a_role_whose_emptying_was_blocked_is_reconciled_at_once_with_the_cause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, emptying = BackgroundWorld(), FakeEmptying(monkeypatch)
    emptying.failure = Waiting(Reason.DROP_BLOCKED, "locked")
    emptying.may_end.set()
    result = await world.reconcile(reassign=REASSIGN)
    await world.background.empty_role(EmptyingLimits(), ENDPOINT, result, None, None)
    assert [item.key for item in await world.queue.take("main", 1)] == [KEY]
    prepared = world.background.take(KEY)
    assert isinstance(prepared, ReassignResult)
    assert prepared.problem is emptying.failure


def _change(world: BackgroundWorld, emptying: FakeEmptying, change: str) -> None:
    if change == "before it began":
        return
    assert emptying.running == 1
    if change == "changed":
        world.store.put(made(2))
    else:
        world.store.remove(KEY, made(1).uid)
    world.background.interrupt(KEY)


@pytest.mark.parametrize("change", ["changed", "deleted", "before it began"])
async def test_emptying_stops_when_the_object_changes(monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    world, emptying = BackgroundWorld(), FakeEmptying(monkeypatch)
    result = await world.reconcile(reassign=REASSIGN)
    if change == "before it began":
        world.store.put(made(2))
    with anyio.fail_after(30.0):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(world.background.empty_role, EmptyingLimits(), ENDPOINT, result, None, None)
            await anyio.wait_all_tasks_blocked()
            _change(world, emptying, change)
    assert (emptying.running, emptying.done) == (0, 0)
    assert world.background.take(KEY) is None
    assert [item.key for item in await world.queue.take("main", 1)] == [KEY]


async def test_emptying_cancelled_with_the_session_ends_the_reconcile(monkeypatch: pytest.MonkeyPatch) -> None:
    world, emptying = BackgroundWorld(), FakeEmptying(monkeypatch)
    result = await world.reconcile(reassign=REASSIGN)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(world.background.empty_role, EmptyingLimits(), ENDPOINT, result, None, None)
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    assert (emptying.running, emptying.done) == (0, 0)
    assert [item.key for item in await world.queue.take("main", 1)] == [KEY]


@pytest.mark.parametrize(("namespaces", "most"), [(1, EMPTYING_OF_NAMESPACE), (2 * EMPTYING, EMPTYING)])
async def test_concurrent_emptying_is_limited_per_server_and_per_namespace(
    monkeypatch: pytest.MonkeyPatch, namespaces: int, most: int
) -> None:
    world, emptying = BackgroundWorld(), FakeEmptying(monkeypatch)
    count = 2 * EMPTYING
    servers = {"main": EmptyingLimits(), "other": EmptyingLimits()}
    async with anyio.create_task_group() as tasks:
        for server, limits in servers.items():
            for number in range(count):
                stored = made(1, f"{server}-{number}", f"ns-{number % namespaces}")
                world.store.put(stored)
                result = await world.reconcile(stored, reassign=REASSIGN)
                tasks.start_soon(world.background.empty_role, limits, ENDPOINT, result, None, None)
        await anyio.wait_all_tasks_blocked()
        assert emptying.running == 2 * most  # each server has its own limit
        emptying.may_end.set()
    assert emptying.done == 2 * count
    gc.collect()
    assert not any(limits.of_namespace for limits in servers.values())
