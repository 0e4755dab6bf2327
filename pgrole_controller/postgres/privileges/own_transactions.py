"""The session's own transactions that read back what they wrote, so that it need not be read again.

Nothing announces the session's own changes where its event triggers are off, and the search for writes that no event
tells (`searches.UnexplainedWrites`) would read them once more. A transaction notes its id in a setting of its own
session, which no other session can write, and which a transaction that fails does not change. A setting of the database
or the role with that name is overwritten when the session begins.

Caveat: it may only note its id if the objects were read for every role, had not changed since (`CHECK_EXPECTED`), and
were read back (`CHECK_EFFECT`). Otherwise the row would hide what others wrote to it before.
"""

from dataclasses import dataclass
from typing import Final

from pgrole_controller import resources
from pgrole_controller.postgres.connection import Connection
from pgrole_controller.postgres.errors import translate_errors
from pgrole_controller.postgres.rows import fetch_row

#: Number of ids that are kept. Those beyond are read again.
_MOST = 1000
_SETTING = "pgrole.own_transactions"

#: As the last statement of a transaction.
NOTE_OWN_TRANSACTION: Final = (
    f"SELECT pg_catalog.set_config('{_SETTING}', pg_catalog.array_to_string((ARRAY["
    "pg_catalog.pg_current_xact_id()::xid::text] || "
    f"pg_catalog.string_to_array(pg_catalog.current_setting('{_SETTING}', true), ','))[1:{_MOST}], ','), false)"
)


@dataclass(frozen=True, slots=True)
class OwnSession:
    """What a search on another connection has to know of the session: its snapshot, the process of its backend, the
    transactions that it noted, as the setting has them, and the bytes of pg_class and pg_proc.
    """

    snapshot: str
    pid: int
    transactions: str
    bytes: int


async def read_own_session(connection: Connection) -> OwnSession:
    """Raises PgRoleError."""
    row = await fetch_row(connection, "", resources.text("sql", "events", "own_session.sql"))
    return OwnSession(
        row.get("snapshot", str), row.get("pid", int), row.get("transactions", str), row.get("bytes", int)
    )


async def forget_own_transactions(connection: Connection) -> None:
    """Call it when a session begins. Raises PgRoleError."""
    with translate_errors():
        await connection.execute(f"SELECT pg_catalog.set_config('{_SETTING}', '', false)")
