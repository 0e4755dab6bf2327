"""kube/route: the API server through proxies, with TLS, and what goes wrong on the way."""

import asyncio
import base64
import gc
import socket
import ssl
from asyncio.sslproto import SSLProtocol
from collections.abc import Callable
from pathlib import Path

import anyio.lowlevel
import pytest

from pgrole_controller.kube.errors import NotConfigured
from pgrole_controller.kube.http_connection import TLS_BUFFER_BYTES, Limits
from pgrole_controller.kube.route import HttpAddress
from pgrole_controller.kube.transport import ApiRequest, Transport
from tests.certificates import Certificate, Certificates
from tests.raw_server import OK, RawServer, Script, keep_saying, raw_server, say, transport_to
from tests.unit.test_http_connection import LIMITS, PATIENCE, ask, read_all, stay_silent


def tunnel(target: int) -> Callable[[RawServer], Script]:
    """A proxy that connects each client to a port of this machine, whatever it asked for."""

    def script(made: RawServer) -> Script:
        async def run(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await made.read(reader)
            from_target, to_target = await asyncio.open_connection("127.0.0.1", target)
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            try:
                await asyncio.gather(copy(reader, to_target), copy(from_target, writer))
            finally:
                to_target.transport.abort()

        return run

    return script


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65_536):
        writer.write(data)
        await writer.drain()
    writer.close()


def serving(certificate: Certificate) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.chain, certificate.key)
    return context


@pytest.fixture
def authority(tmp_path: Path) -> tuple[Certificates, Certificate]:
    made = Certificates(tmp_path)
    return made, made.authority("authority")


Authority = tuple[Certificates, Certificate]


def trusting(authority: Authority) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(authority[1].chain))


def of_this_machine(authority: Authority, names: str = "IP:127.0.0.1") -> ssl.SSLContext:
    return serving(authority[0].server("server", authority[1], names))


async def get(made: Transport) -> bytes:
    return await read_all(await ask(made))


@pytest.mark.parametrize("proxy_has_tls", [False, True])
async def test_tls_goes_through_a_tunnel_of_the_proxy(authority: Authority, proxy_has_tls: bool) -> None:
    context = of_this_machine(authority, "IP:127.0.0.1,DNS:api.invalid")
    async with (
        raw_server(keep_saying(OK, OK), context) as server,
        raw_server(tunnel(server.port), context if proxy_has_tls else None) as proxy,
        transport_to(
            "https://api.invalid:6443",
            f"http{'s' if proxy_has_tls else ''}://me:s%40y@127.0.0.1:{proxy.port}",
            trusting(authority),
        ) as made,
    ):
        for _ in range(2):
            assert await get(made) == b"{}"
        assert (server.connections, proxy.connections) == (1, 1)
    assert proxy.requests[0].startswith(b"CONNECT api.invalid:6443 HTTP/1.1\r\nHost: api.invalid:6443\r\n")
    assert b"\r\nProxy-Authorization: Basic " + base64.b64encode(b"me:s@y") + b"\r\n" in proxy.requests[0]
    assert server.requests[0].startswith(b"GET /version HTTP/1.1\r\nHost: api.invalid:6443\r\n")
    assert b"proxy-authorization" not in server.requests[0].lower()


async def test_a_connection_with_tls_has_a_small_buffer_of_its_own(authority: Authority) -> None:
    body = b"x" * 1_000_000
    context = of_this_machine(authority)
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    async with (
        raw_server(keep_saying(answer, answer), context) as server,
        raw_server(tunnel(server.port)) as proxy,
    ):
        address = server.url.replace("http:", "https:")
        for through in (None, f"http://127.0.0.1:{proxy.port}"):
            async with transport_to(address, through, trusting(authority)) as made:
                assert await get(made) == body
                ((_, connection),) = made._idle
                held = connection.transport._ssl_protocol  # type: ignore[attr-defined]
                assert (held.max_size, len(held._ssl_buffer)) == (TLS_BUFFER_BYTES, TLS_BUFFER_BYTES)
    assert SSLProtocol.max_size == 256 * 1024


async def test_the_certificate_behind_a_proxy_is_verified_by_the_name_of_the_api_server(authority: Authority) -> None:
    async with (
        raw_server(say(OK), of_this_machine(authority)) as server,
        raw_server(tunnel(server.port)) as proxy,
        transport_to("https://api.invalid", f"http://127.0.0.1:{proxy.port}", trusting(authority)) as made,
    ):
        with pytest.raises(ConnectionError, match="certificate verify failed: Hostname mismatch"):
            await get(made)
    assert server.requests == []


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n",
        b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 3\r\n\r\nno!",
    ],
)
async def test_a_refusal_of_the_proxy_is_an_error_with_its_status(authority: Authority, head: bytes) -> None:
    async with (
        raw_server(say(head)) as proxy,
        transport_to("https://api.invalid", f"http://me:secret@127.0.0.1:{proxy.port}", trusting(authority)) as made,
    ):
        with pytest.raises(ConnectionError, match=r"CONNECT api\.invalid:443 with status (407|502)") as refused:
            await get(made)
        assert "secret" not in str(refused.value)


async def test_what_a_proxy_sends_after_its_answer_is_not_taken_for_the_api_server(authority: Authority) -> None:
    head = b"HTTP/1.1 200 OK\r\n\r\n" + OK
    async with (
        raw_server(say(head)) as proxy,
        transport_to("https://api.invalid", f"http://127.0.0.1:{proxy.port}", trusting(authority)) as made,
    ):
        with pytest.raises(ConnectionError, match="more follows"):
            await get(made)


async def test_a_proxy_forwards_requests_without_tls() -> None:
    async with (
        raw_server(keep_saying(OK)) as proxy,
        transport_to("http://api.invalid:8080", f"http://me:secret@127.0.0.1:{proxy.port}") as made,
    ):
        assert await get(made) == b"{}"
    assert proxy.requests[0].startswith(b"GET http://api.invalid:8080/version HTTP/1.1\r\nHost: api.invalid:8080\r\n")
    assert b"\r\nProxy-Authorization: Basic " in proxy.requests[0]


async def test_a_server_that_does_not_answer_the_handshake_is_given_up(authority: Authority) -> None:
    async with raw_server(stay_silent(b"")) as server:
        address = server.url.replace("http:", "https:")
        async with transport_to(address, None, trusting(authority)) as made:
            with pytest.raises(TimeoutError, match=rf"no connection to 127\.0\.0\.1:{server.port} within 0\.1 s"):
                await ask(made, limits=Limits(0.1, total=PATIENCE))
            with pytest.raises(TimeoutError, match=rf"no connection to 127\.0\.0\.1:{server.port}"):
                await ask(made, limits=Limits(PATIENCE, total=0.1))


async def test_tls_failures_name_the_host_and_the_reason(authority: Authority) -> None:
    async with raw_server(say(OK), of_this_machine(authority)) as server:
        address = server.url.replace("http:", "https:")
        async with transport_to(address, None, ssl.create_default_context()) as made:
            with pytest.raises(ConnectionError, match=rf"127\.0\.0\.1:{server.port}: .*certificate verify failed"):
                await get(made)
    async with (
        raw_server(speak_plainly) as plain,
        transport_to(plain.url.replace("http:", "https:"), None, trusting(authority)) as made,
    ):
        with pytest.raises(ConnectionError, match=rf"127\.0\.0\.1:{plain.port}: .*SSL"):
            await get(made)


def speak_plainly(_: RawServer) -> Script:
    async def run(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await reader.read()

    return run


async def test_a_port_where_nothing_listens_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    async with transport_to(f"http://127.0.0.1:{port}") as made:
        with pytest.raises(ConnectionError, match=rf"cannot connect to 127\.0\.0\.1:{port}: .*Connect"):
            await made.send(ApiRequest("GET", "/", LIMITS, {}), None)


async def test_a_request_that_is_cancelled_while_it_connects_leaves_no_socket(authority: Authority) -> None:
    """A socket that is left is a warning, and that an error here."""
    loop = asyncio.get_running_loop()
    async with raw_server(keep_saying(OK), of_this_machine(authority)) as server:
        for turns in range(30):
            async with transport_to(server.url.replace("http:", "https:"), None, trusting(authority)) as made:
                request = loop.create_task(get(made))
                for _ in range(turns):
                    await anyio.lowlevel.checkpoint()
                request.cancel()
                await asyncio.gather(request, return_exceptions=True)
                del request
    gc.collect()


@pytest.mark.parametrize("name", ["a..b", "a" * 64, ".a"])
async def test_a_name_that_no_host_can_have_is_an_error_of_the_request(name: str, authority: Authority) -> None:
    async with transport_to(f"https://{name}", None, trusting(authority)) as made:
        with pytest.raises(ConnectionError, match=f"cannot connect to {name}:443"):
            await get(made)


async def test_an_ipv6_address_is_reached_and_named_in_brackets() -> None:
    requests: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(OK)
        writer.close()

    async with await asyncio.start_server(answer, "::1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with transport_to(f"http://[::1]:{port}") as made:
            assert await get(made) == b"{}"
    assert f"\r\nHost: [::1]:{port}\r\n".encode() in requests[0]


@pytest.mark.parametrize(
    ("url", "header", "named"),
    [
        ("https://api.example.com", "api.example.com", "api.example.com:443"),
        ("https://api.example.com:443/", "api.example.com", "api.example.com:443"),
        ("http://API.example.com:6443/x/", "api.example.com:6443", "api.example.com:6443"),
        ("https://[fd00::1]", "[fd00::1]", "[fd00::1]:443"),
        ("https://bücher.example", "xn--bcher-kva.example", "xn--bcher-kva.example:443"),
    ],
)
def test_host_and_port_are_read_from_a_url(url: str, header: str, named: str) -> None:
    address = HttpAddress.parse(url, "it")
    assert (address.header, address.named) == (header, named)


@pytest.mark.parametrize(
    "url",
    ["", "api.example.com:6443", "socks5://me:secret@proxy", "ftp://a", "https://", "https://a:99999", "https://[::1"],
)
def test_an_address_that_is_none_is_refused_without_quoting_it(url: str) -> None:
    with pytest.raises(NotConfigured, match="the address of the proxy is not a URL") as refused:
        transport_to("https://api.example.com", url or "http://", ssl.create_default_context())
    assert "secret" not in str(refused.value)
