"""A machine within this one, for a Kubernetes node: with its own mounts, network, processes and name.

Everything a node leaves behind (mounts, firewall rules, bridges, containers) disappears with its last process. Its
processes end with the first one, which ends with this process. Only control groups must be removed.
"""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pgrole_controller.local.process import tied_to_parent
from tests.compose.engine import EngineError, run

#: The two ends of the link between this machine and the node.
HOST, NODE = "10.247.255.1", "10.247.255.2"
PODS, SERVICES = "10.247.0.0/20", "10.247.96.0/24"
_VETH = "pgrole-node"
_GROUPS = Path("/sys/fs/cgroup")
_GROUP = "pgrole-cluster"
_SHARES = {"cpu.shares": 8 * 1024, "cpu.weight": 8 * 100}  # control groups version 1 and 2
_IP_SECONDS = 60.0
_GONE_SECONDS = 30.0
#: Programs of a node always write to these folders and set these kernel parameters, so the node gets its own.
_FOLDERS = "/run /var/lib /var/log"
_SETTINGS = (
    "vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops "
    "kernel/keys/root_maxkeys kernel/keys/root_maxbytes"
)
_INIT = f"""
set -e
mount --make-rprivate /
for folder in {_FOLDERS}; do mount -t tmpfs node "$folder"; done
for name in {_SETTINGS}; do
  mkdir -p "/run/settings/${{name%/*}}"
  cat "/proc/sys/$name" >"/run/settings/$name"
  mount --bind "/run/settings/$name" "/proc/sys/$name"
done
mount --make-rshared /
hostname node-1
echo started
while :; do sleep 3600 & wait; done
"""
_NAMESPACES = ("--mount", "--net", "--pid", "--uts", "--ipc")


class Machine:
    """Created by `machine`. All its containers are below control group `group`."""

    group = f"/{_GROUP}"

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._services: list[subprocess.Popen[bytes]] = []

    def command(self, *command: str | Path) -> list[str]:
        """Returns the command line that runs `command` there."""
        return ["nsenter", f"--target={self._pid}", *_NAMESPACES, "--", *(str(part) for part in command)]

    def run(self, *command: str | Path, seconds: float = 120) -> str:
        """Returns the output. Raises EngineError."""
        return run(self.command(*command), seconds=seconds)

    def start(self, log: Path, *command: str | Path) -> None:
        """Starts a program that runs until the machine ends."""
        with log.open("ab") as output:
            arguments = self.command(*command)
            self._services.append(subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=output, stderr=output))

    def check(self) -> None:
        """Raises EngineError if one of its programs has ended."""
        for process in self._services:
            if process.poll() is not None:
                raise EngineError(f"{process.args[-1]!r} ended with {process.returncode}")  # type: ignore[index]

    def wait(self) -> None:
        for process in self._services:
            process.wait()


@contextmanager
def machine() -> Iterator[Machine]:
    """Yields a machine that this one reaches as NODE, with its PODS and SERVICES. Raises EngineError."""
    if Path("/sys/class/net", _VETH).exists():
        raise EngineError(f"there is a network device {_VETH}: another cluster of these tests runs")
    command = tied_to_parent(["unshare", "--fork", "--kill-child", "--mount-proc", *_NAMESPACES, "sh", "-c", _INIT])
    init = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True)
    found = None
    try:
        assert init.stdout is not None
        if init.stdout.readline() != b"started\n":
            raise EngineError("the namespaces could not be created")
        found = Machine(_child(init.pid))
        _create_cgroups()
        _connect_node(found)
        yield found
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(init.pid, signal.SIGKILL)
        init.communicate()
        if found is not None:
            found.wait()
        _remove_cgroups()


def _child(pid: int) -> int:
    """Returns the process id, on this machine, of that machine's first process."""
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()[0])


def _connect_node(node: Machine) -> None:
    run(
        ["ip", "link", "add", _VETH, "type", "veth", "peer", "name", "eth0", "netns", str(node._pid)],
        seconds=_IP_SECONDS,
    )
    run(["ip", "address", "add", f"{HOST}/30", "dev", _VETH], seconds=_IP_SECONDS)
    run(["ip", "link", "set", _VETH, "up"], seconds=_IP_SECONDS)
    node.run("ip", "link", "set", "lo", "up")
    node.run("ip", "address", "add", f"{NODE}/30", "dev", "eth0")
    node.run("ip", "link", "set", "eth0", "up")
    node.run("ip", "route", "add", "default", "via", HOST)
    node.run("sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward")
    for network in (PODS, SERVICES):
        run(["ip", "route", "add", network, "via", NODE], seconds=_IP_SECONDS)


def _hierarchies() -> list[Path]:
    """Returns the roots of the control groups: one for each controller (version 1), or the single one (version 2)."""
    if (_GROUPS / "cgroup.controllers").exists():
        return [_GROUPS]
    return [path for path in _GROUPS.iterdir() if path.is_dir() and not path.is_symlink()]


def _create_cgroups() -> None:
    """Gives them the CPU share of several processes: otherwise probes would time out on a busy machine."""
    for hierarchy in _hierarchies():
        group = hierarchy / _GROUP
        group.mkdir(exist_ok=True)
        for name, share in _SHARES.items():
            if (group / name).exists():
                (group / name).write_text(str(share), encoding="utf-8")


def _remove_cgroups() -> None:
    """Waits briefly: the kernel needs a moment to empty them after their processes end."""
    deadline = time.monotonic() + _GONE_SECONDS
    for hierarchy in _hierarchies():
        while (hierarchy / _GROUP).exists():
            try:
                for folder, _, _ in os.walk(hierarchy / _GROUP, topdown=False):
                    Path(folder).rmdir()
            except OSError as error:
                if time.monotonic() > deadline:
                    raise EngineError(f"a control group is left: {error}") from error
                time.sleep(0.1)
