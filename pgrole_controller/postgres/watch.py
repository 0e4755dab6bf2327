"""Watch: schema pgrole notifies of every change. One connection LISTENs, one runs the procedure `watch`.

Any role that can connect may send any payload on channel `pgrole`, so payloads are read with suspicion, and reading
them never fails: a payload that cannot be understood names no roles, and a name is only looked up among the declared
ones.
"""

import asyncio
import json
import logging
import secrets
from collections.abc import Callable, Iterable
from typing import NoReturn

import anyio

from pgrole_controller.core.errors import Reason, Transient
from pgrole_controller.postgres import queries
from pgrole_controller.postgres.connection import Connection
from pgrole_controller.postgres.errors import translate_errors
from pgrole_controller.postgres.framing import NotificationFilter
from pgrole_controller.postgres.protocol import protocol_of
from pgrole_controller.postgres.rows import fetch

CHANNEL = "pgrole"

#: Look at every role of the server.
EVERYTHING = None

#: Ours hold three names of 63 bytes, of which each may be written as six characters.
_LONGEST = 2000
_LONGEST_NAME = 63


def read_names(payload: str) -> tuple[str, ...] | None:
    """The role names that a payload is about; EVERYTHING for `{"op": "many"}`; empty for what is not understood."""
    if len(payload) > _LONGEST:
        return ()
    try:
        message = json.loads(payload)
    except (ValueError, RecursionError):
        return ()
    if not isinstance(message, dict):
        return ()
    if message.get("op") == "many":
        return EVERYTHING
    names = (message.get(item) for item in ("name", "was", "claim"))
    return tuple(name for name in names if isinstance(name, str) and len(name) <= _LONGEST_NAME)


def read_all(payloads: Iterable[bytes]) -> tuple[set[str], bool]:
    """The role names that any of these are about, and whether one is about EVERYTHING."""
    found: set[str] = set()
    everything = False
    for payload in set(payloads):
        names = read_names(payload.decode(errors="replace"))
        if names is EVERYTHING:
            everything = True
        else:
            found.update(names)
    return found, everything


def greeting(token: str) -> str:
    """The payload by which the watch connection shows that it reaches the listener."""
    return json.dumps({"op": "hello", "token": token})


log = logging.getLogger(__name__)

#: How often `watch` compares snapshots: the delay of detection and the cost of idling.
TICK = "5 ms"
#: How long one call of `watch` lasts, so that its caller knows that it is alive.
WATCH_SECONDS = 30
_WATCH_DEADLINE = WATCH_SECONDS + 15.0

_GREETING_SECONDS = 5.0
_HEARTBEAT_SECONDS = 5.0
_HEARTBEAT_DEADLINE = 3.0


class NotDelivered(Transient):
    """What one connection notifies does not arrive at the other."""


#: Between two announcements of everything that others than our own watch connection asked for, in seconds.
FOREIGN_SECONDS = 10.0


class NotificationHandler:
    """What arrives at the listener: of the watch connection all that it says, of others as much as is reasonable.

    Any role that can connect can send any number of notifications, and say that everything changed. Our own watch
    connection notices all that happens, and PostgreSQL says who sent what, so those of others matter only where another
    cluster's controller noticed something first.
    """

    def __init__(self, watcher_pid: int, token: str, on_change: Callable[[tuple[str, ...] | None], None]) -> None:
        self.greeted = anyio.Event()
        self._watcher_pid = watcher_pid
        self._greeting = greeting(token).encode()
        self._on_change = on_change
        self._next = 0.0  # on the loop's clock: when others may announce everything again
        self._later: asyncio.TimerHandle | None = None

    def notes(self) -> NotificationFilter:
        return NotificationFilter(CHANNEL, self._watcher_pid, self.receive)

    def receive(self, noted: list[tuple[int, bytes]], left_out: bool) -> None:
        if not self.greeted.is_set() and any(payload == self._greeting for _, payload in noted):
            self.greeted.set()
        ours = [payload for pid, payload in noted if pid == self._watcher_pid]
        theirs = [payload for pid, payload in noted if pid != self._watcher_pid]
        names, everything = read_all(ours)
        more, asked = read_all(theirs)
        if names := names | more:
            self._on_change(tuple(names))
        if everything:
            self._on_change(None)
        elif asked or left_out:
            self._announce_everything()

    def stop(self) -> None:
        if self._later is not None:
            self._later.cancel()

    def _announce_everything(self) -> None:
        """At once, or when it is time again."""
        if self._later is not None:
            return
        loop = asyncio.get_running_loop()
        self._later = loop.call_at(max(self._next, loop.time()), self._announce)

    def _announce(self) -> None:
        self._later = None
        self._next = asyncio.get_running_loop().time() + FOREIGN_SECONDS
        self._on_change(None)


async def listen(
    listener: Connection, watcher: Connection, on_change: Callable[[tuple[str, ...] | None], None]
) -> None:
    """LISTENs, and makes sure that what the watch connection sends arrives: a pooler may have put them apart."""
    token = secrets.token_hex(8)
    with translate_errors():
        hearing = NotificationHandler(await watcher.fetchval("SELECT pg_catalog.pg_backend_pid()"), token, on_change)
        listener.add_termination_listener(lambda _connection: hearing.stop())
        protocol_of(listener).listen(hearing.notes())
        await listener.execute(f"LISTEN {CHANNEL}")
        await watcher.execute("SELECT pg_catalog.pg_notify($1, $2)", CHANNEL, greeting(token))
    with anyio.move_on_after(_GREETING_SECONDS):
        await hearing.greeted.wait()
        return
    raise NotDelivered(
        Reason.SERVER_NOT_READY,
        "a notification sent on one connection does not arrive on another: connect to the server itself, "
        "not through a pooler in transaction mode",
    )


async def observe(watcher: Connection, *, guarded: bool) -> None:
    """Once: what may not be read must fail the attempt at a session, and not the session."""
    with translate_errors("observe"):
        async with watcher.transaction():
            if guarded:
                await watcher.execute(queries.inspect("guard"))
            await watcher.execute("SELECT pgrole.observe()")


async def watch(watcher: Connection, guarded: bool) -> NoReturn:
    while True:
        with translate_errors():
            if guarded:
                await watcher.execute(queries.inspect("guard"))
            await watcher.execute(
                f"CALL pgrole.watch(interval '{TICK}', interval '{WATCH_SECONDS} s')",
                timeout=_WATCH_DEADLINE,
            )
        log.debug("watch returned; calling it again")


async def keep_alive(listener: Connection, lock: anyio.Lock) -> NoReturn:
    """A listener whose peer is gone hears nothing and does not know it: asks, with a deadline."""
    while True:
        await anyio.sleep(_HEARTBEAT_SECONDS)
        async with lock:
            query = "SELECT channel FROM pg_catalog.pg_listening_channels() AS l (channel)"
            channels = await fetch(listener, "heartbeat", query, seconds=_HEARTBEAT_DEADLINE)
        if CHANNEL not in {row.get("channel", str) for row in channels}:
            raise Transient(Reason.SERVER_NOT_READY, "the listening connection no longer listens")
