"""Waiting for what can only be asked for, never told: a server that comes up, a process that goes."""

from collections.abc import Awaitable, Callable

import anyio


async def reached(condition: Callable[[], Awaitable[bool]], seconds: float, every: float = 0.05) -> bool:
    """Ask until the answer is yes (True) or the time is over (False). What `condition` raises ends the waiting."""
    with anyio.move_on_after(seconds):
        while True:
            if await condition():
                return True
            await anyio.sleep(every)
    return False
