"""An API server that someone else runs."""

from pathlib import Path

import pytest

from pgrole_controller.local import kubeconfig
from pgrole_controller.local.apiserver import ApiServer, RemoteApiServer
from pgrole_controller.local.manifests import create_namespace
from pgrole_controller.local.process import LocalError


async def test_a_remote_api_server_works_like_a_local_one_but_is_never_paused_or_stopped(
    api_server: ApiServer, tmp_path: Path
) -> None:
    tokens = {kubeconfig.ADMIN: api_server.token_of(kubeconfig.ADMIN)}
    remote = RemoteApiServer(tmp_path, url=api_server.url, ca=api_server.ca, tokens=tokens)
    await remote.start()
    assert remote.version == api_server.version
    await create_namespace(remote, "by-another-way")
    for refused in (remote.pause, remote.resume):
        with pytest.raises(LocalError, match="was not started here"):
            refused()
    with pytest.raises(LocalError, match="was not started here"):
        await remote.kill()
    await remote.stop()
    assert (await api_server.request("GET", "/api/v1/namespaces/by-another-way"))["metadata"]["uid"]


async def test_the_kubeconfig_of_a_remote_api_server_is_written_on_request(
    api_server: ApiServer, tmp_path: Path
) -> None:
    remote = RemoteApiServer(tmp_path, url=api_server.url, ca=api_server.ca, tokens={kubeconfig.ADMIN: "unused"})
    assert not remote.kubeconfig.exists()
    assert remote.kubeconfig_of(kubeconfig.ADMIN) == remote.kubeconfig
    assert api_server.url in remote.kubeconfig.read_text(encoding="utf-8")
