"""Answers of the API server: a body is read to its end, a refusal becomes an ApiError, a watch is split into lines."""

from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from pgrole_controller.kube.credentials import ConfigException
from pgrole_controller.kube.errors import AnswerTooLong, ApiError, BadStream, Silent, Unreachable
from pgrole_controller.kube.http_connection import HttpAnswer
from pgrole_controller.kube.unvalidated import limit_depth, read_json

LIMIT = 64 * 2**20  # bytes; etcd rejects objects above 1.5 MiB, aggregated API servers need not
RETRY_AFTER_MOST = 300.0  # seconds, whatever an answer demands
_REFUSAL_BYTES = 65_536

TRANSPORT_ERRORS = (OSError, ConfigException)
_REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    409: "Conflict",
    410: "Expired",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}


class LineTooLong(BadStream):
    pass


class LineSplitter:
    """Splits chunks into lines. A last line without a newline is truncated, and never returned."""

    __slots__ = ("_limit", "_pending", "_size")

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._pending: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """Returns the lines that this chunk completes, without newlines and without blank lines."""
        head, *rest = chunk.split(b"\n")
        self._hold(head)
        if not rest:
            return []
        first = b"".join(self._pending)
        *whole, tail = rest
        self._pending, self._size = [], 0
        self._hold(tail)
        return [line for line in (first, *whole) if line.strip()]

    def _hold(self, part: bytes) -> None:
        self._size += len(part)
        if self._size > self._limit:
            message = f"a line of the watch is longer than {self._limit} bytes"
            raise LineTooLong(message)
        self._pending.append(part)


class Lines:
    """The lines of one watch, as bytes. An async iterator that ends when the server ends the watch."""

    __slots__ = ("_answer", "_path", "_ready", "_splitter")

    def __init__(self, answer: HttpAnswer, path: str, limit: int = LIMIT) -> None:
        self._answer = answer
        self._path = path
        self._splitter = LineSplitter(limit)
        self._ready: deque[bytes] = deque()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        """Raises Unreachable (connection reset), Silent and LineTooLong."""
        while not self._ready:
            try:
                chunk = await self._answer.read_chunk()
            except TimeoutError as error:
                raise Silent(str(unreachable("WATCH", self._path, error))) from error
            except TRANSPORT_ERRORS as error:
                raise unreachable("WATCH", self._path, error) from error
            if not chunk:
                raise StopAsyncIteration
            self._ready.extend(self._splitter.feed(chunk))
        return self._ready.popleft()


class Released:
    """Returns the connection to the pool if the answer was read to its end, and closes it otherwise."""

    def __init__(self, response: HttpAnswer) -> None:
        self._response = response

    async def __aenter__(self) -> None:
        return None

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._response.at_end:
            self._response.release()
        else:
            self._response.close()


async def read_body(response: HttpAnswer, method: str, path: str, most: int) -> bytes:
    if not 200 <= response.status <= 299:
        raise await read_refusal(response, method, path)
    chunks: list[bytes] = []
    size = 0
    try:
        while chunk := await response.read_chunk():
            chunks.append(chunk)
            size += len(chunk)
            if size > most:
                message = f"{method} {path}: the answer is longer than {most:,} bytes"
                raise AnswerTooLong(message)
    except TRANSPORT_ERRORS as error:
        raise unreachable(method, path, error) from error
    return b"".join(chunks)


async def read_refusal(response: HttpAnswer, method: str, path: str) -> ApiError:
    """Converts an answer into an error. A body that is not a Status (from a proxy) becomes the message, truncated."""
    try:
        text = await _read_start(response)
    except TRANSPORT_ERRORS as error:
        raise unreachable(method, path, error) from error
    try:
        status = read_json(text)
    except ValueError:
        status = None
    return read_status(
        status if isinstance(status, dict) else {"message": text.decode(errors="replace").strip()[:500]},
        code=response.status,
        retry_after=_seconds(response.headers.get("retry-after")),
    )


async def _read_start(response: HttpAnswer) -> bytes:
    """Returns as much of a body as a message needs."""
    text = b""
    while len(text) < _REFUSAL_BYTES and (chunk := await response.read_chunk()):
        text += chunk
    return text[:_REFUSAL_BYTES]


def read_status(status: Mapping[str, Any], *, code: int | None = None, retry_after: float | None = None) -> ApiError:
    """Converts a Status object, from an answer's body or an ERROR event, into an ApiError."""
    status = limit_depth(status)
    given = status.get("code")
    number = code if code is not None else given if isinstance(given, int) else 500
    details = status.get("details")
    if retry_after is None and isinstance(details, dict):
        retry_after = _seconds(details.get("retryAfterSeconds"))
    reason = status.get("reason") or _REASONS.get(number, "Unknown")
    metadata = status.get("metadata")
    resume = metadata.get("continue") if isinstance(metadata, dict) else None
    return ApiError(
        number,
        str(reason),
        str(status.get("message", "")),
        retry_after,
        _causes(details),
        resume if isinstance(resume, str) else "",
    )


def _causes(details: object) -> frozenset[str]:
    causes = details.get("causes") if isinstance(details, dict) else None
    listed = causes if isinstance(causes, list) else []
    return frozenset(str(one["reason"]) for one in listed if isinstance(one, dict) and "reason" in one)


def _seconds(value: object) -> float | None:
    """Parses Retry-After in seconds, bounded; None for a date, malformed text, or no positive number."""
    if isinstance(value, str) and value.strip().isdecimal():
        value = float(value)
    if not isinstance(value, int | float) or not value > 0:
        return None
    return float(min(value, RETRY_AFTER_MOST))


def unreachable(method: str, path: str, error: BaseException) -> Unreachable:
    return Unreachable(f"{method} {path}: {str(error) or type(error).__name__}")
