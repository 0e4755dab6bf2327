"""Waiting for what can only be asked for: often at first, and the longer it takes the less often."""

from collections.abc import Awaitable, Callable

import anyio

_FIRST_SECONDS = 0.02
_LAST_SECONDS = 0.25
#: Of the time waited so far: at most so much longer a wait takes for not asking all the time.
_SHARE = 1 / 6


class Attempts:
    """For `async for`: goes on at once, then after pauses of `every` seconds or more, without an end of its own."""

    def __init__(self, every: float = _FIRST_SECONDS) -> None:
        self._every = every
        self._began: float | None = None

    def __aiter__(self) -> "Attempts":
        return self

    async def __anext__(self) -> None:
        now = anyio.current_time()
        if self._began is None:
            self._began = now
        else:
            await anyio.sleep(max(self._every, min(_LAST_SECONDS, (now - self._began) * _SHARE)))


async def reached(condition: Callable[[], Awaitable[bool]], seconds: float, every: float = _FIRST_SECONDS) -> bool:
    """Ask until the answer is yes (True) or the time is over (False). What `condition` raises ends the waiting."""
    with anyio.move_on_after(seconds):
        async for _ in Attempts(every):
            if await condition():
                return True
    return False
