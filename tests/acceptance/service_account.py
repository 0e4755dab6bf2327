"""The account that a controller under test has, with the rights of deploy/ and no others, and what it was refused."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pgrole_controller.local.apiserver import ApiServer
from pgrole_controller.local.apiserver import api_server as run_api_server
from pgrole_controller.local.audit import AuditEntry
from pgrole_controller.local.binaries import Binaries
from pgrole_controller.local.credentials import write_kubeconfig
from pgrole_controller.local.rights import RightsScope, install

#: Of all installations of the tests; each has a name of its own.
OWN_NAMESPACE = "pgrole-system"


def installation_for(namespace: str | None = None) -> RightsScope:
    """The one for all namespaces, or for this one: its account has the rights of that overlay alone."""
    if namespace is None:
        return RightsScope(namespace=OWN_NAMESPACE)
    return RightsScope(f"pgrole-controller-{namespace}", OWN_NAMESPACE, namespace)


def find_namespace(arguments: Sequence[str]) -> str | None:
    """What `--namespace` is given in a command line."""
    return arguments[arguments.index("--namespace") + 1] if "--namespace" in arguments else None


@dataclass(frozen=True, slots=True)
class ServiceAccount:
    """Of one installation; its kubeconfig is in `folder`, for the API server or what stands before it at `url`."""

    server: ApiServer
    installation: RightsScope
    folder: Path
    url: str = ""

    @property
    def kubeconfig(self) -> Path:
        return self.folder / f"{self.installation.name}.kubeconfig"

    async def prepare(self) -> dict[str, str]:
        """Installs it unless it is, and writes its kubeconfig. The environment that its Deployment would have."""
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
    """Makes sure that API servers refused ServiceAccounts nothing."""

    _read: dict[ApiServer, int] = field(default_factory=dict)

    def watch(self, server: ApiServer) -> None:
        """From now on."""
        self._read[server] = server.audit.size

    def skip(self) -> None:
        """What was refused until now is nobody's concern: tests of other folders are refused on purpose."""
        for server in self._read:
            self._read[server] = server.audit.size

    def check(self) -> None:
        """Raises AssertionError with what was refused since the last time."""
        refused: list[AuditEntry] = []
        for server, since in self._read.items():
            self._read[server] = server.audit.size
            refused += server.audit.refused(since)
        _check_none(refused)


@asynccontextmanager
async def serving(binaries: Binaries) -> AsyncIterator[ApiServer]:
    """An API server for one test, which may break it; it refuses ServiceAccounts nothing, once it is ready."""
    async with run_api_server(binaries=binaries, audit=True) as server:
        yield server
        _check_none(list(server.audit.refused(server.audit.ready_from)))


def _check_none(refused: Sequence[AuditEntry]) -> None:
    assert not refused, f"{len(refused)} requests refused, among them {refused[:5]}"
