"""Long work shares the event loop, which serves every server: in turns, or on a thread."""

from collections.abc import Callable
from functools import partial
from typing import ParamSpec, TypeVar

import anyio
import anyio.lowlevel
import anyio.to_thread

P = ParamSpec("P")
T = TypeVar("T")

#: Seconds after which other tasks have a turn between two steps.
TURN_SECONDS = 0.01


class Turns:
    """Lets other tasks run between the many short steps of one task, but not after each: there may be very many."""

    def __init__(self) -> None:
        self._began = anyio.current_time()

    async def share(self) -> None:
        if anyio.current_time() - self._began >= TURN_SECONDS:
            await anyio.lowlevel.checkpoint()
            self._began = anyio.current_time()


async def run_aside(steps: int, many: int, call: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
    """Runs `call`, on a thread if it takes `many` steps or more."""
    if steps < many:
        return call(*arguments, **options)
    return await anyio.to_thread.run_sync(partial(call, *arguments, **options))
