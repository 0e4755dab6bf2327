"""LISTENs for what the event triggers of one database notify."""

import secrets
from collections.abc import Callable

import anyio

from pgrole_controller import resources
from pgrole_controller.core.errors import Reason
from pgrole_controller.postgres.connection import Connection
from pgrole_controller.postgres.errors import translate_errors
from pgrole_controller.postgres.framing import NotificationFilter
from pgrole_controller.postgres.protocol import protocol_of
from pgrole_controller.postgres.rows import fetch_row
from pgrole_controller.postgres.watch import CHANNEL, NotDelivered, greeting

_GREETING_SECONDS = 5.0


async def listen(connection: Connection, on_notice: Callable[[], None]) -> None:
    """LISTENs, and verifies that notifications arrive, which a pooler may prevent. `on_notice` is called after each of
    another session. Raises NotDelivered.
    """
    greeted, hello = anyio.Event(), greeting(secrets.token_hex(8))
    row = await fetch_row(connection, "", resources.text("sql", "events", "place.sql"))
    own = row.get("pid", int)

    def receive(noted: list[tuple[int, bytes]], left_out: bool) -> None:
        if any(payload == hello.encode() for _, payload in noted):
            greeted.set()
        if left_out or any(pid != own for pid, _ in noted):
            on_notice()

    with translate_errors():
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
