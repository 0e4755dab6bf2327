"""How long to pause between two polls: they take about 2 % of the time, however large the catalog is."""

from collections import deque

POLLING_SHARE = 0.02
LONGEST_PAUSE_SECONDS = 15.0
#: One slow poll says little of the next, so the fastest of this many counts.
_POLLS = 3


def pause_after(took: float, interval: float) -> float:
    """All in seconds."""
    return min(max(interval, took / POLLING_SHARE), max(interval, LONGEST_PAUSE_SECONDS))


class PollPace:
    """The pauses between the polls of one database. `interval`: the shortest one, in seconds."""

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._recent = deque[float](maxlen=_POLLS)

    def pause_after(self, took: float) -> float:
        """`took`: the last poll, in seconds."""
        self._recent.append(took)
        return pause_after(min(self._recent), self._interval)
