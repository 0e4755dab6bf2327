"""Watch: schema pgrole tells of every change. One connection LISTENs, one runs the procedure `watch`."""

import logging
import secrets
from collections.abc import Callable
from typing import NoReturn

import anyio

from pgrole_controller.core.errors import Reason, Transient
from pgrole_controller.postgres import queries
from pgrole_controller.postgres.connection import Connection, speaking
from pgrole_controller.postgres.notification import CHANNEL, greeting, is_greeting, read_names
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


async def listen(ear: Connection, eye: Connection, heard: Callable[[tuple[str, ...] | None], None]) -> None:
    """LISTENs, and makes sure that what the watch connection sends arrives: a pooler may have put them apart."""
    token = secrets.token_hex(8)
    greeted = anyio.Event()

    def receive(_connection: object, _pid: int, _channel: str, payload: object) -> None:
        text = str(payload)
        if is_greeting(text, token):
            greeted.set()
            return
        names = read_names(text)
        if names != ():
            heard(names)

    with speaking():
        await ear.add_listener(CHANNEL, receive)
        await eye.execute("SELECT pg_catalog.pg_notify($1, $2)", CHANNEL, greeting(token))
    with anyio.move_on_after(_GREETING_SECONDS):
        await greeted.wait()
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
        log.debug("watch returned and is called again")


async def keep_alive(ear: Connection, turn: anyio.Lock) -> NoReturn:
    """A listener whose peer is gone hears nothing and does not know it: asks, with a deadline."""
    while True:
        await anyio.sleep(_HEARTBEAT_SECONDS)
        async with turn:
            query = "SELECT channel FROM pg_catalog.pg_listening_channels() AS l (channel)"
            channels = await fetch(ear, "heartbeat", query, seconds=_HEARTBEAT_DEADLINE)
        if CHANNEL not in {row.get("channel", str) for row in channels}:
            raise Transient(Reason.SERVER_NOT_READY, "the listening connection no longer listens")
