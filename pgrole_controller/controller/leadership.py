"""Whether this process leads: always if it is the only one, else while it holds the Lease.

While Kubernetes cannot be reached, the process may continue without the Lease: it enforces what was last applied in
each database that no other process leads.
"""

from collections.abc import Awaitable, Callable

from pgrole_controller.event_loop import Signal
from pgrole_controller.kube.lease import Term
from pgrole_controller.postgres.fence import Candidate

#: After Kubernetes is back and until everything is listed, `away` returns this value, in seconds.
BACK_SECONDS = 1.0


class Leadership:
    """`installation` and `holder` identify the leader in databases. Without a `term` there is no other process."""

    def __init__(self, term: Term | None = None, installation: str = "", holder: str = "") -> None:
        self._is_sole = term is None
        self._term = term or Term.endless()
        self._installation = installation
        self._holder = holder
        self.synced: Callable[[], bool] = lambda: False  # whether everything declared is known
        self._refreshed = Signal()

    @property
    def leading(self) -> bool:
        return self._term.leading

    @property
    def stale(self) -> bool:
        """Whether Kubernetes was unreachable, and not everything was listed again since."""
        return self._term.stale

    @property
    def acting(self) -> bool:
        """Whether this process leads, and has listed everything since Kubernetes was last unreachable."""
        return self.leading and not self.stale

    @property
    def confirmations(self) -> int:
        return self._term.confirmations

    def refresh(self, confirmations: int) -> None:
        """Notes that everything was listed after this many confirmations of leadership. Kubernetes may be unreachable
        again.
        """
        if self._term.leading and self._term.confirmations == confirmations:
            self._term.listed_after = confirmations
            self._refreshed.pulse()

    async def refreshed(self) -> None:
        await self._refreshed.wait()

    @property
    def away(self) -> float:
        """How long Kubernetes has not answered, in seconds, if this process may act without the Lease;
        otherwise 0.0.
        """
        if not self.synced():
            return 0.0
        return BACK_SECONDS if self.leading and self.stale else self._term.away

    async def stand_by(self) -> None:
        """Waits until this process leads."""
        await self._term.stand_by()
        while self.stale:
            await self._refreshed.wait()
            await self._term.stand_by()

    async def end(self) -> None:
        """Waits until this process no longer leads."""
        await self._term.lost.wait()

    async def confirmed_again(self) -> None:
        """Waits until Kubernetes is back and confirms that this process still leads."""
        await self._term.confirmed_again.wait()

    def candidate(self, stand_by: Callable[[], Awaitable[None]]) -> Candidate | None:
        """Returns the candidate for a session, which calls `stand_by` after everything that needs no leadership."""
        if self._is_sole:
            return None
        return Candidate(
            self._installation,
            self._holder,
            is_leading=lambda: self.acting,
            stand_by=stand_by,
            confirm=self._term.confirm,
            away=lambda: self.away,
            enforce=self._enforce,
        )

    def _enforce(self) -> None:
        if not self._term.led.is_set():
            self._term.enforced = True
