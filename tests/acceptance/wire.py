"""A TCP proxy between one process and a server, which can be frozen or cut."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
from anyio.abc import SocketStream

from pgrole_controller.local.workspace import free_port

_BYTES = 1 << 16


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

    async def carry(self, near: SocketStream) -> None:
        with anyio.CancelScope() as scope:
            self._scopes.add(scope)
            async with near:
                if self._cut:
                    return
                try:
                    async with await anyio.connect_tcp(*self._to) as far, anyio.create_task_group() as tasks:
                        tasks.start_soon(self._pass_on, near, far)
                        tasks.start_soon(self._pass_on, far, near)
                except OSError:
                    return  # the other end does not answer, so neither do we
                finally:
                    self._scopes.discard(scope)

    async def _pass_on(self, one: SocketStream, other: SocketStream) -> None:
        try:
            while True:
                data = await one.receive(_BYTES)
                while not self._passing.is_set():
                    await self._passing.wait()
                await other.send(data)
        except anyio.EndOfStream:
            with anyio.move_on_after(1.0):
                await other.send_eof()
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            await other.aclose()


@asynccontextmanager
async def wire(host: str, port: int) -> AsyncIterator[Wire]:
    made = Wire(host, port)
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=made.port)
    async with listener, anyio.create_task_group() as carrying:
        async with anyio.create_task_group() as accepting:
            accepting.start_soon(listener.serve, made.carry, carrying)
            yield made
            accepting.cancel_scope.cancel()
        made.cut()  # closes all sockets
