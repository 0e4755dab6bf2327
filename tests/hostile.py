"""Hostile use of PostgreSQL's protocol: messages, scripted servers, a mutating proxy, and timing of a loop's
callbacks.
"""

import asyncio
import socket
import struct
import threading
import time
from asyncio.events import Handle
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field

import pytest


def message(kind: bytes, body: bytes = b"") -> bytes:
    return kind + struct.pack("!i", len(body) + 4) + body


def authentication(code: int, rest: bytes = b"") -> bytes:
    return message(b"R", struct.pack("!i", code) + rest)


def parameter(name: str, value: str) -> bytes:
    return message(b"S", f"{name}\0{value}\0".encode())


def error(text: bytes = b"refused", code: bytes = b"XX000", kind: bytes = b"E") -> bytes:
    return message(kind, b"SERROR\0VERROR\0C" + code + b"\0M" + text + b"\0\0")


def notification(payload: bytes, pid: int = 4711, channel: bytes = b"pgrole") -> bytes:
    return message(b"A", struct.pack("!i", pid) + channel + b"\0" + payload + b"\0")


def description(*columns: tuple[str, int]) -> bytes:
    parts = [name.encode() + b"\0" + struct.pack("!iHIHiH", 0, 0, kind, 0xFFFF, -1, 1) for name, kind in columns]
    return message(b"T", struct.pack("!H", len(columns)) + b"".join(parts))


def row(*values: bytes | None) -> bytes:
    parts = [struct.pack("!i", -1) if one is None else struct.pack("!i", len(one)) + one for one in values]
    return message(b"D", struct.pack("!H", len(values)) + b"".join(parts))


def array(oid: int, *elements: bytes | None, dimensions: tuple[int, ...] | None = None, flags: int = 0) -> bytes:
    sizes = dimensions if dimensions is not None else (len(elements),)
    head = struct.pack("!iiI", len(sizes), flags, oid) + b"".join(struct.pack("!ii", size, 1) for size in sizes)
    parts = [struct.pack("!i", -1) if one is None else struct.pack("!i", len(one)) + one for one in elements]
    return head + b"".join(parts)


LET_IN, AT_REST = authentication(0), message(b"Z", b"I")
PARAMETERS = parameter("server_version", "18.1") + parameter("client_encoding", "UTF8")
KEY = message(b"K", struct.pack("!ii", 1, 2))
GREETING = LET_IN + PARAMETERS + KEY + AT_REST


@dataclass(slots=True)
class HostileServer:
    """Sends `first` to each client, then one answer for each piece that arrives; then it is silent, or `ends`.

    Afterwards it sends `flood` endlessly, from a thread of its own.
    """

    first: bytes
    answers: tuple[bytes | Callable[[bytes], bytes], ...] = ()
    flood: bytes = b""
    ends: bool = False
    port: int = 0
    heard: list[bytes] = field(default_factory=list)
    sent: int = 0
    _ended: threading.Event = field(default_factory=threading.Event)

    def serve(self, listener: socket.socket) -> None:
        while not self._ended.is_set():
            with suppress(OSError):
                connection, _ = listener.accept()
                threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            self.heard.append(connection.recv(1 << 16))
            connection.sendall(self.first)
            for answer in self.answers:
                data = connection.recv(1 << 16)
                if not data:
                    return
                self.heard.append(data)
                connection.sendall(answer if isinstance(answer, bytes) else answer(data))
            while self.flood and not self._ended.is_set():
                connection.sendall(self.flood)
                self.sent += len(self.flood)
            while data := connection.recv(1 << 16):
                self.heard.append(data)
                if self.ends:
                    return

    def end(self, listener: socket.socket) -> None:
        self._ended.set()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


@contextmanager
def serving(
    first: bytes, *answers: bytes | Callable[[bytes], bytes], flood: bytes = b"", ends: bool = False
) -> Iterator[HostileServer]:
    listener = socket.create_server(("127.0.0.1", 0))
    server = HostileServer(first, answers, flood, ends, listener.getsockname()[1])
    threading.Thread(target=server.serve, args=(listener,), daemon=True).start()
    try:
        yield server
    finally:
        server.end(listener)


@dataclass(slots=True)
class Account:
    """CPU seconds that a loop's callbacks took in its thread."""

    longest: float = 0.0
    by: str = ""
    began: tuple[float, float] = (0.0, 0.0)
    share: float = 0.0


@contextmanager
def accounting(monkeypatch: pytest.MonkeyPatch) -> Iterator[Account]:
    account = Account(began=(time.thread_time(), time.monotonic()))
    run: Callable[[Handle], None] = Handle._run

    def measure(handle: Handle) -> None:
        began = time.thread_time()
        run(handle)
        took = time.thread_time() - began
        if took > account.longest:
            account.longest, account.by = took, repr(handle)[:500]

    with monkeypatch.context() as patch:
        patch.setattr(Handle, "_run", measure)
        yield account
    cpu, wall = account.began
    account.share = (time.thread_time() - cpu) / (time.monotonic() - wall)


Mutation = Callable[[bytes, bytes], list[bytes]]


@dataclass(slots=True)
class Proxy:
    """Between a client and a real server: `mutate` gets kind and body of each message from the server."""

    host: str
    server_port: int
    mutate: Callable[[], Mutation]
    port: int = 0
    #: To the clients, in the order in which they connected.
    writers: list[asyncio.StreamWriter] = field(default_factory=list)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)
    _clients: list[socket.socket] = field(default_factory=list)

    def accept(self, listener: socket.socket) -> None:
        with suppress(BlockingIOError, ConnectionError):  # already closed
            client, _ = listener.accept()
            client.setblocking(False)
            self._clients.append(client)
            self._tasks.append(asyncio.create_task(self._carry(client)))

    async def end(self) -> None:
        """Ends the proxy. Raises an exception that a mutation raised."""
        for task in self._tasks:
            task.cancel()
        ended = await asyncio.gather(*self._tasks, return_exceptions=True)
        for client in self._clients:  # also of a task that was cancelled before it began
            client.close()
        errors = [one for one in ended if isinstance(one, Exception)]
        if errors:
            raise ExceptionGroup("the proxy failed", errors)

    async def _carry(self, client: socket.socket) -> None:
        writers: list[asyncio.StreamWriter] = []
        try:
            reader, writer = await asyncio.open_connection(sock=client)
            writers.append(writer)
            self.writers.append(writer)
            far_reader, far_writer = await asyncio.open_connection(self.host, self.server_port)
            writers.append(far_writer)
            async with asyncio.TaskGroup() as tasks:
                back = tasks.create_task(self._back(far_reader, writer))
                await self._forth(reader, far_writer)
                back.cancel()
        except OSError:
            pass
        finally:
            for one in writers:
                one.transport.abort()
            await asyncio.sleep(0)  # lets the transports close their sockets

    async def _forth(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()

    async def _back(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        mutate = self.mutate()
        try:
            while True:
                head = await reader.readexactly(5)
                body = await reader.readexactly(struct.unpack("!i", head[1:])[0] - 4)
                for piece in mutate(head[:1], body):
                    if piece == PAUSE:
                        await asyncio.sleep(0.02)
                        continue
                    if piece == END:
                        writer.transport.abort()
                        return
                    writer.write(piece)
                    await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            writer.close()


#: Returned by a mutation: end the connection here, or pause briefly.
END, PAUSE = b"END", b"PAUSE"


@asynccontextmanager
async def proxying(host: str, port: int, mutate: Callable[[], Mutation]) -> AsyncIterator[Proxy]:
    """Accepts connections itself: asyncio's server leaks one that it accepts while it closes."""
    proxy, loop = Proxy(host, port, mutate), asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        proxy.port = listener.getsockname()[1]
        loop.add_reader(listener, proxy.accept, listener)
        try:
            yield proxy
        finally:
            loop.remove_reader(listener)
            await proxy.end()
