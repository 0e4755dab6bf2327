"""controller/fair_queue: a namespace that is not answered occupies one task, and others do not wait for it."""

import anyio

from pgrole_controller import logs
from pgrole_controller.controller.fair_queue import FairQueue
from tests.timelapse import in_timelapse

TASKS = 3


class Work:
    """Items are names: those that begin with `slow` take ten seconds and are not answered in time."""

    def __init__(self) -> None:
        self.queue = FairQueue[str]()
        self.done: list[tuple[str, float]] = []
        self.busy: set[str] = set()
        self.most_slow = 0

    def put(self, *items: str) -> None:
        for item in items:
            self.queue.put(item.partition("-")[0], item)

    async def run(self) -> None:
        async with anyio.create_task_group() as tasks:
            for _ in range(TASKS):
                tasks.start_soon(self.queue.serve, self._work)

    async def _work(self, item: str) -> bool:
        is_slow = item.startswith("slow")
        self.busy.add(item)
        self.most_slow = max(self.most_slow, sum(one.startswith("slow") for one in self.busy))
        await anyio.sleep(10.0 if is_slow else 0.1)
        self.busy.remove(item)
        self.done.append((item, anyio.current_time()))
        return not is_slow


async def test_items_of_one_namespace_keep_their_order_and_namespaces_take_turns() -> None:
    queue, done = FairQueue[str](), []
    for item in ("a-1", "a-2", "a-3", "b-1"):
        queue.put(item[0], item)
    queue.close()

    async def work(item: str) -> bool:
        done.append(item)
        return True

    await queue.serve(work)
    assert done == ["a-1", "b-1", "a-2", "a-3"]


@in_timelapse
async def test_a_namespace_uses_every_task_while_it_is_answered() -> None:
    work = Work()
    work.put(*(f"fast-{number}" for number in range(9)))
    work.queue.close()
    began = anyio.current_time()
    await work.run()
    assert anyio.current_time() - began < 0.5


@in_timelapse
async def test_others_do_not_wait_for_a_namespace_that_is_not_answered() -> None:
    work = Work()
    work.put(*(f"slow-{number}" for number in range(20)))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(work.run)
        await anyio.sleep(11.0)  # now it is known to be slow
        work.most_slow = 0
        began = anyio.current_time()
        work.put("other-1", "another-1")
        await anyio.sleep(15.0)
        finished = dict(work.done)
        assert finished["other-1"] - began < 1.0
        assert finished["another-1"] - began < 1.0
        assert work.most_slow == 1
        work.queue.close()
    assert len(work.done) == 22


@in_timelapse
async def test_a_namespace_that_is_answered_again_uses_every_task() -> None:
    work = Work()
    work.put("x-1", *(f"slow-{number}" for number in range(3)))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(work.run)
        await anyio.sleep(15.0)
        for number in range(TASKS + 1):
            work.queue.put("slow", f"fast-{number}")
        await anyio.sleep(15.0)
        at = [time for item, time in work.done if item.startswith("fast")]
        assert len(at) == TASKS + 1
        assert len({round(time, 3) for time in at[1:]}) == 1
        work.queue.close()


@in_timelapse
async def test_a_namespace_that_is_not_answered_does_not_keep_the_queue_from_being_idle() -> None:
    work = Work()
    assert work.queue.idle.is_set()
    work.put(*(f"slow-{number}" for number in range(3)))
    assert not work.queue.idle.is_set()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(work.run)
        await anyio.sleep(11.0)  # now it is known to be slow
        work.put(*(f"slow-{number}" for number in range(3, 6)))
        assert work.queue.idle.is_set()
        work.put("other-1")
        assert not work.queue.idle.is_set()
        await anyio.sleep(1.0)
        assert work.queue.idle.is_set()
        work.queue.close()


async def test_what_the_work_logs_has_the_reconcile_id_with_which_its_item_was_put() -> None:
    queue, seen = FairQueue[str](), dict[str, str]()

    async def work(item: str) -> bool:
        seen[item] = logs.current_reconcile_id()
        return True

    for item in ("a", "b"):
        with logs.tracing(f"id-{item}"):
            queue.put("shop", item)
    queue.close()
    await queue.serve(work)
    assert seen == {"a": "id-a", "b": "id-b"}
    assert logs.current_reconcile_id() == ""
