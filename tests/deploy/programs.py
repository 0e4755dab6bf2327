"""helm and kubectl, with kustomize in it: what installs, for the tests and for `make manifests`. promtool tries alerts.

Each from the folder that KUBEBUILDER_ASSETS names, the PATH, the cache, or Go, which builds it once; the first whose
version fits. The versions that fit stand in go.mod of two modules: helm and kubectl, from `tools/`, are built together,
promtool from `tools/promtool/`, only where it is asked for.
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
from pgrole_controller.local.process import LocalError, tied_to_parent
from pgrole_controller.local.workspace import exclusive

_ASK = {
    "helm": ("version", "--template", "{{.Version}}"),
    "kubectl": ("version", "--client", "-o", "json"),
    "promtool": ("--version",),
}
_ASK_SECONDS = 30
_BUILD_SECONDS = 1800
_LAST_LINES = 12


class NoPrograms(LocalError):
    """Neither the programs nor Go are on this machine; the message says what would do."""


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
class _Module:
    """What is built together. `sources`: program → the Go module that it comes from. `tags`: of the build."""

    folder: Path
    sources: Mapping[str, str]
    lock: str
    tags: str = ""

    @property
    def what(self) -> str:
        return " and ".join(self.sources)

    def wanted(self) -> dict[str, Version]:
        text = (self.folder / "go.mod").read_text(encoding="utf-8")
        return {
            name: _read_version(re.findall(rf"^\s{re.escape(source)} (v\S+)", text, flags=re.MULTILINE)[0])
            for name, source in self.sources.items()
        }


_TOOLS = Path(__file__).with_name("tools")
_INSTALLERS = _Module(_TOOLS, {"helm": "helm.sh/helm/v3", "kubectl": "k8s.io/kubernetes"}, "tools.lock")
_PROMTOOL = _Module(
    _TOOLS / "promtool", {"promtool": "github.com/prometheus/prometheus"}, "promtool.lock", "remove_all_sd"
)


@dataclass(frozen=True, slots=True)
class Answer:
    """How a program ended and what it said."""

    code: int
    out: str
    err: str


async def run(program: Path, *arguments: str | Path, stdin: str = "", seconds: float = 120) -> Answer:
    """Run it to its end. What it caches is dropped. Raises TimeoutError."""
    command = tied_to_parent([str(part) for part in (program, *arguments)])
    with tempfile.TemporaryDirectory(prefix="pgrole-tools-") as home, anyio.fail_after(seconds):
        environment = {**os.environ, "HOME": home, "KUBECACHEDIR": home, "HELM_NAMESPACE": "", "KUBECONFIG": ""}
        done = await anyio.run_process(command, input=stdin.encode(), check=False, env=environment)
    return Answer(done.returncode, done.stdout.decode(), done.stderr.decode())


async def find(display: Display, environment: Mapping[str, str] = os.environ) -> Programs:
    """Find helm and kubectl; build them when they are nowhere. Raises NoPrograms, BuildFailed."""
    found = await _find(_INSTALLERS, display, environment)
    return Programs(found["helm"], found["kubectl"])


def are_present(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether helm and kubectl need not be built."""
    return _find_present(_INSTALLERS, environment) is not None


async def find_promtool(display: Display, environment: Mapping[str, str] = os.environ) -> Path:
    """The same for promtool."""
    return (await _find(_PROMTOOL, display, environment))["promtool"]


async def _find(module: _Module, display: Display, environment: Mapping[str, str]) -> dict[str, Path]:
    found = _find_present(module, environment)
    if found is not None:
        return found
    cache = cache_directory(environment)
    cache.mkdir(parents=True, exist_ok=True)
    async with exclusive(cache / module.lock, module.what, display):
        return _find_present(module, environment) or await _make(module, _folder(module, cache), display, environment)


def wanted() -> dict[str, Version]:
    """The versions that are built."""
    return {name: version for module in (_INSTALLERS, _PROMTOOL) for name, version in module.wanted().items()}


def fits(name: str, found: Version) -> bool:
    """kubectl: one minor version apart at most, as Kubernetes has it. Else the same major version, and none older."""
    wish = wanted()[name]
    if name == "kubectl":
        return found.major == wish.major and abs(found.minor - wish.minor) <= 1
    return found.major == wish.major and (found.minor, found.patch) >= (wish.minor, wish.patch)


def _find_present(module: _Module, environment: Mapping[str, str]) -> dict[str, Path] | None:
    found = {name: next(_fitting(module, name, environment), None) for name in module.sources}
    there = {name: path for name, path in found.items() if path is not None}
    return there if there.keys() == found.keys() else None


def _fitting(module: _Module, name: str, environment: Mapping[str, str]) -> Iterator[Path]:
    """Of the cache nothing is asked: only what was built is there."""
    for folders in (environment.get("KUBEBUILDER_ASSETS"), environment.get("PATH")):
        found = shutil.which(name, path=folders) if folders else None
        if found is not None and (version := _ask(name, found)) is not None and fits(name, version):
            yield Path(found)
    built = _folder(module, cache_directory(environment)) / name
    if os.access(built, os.X_OK):
        yield built


def _ask(name: str, program: str) -> Version | None:
    """None where it does not answer as it should."""
    try:
        said = subprocess.run(
            [program, *_ASK[name]], capture_output=True, text=True, timeout=_ASK_SECONDS, check=True, cwd="/"
        ).stdout
        match name:
            case "kubectl":
                return _read_version(json.loads(said)["clientVersion"]["gitVersion"])
            case "promtool":
                return _read_version("v" + said.split()[2])  # promtool, version 3.15.0 (branch: …
            case _:
                return _read_version(said)
    except (OSError, subprocess.SubprocessError, ValueError, KeyError, IndexError):
        return None


def _read_version(text: str) -> Version:
    """Of a program, or of its Go module: Prometheus 3.15.0 is module v0.315.0. Raises ValueError."""
    numbers = re.match(r"v(\d+)\.(\d+)\.(\d+)", text.strip())
    if numbers is None:
        raise ValueError(f"not a version: {text[:40]!r}")
    major, minor, patch = (int(number) for number in numbers.groups())
    return Version(major, minor, patch) if major or minor < 300 else Version(minor // 100, minor % 100, patch)


def _folder(module: _Module, cache: Path) -> Path:
    versions = "-".join(f"{name}-v{version}" for name, version in module.wanted().items())
    return cache / f"tools-{versions}-{sys.platform}-{platform.machine().lower()}"


async def _make(module: _Module, folder: Path, display: Display, environment: Mapping[str, str]) -> dict[str, Path]:
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="making-", dir=folder.parent) as scratch:
        making = Path(scratch) / "programs"
        making.mkdir(mode=0o755)
        await _build(module, making, Path(scratch), display, environment)
        shutil.rmtree(folder, ignore_errors=True)
        making.rename(folder)
    display.done(f"{module.what} from Go, kept in {folder}", since=started)
    return {name: folder / name for name in module.sources}


async def _build(module: _Module, into: Path, scratch: Path, display: Display, environment: Mapping[str, str]) -> None:
    go = shutil.which("go", path=environment.get("PATH"))
    if go is None:
        versions = ", ".join(f"{name} v{version}" for name, version in module.wanted().items())
        raise NoPrograms(
            f"{module.what} not found, like {versions}: install what is missing, "
            f"or Go (https://go.dev/dl), which builds it once"
        )
    for name in ("go.mod", "go.sum"):  # beside which Go may write
        shutil.copyfile(module.folder / name, scratch / name)
    display.say(f"Building {module.what} with Go, once: 4 minutes on 2 cores (seconds if Go has them cached)")
    command = [go, "build", "-trimpath", f"-tags={module.tags}", f"-ldflags={_ldflags()}", "-o", f"{into}/", "tool"]
    settings = {**environment, "GOTOOLCHAIN": "auto", "CGO_ENABLED": "0", "GOWORK": "off", "GOFLAGS": ""}
    with anyio.fail_after(_BUILD_SECONDS):
        done = await anyio.run_process(tied_to_parent(command), cwd=scratch, env=settings, check=False)
    if done.returncode != 0:
        last = "\n".join(done.stderr.decode(errors="replace").splitlines()[-_LAST_LINES:])
        raise BuildFailed(f"`go build` of {module.what} failed with exit code {done.returncode}:\n{last}")


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
        "github.com/prometheus/common/version.Version": versions["promtool"],
    }
    return " ".join(("-s -w", *(f"-X {name}={value}" for name, value in named.items())))
