"""When a Lease may be taken, and for how long it is held: what each process can tell by its own clock alone.

The times in a Lease are other machines' and are never compared with ours. What counts is how long ago we saw it change:
the rule of client-go's leader election. Time is an argument, in seconds of any one monotonic clock.
"""

from dataclasses import dataclass, replace

#: Nobody is waited for longer, in seconds, whatever a Lease says: it may have been written by hand.
LONGEST_SECONDS = 60
#: leaseTransitions is a 32-bit number.
_MOST_TRANSITIONS = 2**31 - 1


@dataclass(frozen=True, slots=True)
class LeaseTiming:
    """Seconds. `duration`: who may take a Lease waits for so long without seeing a renewal. `deadline`: a holder that
    could not renew for so long stops; what is under way has the rest of `duration` to end. `period`: between renewals.
    """

    duration: int = 15
    deadline: float = 10.0
    period: float = 2.0


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """What a Lease says, apart from its metadata. `duration` is the holder's, in seconds; times as they are written."""

    holder: str = ""
    duration: int = 0
    acquired: str = ""
    renewed: str = ""
    transitions: int = 0


@dataclass(frozen=True, slots=True)
class ObservedLease:
    """A Lease, and since when we have seen it as it is. `version` None: it was deleted, and was like this before."""

    record: LeaseRecord
    version: str | None
    at: float

    @property
    def free_at(self) -> float:
        """When it may be taken, if nothing is seen of its holder until then.

        One that was deleted is its holder's still: who deletes it does not stop whoever leads.
        """
        return self.at + min(self.record.duration, LONGEST_SECONDS) if self.record.holder else self.at


def observe(before: ObservedLease | None, record: LeaseRecord, version: str, now: float) -> ObservedLease:
    """What is seen now. Its time stays as it was while nothing in it changes."""
    if before is not None and before.record == record:
        return ObservedLease(record, version, before.at)
    return ObservedLease(record, version, now)


def observe_missing(before: ObservedLease | None) -> ObservedLease | None:
    """What is known of a Lease that is not there; None: nothing."""
    return None if before is None else replace(before, version=None)


def take(observed: ObservedLease | None, holder: str, timing: LeaseTiming, stamp: str) -> LeaseRecord:
    """The Lease as this holder takes it, or keeps it. `stamp`: the time of day."""
    if observed is None:
        return LeaseRecord(holder, timing.duration, stamp, stamp, 0)
    if observed.record.holder == holder:
        return renew(observed.record, timing, stamp)
    return LeaseRecord(holder, timing.duration, stamp, stamp, min(observed.record.transitions + 1, _MOST_TRANSITIONS))


def renew(record: LeaseRecord, timing: LeaseTiming, stamp: str) -> LeaseRecord:
    """The Lease as its holder keeps it."""
    return replace(record, duration=timing.duration, acquired=record.acquired or stamp, renewed=stamp)


def release(record: LeaseRecord, stamp: str) -> LeaseRecord:
    """The Lease as it is left to whoever comes first."""
    return replace(record, holder="", duration=1, renewed=stamp)
