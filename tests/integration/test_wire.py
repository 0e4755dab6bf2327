"""The proxy of the acceptance tests, which must not make the next test fail."""

import asyncio
import gc
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from tests.acceptance.wire import wire

HOST = "127.0.0.1"
ROUNDS = 20
SILENCE = 0.05  # seconds in which nothing must arrive


@asynccontextmanager
async def echoing() -> AsyncIterator[int]:
    """Runs a server that sends back all it receives; yields its port."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        finally:
            writer.close()

    server = await asyncio.start_server(answer, HOST, 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await server.wait_closed()


async def test_the_proxy_passes_on_all_data_and_the_end_of_each_direction() -> None:
    async with echoing() as port, wire(HOST, port) as between:
        reader, writer = await asyncio.open_connection(HOST, between.port)
        writer.write(b"x" * 1_000_000)
        writer.write_eof()
        assert len(await reader.read(-1)) == 1_000_000
        writer.close()


async def test_freezing_stops_data_until_mended_and_cutting_ends_the_connection() -> None:
    async with echoing() as port, wire(HOST, port) as between:
        reader, writer = await asyncio.open_connection(HOST, between.port)
        between.freeze()
        writer.write(b"word")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(SILENCE):
                await reader.read(1)
        between.mend()
        assert await reader.readexactly(4) == b"word"
        between.cut()
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await reader.readexactly(1)
        writer.close()


async def test_connections_that_arrive_while_the_proxy_ends_leave_no_socket_open() -> None:
    """An unclosed socket is a ResourceWarning, which would fail a later test."""
    told: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    before = loop.get_exception_handler()
    loop.set_exception_handler(lambda _, context: told.append(context))
    try:
        async with echoing() as port:
            for number in range(ROUNDS):
                async with AsyncExitStack() as stack, wire(HOST, port) as between:
                    await anyio.sleep(SILENCE / 10)  # until the proxy waits for connections
                    for _ in range(3):
                        late = stack.enter_context(socket.socket())
                        late.setblocking(False)
                        late.connect_ex((HOST, between.port))
                    for _ in range(number % 4):
                        await anyio.lowlevel.checkpoint()
        await anyio.sleep(SILENCE)
        gc.collect()
    finally:
        loop.set_exception_handler(before)
    assert told == []
