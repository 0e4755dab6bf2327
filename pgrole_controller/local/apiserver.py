"""Runs a real kube-apiserver with its etcd on 127.0.0.1 for the lifetime of a context.

No kube-controller-manager runs: nothing is garbage-collected, and a deleted namespace stays terminating. Users
authenticate by token. RBAC is enabled: `admin` is in system:masters, and `pgrole-controller` has only the rights that
RBAC objects grant. ServiceAccounts get tokens only on request, since there are no pods.

`RemoteApiServer` talks to one in a container in the same way, and never starts or stops it.
"""

import json
import ssl
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NoReturn

import aiohttp
import anyio

from pgrole_controller.local import kubeconfig
from pgrole_controller.local.audit import AuditLog
from pgrole_controller.local.binaries import Binaries, find
from pgrole_controller.local.display import Display
from pgrole_controller.local.process import LocalError, Process, reached, tied_to_parent
from pgrole_controller.local.workspace import free_port, server_folder

READY_SECONDS = 90.0
_ANSWER = aiohttp.ClientTimeout(total=30, connect=5)
_READY_PATHS = ("/readyz", "/api/v1/namespaces/default", "/api/v1/namespaces/kube-system")
_TOKEN_SECONDS = 300 * 86400  # of a ServiceAccount's token
_CERTIFICATE_SECONDS = 300 * 86400  # kube-apiserver's self-signed certificates are valid for a year
#: Resources, by group, that are served and can be watched, but from etcd instead of a cache of their own: hardly
#: anything here uses them, and an API server without these caches takes a quarter less CPU to start, and a third less
#: while it is idle.
_UNCACHED = {
    "": "pods endpoints nodes replicationcontrollers services persistentvolumes persistentvolumeclaims podtemplates "
    "resourcequotas limitranges",
    "apps": "deployments replicasets statefulsets daemonsets controllerrevisions",
    "autoscaling": "horizontalpodautoscalers",
    "batch": "jobs cronjobs",
    "certificates.k8s.io": "certificatesigningrequests",
    "discovery.k8s.io": "endpointslices",
    "flowcontrol.apiserver.k8s.io": "flowschemas prioritylevelconfigurations",
    "networking.k8s.io": "networkpolicies ingresses ingressclasses ipaddresses servicecidrs",
    "node.k8s.io": "runtimeclasses",
    "policy": "poddisruptionbudgets",
    "resource.k8s.io": "resourceclaims deviceclasses resourceslices resourceclaimtemplates",
    "scheduling.k8s.io": "priorityclasses",
    "storage.k8s.io": "storageclasses volumeattachments csinodes csidrivers csistoragecapacities "
    "volumeattributesclasses",
}
Json = dict[str, Any]


class LocalApiError(LocalError):
    """The API server answered with an error."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


class ApiServer(ABC):
    """An API server as its admin uses it. `url`, `ca`, `kubeconfig` and `token` (both admin's) survive restarts."""

    def __init__(
        self, folder: Path, *, url: str, ca: Path, tokens: Mapping[str, str], audit: AuditLog | None = None
    ) -> None:
        """`tokens` are those of its users, including admin; kubeconfigs are written to `folder` on demand."""
        self.folder = folder
        self.version = ""
        self.url = url
        self.ca = ca
        self.token = tokens[kubeconfig.ADMIN]
        self.kubeconfig = folder / f"{kubeconfig.ADMIN}.kubeconfig"
        self._tokens = dict(tokens)
        self._audit = audit
        self._session: aiohttp.ClientSession | None = None

    def kubeconfig_of(self, user: str) -> Path:
        """Returns the kubeconfig of a user named at the start or admitted since. Raises LocalError for another."""
        path = self.folder / f"{user.replace(':', '.')}.kubeconfig"
        token = self.token_of(user)
        return kubeconfig.write_kubeconfig(path, url=self.url, ca=self.ca, user=user, token=token)

    def token_of(self, user: str) -> str:
        """Returns the bearer token of a user named at the start or admitted since. Raises LocalError for another."""
        if user not in self._tokens:
            raise LocalError(f"{user!r} is not a user of this API server; it has {', '.join(self._tokens)}")
        return self._tokens[user]

    @property
    def users(self) -> frozenset[str]:
        """Users named at the start or admitted since."""
        return frozenset(self._tokens)

    async def admit(self, namespace: str, name: str) -> str:
        """Requests a token for a ServiceAccount, valid for 300 days, and returns the account's user name.

        Raises LocalApiError, for example if the account does not exist.
        """
        answer = await self.request(
            "POST",
            f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token",
            {
                "apiVersion": "authentication.k8s.io/v1",
                "kind": "TokenRequest",
                "spec": {"expirationSeconds": _TOKEN_SECONDS},
            },
        )
        user = f"system:serviceaccount:{namespace}:{name}"
        self._tokens[user] = answer["status"]["token"]
        return user

    @property
    def audit(self) -> AuditLog:
        """The audit log. Raises LocalError if none is kept."""
        if self._audit is None:
            raise LocalError("this API server keeps no audit log")
        return self._audit

    @abstractmethod
    async def start(self) -> None:
        """Waits until it is ready; a stopped one is started first. Raises LocalError."""

    @abstractmethod
    async def stop(self) -> None:
        """Closes the connections to it, and stops it if it was started here; its data stay."""

    @abstractmethod
    async def kill(self) -> None:
        """Ends the API server with SIGKILL; `start` brings it back on the same port. Raises LocalError if it was not
        started here, as do `pause` and `resume`.
        """

    @abstractmethod
    def pause(self) -> None:
        """Freezes the API server: connections stay open and nothing answers."""

    @abstractmethod
    def resume(self) -> None: ...

    async def request(
        self,
        method: str,
        path: str,
        body: Json | None = None,
        *,
        content_type: str = "application/json",
        accept: str = "application/json",
        query: Mapping[str, str] | None = None,
        user: str = kubeconfig.ADMIN,
    ) -> Json:
        """Returns the answer as JSON. Raises LocalApiError for a status of 400 and above, else aiohttp's errors."""
        async with self._client().request(
            method,
            self.url + path,
            data=None if body is None else json.dumps(body),
            headers={
                "Content-Type": content_type,
                "Accept": accept,
                "Authorization": f"Bearer {self.token_of(user)}",
            },
            params=query,
        ) as response:
            text = await response.text()
            is_json = response.content_type == "application/json"
            answer: Json = json.loads(text) if is_json else {"message": text}
            if response.status >= 400:
                raise LocalApiError(response.status, str(answer.get("message", text)))
            return answer

    async def _answers(self) -> bool:
        """Tells whether everything that callers need from the start exists."""
        if not self.ca.exists():
            return False
        try:
            for path in _READY_PATHS:
                await self.request("GET", path)
        except (LocalApiError, aiohttp.ClientError, TimeoutError, ssl.SSLError):
            return False
        return True

    async def _read_version(self) -> None:
        self.version = str((await self.request("GET", "/version"))["gitVersion"])

    def _client(self) -> aiohttp.ClientSession:
        if self._session is None:
            trust = ssl.create_default_context(cafile=str(self.ca))
            self._session = aiohttp.ClientSession(timeout=_ANSWER, connector=aiohttp.TCPConnector(ssl=trust))
        return self._session

    async def _close_session(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None


class OwnApiServer(ApiServer):
    """One that runs here, created by `api_server`."""

    def __init__(
        self, folder: Path, binaries: Binaries, users: Mapping[str, Sequence[str]], audit: AuditLog | None = None
    ) -> None:
        tokens = kubeconfig.write_tokens(folder / "tokens.csv", users)
        kubeconfig.write_service_account_key(folder / "service-account.key")
        _drop_old_certificates(folder)
        port, etcd_port = _ports(folder)
        ca = folder / "certificates" / "apiserver.crt"
        super().__init__(folder, url=f"https://127.0.0.1:{port}", ca=ca, tokens=tokens, audit=audit)
        self.etcd = Process("etcd", _etcd_command(binaries.etcd, folder, etcd_port), folder / "etcd.log")
        self.process = Process(
            "kube-apiserver",
            _apiserver_command(
                binaries.kube_apiserver, folder, port, etcd_port, [] if audit is None else audit.arguments()
            ),
            folder / "kube-apiserver.log",
        )
        self.kubeconfig_of(kubeconfig.ADMIN)

    async def start(self) -> None:
        """Starts whatever is not running, and waits until it is ready. Raises LocalError with the end of the log."""
        await self.etcd.start()
        await self.process.start()
        if not await reached(self._is_ready, READY_SECONDS):
            raise self.process.failure(f"was not ready after {READY_SECONDS:.0f} s")
        await self._read_version()
        if self._audit is not None:
            self._audit.ready_from = self._audit.size

    async def stop(self) -> None:
        """Stops the API server, then etcd; their data stays."""
        await self._close_session()
        await self.process.stop()
        await self.etcd.stop()

    async def kill(self) -> None:
        """Ends the API server with SIGKILL and leaves etcd running; `start` brings it back on the same port."""
        await self._close_session()
        await self.process.kill()

    def pause(self) -> None:
        """Freezes the API server: connections stay open and nothing answers."""
        self.process.pause()

    def resume(self) -> None:
        self.process.resume()

    async def _is_ready(self) -> bool:
        for process in (self.etcd, self.process):
            if not process.running:
                raise process.failure("ended before it was ready")
        return await self._answers()


class RemoteApiServer(ApiServer):
    """One in a container."""

    async def start(self) -> None:
        """Waits until it is ready. Raises LocalError on timeout."""
        if not await reached(self._answers, READY_SECONDS, every=0.2):
            raise LocalError(f"the API server at {self.url} was not ready after {READY_SECONDS:.0f} s")
        await self._read_version()

    async def stop(self) -> None:
        """Closes the connections to it."""
        await self._close_session()

    async def kill(self) -> None:
        self._refuse("killed")

    def pause(self) -> None:
        self._refuse("frozen")

    def resume(self) -> None:
        self._refuse("frozen")

    def _refuse(self, what: str) -> NoReturn:
        raise LocalError(f"the API server at {self.url} was not started here: it cannot be {what}")


@asynccontextmanager
async def api_server(
    state: Path | None = None,
    *,
    users: Mapping[str, Sequence[str]] | None = None,
    binaries: Binaries | None = None,
    audit: bool = False,
) -> AsyncIterator[OwnApiServer]:
    """Runs an API server for the lifetime of the context. `state` keeps its data, ports and tokens; without it, nothing
    is left.

    `users` are further users (name: groups) besides admin and pgrole-controller. `audit` logs every request of a
    ServiceAccount. Raises LocalError.
    """
    binaries = binaries or await find(Display(sys.stderr))
    with server_folder(state, "pgrole-apiserver-") as folder:
        server = OwnApiServer(folder, binaries, users or {}, AuditLog(folder) if audit else None)
        try:
            await server.start()
            yield server
        finally:
            with anyio.CancelScope(shield=True):
                await server.stop()


def _ports(folder: Path) -> tuple[int, int]:
    """Returns the ports of kube-apiserver and etcd: those of the last run if they are free."""
    path = folder / "ports.json"
    last = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    port, etcd_port = (free_port(last.get(name)) for name in ("kube-apiserver", "etcd"))
    path.write_text(json.dumps({"kube-apiserver": port, "etcd": etcd_port}), encoding="utf-8")
    return port, etcd_port


def _drop_old_certificates(folder: Path) -> None:
    certificate = folder / "certificates" / "apiserver.crt"
    if certificate.exists() and time.time() - certificate.stat().st_mtime > _CERTIFICATE_SECONDS:
        certificate.unlink()
        certificate.with_suffix(".key").unlink(missing_ok=True)


def _etcd_command(program: Path, folder: Path, port: int) -> list[str]:
    url = f"http://127.0.0.1:{port}"
    return tied_to_parent(
        [
            program,
            f"--data-dir={folder / 'etcd'}",
            f"--listen-client-urls={url}",
            f"--advertise-client-urls={url}",
            "--listen-peer-urls=http://127.0.0.1:0",
            "--unsafe-no-fsync",
            "--heartbeat-interval=1000",  # the only member elects itself: fewer ticks while idle
            "--election-timeout=10000",
            "--log-level=warn",
        ]
    )


def _apiserver_command(program: Path, folder: Path, port: int, etcd_port: int, further: Sequence[str]) -> list[str]:
    key = folder / "service-account.key"
    return tied_to_parent(
        [
            program,
            f"--etcd-servers=http://127.0.0.1:{etcd_port}",
            "--bind-address=127.0.0.1",
            f"--secure-port={port}",
            f"--cert-dir={folder / 'certificates'}",
            "--endpoint-reconciler-type=none",
            "--service-cluster-ip-range=10.0.0.0/24",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            "--authorization-mode=RBAC",
            f"--token-auth-file={folder / 'tokens.csv'}",
            "--disable-admission-plugins=ServiceAccount",
            "--enable-priority-and-fairness=false",  # its clients are few and do not compete
            f"--watch-cache-sizes={_uncached()}",
            *further,
        ]
    )


def _uncached() -> str:
    """Returns the value of --watch-cache-sizes: size 0 for each resource without a cache."""
    return ",".join(f"{name}{group and '.'}{group}#0" for group, names in _UNCACHED.items() for name in names.split())
