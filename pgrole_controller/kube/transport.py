"""HTTP connections to the API server as the kubeconfig describes them: TLS, proxy, one connection pool.

The proxy is determined once, and ~/.netrc is not read: aiohttp's `trust_env` does both for every request, in a thread.
Metrics time requests by verb, resource and class of status code; no label contains an object's name.
"""

import json
import ssl
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlencode, urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp

from pgrole_controller import metrics
from pgrole_controller.kube.errors import Unreachable
from pgrole_controller.signals import Signal

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
        """Records an answer, unless it comes from an overloaded server or a proxy without one."""
        if status == 429 or status >= 500:
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


_CONNECTIONS = 100
_READ_BUFFER = 2**21  # bytes; a watch sends each object as one line

_encode = json.JSONEncoder(separators=(",", ":")).encode


class Transport:
    """An async context. Certificates are read when it is created; their files are not needed afterwards."""

    def __init__(
        self,
        configuration: Any,  # noqa: ANN401 - kubernetes_asyncio's
        user_agent: str,
        trust: ssl.SSLContext | bool | None = None,
    ) -> None:
        """`trust`: what `read_trust` returned for this configuration, to read no certificate again.

        Raises OSError (including ssl.SSLError) if the certificates cannot be used.
        """
        self._host = configuration.host
        self._server_name = configuration.tls_server_name or None
        verified = read_trust(configuration) if trust is None else trust
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=_CONNECTIONS, ssl=verified),
            headers={"User-Agent": user_agent},
            proxy=configuration.proxy or find_proxy(self._host),
            read_bufsize=_READ_BUFFER,
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def send(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None,
        headers: Mapping[str, str],
        limits: aiohttp.ClientTimeout,
        body: dict[str, Any] | list[Any] | None,
    ) -> aiohttp.ClientResponse:
        """Returns the answer once its headers have arrived."""
        target = f"{self._host}{path}?{urlencode(query)}" if query else f"{self._host}{path}"
        return await self._session.request(
            method,
            target,
            headers=headers,
            data=None if body is None else _encode(body).encode(),
            timeout=limits,
            server_hostname=self._server_name,
        )


def find_proxy(address: str) -> str | None:
    """Returns the proxy from the environment (HTTPS_PROXY, HTTP_PROXY, NO_PROXY) for an address, as aiohttp finds it.

    A proxy with a TLS address is ignored: only `proxy-url` in a kubeconfig can name one.
    """
    parts = urlsplit(address)
    if parts.hostname and proxy_bypass(parts.hostname):
        return None
    proxy = getproxies().get(parts.scheme)
    return None if proxy is None or proxy.startswith(("https:", "wss:")) else proxy


def read_trust(configuration: Any) -> ssl.SSLContext | bool:  # noqa: ANN401 - kubernetes_asyncio's
    """Reads the CAs, and the client certificate if there is one. Raises OSError (including ssl.SSLError)."""
    if not configuration.host.startswith("https"):
        return bool(configuration.verify_ssl)
    context = ssl.create_default_context(cafile=configuration.ssl_ca_cert)
    if configuration.cert_file:
        context.load_cert_chain(configuration.cert_file, keyfile=configuration.key_file)
    if not configuration.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if configuration.disable_strict_ssl_verification:
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context
