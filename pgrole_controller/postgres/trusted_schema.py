"""Reads of schema pgrole in a database where others can create objects. Whoever replaced the schema after someone
dropped it would have their code run with the controller's privileges: that of a view, of a cast, of an index.

The usual case is verified by a prepared statement, in half the time: every drift waits for this verification thrice.

A command's login may not be able to verify the schema. It verifies the tables instead.

Guarantees: reading a table that is `readable` runs no code of roles that the login does not trust, whoever they are, as
sql/inspect/own_table.sql defines it. A missing table, or one that the login may not read, does not end the transaction.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import anyio
import asyncpg

from pgrole_controller.core.errors import PgRoleError, Reason, Transient
from pgrole_controller.postgres import queries
from pgrole_controller.postgres.backend_memory import forgetting
from pgrole_controller.postgres.connection import Connection, roll_back
from pgrole_controller.postgres.errors import is_timed_out, translate_errors
from pgrole_controller.postgres.rows import fetch_row

#: Time limit of one guarded read, in seconds.
GUARDED_SECONDS = 10.0

_USUAL_GUARD = "LOCK TABLE pgrole.turn_to_look IN ACCESS SHARE MODE;\nEXECUTE pgrole_guard"

#: Connections that have verified the schema, and whether it had its usual owner and privileges each time.
_usual: WeakKeyDictionary[Connection, bool] = WeakKeyDictionary()

_SAVEPOINT = "SAVEPOINT reading"
_BACK = "ROLLBACK TO SAVEPOINT reading"
_RELEASE = "RELEASE SAVEPOINT reading"


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
            await roll_back(connection)
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
            row = await fetch_row(connection, queries.inspect("usual_schema"))
        _usual[connection] = False  # if this ends here, the statement may exist or not
        if row.get("usual", bool):
            await connection.execute(queries.prepare_usual_guard())
            _usual[connection] = True


@dataclass(frozen=True, slots=True)
class StoredTable:
    """A table of schema pgrole. `schema`: that exists; `present`: with the claims, if it is asked for their table.

    `exists`: the table does. `permitted`: the login may read it. `readable`: it may, and that is safe.
    """

    schema: bool
    present: bool
    exists: bool
    permitted: bool
    readable: bool
    keeps_privileges: bool

    @property
    def unsafe(self) -> bool:
        """Whether the login may read it, but doing so could run code of its owner."""
        return self.exists and self.permitted and not self.readable


def explain_unsafe(name: str, database: str, login: str) -> str:
    """What a person can do about a table that is `unsafe`."""
    return (
        f'pgrole.{name} in database "{database}" is not read: its owner, or what was added to it, could run code as '
        f'"{login}". Connect as the controller\'s role, or as a member of pg_monitor that is not a superuser. If that '
        "fails too, an administrator must inspect the table"
    )


@asynccontextmanager
async def reading_table(connection: Connection, name: str) -> AsyncIterator[StoredTable]:
    """As find_table, in a transaction of its own, in which the table can be read. Raises PgRoleError."""
    with translate_errors():
        async with connection.transaction(readonly=True):
            yield await find_table(connection, name)


@asynccontextmanager
async def savepoint(connection: Connection) -> AsyncIterator[None]:
    """After an error inside, the transaction continues as it was before. Raises PgRoleError."""
    with translate_errors():
        await connection.execute(_SAVEPOINT)
    try:
        with translate_errors():
            yield
    except PgRoleError:
        if not connection.is_closed():
            with translate_errors():
                await connection.execute(_BACK)
                await connection.execute(_RELEASE)
        raise
    with translate_errors():
        await connection.execute(_RELEASE)


async def find_table(connection: Connection, name: str) -> StoredTable:
    """As find_tables, for one table. Raises PgRoleError."""
    (found,) = await find_tables(connection, name)
    return found


async def find_tables(connection: Connection, *names: str) -> list[StoredTable]:
    """Locks tables of schema pgrole, as far as they exist, and tells whether they can be read. Raises PgRoleError, in
    particular Transient if another session holds a lock.

    Call it before any query of the transaction: what it finds must be what is locked.
    """
    locked = [await _lock(connection, name) for name in names]
    return [await _ask(connection, name, one) for name, one in zip(names, locked, strict=True)]


async def _lock(connection: Connection, name: str) -> bool:
    try:
        async with savepoint(connection):
            await connection.execute(f"LOCK TABLE pgrole.{name} IN ACCESS SHARE MODE")
    except PgRoleError as error:
        if connection.is_closed():
            raise
        if is_timed_out(error):
            text = f"pgrole.{name} is locked by another session: try again, or find it: docs/troubleshooting.md"
            raise Transient(Reason.SERVER_NOT_READY, text) from error
        return False  # it is missing, or the login may not read it: the question tells which
    return True


async def _ask(connection: Connection, name: str, locked: bool) -> StoredTable:
    row = await fetch_row(connection, queries.inspect("own_table"), name)
    return StoredTable(
        schema=row.get("present", bool),
        present=row.get("present", bool) and (row.get("has_table", bool) or name != "claim"),
        exists=row.get("has_table", bool),
        permitted=row.get("readable", bool),
        readable=locked and row.get("readable", bool) and row.get("safe", bool),
        keeps_privileges=row.get("keeps_privileges", bool),
    )
