"""How many keys of a lane are visited at once: many where many wait, and no more than are visited in a moment.

What is noticed during a batch waits for its end. So a batch is as large as fits into `BATCH_SECONDS` at the pace of the
last ones: where the server or the machine is slow, a drift waits for fewer others.
"""

#: A batch is one query and one transaction: of so many keys at most, however fast they are. The bounds on what is read
#: at once (sql/inspect/roles.sql) are of each role, so this is one on all of it, too.
MOST = 100
LEAST = 8

#: In seconds, for a batch.
BATCH_SECONDS = 0.1


class Pace:
    def __init__(self) -> None:
        self.limit = MOST // 4

    def note(self, keys: int, seconds: float) -> None:
        """A batch of so many keys took so long. One that was not full says nothing of larger ones."""
        fits = int(keys * BATCH_SECONDS / max(seconds, 0.001))
        if seconds > BATCH_SECONDS:
            self.limit = max(min(self.limit, fits), LEAST)
        elif keys >= self.limit:
            self.limit = min(2 * self.limit, max(self.limit, fits), MOST)
