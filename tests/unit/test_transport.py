"""transport: how a kubeconfig and the environment determine the connection to the API server."""

import asyncio
import json
import ssl
from asyncio import Future
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from pgrole_controller.kube.client import Client
from pgrole_controller.kube.errors import Unreachable
from pgrole_controller.kube.route import find_proxy
from tests.certificates import Certificate, Certificates
from tests.fake_apiserver import WIDGETS, FakeApiServer

PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY")


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.mark.parametrize(
    ("environment", "address", "proxy"),
    [
        ({}, "https://api.example.com:6443", None),
        ({"HTTPS_PROXY": "http://proxy:3128"}, "https://api.example.com:6443", "http://proxy:3128"),
        ({"https_proxy": "http://me:secret@proxy:3128"}, "https://10.0.0.1", "http://me:secret@proxy:3128"),
        ({"HTTP_PROXY": "http://proxy:3128"}, "https://api.example.com", None),
        ({"HTTPS_PROXY": "http://proxy:3128", "NO_PROXY": ".example.com"}, "https://api.example.com:6443", None),
        ({"HTTPS_PROXY": "http://proxy:3128", "NO_PROXY": "10.0.0.1"}, "https://10.0.0.1:443", None),
        ({"HTTPS_PROXY": "http://proxy:3128", "NO_PROXY": "other"}, "https://10.0.0.1", "http://proxy:3128"),
        ({"HTTPS_PROXY": "http://proxy:3128", "NO_PROXY": "*"}, "https://api.example.com", None),
        ({"HTTPS_PROXY": "https://proxy:3128"}, "https://api.example.com", None),
    ],
)
def test_the_proxy_is_taken_from_the_environment(
    environment: dict[str, str], address: str, proxy: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert find_proxy(address) == proxy


@asynccontextmanager
async def listening(
    answered: list[bytes], context: ssl.SSLContext | None = None, names: list[str | None] | None = None
) -> AsyncIterator[int]:
    """Runs a server that records each request and answers it with `{}`. Yields its port."""
    if context is not None and names is not None:
        context.sni_callback = lambda _socket, name, _context: names.append(name)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answered.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context) as server:
        yield server.sockets[0].getsockname()[1]


def write(folder: Path, server: str, cluster: Mapping[str, object] = {}, user: Mapping[str, object] = {}) -> str:
    document = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": server, **cluster}}],
        "users": [{"name": "u", "user": user}],
    }
    (folder / "config").write_text(json.dumps(document))
    return str(folder / "config")


async def test_requests_go_through_the_proxy_of_the_environment_with_its_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxied: list[bytes] = []
    async with listening(proxied) as port:
        monkeypatch.setenv("HTTP_PROXY", f"http://me:secret@127.0.0.1:{port}")
        async with Client.connect(write(tmp_path, "http://api.example.invalid:8080")) as client:
            assert await client.request("GET", "/version") == b"{}"
    assert proxied[0].startswith(b"GET http://api.example.invalid:8080/version HTTP/1.1")
    assert b"Proxy-Authorization: Basic bWU6c2VjcmV0\r\n" in proxied[0]


async def test_the_proxy_of_the_kubeconfig_takes_precedence_over_that_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxied: list[bytes] = []
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    async with listening(proxied) as port:
        proxy = {"proxy-url": f"http://127.0.0.1:{port}"}
        async with Client.connect(write(tmp_path, "http://api.example.invalid", proxy)) as client:
            await client.request("GET", "/version")
    assert len(proxied) == 1


async def test_a_request_starts_no_thread_and_reads_no_netrc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login me password secret\n")
    monkeypatch.setenv("NETRC", str(netrc))
    loop, called = asyncio.get_running_loop(), list[object]()
    run = loop.run_in_executor

    def count(executor: Executor | None, call: Callable[..., object], *arguments: object) -> Future[object]:
        called.append(call)
        return run(executor, call, *arguments)

    fake = FakeApiServer()
    async with fake.serve(tmp_path / "k"), Client.connect(str(tmp_path / "k")) as client:
        monkeypatch.setattr(loop, "run_in_executor", count)
        for _ in range(3):
            await client.request("GET", WIDGETS.path())
    assert called == []
    assert ["Authorization" in request.headers for request in fake.requests] == [False, False, False]


def serving(certificate: Certificate, *, clients_of: Certificate | None = None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.chain, certificate.key)
    if clients_of is not None:
        context.load_verify_locations(clients_of.chain)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


async def test_client_certificate_and_authority_are_taken_from_the_kubeconfig(tmp_path: Path) -> None:
    made = Certificates(tmp_path)
    authority = made.authority("authority")
    user = made.server("user", authority)
    context = serving(made.server("server", authority, "IP:127.0.0.1"), clients_of=authority)
    answered: list[bytes] = []
    async with listening(answered, context) as port:
        named = {"certificate-authority": str(authority.chain)}
        certificate = {"client-certificate": str(user.chain), "client-key": str(user.key)}
        config = write(tmp_path, f"https://127.0.0.1:{port}", named, certificate)
        async with Client.connect(config) as client:
            assert await client.request("GET", "/version") == b"{}"
        async with Client.connect(write(tmp_path, f"https://127.0.0.1:{port}", named)) as client:
            with pytest.raises(Unreachable):
                await client.request("GET", "/version")
        async with Client.connect(write(tmp_path, f"https://127.0.0.1:{port}", {}, certificate)) as client:
            with pytest.raises(Unreachable, match="certificate verify failed"):
                await client.request("GET", "/version")
    assert len(answered) == 1
    assert b"authorization" not in answered[0].lower()


async def test_a_replaced_certificate_authority_is_used_without_a_restart(tmp_path: Path) -> None:
    """As in a pod, whose file with the cluster's CA the kubelet replaces."""
    made, file = Certificates(tmp_path), tmp_path / "ca.crt"
    old, new = made.authority("old"), made.authority("new")
    file.write_text(old.pem)
    context = serving(made.server("server", old, "IP:127.0.0.1"))
    async with listening([], context) as port:
        config = write(tmp_path, f"https://127.0.0.1:{port}", {"certificate-authority": str(file)})
        async with Client.connect(config) as client:
            assert await client.request("GET", "/version") == b"{}"
            rotated = made.server("rotated", new, "IP:127.0.0.1")
            context.load_cert_chain(rotated.chain, rotated.key)
            file.write_text(new.pem)
            with pytest.raises(Unreachable, match="certificate verify failed"):
                await client.request("GET", "/version")
            assert await client.request("GET", "/version") == b"{}"


async def test_an_authority_in_the_kubeconfig_itself_stays_when_a_certificate_is_not_trusted(tmp_path: Path) -> None:
    made = Certificates(tmp_path)
    old = made.authority("old")
    server = made.server("server", old, "IP:127.0.0.1")
    context = serving(made.server("other", made.authority("new"), "IP:127.0.0.1"))
    async with listening([], context) as port:
        held = {"certificate-authority-data": b64encode(old.pem.encode()).decode()}
        async with Client.connect(write(tmp_path, f"https://127.0.0.1:{port}", held)) as client:
            for _ in range(2):
                with pytest.raises(Unreachable, match="certificate verify failed"):
                    await client.request("GET", "/version")
            context.load_cert_chain(server.chain, server.key)
            assert await client.request("GET", "/version") == b"{}"


async def test_the_tls_server_name_of_a_kubeconfig_is_requested_and_verified(tmp_path: Path) -> None:
    made = Certificates(tmp_path)
    authority = made.authority("authority")
    asked: list[str | None] = []
    context = serving(made.server("server", authority, "DNS:kubernetes"))
    async with listening([], context, asked) as port:
        named = {"certificate-authority": str(authority.chain)}
        config = write(tmp_path, f"https://127.0.0.1:{port}", {**named, "tls-server-name": "kubernetes"})
        async with Client.connect(config) as client:
            await client.request("GET", "/version")
        async with Client.connect(write(tmp_path, f"https://127.0.0.1:{port}", named)) as client:
            with pytest.raises(Unreachable, match="certificate verify failed"):
                await client.request("GET", "/version")
    assert asked[0] == "kubernetes"


async def test_a_kubeconfig_may_disable_verification(tmp_path: Path) -> None:
    context = serving(Certificates(tmp_path).self_signed("server", "DNS:elsewhere"))
    async with listening([], context) as port:
        config = write(tmp_path, f"https://127.0.0.1:{port}", {"insecure-skip-tls-verify": True})
        async with Client.connect(config) as client:
            assert await client.request("GET", "/version") == b"{}"
