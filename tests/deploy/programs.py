"""helm and kubectl, with kustomize in it: what installs, for the tests and for `make manifests`.

Each from the folder that KUBEBUILDER_ASSETS names, the PATH, the cache, or Go, which builds both once from the module
`tools/`; the first whose version fits. The versions that fit stand in tools/go.mod.
"""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import anyio

from pgrole_controller.local.binaries import cache_directory
from pgrole_controller.local.display import Display
from pgrole_controller.local.lock import alone
from pgrole_controller.local.process import LocalError, bound_to_us

_MODULE = Path(__file__).with_name("tools")
_NAMES = ("helm", "kubectl")
_ASK = {
    "helm": ("version", "--template", "{{.Version}}"),
    "kubectl": ("version", "--client", "-o", "json"),
}
_ASK_SECONDS = 30
_BUILD_SECONDS = 1800
_LAST_LINES = 12


class NoPrograms(LocalError):
    """Neither helm and kubectl nor Go are on this machine; the message says what would do."""


class BuildFailed(LocalError):
    """Go could not build them; the message has its last lines."""


@dataclass(frozen=True, slots=True)
class Version:
    major: int
    minor: int
    patch: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"


@dataclass(frozen=True, slots=True)
class Programs:
    helm: Path
    kubectl: Path


@dataclass(frozen=True, slots=True)
class Answer:
    """How a program ended and what it said."""

    code: int
    out: str
    err: str


async def run(program: Path, *arguments: str | Path, stdin: str = "", seconds: float = 120) -> Answer:
    """Run it to its end. What it caches is dropped. Raises TimeoutError."""
    command = bound_to_us([str(part) for part in (program, *arguments)])
    with tempfile.TemporaryDirectory(prefix="pgrole-tools-") as home, anyio.fail_after(seconds):
        environment = {**os.environ, "HOME": home, "KUBECACHEDIR": home, "HELM_NAMESPACE": "", "KUBECONFIG": ""}
        done = await anyio.run_process(command, input=stdin.encode(), check=False, env=environment)
    return Answer(done.returncode, done.stdout.decode(), done.stderr.decode())


async def find(display: Display, environment: Mapping[str, str] = os.environ) -> Programs:
    """Find both; build them when they are nowhere. Raises NoPrograms, BuildFailed."""
    found = _find_present(environment)
    if found is not None:
        return found
    cache = cache_directory(environment)
    cache.mkdir(parents=True, exist_ok=True)
    async with alone(cache / "tools.lock", "helm and kubectl", display):
        return _find_present(environment) or await _make(_folder(cache), display, environment)


def wanted() -> dict[str, Version]:
    """The versions that are built."""
    text = (_MODULE / "go.mod").read_text(encoding="utf-8")
    modules = {"helm": "helm.sh/helm/v3", "kubectl": "k8s.io/kubernetes"}
    return {
        name: _read_version(re.findall(rf"^\s{re.escape(module)} (v\S+)", text, flags=re.MULTILINE)[0])
        for name, module in modules.items()
    }


def fits(name: str, found: Version) -> bool:
    """helm: the same major version, and none older. kubectl: one minor version apart at most, as Kubernetes has it."""
    wish = wanted()[name]
    if name == "helm":
        return found.major == wish.major and (found.minor, found.patch) >= (wish.minor, wish.patch)
    return found.major == wish.major and abs(found.minor - wish.minor) <= 1


def _find_present(environment: Mapping[str, str]) -> Programs | None:
    paths = [next(_fitting(name, environment), None) for name in _NAMES]
    helm, kubectl = paths
    return Programs(helm, kubectl) if helm and kubectl else None


def _fitting(name: str, environment: Mapping[str, str]) -> Iterator[Path]:
    """Of the cache nothing is asked: only what was built is there."""
    for folders in (environment.get("KUBEBUILDER_ASSETS"), environment.get("PATH")):
        found = shutil.which(name, path=folders) if folders else None
        if found is not None and (version := _ask(name, found)) is not None and fits(name, version):
            yield Path(found)
    built = _folder(cache_directory(environment)) / name
    if os.access(built, os.X_OK):
        yield built


def _ask(name: str, program: str) -> Version | None:
    """None where it does not answer as it should."""
    try:
        said = subprocess.run(
            [program, *_ASK[name]], capture_output=True, text=True, timeout=_ASK_SECONDS, check=True, cwd="/"
        ).stdout
        return _read_version(json.loads(said)["clientVersion"]["gitVersion"] if name == "kubectl" else said)
    except (OSError, subprocess.SubprocessError, ValueError, KeyError):
        return None


def _read_version(text: str) -> Version:
    """Raises ValueError."""
    numbers = re.match(r"v(\d+)\.(\d+)\.(\d+)", text.strip())
    if numbers is None:
        raise ValueError(f"not a version: {text[:40]!r}")
    return Version(*(int(number) for number in numbers.groups()))


def _folder(cache: Path) -> Path:
    versions = wanted()
    machine = f"{sys.platform}-{platform.machine().lower()}"
    return cache / f"tools-helm-v{versions['helm']}-kubectl-v{versions['kubectl']}-{machine}"


async def _make(folder: Path, display: Display, environment: Mapping[str, str]) -> Programs:
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="making-", dir=folder.parent) as scratch:
        making = Path(scratch) / "programs"
        making.mkdir(mode=0o755)
        await _build(making, Path(scratch), display, environment)
        shutil.rmtree(folder, ignore_errors=True)
        making.rename(folder)
    display.done(f"helm and kubectl from Go, kept in {folder}", since=started)
    return Programs(folder / "helm", folder / "kubectl")


async def _build(into: Path, scratch: Path, display: Display, environment: Mapping[str, str]) -> None:
    go = shutil.which("go", path=environment.get("PATH"))
    if go is None:
        raise NoPrograms(
            f"helm and kubectl are needed, like {', '.join(f'{name} v{one}' for name, one in wanted().items())}: "
            f"install them, or Go (https://go.dev/dl), which builds them once"
        )
    for name in ("go.mod", "go.sum"):  # beside which Go may write
        shutil.copyfile(_MODULE / name, scratch / name)
    display.say("Building helm and kubectl with Go, once: 4 minutes on 2 cores (seconds if Go has them cached)")
    command = [go, "build", "-trimpath", f"-ldflags={_ldflags()}", "-o", f"{into}/", "tool"]
    settings = {**environment, "GOTOOLCHAIN": "auto", "CGO_ENABLED": "0", "GOWORK": "off", "GOFLAGS": ""}
    with anyio.fail_after(_BUILD_SECONDS):
        done = await anyio.run_process(bound_to_us(command), cwd=scratch, env=settings, check=False)
    if done.returncode != 0:
        last = "\n".join(done.stderr.decode(errors="replace").splitlines()[-_LAST_LINES:])
        raise BuildFailed(f"`go build` of helm and kubectl failed with exit code {done.returncode}:\n{last}")


def _ldflags() -> str:
    """What they say of themselves, and which Kubernetes `helm template` takes for granted."""
    versions = wanted()
    helm, kubernetes = versions["helm"], versions["kubectl"]
    base, chart = "k8s.io/component-base/version", "helm.sh/helm/v3"
    named = {
        f"{base}.gitVersion": f"v{kubernetes}",
        f"{base}.gitMajor": kubernetes.major,
        f"{base}.gitMinor": kubernetes.minor,
        f"{chart}/internal/version.version": f"v{helm}",
        f"{chart}/pkg/chartutil.k8sVersionMajor": kubernetes.major,
        f"{chart}/pkg/chartutil.k8sVersionMinor": kubernetes.minor,
        f"{chart}/pkg/lint/rules.k8sVersionMajor": kubernetes.major,
        f"{chart}/pkg/lint/rules.k8sVersionMinor": kubernetes.minor,
    }
    return " ".join(("-s -w", *(f"-X {name}={value}" for name, value in named.items())))
