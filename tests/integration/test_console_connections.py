"""console/connections: which connections are closed."""

import asyncio
import socket
from contextlib import suppress

import anyio
import pytest

from pgrole_controller.console import connections
from pgrole_controller.console.connections import Connections

DEADLINE = 60.0  # seconds
PAGE = 24 * 2**20  # bytes: more than the kernel takes on behalf of a client that reads nothing


class Answering(asyncio.Protocol):
    """Sends a page to whoever connects."""

    transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.write(bytes(PAGE))

    def connection_lost(self, _: Exception | None) -> None:
        self.transport = None


@pytest.mark.parametrize("reads", [True, False])
async def test_a_client_that_takes_a_page_slowly_gets_all_of_it_and_one_that_takes_nothing_is_disconnected(
    monkeypatch: pytest.MonkeyPatch, reads: bool
) -> None:
    monkeypatch.setattr(connections, "SWEEP_SECONDS", 0.05)
    monkeypatch.setattr(connections, "SILENT_SECONDS", 2.0)
    made, received, steps = Connections(), 0, 0
    listener = await asyncio.get_running_loop().create_server(lambda: made.accept(Answering), "127.0.0.1", 0)
    with anyio.fail_after(DEADLINE), socket.socket() as client:
        client.setblocking(False)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(made.sweep)
            await asyncio.get_running_loop().sock_connect(client, listener.sockets[0].getsockname())
            while reads and received < PAGE:
                await anyio.sleep(0.1)
                steps += 1
                for _ in range(16):
                    received += len(await asyncio.get_running_loop().sock_recv(client, 2**16))
            while len(made):  # noqa: ASYNC110 -- it is silent now
                await anyio.sleep(0.05)
            tasks.cancel_scope.cancel()
    listener.close()
    assert (received, steps > 10) == ((PAGE, True) if reads else (0, False))


async def test_connections_made_at_once_are_no_more_than_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MOST_CONNECTIONS", 3)
    made = Connections()
    loop = asyncio.get_running_loop()
    listener = await loop.create_server(lambda: made.accept(Answering), "127.0.0.1", 0)
    clients = [socket.create_connection(listener.sockets[0].getsockname()) for _ in range(10)]
    with anyio.fail_after(DEADLINE):
        for client in clients[:-3]:
            client.setblocking(False)
            with suppress(ConnectionError):
                while await loop.sock_recv(client, 2**20):
                    pass
    listener.close()
    for client in clients:
        client.close()
    assert len(made) == 3
