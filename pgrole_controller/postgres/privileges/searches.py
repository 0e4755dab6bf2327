"""Searches for changes that no event tells. They read catalogs as a whole, so events must not wait for them."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import NoReturn, Protocol

import anyio

from pgrole_controller.postgres.connection import Connection
from pgrole_controller.postgres.privileges.ddl_events import EventReader, PrivilegeRead, UnexplainedWrites
from pgrole_controller.postgres.privileges.own_transactions import OwnSession, read_own_session
from pgrole_controller.postgres.privileges.reading_connection import ReadingConnections, is_large

#: Seconds between two questions for writes that no event tells, and for events that no notification announced; and how
#: much of the time the searches for such writes take at most.
UNEXPLAINED_SECONDS, _UNEXPLAINED_SHARE = 2.0, 0.01


class CatalogSearch(Protocol):
    """`another`, `own`: as in `UnexplainedWrites.ask`."""

    def __call__(
        self, another: Connection | None = None, own: OwnSession | None = None
    ) -> Awaitable[PrivilegeRead]: ...


@dataclass(frozen=True, slots=True)
class Searches:
    """Runs them for the session with this connection and lock."""

    connection: Connection
    lock: anyio.Lock
    reading: ReadingConnections

    async def run(self, search: CatalogSearch, since: str | None) -> tuple[PrivilegeRead, float]:
        """Returns what to read, and the seconds that it took to find out. `since`: the snapshot of the last answer;
        while it lasts, there is nothing to find. If the database is large and accepts another connection, the lock is
        free meanwhile. Raises PgRoleError.
        """
        async with self.lock:
            own = await read_own_session(self.connection)
            if own.snapshot == since:
                return PrivilegeRead(), 0.0
            if not is_large(own.bytes):
                return await _time(search())
        async with self.reading.open() as another:
            if another is not None:
                return await _time(search(another, own))
        async with self.lock:
            return await _time(search())

    async def watch_unexplained(
        self,
        writes: UnexplainedWrites,
        reader: EventReader,
        on_notice: Callable[[], None],
        read_again: Callable[[PrivilegeRead], None],
    ) -> NoReturn:
        """Notices writes without an event, and events without a notification, until cancelled. Raises PgRoleError.

        The event trigger sends no notification while PostgreSQL's queue is half full. While no transaction ends,
        nothing but the snapshot is read.
        """
        while True:
            to_read, took = await self.run(writes.ask, writes.snapshot)
            if to_read.is_needed:
                read_again(to_read)
            if writes.snapshot != reader.snapshot:
                on_notice()
            search_at = anyio.current_time() + took / _UNEXPLAINED_SHARE
            await anyio.sleep(UNEXPLAINED_SECONDS)
            while anyio.current_time() < search_at:
                async with self.lock:
                    snapshot = (await read_own_session(self.connection)).snapshot
                if snapshot != reader.snapshot:
                    on_notice()
                await anyio.sleep(UNEXPLAINED_SECONDS)


async def _time(answer: Awaitable[PrivilegeRead]) -> tuple[PrivilegeRead, float]:
    began = anyio.current_time()
    return await answer, anyio.current_time() - began
