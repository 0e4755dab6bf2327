"""The queue in a real event loop: a waiter is woken by what concerns it, and by nothing else."""

import anyio
import anyio.lowlevel
import pytest

from pgrole_controller.controller.queue import Queue
from pgrole_controller.core.next_attempt import Done, Retry, RetryAfter
from pgrole_controller.core.request import Key, Rank, Request, RequestReason
from pgrole_controller.core.workqueue import WorkItem
from tests.timelapse import in_timelapse

A, B = Key("shop", "a"), Key("shop", "b")
DEADLINE = 30.0


def request(key: Key, reason: RequestReason = RequestReason.NOTIFY) -> Request:
    return Request(key, reason, Rank.CHANGE)


async def delay(queue: Queue, key: Key, seconds: float) -> None:
    """Makes the key due again after this many seconds."""
    queue.put("s", request(key))
    assert [item.key for item in await queue.take("s", 1)] == [key]
    queue.done(key, RetryAfter(seconds))


class Taker:
    """One `take` in a task of its own."""

    def __init__(self, queue: Queue, server: str = "s", limit: int = 10) -> None:
        self.items: tuple[WorkItem, ...] | None = None
        self.wakes = 0
        self.ended = anyio.Event()
        self._queue, self._server, self._limit = queue, server, limit

    async def run(self) -> None:
        self.items = await self._queue.take(self._server, self._limit)
        self.ended.set()


async def settle() -> None:
    """Lets every task that can run do so until it waits."""
    await anyio.wait_all_tasks_blocked()


async def test_take_returns_all_ready_keys_as_one_batch() -> None:
    queue = Queue()
    queue.put("s", request(A))
    queue.put("s", request(B))
    queue.put("s", request(A))
    assert [item.key for item in await queue.take("s", 10)] == [A, B]


async def test_take_waits_until_a_request_comes_from_a_callback() -> None:
    queue = Queue()
    taker = Taker(queue)
    with anyio.fail_after(DEADLINE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(taker.run)
            await settle()
            assert taker.items is None
            queue.put("s", request(A))
    assert taker.items is not None
    assert [item.reason for item in taker.items] == [RequestReason.NOTIFY]


async def test_a_request_for_another_server_does_not_end_the_wait() -> None:
    queue = Queue()
    taker = Taker(queue)
    with anyio.fail_after(DEADLINE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(taker.run)
            queue.put("t", request(A))
            await settle()
            assert taker.items is None
            assert [item.key for item in await queue.take("t", 10)] == [A]
            queue.close()
    assert taker.items == ()


async def test_a_delayed_key_ends_a_wait_when_it_is_due_and_not_before() -> None:
    queue = Queue()
    begun = anyio.current_time()
    await delay(queue, A, 0.05)
    with anyio.fail_after(DEADLINE):
        [item] = await queue.take("s", 10)
    assert item.key == A
    assert anyio.current_time() - begun >= 0.05


async def test_a_key_that_is_due_earlier_shortens_a_wait_in_progress() -> None:
    queue = Queue()
    await delay(queue, A, 3600.0)
    queue.put("s", request(B))
    await queue.take("s", 10)
    taker = Taker(queue)
    with anyio.fail_after(DEADLINE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(taker.run)
            await settle()
            assert taker.items is None
            queue.done(B, RetryAfter(0.02))
            await taker.ended.wait()
    assert taker.items is not None
    assert [item.key for item in taker.items] == [B]


async def test_the_end_of_a_reconcile_wakes_the_waiter_for_a_request_that_came_meanwhile() -> None:
    queue = Queue()
    queue.put("s", request(A, RequestReason.OBJECT))
    await queue.take("s", 10)
    queue.put("s", request(A, RequestReason.SECRET))
    taker = Taker(queue)
    with anyio.fail_after(DEADLINE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(taker.run)
            await settle()
            assert taker.items is None
            queue.done(A, Done())
    assert taker.items is not None
    assert [item.reason for item in taker.items] == [RequestReason.SECRET]


async def test_the_end_of_a_reconcile_wakes_the_server_that_the_key_moved_to() -> None:
    queue = Queue()
    queue.put("s", request(A))
    await queue.take("s", 10)
    queue.put("t", request(A, RequestReason.SERVER))
    taker = Taker(queue, server="t")
    with anyio.fail_after(DEADLINE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(taker.run)
            await settle()
            queue.done(A, Done())
    assert taker.items is not None
    assert [item.reason for item in taker.items] == [RequestReason.SERVER]


async def test_a_failed_reconcile_is_retried_without_another_request() -> None:
    queue = Queue(draw=lambda: 0.99)
    queue.put("s", request(A))
    await queue.take("s", 10)
    begun = anyio.current_time()
    queue.done(A, Retry())
    with anyio.fail_after(DEADLINE):
        [item] = await queue.take("s", 10)
    assert item.failures == 1
    assert anyio.current_time() - begun >= 1.0


async def test_retry_after_leads_to_another_reconcile_without_another_request() -> None:
    queue = Queue()
    queue.put("s", request(A))
    await queue.take("s", 10)
    queue.done(A, RetryAfter(0.02))
    with anyio.fail_after(DEADLINE):
        assert [item.key for item in await queue.take("s", 10)] == [A]


async def test_close_ends_every_wait_with_nothing() -> None:
    queue = Queue()
    takers = [Taker(queue, server) for server in ("s", "t")]
    with anyio.fail_after(DEADLINE):
        async with anyio.create_task_group() as tasks:
            for taker in takers:
                tasks.start_soon(taker.run)
            await settle()
            queue.close()
    assert [taker.items for taker in takers] == [(), ()]


async def test_a_closed_queue_returns_nothing_and_running_reconciles_can_end() -> None:
    queue = Queue()
    queue.put("s", request(A))
    await queue.take("s", 10)
    queue.close()
    queue.put("s", request(B))
    assert queue.closed
    assert await queue.take("s", 10) == ()
    queue.done(A, Retry())


async def test_a_cancelled_wait_loses_no_request_and_another_wait_can_begin() -> None:
    queue = Queue()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(queue.take, "s", 10)
        await settle()
        queue.put("s", request(A))
        tasks.cancel_scope.cancel()
    with anyio.fail_after(DEADLINE):
        assert [item.key for item in await queue.take("s", 10)] == [A]


async def test_a_second_waiter_for_one_server_is_refused() -> None:
    queue = Queue()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(queue.take, "s", 10)
        await settle()
        with pytest.raises(RuntimeError, match="another waits for server 's'"):
            await queue.take("s", 10)
        queue.close()


async def test_take_lets_other_tasks_run_even_if_a_key_is_always_ready() -> None:
    queue = Queue()
    stopped = anyio.Event()

    async def stop() -> None:
        stopped.set()

    queue.put("s", request(A))
    with anyio.fail_after(DEADLINE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stop)
            while not stopped.is_set():
                [item] = await queue.take("s", 1)
                queue.done(item.key, RetryAfter(0.0))


async def test_the_backlog_counts_the_ready_keys_of_the_server() -> None:
    queue = Queue()
    await delay(queue, B, 3600.0)
    queue.put("s", request(A))
    depth, oldest = queue.backlog("s")
    assert depth == 1
    assert 0.0 <= oldest < DEADLINE


async def test_a_held_queue_returns_nothing_until_it_is_released() -> None:
    queue = Queue(held=True)
    taker, other = Taker(queue), Taker(queue, "other")
    with anyio.fail_after(DEADLINE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(taker.run)
            tasks.start_soon(other.run)
            queue.put("s", request(A))
            queue.put("s", request(B, RequestReason.OBJECT))
            queue.put("s", request(A))
            queue.put("other", request(Key("shop", "c")))
            await settle()
            assert (taker.items, other.items) == (None, None)
            queue.release()
    assert taker.items is not None
    assert {item.key for item in taker.items} == {A, B}
    assert other.items is not None
    assert len(other.items) == 1


@in_timelapse
async def test_time_in_a_held_queue_does_not_count_as_waiting() -> None:
    """A standby is notified for days of drifts that another process repairs."""
    queue = Queue(held=True)
    queue.put("s", request(A))
    await anyio.sleep(3600.0)
    assert queue.backlog("s").oldest >= 3600.0
    queue.release()
    with anyio.fail_after(DEADLINE):
        [item] = await queue.take("s", 10)
    assert item.waited < DEADLINE


async def test_a_held_queue_that_is_closed_ends_every_wait() -> None:
    queue = Queue(held=True)
    taker = Taker(queue)
    with anyio.fail_after(DEADLINE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(taker.run)
            queue.put("s", request(A))
            await settle()
            queue.close()
    assert taker.items == ()


async def test_removing_a_server_discards_the_keys_that_waited_for_it() -> None:
    queue = Queue()
    await delay(queue, B, 3600.0)
    queue.put("s", request(A))
    queue.remove("s")
    assert queue.backlog("s").depth == 0
    taker = Taker(queue)
    with anyio.fail_after(DEADLINE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(taker.run)
            await settle()
            assert taker.items is None
            queue.put("s", request(B))
    assert taker.items is not None
    assert [item.key for item in taker.items] == [B]


class TestCalmPeriod:
    """Before `calm_until`, only a drift begins a batch."""

    @in_timelapse
    async def test_a_change_waits_until_then(self) -> None:
        queue = Queue()
        queue.put("s", request(A))
        began = anyio.current_time()
        assert [item.key for item in await queue.take("s", 10, began + 5.0)] == [A]
        assert anyio.current_time() - began == pytest.approx(5.0, abs=0.1)

    @in_timelapse
    async def test_changes_that_come_meanwhile_share_the_batch(self) -> None:
        queue, taken = Queue(), list[WorkItem]()
        calm_until = anyio.current_time() + 5.0

        async def take() -> None:
            taken.extend(await queue.take("s", 10, calm_until))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(take)
            for key in (A, B):
                await anyio.sleep(1.0)
                queue.put("s", request(key))
        assert [item.key for item in taken] == [A, B]
        assert anyio.current_time() >= calm_until

    @in_timelapse
    async def test_a_drift_starts_a_batch_at_once_together_with_waiting_changes(self) -> None:
        queue, taken = Queue(), list[WorkItem]()
        queue.put("s", request(A))
        began = anyio.current_time()

        async def take() -> None:
            taken.extend(await queue.take("s", 10, began + 500.0))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(take)
            await anyio.sleep(1.0)
            assert not taken
            queue.put("s", Request(B, RequestReason.NOTIFY, Rank.DRIFT))
        assert {item.key for item in taken} == {A, B}
        assert anyio.current_time() - began < 2.0

    @in_timelapse
    async def test_a_drift_that_came_during_a_reconcile_of_its_role_is_taken_as_soon_as_that_ends(self) -> None:
        """As while a password is prepared in the background."""
        queue, taken = Queue(), list[WorkItem]()
        queue.put("s", request(B))
        await queue.take("s", 10)
        queue.put("s", request(A))
        began = anyio.current_time()

        async def take() -> None:
            taken.extend(await queue.take("s", 10, began + 500.0))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(take)
            await anyio.sleep(1.0)
            queue.put("s", Request(B, RequestReason.NOTIFY, Rank.DRIFT))
            await anyio.sleep(1.0)
            assert not taken
            queue.done(B, Done())
        assert {item.key for item in taken} == {A, B}
        assert anyio.current_time() - began < 3.0

    @in_timelapse
    async def test_a_waiting_change_that_becomes_a_drift_is_taken_at_once(self) -> None:
        queue, taken = Queue(), list[WorkItem]()
        queue.put("s", request(A))
        began = anyio.current_time()

        async def take() -> None:
            taken.extend(await queue.take("s", 10, began + 500.0))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(take)
            await anyio.sleep(1.0)
            queue.put("s", Request(A, RequestReason.NOTIFY, Rank.DRIFT))
        assert [item.rank for item in taken] == [Rank.DRIFT]
        assert anyio.current_time() - began < 2.0

    @in_timelapse
    async def test_closing_the_queue_ends_the_wait(self) -> None:
        queue, began = Queue(), anyio.current_time()
        queue.put("s", request(A))
        taker = Taker(queue)

        async def take() -> None:
            taker.items = await queue.take("s", 10, began + 500.0)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(take)
            await anyio.sleep(1.0)
            queue.close()
        assert taker.items == ()
        assert anyio.current_time() - began < 2.0
