"""controller/health_port: what clients send, and how they behave, against the bounds of the port."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import anyio
import pytest
from anyio.abc import SocketStream, TaskStatus

from pgrole_controller.controller import health_port
from pgrole_controller.controller.health_port import (
    CONNECTIONS,
    HEAD_BYTES,
    PIPELINED,
    HealthPage,
    HealthPort,
    NoAnswer,
)

PATIENCE = 30.0
LARGE = b"x" * 16 * 1024 * 1024


class PortUnderTest:
    def __init__(self) -> None:
        self.address = ("127.0.0.1", 0)
        self.may_answer = asyncio.Event()
        self.asked = 0

    async def ok(self) -> HealthPage:
        return HealthPage(b"ok\n")

    async def held(self) -> HealthPage:
        self.asked += 1
        await self.may_answer.wait()
        return HealthPage(b"held\n")

    async def large(self) -> HealthPage:
        return HealthPage(LARGE)

    async def broken(self) -> HealthPage:
        raise ValueError("a page that fails")

    async def missing(self) -> HealthPage:
        raise NoAnswer

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[SocketStream]:
        async with await anyio.connect_tcp(*self.address) as stream:
            yield stream

    async def exchange(self, *parts: bytes) -> bytes:
        """Returns everything that is sent until the port closes the connection."""
        async with self.connect() as stream:
            for part in parts:
                await stream.send(part)
            return await read_until_closed(stream)


async def read_until_closed(stream: SocketStream) -> bytes:
    received = b""
    with anyio.fail_after(PATIENCE):
        while True:
            try:
                received += await stream.receive()
            except (anyio.EndOfStream, anyio.BrokenResourceError):
                return received


@pytest.fixture
async def port() -> AsyncIterator[PortUnderTest]:
    made = PortUnderTest()
    pages = {f"/{page.__name__}": page for page in (made.ok, made.held, made.large, made.broken, made.missing)}
    with socket.create_server(made.address) as listener:
        made.address = listener.getsockname()
        started = Started()
        serving = asyncio.create_task(HealthPort(pages).serve(listener, task_status=started))
        await started.event.wait()
        yield made
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


class Started(TaskStatus[None]):
    def __init__(self) -> None:
        self.event = asyncio.Event()

    def started(self, _: None = None) -> None:
        self.event.set()


def get(path: str = "/ok", *headers: str, method: str = "GET", version: str = "1.1") -> bytes:
    return "\r\n".join((f"{method} {path} HTTP/{version}", "Host: a", *headers, "", "")).encode()


CLOSE = "Connection: close"


def statuses(received: bytes) -> list[int]:
    return [int(part[:3]) for part in received.split(b"HTTP/1.1 ")[1:]]


async def test_a_page_is_answered_with_type_length_and_date(port: PortUnderTest) -> None:
    head, _, body = (await port.exchange(get("/ok?a=b", CLOSE))).partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    assert lines[:3] == [b"HTTP/1.1 200 OK", b"Content-Type: text/plain; charset=utf-8", b"Content-Length: 3"]
    assert lines[3].startswith(b"Date: ")
    assert lines[3].endswith(b" GMT")
    assert lines[4:] == [b"Connection: close"]
    assert body == b"ok\n"


async def test_a_request_cut_at_any_byte_is_answered(port: PortUnderTest) -> None:
    request = get("/ok", "A: b", CLOSE)
    for at in range(1, len(request)):
        assert statuses(await port.exchange(request[:at], request[at:])) == [200]


async def test_head_is_answered_like_get_without_the_body(port: PortUnderTest) -> None:
    head, _, body = (await port.exchange(get("/ok", CLOSE, method="HEAD"))).partition(b"\r\n\r\n")
    assert b"\r\nContent-Length: 3\r\n" in head
    assert body == b""


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (get("/other", CLOSE), 404),
        (get("/ok/", CLOSE), 404),
        (get("/other", CLOSE, method="POST"), 404),
        (get("http://a/ok", CLOSE), 200),
        (get("/ok", CLOSE, method="POST"), 405),
        (get("/ok", CLOSE, method="DELETE"), 405),
        (get("/ok", "Content-Length: 0", CLOSE), 200),
        (get("/ok", "Content-Length: 1"), 413),
        (get("/ok", "Content-Length: 1", "Expect: 100-continue"), 413),
        (get("/ok", "Transfer-Encoding: chunked"), 413),
        (get("/ok", "Content-Length: 1", method="PUT"), 405),
        (get("/ok", "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c"), 200),
        (get("/broken", CLOSE), 500),
        (get("/missing", CLOSE), 500),
    ],
)
async def test_requests_and_the_statuses_of_their_answers(
    port: PortUnderTest, request_: bytes, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    received = await port.exchange(request_)
    assert statuses(received) == [status]
    assert (b"\r\nAllow: GET,HEAD\r\n" in received) == (status == 405)
    logged = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    assert logged == (["health response failed"] if b"/broken" in request_ else [])


@pytest.mark.parametrize(
    "garbage",
    [
        b"\0" * 100,
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET /ok HTTP/9.9\r\n\r\n",
        b"GET / HTTP/1.1\r\na\0b: c\r\n\r\n",
        b"get /ok HTTP/1.1\r\n\r\n",
        b"GET /ok\r\n\r\n",
        get("/ok", "Content-Length: x"),
        b"GET /" + b"x" * HEAD_BYTES + b" HTTP/1.1\r\n\r\n",
        get("/ok", "A: " + "b" * HEAD_BYTES),
        get("/ok", *(f"A{n}: b" for n in range(HEAD_BYTES // 6))),
    ],
)
async def test_what_is_no_request_is_answered_with_400_and_neither_quoted_nor_logged(
    port: PortUnderTest, garbage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    halves = (garbage[: len(garbage) // 2], garbage[len(garbage) // 2 :])
    async with port.connect() as stream:
        for half in halves:
            await stream.send(half)
        received = await read_until_closed(stream)
    assert statuses(received) == [400]
    assert received.endswith(b"\r\n\r\n400: Bad Request")
    assert caplog.records == []


async def test_a_connection_serves_one_request_after_another(port: PortUnderTest) -> None:
    async with port.connect() as stream:
        for version in ("1.1", "1.1"):
            await stream.send(get(version=version))
            assert statuses(await stream.receive()) == [200]
        await stream.send(get("/ok", "Connection: keep-alive", version="1.0"))
        assert b"\r\nConnection: keep-alive\r\n" in await stream.receive()
        await stream.send(get(version="1.0"))
        assert b"\r\nConnection: close\r\n" in await read_until_closed(stream)


async def test_requests_sent_at_once_are_answered_in_order(port: PortUnderTest) -> None:
    assert statuses(await port.exchange(get() + get("/other") + get("/ok", CLOSE) + get())) == [200, 404, 200]


async def test_more_requests_at_once_than_may_wait_are_refused_after_those(port: PortUnderTest) -> None:
    received = await port.exchange(get() * (PIPELINED + 5))
    assert statuses(received) == [200] * PIPELINED + [400]


async def test_nothing_is_read_while_an_answer_is_computed(port: PortUnderTest) -> None:
    async with port.connect() as stream:
        await stream.send(get("/held"))
        await stream.send(get("/held") * 3)
        with anyio.fail_after(PATIENCE):
            while not port.asked:  # noqa: ASYNC110 - seen from outside only
                await anyio.sleep(0.01)
        assert port.asked == 1
        port.may_answer.set()
        received = b""
        with anyio.fail_after(PATIENCE):
            while statuses(received) != [200] * 4:
                received += await stream.receive()


@pytest.mark.parametrize(
    "start", [b"", b"GET", b"GET /ok HTTP/1.1\r\nA: b", get() + b"GET"], ids=["nothing", "method", "header", "second"]
)
async def test_a_request_that_is_not_completed_in_time_is_given_up(
    port: PortUnderTest, start: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health_port, "HEAD_SECONDS", 0.05)
    async with port.connect() as stream:
        if start:
            await stream.send(start)
        assert statuses(await read_until_closed(stream)) == [200] * start.count(b"\r\n\r\n")


async def test_a_slow_client_gains_no_time_with_each_byte(port: PortUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_port, "HEAD_SECONDS", 0.2)
    sent = 0
    async with port.connect() as stream:
        with anyio.fail_after(PATIENCE), suppress(anyio.BrokenResourceError, anyio.EndOfStream):
            for byte in b"GET /ok HTTP/1.1\r\nA: " + b"b" * HEAD_BYTES:
                await stream.send(bytes([byte]))
                sent += 1
                with anyio.move_on_after(0.02):
                    await stream.receive()
    assert sent < 1000


async def test_an_idle_connection_is_closed(port: PortUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_port, "IDLE_SECONDS", 0.05)
    async with port.connect() as stream:
        await stream.send(get())
        assert statuses(await read_until_closed(stream)) == [200]


async def test_an_answer_that_is_not_read_is_given_up(port: PortUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_port, "SEND_SECONDS", 0.05)
    async with port.connect() as stream:
        await stream.send(get("/large"))
        await anyio.sleep(0.5)
        assert len(await read_until_closed(stream)) < len(LARGE)
    assert statuses(await port.exchange(get("/ok", CLOSE))) == [200]


async def test_a_large_answer_is_complete(port: PortUnderTest) -> None:
    assert (await port.exchange(get("/large", CLOSE))).partition(b"\r\n\r\n")[2] == LARGE


async def test_a_new_connection_closes_the_oldest(port: PortUnderTest) -> None:
    held: list[SocketStream] = []
    try:
        for _ in range(CONNECTIONS + 3):
            held.append(await anyio.connect_tcp(*port.address))
            await held[-1].send(get())
            assert statuses(await held[-1].receive()) == [200]
        for oldest in held[:3]:
            assert await read_until_closed(oldest) == b""
        await held[3].send(get())
        assert statuses(await held[3].receive()) == [200]
    finally:
        for stream in held:
            await stream.aclose()


async def test_clients_that_leave_while_an_answer_is_computed_leave_nothing_behind(port: PortUnderTest) -> None:
    for _ in range(3):
        async with port.connect() as stream:
            await stream.send(get("/held"))
    with anyio.fail_after(PATIENCE):
        while port.asked < 3:  # noqa: ASYNC110 - seen from outside only
            await anyio.sleep(0.01)
    port.may_answer.set()
    assert statuses(await port.exchange(get("/ok", CLOSE))) == [200]
