"""One connection to one database whose privileges are managed: installs its part of schema pgrole, takes the lead there,
detects changes, and serves the worker's reads and writes.

The same connection LISTENs and works: notifications that arrive during a transaction are delivered at its end. Without
the installed part, a fingerprint of all privileges is read every interval.

Guarantees: nothing is written unless this process leads in this database; what was committed while no session existed
is never missed, since the worker reads everything when a session begins.
"""

import json
import logging
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import NoReturn

import anyio

from pgrole_controller import resources
from pgrole_controller.core.database_options import DatabaseMode
from pgrole_controller.core.errors import PgRoleError, Reason, Refused, Transient, Waiting
from pgrole_controller.postgres.capabilities import Identity, identify
from pgrole_controller.postgres.connection import Connection, Endpoint, connect
from pgrole_controller.postgres.ddl_events import EVERYTHING, EventReader, Look
from pgrole_controller.postgres.errors import convert_unexpected, is_lacking, shorten, translate_errors
from pgrole_controller.postgres.fence import Candidate, Fence, lead_while_away, take_lead
from pgrole_controller.postgres.framing import NotificationFilter
from pgrole_controller.postgres.protocol import protocol_of, reason_of
from pgrole_controller.postgres.rows import fetch, fetch_row, first
from pgrole_controller.postgres.watch import CHANNEL, NotDelivered, greeting

log = logging.getLogger(__name__)

#: Between two looks at the events where no notification can be sent, in seconds.
TICK_SECONDS = 0.05
#: Between two heartbeats, in seconds, and the deadline of each.
BEAT_SECONDS = 5.0
_DEADLINE = 3.0
_FINGERPRINT_SECONDS = 15.0
_GREETING_SECONDS = 5.0
#: Where events are in place: seconds between two fingerprints, in case a trigger was disabled.
BACKSTOP_SECONDS = 60.0

_DATABASE_MISSING = "3D000"
_NOT_ACCEPTING = "55000"
_FORBIDDEN = "42501"
_FULL = "53300"


@dataclass(frozen=True, slots=True)
class InstalledPart:
    """What of schema pgrole is in a database.

    `present`: leader, applied digests and history are kept there. `armed`: its event triggers record changes. `guarded`
    as in DatabaseClaims. `why`: why anything is missing, for people. `blocked`: why nothing may be written there.
    """

    present: bool = False
    armed: bool = False
    guarded: bool = False
    why: str = ""
    blocked: PgRoleError | None = None


def _nothing() -> None:
    pass


@dataclass(slots=True)
class DatabaseSession:
    """`mode` is never Auto. `fence` None: no other process can lead. Hold `lock` while using `connection`."""

    database: str
    home: str
    connection: Connection
    identity: Identity
    part: InstalledPart
    mode: DatabaseMode
    fence: Fence | None
    interval: float = 1.0
    on_notice: Callable[[], None] = _nothing
    lock: anyio.Lock = field(default_factory=anyio.Lock)
    looked: datetime | None = None
    _reader: EventReader | None = None
    _tick: bool = False
    _fingerprints: "_Fingerprints | None" = None
    _changed: bool = False

    async def look(self) -> Look:
        """What was changed since the last call. Raises PgRoleError."""
        changed, self._changed = self._changed, False
        look = EVERYTHING if changed else Look()
        if self._reader is not None:
            async with self.lock:
                look |= await self._reader.read()
        return look

    async def is_suspended(self) -> bool:
        """Whether a superuser has suspended all changes, here or in the home database. Hold the lock."""
        query = resources.text("sql", "events", "suspended.sql")
        row = await fetch_row(self.connection, "suspended", query, self.home, seconds=_DEADLINE)
        return row.get("suspended", bool)

    async def run(self) -> NoReturn:
        """Detects changes and keeps the lead. Raises PgRoleError when the session fails."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._await_end)
            tasks.start_soon(self._beat)
            if self._tick:
                tasks.start_soon(self._look_often)
            if self._fingerprints is not None:
                tasks.start_soon(self._compare, self._fingerprints)
        raise AssertionError("its tasks never return")

    async def _await_end(self) -> NoReturn:
        ended = anyio.Event()
        self.connection.add_termination_listener(lambda _connection: ended.set())
        if not self.connection.is_closed():
            await ended.wait()
        reason = reason_of(self.connection)
        why = f": {shorten(str(reason))}" if reason else ""
        raise Transient(Reason.SERVER_NOT_READY, f"the connection to the database ended{why}")

    async def _beat(self) -> NoReturn:
        """A lost connection receives nothing and raises no error by itself."""
        while True:
            async with self.lock:
                if self.fence is not None and (self.fence.is_leading() or self.fence.enforcing):
                    await self.fence.beat(self.connection)
                query = "SELECT channel FROM pg_catalog.pg_listening_channels() AS l (channel)"
                channels = await fetch(self.connection, "heartbeat", query, seconds=_DEADLINE)
            if self.mode is DatabaseMode.EVENTS and not self._tick:
                if CHANNEL not in {row.get("channel", str) for row in channels}:
                    raise Transient(Reason.SERVER_NOT_READY, "the connection to the database no longer listens")
            await anyio.sleep(BEAT_SECONDS)

    async def _look_often(self) -> NoReturn:
        """Where a notification would break PREPARE TRANSACTION."""
        before = ""
        query = resources.text("sql", "events", "snapshot.sql")
        while True:
            async with self.lock:
                row = await fetch_row(self.connection, "events", query, seconds=_DEADLINE)
            snapshot = row.get("snapshot", str)
            if snapshot != before:
                before = snapshot
                self.on_notice()
            await anyio.sleep(TICK_SECONDS)

    async def _compare(self, fingerprints: "_Fingerprints") -> NoReturn:
        pause = BACKSTOP_SECONDS if self.mode is DatabaseMode.EVENTS else self.interval
        while True:
            await anyio.sleep(pause)
            began = anyio.current_time()
            async with self.lock:
                changed = await fingerprints.compare()
            if changed and self.mode is DatabaseMode.POLL:
                self._changed = True
                self.on_notice()
            # At most about 2 % of the time, however large the catalog is.
            if self.mode is DatabaseMode.POLL:
                pause = max(self.interval, 50 * (anyio.current_time() - began))


class _Fingerprints:
    """Compares each fingerprint of all privileges with the previous one."""

    def __init__(self, connection: Connection, identity: Identity) -> None:
        self._connection = connection
        self._started_at = identity.started_at
        self._key = secrets.randbits(64) - 2**63
        self._snapshot: str | None = None
        self._fingerprint: int | None = None

    async def compare(self) -> bool:
        """Whether it differs from the last one; False the first time. Raises PgRoleError."""
        query = resources.text("sql", "events", "fingerprint.sql")
        rows = await fetch(
            self._connection,
            "fingerprint",
            query,
            self._snapshot,
            self._key,
            seconds=_FINGERPRINT_SECONDS,
            reason=Reason.SERVER_NOT_READY,
        )
        row = first(rows)
        if row.get("in_recovery", bool) or row.get("started_at", datetime) != self._started_at:
            raise Transient(Reason.SERVER_NOT_READY, "a different server answers on the same address")
        before, known = self._fingerprint, self._snapshot is not None
        self._snapshot = row.get("snapshot", str)
        found = row.find("fingerprint", int)
        if found is None:
            return False
        self._fingerprint = found
        return known and found != before


@asynccontextmanager
async def open_database(
    endpoint: Endpoint,
    database: str,
    home: str,
    server: Identity,
    *,
    detection: DatabaseMode,
    interval: float,
    may_install: bool,
    candidate: Candidate | None,
    on_notice: Callable[[], None],
) -> AsyncIterator[DatabaseSession]:
    """A session with one database of the server that `server` identifies. `home`: the name of the home database.

    `on_notice` is called when something may have changed. Raises PgRoleError if the session cannot begin; what is wrong
    with the database itself is Waiting or names the remedy.
    """
    with convert_unexpected():
        async with _connect(endpoint.at(database), database) as connection:
            identity = await _identify(connection, database)
            if not identity.is_same_server(server):
                raise Transient(Reason.SERVER_NOT_READY, f'database "{database}" is on a different server')
            await _silence_triggers(connection, identity)
            part = await prepare_part(connection, may_install=may_install)
            fence = await _lead(connection, candidate, part)
            session = DatabaseSession(
                database, home, connection, identity, part, DatabaseMode.RESYNC, fence, interval, on_notice
            )
            await _detect(session, detection)
            yield session


async def prepare_part(connection: Connection, *, may_install: bool) -> InstalledPart:
    """Installs the database's part of schema pgrole if that is allowed. Raises PgRoleError if the server fails."""
    raise NotImplementedError


@asynccontextmanager
async def _connect(endpoint: Endpoint, database: str) -> AsyncIterator[Connection]:
    """Raises PgRoleError that is about the database where the database is at fault."""
    opened = False
    try:
        async with connect(endpoint, "database") as connection:
            opened = True
            yield connection
    except PgRoleError as error:
        if opened:
            raise
        raise explain(error, database) from error.__cause__


def explain(error: PgRoleError, database: str) -> PgRoleError:
    """An error of connecting to the database, for the objects that declare privileges there."""
    codes = _codes(error, set())
    if _DATABASE_MISSING in codes:
        return DatabaseMissing(database)
    if _NOT_ACCEPTING in codes:
        return Waiting(
            Reason.PRIVILEGE_PENDING, f'database "{database}" does not accept connections (ALLOW_CONNECTIONS false)'
        )
    if _FORBIDDEN in codes:
        return Transient(
            Reason.DATABASE_ERROR,
            f'the controller\'s role may not connect to database "{database}": GRANT CONNECT ON DATABASE "{database}" '
            "TO the controller's role",
        )
    if _FULL in codes:
        return Transient(
            Reason.DATABASE_ERROR, f'the controller cannot connect to database "{database}": {error.message}'
        )
    return error


class DatabaseMissing(Waiting):
    """The database does not exist: nothing can be granted there, and nothing is left to revoke."""

    def __init__(self, database: str) -> None:
        super().__init__(Reason.PRIVILEGE_PENDING, f'database "{database}" does not exist')


def _codes(error: BaseException | None, within: set[int]) -> set[str]:
    """SQLSTATEs of an error and its causes."""
    if error is None or id(error) in within:
        return set()
    within.add(id(error))
    found = {str(getattr(error, "sqlstate", None) or "")}
    if isinstance(error, BaseExceptionGroup):
        found |= {code for one in error.exceptions for code in _codes(one, within)}
    return (found | _codes(error.__cause__, within)) - {""}


async def _identify(connection: Connection, database: str) -> Identity:
    try:
        return await identify(connection)
    except PgRoleError as error:
        if connection.is_closed():
            raise
        raise type(error)(error.reason, error.message.replace("the home database", f'database "{database}"')) from error


async def _silence_triggers(connection: Connection, identity: Identity) -> None:
    """The controller's changes fire no event trigger of others where a role may decide that."""
    if identity.superuser and identity.version_number >= 170_000:
        with translate_errors():
            await connection.execute("SET event_triggers = off")


async def _lead(connection: Connection, candidate: Candidate | None, part: InstalledPart) -> Fence | None:
    if candidate is None:
        return None
    if not candidate.is_leading() and part.present and candidate.away() > 0.0:
        fence = await lead_while_away(connection, candidate, guarded=part.guarded)
        if fence is None:
            raise Transient(Reason.PROGRESSING, "another process leads in this database")
        return fence
    return await take_lead(connection, candidate, guarded=part.guarded, fencing=part.present)


async def _detect(session: DatabaseSession, detection: DatabaseMode) -> None:
    """Begins the best possible mode. Raises PgRoleError, also if a requested mode is not possible."""
    if detection is DatabaseMode.RESYNC:
        return
    fingerprints = _Fingerprints(session.connection, session.identity)
    if detection in (DatabaseMode.AUTO, DatabaseMode.EVENTS):
        if session.part.armed:
            try:
                await _begin_events(session)
            except NotDelivered:
                if detection is DatabaseMode.EVENTS:
                    raise
            else:
                session.mode = DatabaseMode.EVENTS
                return
        elif detection is DatabaseMode.EVENTS:
            raise Refused(
                Reason.DATABASE_ERROR, f"spec.databases.detection: Events is not possible: {session.part.why}"
            )
    await fingerprints.compare()
    session.mode, session._fingerprints = DatabaseMode.POLL, fingerprints  # noqa: SLF001 -- its own class


async def _begin_events(session: DatabaseSession) -> None:
    """LISTENs before the first snapshot, so that nothing falls between."""
    connection = session.connection
    with translate_errors():
        prepared = await connection.fetchval("SELECT current_setting('max_prepared_transactions')")
    if prepared == "0":
        await _listen(session)
    else:
        session._tick = True  # noqa: SLF001 -- its own class
    reader = EventReader(connection)
    await reader.begin()
    session._reader = reader  # noqa: SLF001 -- its own class


async def _listen(session: DatabaseSession) -> None:
    """LISTENs, and verifies that notifications arrive, which a pooler may prevent. Raises NotDelivered."""
    connection, token = session.connection, secrets.token_hex(8)
    greeted, hello = anyio.Event(), greeting(token)
    with translate_errors():
        own: int = await connection.fetchval("SELECT pg_catalog.pg_backend_pid()")

        def receive(noted: list[tuple[int, bytes]], left_out: bool) -> None:
            if any(payload == hello.encode() for _, payload in noted):
                greeted.set()
            if left_out or any(pid != own for pid, _ in noted):
                session.on_notice()

        protocol_of(connection).listen(NotificationFilter(CHANNEL, own, receive))
        await connection.execute(f"LISTEN {CHANNEL}")
        await connection.execute("SELECT pg_catalog.pg_notify($1, $2)", CHANNEL, hello)
    with anyio.move_on_after(_GREETING_SECONDS):
        await greeted.wait()
        return
    raise NotDelivered(
        Reason.SERVER_NOT_READY,
        "notifications do not arrive: connect to the server itself, not through a pooler in transaction mode",
    )
