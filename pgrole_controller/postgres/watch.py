"""Watch: schema pgrole tells of every change. One connection LISTENs, one runs the procedure `watch`."""

import asyncio
import logging
import secrets
from collections.abc import Callable
from typing import NoReturn

import anyio

from pgrole_controller.core.errors import Reason, Transient
from pgrole_controller.postgres import queries
from pgrole_controller.postgres.connection import Connection, speaking
from pgrole_controller.postgres.framing import Notes
from pgrole_controller.postgres.notification import CHANNEL, greeting, read_all
from pgrole_controller.postgres.protocol import protocol_of
from pgrole_controller.postgres.rows import fetch

log = logging.getLogger(__name__)

#: How often `watch` compares snapshots: the delay of detection and the cost of idling.
TICK = "5 ms"
#: How long one call of `watch` lasts, so that its caller knows that it is alive.
WATCH_SECONDS = 30
_WATCH_DEADLINE = WATCH_SECONDS + 15.0

_GREETING_SECONDS = 5.0
_HEARTBEAT_SECONDS = 5.0
_HEARTBEAT_DEADLINE = 3.0


class NotHeard(Transient):
    """What one connection notifies does not arrive at the other."""


#: Between two announcements of everything that others than our own watch connection asked for, in seconds.
FOREIGN_SECONDS = 10.0


class Hearing:
    """What arrives at the listener: of the watch connection all that it says, of others as much as is reasonable.

    Any role that can connect can send any number of notifications, and say that everything changed. Our own watch
    connection notices all that happens, and PostgreSQL says who sent what, so those of others matter only where another
    cluster's controller noticed something first.
    """

    def __init__(self, eye_pid: int, token: str, heard: Callable[[tuple[str, ...] | None], None]) -> None:
        self.greeted = anyio.Event()
        self._eye_pid = eye_pid
        self._greeting = greeting(token).encode()
        self._heard = heard
        self._next = 0.0  # on the loop's clock: when others may announce everything again
        self._later: asyncio.TimerHandle | None = None

    def notes(self) -> Notes:
        return Notes(CHANNEL, self._eye_pid, self.receive)

    def receive(self, noted: list[tuple[int, bytes]], left_out: bool) -> None:
        if not self.greeted.is_set() and any(payload == self._greeting for _, payload in noted):
            self.greeted.set()
        ours = [payload for pid, payload in noted if pid == self._eye_pid]
        theirs = [payload for pid, payload in noted if pid != self._eye_pid]
        names, everything = read_all(ours)
        more, asked = read_all(theirs)
        if names := names | more:
            self._heard(tuple(names))
        if everything:
            self._heard(None)
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
        self._heard(None)


async def listen(ear: Connection, eye: Connection, heard: Callable[[tuple[str, ...] | None], None]) -> None:
    """LISTENs, and makes sure that what the watch connection sends arrives: a pooler may have put them apart."""
    token = secrets.token_hex(8)
    with speaking():
        hearing = Hearing(await eye.fetchval("SELECT pg_catalog.pg_backend_pid()"), token, heard)
        ear.add_termination_listener(lambda _connection: hearing.stop())
        protocol_of(ear).listen(hearing.notes())
        await ear.execute(f"LISTEN {CHANNEL}")
        await eye.execute("SELECT pg_catalog.pg_notify($1, $2)", CHANNEL, greeting(token))
    with anyio.move_on_after(_GREETING_SECONDS):
        await hearing.greeted.wait()
        return
    raise NotHeard(
        Reason.SERVER_NOT_READY,
        "a notification sent on one connection does not arrive on another: connect to the server itself, "
        "not through a pooler in transaction mode",
    )


async def observe(eye: Connection, *, guarded: bool) -> None:
    """Once: what may not be read must fail the attempt at a session, and not the session."""
    with speaking("observe"):
        async with eye.transaction():
            if guarded:
                await eye.execute(queries.inspect("guard"))
            await eye.execute("SELECT pgrole.observe()")


async def watch(eye: Connection, guarded: bool) -> NoReturn:
    while True:
        with speaking():
            if guarded:
                await eye.execute(queries.inspect("guard"))
            await eye.execute(
                f"CALL pgrole.watch(interval '{TICK}', interval '{WATCH_SECONDS} s')",
                timeout=_WATCH_DEADLINE,
            )
        log.debug("watch returned; calling it again")


async def keep_alive(ear: Connection, turn: anyio.Lock) -> NoReturn:
    """A listener whose peer is gone hears nothing and does not know it: asks, with a deadline."""
    while True:
        await anyio.sleep(_HEARTBEAT_SECONDS)
        async with turn:
            query = "SELECT channel FROM pg_catalog.pg_listening_channels() AS l (channel)"
            channels = await fetch(ear, "heartbeat", query, seconds=_HEARTBEAT_DEADLINE)
        if CHANNEL not in {row.get("channel", str) for row in channels}:
            raise Transient(Reason.SERVER_NOT_READY, "the listening connection no longer listens")
