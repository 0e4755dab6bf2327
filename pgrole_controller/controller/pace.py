"""How many keys of a lane are visited at once: many where many wait, and no more than are visited in a moment.

A batch costs the same queries and one transaction whether it holds one key or a hundred. So batches without a drift
begin at most every `INTERVAL` seconds once `BURST` of them have come at once: while many objects change, or come back
as their own notifications, they share batches. A drift never waits for this.

What is noticed during a batch waits for its end. So a batch is as large as fits into `BATCH_SECONDS` at the pace of the
last ones: where the server or the machine is slow, a drift waits for fewer others.
"""

import math

#: A batch is one query and one transaction: of so many keys at most, however fast they are. The bounds on what is read
#: at once (sql/inspect/roles.sql) are of each role, so this is one on all of it, too.
MOST = 100
LEAST = 8

#: In seconds, for a batch.
BATCH_SECONDS = 0.1

#: Between batches that hold no drift, in seconds, and how many of them may follow each other at once.
INTERVAL = 0.05
BURST = 5


class Pace:
    def __init__(self) -> None:
        self.limit = MOST // 4
        self._budget = -math.inf  # when the last of the batches so far would have begun, each an interval apart

    @property
    def calm_until(self) -> float:
        """When the next batch without a drift may begin, on the clock of `begin`."""
        return self._budget - (BURST - 1) * INTERVAL

    def begin(self, now: float) -> None:
        """A batch without a drift begins."""
        self._budget = max(self._budget, now) + INTERVAL

    def note(self, keys: int, seconds: float) -> None:
        """A batch of so many keys took so long. One that was not full says nothing of larger ones."""
        fits = int(keys * BATCH_SECONDS / max(seconds, 0.001))
        if seconds > BATCH_SECONDS:
            self.limit = max(min(self.limit, fits), LEAST)
        elif keys >= self.limit:
            self.limit = min(2 * self.limit, max(self.limit, fits), MOST)
