"""A TCP proxy between one process and a server, which can be frozen or cut."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from pgrole_controller.local.process import reached
from pgrole_controller.local.workspace import free_port

_BYTES = 1 << 16
_CLOSING_SECONDS = 5.0


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

    async def is_idle(self) -> bool:
        return not self._scopes

    async def carry(self, near: asyncio.StreamReader, to_near: asyncio.StreamWriter) -> None:
        """Passes on what either end says until both have ended, or the wire is cut."""
        with anyio.CancelScope() as scope:
            self._scopes.add(scope)
            try:
                if not self._cut:
                    await self._connect(near, to_near)
            except OSError:
                pass  # the other end does not answer, so neither do we
            finally:
                self._scopes.discard(scope)
                to_near.transport.abort()

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
    # Not anyio's listener: to cancel its accept while a connection arrives leaves that connection's socket open.
    server = await asyncio.start_server(made.carry, "127.0.0.1", made.port)
    try:
        yield made
    finally:
        server.close()
        made.cut()  # closes all sockets
        with anyio.CancelScope(shield=True):
            await reached(made.is_idle, _CLOSING_SECONDS, every=0.01)
            await server.wait_closed()
