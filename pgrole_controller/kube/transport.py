"""Requests to the API server over a pool of connections, and whether it answers.

Metrics time requests by verb, resource and class of status code; no label contains an object's name.
"""

import asyncio
import json
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlencode

import anyio

from pgrole_controller import metrics
from pgrole_controller.event_loop import Signal
from pgrole_controller.kube.errors import Unreachable
from pgrole_controller.kube.http_connection import ConnectionLost, HttpAnswer, HttpConnection, Limits
from pgrole_controller.kube.route import ApiRoute, encode_head, read_trust

_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch"}


class RequestTimer:
    """Times one request, from its start to the end of the context, unless it is cancelled.

    Set `status` as soon as the answer begins.
    """

    __slots__ = ("_began", "_resource", "_verb", "status")

    def __init__(self, method: str, path: str, *, watch: bool = False) -> None:
        self._resource, named = read_path(path)
        self._verb = "watch" if watch else name_verb(method, named=named)
        self.status: int | None = None
        self._began = 0.0

    def __enter__(self) -> Self:
        self._began = time.perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.status is None and not isinstance(error, Unreachable):
            return
        code = "none" if self.status is None else f"{self.status // 100}xx"
        seconds = time.perf_counter() - self._began
        metrics.API_REQUEST_SECONDS.labels(self._verb, self._resource, code).observe(seconds)


def read_path(path: str) -> tuple[str, bool]:
    """Returns the resource in a path, as `pgroles` or `pgroles/status`, and whether the path names one object."""
    parts = path.strip("/").split("/")
    rest = parts[2:] if parts[0] == "api" else parts[3:]
    if rest[:1] == ["namespaces"] and len(rest) > 2:
        rest = rest[2:]
    if not rest:
        return metrics.OTHER, False
    return "/".join((rest[0], *rest[2:3])), len(rest) > 1


def name_verb(method: str, *, named: bool) -> str:
    """Returns the verb as in RBAC."""
    if method == "GET":
        return "get" if named else "list"
    if method == "DELETE":
        return "delete" if named else "deletecollection"
    return _VERBS.get(method, metrics.OTHER)


#: If no request was answered for this many seconds, a failed request means that the API server is away.
SILENT_SECONDS = 5.0


class Reachability:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._answered_at = clock()
        self._away = False
        self._back = Signal()

    def note_answer(self, status: int) -> None:
        """Records an answer, unless it comes from an overloaded server or, after an outage, from a server that starts:
        it refuses everyone until it has read its RBAC rules. One of 500 or more is a failure: a proxy gives it in place
        of a server that is away.
        """
        if status >= 500:
            self.note_failure()
            return
        if status == 429 or (self._away and status in (401, 403)):
            return
        self._answered_at = self._clock()
        if self._away:
            self._away = False
            self._back.pulse()

    def note_failure(self) -> None:
        """Records that a request was not answered."""
        self._away = self._away or self._clock() - self._answered_at >= SILENT_SECONDS

    async def wait_until_back(self) -> None:
        """Returns once the API server answers again after it was away."""
        await self._back.wait()


#: Maximum number of connections, watches included. Further requests wait.
CONNECTIONS = 100

#: Seconds after which a connection without a request is closed.
IDLE_SECONDS = 15.0

#: Sent once more if the server closed the connection that it kept open before it answered: it may have been idle too
#: long. Another request might have been executed.
_REPEATABLE = frozenset({"GET", "HEAD", "PUT", "DELETE"})

_encode = json.JSONEncoder(separators=(",", ":")).encode


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """`headers`: without those of every request, and without credentials."""

    method: str
    path: str
    limits: Limits
    headers: Mapping[str, str]
    query: Mapping[str, str] | None = None
    body: dict[str, Any] | list[Any] | None = None


class Transport:
    """An async context. Certificates are read when it is created and in `renew_certificates`; their files are not
    needed afterwards.
    """

    def __init__(
        self,
        configuration: Any,  # noqa: ANN401 - kubernetes_asyncio's
        user_agent: str,
        trust: ssl.SSLContext | bool | None = None,
    ) -> None:
        """`trust`: what `read_trust` returned for this configuration, to read no certificate again.

        Raises OSError (including ssl.SSLError) if the certificates cannot be used, NotConfigured for addresses.
        """
        self._route = ApiRoute(configuration, read_trust(configuration) if trust is None else trust, user_agent)
        self._slots = anyio.Semaphore(CONNECTIONS, fast_acquire=True)
        self._idle: list[tuple[float, HttpConnection]] = []  # with the time of its last request; the latest last
        self._tidying: asyncio.TimerHandle | None = None
        self._open = True
        self._renewals = 0  # of the client certificate

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._open = False
        if self._tidying is not None:
            self._tidying.cancel()
        for _since, connection in self._idle:
            connection.abort()
        self._idle.clear()
        await asyncio.sleep(0)  # the loop closes their sockets

    def renew_certificates(self) -> None:
        """Reads the client certificate again, if there is one, and makes new connections with it.

        Raises OSError (including ssl.SSLError).
        """
        if not self._route.read_certificates():
            return
        self._renewals += 1
        for _since, connection in self._idle:
            connection.abort()
        self._idle.clear()

    async def send(self, request: ApiRequest, authorization: str | None) -> HttpAnswer:
        """Returns the answer once its headers have arrived. Release or close it. Raises OSError."""
        method, path, limits = request.method, request.path, request.limits
        content = b"" if request.body is None else _encode(request.body).encode()
        headers = {**self._route.headers, **request.headers, "Accept-Encoding": "gzip"}
        if authorization is not None:
            headers["Authorization"] = authorization
        if content or method in ("POST", "PUT", "PATCH"):
            headers["Content-Length"] = str(len(content))
        target = self._route.target(f"{path}?{urlencode(request.query)}" if request.query else path)
        message = encode_head(method, target, headers) + content
        deadline = None if limits.total is None else asyncio.get_running_loop().time() + limits.total
        await self._wait_for_slot(limits)
        try:
            return await self._exchange(message, limits, deadline, repeatable=method in _REPEATABLE)
        except BaseException:
            self._slots.release()
            raise

    async def _wait_for_slot(self, limits: Limits) -> None:
        try:
            self._slots.acquire_nowait()
        except anyio.WouldBlock:
            with anyio.move_on_after(limits.total):
                await self._slots.acquire()
                return
            raise TimeoutError(f"no free connection within {limits.total:g} s") from None

    async def _exchange(
        self, message: bytes, limits: Limits, deadline: float | None, *, repeatable: bool
    ) -> HttpAnswer:
        connection = self._take()
        if connection is not None:
            try:
                return await connection.exchange(message, limits, deadline)
            except ConnectionLost:
                if not repeatable or connection.answered:
                    raise
        renewals = self._renewals
        connection = await self._route.connect(limits, deadline)
        connection.on_end = partial(self._keep, renewals)
        return await connection.exchange(message, limits, deadline)

    def _take(self) -> HttpConnection | None:
        while self._idle:
            since, connection = self._idle.pop()
            if connection.usable and time.monotonic() - since < IDLE_SECONDS:
                return connection
            connection.abort()
        return None

    def _keep(self, renewals: int, connection: HttpConnection) -> None:
        self._slots.release()
        if not connection.usable:
            return
        if not self._open or renewals != self._renewals:
            connection.abort()
            return
        self._idle.append((time.monotonic(), connection))
        if self._tidying is None:
            self._tidying = asyncio.get_running_loop().call_later(IDLE_SECONDS, self._tidy)

    def _tidy(self) -> None:
        now = time.monotonic()
        for since, connection in self._idle:
            if now - since >= IDLE_SECONDS:
                connection.abort()
        self._idle = [one for one in self._idle if now - one[0] < IDLE_SECONDS]
        due = IDLE_SECONDS - (now - self._idle[0][0]) if self._idle else 0.0
        self._tidying = asyncio.get_running_loop().call_later(due, self._tidy) if self._idle else None
