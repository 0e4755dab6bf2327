"""Requests to the API server: kubernetes_asyncio configures and authenticates, answers stay raw bytes."""

import logging
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Self

import anyio

from pgrole_controller import __version__
from pgrole_controller.kube import credentials
from pgrole_controller.kube.answers import (
    LIMIT,
    TRANSPORT_ERRORS,
    Lines,
    Released,
    read_body,
    read_refusal,
    unreachable,
)
from pgrole_controller.kube.errors import NotConfigured, Unreachable
from pgrole_controller.kube.http_connection import HttpAnswer, Limits
from pgrole_controller.kube.resource import JSON
from pgrole_controller.kube.route import read_trust
from pgrole_controller.kube.transport import ApiRequest, Reachability, RequestTimer, Transport

log = logging.getLogger(__name__)

CONNECT_TIMEOUT = 10.0  # seconds
REQUEST_TIMEOUT = 30.0


@dataclass(slots=True)
class _Renewals:
    """Those of credentials that several clients use: one at a time, and how many there were."""

    lock: anyio.Lock = field(default_factory=anyio.Lock)
    count: int = 0


class Client:
    def __init__(
        self,
        transport: Transport,
        known: credentials.Credentials,
        may_write: Callable[[], bool] = lambda: True,
        reachability: Reachability | None = None,
        renewals: _Renewals | None = None,
    ) -> None:
        """Call `connect` instead."""
        self.reachability = reachability or Reachability()
        self._transport = transport
        self._credentials = known
        self._may_write = may_write
        self._renewals = renewals or _Renewals()

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
        return Client(self._transport, self._credentials, may_write, self.reachability, self._renewals)

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
            async with Released(response):
                return await read_body(response, method, path, most)

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
        async with Released(response):
            if response.status != 200:
                raise await read_refusal(response, "WATCH", path)
            yield Lines(response, path, line_limit)

    async def _send(self, request: ApiRequest) -> HttpAnswer:
        """Renews credentials once if the server no longer accepts them."""
        before = self._renewals.count
        response = await self._call(request)
        if response.status != 401:
            return response
        response.close()
        await self._renew(before, request)
        return await self._call(request)

    async def _call(self, request: ApiRequest) -> HttpAnswer:
        try:
            response = await self._transport.send(request, await self._credentials.token())
        except TRANSPORT_ERRORS as error:
            self.reachability.note_failure()
            raise unreachable(request.method, request.path, error) from error
        self.reachability.note_answer(response.status)
        return response

    async def _renew(self, before: int, request: ApiRequest) -> None:
        """`before`: number of renewals when the refused request was sent; a renewal since then suffices."""
        async with self._renewals.lock:
            if self._renewals.count != before:
                return
            self._renewals.count += 1
            log.info("credentials refused, reading them again", extra={"source": self._credentials.source})
            try:
                if await self._credentials.renew():
                    self._transport.renew_certificates()  # before another task runs: their files may be temporary
            except TRANSPORT_ERRORS as error:
                raise unreachable(request.method, request.path, error) from error
            finally:
                credentials.forget_files()


class ApiAddress:
    """Clients share what verifies the server, and neither connections nor credentials."""

    def __init__(self, configuration: Any, trust: ssl.SSLContext | bool) -> None:  # noqa: ANN401 - kubernetes_asyncio's
        """Call `find` instead."""
        self._configuration = configuration
        self._trust = trust

    @classmethod
    async def find(
        cls,
        kubeconfig: str | None = None,
        *,
        context: str | None = None,
        address: str | None = None,
        ca_file: str | None = None,
        strict_tls: bool = True,
    ) -> Self:
        """Arguments as in `credentials.load_address`. Raises NotConfigured."""
        configuration = await credentials.load_address(
            kubeconfig, context=context, address=address, ca_file=ca_file, strict_tls=strict_tls
        )
        try:
            return cls(configuration, read_trust(configuration))
        except OSError as error:  # includes ssl.SSLError
            message = f"the certificate authority of {configuration.host} is not usable: {error}"
            raise NotConfigured(message) from error
        finally:
            credentials.forget_files()

    @asynccontextmanager
    async def connect(
        self, token: str, refused: Callable[[], None], reachability: Reachability | None = None
    ) -> AsyncIterator[Client]:
        """A client for one bearer token. `refused` is called whenever the API server answers 401."""
        known = credentials.BearerToken(self._configuration, token, refused)
        async with Transport(self._configuration, f"pgrole-controller/{__version__}", self._trust) as transport:
            yield Client(transport, known, reachability=reachability)
