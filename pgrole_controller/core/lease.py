"""When a Lease may be taken, and for how long it is held: what each process can tell by its own clock alone.

The times in a Lease are other machines' and are never compared with ours. What counts is how long ago we saw it change:
the rule of client-go's leader election. Time is an argument, in seconds of any one monotonic clock.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds. `duration`: who may take a Lease waits for so long without seeing a renewal. `deadline`: a holder that
    could not renew for so long stops; what is under way has the rest of `duration` to end. `period`: between renewals.
    """

    duration: int = 15
    deadline: float = 10.0
    period: float = 2.0


@dataclass(frozen=True, slots=True)
class Record:
    """What a Lease says, apart from its metadata. `duration` is the holder's, in seconds; times as they are written."""

    holder: str = ""
    duration: int = 0
    acquired: str = ""
    renewed: str = ""
    transitions: int = 0


@dataclass(frozen=True, slots=True)
class Seen:
    """A Lease, and since when we have seen it as it is."""

    record: Record
    version: str
    at: float

    @property
    def free_at(self) -> float:
        """When it may be taken, if nothing is seen of its holder until then."""
        return self.at + self.record.duration if self.record.holder else self.at


def see(before: Seen | None, record: Record, version: str, now: float) -> Seen:
    """What is seen now. Its time stays as it was while nothing in it changes."""
    if before is not None and before.record == record:
        return Seen(record, version, before.at)
    return Seen(record, version, now)


def take(seen: Seen | None, holder: str, timing: Timing, stamp: str) -> Record:
    """The Lease as this holder takes it. `stamp`: the time of day."""
    transitions = 0 if seen is None else seen.record.transitions + 1
    return Record(holder, timing.duration, stamp, stamp, transitions)


def give_up(record: Record, stamp: str) -> Record:
    """The Lease as it is left to whoever comes first."""
    return Record("", 1, record.acquired, stamp, record.transitions)
