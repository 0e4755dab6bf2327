"""The programs of a node, built once by Go from its module proxy: those of Kubernetes, containerd, plugins of CNI.

Their versions stand in the go.mod of each module here, their hashes in its go.sum. What Debian packages well enough
is taken from there.
"""

import hashlib
import os
import shutil
import tempfile
from pathlib import Path

from pgrole_controller.local.binaries import KUBERNETES
from tests.compose.engine import EngineError, run, say

_HERE = Path(__file__).parent
_MODULES = ("node", "runtime", "dns", "pause")
_BUILD_SECONDS = 3600
_NEEDED = {
    "runc": "runc",
    "iptables": "iptables",
    "ip": "iproute2",
    "nsenter": "util-linux",
    "psql": "postgresql-client",
    "curl": "curl",
}


def check_machine() -> None:
    """Raises EngineError with all that is missing."""
    if os.geteuid() != 0:
        raise EngineError("root is needed: a node mounts, makes networks and control groups")
    missing = {package for program, package in _NEEDED.items() if shutil.which(program) is None}
    if missing:
        raise EngineError(f"missing: apt-get install --no-install-recommends {' '.join(sorted(missing))}")


def find_programs(cache: Path) -> Path:
    """The folder that holds all of them. Raises EngineError."""
    sources = [path for name in _MODULES for path in sorted((_HERE / name).iterdir())]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:12]
    folder = cache / f"node-v{KUBERNETES}-{digest}"
    if not folder.is_dir():
        if shutil.which("go") is None:
            raise EngineError("the programs of a node are built by Go 1.24 or newer (https://go.dev/dl)")
        say("building kubelet, containerd and what goes with them with Go, once (10 minutes on 2 cores)")
        with tempfile.TemporaryDirectory(prefix="making-", dir=cache) as making:
            programs = Path(making) / "programs"
            programs.mkdir(mode=0o755)
            for name in _MODULES:
                _build(name, programs, Path(making) / name)
            programs.rename(folder)
    return folder


def _build(name: str, into: Path, source: Path) -> None:
    """In a copy of the module: Go may write beside it."""
    shutil.copytree(_HERE / name, source)
    major, minor, _ = KUBERNETES.split(".")
    package = "k8s.io/component-base/version"
    version = f"-X {package}.gitVersion=v{KUBERNETES} -X {package}.gitMajor={major} -X {package}.gitMinor={minor}"
    environment = {**os.environ, "GOTOOLCHAIN": "auto", "CGO_ENABLED": "0", "GOWORK": "off", "GOFLAGS": ""}
    what = "tool" if name in ("node", "runtime") else "."
    command = ["go", "build", "-trimpath", f"-ldflags=-s -w {version}", "-o", f"{into}/", what]
    run(command, folder=source, environment=environment, seconds=_BUILD_SECONDS)
