"""The control plane as processes on this machine: etcd, API server, controller manager, scheduler."""

import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import anyio

from pgrole_controller.local import kubeconfig
from pgrole_controller.local.audit import AuditLog
from pgrole_controller.local.binaries import find
from pgrole_controller.local.display import Display
from pgrole_controller.local.process import tied_to_parent
from pgrole_controller.local.workspace import free_port
from tests.cluster.machine import HOST, PODS, SERVICES
from tests.compose.engine import EngineError

NODE_NAME = "node-1"
_MANAGER, _SCHEDULER, PROXY = "system:kube-controller-manager", "system:kube-scheduler", "system:kube-proxy"
KUBELET = f"system:node:{NODE_NAME}"
_USERS: Mapping[str, list[str]] = {_MANAGER: [], _SCHEDULER: [], PROXY: [], KUBELET: ["system:nodes"]}
_READY_SECONDS = 120.0


class ControlPlane:
    """`start` it, `stop` it. `kubeconfig` is an administrator's; `audit` logs requests of ServiceAccounts."""

    def __init__(self, folder: Path, programs: Path) -> None:
        self._folder = folder
        self._programs = programs
        self._tokens = kubeconfig.write_tokens(folder / "tokens.csv", _USERS)
        kubeconfig.write_service_account_key(folder / "service-account.key")
        self.audit = AuditLog(folder)
        self.url = f"https://{HOST}:{free_port()}"
        self._ca = folder / "certificates" / "apiserver.crt"
        self.kubeconfig = self.kubeconfig_of(kubeconfig.ADMIN)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def kubeconfig_of(self, user: str) -> Path:
        path = self._folder / f"{user.replace(':', '.')}.kubeconfig"
        return kubeconfig.write_kubeconfig(path, url=self.url, ca=self._ca, user=user, token=self._tokens[user])

    def start(self) -> None:
        """Starts it, and waits until the API server is ready. Raises EngineError."""
        binaries = anyio.run(find, Display(sys.stdout))
        etcd = f"http://127.0.0.1:{free_port()}"
        self._start(
            "etcd",
            binaries.etcd,
            f"--data-dir={self._folder / 'etcd'}",
            f"--listen-client-urls={etcd}",
            f"--advertise-client-urls={etcd}",
            "--listen-peer-urls=http://127.0.0.1:0",
            "--unsafe-no-fsync",
            "--log-level=warn",
        )
        self._start("kube-apiserver", binaries.kube_apiserver, *self._apiserver_arguments(etcd))
        deadline = time.monotonic() + _READY_SECONDS
        while not self._is_ready():
            self.check()
            if time.monotonic() > deadline:
                raise EngineError(f"the API server is not ready; see {self._folder}")
            time.sleep(0.2)
        self._start("kube-controller-manager", self._programs / "kube-controller-manager", *self._manager_arguments())
        self._start(
            "kube-scheduler",
            self._programs / "kube-scheduler",
            f"--kubeconfig={self.kubeconfig_of(_SCHEDULER)}",
            "--leader-elect=false",
            "--secure-port=0",
        )

    def check(self) -> None:
        """Raises EngineError if one of its programs has ended."""
        for name, process in self._processes.items():
            if process.poll() is not None:
                log = (self._folder / f"{name}.log").read_text(encoding="utf-8", errors="replace")
                raise EngineError(f"{name} ended with {process.returncode}:\n{log[-2000:]}")

    def stop(self) -> None:
        """Kills it, since its data is no longer needed."""
        for process in self._processes.values():
            process.kill()
            process.wait()

    def _start(self, name: str, program: Path, *arguments: str) -> None:
        with (self._folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                tied_to_parent([program, *arguments]),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _is_ready(self) -> bool:
        if not self._ca.exists():
            return False
        asked = ["curl", "-sS", "--max-time", "5", "--cacert", str(self._ca), f"{self.url}/readyz"]
        done = subprocess.run(asked, capture_output=True, text=True, check=False)
        return done.returncode == 0 and done.stdout == "ok"

    def _apiserver_arguments(self, etcd: str) -> list[str]:
        key = self._folder / "service-account.key"
        return [
            f"--etcd-servers={etcd}",
            f"--bind-address={HOST}",
            f"--advertise-address={HOST}",
            f"--secure-port={self.url.rpartition(':')[2]}",
            f"--cert-dir={self._folder / 'certificates'}",
            f"--service-cluster-ip-range={SERVICES}",
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            # Rejects a token that was not renewed in time, instead of accepting it for a year.
            "--service-account-extend-token-expiration=false",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            f"--token-auth-file={self._folder / 'tokens.csv'}",
            "--kubelet-preferred-address-types=InternalIP",
            *self.audit.arguments(),
        ]

    def _manager_arguments(self) -> list[str]:
        return [
            f"--kubeconfig={self.kubeconfig_of(_MANAGER)}",
            f"--service-account-private-key-file={self._folder / 'service-account.key'}",
            f"--root-ca-file={self._ca}",
            f"--cluster-cidr={PODS}",
            "--use-service-account-credentials=true",
            f"--flex-volume-plugin-dir={self._folder / 'plugins'}",
            "--leader-elect=false",
            "--secure-port=0",
        ]
