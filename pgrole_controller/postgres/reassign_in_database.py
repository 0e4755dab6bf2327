"""Reassigns what a role owns in one database, and revokes its privileges there, on a connection of its own.

Guarantees: nothing changes unless the connection is to the same server, to this database and as the same role as the
one to the home database, and no event trigger would run another role's function. Errors of one database become
blockers.
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import TypeAlias

import anyio
import anyio.lowlevel

from pgrole_controller import resources
from pgrole_controller.core.errors import NOT_UTF8, PgRoleError, Reason, Transient, Waiting, make_legible
from pgrole_controller.core.plan import Blocker, ReassignOwned, blocked
from pgrole_controller.postgres.capabilities import Identity
from pgrole_controller.postgres.connection import Connection, Endpoint, connect
from pgrole_controller.postgres.database_connection import explain, find_sqlstates, login_of
from pgrole_controller.postgres.errors import (
    CHANGES_SUSPENDED,
    DEPENDENT,
    GRANTOR_IS_SUPERUSER,
    NAME_ONE_SERVER,
    NO_DATABASE,
    NOT_LEADING,
    NOT_THE_GRANTOR,
    sqlstate_of,
    translate_errors,
)
from pgrole_controller.postgres.rows import Row, fetch, fetch_row, first

log = logging.getLogger(__name__)

#: Deadline of a statement that is not interrupted, in seconds: longer than its statement_timeout.
STATEMENT_SECONDS = 12.0
#: Maximum rounds in one database, if sessions keep creating objects as the role.
ROUNDS = 8

#: Raised by sql/reassign if an object was created as the role or renamed since it was read: nothing was changed.
MADE_MEANWHILE = "PGR03"

#: SQLSTATEs after which another round makes sense: an object was created, altered or dropped concurrently.
_RETRYABLE = {MADE_MEANWHILE, "XX000", "40001", "40P01", "3F000", "42704", "42P01"}

CheckLead: TypeAlias = Callable[[], Awaitable[None]]

#: Prefixes of SQLSTATEs that concern the server or the connection, not one database.
_OF_THE_SERVER = ("08", "53300", "57P", "PGR01", NOT_LEADING, CHANGES_SUSPENDED)
_LACKING = "42501"
_REMEDIES = {
    DEPENDENT: "objects of other roles depend on it",
    _LACKING: "the controller needs the privileges of both roles",
    NOT_THE_GRANTOR: "GRANT it to the controller's role, or revoke them as a superuser, with SET ROLE to it",
    GRANTOR_IS_SUPERUSER: "PostgreSQL lets no one revoke these: make it NOSUPERUSER until the role is dropped",
    "53200": "too many objects for one transaction: raise max_locks_per_transaction",
}


@dataclass(frozen=True, slots=True)
class ConnectionPlace:
    """The server, database and acting role of a connection: a row of sql/reassign/place.sql."""

    system_identifier: int
    started_at: datetime
    acting_role: int
    database: int

    def is_on(self, server: "ConnectionPlace | Identity") -> bool:
        """Whether both are on the same live server."""
        return (self.system_identifier, self.started_at) == (server.system_identifier, server.started_at)


@dataclass(frozen=True, slots=True)
class RoleEmptying:
    """The state shared by all databases. `place`: of the connection to the home database.

    `check_lead` raises PgRoleError unless this process still leads. `piece`: how many relations are reassigned in one
    transaction. `blockers`: those found so far.
    """

    endpoint: Endpoint
    task: ReassignOwned
    settings: dict[str, str]
    place: ConnectionPlace
    check_lead: CheckLead
    piece: int
    blockers: list[Blocker]


@dataclass(frozen=True, slots=True)
class DependentDatabase:
    oid: int
    name: str
    connectable: bool
    invalid: bool


def why_unreachable(database: DependentDatabase) -> str | None:
    """Why the controller cannot connect to a database, with a remedy; None if no reason is known beforehand."""
    if database.invalid:
        return "its DROP DATABASE was interrupted: run DROP DATABASE again"
    if not database.connectable:
        return "it depends on the role but accepts no connections: ALTER DATABASE … ALLOW_CONNECTIONS true, or drop it"
    if NOT_UTF8.search(database.name):
        return (
            "it depends on the role but its name is not UTF-8: rename it, or run REASSIGN OWNED and DROP OWNED by hand"
        )
    return None


async def run_in(
    home: Connection, emptying: RoleEmptying, database: DependentDatabase, work: Callable[[Connection], Awaitable[None]]
) -> str | None:
    """The blocker in one database; None if there is none. Raises errors that concern the whole server."""
    try:
        return await _try(home, emptying, database, work)
    except Transient:
        # DROP DATABASE terminates connections before it commits; a new connection waits for the commit
        log.info("connecting to the database again", extra={"database": make_legible(database.name)})
        return await _try(home, emptying, database, work)


async def _try(
    home: Connection, emptying: RoleEmptying, database: DependentDatabase, work: Callable[[Connection], Awaitable[None]]
) -> str | None:
    opened = False
    try:
        async with connect(emptying.endpoint.at(database.name), "reassign", **emptying.settings) as connection:
            opened = True
            await _check_place(connection, emptying.place, database)
            await _check_triggers(connection)
            await work(connection)
    except PgRoleError as error:
        if sqlstate_of(error) == NO_DATABASE or not await _exists(home, database):
            return None
        return _describe_blocker(error) if opened else _describe_closed(error, emptying.endpoint, database.name)
    return None


async def _exists(home: Connection, database: DependentDatabase) -> bool:
    query = "SELECT EXISTS (SELECT FROM pg_catalog.pg_database WHERE oid = $1) AS found"
    return (await fetch_row(home, query, database.oid, label="reassign")).get("found", bool)


async def find_place(connection: Connection) -> ConnectionPlace:
    row = first(await ask(connection, "place"))
    return ConnectionPlace(
        row.get("system_identifier", int),
        row.get("started_at", datetime),
        row.get("acting_role", int),
        row.get("database", int),
    )


async def _check_place(connection: Connection, home: ConnectionPlace, database: DependentDatabase) -> None:
    """A pooler may connect to another server, and database settings may change the acting role. Raises PgRoleError."""
    place = await find_place(connection)
    if not place.is_on(home):
        raise Waiting(
            Reason.DROP_BLOCKED,
            f"the same address leads to another server for this database: {NAME_ONE_SERVER}",
        )
    if place.acting_role != home.acting_role:
        raise Waiting(
            Reason.DROP_BLOCKED, "its settings make the controller act as another role: ALTER DATABASE … RESET role"
        )
    if place.database != database.oid:
        raise Transient(Reason.PROGRESSING, "it was renamed in the meantime")


async def _check_triggers(connection: Connection) -> None:
    """Raises Waiting if an event trigger would run a function of another role with the controller's privileges."""
    names = ", ".join(f'"{row.text("name")}"' for row in await ask(connection, "triggers"))
    if names:
        raise Waiting(
            Reason.DROP_BLOCKED,
            f"an event trigger would run a function of another role with the controller's privileges: {names}. "
            "Reassign the function to a superuser, or ALTER EVENT TRIGGER … DISABLE",
        )


async def empty_database(emptying: RoleEmptying, connection: Connection, *, drop: bool) -> None:
    """Reassigns what the role owns. `drop`: then revokes its privileges, once it owns nothing."""
    reason = ""
    for _ in range(ROUNDS):
        try:
            if await _reassign(emptying, connection):
                continue  # check again with a new snapshot
            if drop:
                await execute(emptying, connection, "revoke_delegated")
                await execute(emptying, connection, "drop_owned")
        except PgRoleError as error:
            if sqlstate_of(error) not in _RETRYABLE:
                raise
            reason = f" ({error.message})"
        else:
            return
    words = "sessions keep making changes as the role: end the sessions that ran SET ROLE to it"
    raise Waiting(Reason.DROP_BLOCKED, words + reason)


async def _reassign(emptying: RoleEmptying, connection: Connection) -> bool:
    """Reassigns everything that the role owns in this database; returns whether there was anything."""
    relations: int | None = None
    while True:
        row = first(await ask(connection, "owned", emptying.task.oid))
        count = row.get("relations", int)
        if not row.get("anything", bool):
            return relations is not None
        if count <= emptying.piece or (relations is not None and count >= relations):
            break
        relations = count
        await execute(emptying, connection, "reassign_some")
    await execute(emptying, connection, "reassign")
    return True


async def execute(emptying: RoleEmptying, connection: Connection, name: str) -> None:
    """Runs one file in one message, which is one transaction. The task can be cancelled only before it."""
    await emptying.check_lead()
    await anyio.lowlevel.checkpoint()
    with translate_errors("reassign"), anyio.fail_after(STATEMENT_SECONDS, shield=True):
        await connection.execute(reassign_sql(name))


@cache
def reassign_sql(name: str) -> str:
    return resources.text("sql", "reassign", f"{name}.sql")


async def ask(connection: Connection, name: str, *arguments: object) -> list[Row]:
    """The rows of a question in sql/reassign. Raises PgRoleError."""
    return await fetch(connection, reassign_sql(name), *arguments, label="reassign", reason=Reason.SERVER_NOT_READY)


@asynccontextmanager
async def refusing(task: ReassignOwned, *, lacking: str = "") -> AsyncIterator[None]:
    """Reports errors of statements on shared objects as blockers: raises Waiting. `lacking`: the remedy for a missing
    privilege, where it is another one.
    """
    try:
        with translate_errors("reassign"):
            yield
    except PgRoleError as error:
        raise blocked(task.role, [Blocker("", _describe_blocker(error, lacking))]) from error


def _describe_closed(error: PgRoleError, endpoint: Endpoint, database: str) -> str:
    """The text of a blocker: why the controller cannot connect to this database, unlike to the home database. Raises
    the error itself if it concerns the whole server.
    """
    explained = explain(error, database, login_of(endpoint))
    if explained is not error:
        return explained.message
    if sqlstate_of(error) or all(code.startswith(_OF_THE_SERVER) for code in find_sqlstates(error)):
        return _describe_blocker(error)
    return error.message


def _describe_blocker(error: PgRoleError, lacking: str = "") -> str:
    """The text of a blocker. Raises the error itself if it concerns the whole server."""
    code = sqlstate_of(error)
    if error.reason != Reason.DROP_BLOCKED and (not code or code.startswith(_OF_THE_SERVER)):
        raise error
    remedy = lacking if lacking and code == _LACKING else _REMEDIES.get(code)
    return f"{error.message} ({remedy})" if remedy else error.message
