"""An alternative API server: K3s in a container, for machines with Docker but without Go and the programs.

Selected by --kubernetes k3s. It is used like the local one, with the same tokens and audit log. In addition,
Kubernetes' own controllers run in it: dependents of deleted objects are garbage-collected, and namespaces terminate.
"""

import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NoReturn

import anyio
import anyio.to_thread
import pytest
import yaml

from pgrole_controller.local import kubeconfig
from pgrole_controller.local.apiserver import ApiServer, RemoteApiServer
from pgrole_controller.local.apiserver import api_server as local_api_server
from pgrole_controller.local.audit import AuditLog
from pgrole_controller.local.binaries import KUBERNETES, Binaries
from pgrole_controller.local.workspace import server_folder
from tests.servers import started

CHOICES = ("local", "k3s")
IMAGE = f"rancher/k3s:v{KUBERNETES}-k3s1"
_WITHOUT = "traefik,metrics-server,servicelb,local-storage,coredns"


class K3s(RemoteApiServer):
    """Skips tests that would stop or freeze it."""

    def _refuse(self, what: str) -> NoReturn:
        pytest.skip(f"this test needs the API server {what}: run it without --kubernetes k3s")


@asynccontextmanager
async def api_server(binaries: Binaries | None) -> AsyncIterator[ApiServer]:
    """Runs on this machine with an audit log or, without `binaries`, in a container."""
    if binaries is not None:
        async with local_api_server(binaries=binaries, audit=True) as server:
            yield server
        return
    with server_folder(None, "pgrole-k3s-") as folder:
        async with _container(folder) as server:
            yield server


@asynccontextmanager
async def _container(folder: Path) -> AsyncIterator[ApiServer]:
    """Mounts `folder` at its own path, so that paths given to the API server are valid in the container."""
    from testcontainers.community.k3s import K3SContainer

    tokens = kubeconfig.write_tokens(folder / "tokens.csv", {})
    audit = AuditLog(folder)
    asked = [f"--token-auth-file={folder / 'tokens.csv'}", *audit.arguments()]
    made = K3SContainer(IMAGE).with_volume_mapping(str(folder), str(folder), "rw")
    arguments = " ".join(f"--kube-apiserver-arg={one.removeprefix('--')}" for one in asked)
    made.with_command(f"server --disable={_WITHOUT} --tls-san={made.get_container_host_ip()} {arguments}")
    async with started(made):
        config = yaml.safe_load(await anyio.to_thread.run_sync(made.config_yaml))["clusters"][0]["cluster"]
        ca = anyio.Path(folder / "ca.crt")
        await ca.write_bytes(base64.b64decode(config["certificate-authority-data"]))
        server = K3s(folder, url=config["server"], ca=Path(ca), tokens=tokens, audit=audit)
        server.kubeconfig_of(kubeconfig.ADMIN)
        try:
            await server.start()
            yield server
        finally:
            await server.stop()
