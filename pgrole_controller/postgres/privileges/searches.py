"""Searches for changes that no event tells. They read catalogs as a whole, so events must not wait for them.

Every 2 s, rows are asked for that a transaction wrote without an event. Once a minute, or every interval where no
events announce changes, a fingerprint of all privileges is compared with the last one: it differs whenever one of them
was changed. Where events announce changes, it shows what they missed, for example while a trigger was disabled. Most
differences then come from changes that events explain and that were read: these cause no further complete read.

Nothing announces the session's own changes where its event triggers are off, and a search would read them once more. So
a transaction that read back what it wrote notes its id in a setting of its own session, which no other session can
write, and which a transaction that fails does not change. A setting of the database or the role with that name is
overwritten when the session begins.

Caveat: it may only note its id if the objects were read for every role, had not changed since (`CHECK_EXPECTED`), and
were read back (`CHECK_EFFECT`). Otherwise the row would hide what others wrote to it before.
"""

import secrets
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Final, NoReturn, Protocol

import anyio

from pgrole_controller import resources
from pgrole_controller.core.errors import Reason
from pgrole_controller.postgres.backend_memory import forgetting
from pgrole_controller.postgres.capabilities import Identity
from pgrole_controller.postgres.connection import Connection
from pgrole_controller.postgres.errors import translate_errors
from pgrole_controller.postgres.privileges.ddl_events import (
    EVERYTHING,
    SCHEMA,
    WITH_PRIVILEGES,
    EventReader,
    PrivilegeRead,
    Scope,
    oldest_running,
)
from pgrole_controller.postgres.privileges.reading_connection import ReadingConnections, is_large
from pgrole_controller.postgres.rows import fetch, fetch_row, first
from pgrole_controller.postgres.trusted_schema import trusting

#: Seconds between two questions for writes that no event tells, and for events that no notification announced; and how
#: much of the time the searches for such writes take at most.
UNEXPLAINED_SECONDS, _UNEXPLAINED_SHARE = 2.0, 0.01
_UNEXPLAINED_DEADLINE = 5.0

_FINGERPRINT_DEADLINE = 15.0
#: Kinds of objects that can be dropped without an event.
_DROPPED = WITH_PRIVILEGES - {SCHEMA}

POLLING_SHARE = 0.02
LONGEST_PAUSE_SECONDS = 15.0
#: One slow poll says little of the next, so the fastest of this many counts.
_POLLS = 3

#: Number of ids that are kept. Those beyond are read again.
_MOST_NOTED = 1000
_SETTING = "pgrole.own_transactions"

#: As the last statement of a transaction.
NOTE_OWN_TRANSACTION: Final = (
    f"SELECT pg_catalog.set_config('{_SETTING}', pg_catalog.array_to_string((ARRAY["
    "pg_catalog.pg_current_xact_id()::xid::text] || "
    f"pg_catalog.string_to_array(pg_catalog.current_setting('{_SETTING}', true), ','))[1:{_MOST_NOTED}], ','), false)"
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
    row = await fetch_row(connection, resources.text("sql", "events", "own_session.sql"))
    return OwnSession(
        row.get("snapshot", str), row.get("pid", int), row.get("transactions", str), row.get("bytes", int)
    )


async def forget_own_transactions(connection: Connection) -> None:
    """Call it when a session begins. Raises PgRoleError."""
    with translate_errors():
        await connection.execute(f"SELECT pg_catalog.set_config('{_SETTING}', '', false)")


@dataclass(slots=True)
class UnexplainedWrites:
    """Notices what no event tells: REASSIGN OWNED, and DDL while event triggers are off.

    A write is found again as long as a transaction runs that is older, and told once. `guarded`: as in EventReader.
    """

    connection: Connection
    snapshot: str
    guarded: bool
    _told: frozenset[int] = frozenset()

    async def ask(self, another: Connection | None = None, own: OwnSession | None = None) -> PrivilegeRead:
        """Returns what to read. `another`: to ask on that connection, `own`: for the session with that. Raises
        PgRoleError.
        """
        query = resources.text("sql", "events", "unexplained.sql")
        known = (own.transactions, own.pid, own.snapshot) if own is not None else (None, None, None)
        connection = another or self.connection
        async with trusting(connection, guarded=self.guarded):
            row = await fetch_row(
                connection, query, self.snapshot, *known, label="unexplained", seconds=_UNEXPLAINED_DEADLINE
            )
        before, self.snapshot = self.snapshot, row.get("snapshot", str)
        found, told = frozenset(row.some("found", int)), self._told
        if before != self.snapshot:
            self._told = found
        if found <= told:
            return PrivilegeRead()
        return PrivilegeRead(Scope.RECENT, xid=oldest_running(before), defaults=True, searches=True)


class Fingerprints:
    """Compares each fingerprint of all privileges with the last one. `events`: events announce changes. `tables`: oids
    of those with declared columns, whose names count. `snapshot`: of the last one. `guarded`: as in EventReader.
    """

    def __init__(self, connection: Connection, identity: Identity, *, events: bool, guarded: bool) -> None:
        self.tables = frozenset[int]()
        self._connection = connection
        self._events = events
        self._guarded = guarded
        self._identity = identity
        self._key = secrets.randbits(64) - 2**63
        self.snapshot: str | None = None
        self._objects: int | None = None
        self._others: int | None = None

    async def compare(self, another: Connection | None = None, own: OwnSession | None = None) -> PrivilegeRead:
        """Returns what to read because it differs from the last one; nothing the first time. `another`, `own`: as in
        `UnexplainedWrites.ask`. Raises PgRoleError.

        With events: the recent rows, if events explain every row written since, and only relations, routines, columns,
        default privileges and the database differ. A row that was deleted leaves none.
        """
        with forgetting() if self._events else nullcontext():
            rows = await fetch(
                another or self._connection,
                resources.text("sql", "events", "fingerprint.sql"),
                self.snapshot,
                self._key,
                list(self.tables),
                label="fingerprint",
                seconds=_FINGERPRINT_DEADLINE,
                reason=Reason.SERVER_NOT_READY,
            )
        row = first(rows)
        self._identity.check_answer(row)
        # of the session, so that the next comparison considers what the session does meanwhile
        snapshot, self.snapshot = self.snapshot, row.get("snapshot", str) if own is None else own.snapshot
        if not row.find("computed", bool):
            return PrivilegeRead()
        before = self._objects, self._others
        self._objects, self._others = row.find("objects", int), row.find("others", int)
        if snapshot is None or before == (self._objects, self._others):
            return PrivilegeRead()
        if not self._events or before[1] != self._others:
            return EVERYTHING
        unexplained = await UnexplainedWrites(self._connection, snapshot, self._guarded).ask(another, own)
        if unexplained.scope is not Scope.NOTHING:
            return EVERYTHING
        return PrivilegeRead(Scope.RECENT, xid=oldest_running(snapshot), defaults=True, dropped=_DROPPED, searches=True)


class CatalogSearch(Protocol):
    """`another`, `own`: as in `UnexplainedWrites.ask`."""

    def __call__(
        self, another: Connection | None = None, own: OwnSession | None = None
    ) -> Awaitable[PrivilegeRead]: ...


@dataclass(frozen=True, slots=True)
class Searches:
    """Runs them for the session with this connection and lock."""

    connection: Connection
    lock: anyio.Lock
    reading: ReadingConnections

    async def run(self, search: CatalogSearch, since: str | None) -> tuple[PrivilegeRead, float]:
        """Returns what to read, and the seconds that it took to find out. `since`: the snapshot of the last answer;
        while it lasts, there is nothing to find. If the database is large and accepts another connection, the lock is
        free meanwhile. Raises PgRoleError.
        """
        async with self.lock:
            own = await read_own_session(self.connection)
            if own.snapshot == since:
                return PrivilegeRead(), 0.0
            if not is_large(own.bytes):
                return await _time(search())
        async with self.reading.open() as another:
            if another is not None:
                return await _time(search(another, own))
        async with self.lock:
            return await _time(search())

    async def watch_unexplained(
        self,
        writes: UnexplainedWrites,
        reader: EventReader,
        on_notice: Callable[[], None],
        read_again: Callable[[PrivilegeRead], None],
    ) -> NoReturn:
        """Notices writes without an event, and events without a notification, until cancelled. Raises PgRoleError.

        The event trigger sends no notification while PostgreSQL's queue is half full. While no transaction ends,
        nothing but the snapshot is read.
        """
        while True:
            to_read, took = await self.run(writes.ask, writes.snapshot)
            if to_read.is_needed:
                read_again(to_read)
            if writes.snapshot != reader.snapshot:
                on_notice()
            search_at = anyio.current_time() + took / _UNEXPLAINED_SHARE
            await anyio.sleep(UNEXPLAINED_SECONDS)
            while anyio.current_time() < search_at:
                async with self.lock:
                    snapshot = (await read_own_session(self.connection)).snapshot
                if snapshot != reader.snapshot:
                    on_notice()
                await anyio.sleep(UNEXPLAINED_SECONDS)


async def _time(answer: Awaitable[PrivilegeRead]) -> tuple[PrivilegeRead, float]:
    began = anyio.current_time()
    return await answer, anyio.current_time() - began


def pause_after(took: float, interval: float) -> float:
    """All in seconds."""
    return min(max(interval, took / POLLING_SHARE), max(interval, LONGEST_PAUSE_SECONDS))


class PollPace:
    """The pauses between the polls of one database. `interval`: the shortest one, in seconds."""

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._recent = deque[float](maxlen=_POLLS)

    def pause_after(self, took: float) -> float:
        """`took`: the last poll, in seconds. The first ones plan their questions while everything is being granted."""
        self._recent.append(took)
        return self._interval if len(self._recent) < _POLLS else pause_after(min(self._recent), self._interval)
