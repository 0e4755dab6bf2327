"""How the client authenticates, and continues to when its credentials change."""

import base64
import json
import shutil
import ssl
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
import yaml
from aiohttp import web

from pgrole_controller.kube import contexts, credentials
from pgrole_controller.kube.client import ApiAddress, Client
from pgrole_controller.kube.errors import ApiError, NotConfigured, Unreachable, WrongKubeconfig
from pgrole_controller.local.apiserver import ApiServer
from pgrole_controller.local.process import reached
from tests.certificates import Certificate, Certificates
from tests.fake_apiserver import WIDGETS, FakeApiServer, refuse


def as_user(kubeconfig: Path, user: dict[str, Any]) -> str:
    """Names `user` in the kubeconfig that the fake wrote."""
    config = json.loads(kubeconfig.read_text())
    config["users"] = [{"name": "us", "user": user}]
    config["contexts"][0]["context"]["user"] = "us"
    kubeconfig.write_text(json.dumps(config))
    return str(kubeconfig)


def count_descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def tokens(fake: FakeApiServer) -> list[str]:
    return [request.headers.get("Authorization", "") for request in fake.requests]


async def test_a_token_file_is_read_again_when_its_token_is_refused(tmp_path: Path) -> None:
    fake, token = FakeApiServer(), tmp_path / "token"
    token.write_text("first\n")
    async with fake.serve(tmp_path / "k"):
        config = as_user(tmp_path / "k", {"tokenFile": str(token)})
        async with Client.connect(config) as client:
            await client.request("GET", WIDGETS.path())
            token.write_text("second\n")
            fake.faults["list"].append(refuse(401, "Unauthorized"))
            await client.request("GET", WIDGETS.path())
    assert tokens(fake) == ["Bearer first", "Bearer first", "Bearer second"]


async def test_a_token_in_the_kubeconfig_is_read_again_when_it_is_refused(tmp_path: Path) -> None:
    fake = FakeApiServer()
    async with fake.serve(tmp_path / "k"):
        config = as_user(tmp_path / "k", {"token": "first"})
        async with Client.connect(config) as client:
            for content in ("", "users: [", "{}"):  # in the middle of being written
                written = (tmp_path / "k").read_text()
                (tmp_path / "k").write_text(content)
                fake.faults["list"].append(refuse(401, "Unauthorized"))
                with pytest.raises(Unreachable, match=r"not usable|Invalid kube-config"):
                    await client.request("GET", WIDGETS.path())
                (tmp_path / "k").write_text(written)
            as_user(tmp_path / "k", {"token": "second"})
            fake.faults["list"].append(refuse(401, "Unauthorized"))
            await client.request("GET", WIDGETS.path())
    assert tokens(fake) == ["Bearer first"] * 4 + ["Bearer second"]


class CertificateServer:
    """Accepts only requests with the client certificate of `accepted`, and notes whose it gets."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.accepted = folder, "first"
        self.callers: list[str] = []
        self.certificates = Certificates(folder)
        self.authority = self.certificates.authority("authority")

    def user(self, name: str) -> Certificate:
        return self.certificates.server(name, self.authority, subject=name)

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[None]:
        """Writes the kubeconfig `k`, without a user."""
        served = self.certificates.server("served", self.authority, "IP:127.0.0.1")
        trust = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(self.authority.chain))
        trust.load_cert_chain(served.chain, served.key)
        trust.verify_mode = ssl.CERT_OPTIONAL
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(application, shutdown_timeout=0.1)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=trust).start()
            data = base64.b64encode(self.authority.chain.read_bytes()).decode()
            cluster = {"server": f"https://127.0.0.1:{runner.addresses[0][1]}", "certificate-authority-data": data}
            context = {"name": "c", "context": {"cluster": "c", "user": ""}}
            (self.folder / "k").write_text(
                json.dumps(
                    {
                        "current-context": "c",
                        "clusters": [{"name": "c", "cluster": cluster}],
                        "contexts": [context],
                    }
                )
            )
            yield
        finally:
            await runner.cleanup()

    async def _handle(self, request: web.Request) -> web.Response:
        assert request.transport is not None
        (((_, caller),),) = request.transport.get_extra_info("peercert")["subject"]
        self.callers.append(caller)
        return web.json_response({"message": "expired"}, status=200 if caller == self.accepted else 401)


@pytest.mark.parametrize("where", ["files", "kubeconfig", "plugin"])
async def test_a_client_certificate_is_read_again_when_it_is_refused(
    tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = CertificateServer(tmp_path)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.setattr(credentials, "RENEW_PAUSE", 0.0)

    def use(name: str) -> str:
        made = server.user(name)
        if where == "files":
            chain, key = shutil.copy(made.chain, tmp_path / "mine.crt"), shutil.copy(made.key, tmp_path / "mine.key")
            return as_user(tmp_path / "k", {"client-certificate": str(chain), "client-key": str(key)})
        if where == "kubeconfig":
            chain, key = (base64.b64encode(path.read_bytes()).decode() for path in (made.chain, made.key))
            return as_user(tmp_path / "k", {"client-certificate-data": chain, "client-key-data": key})
        version = "client.authentication.k8s.io/v1"
        status = {"clientCertificateData": made.pem, "clientKeyData": made.key.read_text()}
        said = tmp_path / "said"
        said.write_text(json.dumps({"apiVersion": version, "kind": "ExecCredential", "status": status}))
        plugin = {"apiVersion": version, "command": shutil.which("cat"), "args": [str(said)]}
        return as_user(tmp_path / "k", {"exec": plugin})

    async with server.serve(), Client.connect(use("first")) as client:
        await client.request("GET", WIDGETS.path())
        server.accepted = "second"
        descriptors = count_descriptors()
        for _ in range(3):
            with pytest.raises(ApiError, match="expired"):
                await client.request("GET", WIDGETS.path())
        use("second")
        await client.request("GET", WIDGETS.path())
        await client.request("GET", WIDGETS.path())
        assert count_descriptors() <= descriptors + 2
    assert server.callers == ["first"] * 8 + ["second"] * 2
    assert list(temporary.iterdir()) == []


async def test_a_token_file_is_read_again_periodically(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake, token = FakeApiServer(), tmp_path / "token"
    token.write_text("first")
    monkeypatch.setattr(credentials, "RENEW_EVERY", 0.0)
    async with fake.serve(tmp_path / "k"):
        config = as_user(tmp_path / "k", {"tokenFile": str(token)})
        async with Client.connect(config) as client:
            token.write_text("second")
            await client.request("GET", WIDGETS.path())
    assert tokens(fake) == ["Bearer second"]


async def test_credentials_that_stay_refused_cause_an_error_after_one_retry(tmp_path: Path) -> None:
    fake = FakeApiServer()
    fake.always["list"] = refuse(401, "Unauthorized")
    async with fake.serve(tmp_path / "k"), Client.connect(as_user(tmp_path / "k", {"token": "wrong"})) as client:
        with pytest.raises(ApiError) as refused:
            await client.request("GET", WIDGETS.path())
    assert refused.value.status == 401
    assert len(fake.requests) == 2


async def test_an_exec_plugin_runs_again_when_its_token_is_refused(tmp_path: Path) -> None:
    fake, said = FakeApiServer(), tmp_path / "said"
    api_version = "client.authentication.k8s.io/v1"

    def say(token: str) -> None:
        status = {"token": token, "expirationTimestamp": "2999-01-01T00:00:00Z"}
        said.write_text(json.dumps({"apiVersion": api_version, "kind": "ExecCredential", "status": status}))

    say("first")
    plugin = {"apiVersion": api_version, "command": shutil.which("cat"), "args": [str(said)]}
    async with fake.serve(tmp_path / "k"), Client.connect(as_user(tmp_path / "k", {"exec": plugin})) as client:
        await client.request("GET", WIDGETS.path())
        say("second")
        fake.faults["list"].append(refuse(401, "Unauthorized"))
        await client.request("GET", WIDGETS.path())
        said.unlink()
        fake.faults["list"].append(refuse(401, "Unauthorized"))
        with pytest.raises(Unreachable, match="exec: process returned 1"):
            await client.request("GET", WIDGETS.path())
    assert tokens(fake) == ["Bearer first", "Bearer first", "Bearer second", "Bearer second"]


async def test_an_exec_plugin_without_a_new_token_does_not_run_again_at_once(tmp_path: Path) -> None:
    fake, said, runs = FakeApiServer(), tmp_path / "said", tmp_path / "runs"
    api_version = "client.authentication.k8s.io/v1"
    said.write_text(json.dumps({"apiVersion": api_version, "kind": "ExecCredential", "status": {"token": "only"}}))
    plugin = {"apiVersion": api_version, "command": "sh", "args": ["-c", f"echo >> {runs}; cat {said}"]}
    for gone, error in ((False, "401 Unauthorized"), (True, "exec: process returned 1")):
        async with fake.serve(tmp_path / "k"), Client.connect(as_user(tmp_path / "k", {"exec": plugin})) as client:
            fake.always["list"] = refuse(401, "Unauthorized")
            runs.unlink()
            if gone:
                said.unlink()
            for _ in range(3):
                with pytest.raises((ApiError, Unreachable), match=error):
                    await client.request("GET", WIDGETS.path())
        assert runs.read_text() == "\n"


async def test_an_exec_plugin_that_hangs_is_killed_at_the_timeout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake, said, hung = FakeApiServer(), tmp_path / "said", tmp_path / "hung"
    api_version = "client.authentication.k8s.io/v1"
    said.write_text(json.dumps({"apiVersion": api_version, "kind": "ExecCredential", "status": {"token": "first"}}))
    script = f"test -e {said} && exec cat {said}; echo $$ > {hung}; exec sleep 600"
    plugin = {"apiVersion": api_version, "command": "sh", "args": ["-c", script]}
    async with fake.serve(tmp_path / "k"), Client.connect(as_user(tmp_path / "k", {"exec": plugin})) as client:
        said.unlink()
        monkeypatch.setattr(credentials, "RENEW_TIMEOUT", 2.0)
        fake.always["list"] = refuse(401, "Unauthorized")
        with pytest.raises((ApiError, Unreachable)):
            await client.request("GET", WIDGETS.path())
        process = Path("/proc") / hung.read_text().strip()

        async def is_gone() -> bool:
            return not process.exists()

        assert await reached(is_gone, 60.0)


async def test_an_exec_plugin_runs_once_when_two_clients_of_its_token_are_refused(tmp_path: Path) -> None:
    """The controller's elector has one of its own, and a plugin may open a browser each time."""
    fake, said, runs = FakeApiServer(), tmp_path / "said", tmp_path / "runs"
    api_version = "client.authentication.k8s.io/v1"

    def say(token: str) -> None:
        status = {"token": token, "expirationTimestamp": "2999-01-01T00:00:00Z"}
        said.write_text(json.dumps({"apiVersion": api_version, "kind": "ExecCredential", "status": status}))

    say("first")
    plugin = {"apiVersion": api_version, "command": "sh", "args": ["-c", f"echo >> {runs}; cat {said}"]}
    async with fake.serve(tmp_path / "k"), Client.connect(as_user(tmp_path / "k", {"exec": plugin})) as client:
        runs.unlink()
        say("second")
        fake.faults["list"] += [refuse(401, "Unauthorized"), refuse(401, "Unauthorized")]
        async with anyio.create_task_group() as tasks:
            for one in (client, client.limited(lambda: True)):
                tasks.start_soon(one.request, "GET", WIDGETS.path())
    assert tokens(fake) == ["Bearer first"] * 2 + ["Bearer second"] * 2
    assert runs.read_text() == "\n"


async def test_a_token_stays_in_use_while_the_exec_plugin_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake, said = FakeApiServer(), tmp_path / "said"
    api_version = "client.authentication.k8s.io/v1"
    said.write_text(json.dumps({"apiVersion": api_version, "kind": "ExecCredential", "status": {"token": "valid"}}))
    plugin = {"apiVersion": api_version, "command": "cat", "args": [str(said)]}
    monkeypatch.setattr(credentials, "RENEW_EVERY", 0.0)
    async with fake.serve(tmp_path / "k"), Client.connect(as_user(tmp_path / "k", {"exec": plugin})) as client:
        said.unlink()
        await client.request("GET", WIDGETS.path())
    assert tokens(fake) == ["Bearer valid"]


def identity(expires: int) -> str:
    """A token of OIDC, unsigned."""
    return f"e30.{base64.b64encode(json.dumps({'exp': expires}).encode()).decode().rstrip('=')}.e30"


class Issuer:
    """An OIDC provider. `renewals`: what it answers to each."""

    def __init__(self) -> None:
        self.renewals: list[web.Response | None] = []

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[str]:
        app = web.Application()
        app.router.add_get("/.well-known/openid-configuration", self._describe)
        app.router.add_post("/token", self._renew)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        try:
            self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            yield self.url
        finally:
            await runner.cleanup()

    async def _describe(self, _: web.Request) -> web.Response:
        return web.json_response({"token_endpoint": f"{self.url}/token"})

    async def _renew(self, request: web.Request) -> web.Response:
        answer = self.renewals.pop(0)
        if answer is None:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        return answer


def renewed(token: str) -> web.Response:
    return web.json_response({"id_token": token, "refresh_token": "again"})


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda: web.Response(status=400), "oidc: failed to refresh access token"),
        (lambda: None, "ServerDisconnectedError"),
        (lambda: web.json_response({}), "KeyError: 'id_token'"),
        (lambda: web.Response(text="{", content_type="application/json"), "JSONDecodeError"),
        (lambda: web.Response(text="no JSON"), "ContentTypeError|failed to refresh"),
        (lambda: renewed("no token"), "JWT tokens should contain 3"),
        (lambda: renewed("a.%.c"), "not usable"),
    ],
    ids=["refused", "closed", "without a token", "not JSON", "another type", "no token", "malformed token"],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of kubernetes_asyncio
async def test_an_oidc_token_is_renewed_and_a_renewal_that_fails_is_an_error_of_the_request(
    tmp_path: Path, answer: Callable[[], web.Response | None], message: str
) -> None:
    fake, issuer, expired, second = FakeApiServer(), Issuer(), identity(1), identity(2)
    async with fake.serve(tmp_path / "k"), issuer.serve() as url:
        user = {
            "client-id": "c",
            "client-secret": "s",
            "idp-issuer-url": url,
            "id-token": expired,
            "refresh-token": "first",
        }
        issuer.renewals = [renewed(second), answer(), renewed(identity(3))]
        config = as_user(tmp_path / "k", {"auth-provider": {"name": "oidc", "config": user}})
        async with Client.connect(config) as client:
            await client.request("GET", WIDGETS.path())
            fake.faults["list"].append(refuse(401, "Unauthorized"))
            if message.startswith(("JWT", "not usable")):  # found at the renewal after it
                await client.request("GET", WIDGETS.path())
                fake.faults["list"].append(refuse(401, "Unauthorized"))
            with pytest.raises(Unreachable, match=message):
                await client.request("GET", WIDGETS.path())
    assert tokens(fake)[:2] == [f"Bearer {second}"] * 2


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of kubernetes_asyncio
async def test_a_kubeconfig_whose_oidc_token_cannot_be_renewed_is_not_usable(tmp_path: Path) -> None:
    fake, issuer = FakeApiServer(), Issuer()
    issuer.renewals = [None]
    async with fake.serve(tmp_path / "k"), issuer.serve() as url:
        user = {"client-id": "c", "client-secret": "s", "idp-issuer-url": url, "refresh-token": "first"}
        config = as_user(tmp_path / "k", {"auth-provider": {"name": "oidc", "config": user}})
        with pytest.raises(NotConfigured, match="ServerDisconnectedError"):
            async with Client.connect(config):
                pass


async def test_certificates_given_as_data_leave_no_file_once_connected(
    api_server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = yaml.safe_load(api_server.kubeconfig.read_text())
    cluster = config["clusters"][0]["cluster"]
    cluster.pop("certificate-authority", None)
    cluster["certificate-authority-data"] = base64.b64encode(api_server.ca.read_bytes()).decode()
    (tmp_path / "k").write_text(json.dumps(config))
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    for _ in range(2):
        async with Client.connect(str(tmp_path / "k")) as client:
            assert list(temporary.iterdir()) == []
            await client.request("GET", "/version")


async def test_a_forbidden_request_raises_the_api_servers_message(api_server: ApiServer, namespace: str) -> None:
    async with Client.connect(str(api_server.kubeconfig_of("pgrole-controller"))) as client:
        with pytest.raises(ApiError) as refused:
            await client.request("GET", f"/api/v1/namespaces/{namespace}/secrets")
    assert (refused.value.status, refused.value.reason) == (403, "Forbidden")
    assert "pgrole-controller" in refused.value.message


async def test_a_client_for_a_token_sends_only_that_token(tmp_path: Path) -> None:
    fake = FakeApiServer()
    refused: list[int] = []
    async with fake.serve(tmp_path / "k"):
        address = await ApiAddress.find(as_user(tmp_path / "k", {"token": "own"}))
        async with address.connect("viewer", lambda: refused.append(1)) as client:
            await client.request("GET", WIDGETS.path())
            fake.always["list"] = refuse(401, "Unauthorized")
            with pytest.raises(ApiError, match="Unauthorized"):
                await client.request("GET", WIDGETS.path())
    assert set(tokens(fake)) == {"Bearer viewer"}
    assert refused == [1]


async def test_an_address_has_no_client_certificate(tmp_path: Path, api_server: ApiServer) -> None:
    user = {"client-certificate": str(api_server.ca), "client-key": str(api_server.ca.with_suffix(".key"))}
    config = json.loads(json.dumps(yaml.safe_load(api_server.kubeconfig.read_text(encoding="utf-8"))))
    config["users"][0]["user"] = user
    (tmp_path / "k").write_text(json.dumps(config))
    configuration = await credentials.load_address(
        str(tmp_path / "k"), context=None, address=None, ca_file=None, strict_tls=True
    )
    assert (configuration.cert_file, configuration.key_file, configuration.api_key) == (None, None, {})
    assert configuration.host == api_server.url


async def test_in_a_pod_the_address_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "6443")
    configuration = await credentials.load_address(None, context=None, address=None, ca_file="/ca", strict_tls=True)
    assert (configuration.host, configuration.ssl_ca_cert) == ("https://[fd00::1]:6443", "/ca")


@pytest.fixture
def pod(api_server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """This process has a ServiceAccount of another cluster and no kubeconfig; returns its home."""
    (tmp_path / "token").write_text("of the pod")
    monkeypatch.setattr(contexts, "SERVICE_TOKEN", str(tmp_path / "token"))
    monkeypatch.setattr(credentials, "SERVICE_CERT_FILENAME", str(api_server.ca))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    return tmp_path


async def test_in_a_pod_a_context_means_the_kubeconfig(api_server: ApiServer, pod: Path) -> None:
    with pytest.raises(WrongKubeconfig, match=r'^--context: no kubeconfig has context "prod": set --kubeconfig'):
        await credentials.load(None, context="prod", strict_tls=True)
    (pod / ".kube").mkdir()
    config = shutil.copy(api_server.kubeconfig, pod / ".kube" / "config")
    context = yaml.safe_load(api_server.kubeconfig.read_text())["current-context"]
    given = await credentials.load(None, context=context, strict_tls=True)
    assert (given.source, given.configuration.host) == (str(config), api_server.url)
    address = await credentials.load_address(None, context=context, address=None, ca_file=None, strict_tls=True)
    assert address.host == api_server.url
    for load in (
        credentials.load(None, context="prod", strict_tls=True),
        credentials.load_address(None, context="prod", address=None, ca_file=None, strict_tls=True),
    ):
        with pytest.raises(WrongKubeconfig, match='has no context "prod"'):
            await load
    own = await credentials.load(None, context=None, strict_tls=True)
    assert (own.source, own.configuration.host) == ("in-cluster", "https://10.0.0.1:443")


async def test_in_a_pod_the_namespace_is_that_of_the_cluster_that_is_asked(api_server: ApiServer, pod: Path) -> None:
    (pod / "namespace").write_text("of-the-pod\n")
    (pod / ".kube").mkdir()
    config = yaml.safe_load(api_server.kubeconfig.read_text())
    (context,) = config["contexts"]
    context["context"]["namespace"] = "of-the-context"
    (pod / ".kube" / "config").write_text(yaml.safe_dump(config))
    for name, source, namespace in (
        (None, "in-cluster", "of-the-pod"),
        (context["name"], str(pod / ".kube" / "config"), "of-the-context"),
    ):
        assert (await credentials.load(None, context=name, strict_tls=True)).source == source
        assert contexts.read_namespace(None, name) == namespace
    given = str(pod / ".kube" / "config")
    assert contexts.read_namespace(given, None) == "of-the-context"
