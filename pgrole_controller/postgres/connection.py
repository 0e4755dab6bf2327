"""Connections to one server, with every session setting pinned that a role's or a database's defaults could bend."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

import anyio
import asyncpg

from pgrole_controller.core.errors import PgRoleError, Reason, Transient
from pgrole_controller.core.sqlstate import classify

# asyncpg's class is generic in its stubs alone.
if TYPE_CHECKING:
    Connection = asyncpg.Connection[asyncpg.Record]
else:
    Connection = asyncpg.Connection

CONNECT_SECONDS = 5.0
COMMAND_SECONDS = 30.0
CLOSE_SECONDS = 0.4

_SETTINGS = {
    "search_path": "pg_catalog, pg_temp",
    "client_encoding": "UTF8",
    "DateStyle": "ISO",
    "TimeZone": "UTC",
    "statement_timeout": "20s",
    "lock_timeout": "5s",
    "idle_in_transaction_session_timeout": "30s",
    "default_transaction_isolation": "read committed",
    "default_transaction_read_only": "off",
    "default_transaction_deferrable": "off",
    "row_security": "off",
    "jit": "off",
    "idle_session_timeout": "0",
}

# InternalClientError: a statement that meets the server's goodbye before the end of the connection is noticed.
_LOST = (asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, EOFError)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a server is and how to get in. `dsn` is a secret: it is in no representation of this."""

    dsn: str = field(repr=False)
    ssl: Literal["verify-full"] | None = None  # None: as the DSN says
    database: str | None = None  # None: as the DSN says

    def at(self, database: str) -> "Endpoint":
        """The same server and role, in another database."""
        return replace(self, database=database)


@asynccontextmanager
async def connect(endpoint: Endpoint, purpose: str, **settings: str) -> AsyncIterator[Connection]:
    """A connection for one purpose (it shows in application_name). Raises Transient when there is none to be had.

    `command_timeout` holds for every statement; give `timeout` with a statement that shall run longer.
    """
    with speaking():
        connection = await asyncpg.connect(
            endpoint.dsn,
            database=endpoint.database,
            ssl=endpoint.ssl,
            timeout=CONNECT_SECONDS,
            command_timeout=COMMAND_SECONDS,
            server_settings={**_SETTINGS, **settings, "application_name": f"pgrole-controller {purpose}"},
        )
    try:
        yield connection
    finally:
        with anyio.CancelScope(shield=True):
            await _close(connection)


async def _close(connection: Connection) -> None:
    # A polite goodbye needs an answer; a peer that is gone never gives one.
    with anyio.move_on_after(CLOSE_SECONDS):
        try:
            await connection.close(timeout=CLOSE_SECONDS)
        except (*_LOST, TimeoutError, asyncpg.PostgresError):
            connection.terminate()
            return
    if not connection.is_closed():
        connection.terminate()


@contextmanager
def speaking() -> Iterator[None]:
    """Turns whatever asyncpg raises into a PgRoleError by the table of SQLSTATEs."""
    try:
        yield
    except asyncpg.PostgresError as error:
        raise translate(error) from error
    except (*_LOST, TimeoutError) as error:
        raise Transient(Reason.SERVER_NOT_READY, f"the connection to PostgreSQL failed: {_words(error)}") from error


def translate(error: asyncpg.PostgresError) -> PgRoleError:
    """The error to say on an object. Only the primary message: detail and context may quote a statement."""
    return classify(getattr(error, "sqlstate", None), str(getattr(error, "message", None) or type(error).__name__))


def _words(error: Exception) -> str:
    return "no answer in time" if isinstance(error, TimeoutError) else str(error) or type(error).__name__
