"""One HTTP/1.1 connection to the API server: one request at a time, its answer parsed by httptools.

The body of an answer arrives in chunks, decompressed. A reader that is slower than the server pauses the connection.

Guarantees: the head of an answer, its trailers and everything held for the reader have bounds. An answer that was cut
is an error, never a short body. Whatever fails closes the connection, and no request is left waiting.
"""

import asyncio
import zlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

#: Maximum size of the head of an answer, and of what follows the last chunk of its body, in bytes.
HEAD_BYTES = 64 * 1024

#: More than this many bytes that the reader has not taken pause the connection.
HELD_BYTES = 256 * 1024

#: Maximum number of bytes that one chunk of a compressed body becomes.
_INFLATED_BYTES = 1024 * 1024
#: Size of the buffer for encrypted bytes, and of each read of decrypted ones. A record of TLS has at most 16 KiB.
TLS_BUFFER_BYTES = 32 * 1024
_GZIP = 31  # zlib's number for this format


class BadAnswer(OSError):
    """What the server sent is not a complete HTTP answer, or has parts beyond their bounds."""


class ConnectionLost(ConnectionError):
    """The connection ended before the answer did."""


class BadRequest(OSError):
    """A request that cannot be sent."""


@dataclass(frozen=True, slots=True)
class Limits:
    """In seconds. `total`: until the end of the answer. `silence`: between two parts of it, and before the first."""

    connect: float
    total: float | None = None
    silence: float | None = None


class HttpAnswer:
    """Read `read_chunk` until it returns nothing, then call `release`; call `close` to give the rest up."""

    __slots__ = (
        "_chunks",
        "_connection",
        "_delimited",
        "_error",
        "_head",
        "_headed",
        "_held",
        "_inflate",
        "_is_compressed",
        "_loop",
        "_parser",
        "_seen",
        "_timer",
        "_unread",
        "_waiter",
        "complete",
        "headers",
        "keeps_alive",
        "status",
    )

    def __init__(self, connection: "HttpConnection", limits: Limits, deadline: float | None) -> None:
        """`deadline`: time of the loop, that of `limits.total`."""
        self.status = 0
        self.headers: dict[str, str] = {}  # names in lower case
        self.complete = False
        self.keeps_alive = False
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._parser: HttpResponseParser | None = HttpResponseParser(self)
        self._chunks: deque[bytes] = deque()
        self._held = 0
        self._head = 0  # bytes of headers
        self._headed = False
        self._delimited = False  # the end of the body is not that of the connection
        self._is_compressed = False
        self._inflate: zlib._Decompress | None = None  # from the first byte of a compressed body on
        self._unread = 0  # bytes since the last part of the body
        self._error: OSError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._seen = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None
        if deadline is not None:
            self._timer = self._loop.call_at(deadline, self._expire, f"no complete answer within {limits.total:g} s")
        elif limits.silence is not None:
            self._timer = self._loop.call_later(limits.silence, self._check_silence, limits.silence)

    @property
    def at_end(self) -> bool:
        """Whether everything was read."""
        return self.complete and not self._chunks and self._error is None

    @property
    def is_bare(self) -> bool:
        """Whether nothing but the head has arrived."""
        return not self._chunks and self._error is None

    async def wait_for_head(self) -> None:
        """Raises OSError."""
        while not self._headed:
            await self._progress()

    async def read_chunk(self) -> bytes:
        """Returns the next part of the body, b"" at its end. Raises OSError."""
        while True:
            while self._chunks:
                if chunk := self._take():
                    return chunk
            if self.complete and self._error is None:
                if self._inflate is None or self._inflate.eof:
                    return b""
                self.fail(BadAnswer("the compressed answer is cut"))
            await self._progress()

    def release(self) -> None:
        """Gives the connection back, for another request if everything was read."""
        self.detach()
        self._connection.end(self)

    def close(self) -> None:
        self._connection.abort()
        self.release()

    def _take(self) -> bytes:
        joined = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks.clear()
        self._held = 0
        self._connection.resume()
        return self._decompress(joined) if self._is_compressed else joined

    def _decompress(self, data: bytes) -> bytes:
        if self._inflate is None:
            self._inflate = zlib.decompressobj(wbits=_GZIP)
        try:
            inflated = self._inflate.decompress(data, _INFLATED_BYTES)
        except zlib.error as error:
            self.fail(BadAnswer(f"the answer is not compressed as its head says: {error}"))
            return b""
        if self._inflate.unused_data:
            self.fail(BadAnswer("more follows the compressed answer"))
        elif self._inflate.unconsumed_tail or len(inflated) == _INFLATED_BYTES:
            self._chunks.append(self._inflate.unconsumed_tail)
            self._held = len(self._inflate.unconsumed_tail)
        return inflated

    async def _progress(self) -> None:
        if self._error is not None:
            raise self._error
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # What the connection tells.

    def feed(self, data: bytes) -> None:
        if self._parser is None:  # complete, or failed
            self.keeps_alive = False
            return
        self._seen = self._loop.time()
        self._unread += len(data)
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade:
            self.fail(BadAnswer("the server switches to another protocol"))
        except HttpParserError as error:
            self.keeps_alive = False
            if not self.complete:
                cause = error.__context__
                self.fail(cause if isinstance(cause, BadAnswer) else BadAnswer(f"the answer is not HTTP: {error}"))
        else:
            if self._unread > HEAD_BYTES and not self.complete:
                self.fail(_too_long())
        if self.complete:
            self.detach()
        elif self._held > HELD_BYTES:
            self._connection.pause()
        if self._headed or self._error is not None:
            self._wake()

    def end(self, error: Exception | None) -> None:
        """The connection is lost."""
        if self.complete or self._error is not None:
            return
        if self._headed and not self._delimited and error is None:
            self.complete = True
            self.detach()
            self._wake()
            return
        reason = f"connection lost: {error}" if error else "the server closed the connection"
        self.fail(ConnectionLost(f"{reason} {'within' if self._connection.answered else 'before'} its answer"))

    def fail(self, error: OSError) -> None:
        if self._error is None:
            self._error = error
        self.detach()
        self._wake()
        self._connection.abort()

    def detach(self) -> None:
        """Expects nothing more from the connection."""
        self._parser = None  # each refers to the other
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self, message: str) -> None:
        self.fail(TimeoutError(message))

    def _check_silence(self, silence: float) -> None:
        now = self._loop.time()
        if self._connection.paused:
            self._seen = now
        due = self._seen + silence
        if now < due:
            self._timer = self._loop.call_at(due, self._check_silence, silence)
        else:
            self._expire(f"nothing received for {silence:g} s")

    # What the parser tells.

    def on_message_begin(self) -> None:
        if self.complete:
            raise BadAnswer("the server sent more than one answer")

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._headed:
            return  # a trailer
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        self.headers[key] = f"{self.headers[key]}, {text}" if key in self.headers else text
        self._head += len(name) + len(value)
        if self._head > HEAD_BYTES:
            raise _too_long()

    def on_headers_complete(self) -> None:
        if self._parser is None:
            return
        status = self._parser.get_status_code()
        if status == 101:
            raise BadAnswer("the server switches to another protocol")
        if status < 200:
            self.headers = {}  # informational: the answer follows
            return
        self.status = status
        self._headed = True
        self._delimited = "content-length" in self.headers or "transfer-encoding" in self.headers
        encoding = self.headers.get("content-encoding", "identity").strip().lower()
        self._is_compressed = encoding == "gzip"
        if encoding not in ("gzip", "identity"):
            raise BadAnswer("the answer is compressed in another way than the request accepts")

    def on_body(self, data: bytes) -> None:
        self._unread = 0
        self._chunks.append(data)
        self._held += len(data)

    def on_message_complete(self) -> None:
        if self._headed and self._parser is not None:
            self.complete = True
            self.keeps_alive = self._parser.should_keep_alive()


def _too_long() -> BadAnswer:
    return BadAnswer(f"the head of the answer is longer than {HEAD_BYTES:,} bytes")


class HttpConnection(asyncio.Protocol):
    def __init__(self) -> None:
        self.paused = False
        self.answered = False  # at least one byte of the answer to the last request has arrived
        self.on_end: Callable[[HttpConnection], None] | None = None  # called once for each answer
        self.transport: asyncio.Transport  # once it is connected
        self._answer: HttpAnswer | None = None
        self._is_lost = False

    @property
    def usable(self) -> bool:
        """Whether a request can be sent: nothing else is in progress, and the server has not closed it."""
        return self._answer is None and not self._is_lost and not self.transport.is_closing()

    async def exchange(self, request: bytes, limits: Limits, deadline: float | None) -> HttpAnswer:
        """Sends a request and returns the answer once its head has arrived. Raises OSError."""
        answer = HttpAnswer(self, limits, deadline)
        if not self.usable:
            answer.fail(ConnectionLost("the server closed the connection before its answer"))
        else:
            self._answer, self.answered = answer, False
            self.transport.write(request)
        try:
            await answer.wait_for_head()
        except BaseException:
            answer.fail(ConnectionLost("given up"))
            self._answer = None
            raise
        return answer

    def end(self, answer: HttpAnswer) -> None:
        """What follows an answer."""
        if self._answer is not answer:
            return
        self._answer = None
        self.resume()
        if not (answer.at_end and answer.keeps_alive):
            self.abort()
        if self.on_end is not None:
            self.on_end(self)

    def take_over(self, answer: HttpAnswer) -> None:
        """Ends HTTP on this connection after the head of an answer. Raises BadAnswer if more has arrived."""
        if not answer.is_bare:
            raise BadAnswer("more follows the head of the answer")
        answer.detach()
        self._answer = None

    def abort(self) -> None:
        self.transport.abort()

    def pause(self) -> None:
        if not self.paused:
            self.paused = True
            self.transport.pause_reading()

    def resume(self) -> None:
        if self.paused:
            self.paused = False
            if not self.transport.is_closing():
                self.transport.resume_reading()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        _shrink_tls_buffer(transport)

    def data_received(self, data: bytes) -> None:
        if self._answer is None:
            self.abort()  # nothing was asked
        else:
            self.answered = True
            self._answer.feed(data)

    def connection_lost(self, error: Exception | None) -> None:
        self._is_lost = True
        if self._answer is not None:
            self._answer.end(error)


def _shrink_tls_buffer(transport: asyncio.BaseTransport) -> None:
    """Only for this connection: asyncio's own buffer has 256 KiB, and so has each bytes object that it reads into.

    Harmless without TLS, or if asyncio names these attributes differently: then its own size stays.
    """
    protocol = getattr(transport, "_ssl_protocol", None)
    if protocol is not None and hasattr(protocol, "max_size") and hasattr(protocol, "_ssl_buffer"):
        protocol.max_size = TLS_BUFFER_BYTES
        protocol._ssl_buffer = bytearray()  # noqa: SLF001 - replaced by one of the size above at the next read
