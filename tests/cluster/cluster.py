"""A one-node cluster for the lifetime of a context, and a user's access to it: kubectl, helm, psql."""

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cluster.control_plane import ControlPlane
from tests.cluster.machine import machine
from tests.cluster.node import Node
from tests.compose.images import ROOT
from tests.deploy.programs import Programs

Json = dict[str, Any]
_SECONDS = 120.0
_START_SECONDS = 180.0


@dataclass(frozen=True, slots=True)
class KindCluster:
    """`environment` is that of a user's shell, with kubectl, helm and KUBECONFIG."""

    control_plane: ControlPlane
    node: Node
    environment: Mapping[str, str]

    def run(self, *command: str | Path, stdin: str = "", fails: bool = False, seconds: float = _SECONDS) -> str:
        """Returns the output; with `fails` the command must fail, and its error output is returned. Raises
        AssertionError.
        """
        done = subprocess.run(
            [str(part) for part in command],
            cwd=ROOT,
            env=self.environment,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        assert (done.returncode != 0) is fails, f"{command} ended with {done.returncode}:\n{done.stderr[-3000:]}"
        return done.stderr if fails else done.stdout

    def kubectl(self, *arguments: str, stdin: str = "", fails: bool = False, seconds: float = _SECONDS) -> str:
        return self.run("kubectl", *arguments, stdin=stdin, fails=fails, seconds=seconds)

    def get(self, *arguments: str) -> Json:
        found: Json = json.loads(self.kubectl("get", "-o", "json", *arguments))
        return found

    def items(self, *arguments: str) -> list[Json]:
        found: list[Json] = self.get(*arguments)["items"]
        return found

    def apply(self, *objects: Json) -> None:
        self.kubectl(
            "apply",
            "--server-side",
            "-f",
            "-",
            stdin=json.dumps({"kind": "List", "apiVersion": "v1", "items": objects}),
        )

    def describe(self) -> str:
        """Collects what a person would look at first when something is wrong."""
        selected = ("-n", "pgrole-system", "-l", "app.kubernetes.io/name=pgrole-controller")
        listed = self.kubectl("get", "pods,pgroles,pgservers,events", "-A", "--ignore-not-found")
        return listed + self.kubectl("logs", *selected, "--prefix", "--tail=30")


@contextmanager
def cluster(programs: Path, tools: Programs) -> Iterator[KindCluster]:
    """Yields the cluster once its node is Ready; it contains only Kubernetes' own objects. Raises EngineError. Leaves
    nothing.
    """
    with tempfile.TemporaryDirectory(prefix="pgrole-cluster-") as name, machine() as place:
        folder = Path(name)
        control_plane = ControlPlane(folder, programs)
        node = Node(place, folder, programs, control_plane)
        path = f"{tools.kubectl.parent}:{tools.helm.parent}:{os.environ['PATH']}"
        shell = {**os.environ, "PATH": path, "HOME": name, "KUBECONFIG": str(control_plane.kubeconfig)}
        found = KindCluster(control_plane, node, shell)
        try:
            node.start()
            control_plane.start()
            wait(node.is_running, "containerd answers", _START_SECONDS)
            node.join()
            wait(lambda: _is_ready(found), "the node is Ready", _START_SECONDS)
            yield found
        finally:
            control_plane.stop()


def wait(condition: Callable[[], bool], what: str, seconds: float = _SECONDS) -> float:
    """Returns the seconds it took. Raises AssertionError on timeout."""
    started = time.monotonic()
    while not condition():
        assert time.monotonic() < started + seconds, f"not within {seconds:.0f} s: {what}"
        time.sleep(0.05)
    return time.monotonic() - started


def condition_of(item: Json, kind: str) -> Json:
    """Returns a condition; empty if there is none of that type."""
    conditions: Sequence[Json] = item.get("status", {}).get("conditions") or []
    return next((one for one in conditions if one["type"] == kind), {})


def holds(item: Json, kind: str) -> bool:
    return condition_of(item, kind).get("status") == "True"


def _is_ready(found: KindCluster) -> bool:
    found.node.machine.check()
    found.control_plane.check()
    return any(holds(one, "Ready") for one in found.items("nodes"))
