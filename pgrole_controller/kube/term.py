"""One term of a process: whether it leads, until when, and whether the Lease confirms it.

The elector (`kube.election`) writes it; whatever acts only while it leads reads it.
"""

import math
from typing import Self

import anyio

from pgrole_controller.core.errors import Reason, Transient
from pgrole_controller.signals import Signal


class Term:
    """One attempt to lead: stands by, leads, then loses leadership. Not reusable."""

    def __init__(self) -> None:
        self.led = anyio.Event()
        self.lost = anyio.Event()
        self.away_since: float | None = None  # on the loop's clock: since when the API server has not answered
        self.unconfirmed = False  # led, but could not renew the Lease in time
        self.confirmed_again = Signal()  # pulsed each time
        self.confirmations = 0  # number of pulses
        self.stale = False  # the API server did not answer, so the known state may be old
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
