"""Searches for changes that no event tells. They read catalogs as a whole, so events must not wait for them."""

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Protocol

import anyio

from pgrole_controller.postgres.connection import Connection
from pgrole_controller.postgres.privileges.ddl_events import Look
from pgrole_controller.postgres.privileges.own_transactions import OwnSession, read_own_session
from pgrole_controller.postgres.privileges.reading_connection import LARGE_CATALOGS, ReadingConnections


class CatalogSearch(Protocol):
    """`another`, `own`: as in `UnexplainedWrites.ask`."""

    def __call__(self, another: Connection | None = None, own: OwnSession | None = None) -> Awaitable[Look]: ...


@dataclass(frozen=True, slots=True)
class Searches:
    """Runs them for the session with this connection and lock."""

    connection: Connection
    lock: anyio.Lock
    reading: ReadingConnections

    async def run(self, search: CatalogSearch, since: str | None) -> tuple[Look, float]:
        """Returns what to read, and the seconds that it took to find out. `since`: the snapshot of the last answer;
        while it lasts, there is nothing to find. If the database is large and accepts another connection, the lock is
        free meanwhile. Raises PgRoleError.
        """
        async with self.lock:
            own = await read_own_session(self.connection)
            if own.snapshot == since:
                return Look(), 0.0
            if own.bytes <= LARGE_CATALOGS:
                return await _time(search())
        async with self.reading.open(own.bytes, keep=True) as another:
            if another is not None:
                return await _time(search(another, own))
        async with self.lock:
            return await _time(search())


async def _time(answer: Awaitable[Look]) -> tuple[Look, float]:
    began = anyio.current_time()
    return await answer, anyio.current_time() - began
