"""HTTP with the API server, as a kubeconfig describes it: TLS, proxy, one pool of connections.

A request asks nothing of the machine: the proxy is found once, and ~/.netrc is not read. (aiohttp's `trust_env` does
both for each request, in a thread.)
"""

import json
import ssl
from collections.abc import Mapping
from typing import Any, Self
from urllib.parse import urlencode, urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp

_CONNECTIONS = 100
_READ_BUFFER = 2**21  # bytes; a line of a watch holds a whole object

_encode = json.JSONEncoder(separators=(",", ":")).encode


class Transport:
    """Use as a context. The certificates are read when it is made, and their files not needed afterwards."""

    def __init__(self, configuration: Any, user_agent: str) -> None:  # noqa: ANN401 - kubernetes_asyncio's
        """Raises OSError (ssl.SSLError too) where certificates cannot be used."""
        self._host = configuration.host
        self._server_name = configuration.tls_server_name or None
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=_CONNECTIONS, ssl=_trust(configuration)),
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
        """The answer, once its headers are there."""
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
    """The proxy of the environment (HTTPS_PROXY, HTTP_PROXY, NO_PROXY) for an address, as aiohttp finds it.

    A proxy that is spoken to with TLS is ignored: only `proxy-url` in a kubeconfig can name one.
    """
    parts = urlsplit(address)
    if parts.hostname and proxy_bypass(parts.hostname):
        return None
    proxy = getproxies().get(parts.scheme)
    return None if proxy is None or proxy.startswith(("https:", "wss:")) else proxy


def _trust(configuration: Any) -> ssl.SSLContext | bool:  # noqa: ANN401 - kubernetes_asyncio's
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
