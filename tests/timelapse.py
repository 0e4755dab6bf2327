"""An event loop whose clock advances only when nothing can run, and then immediately: minutes of waiting take no time.

For tests without I/O. The clock is the loop's, `anyio.current_time()`.
"""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec

P = ParamSpec("P")


class Timelapse(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._now = 1_000.0
        super().__init__(_Selector(self.pause))

    def time(self) -> float:
        return self._now

    def pause(self, seconds: float) -> None:
        """Simulates a stopped process."""
        self._now += seconds


class _Selector(selectors.SelectSelector):
    def __init__(self, pause: Callable[[float], None]) -> None:
        super().__init__()
        self._pause = pause

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = super().select(0)
        if events or timeout == 0:
            return events
        if timeout is None:
            raise AssertionError("every task waits for something that will never happen")
        self._pause(timeout)
        return events


def pause(seconds: float) -> None:
    """Stops the process for that many seconds of the loop's clock."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, Timelapse)
    loop.pause(seconds)


def in_timelapse(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Runs an async test in a Timelapse loop."""

    @wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        with asyncio.Runner(loop_factory=Timelapse) as runner:
            runner.run(test(*args, **kwargs))

    return run
