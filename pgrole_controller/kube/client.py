"""Requests to the API server: kubernetes_asyncio configures and authenticates, answers stay raw bytes."""

import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Self

import anyio

from pgrole_controller import __version__
from pgrole_controller.kube import credentials
from pgrole_controller.kube.credentials import ConfigException
from pgrole_controller.kube.errors import AnswerTooLong, ApiError, BadStream, NotConfigured, Silent, Unreachable
from pgrole_controller.kube.http_connection import HttpAnswer, Limits
from pgrole_controller.kube.resource import JSON
from pgrole_controller.kube.transport import ApiRequest, Reachability, RequestTimer, Transport
from pgrole_controller.kube.unvalidated import limit_depth, read_json

log = logging.getLogger(__name__)

LIMIT = 64 * 2**20  # bytes; etcd rejects objects above 1.5 MiB, aggregated API servers need not
CONNECT_TIMEOUT = 10.0  # seconds
REQUEST_TIMEOUT = 30.0
RETRY_AFTER_MOST = 300.0  # seconds, whatever an answer demands
_REFUSAL_BYTES = 65_536

_TRANSPORT = (OSError, ConfigException)
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
                raise Silent(str(_unreachable("WATCH", self._path, error))) from error
            except _TRANSPORT as error:
                raise _unreachable("WATCH", self._path, error) from error
            if not chunk:
                raise StopAsyncIteration
            self._ready.extend(self._splitter.feed(chunk))
        return self._ready.popleft()


class Client:
    def __init__(
        self,
        transport: Transport,
        known: credentials.Credentials,
        may_write: Callable[[], bool] = lambda: True,
        reachability: Reachability | None = None,
    ) -> None:
        """Call `connect` instead."""
        self.reachability = reachability or Reachability()
        self._transport = transport
        self._credentials = known
        self._may_write = may_write
        self._renewing = anyio.Lock()
        self._renewals = 0

    @classmethod
    @asynccontextmanager
    async def connect(
        cls,
        kubeconfig: str | None = None,
        *,
        context: str | None = None,
        strict_tls: bool = True,
        reachability: Reachability | None = None,
    ) -> AsyncIterator[Self]:
        """Sends nothing yet. `strict_tls=False` accepts CAs that Python 3.13 began to reject.

        Raises NotConfigured if no API server is configured.
        """
        known = await credentials.load(kubeconfig, context=context, strict_tls=strict_tls)
        try:
            transport = Transport(known.configuration, f"pgrole-controller/{__version__}")
        except OSError as error:  # includes ssl.SSLError
            message = f"the certificates in {known.source} are not usable: {error}"
            raise NotConfigured(message) from error
        finally:
            credentials.forget_files()
        log.info("API server configured", extra={"server": known.configuration.host, "source": known.source})
        async with transport:
            yield cls(transport, known, reachability=reachability)

    @property
    def may_write(self) -> bool:
        return self._may_write()

    def limited(self, may_write: Callable[[], bool]) -> "Client":
        """Returns a client that always reads, but writes only while `may_write` is true; otherwise it raises
        Unreachable.
        """
        return Client(self._transport, self._credentials, may_write, self.reachability)

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: dict[str, Any] | list[Any] | None = None,
        content_type: str | None = None,
        accept: str = JSON,
        timeout: float = REQUEST_TIMEOUT,  # noqa: ASYNC109 - the connection's own: it closes it, too
        most: int = LIMIT,
    ) -> bytes:
        """Returns the body of a successful answer, of `most` bytes. `timeout` is in seconds, for the whole request.

        Raises ApiError, Unreachable (AnswerTooLong among them).
        """
        if method != "GET" and not self._may_write():
            raise Unreachable(f"{method} {path}: not sent, the Lease does not confirm that this process leads")
        headers = {"Accept": accept, "Content-Type": content_type or JSON}
        request = ApiRequest(method, path, Limits(CONNECT_TIMEOUT, total=timeout), headers, query, body)
        with RequestTimer(method, path) as latency:
            response = await self._send(request)
            latency.status = response.status
            async with _Released(response):
                return await _read(response, method, path, most)

    @asynccontextmanager
    async def stream(
        self,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        inactivity: float = 70.0,
        line_limit: int = LIMIT,
        accept: str = JSON,
    ) -> AsyncIterator[Lines]:
        """Opens a watch and yields its lines. Silence for `inactivity` seconds is Unreachable before the headers, and
        Silent after them.

        Raises ApiError for any status but 200, and Unreachable.
        """
        limits = Limits(CONNECT_TIMEOUT, silence=inactivity)
        with RequestTimer("GET", path, watch=True) as latency:
            response = await self._send(ApiRequest("GET", path, limits, {"Accept": accept}, query))
            latency.status = response.status
        async with _Released(response):
            if response.status != 200:
                raise await _refusal(response, "WATCH", path)
            yield Lines(response, path, line_limit)

    async def _send(self, request: ApiRequest) -> HttpAnswer:
        """Renews credentials once if the server no longer accepts them."""
        before = self._renewals
        response = await self._call(request)
        if response.status != 401:
            return response
        response.close()
        await self._renew(before, request)
        return await self._call(request)

    async def _call(self, request: ApiRequest) -> HttpAnswer:
        try:
            response = await self._transport.send(request, await self._credentials.token())
        except _TRANSPORT as error:
            self.reachability.note_failure()
            raise _unreachable(request.method, request.path, error) from error
        self.reachability.note_answer(response.status)
        return response

    async def _renew(self, before: int, request: ApiRequest) -> None:
        """`before`: number of renewals when the refused request was sent; a renewal since then suffices."""
        async with self._renewing:
            if self._renewals != before:
                return
            self._renewals += 1
            log.info("credentials refused, reading them again", extra={"source": self._credentials.source})
            try:
                if await self._credentials.renew():
                    self._transport.renew_certificates()  # before another task runs: their files may be temporary
            except _TRANSPORT as error:
                raise _unreachable(request.method, request.path, error) from error
            finally:
                credentials.forget_files()


class _Released:
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


async def _read(response: HttpAnswer, method: str, path: str, most: int) -> bytes:
    if not 200 <= response.status <= 299:
        raise await _refusal(response, method, path)
    chunks: list[bytes] = []
    size = 0
    try:
        while chunk := await response.read_chunk():
            chunks.append(chunk)
            size += len(chunk)
            if size > most:
                message = f"{method} {path}: the answer is longer than {most:,} bytes"
                raise AnswerTooLong(message)
    except _TRANSPORT as error:
        raise _unreachable(method, path, error) from error
    return b"".join(chunks)


async def _refusal(response: HttpAnswer, method: str, path: str) -> ApiError:
    """Converts an answer into an error. A body that is not a Status (from a proxy) becomes the message, truncated."""
    try:
        text = await _read_start(response)
    except _TRANSPORT as error:
        raise _unreachable(method, path, error) from error
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


def _unreachable(method: str, path: str, error: BaseException) -> Unreachable:
    return Unreachable(f"{method} {path}: {str(error) or type(error).__name__}")
