"""Empties a role before it is dropped: ends its sessions, reassigns its objects, revokes its privileges.

It works in every database that depends on the role, on its own connections, so that the worker does not wait: one to
the home database, and one at a time to the others. Every step can be repeated. No object is dropped: objects that a
session creates as the role in the meantime are reassigned as well, or the role stays.

Expected flow: NOLOGIN was committed before. Sessions end; REASSIGN OWNED runs in each database; if no database has a
blocker, the memberships that the role granted are revoked, and DROP OWNED revokes its privileges in each database. Its
members stay until DROP ROLE. Blockers of all databases are reported together.
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import cache, partial
from typing import TypeAlias

import anyio
import anyio.lowlevel
import asyncpg

from pgrole_controller import resources
from pgrole_controller.core.errors import PgRoleError, Reason, Transient, Waiting
from pgrole_controller.core.plan import Blocker, ReassignOwned, blocked, check_new_owner
from pgrole_controller.postgres import queries
from pgrole_controller.postgres.connection import Connection, Endpoint, connect
from pgrole_controller.postgres.errors import CHANGES_SUSPENDED, NOT_LEADING, translate_errors
from pgrole_controller.postgres.fence import Fence

log = logging.getLogger(__name__)

#: Time limit in seconds for one role in all databases, since other roles wait. Completed steps remain, and the next
#: attempt continues.
REASSIGN_SECONDS = 20.0
#: How long to wait for terminated sessions to end, in seconds.
SESSIONS_SECONDS = 5.0
_SESSIONS_EVERY = 0.05
#: Deadline of a statement that is not interrupted, in seconds: longer than its statement_timeout.
STATEMENT_SECONDS = 12.0
_TIMEOUTS = {"statement_timeout": "10s", "lock_timeout": "2s", "client_min_messages": "error"}
#: Tables, views and sequences reassigned in one transaction: each takes several locks.
PIECE = 300
#: Maximum rounds in one database, if sessions keep creating objects as the role.
ROUNDS = 8

#: Raised by sql/reassign if an object was created as the role or renamed since it was read: nothing was changed.
MADE_MEANWHILE = "PGR03"

#: SQLSTATEs after which another round makes sense: an object was created, altered or dropped concurrently.
_RETRYABLE = {MADE_MEANWHILE, "XX000", "40001", "40P01", "3F000", "42704", "42P01"}
_DATABASE_IS_GONE = "3D000"
#: Prefixes of SQLSTATEs that concern the server or the connection, not one database.
_OF_THE_SERVER = ("08", "53300", "57P", "PGR01", NOT_LEADING, CHANGES_SUSPENDED)
_REMEDIES = {
    "2BP01": "objects of other roles depend on it",
    "42501": "the controller needs the privileges of both roles, and CONNECT on the database",
    "53200": "too many objects for one transaction: raise max_locks_per_transaction",
}


CheckLead: TypeAlias = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class _Emptying:
    """The state shared by all databases. `place`: of the connection to the home database.

    `check_lead` raises PgRoleError unless this process still leads. `blockers`: those found so far.
    """

    endpoint: Endpoint
    task: ReassignOwned
    settings: dict[str, str]
    place: "_Place"
    check_lead: CheckLead
    blockers: list[Blocker]


@dataclass(frozen=True, slots=True)
class _Place:
    """The server, database and acting role of a connection: a row of sql/reassign/place.sql."""

    system_identifier: int
    started_at: datetime
    acting_role: int
    database: int


@dataclass(frozen=True, slots=True)
class _Database:
    oid: int
    name: bytes
    connectable: bool
    invalid: bool

    @property
    def shown(self) -> str:
        return _show(self.name)


async def reassign_owned(
    endpoint: Endpoint, task: ReassignOwned, deadline: float = REASSIGN_SECONDS, fence: Fence | None = None
) -> None:
    """Returns when the role has no sessions and, with a new owner, owns nothing and has no privileges.

    `endpoint`: the home database. `deadline`: total seconds. Before each step it verifies with `fence` that this
    process still leads; transactions in other databases cannot verify it themselves, without schema pgrole. Raises
    Waiting (DropBlocked) with the blockers by database; Transient if the server is not ready, the role has changed, or
    the deadline has passed.
    """
    check_new_owner(task)
    blockers: list[Blocker] = []
    with anyio.move_on_after(deadline):
        async with connect(endpoint, "disown", **_TIMEOUTS, **{"pgrole.role": str(task.oid)}) as home:
            check_lead = partial(_check_lead, home, fence)
            new_owner = await _find_new_owner(home, task)
            await _end_sessions(home, task, check_lead)
            if task.new_owner is not None:
                await _empty(home, await _prepare(home, endpoint, task, new_owner, check_lead, blockers))
        log.info(
            "owned objects reassigned and privileges revoked", extra={"role": task.role, "new_owner": task.new_owner}
        )
        return
    if blockers:
        raise blocked(task.role, blockers)
    raise Transient(
        Reason.PROGRESSING,
        f'role "{task.role}" still owns objects after {deadline:.0f} s; the controller continues in the next attempt',
    )


async def _check_lead(home: Connection, fence: Fence | None) -> None:
    if fence is not None:
        await fence.check(home)
    with translate_errors("disown"):
        await home.execute(queries.without_schema("check_not_suspended"))


async def _prepare(
    home: Connection,
    endpoint: Endpoint,
    task: ReassignOwned,
    new_owner: int | None,
    check_lead: CheckLead,
    blockers: list[Blocker],
) -> _Emptying:
    oids = {"pgrole.role": str(task.oid), "pgrole.new_owner": str(new_owner), "pgrole.piece": str(PIECE)}
    return _Emptying(endpoint, task, {**_TIMEOUTS, **oids}, await _find_place(home), check_lead, blockers)


async def _find_new_owner(home: Connection, task: ReassignOwned) -> int | None:
    rows = await _query(home, _sql("roles"), task.oid, task.role, task.new_owner or "")
    with _reading():
        is_named, new_owner = bool(rows[0]["is_named"]), _number(rows[0]["new_owner"])
    if not is_named:
        raise Transient(Reason.PROGRESSING, f'role "{task.role}" changed since the controller read it')
    if task.new_owner is not None and new_owner is None:
        raise blocked(task.role, [Blocker("", f'spec.reassignOwnedTo: role "{task.new_owner}" does not exist')])
    if task.new_owner_oid not in (None, new_owner):
        raise Transient(Reason.PROGRESSING, f'role "{task.new_owner}" changed since the controller read it')
    return new_owner


async def _end_sessions(home: Connection, task: ReassignOwned, check_lead: CheckLead) -> None:
    """Raises Waiting while the role has sessions or prepared transactions."""
    count = await _count_sessions(home, task)
    ends = anyio.current_time() + SESSIONS_SECONDS
    while count and task.terminate and anyio.current_time() < ends:
        await check_lead()
        async with _refusing(task):
            await home.execute(_sql("terminate"), task.oid)
        await anyio.sleep(_SESSIONS_EVERY)
        count = await _count_sessions(home, task)
    blockers: list[Blocker] = []
    if count:
        remedy = (
            "terminated, but not yet ended" if task.terminate else "to terminate them, set spec.terminateSessions: true"
        )
        blockers.append(Blocker("", f"open sessions of the role: {count} ({remedy})"))
    rows = await _query(home, _sql("prepared"), task.oid)
    with _reading():
        blockers.extend(
            Blocker(
                _show(row["database"]),
                f'its prepared transaction "{_show(row["gid"])}" is open: commit it or roll it back',
            )
            for row in rows
        )
    if blockers:
        raise blocked(task.role, blockers)


async def _count_sessions(home: Connection, task: ReassignOwned) -> int:
    rows = await _query(home, queries.inspect("sessions"), [task.oid])
    with _reading():
        return sum(int(row["count"]) for row in rows)


async def _empty(home: Connection, emptying: _Emptying) -> None:
    await _run_in_each(home, emptying, partial(_empty_database, emptying, drop=False))
    async with _refusing(emptying.task):
        await _execute(emptying, home, "revoke_given")
    await _run_in_each(home, emptying, partial(_empty_database, emptying, drop=True))
    await _check_left(home, emptying.task)


async def _run_in_each(home: Connection, emptying: _Emptying, work: Callable[[Connection], Awaitable[None]]) -> None:
    """Runs `work` in each database that depends on the role. Raises Waiting with all blockers."""
    rows = await _query(home, _sql("databases"), emptying.task.oid)
    with _reading():
        databases = [
            _Database(int(row["oid"]), _octets(row["name"]), bool(row["connectable"]), bool(row["invalid"]))
            for row in rows
        ]
    emptying.blockers.clear()
    for database in databases:
        words = _why_unreachable(database) or await _run_in(home, emptying, database, work)
        if words:
            emptying.blockers.append(Blocker(database.shown, words))
    if emptying.blockers:
        raise blocked(emptying.task.role, emptying.blockers)


def _why_unreachable(database: _Database) -> str | None:
    """Why the controller cannot connect to a database, with a remedy; None if no reason is known beforehand."""
    if database.invalid:
        return "its DROP DATABASE was interrupted: run DROP DATABASE again"
    if not database.connectable:
        return "it depends on the role but accepts no connections: ALTER DATABASE … ALLOW_CONNECTIONS true, or drop it"
    try:
        database.name.decode()
    except UnicodeDecodeError:
        return (
            "it depends on the role but its name is not UTF-8: rename it, or run REASSIGN OWNED and DROP OWNED by hand"
        )
    return None


async def _run_in(
    home: Connection, emptying: _Emptying, database: _Database, work: Callable[[Connection], Awaitable[None]]
) -> str | None:
    """The blocker in one database; None if there is none. Raises errors that concern the whole server."""
    try:
        return await _try(home, emptying, database, work)
    except Transient:
        # DROP DATABASE terminates connections before it commits; a new connection waits for the commit
        log.info("connecting to the database again", extra={"database": database.shown})
        return await _try(home, emptying, database, work)


async def _try(
    home: Connection, emptying: _Emptying, database: _Database, work: Callable[[Connection], Awaitable[None]]
) -> str | None:
    try:
        there = emptying.endpoint.at(database.name.decode())
        with _decoding_errors():
            async with connect(there, "disown", **emptying.settings) as connection:
                await _check_place(connection, emptying.place, database)
                await _check_triggers(connection)
                await work(connection)
    except PgRoleError as error:
        if _sqlstate(error) == _DATABASE_IS_GONE or not await _exists(home, database):
            return None
        return _words(error)
    return None


async def _exists(home: Connection, database: _Database) -> bool:
    query = "SELECT EXISTS (SELECT FROM pg_catalog.pg_database WHERE oid = $1) AS found"
    rows = await _query(home, query, database.oid)
    with _reading():
        return bool(rows[0]["found"])


async def _find_place(connection: Connection) -> _Place:
    rows = await _query(connection, _sql("place"))
    with _reading():
        row = rows[0]
        return _Place(int(row["system_identifier"]), row["started_at"], int(row["acting_role"]), int(row["database"]))


async def _check_place(connection: Connection, home: _Place, database: _Database) -> None:
    """A pooler may connect to another server, and database settings may change the acting role. Raises PgRoleError."""
    place = await _find_place(connection)
    if (place.system_identifier, place.started_at) != (home.system_identifier, home.started_at):
        raise Waiting(Reason.DROP_BLOCKED, "the same address leads to another server for this database")
    if place.acting_role != home.acting_role:
        raise Waiting(
            Reason.DROP_BLOCKED, "its settings make the controller act as another role: ALTER DATABASE … RESET role"
        )
    if place.database != database.oid:
        raise Transient(Reason.PROGRESSING, "it was renamed in the meantime")


async def _check_triggers(connection: Connection) -> None:
    """Raises Waiting if an event trigger would run a function of another role with the controller's privileges."""
    rows = await _query(connection, _sql("triggers"))
    with _reading():
        names = ", ".join(f'"{_show(row["name"])}"' for row in rows)
    if names:
        raise Waiting(
            Reason.DROP_BLOCKED,
            f"an event trigger would run a function of another role with the controller's privileges: {names}. "
            "Reassign the function to a superuser, or ALTER EVENT TRIGGER … DISABLE",
        )


async def _empty_database(emptying: _Emptying, connection: Connection, *, drop: bool) -> None:
    """Reassigns what the role owns. `drop`: then revokes its privileges, once it owns nothing."""
    reason = ""
    for _ in range(ROUNDS):
        try:
            if await _reassign(emptying, connection):
                continue  # check again with a new snapshot
            if drop:
                await _execute(emptying, connection, "drop_owned")
        except PgRoleError as error:
            if _sqlstate(error) not in _RETRYABLE:
                raise
            reason = f" ({error.message})"
        else:
            return
    words = "sessions keep making changes as the role: end the sessions that ran SET ROLE to it"
    raise Waiting(Reason.DROP_BLOCKED, words + reason)


async def _reassign(emptying: _Emptying, connection: Connection) -> bool:
    """Reassigns everything that the role owns in this database; returns whether there was anything."""
    relations: int | None = None
    while True:
        rows = await _query(connection, _sql("owned"), emptying.task.oid)
        with _reading():
            anything, count = bool(rows[0]["anything"]), int(rows[0]["relations"])
        if not anything:
            return relations is not None
        if count <= PIECE or (relations is not None and count >= relations):
            break
        relations = count
        await _execute(emptying, connection, "reassign_some")
    await _execute(emptying, connection, "reassign")
    return True


async def _check_left(home: Connection, task: ReassignOwned) -> None:
    """Raises Waiting for new dependencies on the role, committed or in open transactions."""
    dependents = await _query(home, queries.inspect("dependents"), [task.oid])
    open_transactions = await _query(home, _sql("makers"), task.oid)
    with _reading():
        blockers = [
            Blocker(
                str(row["database"]),
                f"{row['count'] - row['members']} new dependencies on the role appeared in the meantime",
            )
            for row in dependents
            if row["count"] > row["members"]
        ]
        for row in open_transactions:
            who = f"the open transaction of process {int(row['pid'])}" if row["pid"] else "a prepared transaction"
            blockers.append(Blocker(_show(row["database"] or b""), f"{who} is about to depend on the role"))
    if blockers:
        raise blocked(task.role, blockers)


async def _execute(emptying: _Emptying, connection: Connection, name: str) -> None:
    """Runs one file in one message, which is one transaction. The task can be cancelled only before it."""
    await emptying.check_lead()
    await anyio.lowlevel.checkpoint()
    with translate_errors("disown"), _decoding_errors(), anyio.fail_after(STATEMENT_SECONDS, shield=True):
        await connection.execute(_sql(name))


@asynccontextmanager
async def _refusing(task: ReassignOwned) -> AsyncIterator[None]:
    """Reports errors of statements on shared objects as blockers: raises Waiting."""
    try:
        with translate_errors("disown"), _decoding_errors():
            yield
    except PgRoleError as error:
        raise blocked(task.role, [Blocker("", _words(error))]) from error


def _words(error: PgRoleError) -> str:
    """The text of a blocker. Raises the error itself if it concerns the whole server."""
    code = _sqlstate(error)
    if error.reason != Reason.DROP_BLOCKED and (code is None or code.startswith(_OF_THE_SERVER)):
        raise error
    remedy = _REMEDIES.get(code or "")
    return f"{error.message} ({remedy})" if remedy else error.message


def _sqlstate(error: PgRoleError) -> str | None:
    code = getattr(error.__cause__, "sqlstate", None)
    return code if isinstance(code, str) else None


@cache
def _sql(name: str) -> str:
    return resources.text("sql", "reassign", f"{name}.sql")


async def _query(connection: Connection, query: str, *arguments: object) -> list[asyncpg.Record]:
    """The rows of a query; read their values within `_reading`."""
    with translate_errors("disown"), _reading():
        return list(await connection.fetch(query, *arguments))


@contextmanager
def _reading() -> Iterator[None]:
    """Raises Transient for an answer that does not have the expected form: the server is at fault."""
    try:
        yield
    except asyncpg.InterfaceError:  # some are ValueErrors as well
        raise
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, AssertionError) as error:
        kind = type(error).__name__
        raise Transient(Reason.SERVER_NOT_READY, f"the controller cannot read the server's answer ({kind})") from error


@contextmanager
def _decoding_errors() -> Iterator[None]:
    """Raises Waiting for an error message that is not UTF-8, since it may quote a name in another encoding."""
    try:
        yield
    except UnicodeDecodeError as error:
        words = "PostgreSQL's error message is in an encoding that cannot be read: run REASSIGN OWNED there by hand"
        raise Waiting(Reason.DROP_BLOCKED, words) from error


def _number(value: object) -> int | None:
    return None if value is None else int(str(value))


def _octets(value: object) -> bytes:
    if not isinstance(value, bytes):  # bytes(7) would be seven zero bytes
        raise TypeError(type(value).__name__)
    return value


def _show(name: bytes) -> str:
    """A name in any encoding; bytes that are not UTF-8 are escaped."""
    return name.decode(errors="backslashreplace")
