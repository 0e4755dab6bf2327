"""Locks of other sessions on the tables of schema pgrole, which every transaction of the controller reads or writes.

PostgreSQL's error about a lock that was not free names no table. Its context ends with the function that was called.
"""

import re

import anyio

from pgrole_controller.core.errors import PgRoleError, Reason, Transient, make_legible
from pgrole_controller.postgres import queries
from pgrole_controller.postgres.connection import Connection, Endpoint, has_raw_names
from pgrole_controller.postgres.database_connection import connect_to
from pgrole_controller.postgres.errors import LOCK_NOT_FREE, is_timed_out, sqlstate_of
from pgrole_controller.postgres.rows import Row, fetch

#: The table of the history, without which drift is corrected all the same.
HISTORY = "drift_history"

#: By function of schema pgrole, the table that it waits for.
_TABLES = {
    "lock_changes": "turn_to_change",
    "check_lead": "leader",
    "store_applied": "applied",
    "store_approval": "applied",
    "record_drifts": HISTORY,
}
_FUNCTION = re.compile(rf"\b(?:{'|'.join(_TABLES)})\b")

#: Time limit in seconds for finding out who has locked what.
_SECONDS = 5.0


def find_locked_table(error: PgRoleError) -> str:
    """Returns the name of the table of schema pgrole whose lock, or that of a row, was not free; empty if the error is
    another one. Tenants choose names in the context, but not in its last line.
    """
    if sqlstate_of(error) != LOCK_NOT_FREE:
        return ""
    lines = str(getattr(error.__cause__, "context", None) or "").splitlines()
    found = _FUNCTION.search(lines[-1]) if lines else None
    return _TABLES[found[0]] if found else ""


async def tell_locked_table(connection: Connection, table: str) -> PgRoleError:
    """Returns the error for a transaction that `find_locked_table` found to wait for this table. Raises PgRoleError."""
    rows = await _read(connection)
    return _tell(table, [row for row in rows if row.text("name") == table or row.text("name").startswith(f"{table}_")])


async def explain_session(error: PgRoleError, endpoint: Endpoint, database: str) -> PgRoleError:
    """Returns the error for a session that failed, or did not begin, in this database."""
    if not is_timed_out(error):
        return error
    with anyio.move_on_after(_SECONDS):
        try:
            async with connect_to(endpoint, database, "database") as connection:
                rows = [row for row in await _read(connection) if not row.text("name").startswith(HISTORY)]
        except PgRoleError:
            return error
        if rows:
            table = rows[0].text("name")
            return _tell(table, [row for row in rows if row.text("name") == table])
    return error


async def _read(connection: Connection) -> list[Row]:
    return await fetch(connection, "", queries.privileges("own_locks", raw=has_raw_names(connection)))


def _tell(table: str, rows: list[Row]) -> PgRoleError:
    holders = ", ".join(dict.fromkeys(map(_describe, rows))) or "another transaction"
    what = "records drifts" if table.startswith(HISTORY) else "changes privileges in this database"
    text = f"table pgrole.{table} is locked by {holders}; the controller {what} once it is free"
    return Transient(Reason.PROGRESSING, make_legible(text))


def _describe(row: Row) -> str:
    pid, role = row.find("pid", int), row.find_text("role")
    if pid is None:
        return "a prepared transaction"
    return f'role "{role}" (process {pid})' if role else f"process {pid}"
