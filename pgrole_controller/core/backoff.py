"""Exponential back-off: the delay before the next attempt, in seconds."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """Doubles from `first` with each consecutive failure, up to `most`."""

    first: float
    most: float

    def delay(self, failures: int, drawn: float = 0.0) -> float:
        """Returns the delay after this many consecutive failures (1 or more). `drawn`, in [0, 1), is the jitter: it
        shortens the delay by up to half.
        """
        return min(self.first * 2.0 ** min(failures - 1, 32), self.most) * (1.0 - drawn / 2.0)

    def longer(self, last: float) -> float:
        """Returns the delay that follows a fruitless wait of `last` seconds; 0 means no wait so far."""
        return min(max(2.0 * last, self.first), self.most)


@dataclass(frozen=True, slots=True)
class Streak:
    """Counts consecutive failures. `until` is when the wait after the last one ends, on any one clock."""

    failures: int = 0
    until: float = -math.inf

    def count(self, now: float, healthy: float) -> int:
        """Returns the failures that still count: 0 once `healthy` seconds have passed without another."""
        return 0 if now - self.until >= healthy else self.failures
