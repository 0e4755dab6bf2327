"""Rules for when a Lease may be taken and how long it is held, using this process's clock only; and the term of the
process: whether it leads, until when, and whether the Lease confirms it.

The times in a Lease come from other machines and are never compared with ours. Like client-go's leader election, what
counts is how long ago we saw it change. In the rules, time is an argument, in seconds of any one monotonic clock.

The elector (`kube.election`) writes the term; whatever acts only while it leads reads it.
"""

import math
from dataclasses import dataclass, replace
from typing import Self

import anyio

from pgrole_controller.core.errors import Reason, Transient
from pgrole_controller.event_loop import Signal

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


class Term:
    """One attempt to lead: stands by, leads, then loses leadership. Not reusable."""

    def __init__(self) -> None:
        self.led = anyio.Event()
        self.lost = anyio.Event()
        self.away_since: float | None = None  # on the loop's clock: since when the API server has not answered
        self.unconfirmed = False  # led, but could not renew the Lease in time
        self.confirmed_again = Signal()  # pulsed each time
        self.confirmations = 0  # number of pulses
        self.listed_after = 0  # after how many confirmations everything was listed again
        self.enforced = False  # led a database without the Lease
        self._until = 0.0  # on the loop's clock: when the leadership ends unless renewed
        self._renewed_from = 0.0
        self._renewed = Signal()
        self._wanted = Signal()

    @classmethod
    def endless(cls) -> Self:
        """Returns the term of the only process: it leads from the beginning, without a Lease."""
        term = cls()
        term.led.set()
        term._until = math.inf
        return term

    @property
    def leading(self) -> bool:
        return self.led.is_set() and not self.lost.is_set() and anyio.current_time() < self._until

    @property
    def stale(self) -> bool:
        """Whether stored objects may be outdated: the API server failed to answer, and has not listed all since."""
        return self.unconfirmed or self.listed_after < self.confirmations

    @property
    def away(self) -> float:
        """Seconds for which no API server has answered, if that keeps this process from leading; else 0.0."""
        if self.leading or self.lost.is_set() or self.away_since is None:
            return 0.0
        return anyio.current_time() - self.away_since

    async def stand_by(self) -> None:
        """Returns when this process leads by the Lease."""
        while not self.leading:
            await self._renewed.wait()

    async def confirm(self) -> None:
        """Returns once a renewal succeeded that began after this call.

        Raises Transient if the leadership is lost meanwhile.
        """
        called_at = anyio.current_time()
        while self._renewed_from < called_at:
            if not self.leading:
                raise Transient(Reason.PROGRESSING, "this process does not hold the Lease")
            self.request_renewal()
            with anyio.CancelScope(deadline=self._until):
                await self._renewed.wait()

    def hold(self, since: float, until: float) -> None:
        """Records that we hold the Lease, by a request that began at `since`."""
        self._renewed_from, self._until = since, until
        if anyio.current_time() < until:  # a paused process may read the answer too late
            self.led.set()
        self._renewed.pulse()
        if self.unconfirmed and self.leading:
            self.unconfirmed = False
            self.confirmations += 1
            self.confirmed_again.pulse()

    @property
    def until(self) -> float:
        return self._until

    def request_renewal(self) -> None:
        """Requests a renewal at once."""
        self._wanted.set()

    async def renewal_requested(self) -> None:
        """Waits until a renewal is requested."""
        await self._wanted.wait()

    def renewal_started(self) -> None:
        """Starts a renewal: requests from now on ask for the next one."""
        self._wanted.clear()
