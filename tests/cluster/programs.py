"""A node's programs, built once by Go from its module proxy: Kubernetes, containerd, CNI plugins.

The go.mod of each module here defines the versions, go.sum their hashes. Programs that Debian packages well enough come
from Debian.
"""

import hashlib
import os
import shutil
from pathlib import Path

from pgrole_controller.local.binaries import KUBERNETES, cache_directory, find_present
from pgrole_controller.local.workspace import scratch_for
from tests.compose.engine import run, say, unbuilt
from tests.compose.prerequisites import ENGINE, check
from tests.deploy import programs as tools

_HERE = Path(__file__).parent
_MODULES = ("node", "runtime", "dns", "pause")
_BUILD_SECONDS = 3600
_PROGRAMS = ("runc", "iptables", "ip", "nsenter", "psql", "curl")


def check_machine(cache: Path, *, stand_ins: bool, docker: bool) -> None:
    """Raises EngineError with everything that is missing. `docker`: images must still be built."""
    built = [] if _folder(cache).is_dir() else ["the programs of a node"]
    built += [] if tools.are_present() else ["helm", "kubectl"]
    built += [] if find_present() else ["kube-apiserver", "etcd"]
    own = docker and stand_ins
    check(
        root="mounts and makes networks and control groups",
        programs=(*_PROGRAMS, *(ENGINE if own else ())),
        built=[*built, *(unbuilt(cache_directory() / "compose") if own else ())],
        docker=[["info"]] if docker and not stand_ins else [],
    )


def find_programs(cache: Path) -> Path:
    """Returns the folder with all of them. Raises EngineError."""
    folder = _folder(cache)
    if not folder.is_dir():
        say("building kubelet, containerd and the programs they need with Go, once (10 minutes on 2 cores)")
        with scratch_for(folder) as making:
            programs = making / "programs"
            programs.mkdir(mode=0o755)
            for name in _MODULES:
                _build(name, programs, making / name)
            programs.rename(folder)
    return folder


def _folder(cache: Path) -> Path:
    sources = [path for name in _MODULES for path in sorted((_HERE / name).iterdir())]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:12]
    return cache / f"node-v{KUBERNETES}-{digest}"


def _build(name: str, into: Path, source: Path) -> None:
    """Builds in a copy of the module, since Go may write into its folder."""
    shutil.copytree(_HERE / name, source)
    major, minor, _ = KUBERNETES.split(".")
    package = "k8s.io/component-base/version"
    version = f"-X {package}.gitVersion=v{KUBERNETES} -X {package}.gitMajor={major} -X {package}.gitMinor={minor}"
    environment = {**os.environ, "GOTOOLCHAIN": "auto", "CGO_ENABLED": "0", "GOWORK": "off", "GOFLAGS": ""}
    what = "tool" if name in ("node", "runtime") else "."
    command = ["go", "build", "-trimpath", f"-ldflags=-s -w {version}", "-o", f"{into}/", what]
    run(command, folder=source, environment=environment, seconds=_BUILD_SECONDS)
