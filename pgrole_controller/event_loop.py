"""Long work shares the event loop, which serves every server: in turns, or on a thread.

Python runs one thread at a time, and each that computes makes every turn of the loop wait 5 ms longer. So there are two
at most: one for long calls, and one for the others, which need not wait for these.
"""

from collections.abc import Callable
from functools import partial
from typing import ParamSpec, TypeVar

import anyio
import anyio.to_thread
from anyio.lowlevel import RunVar, checkpoint

P = ParamSpec("P")
T = TypeVar("T")

#: Seconds after which other tasks have a turn between two steps.
TURN_SECONDS = 0.01

#: A call is long with this many times as many steps as make a thread worth while.
LONG_TIMES = 100


class Turns:
    """Lets other tasks run between the many short steps of one task, but not after each: there may be very many."""

    def __init__(self) -> None:
        self._began = anyio.current_time()

    async def share(self) -> None:
        if anyio.current_time() - self._began >= TURN_SECONDS:
            await checkpoint()
            self._began = anyio.current_time()


async def run_aside(steps: int, many: int, call: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
    """Runs `call`, on a thread if it takes `many` steps or more."""
    if steps < many:
        return call(*arguments, **options)
    place = _place(_long if steps >= LONG_TIMES * many else _shorter)
    return await anyio.to_thread.run_sync(partial(call, *arguments, **options), limiter=place)


_long: RunVar[anyio.CapacityLimiter] = RunVar("long")
_shorter: RunVar[anyio.CapacityLimiter] = RunVar("shorter")


def _place(kind: RunVar[anyio.CapacityLimiter]) -> anyio.CapacityLimiter:
    """Returns the only place for calls of one kind in this loop."""
    place = kind.get(None)
    if place is None:
        place = anyio.CapacityLimiter(1)
        kind.set(place)
    return place
