"""A second connection to a database, for one complete read of many objects.

Meanwhile the session's own connection serves events, and the memory that such a read takes ends with this one.
"""

import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from pgrole_controller.core.errors import PgRoleError, Reason, Transient
from pgrole_controller.postgres.capabilities import Identity, identify
from pgrole_controller.postgres.connection import Connection, Endpoint
from pgrole_controller.postgres.database_connection import connect_to
from pgrole_controller.postgres.unnamed_statements import forgetting

log = logging.getLogger(__name__)

#: Bytes of pg_class and pg_proc from which on a complete read takes longer than to connect: of about 2,000 tables.
LARGE_CATALOGS = 2_500_000


@dataclass(frozen=True, slots=True)
class ReadingConnections:
    """Opens them. `server`: of the session."""

    endpoint: Endpoint
    database: str
    server: Identity

    @asynccontextmanager
    async def open(self, size: int) -> AsyncIterator[Connection | None]:
        """Yields None if the database is small, or accepts no second connection. `size`: of pg_class and pg_proc, in
        bytes.
        """
        async with AsyncExitStack() as stack:
            connection = None
            if size > LARGE_CATALOGS:
                try:
                    connection = await stack.enter_async_context(self._connect())
                except PgRoleError as error:
                    extra = {"database": self.database, "error": error.message}
                    log.info("no second connection to a large database: its only one reads everything", extra=extra)
            yield connection

    @asynccontextmanager
    async def _connect(self) -> AsyncIterator[Connection]:
        read_only = {"default_transaction_read_only": "on"}
        async with connect_to(self.endpoint, self.database, "database", **read_only) as connection:
            with forgetting():
                identity = await identify(connection)
            if not identity.is_same_server(self.server):
                raise Transient(Reason.SERVER_NOT_READY, "a different server answers on the same address")
            yield connection
