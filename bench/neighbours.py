"""Misbehaving servers, one of each kind, to show that they do not affect others."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import anyio
import asyncpg

from pgrole_controller.local.postgres import SUPERUSER, PostgresServer
from pgrole_controller.local.process import reached
from pgrole_controller.local.workspace import free_port

#: Starts a PostgreSQL with these settings.
Start = Callable[[Mapping[str, str]], AbstractAsyncContextManager[PostgresServer]]

#: For many of them on one machine.
SMALL = {"max_connections": "20", "shared_buffers": "8MB", "track_commit_timestamp": "on"}

#: Delay of the slow server's answers, in seconds.
LATE_SECONDS = 0.3

_HOST = "127.0.0.1"
_STANDBY_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Neighbour:
    """Address of a server, and `words` that its PgServer's condition must contain; empty if it becomes Ready
    nevertheless.
    """

    name: str
    port: int
    password: str
    words: str


@asynccontextmanager
async def neighbours(start: Start) -> AsyncIterator[tuple[Neighbour, ...]]:
    """Yields one of each kind: down, silent, closing, refusing, standby, slow."""
    async with AsyncExitStack() as stack:
        slow = await stack.enter_async_context(start(SMALL))
        standby = await stack.enter_async_context(start(SMALL))
        await _demote(standby)
        silent = await stack.enter_async_context(listening(_keep_silent))
        closing = await stack.enter_async_context(listening(_close))
        late = await stack.enter_async_context(listening(_Late(slow.port).pass_on))
        yield (
            Neighbour("down", free_port(), "any", "Connect call failed"),
            Neighbour("silent", silent, "any", "no answer in time"),
            Neighbour("closing", closing, "any", "closed"),
            Neighbour("refusing", slow.port, "wrong", "password authentication failed"),
            Neighbour("standby", standby.port, standby.password, "standby"),
            Neighbour("slow", late, slow.password, ""),
        )


Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], object]


@asynccontextmanager
async def listening(serve: Serve) -> AsyncIterator[int]:
    """Serves every connection with `serve`; yields the port."""
    writers: set[asyncio.StreamWriter] = set()

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.add(writer)
        try:
            answer = serve(reader, writer)
            if asyncio.iscoroutine(answer):
                await answer
        except (ConnectionError, asyncio.IncompleteReadError):
            return
        finally:
            writers.discard(writer)
            writer.close()

    server = await asyncio.start_server(take, _HOST, 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for writer in list(writers):
            writer.transport.abort()
        with anyio.CancelScope(shield=True):
            await reached(lambda: _is_empty(writers), 5.0, every=0.01)
            await server.wait_closed()


async def _is_empty(writers: set[asyncio.StreamWriter]) -> bool:
    return not writers


async def _keep_silent(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
    while await reader.read(1 << 16):
        pass


async def _close(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


@dataclass(frozen=True, slots=True)
class _Late:
    """Forwards to a port of this machine, and delays answers by LATE_SECONDS."""

    port: int

    async def pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner, out = await asyncio.open_connection(_HOST, self.port)
        send, receive = anyio.create_memory_object_stream[tuple[float, bytes]](float("inf"))
        try:
            async with anyio.create_task_group() as tasks:

                async def forth() -> None:
                    while data := await reader.read(1 << 16):
                        out.write(data)
                        await out.drain()
                    tasks.cancel_scope.cancel()

                async def back() -> None:
                    while data := await inner.read(1 << 16):
                        send.send_nowait((anyio.current_time() + LATE_SECONDS, data))
                    send.close()

                async def answer() -> None:
                    async for due, data in receive:
                        await anyio.sleep_until(due)
                        writer.write(data)
                        await writer.drain()
                    tasks.cancel_scope.cancel()

                for each in (forth, back, answer):
                    tasks.start_soon(each)
        except* ConnectionError:
            pass  # one side closed, so close the other
        finally:
            send.close()
            receive.close()
            out.close()


async def _demote(server: PostgresServer) -> None:
    """Restarts it as a standby without a primary."""
    await server.stop()
    (server.data / "standby.signal").touch()
    await server.process.start()

    async def answers() -> bool:
        try:
            connection = await asyncpg.connect(server.dsn(SUPERUSER))
        except (OSError, asyncpg.PostgresError):
            return False
        await connection.close()
        return True

    if not await reached(answers, _STANDBY_SECONDS):
        raise server.process.failure("was no standby in time")
