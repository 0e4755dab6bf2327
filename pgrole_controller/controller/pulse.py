"""The heartbeat of the event loop: whether it turns, and how late.

Whatever keeps the loop (a computation, a call that blocks) holds up every server at once. The heart beats in the loop
and is felt from a thread, so that also a loop that stands still can be told of.
"""

import time
from collections.abc import Callable
from typing import NoReturn

import anyio

from pgrole_controller import metrics

#: Between two beats, in seconds.
BEAT_SECONDS = 0.5

#: A loop that has not turned for so long, in seconds, is not alive: it should not stand still for a tenth of one.
STILL_SECONDS = 10.0


class Pulse:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last = clock()

    async def beat(self) -> NoReturn:
        while True:
            due = anyio.current_time() + BEAT_SECONDS
            await anyio.sleep_until(due)
            metrics.LOOP_LAG_SECONDS.observe(max(anyio.current_time() - due, 0.0))
            self._last = self._clock()

    @property
    def age(self) -> float:
        """Seconds since the last beat. From any thread."""
        return self._clock() - self._last

    @property
    def alive(self) -> bool:
        return self.age < STILL_SECONDS
