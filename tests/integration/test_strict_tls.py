"""PGROLE_STRICT_TLS=false: commands and the console, too, accept a cluster's CA that Python 3.13 rejects."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pytest

from pgrole_controller.cli import make_parser
from pgrole_controller.commands.server_reading import ClusterChoice, cluster_choice, open_cluster, server_choice
from pgrole_controller.console.console_parser import read_arguments
from pgrole_controller.kube.errors import Unreachable
from pgrole_controller.settings import WrongSetting
from tests.certificates import Certificate, Certificates
from tests.integration.console_stand import run_test_console

VARIABLE = "PGROLE_STRICT_TLS"


@dataclass(slots=True)
class BareApiServer:
    """Answers `{}` to each request, with a certificate of a CA without key usage. `requests`: their first lines."""

    authority: Certificate
    kubeconfig: str
    port: int = 0
    requests: list[bytes] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.requests.append(head.partition(b"\r\n")[0])
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")
        await writer.drain()
        writer.close()


@pytest.fixture
async def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[BareApiServer]:
    """With the contexts of Python 3.13, whichever runs the tests."""
    made = Certificates(tmp_path)
    authority = made.authority("authority", bare=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate = made.server("server", authority, "IP:127.0.0.1")
    context.load_cert_chain(certificate.chain, certificate.key)
    create = ssl.create_default_context

    def as_of_313(cafile: str | None = None) -> ssl.SSLContext:
        made = create(cafile=cafile)
        made.verify_flags |= ssl.VERIFY_X509_STRICT | ssl.VERIFY_X509_PARTIAL_CHAIN
        return made

    monkeypatch.setattr(ssl, "create_default_context", as_of_313)
    for name in (VARIABLE, "PGROLE_DSN", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    running = BareApiServer(authority, str(tmp_path / "config"))
    async with await asyncio.start_server(running.answer, "127.0.0.1", 0, ssl=context) as listening:
        running.port = listening.sockets[0].getsockname()[1]
        cluster = {"server": running.url, "certificate-authority": str(authority.chain)}
        document = {
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": {"token": "mine"}}],
        }
        (tmp_path / "config").write_text(json.dumps(document))
        yield running


@pytest.mark.parametrize("command", ["approve", "diff"])
async def test_a_command_reads_it(command: str, server: BareApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    options = make_parser().parse_args([command, "app", "--kubeconfig", server.kubeconfig])

    def choose() -> ClusterChoice:
        return cluster_choice(options) if command == "approve" else server_choice(options).cluster

    async with open_cluster(choose()) as client:
        with pytest.raises(Unreachable, match="certificate verify failed"):
            await client.request("GET", "/version")
    monkeypatch.setenv(VARIABLE, "false")
    async with open_cluster(choose()) as client:
        assert await client.request("GET", "/version") == b"{}"
    monkeypatch.setenv(VARIABLE, "no")
    with pytest.raises(WrongSetting, match=f"^{VARIABLE} 'no': must be true or false"):
        choose()


async def test_the_console_of_one_viewer_reads_it(server: BareApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    options = make_parser().parse_args(["console", "--port", "0", "--kubeconfig", server.kubeconfig])
    with pytest.RaisesGroup(pytest.RaisesExc(Unreachable, match="certificate verify failed"), flatten_subgroups=True):
        async with run_test_console(**asdict(read_arguments(options))):
            pass
    monkeypatch.setenv(VARIABLE, "false")
    async with run_test_console(**asdict(read_arguments(options))) as console:
        [address] = console.announced
        async with console.browser() as browser:
            assert await browser.status(address.removeprefix(console.url)) == 303
    assert server.requests


@pytest.mark.parametrize("by", ["address", "kubeconfig"])
async def test_the_console_with_tokens_reads_it(
    by: str, server: BareApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = ["--kubeconfig", server.kubeconfig]
    if by == "address":
        given = ["--api-server", server.url, "--certificate-authority", str(server.authority.chain)]
    options = make_parser().parse_args(["console", "--port", "0", "--auth", "token", *given])
    for value in ("true", "false"):
        monkeypatch.setenv(VARIABLE, value)
        async with (
            run_test_console(**asdict(read_arguments(options))) as console,
            console.browser() as browser,
        ):
            await browser.log_in("a-token")
        assert bool(server.requests) is (value == "false")
