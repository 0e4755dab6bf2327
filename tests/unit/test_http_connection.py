"""kube/http_connection and the pool in kube/transport, against a server that sends any bytes."""

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from pgrole_controller.kube import http_connection, transport
from pgrole_controller.kube.http_connection import (
    HEAD_BYTES,
    HELD_BYTES,
    BadAnswer,
    BadRequest,
    ConnectionLost,
    HttpAnswer,
    HttpConnection,
    Limits,
)
from pgrole_controller.kube.transport import CONNECTIONS, ApiRequest, Transport
from tests.raw_server import OK, RawServer, Script, keep_saying, raw_server, say, transport_to

PATIENCE = 30.0
LIMITS = Limits(PATIENCE, total=PATIENCE)
WATCH = Limits(PATIENCE, silence=PATIENCE)

CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X\r\n\r\n"
    b"3;ext=1\r\nabc\r\nB\r\n0123456789\n\r\n0\r\nX: y\r\n\r\n"
)
LONG = "a" * 100_000


async def ask(made: Transport, method: str = "GET", limits: Limits = LIMITS, **more: Any) -> HttpAnswer:
    return await made.send(ApiRequest(method, "/version", limits, **{"headers": {}, **more}), None)


async def read_all(answer: HttpAnswer) -> bytes:
    parts = []
    while chunk := await answer.read_chunk():
        parts.append(chunk)
    answer.release()
    return b"".join(parts)


async def answer_to(*parts: bytes, limits: Limits = LIMITS) -> bytes:
    async with raw_server(say(*parts)) as server, transport_to(server.url) as made:
        answer = await ask(made, limits=limits)
        try:
            return await read_all(answer)
        finally:
            answer.close()


class FedConnection(HttpConnection):
    """What would be written and closed is noted instead."""

    def __init__(self) -> None:
        super().__init__()
        self.is_aborted = False

    def abort(self) -> None:
        self.is_aborted = True

    def resume(self) -> None:
        pass

    def pause(self) -> None:
        pass


async def fed(parts: list[bytes], *, closed: bool = False) -> tuple[int, dict[str, str], bytes]:
    """Feeds an answer directly. Returns status, headers, body."""
    answer = HttpAnswer(FedConnection(), LIMITS, None)
    for part in parts:
        answer.feed(part)
    if closed:
        answer.end(None)
    await answer.wait_for_head()
    body = b""
    while chunk := await answer.read_chunk():
        body += chunk
    return answer.status, answer.headers, body


ANSWERS = {
    "length": (b"HTTP/1.1 200 OK\r\nA: b\r\nContent-Length: 5\r\n\r\nhello", b"hello"),
    "chunked": (CHUNKED, b"abc0123456789\n"),
    "no content": (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
    "informational first": (
        b"HTTP/1.1 100 Continue\r\nA: b\r\n\r\nHTTP/1.1 103 Early\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx",
        b"x",
    ),
    "gzip": (
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(gzip.compress(b"hello"))
        + gzip.compress(b"hello"),
        b"hello",
    ),
    "folded reason": (b"HTTP/1.1 200 \r\nContent-Length: 0\r\n\r\n", b""),
}


class TestHttpAnswers:
    """An answer is the same, however its bytes are cut; an incomplete one is an error."""

    @pytest.mark.parametrize("kind", ANSWERS)
    async def test_an_answer_cut_at_any_byte_is_the_same(self, kind: str) -> None:
        whole, body = ANSWERS[kind]
        expected = await fed([whole])
        assert expected[2] == body
        for at in range(1, len(whole)):
            assert await fed([whole[:at], whole[at:]]) == expected
        assert await fed([bytes([byte]) for byte in whole]) == expected

    @pytest.mark.parametrize("kind", ANSWERS)
    async def test_an_answer_that_ends_at_any_byte_before_its_end_is_an_error(self, kind: str) -> None:
        whole, _ = ANSWERS[kind]
        for end in range(len(whole)):
            with pytest.raises(ConnectionLost):
                await fed([whole[:end]], closed=True)

    async def test_without_a_length_the_body_ends_with_the_connection(self) -> None:
        for whole in (b"HTTP/1.1 200 OK\r\n\r\nhello", b"HTTP/1.0 200 OK\r\n\r\nhello"):
            for at in range(1, len(whole)):
                assert (await fed([whole[:at], whole[at:]], closed=True))[2] == b"hello"

    async def test_headers_are_found_by_lower_case_names_and_repeated_ones_joined(self) -> None:
        _, headers, _ = await fed([b"HTTP/1.1 200 OK\r\nRetry-After: 1\r\nA: 1\r\na: 2\r\nContent-Length: 0\r\n\r\n"])
        assert headers == {"retry-after": "1", "a": "1, 2", "content-length": "0"}

    @pytest.mark.parametrize(
        "garbage",
        [
            b"\0" * 100,
            b"SSH-2.0-OpenSSH_9.2\r\n",
            b"\x15\x03\x01\x00\x02\x02\x16",
            b"HTTP/1.1 abc\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nA\0: b\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
            b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
            b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Encoding: br\r\nContent-Length: 1\r\n\r\nx",
        ],
    )
    async def test_what_is_not_http_is_an_error(self, garbage: bytes) -> None:
        for parts in ([garbage], [bytes([byte]) for byte in garbage]):
            with pytest.raises(BadAnswer):
                await fed(parts)

    @pytest.mark.parametrize(
        "endless",
        [
            [b"HTTP/1.1 200 ", b"O" * 1000],
            [b"HTTP/1.1 200 OK\r\nA: ", b"b" * 1000],
            [b"HTTP/1.1 200 OK\r\n", b"".join(b"%d: %d\r\n" % (n, n) for n in range(100))],
            [b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 40],
            [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nA: ", b"b" * 1000],
            [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;", b"b" * 1000],
        ],
        ids=["status", "header", "headers", "informational", "trailer", "chunk extension"],
    )
    async def test_an_endless_head_is_an_error(self, endless: list[bytes]) -> None:
        connection = FedConnection()
        answer = HttpAnswer(connection, LIMITS, None)
        answer.feed(endless[0])
        for _ in range(2 * HEAD_BYTES // 1000):
            answer.feed(endless[1])
        assert connection.is_aborted
        with pytest.raises(BadAnswer, match="longer than"):
            await answer.read_chunk()

    async def test_a_long_head_in_one_piece_is_an_error(self) -> None:
        head = b"HTTP/1.1 200 OK\r\nA: " + b"b" * HEAD_BYTES + b"\r\nContent-Length: 1\r\n\r\nx"
        with pytest.raises(BadAnswer, match="longer than"):
            await fed([head])

    async def test_a_second_answer_closes_the_connection(self) -> None:
        async with raw_server(keep_saying(OK + OK, OK)) as server, transport_to(server.url) as made:
            for _ in range(2):
                assert await read_all(await ask(made)) == b"{}"
            assert server.connections == 2


class TestCompression:
    async def test_a_request_accepts_only_gzip(self) -> None:
        async with raw_server(say(OK)) as server, transport_to(server.url) as made:
            await read_all(await ask(made))
        assert b"\r\nAccept-Encoding: gzip\r\n" in server.requests[0]

    @pytest.mark.parametrize("size", [0, 1, 100, http_connection._INFLATED_BYTES, 5_000_000])
    async def test_a_compressed_body_is_inflated_in_bounded_chunks(self, size: int) -> None:
        body = gzip.compress(b"a" * size)
        head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(body)
        async with raw_server(say(head, body)) as server, transport_to(server.url) as made:
            answer = await ask(made)
            total = 0
            while chunk := await answer.read_chunk():
                assert len(chunk) <= http_connection._INFLATED_BYTES
                total += len(chunk)
            assert answer.at_end
            answer.release()
        assert total == size

    @pytest.mark.parametrize(
        "body",
        [gzip.compress(LONG.encode())[:-1], gzip.compress(b"a") + b"b", b"not compressed", gzip.compress(b"a")[:9]],
        ids=["cut", "more", "plain", "cut early"],
    )
    async def test_a_badly_compressed_body_is_an_error(self, body: bytes) -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(body)
        with pytest.raises(BadAnswer, match="compressed"):
            await answer_to(head, body)


class TestRequests:
    async def test_a_body_has_its_length_and_a_post_without_one_says_so(self) -> None:
        async with raw_server(keep_saying(OK, OK, OK)) as server, transport_to(server.url) as made:
            for method in ("POST", "DELETE"):
                await read_all(await ask(made, method))
            await read_all(await ask(made, "DELETE", body=[{"a": "ä"}]))
        assert b"\r\nContent-Length: 0\r\n" in server.requests[0]
        assert b"Content-Length" not in server.requests[1]
        body = json.dumps([{"a": "ä"}], separators=(",", ":")).encode()
        assert b"\r\nContent-Length: %d\r\n" % len(body) in server.requests[2]

    @pytest.mark.parametrize("value", ["a\r\nb: c", "a\nb", "a\rb", "a\0b"])
    async def test_a_header_never_becomes_two_and_its_value_is_not_quoted(self, value: str) -> None:
        async with raw_server(say(OK)) as server, transport_to(server.url) as made:
            with pytest.raises(BadRequest) as refused:
                await ask(made, headers={"Authorization": f"Bearer {value}"})
            assert "Bearer" not in str(refused.value)
            assert server.connections == 0

    @pytest.mark.parametrize("path", ["/a b", "/a\r\nb", "/a\0"])
    async def test_a_path_never_becomes_more_than_a_path(self, path: str) -> None:
        async with raw_server(say(OK)) as server, transport_to(server.url) as made:
            with pytest.raises(BadRequest):
                await made.send(ApiRequest("GET", path, LIMITS, {}), None)

    async def test_a_query_is_encoded(self) -> None:
        async with raw_server(say(OK)) as server, transport_to(server.url + "/prefix/") as made:
            answer = await made.send(ApiRequest("GET", "/a", LIMITS, {}, {"b": "c d&e"}), None)
            await read_all(answer)
        assert server.requests[0].startswith(b"GET /prefix/a?b=c+d%26e HTTP/1.1\r\n")


class TestPool:
    async def test_a_connection_is_used_again_after_an_answer_that_was_read_to_its_end(self) -> None:
        async with raw_server(keep_saying(OK, CHUNKED, OK)) as server, transport_to(server.url) as made:
            for _ in range(3):
                await read_all(await ask(made))
        assert server.connections == 1

    @pytest.mark.parametrize(
        "answer", [b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}", OK.replace(b"1.1", b"1.0")]
    )
    async def test_a_connection_is_not_used_again_if_the_server_says_so(self, answer: bytes) -> None:
        async with raw_server(keep_saying(answer, OK)) as server, transport_to(server.url) as made:
            for _ in range(2):
                await read_all(await ask(made))
        assert server.connections == 2

    async def test_an_answer_that_is_not_read_closes_its_connection(self) -> None:
        async with raw_server(keep_saying(OK[:-1])) as server, transport_to(server.url) as made:
            (await ask(made)).close()
            with anyio.fail_after(PATIENCE):
                await server.left.wait()

    async def test_an_answer_that_is_released_before_its_end_closes_its_connection(self) -> None:
        async with raw_server(keep_saying(OK, OK)) as server, transport_to(server.url) as made:
            answer = await ask(made)
            while not answer.complete:
                await anyio.lowlevel.checkpoint()
            answer.release()
            assert await read_all(await ask(made)) == b"{}"
            assert server.connections == 2

    async def test_an_idle_connection_that_the_server_closed_is_replaced(self) -> None:
        for method, repeated in (("GET", True), ("PUT", True), ("DELETE", True), ("PATCH", False), ("POST", False)):
            async with raw_server(keep_saying(OK)) as server, transport_to(server.url) as made:
                await read_all(await ask(made))
                if repeated:
                    assert await read_all(await ask(made, method)) == b"{}"
                else:
                    with pytest.raises(ConnectionLost, match="before its answer"):
                        await ask(made, method)
                assert server.connections == (2 if repeated else 1)

    async def test_a_request_is_repeated_only_once_and_not_after_a_byte_of_its_answer(self) -> None:
        async with raw_server(keep_saying(OK, b"H", ends=True)) as server, transport_to(server.url) as made:
            await read_all(await ask(made))
            with pytest.raises(ConnectionLost):
                await ask(made)
            assert server.connections == 1
        async with raw_server(keep_saying()) as server, transport_to(server.url) as made:
            with pytest.raises(ConnectionLost):
                await ask(made)
            assert server.connections == 1

    async def test_idle_connections_are_closed_after_a_while(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(transport, "IDLE_SECONDS", 0.01)
        async with raw_server(keep_saying(OK)) as server, transport_to(server.url) as made:
            await read_all(await ask(made))
            with anyio.fail_after(PATIENCE):
                await server.left.wait()

    async def test_more_requests_than_connections_wait_for_each_other(self) -> None:
        answered = []
        async with raw_server(keep_saying(*[OK] * 1000)) as server, transport_to(server.url) as made:

            async def one() -> None:
                answered.append(await read_all(await ask(made)))

            async with anyio.create_task_group() as tasks:
                for _ in range(3 * CONNECTIONS):
                    tasks.start_soon(one)
            assert len(answered) == 3 * CONNECTIONS
            assert server.connections <= CONNECTIONS

    async def test_a_request_that_finds_no_free_connection_in_time_is_an_error(self) -> None:
        async with raw_server(keep_saying(*[OK] * 2)) as server, transport_to(server.url) as made:
            held = [await ask(made) for _ in range(CONNECTIONS)]
            with pytest.raises(TimeoutError, match="no free connection"):
                await ask(made, limits=Limits(PATIENCE, total=0.01))
            for answer in held:
                answer.close()
            await read_all(await ask(made))

    async def test_failed_requests_give_their_places_back(self) -> None:
        async with raw_server(say(b"garbage\r\n")) as server, transport_to(server.url) as made:
            for _ in range(CONNECTIONS + 1):
                with pytest.raises(BadAnswer):
                    await ask(made)

    async def test_closing_the_transport_closes_idle_connections(self) -> None:
        async with raw_server(keep_saying(OK)) as server:
            async with transport_to(server.url) as made:
                await read_all(await ask(made))
            with anyio.fail_after(PATIENCE):
                await server.left.wait()


def stay_silent(head: bytes) -> Any:
    """Sends this, and nothing more until the client leaves."""

    def script(made: RawServer) -> Script:
        async def run(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await made.read(reader)
            writer.write(head)
            await reader.readexactly(1)

        return run

    return script


class TestTimes:
    HEADS = (b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nab")

    @pytest.mark.parametrize("head", HEADS)
    async def test_a_request_ends_after_its_time_wherever_the_server_stops(self, head: bytes) -> None:
        async with raw_server(stay_silent(head)) as server, transport_to(server.url) as made:
            with pytest.raises(TimeoutError, match=r"no complete answer within 0\.05 s"):
                await read_all(await ask(made, limits=Limits(PATIENCE, total=0.05)))
            with anyio.fail_after(PATIENCE):
                await server.left.wait()

    @pytest.mark.parametrize("head", HEADS)
    async def test_a_watch_ends_after_silence_wherever_the_server_stops(self, head: bytes) -> None:
        async with raw_server(stay_silent(head)) as server, transport_to(server.url) as made:
            with pytest.raises(TimeoutError, match=r"nothing received for 0\.05 s"):
                await read_all(await ask(made, limits=Limits(PATIENCE, silence=0.05)))
            with anyio.fail_after(PATIENCE):
                await server.left.wait()

    @pytest.mark.parametrize("head", HEADS)
    async def test_a_cancelled_request_closes_its_connection(self, head: bytes) -> None:
        async with raw_server(stay_silent(head)) as server, transport_to(server.url) as made:

            async def one() -> None:
                answer = await ask(made)
                try:
                    await read_all(answer)
                finally:
                    answer.close()

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(one)
                with anyio.fail_after(PATIENCE):
                    while not server.requests:  # noqa: ASYNC110 - seen from outside only
                        await anyio.sleep(0.01)
                tasks.cancel_scope.cancel()
            with anyio.fail_after(PATIENCE):
                await server.left.wait()


@asynccontextmanager
async def flooding() -> AsyncIterator[tuple[RawServer, list[int]]]:
    """Yields a server that sends without end, and how many bytes it could send so far."""
    sent = [0]

    def script(made: RawServer) -> Script:
        async def run(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await made.read(reader)
            writer.transport.set_write_buffer_limits(high=0)
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            while True:
                writer.write(b"8000\r\n" + b"a" * 0x8000 + b"\r\n")
                await writer.drain()
                sent[0] += 0x8000

        return run

    async with raw_server(script) as server:
        yield server, sent


async def test_a_reader_that_does_not_read_stops_the_server_and_continues_later() -> None:
    async with flooding() as (server, sent), transport_to(server.url) as made:
        answer = await ask(made, limits=WATCH)
        with anyio.fail_after(PATIENCE):
            while not answer._connection.paused:  # noqa: ASYNC110 - seen from outside only
                await anyio.sleep(0.01)
        assert answer._held <= HELD_BYTES + 512 * 1024
        read = 0
        with anyio.fail_after(PATIENCE):
            while read < 4 * 1024 * 1024:
                read += len(await answer.read_chunk())
        answer.close()
    assert sent[0] >= 3 * 1024 * 1024


async def test_a_watch_is_passed_on_part_by_part() -> None:
    received = asyncio.Event()

    def script(made: RawServer) -> Script:
        async def run(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await made.read(reader)
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\na\n\r\n")
            await received.wait()
            writer.write(b"2\r\nb\n\r\n0\r\n\r\n")
            await made.read(reader)

        return run

    async with raw_server(script) as server, transport_to(server.url) as made:
        answer = await ask(made, limits=WATCH)
        assert await answer.read_chunk() == b"a\n"
        received.set()
        assert await answer.read_chunk() == b"b\n"
        assert await answer.read_chunk() == b""
        answer.release()
