"""How the client authenticates, and continues to when its credentials change."""

import base64
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from pgrole_controller.kube import credentials
from pgrole_controller.kube.api_address import ApiAddress
from pgrole_controller.kube.client import ApiError, Client, Unreachable
from pgrole_controller.local.apiserver import ApiServer
from tests.fake_apiserver import WIDGETS, FakeApiServer, refuse


def as_user(kubeconfig: Path, user: dict[str, Any]) -> str:
    """Names `user` in the kubeconfig that the fake wrote."""
    config = json.loads(kubeconfig.read_text())
    config["users"] = [{"name": "us", "user": user}]
    config["contexts"][0]["context"]["user"] = "us"
    kubeconfig.write_text(json.dumps(config))
    return str(kubeconfig)


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
