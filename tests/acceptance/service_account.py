"""The ServiceAccount of a controller under test, with exactly the rights of deploy/, and what it was denied."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pgrole_controller.local.apiserver import ApiServer
from pgrole_controller.local.apiserver import api_server as run_api_server
from pgrole_controller.local.audit import AuditEntry
from pgrole_controller.local.binaries import Binaries
from pgrole_controller.local.kubeconfig import write_kubeconfig
from pgrole_controller.local.rights import RightsScope, install

#: Namespace of all installations in the tests; each has a unique name.
OWN_NAMESPACE = "pgrole-system"


def installation_for(namespace: str | None = None) -> RightsScope:
    """Returns the installation for all namespaces, or for one, whose account has only that overlay's rights."""
    if namespace is None:
        return RightsScope(namespace=OWN_NAMESPACE)
    return RightsScope(f"pgrole-controller-{namespace}", OWN_NAMESPACE, namespace)


def find_namespace(arguments: Sequence[str]) -> str | None:
    """Returns the argument of `--namespace` in a command line."""
    return arguments[arguments.index("--namespace") + 1] if "--namespace" in arguments else None


@dataclass(frozen=True, slots=True)
class ServiceAccount:
    """The account of one installation. Its kubeconfig is in `folder`, for the API server, or a proxy at `url`."""

    server: ApiServer
    installation: RightsScope
    folder: Path
    url: str = ""

    @property
    def kubeconfig(self) -> Path:
        return self.folder / f"{self.installation.name}.kubeconfig"

    async def prepare(self) -> dict[str, str]:
        """Installs it if needed, and writes its kubeconfig. Returns the environment that its Deployment sets."""
        user, server = self.installation.user, self.server
        if user not in server.users:
            await install(server, self.installation)
        token = server.token_of(user)
        write_kubeconfig(self.kubeconfig, url=self.url or server.url, ca=server.ca, user=user, token=token)
        environment = {"PGROLE_OWN_NAMESPACE": self.installation.namespace, "PGROLE_LEASE": self.installation.name}
        if self.installation.watched is not None:
            cluster = await server.request("GET", "/api/v1/namespaces/kube-system")
            environment["PGROLE_CLUSTER_ID"] = cluster["metadata"]["uid"]
        return environment


@dataclass(frozen=True, slots=True)
class Refusals:
    """Verifies that API servers did not deny ServiceAccounts anything."""

    _read: dict[ApiServer, int] = field(default_factory=dict)

    def watch(self, server: ApiServer) -> None:
        """Starts to watch an API server."""
        self._read[server] = server.audit.size

    def skip(self) -> None:
        """Ignores denials so far: tests of other folders cause some on purpose."""
        for server in self._read:
            self._read[server] = server.audit.size

    def check(self) -> None:
        """Raises AssertionError with what was denied since the last call."""
        refused: list[AuditEntry] = []
        for server, since in self._read.items():
            self._read[server] = server.audit.size
            refused += server.audit.refused(since)
        _check_none(refused)


@asynccontextmanager
async def serving(binaries: Binaries) -> AsyncIterator[ApiServer]:
    """Runs an API server that one test may break; once ready, it must not deny ServiceAccounts anything."""
    async with run_api_server(binaries=binaries, audit=True) as server:
        yield server
        check_none_refused(server)


def check_none_refused(server: ApiServer) -> None:
    """Raises AssertionError if it denied a ServiceAccount anything since it was ready."""
    _check_none(list(server.audit.refused(server.audit.ready_from)))


def _check_none(refused: Sequence[AuditEntry]) -> None:
    assert not refused, f"{len(refused)} requests refused, among them {refused[:5]}"
