"""A server that sends scripted bytes, whatever it is asked."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace

from pgrole_controller.kube.transport import Transport

Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


@dataclass(slots=True)
class RawServer:
    port: int = 0
    connections: int = 0
    requests: list[bytes] = field(default_factory=list)
    left: asyncio.Event = field(default_factory=asyncio.Event)  # a client closed a connection

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def read(self, reader: asyncio.StreamReader) -> bytes:
        """Reads the head of a request."""
        request = await reader.readuntil(b"\r\n\r\n")
        self.requests.append(request)
        return request


@asynccontextmanager
async def raw_server(
    script: Callable[[RawServer], Script], context: ssl.SSLContext | None = None
) -> AsyncIterator[RawServer]:
    made = RawServer()
    run = script(made)
    running: set[asyncio.Task[None]] = set()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        running.add(task)
        made.connections += 1
        try:
            await run(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError, ssl.SSLError):
            made.left.set()
        finally:
            writer.transport.abort()
            running.discard(task)

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def say(*parts: bytes) -> Callable[[RawServer], Script]:
    """Answers the first request of a connection with these parts, each sent on its own, and closes it."""

    def script(made: RawServer) -> Script:
        async def run(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await made.read(reader)
            for part in parts:
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(0)
            writer.close()

        return run

    return script


def keep_saying(*answers: bytes, ends: bool = False) -> Callable[[RawServer], Script]:
    """Answers each request of a connection with the next one, then closes it: at once with `ends`, else at the
    request that has none.
    """

    def script(made: RawServer) -> Script:
        async def run(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            for answer in answers:
                await made.read(reader)
                writer.write(answer)
            if ends:
                writer.close()
                await writer.wait_closed()
            else:
                await made.read(reader)

        return run

    return script


def transport_to(server: str, proxy: str | None = None, trust: ssl.SSLContext | None = None) -> Transport:
    configuration = SimpleNamespace(
        host=server,
        proxy=proxy,
        tls_server_name=None,
        verify_ssl=True,
        ssl_ca_cert=None,
        cert_file=None,
        disable_strict_ssl_verification=False,
    )
    return Transport(configuration, "test", trust)
