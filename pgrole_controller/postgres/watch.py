"""Watch: schema pgrole notifies of every change. One connection LISTENs, another runs the procedure `watch`.

Any role that can connect can send any payload on channel `pgrole`, so payloads are not trusted, and reading one never
fails: a malformed payload names no roles, and a name only causes the declared role of that name to be read.

The session with a database LISTENs there too, for what its event triggers notify.
"""

import asyncio
import json
import logging
import math
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple, NoReturn, TypeAlias

import anyio

from pgrole_controller import resources
from pgrole_controller.core.errors import PgRoleError, Reason, Transient
from pgrole_controller.postgres import queries
from pgrole_controller.postgres.connection import Connection
from pgrole_controller.postgres.errors import sqlstate_of, translate_errors
from pgrole_controller.postgres.framing import NotificationFilter
from pgrole_controller.postgres.protocol import protocol_of
from pgrole_controller.postgres.rows import fetch, fetch_row

log = logging.getLogger(__name__)

CHANNEL = "pgrole"

#: All roles of the server, or all its databases.
EVERYTHING = None

#: Genuine payloads hold at most three names of 63 bytes, each byte written as up to six characters.
_LONGEST = 2000
_LONGEST_NAME = 63


#: Names of roles or databases, or EVERYTHING.
Names: TypeAlias = tuple[str, ...] | None


class ChangedNames(NamedTuple):
    """What one payload names. `renamed`: names that another role has now, or none."""

    roles: Names = ()
    renamed: Names = ()
    databases: Names = ()


def read_payload(payload: str) -> ChangedNames:
    """`{"op": "many"}` means all roles, `{"op": "databases"}` all databases; a malformed payload names nothing."""
    if len(payload) > _LONGEST:
        return ChangedNames()
    try:
        message = json.loads(payload)
    except (ValueError, RecursionError):
        return ChangedNames()
    if not isinstance(message, dict):
        return ChangedNames()
    op = message.get("op")
    databases = EVERYTHING if op == "databases" else _read(message, "database", "database_was")
    if op == "many":
        return ChangedNames(EVERYTHING, EVERYTHING, databases)
    is_about_a_name = "was" in message or op in ("insert", "delete")
    renamed = _read(message, "name", "was") if is_about_a_name else ()
    return ChangedNames(_read(message, "name", "was", "claim"), renamed, databases)


def _read(message: Mapping[str, object], *items: str) -> tuple[str, ...]:
    names = (message.get(item) for item in items)
    return tuple(name for name in names if isinstance(name, str) and len(name) <= _LONGEST_NAME)


#: Called with names, or with EVERYTHING.
OnNames: TypeAlias = Callable[[Names], None]


def _ignore(_names: Names) -> None:
    """An OnNames that does nothing."""


@dataclass(frozen=True, slots=True)
class ChangeCallbacks:
    """What a detection mode calls after changes.

    `on_role`: roles changed. `on_database`: databases were created, renamed or dropped, or have another owner or ACL;
    only Watch calls it. `on_rename`: another role has these names now, or none, after a role was created, renamed or
    dropped.
    """

    on_role: OnNames = _ignore
    on_database: OnNames = _ignore
    on_rename: OnNames = _ignore


def greeting(token: str) -> str:
    """The payload that verifies that notifications of the watch connection reach the listener."""
    return json.dumps({"op": "hello", "token": token})


#: Interval at which `watch` compares snapshots: the delay of detection, and the cost when idle.
TICK = "5 ms"
#: Duration of one call of `watch` in seconds; its caller then knows that the connection is alive.
WATCH_SECONDS = 30
_WATCH_DEADLINE = WATCH_SECONDS + 15.0

_GREETING_SECONDS = 5.0
_HEARTBEAT_SECONDS = 5.0
_HEARTBEAT_DEADLINE = 3.0
#: The server's clock was set back if it advanced by this much less than ours between two heartbeats, in seconds.
_SET_BACK_SECONDS = 2.0


#: Where notifications do not arrive: seconds between two attempts, which take other connections.
DELIVERY_SECONDS = 300.0


class NotDelivered(Transient):
    """Notifications of one connection do not arrive on the other. `seconds`: between two attempts."""

    seconds = DELIVERY_SECONDS


class QueueFull(NotDelivered):
    """PostgreSQL accepts no notification, since some session has read none of very many."""

    seconds = 15.0


#: PostgreSQL's own, of a COMMIT that notifies.
_QUEUE_IS_FULL = "54000"


@contextmanager
def _notifying(label: str = "") -> Iterator[None]:
    """As `translate_errors`. Raises QueueFull where that is the cause."""
    try:
        with translate_errors(label):
            yield
    except PgRoleError as error:
        if sqlstate_of(error) != _QUEUE_IS_FULL:
            raise
        raise QueueFull(
            Reason.SERVER_NOT_READY,
            f"{error.message}. A listening session does not read its notifications, usually because of a long "
            "transaction: find it in pg_stat_activity, and end it",
        ) from error.__cause__


#: Minimum seconds between two announcements of all roles that other sessions than the watch connection caused.
FOREIGN_SECONDS = 10.0


class NotificationHandler:
    """Handles the notifications of the listener: all from the watch connection, a limited number from other sessions.

    Any role that can connect can send any number of notifications, also that everything changed. The controller's own
    watch connection detects every change, and PostgreSQL reports the sender of each notification. Notifications of
    other sessions only matter if another cluster's controller detected a change first.
    """

    def __init__(self, watcher_pid: int, token: str, callbacks: ChangeCallbacks) -> None:
        self.greeted = anyio.Event()
        self._watcher_pid = watcher_pid
        self._greeting = greeting(token).encode()
        self._callbacks = callbacks
        self._next = 0.0  # loop time from which other sessions may announce all roles again
        self._later: asyncio.TimerHandle | None = None

    def notes(self) -> NotificationFilter:
        return NotificationFilter(CHANNEL, self._watcher_pid, self.receive)

    def receive(self, noted: list[tuple[int, bytes]], left_out: bool) -> None:
        if not self.greeted.is_set() and any(payload == self._greeting for _, payload in noted):
            self.greeted.set()
        ours = _read_all(payload for pid, payload in noted if pid == self._watcher_pid)
        theirs = _read_all(payload for pid, payload in noted if pid != self._watcher_pid)
        every_role = _pass_on([one.roles for one in ours], [one.roles for one in theirs], self._callbacks.on_role)
        _pass_on([one.renamed for one in ours], [one.renamed for one in theirs], self._callbacks.on_rename)
        databases, their_databases = [one.databases for one in ours], [one.databases for one in theirs]
        every_database = _pass_on(databases, their_databases, self._callbacks.on_database)
        if left_out or every_role or every_database:
            self._announce_everything()

    def stop(self) -> None:
        if self._later is not None:
            self._later.cancel()

    def _announce_everything(self) -> None:
        """Announces all roles and databases, FOREIGN_SECONDS after the last time at the earliest; not that each role
        may have been renamed, which is expensive to look at.
        """
        if self._later is not None:
            return
        loop = asyncio.get_running_loop()
        self._later = loop.call_at(max(self._next, loop.time()), self._announce)

    def _announce(self) -> None:
        self._later = None
        self._next = asyncio.get_running_loop().time() + FOREIGN_SECONDS
        self._callbacks.on_role(EVERYTHING)
        self._callbacks.on_database(EVERYTHING)


def _read_all(payloads: Iterable[bytes]) -> list[ChangedNames]:
    return [read_payload(payload.decode(errors="replace")) for payload in set(payloads)]


def _pass_on(ours: Sequence[Names], theirs: Sequence[Names], on_names: OnNames) -> bool:
    """Calls `on_names` with all these names, and with EVERYTHING if ours say so. Returns whether only other sessions
    announced everything.
    """
    if names := {name for some in (*ours, *theirs) for name in some or ()}:
        on_names(tuple(names))
    everything = EVERYTHING in ours
    if everything:
        on_names(EVERYTHING)
    return EVERYTHING in theirs and not everything


async def listen(listener: Connection, watcher: Connection, callbacks: ChangeCallbacks) -> None:
    """LISTENs, and verifies that notifications of the watch connection arrive, which a pooler may prevent.

    Raises NotDelivered if they do not arrive, and other PgRoleErrors.
    """
    token = secrets.token_hex(8)
    with translate_errors():
        pid = await watcher.fetchval("SELECT pg_catalog.pg_backend_pid()")
        handler = NotificationHandler(pid, token, callbacks)
        listener.add_termination_listener(lambda _connection: handler.stop())
    problem = "a notification sent on one connection does not arrive on another"
    await _listen(listener, watcher, handler.notes(), greeting(token), handler.greeted, problem)


async def listen_in_database(connection: Connection, on_notice: Callable[[], None]) -> None:
    """The same for what the event triggers of one database notify. `on_notice` is called after each notification of
    another session. Raises NotDelivered, and other PgRoleErrors.
    """
    greeted, hello = anyio.Event(), greeting(secrets.token_hex(8))
    row = await fetch_row(connection, resources.text("sql", "events", "database.sql"))
    own = row.get("pid", int)

    def receive(noted: list[tuple[int, bytes]], left_out: bool) -> None:
        if any(payload == hello.encode() for _, payload in noted):
            greeted.set()
        if left_out or any(pid != own for pid, _ in noted):
            on_notice()

    notes = NotificationFilter(CHANNEL, own, receive)
    await _listen(connection, connection, notes, hello, greeted, "notifications do not arrive")


async def _listen(
    listener: Connection, sender: Connection, notes: NotificationFilter, hello: str, greeted: anyio.Event, problem: str
) -> None:
    """LISTENs, and waits until `notes` have set `greeted` for the notification `hello`."""
    with _notifying():
        protocol_of(listener).listen(notes)
        await listener.execute(f"LISTEN {CHANNEL}")
        # a queue that was full accepts nothing until this frees what has been read since
        await sender.execute("SELECT pg_catalog.pg_notification_queue_usage()")
        await sender.execute("SELECT pg_catalog.pg_notify($1, $2)", CHANNEL, hello)
    with anyio.move_on_after(_GREETING_SECONDS):
        await greeted.wait()
        return
    raise NotDelivered(
        Reason.SERVER_NOT_READY,
        f"{problem}: connect to the server itself, not through a pooler in transaction mode",
    )


async def observe(watcher: Connection, *, guarded: bool) -> None:
    """Observes once: a missing privilege must prevent the session, and not end it later. Raises PgRoleError, as
    `listen` does.
    """
    with _notifying("observe"):
        async with watcher.transaction():
            if guarded:
                await watcher.execute(queries.guard())
            await watcher.execute("SELECT pgrole.observe()")


async def watch(watcher: Connection, guarded: bool) -> NoReturn:
    """Calls procedure `watch` again and again. Raises PgRoleError when it fails or the connection is lost."""
    while True:
        with translate_errors():
            if guarded:
                await watcher.execute(queries.guard())
            await watcher.execute(
                f"CALL pgrole.watch(interval '{TICK}', interval '{WATCH_SECONDS} s')",
                timeout=_WATCH_DEADLINE,
            )
        log.debug("watch returned; calling it again")


async def is_listening(connection: Connection) -> bool:
    """Also notices a lost connection. Raises PgRoleError."""
    query = "SELECT channel FROM pg_catalog.pg_listening_channels() AS l (channel)"
    channels = await fetch(connection, query, label="heartbeat", seconds=_HEARTBEAT_DEADLINE)
    return CHANNEL in {row.get("channel", str) for row in channels}


async def keep_alive(listener: Connection, lock: anyio.Lock) -> NoReturn:
    """Queries the listening connection regularly: a lost connection receives nothing and raises no error by itself.

    PostgreSQL sleeps by the server's clock. If that was set back, `watch` may sleep until it shows the former time, so
    the session must end.
    """
    before, answered = -math.inf, -math.inf
    while True:
        async with lock:
            if not await is_listening(listener):
                raise Transient(Reason.SERVER_NOT_READY, "the listening connection no longer listens")
            asked = anyio.current_time()
            clock = await read_clock(listener)
        if clock - before < asked - answered - _SET_BACK_SECONDS:
            raise Transient(Reason.SERVER_NOT_READY, "the clock of the server was set back")
        before, answered = clock, anyio.current_time()
        await anyio.sleep(_HEARTBEAT_SECONDS)


async def read_clock(connection: Connection) -> float:
    """The server's clock in seconds since 1970. Raises PgRoleError."""
    query = "SELECT EXTRACT(epoch FROM pg_catalog.clock_timestamp())::pg_catalog.float8 AS clock"
    return (await fetch_row(connection, query, seconds=_HEARTBEAT_DEADLINE)).get("clock", float)
