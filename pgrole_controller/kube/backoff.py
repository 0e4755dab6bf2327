"""How long to wait after a failure."""

import math
import random
from collections.abc import Callable


class Backoff:
    """Doubles from `first` to `most` seconds, less up to half as jitter; starts again after `healthy` seconds
    without a failure. Time is an argument, in seconds of any one clock."""

    __slots__ = ("_draw", "_failures", "_first", "_healthy", "_most", "_until")

    def __init__(self, first: float, most: float, healthy: float, draw: Callable[[], float] = random.random) -> None:
        self._first = first
        self._most = most
        self._healthy = healthy
        self._draw = draw
        self._failures = 0
        self._until = -math.inf

    def delay(self, now: float, at_least: float = 0.0) -> float:
        """Counts one failure at `now`; `at_least` is what the server asked for (Retry-After)."""
        if now - self._until >= self._healthy:
            self._failures = 0
        full = min(self._first * 2.0 ** min(self._failures, 32), self._most)
        self._failures += 1
        delay = max(full * (1.0 - self._draw() / 2.0), at_least)
        self._until = now + delay
        return delay
