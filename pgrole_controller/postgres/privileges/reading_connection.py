"""A second connection to a large database, for what reads whole catalogs: complete reads, and searches for changes.

Meanwhile the session's own connection serves events. One is kept for the next use, because connecting and filling
PostgreSQL's caches takes longer than most searches; the memory that a complete read took ends with the connection.
"""

import logging
import math
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import NamedTuple, NoReturn

import anyio

from pgrole_controller.core.errors import PgRoleError, Reason, Transient
from pgrole_controller.postgres.backend_memory import forgetting
from pgrole_controller.postgres.capabilities import Identity, identify
from pgrole_controller.postgres.connection import Connection, Endpoint
from pgrole_controller.postgres.database_connection import check_unreserved, connect_to

log = logging.getLogger(__name__)

#: Bytes of pg_class and pg_proc from which on a complete read takes longer than to connect: of about 2,000 tables.
LARGE_CATALOGS = 2_500_000

#: How long a kept connection may be unused, from which age on it is not kept again, and how long after a failure to
#: connect none is tried, in seconds.
UNUSED_SECONDS = 15.0
_OLD_SECONDS = 300.0
_REFUSED_SECONDS = 60.0


def is_large(size: int) -> bool:
    """Whether a second connection is worth while. `size`: of pg_class and pg_proc, in bytes."""
    return size > LARGE_CATALOGS


class _OpenConnection(NamedTuple):
    connection: Connection
    closing: AsyncExitStack
    opened: float


@dataclass(slots=True)
class ReadingConnections:
    """Opens them. `server`: of the session."""

    endpoint: Endpoint
    database: str
    server: Identity
    _kept: _OpenConnection | None = None
    _used: float = -math.inf  # on the loop's clock
    _refused: float = -math.inf

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Connection | None]:
        """Yields None if the database accepts no second connection. Afterwards the connection is kept, if no other is,
        unless it is old or its user raised.
        """
        another = await self._take()
        if another is None:
            yield None
            return
        async with AsyncExitStack() as ending:
            ending.push_async_callback(another.closing.aclose)
            yield another.connection
            now = anyio.current_time()
            if self._kept is None and now - another.opened < _OLD_SECONDS:
                ending.pop_all()
                self._kept, self._used = another, now

    async def close_unused(self) -> NoReturn:
        """Closes a kept connection that was not used for UNUSED_SECONDS, until cancelled."""
        while True:
            await anyio.sleep(UNUSED_SECONDS / 2)
            if anyio.current_time() - self._used >= UNUSED_SECONDS:
                await self.close()

    async def close(self) -> None:
        """Closes the kept connection."""
        kept, self._kept = self._kept, None
        if kept is not None:
            await kept.closing.aclose()

    async def _take(self) -> _OpenConnection | None:
        kept, self._kept = self._kept, None
        if kept is not None:
            if not kept.connection.is_closed():
                return kept
            await kept.closing.aclose()
        if anyio.current_time() - self._refused < _REFUSED_SECONDS:
            return None
        closing = AsyncExitStack()
        try:
            connection = await closing.enter_async_context(self._connect())
            return _OpenConnection(connection, closing, anyio.current_time())
        except PgRoleError as error:
            self._refused = anyio.current_time()
            extra = {"database": self.database, "error": error.message}
            log.info("no second connection to a large database: complete reads use the only one", extra=extra)
            return None

    @asynccontextmanager
    async def _connect(self) -> AsyncIterator[Connection]:
        settings = {"default_transaction_read_only": "on", "plan_cache_mode": "auto"}  # most questions are asked once
        async with connect_to(self.endpoint, self.database, "database", **settings) as connection:
            with forgetting():
                identity = await identify(connection)
            if not identity.is_same_server(self.server):
                raise Transient(Reason.SERVER_NOT_READY, "a different server answers on the same address")
            if self.server.superuser:
                await check_unreserved(connection, self.database)
            yield connection
