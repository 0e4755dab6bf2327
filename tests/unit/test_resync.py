"""controller/servers, resync: every object is reconciled once per period, even after the period changed."""

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, cast

import anyio
import pytest

from pgrole_controller.controller.objects import Objects, Target
from pgrole_controller.controller.queue import Queue
from pgrole_controller.controller.result import Result
from pgrole_controller.controller.server_config import ServerConfig
from pgrole_controller.controller.servers import ROUNDS, resync
from pgrole_controller.controller.worker import ServerWorker
from pgrole_controller.core.connection_secret import Address
from pgrole_controller.core.errors import Reason, Waiting
from pgrole_controller.core.next_attempt import Done
from pgrole_controller.core.policy import ServerPolicy
from pgrole_controller.core.request import Key, Rank, RequestReason
from pgrole_controller.core.role_drift import RoleDrift
from pgrole_controller.kube.store import Store
from tests.timelapse import in_timelapse
from tests.unit.test_password_tasks import TASK
from tests.worker_context import make_context


class FakeObjects:
    cluster = "here"

    def __init__(self) -> None:
        self.store, self.secrets_answered = Store(), anyio.Event()
        self.store.synced.set()
        self.keys = {Key("shop", "app")}
        self.secrets_answered.set()

    def of_server(self, _: str) -> set[Key]:
        return self.keys

    def is_of_server(self, _: str, key: Key) -> bool:
        return key in self.keys


@pytest.mark.parametrize("changed", [{"generation": 2}, {"age": ("2027-01-01T00:00:00Z", "recreated")}])
async def test_claims_are_to_record_another_pgserver_or_generation_of_it(changed: dict[str, Any]) -> None:
    server = ServerConfig("main", None, ServerPolicy(), Address("", 5432, "", ""), generation=1)
    queue = Queue()
    worker = ServerWorker(server, make_context(queue, cast("Objects", FakeObjects())))
    worker.declare(replace(server, **changed))
    assert queue.backlog("main").depth == 1


async def test_drifts_of_a_replaced_pgserver_are_not_counted_as_those_of_its_successor() -> None:
    server = ServerConfig("main", None, ServerPolicy(), Address("", 5432, "", ""), age=("2027-01-01T00:00:00Z", "a"))
    worker = ServerWorker(server, make_context(Queue(), cast("Objects", FakeObjects())))
    counts = worker.drift_counts
    worker.declare(replace(server, generation=2))
    assert worker.drift_counts is counts
    worker.declare(replace(server, age=("2027-01-02T00:00:00Z", "b")))
    assert worker.drift_counts is not counts


async def test_a_reported_drift_is_asked_about_once_although_each_reconcile_looks_at_the_password_first() -> None:
    server = ServerConfig("main", None, ServerPolicy(), Address("", 5432, "", ""))
    worker = ServerWorker(server, make_context(Queue(), cast("Objects", FakeObjects())))
    target = Target(Key("shop", "app"), None)
    times: list[datetime | None] = []
    for second in range(3):
        at = datetime(2027, 1, 1, 0, 0, second, tzinfo=UTC)
        drift = RoleDrift("app", 20_000, "uid", ("login",), False, at)
        both = replace(drift, fields=("login", "password"))
        first = Result(target, decided=True, drift=drift, observed_at=at, password_task=TASK)
        worker._attribute(first, {})
        found = worker._attribute(replace(first, drift=both, password_task=None), {})
        times.append(found.drift.at if found.drift else None)
    assert times == [datetime(2027, 1, 1, tzinfo=UTC)] * 3


async def test_another_reason_not_to_connect_is_reported_at_once() -> None:
    missing = [Waiting(Reason.SERVER_NOT_READY, f"Secret {name} does not exist") for name in "ab"]
    server = ServerConfig("main", None, ServerPolicy(), Address("", 5432, "", ""), problem=missing[0])
    worker = ServerWorker(server, make_context(Queue(), cast("Objects", FakeObjects())))
    worker.declare(replace(server))
    assert not worker.keeper.untried
    worker.declare(replace(server, problem=missing[1]))
    assert worker.keeper.untried


async def test_a_shorter_period_takes_effect_at_once() -> None:
    server = ServerConfig("main", None, ServerPolicy(), Address("", 5432, "", ""), resync_seconds=1e6)
    queue = Queue()
    worker = ServerWorker(server, make_context(queue, cast("Objects", FakeObjects())))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(resync, worker, lambda: 0.0)
        await anyio.wait_all_tasks_blocked()
        worker.declare(replace(server, resync_seconds=0.05))
        for _ in range(3):
            with anyio.fail_after(30):
                (item,) = await queue.take("main", 10)
            assert item.reason is RequestReason.RESYNC
            queue.done(item.key, Done())
        tasks.cancel_scope.cancel()


async def test_an_object_that_moved_to_another_server_is_left_to_that_one() -> None:
    server = ServerConfig("main", None, ServerPolicy(), Address("", 5432, "", ""), resync_seconds=0.2)
    queue, objects = Queue(), FakeObjects()
    objects.keys = {Key("shop", "app"), Key("shop", "other")}
    worker = ServerWorker(server, make_context(queue, cast("Objects", objects)))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(resync, worker, lambda: 0.0)
        with anyio.fail_after(30):
            items = await queue.take("main", 10)
        objects.keys = {items[0].key}
        for _ in range(3):
            for item in items:
                queue.done(item.key, Done())
            with anyio.fail_after(30):
                items = await queue.take("main", 10)
            assert {item.key for item in items} == objects.keys
        tasks.cancel_scope.cancel()


class ResyncedWorker(ServerWorker):
    """Notes when each object is enqueued."""

    def __init__(self, objects: FakeObjects, period: float) -> None:
        server = ServerConfig("main", None, ServerPolicy(), Address("", 5432, "", ""), resync_seconds=period)
        super().__init__(server, make_context(Queue(), cast("Objects", objects)))
        self.times: dict[Key, list[float]] = {}

    def enqueue(self, key: Key, reason: RequestReason, rank: Rank) -> None:
        assert (reason, rank) == (RequestReason.RESYNC, Rank.RESYNC)
        self.times.setdefault(key, []).append(anyio.current_time())


@in_timelapse
async def test_none_waits_longer_than_the_period_when_others_are_created_or_deleted() -> None:
    objects, period = FakeObjects(), 3600.0
    first = [Key("shop", f"app-{number:04}") for number in range(361)]
    later = [Key("lake", f"app-{number:04}") for number in range(500)]
    objects.keys = {*first}
    worker, began = ResyncedWorker(objects, period), anyio.current_time()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(resync, worker, lambda: 0.0)
        for number, key in enumerate(later):
            await anyio.sleep(0.9 * period / ROUNDS)
            objects.keys.add(key)
            worker.times[key] = [anyio.current_time()]
            if number % 3 == 0:
                gone = first.pop(number % len(first))
                objects.keys.discard(gone)
                worker.times.pop(gone, None)
        await anyio.sleep(2 * period)
        tasks.cancel_scope.cancel()
    ended = anyio.current_time()
    for key in (*first, *later):
        times = worker.times[key] if key in later else [began, *worker.times[key]]
        gaps = [after - before for before, after in pairwise([*times, ended])]
        assert all(gap < period + 0.001 for gap in gaps)
        assert all(gap > period - 0.001 for gap in gaps[1:-1])


@in_timelapse
async def test_objects_are_spread_over_the_period() -> None:
    objects, period = FakeObjects(), 3600.0
    objects.keys = {Key("shop", f"app-{number:04}") for number in range(2 * ROUNDS)}
    worker = ResyncedWorker(objects, period)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(resync, worker, lambda: 0.0)
        await anyio.sleep(period - 1.0)
        tasks.cancel_scope.cancel()
    times = Counter(at for some in worker.times.values() for at in some)
    assert times.total() == len(objects.keys)
    assert len(times) > ROUNDS / 2
    assert max(times.values()) < 20
