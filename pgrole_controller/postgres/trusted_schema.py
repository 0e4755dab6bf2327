"""Reads of schema pgrole in a database where others can create objects. Whoever replaced the schema after someone
dropped it would have their code run with the controller's privileges: that of a view, of a cast, of an index.

The usual case is verified by a prepared statement, in half the time: every drift waits for this verification thrice.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from weakref import WeakKeyDictionary

import anyio
import asyncpg

from pgrole_controller.postgres import queries
from pgrole_controller.postgres.backend_memory import forgetting
from pgrole_controller.postgres.connection import Connection
from pgrole_controller.postgres.errors import translate_errors
from pgrole_controller.postgres.rows import fetch_row

#: Time limit of one guarded read, in seconds.
GUARDED_SECONDS = 10.0

_USUAL_GUARD = "LOCK TABLE pgrole.turn_to_look IN ACCESS SHARE MODE;\nEXECUTE pgrole_guard"

#: Connections that have verified the schema, and whether it had its usual owner and privileges each time.
_usual: WeakKeyDictionary[Connection, bool] = WeakKeyDictionary()


def guard_of(connection: Connection) -> str:
    """Returns what verifies that schema pgrole can be trusted, first in a transaction on this connection."""
    return _USUAL_GUARD if _usual.get(connection, False) else queries.guard()


@asynccontextmanager
async def trusting(connection: Connection, *, guarded: bool) -> AsyncIterator[None]:
    """Locks the schema while it is read, and verifies that it can be trusted (sql/inspect/guard.sql). Does nothing
    unless `guarded`. Must not be nested in a transaction. Raises PgRoleError.
    """
    if not guarded:
        yield
        return
    with translate_errors(), anyio.fail_after(GUARDED_SECONDS, shield=True):
        try:
            await _begin(connection)
            yield
            await connection.execute("COMMIT")
        except BaseException:
            if not connection.is_closed():
                with anyio.move_on_after(GUARDED_SECONDS, shield=True):
                    await connection.execute("ROLLBACK")
            raise


async def _begin(connection: Connection) -> None:
    """Opens the transaction and verifies the schema; after the first time, in one round trip."""
    try:
        await connection.execute(f"BEGIN;\n{guard_of(connection)}")
    except asyncpg.InvalidSchemaNameError:
        if not _usual.get(connection, False):
            raise
        _usual[connection] = False
        await connection.execute(f"ROLLBACK;\nBEGIN;\n{queries.guard()}")
    if connection not in _usual:
        with forgetting():
            row = await fetch_row(connection, "", queries.inspect("usual_schema"))
        _usual[connection] = False  # if this ends here, the statement may exist or not
        if row.get("usual", bool):
            await connection.execute(queries.prepare_usual_guard())
            _usual[connection] = True
