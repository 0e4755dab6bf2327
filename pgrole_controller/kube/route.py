"""How to reach the API server as the kubeconfig describes it: directly or through a proxy, TLS, names.

The proxy is determined once, and ~/.netrc is not read. CAs are read again when they do not verify a certificate, and
the client certificate when the API server refuses it.
"""

import asyncio
import base64
import math
import os
import ssl
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import SplitResult, quote, unquote, urlsplit

import anyio

from pgrole_controller.kube.errors import NotConfigured
from pgrole_controller.kube.http_connection import BadRequest, HttpConnection, Limits

_PORTS = {"http": 80, "https": 443}

#: Seconds after which the next address of a name is tried too, as RFC 8305 recommends.
_NEXT_ADDRESS_SECONDS = 0.25


#: Minimum time between two reads of the CAs after a certificate that they do not verify, in seconds.
TRUST_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class HttpAddress:
    is_tls: bool
    host: str
    port: int
    path: str  # without a slash at its end
    authorization: str | None  # Basic, from user and password

    @classmethod
    def parse(cls, url: str, what: str) -> Self:
        """Raises NotConfigured, with `what` as the subject."""
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port or _PORTS[parts.scheme]
            if not host:
                raise ValueError
            if not host.isascii():
                host = host.encode("idna").decode("ascii")
        except (ValueError, KeyError):  # neither the URL nor the cause: a proxy's has a password
            raise NotConfigured(f"{what} is not a URL http://… or https://… with a valid host and port") from None
        return cls(parts.scheme == "https", host, port, parts.path.rstrip("/"), _basic(parts))

    @property
    def named(self) -> str:
        """Host and port, as in CONNECT."""
        return f"{self._bracketed}:{self.port}"

    @property
    def header(self) -> str:
        """The value of the header Host."""
        return self._bracketed if self.port == _PORTS[self._scheme] else self.named

    @property
    def origin(self) -> str:
        return f"{self._scheme}://{self.header}"

    @property
    def is_literal(self) -> bool:
        """Whether the host is an IP address."""
        return ":" in self.host or self.host.replace(".", "").isdigit()

    @property
    def tls_name(self) -> str:
        return self.host.rstrip(".")

    @property
    def _scheme(self) -> str:
        return "https" if self.is_tls else "http"

    @property
    def _bracketed(self) -> str:
        return f"[{self.host}]" if ":" in self.host else self.host


def _basic(parts: SplitResult) -> str | None:
    if parts.username is None:
        return None
    pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return f"Basic {base64.b64encode(pair.encode()).decode('ascii')}"


class ApiRoute:
    def __init__(self, configuration: Any, trust: ssl.SSLContext | bool, user_agent: str) -> None:  # noqa: ANN401
        """`configuration` is kubernetes_asyncio's. `trust` verifies the API server, and a proxy with TLS too.

        Raises NotConfigured if an address is not usable.
        """
        self._api = HttpAddress.parse(configuration.host, "the address of the API server")
        proxy = configuration.proxy or find_proxy(configuration.host)
        self._proxy = HttpAddress.parse(proxy, "the address of the proxy") if proxy else None
        self._configuration = configuration
        self._trust = trust
        self._trust_read_at = -math.inf  # after a certificate was not trusted
        self._tls_name = configuration.tls_server_name or self._api.tls_name
        self._connect_head = encode_head(
            "CONNECT", self._api.named, {"Host": self._api.named, "User-Agent": user_agent, **self._proxy_headers()}
        )
        absolute = self._proxy is not None and not self._api.is_tls
        self._prefix = (self._api.origin if absolute else "") + quote(self._api.path, safe="/%:@!$&'()*+,;=~")
        #: Headers that each request has.
        self.headers = {"Host": self._api.header, "User-Agent": user_agent}
        if absolute:
            self.headers |= self._proxy_headers()

    def target(self, path: str) -> str:
        """The target of a request: a path, or a URL for a proxy that forwards requests."""
        return self._prefix + path

    async def connect(self, limits: Limits, deadline: float | None) -> HttpConnection:
        """`deadline`: time of the loop for the whole request.

        Raises OSError (among them TimeoutError and ssl.SSLError) with a message that names the host."""
        first = self._proxy or self._api
        seconds = limits.connect
        if deadline is not None:
            seconds = min(seconds, max(deadline - asyncio.get_running_loop().time(), 0.0))
        try:
            with anyio.fail_after(seconds):
                connection = await self._open(first)
                try:
                    if self._proxy is not None and self._api.is_tls:
                        await self._tunnel(connection, limits)
                except BaseException:
                    connection.abort()
                    raise
                return connection
        except TimeoutError:
            raise TimeoutError(f"no connection to {first.named} within {seconds:.3g} s") from None
        except ssl.SSLCertVerificationError as error:
            self._read_trust_again()
            raise ConnectionError(f"cannot connect to {first.named}: {error}") from error
        except (OSError, ValueError) as error:  # ValueError: a name that neither DNS nor TLS can have
            raise ConnectionError(f"cannot connect to {first.named}: {str(error) or type(error).__name__}") from error

    async def _open(self, address: HttpAddress) -> HttpConnection:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(
            HttpConnection,
            address.host,
            address.port,
            ssl=self._tls if address.is_tls else None,
            server_hostname=(self._tls_name if address is self._api else address.tls_name) if address.is_tls else None,
            # Not for an IP address: asyncio's race of addresses leaks a socket that is cancelled as it connects.
            happy_eyeballs_delay=None if address.is_literal else _NEXT_ADDRESS_SECONDS,
        )
        return connection

    async def _tunnel(self, connection: HttpConnection, limits: Limits) -> None:
        """CONNECT, and TLS with the API server in it."""
        loop = asyncio.get_running_loop()
        answer = await connection.exchange(self._connect_head, limits, None)
        if not 200 <= answer.status <= 299:
            raise ConnectionError(f"the proxy answered CONNECT {self._api.named} with status {answer.status}")
        connection.take_over(answer)
        transport = await loop.start_tls(connection.transport, connection, self._tls, server_hostname=self._tls_name)
        if transport is None:
            raise ConnectionError("the connection was lost during the TLS handshake")
        connection.connection_made(transport)

    def read_certificates(self) -> bool:
        """Reads the client certificate again for the next connections. Returns False if there is none.

        Raises OSError (including ssl.SSLError).
        """
        if not self._configuration.cert_file:
            return False
        self._trust = read_trust(self._configuration)
        return True

    def _read_trust_again(self) -> None:
        """For the next connection: the cluster's CA may have been replaced, and with it the file in this pod."""
        now = time.monotonic()
        if now - self._trust_read_at >= TRUST_SECONDS:
            self._trust_read_at = now
            with suppress(OSError):  # a kubeconfig that holds the CA itself was written to no file that still exists
                self._trust = read_trust(self._configuration)

    @property
    def _tls(self) -> ssl.SSLContext:
        if not isinstance(self._trust, ssl.SSLContext):  # an API server without TLS behind a proxy with it
            verifies, self._trust = self._trust, ssl.create_default_context()
            if not verifies:
                _trust_everyone(self._trust)
        return self._trust

    def _proxy_headers(self) -> dict[str, str]:
        authorization = None if self._proxy is None else self._proxy.authorization
        return {} if authorization is None else {"Proxy-Authorization": authorization}


def encode_head(method: str, target: str, headers: dict[str, str]) -> bytes:
    """Raises BadRequest for what would become another request, without quoting it: it may be a secret."""
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    for name, line in zip(("the target", *headers), lines, strict=True):
        if not line.isprintable():
            raise BadRequest(f"{name} of a request has a character that HTTP does not allow")
    if " " in target:
        raise BadRequest("the target of a request has a space")
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def find_proxy(address: str) -> str | None:
    """Returns the proxy from the environment (HTTPS_PROXY, HTTP_PROXY, NO_PROXY) for an address.

    A proxy with a TLS address is ignored: only `proxy-url` in a kubeconfig can name one.
    """
    if sys.platform == "linux" and not any(name.lower().endswith("_proxy") for name in os.environ):
        return None
    from urllib.request import getproxies, proxy_bypass  # slow: it imports http.client and email

    parts = urlsplit(address)
    if parts.hostname and proxy_bypass(parts.hostname):
        return None
    proxy = getproxies().get(parts.scheme)
    return None if proxy is None or proxy.startswith(("https:", "wss:")) else proxy


def read_trust(configuration: Any) -> ssl.SSLContext | bool:  # noqa: ANN401 - kubernetes_asyncio's
    """Reads the CAs, and the client certificate if there is one. Raises OSError (including ssl.SSLError)."""
    if not configuration.host.startswith("https"):
        return bool(configuration.verify_ssl)
    if configuration.verify_ssl or configuration.ssl_ca_cert:
        context = ssl.create_default_context(cafile=configuration.ssl_ca_cert)
    else:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # reads no CAs of the machine, which take 20 ms
    if configuration.cert_file:
        context.load_cert_chain(configuration.cert_file, keyfile=configuration.key_file)
    if not configuration.verify_ssl:
        _trust_everyone(context)
    if configuration.disable_strict_ssl_verification:
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


def _trust_everyone(context: ssl.SSLContext) -> None:
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
