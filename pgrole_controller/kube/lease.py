"""Rules for when a Lease may be taken and how long it is held, using this process's clock only.

The times in a Lease come from other machines and are never compared with ours. Like client-go's leader election, what
counts is how long ago we saw it change. Time is an argument, in seconds of any one monotonic clock.
"""

from dataclasses import dataclass, replace

#: Maximum wait for a holder in seconds, whatever the Lease says: it may have been written by hand.
LONGEST_SECONDS = 60
#: leaseTransitions is a 32-bit number.
_MOST_TRANSITIONS = 2**31 - 1


@dataclass(frozen=True, slots=True)
class LeaseTiming:
    """Times in seconds. `duration`: how long a candidate waits without seeing a renewal. `deadline`: a holder that
    cannot renew for so long stops; work in progress has the rest of `duration` to finish. `period`: time between
    renewals.
    """

    duration: int = 15
    deadline: float = 10.0
    period: float = 2.0


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """Content of a Lease without its metadata. `duration` is the holder's, in seconds; times are kept as written."""

    holder: str = ""
    duration: int = 0
    acquired: str = ""
    renewed: str = ""
    transitions: int = 0


@dataclass(frozen=True, slots=True)
class ObservedLease:
    """A Lease, and since when it has been unchanged. `version` None: deleted, and this was its last content."""

    record: LeaseRecord
    version: str | None
    at: float

    @property
    def free_at(self) -> float:
        """When it may be taken if its holder is not seen until then.

        A deleted Lease still belongs to its holder, since deleting it does not stop the leader.
        """
        return self.at + min(self.record.duration, LONGEST_SECONDS) if self.record.holder else self.at


def observe(before: ObservedLease | None, record: LeaseRecord, version: str, now: float) -> ObservedLease:
    """Records the Lease as read now; its time is kept while its content is unchanged."""
    if before is not None and before.record == record:
        return ObservedLease(record, version, before.at)
    return ObservedLease(record, version, now)


def observe_missing(before: ObservedLease | None) -> ObservedLease | None:
    """Records that the Lease is missing; None if nothing was known of it."""
    return None if before is None else replace(before, version=None)


def take(observed: ObservedLease | None, holder: str, timing: LeaseTiming, stamp: str) -> LeaseRecord:
    """Returns the Lease as taken or kept by this holder. `stamp` is the time of day."""
    if observed is None:
        return LeaseRecord(holder, timing.duration, stamp, stamp, 0)
    if observed.record.holder == holder:
        return renew(observed.record, timing, stamp)
    return LeaseRecord(holder, timing.duration, stamp, stamp, min(observed.record.transitions + 1, _MOST_TRANSITIONS))


def renew(record: LeaseRecord, timing: LeaseTiming, stamp: str) -> LeaseRecord:
    """Returns the Lease as renewed by its holder."""
    return replace(record, duration=timing.duration, acquired=record.acquired or stamp, renewed=stamp)


def release(record: LeaseRecord, stamp: str) -> LeaseRecord:
    """Returns the Lease as released, for any candidate to take."""
    return replace(record, holder="", duration=1, renewed=stamp)
