"""Whether this process leads: always where it is the only one, else for as long as it holds the Lease.

While Kubernetes cannot be reached it may go on without: each database that nobody else leads is then its own to
enforce.
"""

from collections.abc import Awaitable, Callable

import anyio

from pgrole_controller.kube.election import Term
from pgrole_controller.postgres.fence import Candidate
from pgrole_controller.signals import Signal

#: While Kubernetes answers again, and not everything is listed yet, what was applied is kept: as if it were away for a
#: moment, in seconds.
BACK_SECONDS = 1.0


class Leadership:
    """`installation` and `holder` are how databases know whoever leads. Without a `term` nobody else could."""

    def __init__(self, term: Term | None = None, installation: str = "", holder: str = "") -> None:
        self._term = term
        self._installation = installation
        self._holder = holder
        self.synced: Callable[[], bool] = lambda: False  # whether everything that is declared is known
        self._refreshed = Signal()

    @property
    def leading(self) -> bool:
        return self._term is None or self._term.leading

    @property
    def stale(self) -> bool:
        """Whether Kubernetes was away, and not everything was listed again since."""
        return self._term is not None and self._term.stale

    @property
    def acting(self) -> bool:
        """Whether it leads, and knows what is declared now."""
        return self.leading and not self.stale

    @property
    def confirmations(self) -> int:
        return 0 if self._term is None else self._term.confirmations

    def refresh(self, confirmations: int) -> None:
        """Everything was listed since Kubernetes was back for so many times; it may be away again."""
        if self._term is None or not self._term.leading or self._term.confirmations != confirmations:
            return
        self._term.stale = False
        self._refreshed.pulse()

    async def refreshed(self) -> None:
        await self._refreshed.wait()

    @property
    def away(self) -> float:
        """For how many seconds Kubernetes has not answered, where this process may do without the Lease; else 0.0."""
        if self._term is None or not self.synced():
            return 0.0
        return BACK_SECONDS if self.leading and self.stale else self._term.away

    async def stand_by(self) -> None:
        """Until this process leads."""
        if self._term is not None:
            await self._term.stand_by()
            while self.stale:
                await self._refreshed.wait()
                await self._term.stand_by()

    async def end(self) -> None:
        """Until it leads no more."""
        if self._term is None:
            await anyio.sleep_forever()
        else:
            await self._term.lost.wait()

    async def confirmed_again(self) -> None:
        """Until Kubernetes has answered that this process leads still, after it could not be asked."""
        if self._term is None:
            await anyio.sleep_forever()
        else:
            await self._term.confirmed_again.wait()

    def candidate(self, stand_by: Callable[[], Awaitable[None]]) -> Candidate | None:
        """For a session, which calls `stand_by` when it has done all that can be done before."""
        if self._term is None:
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
        if self._term is not None and not self._term.led.is_set():
            self._term.enforced = True
