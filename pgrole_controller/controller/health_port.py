"""A small HTTP server for pages without a body in the request: GET and HEAD, requests parsed by httptools.

Guarantees for whatever a client sends: at most CONNECTIONS connections, of which a new one closes the oldest; a bounded
head, completed in time; a bounded number of requests that wait on a connection; an answer that is not read in time is
given up. A client that sends no HTTP is answered with 400, without quoting it, and logged nowhere.
"""

import asyncio
import logging
import socket
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final, cast

import anyio
from anyio.abc import TaskGroup, TaskStatus
from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser

log = logging.getLogger(__name__)

#: Maximum number of connections, and of further ones that wait to be accepted. A new one beyond the maximum closes the
#: oldest.
CONNECTIONS = 64
AT_ONCE = 100

#: Maximum size of the head of a request, in bytes.
HEAD_BYTES = 16 * 1024

#: Maximum number of requests that wait for an answer on one connection.
PIPELINED = 16

#: In seconds: until the head of a request is complete; between two requests; until an answer is read.
HEAD_SECONDS = 10.0
IDLE_SECONDS = 120.0
SEND_SECONDS = 30.0

_PHRASES: Final = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    413: "Content Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
}
TEXT = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class HealthPage:
    body: bytes
    status: int = 200
    content_type: str = TEXT


HealthPages = Mapping[str, Callable[[], Awaitable[HealthPage]]]


@dataclass(frozen=True, slots=True)
class _HealthRequest:
    """`fault`: the status of the answer to what is no request."""

    method: str
    path: str
    version: str
    keeps_alive: bool
    fault: int | None = None


_NO_HTTP = _HealthRequest("GET", "", "1.1", keeps_alive=False, fault=400)


class HealthPort:
    def __init__(self, pages: HealthPages) -> None:
        """`pages` by path."""
        self._pages = pages
        self._connections: dict[HealthConnection, None] = {}  # the oldest first

    async def serve(self, listener: socket.socket, *, task_status: TaskStatus[None]) -> None:
        """Serves until cancelled."""
        loop = asyncio.get_running_loop()
        async with anyio.create_task_group() as tasks:
            server = await loop.create_server(lambda: HealthConnection(self, tasks), sock=listener, backlog=AT_ONCE)
            try:
                task_status.started()
                await anyio.sleep_forever()
            finally:
                server.close()
                for connection in tuple(self._connections):
                    connection.abort()
                tasks.cancel_scope.cancel()

    def add(self, connection: "HealthConnection") -> None:
        while len(self._connections) >= CONNECTIONS:
            oldest = next(iter(self._connections))
            self.remove(oldest)
            oldest.abort()
        self._connections[connection] = None

    def remove(self, connection: "HealthConnection") -> None:
        self._connections.pop(connection, None)

    async def find(self, request: _HealthRequest) -> HealthPage:
        page = self._pages.get(request.path)
        if request.fault == 400:
            return _explain(400)
        if page is None:
            return _explain(404)
        if request.method not in ("GET", "HEAD"):
            return _explain(405)
        if request.fault is not None:
            return _explain(request.fault)
        return await page()


def _explain(status: int) -> HealthPage:
    return HealthPage(f"{status}: {_PHRASES[status]}".encode(), status)


class HealthConnection(asyncio.Protocol):
    def __init__(self, port: HealthPort, tasks: TaskGroup) -> None:
        self._port = port
        self._tasks = tasks
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._parser: HttpRequestParser | None = HttpRequestParser(self)
        self._timer: asyncio.TimerHandle | None = None
        self._waiting: deque[_HealthRequest] = deque()
        self._is_answering = False
        self._ends = False  # no further request is read
        self._writable = asyncio.Event()
        self._writable.set()
        self._size = 0  # bytes received since the last complete head; 0 between requests
        self._head = 0  # bytes of the request line and headers
        self._url = b""
        self._has_body = False

    def abort(self) -> None:
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._port.add(self)
        self._abort_after(HEAD_SECONDS)

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002 - a client may leave for any reason
        self._port.remove(self)
        self._parser = None  # each refers to the other
        self._ends = True
        self._waiting.clear()
        self._abort_after(None)
        self._writable.set()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def data_received(self, data: bytes) -> None:
        if self._ends or self._parser is None:
            return
        if self._size == 0:
            self._abort_after(HEAD_SECONDS)
        self._size += len(data)
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade:
            self._ends = True  # the request is answered as if it did not ask for that
        except HttpParserError:
            if not self._ends:
                self._refuse(_NO_HTTP)
        if self._size > HEAD_BYTES and not self._ends:
            self._refuse(_NO_HTTP)
        if self._waiting and not self._is_answering:
            self._is_answering = True
            self._transport.pause_reading()
            self._abort_after(None)
            self._tasks.start_soon(self._answer)

    def _refuse(self, request: _HealthRequest) -> None:
        self._waiting.append(request)
        self._ends = True

    # What the parser tells.

    def on_message_begin(self) -> None:
        self._url, self._head, self._has_body = b"", 0, False
        self._size = max(self._size, 1)

    def on_url(self, part: bytes) -> None:
        self._url += part
        self._count(part)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(name + value)
        key = name.lower()
        if key == b"transfer-encoding" or (key == b"content-length" and value.strip(b"0")):
            self._has_body = True

    def _count(self, part: bytes) -> None:
        self._head += len(part) + 4  # what separates them
        if self._head > HEAD_BYTES:
            raise ValueError  # ends the parser

    def on_headers_complete(self) -> None:
        if self._parser is not None and self._parser.get_http_version() not in ("1.0", "1.1"):
            raise ValueError  # ends the parser
        if self._has_body:
            self._refuse(self._read(keeps_alive=False, fault=413))
            raise ValueError  # ends the parser

    def on_message_complete(self) -> None:
        self._size = 0
        if len(self._waiting) >= PIPELINED:
            raise ValueError  # ends the parser
        if self._parser is not None:
            self._waiting.append(self._read(keeps_alive=self._parser.should_keep_alive(), fault=None))

    def _read(self, *, keeps_alive: bool, fault: int | None) -> _HealthRequest:
        if self._parser is None:
            return _NO_HTTP
        method, version = self._parser.get_method().decode("ascii"), self._parser.get_http_version()
        path = self._url.partition(b"?")[0].decode("latin-1")
        if path.startswith("http://"):
            path = f"/{path.removeprefix('http://').partition('/')[2]}"
        return _HealthRequest(method, path, version, keeps_alive, fault)

    # Answers.

    async def _answer(self) -> None:
        try:
            while self._waiting:
                request = self._waiting.popleft()
                page = await self._find(request)
                if self._transport.is_closing():
                    return
                self._transport.write(_encode(request, page))
                self._abort_after(SEND_SECONDS)
                await self._writable.wait()
                self._abort_after(None)
                if not request.keeps_alive:
                    self._ends = True
                    self._waiting.clear()
        finally:
            self._is_answering = False
            if not self._transport.is_closing():
                self._continue()

    def _continue(self) -> None:
        if self._ends:
            self._abort_after(SEND_SECONDS)
            self._transport.close()
        else:
            self._abort_after(HEAD_SECONDS if self._size else IDLE_SECONDS)
            self._transport.resume_reading()

    async def _find(self, request: _HealthRequest) -> HealthPage:
        try:
            return await self._port.find(request)
        except NoAnswer:
            return _explain(500)
        except Exception:
            log.exception("health response failed")
            return _explain(500)

    def _abort_after(self, seconds: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds is None else self._loop.call_later(seconds, self.abort)


class NoAnswer(Exception):
    """A page has no answer; the reason has been logged."""


def _encode(request: _HealthRequest, page: HealthPage) -> bytes:
    lines = [
        f"HTTP/1.1 {page.status} {_PHRASES[page.status]}",
        f"Content-Type: {page.content_type}",
        f"Content-Length: {len(page.body)}",
        f"Date: {time.strftime('%a, %d %b %Y %H:%M:%S GMT', time.gmtime())}",
    ]
    if page.status == 405:
        lines.append("Allow: GET,HEAD")
    if not request.keeps_alive:
        lines.append("Connection: close")
    elif request.version == "1.0":
        lines.append("Connection: keep-alive")
    head = "\r\n".join((*lines, "", "")).encode("ascii")
    return head if request.method == "HEAD" else head + page.body
