"""postgres/framing: what is no PostgreSQL is told so, and stops neither the event loop nor the controller."""

import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import anyio.abc
import pytest

from pgrole_controller.core.errors import Transient
from pgrole_controller.postgres.connection import Endpoint, connect
from pgrole_controller.postgres.framing import Framing, NotPostgres


def message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!i", len(body) + 4) + body


LET_IN, AT_REST = message(b"R", struct.pack("!i", 0)), message(b"Z", b"I")
PARAMETERS = message(b"S", b"server_version\x0016.1\0") + message(b"S", b"client_encoding\0KLINGON\0")
KEY = message(b"K", struct.pack("!ii", 1, 2))

STRANGERS = {
    "NULs": b"\0" * 100,
    "a length that is none": b"R\0\0\0\0" * 20,
    "a negative length": b"R\xff\xff\xff\xff" * 20,
    "another server's greeting": b"J\0\0\0\n8.0.36\0\0\0\0\0\0\0\0\0",
    "an encoding that nobody knows": LET_IN + PARAMETERS + KEY + AT_REST,
    "no version": LET_IN + AT_REST,
}


@asynccontextmanager
async def answering(data: bytes) -> AsyncIterator[int]:
    """The port of a server that says the same to all."""

    async def answer(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            await stream.receive()
            await stream.send(data)
            await anyio.sleep_forever()

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, answer)
        yield listener.extra(anyio.abc.SocketAttribute.local_port)
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("data", STRANGERS.values(), ids=STRANGERS)
async def test_what_is_no_postgresql_is_said(data: bytes) -> None:
    async with answering(data) as port:
        with pytest.raises(Transient, match="does not speak PostgreSQL's protocol"):
            async with connect(Endpoint.of(["127.0.0.1"], port, "postgres", "u", "p", "disable"), "test"):
                pass


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 1000])
def test_messages_are_followed_in_pieces_of_any_size(size: int) -> None:
    framing, data = Framing(), (LET_IN + PARAMETERS + message(b"1", b"") + AT_REST) * 3
    for start in range(0, len(data), size):
        framing.check(data[start : start + size])
    with pytest.raises(NotPostgres):
        framing.check(b"\0")
