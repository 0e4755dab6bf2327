"""Long work shares the event loop."""

import threading
from collections.abc import Callable

import anyio

from pgrole_controller.event_loop import LONG_TIMES, run_aside

DEADLINE = 30.0
MANY = 10
LONG = LONG_TIMES * MANY


class HeldCalls:
    """Calls that last until they are let go. `most`: of them at once."""

    def __init__(self) -> None:
        self.most = self.ended = 0
        self._running = 0
        self._lock = threading.Lock()
        self._go = threading.Event()

    def call(self) -> None:
        with self._lock:
            self._running += 1
            self.most = max(self.most, self._running)
        assert self._go.wait(DEADLINE)
        with self._lock:
            self._running -= 1
            self.ended += 1

    def let_go(self) -> None:
        self._go.set()


async def until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(DEADLINE):
        while not condition():  # noqa: ASYNC110 -- a thread does it
            await anyio.sleep(0.005)


async def test_a_call_of_few_steps_runs_at_once() -> None:
    assert await run_aside(MANY - 1, MANY, threading.current_thread) is threading.current_thread()
    assert await run_aside(MANY, MANY, threading.current_thread) is not threading.current_thread()


async def test_long_calls_run_one_after_the_other_and_delay_no_shorter_one() -> None:
    """With a thread for each, as many databases that were read at once delayed every turn of the loop by 0.3 s."""
    held = HeldCalls()
    async with anyio.create_task_group() as tasks:
        for _ in range(8):
            tasks.start_soon(run_aside, LONG, MANY, held.call)
        await until(lambda: held.most == 1)
        with anyio.fail_after(DEADLINE):
            assert await run_aside(LONG - 1, MANY, sum, (1, 2)) == 3
        held.let_go()
    assert (held.most, held.ended) == (1, 8)
