"""Reads of schema pgrole in a database where others can create objects. Whoever replaced the schema after someone
dropped it would have their code run with the controller's privileges: that of a view, of a cast, of an index.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from pgrole_controller.postgres import queries
from pgrole_controller.postgres.connection import Connection
from pgrole_controller.postgres.errors import translate_errors

#: Time limit of one guarded read, in seconds.
GUARDED_SECONDS = 10.0


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
            await connection.execute(f"BEGIN;\n{queries.inspect('guard')}")  # one round trip
            yield
            await connection.execute("COMMIT")
        except BaseException:
            if not connection.is_closed():
                with anyio.move_on_after(GUARDED_SECONDS, shield=True):
                    await connection.execute("ROLLBACK")
            raise
