"""How long to wait before the next attempt, in seconds."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """Doubles from `first` with each failure in a row, up to `most`."""

    first: float
    most: float

    def delay(self, failures: int, drawn: float = 0.0) -> float:
        """After so many failures in a row, from 1 on. `drawn` in [0, 1) is the jitter: it takes off up to half."""
        return min(self.first * 2.0 ** min(failures - 1, 32), self.most) * (1.0 - drawn / 2.0)

    def longer(self, last: float) -> float:
        """After a wait of `last` that was for nothing; 0: there was none."""
        return min(max(2.0 * last, self.first), self.most)


@dataclass(frozen=True, slots=True)
class Streak:
    """Failures in a row; `until` is the end of the wait after the last one, on any one clock."""

    failures: int = 0
    until: float = -math.inf

    def count(self, now: float, healthy: float) -> int:
        """Those that still count: none when `healthy` seconds have passed without another."""
        return 0 if now - self.until >= healthy else self.failures
