"""Whether this process leads: always where it is the only one, else for as long as it holds the Lease."""

from collections.abc import Awaitable, Callable

import anyio

from pgrole_controller.kube.lease import Term
from pgrole_controller.postgres.fence import Candidacy


class Lead:
    """`installation` and `holder` are how databases know whoever leads. Without a `term` nobody else could."""

    def __init__(self, term: Term | None = None, installation: str = "", holder: str = "") -> None:
        self._term = term
        self._installation = installation
        self._holder = holder

    @property
    def leading(self) -> bool:
        return self._term is None or self._term.leading

    async def stand_by(self) -> None:
        """Until this process leads."""
        if self._term is not None:
            await self._term.led.wait()

    async def end(self) -> None:
        """Until it leads no more."""
        if self._term is None:
            await anyio.sleep_forever()
        else:
            await self._term.lost.wait()

    def stand(self, stand_by: Callable[[], Awaitable[None]]) -> Candidacy | None:
        """For a session, which calls `stand_by` when it has done all that can be done before."""
        if self._term is None:
            return None
        return Candidacy(self._installation, self._holder, lambda: self.leading, stand_by, self._term.confirm)
