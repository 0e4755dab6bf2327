"""An API server that someone else runs."""

from pathlib import Path

import pytest

from pgrole_controller.local import kubeconfig
from pgrole_controller.local.apiserver import ApiServer, RemoteApiServer
from pgrole_controller.local.manifests import create_namespace
from pgrole_controller.local.process import LocalError


async def test_it_is_spoken_to_as_to_ours_and_neither_frozen_nor_ended(api_server: ApiServer, tmp_path: Path) -> None:
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


async def test_its_kubeconfig_is_written_when_it_is_asked_for(api_server: ApiServer, tmp_path: Path) -> None:
    remote = RemoteApiServer(tmp_path, url=api_server.url, ca=api_server.ca, tokens={kubeconfig.ADMIN: "unused"})
    assert not remote.kubeconfig.exists()
    assert remote.kubeconfig_of(kubeconfig.ADMIN) == remote.kubeconfig
    assert api_server.url in remote.kubeconfig.read_text(encoding="utf-8")
