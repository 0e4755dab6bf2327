"""What the controller's role may do of what a session needs, and whether that has changed."""

from collections.abc import Mapping
from typing import Any

import anyio

from pgrole_controller.core.errors import Reason, Transient
from pgrole_controller.postgres import queries
from pgrole_controller.postgres.connection import Connection, translate_errors
from pgrole_controller.postgres.rows import Row

#: How often it is looked at again whether something else is possible now, in seconds, at most.
ACCESS_CHECK_SECONDS = 60.0
_DEADLINE = 10.0

_COLUMNS = (
    "own_role",
    "database",
    "creates",
    "present",
    "owns",
    "uses",
    "sees_versions",
    "sees_passwords",
    "sees_system",
)

#: One row of sql/inspect/access.sql.
Access = Mapping[str, Any]


async def read_access(connection: Connection) -> Access:
    with translate_errors():
        row = await connection.fetchrow(queries.inspect("access"), timeout=_DEADLINE)
    if row is None:
        raise Transient(Reason.SERVER_NOT_READY, "the controller's role no longer exists: create it again")
    return {column: Row(row, Reason.SERVER_NOT_READY)[column] for column in _COLUMNS}


async def await_access_change(
    connection: Connection, lock: anyio.Lock, before: Access, seconds: float, only: str | None = None
) -> tuple[str, ...]:
    """Asks every `seconds`, and returns the names of what is not as `before`; `only`: of this column alone."""
    while True:
        await anyio.sleep(seconds)
        async with lock:
            now = await read_access(connection)
        changed = tuple(name for name in now if now[name] != before[name] and only in (None, name))
        if changed:
            return changed
