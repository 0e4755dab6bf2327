"""A TCP proxy between one process and a server, which can be frozen or cut."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from pgrole_controller.local.workspace import free_port

_BYTES = 1 << 16
_HOST = "127.0.0.1"


class Wire:
    """Created by `wire`. Frozen: connections stay open and nothing passes. Cut: connections end, and new ones are
    refused.
    """

    def __init__(self, host: str, port: int) -> None:
        self.port = free_port()
        self._to = host, port
        self._passing = anyio.Event()
        self._passing.set()
        self._cut = False
        self._scopes: set[anyio.CancelScope] = set()

    def freeze(self) -> None:
        self._passing = anyio.Event()

    def cut(self) -> None:
        self._cut = True
        for scope in list(self._scopes):
            scope.cancel()

    def mend(self) -> None:
        self._cut = False
        self._passing.set()

    async def carry(self, accepted: socket.socket) -> None:
        """Forwards data in both directions until both ends have closed, or the wire is cut."""
        with anyio.CancelScope() as scope:
            self._scopes.add(scope)
            try:
                near, to_near = await asyncio.open_connection(sock=accepted)
                try:
                    if not self._cut:
                        await self._connect(near, to_near)
                finally:
                    to_near.transport.abort()
            except OSError:
                return  # the other end does not answer, so neither do we
            finally:
                self._scopes.discard(scope)

    async def _connect(self, near: asyncio.StreamReader, to_near: asyncio.StreamWriter) -> None:
        far, to_far = await asyncio.open_connection(*self._to)
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._pass_on, near, to_far)
                tasks.start_soon(self._pass_on, far, to_near)
            to_near.close()
            await to_near.wait_closed()
        finally:
            to_far.transport.abort()

    async def _pass_on(self, one: asyncio.StreamReader, other: asyncio.StreamWriter) -> None:
        try:
            while data := await one.read(_BYTES):
                while not self._passing.is_set():
                    await self._passing.wait()
                other.write(data)
                await other.drain()
            other.write_eof()
        except OSError:
            other.transport.abort()


@asynccontextmanager
async def wire(host: str, port: int) -> AsyncIterator[Wire]:
    made = Wire(host, port)
    connections: list[socket.socket] = []
    with socket.create_server((_HOST, made.port)) as listener:
        listener.setblocking(False)
        loop = asyncio.get_running_loop()
        try:
            async with anyio.create_task_group() as carrying:

                def accept() -> None:
                    """A callback instead of a task, whose cancellation could leak an accepted connection's socket."""
                    try:
                        near, _ = listener.accept()
                    except (BlockingIOError, ConnectionError):
                        return
                    near.setblocking(False)
                    connections.append(near)
                    carrying.start_soon(made.carry, near)

                loop.add_reader(listener, accept)
                try:
                    yield made
                finally:
                    loop.remove_reader(listener)
                    made.cut()
                    carrying.cancel_scope.cancel()
        finally:
            for near in connections:
                near.close()  # also if its task did not start
