"""Finds helm and kubectl (which includes kustomize) for the tests and `make manifests`, promtool for the alerts, and
krew for the plugin.

Takes the first with a suitable version from: the folder KUBEBUILDER_ASSETS, the PATH, the cache, or a build with Go.
Go.mod files define the versions: `tools/` for helm and kubectl, which are built together, `tools/promtool/` and
`tools/krew/`, built only on demand.
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
from pgrole_controller.local.workspace import exclusive, scratch_for

_ASK = {
    "helm": ("version", "--template", "{{.Version}}"),
    "kubectl": ("version", "--client", "-o", "json"),
    "promtool": ("--version",),
    "krew": ("version",),
}
_ASK_SECONDS = 30
_BUILD_SECONDS = 1800
_LAST_LINES = 12


class NoPrograms(LocalError):
    """Neither the programs nor Go are on this machine; the message names the remedy."""


class BuildFailed(LocalError):
    """The build with Go failed; the message contains its last lines."""


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
    """Programs built together. `sources`: the Go module of each program. `tags`: of the build."""

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
_KREW = _Module(_TOOLS / "krew", {"krew": "sigs.k8s.io/krew"}, "krew.lock")


@dataclass(frozen=True, slots=True)
class Answer:
    """Exit code and output of a program."""

    code: int
    out: str
    err: str


async def run(program: Path, *arguments: str | Path, stdin: str = "", seconds: float = 120) -> Answer:
    """Runs a program to its end, and discards what it caches. Raises TimeoutError."""
    command = tied_to_parent([str(part) for part in (program, *arguments)])
    with tempfile.TemporaryDirectory(prefix="pgrole-tools-") as home, anyio.fail_after(seconds):
        environment = {**os.environ, "HOME": home, "KUBECACHEDIR": home, "HELM_NAMESPACE": "", "KUBECONFIG": ""}
        done = await anyio.run_process(command, input=stdin.encode(), check=False, env=environment)
    return Answer(done.returncode, done.stdout.decode(), done.stderr.decode())


async def find(display: Display, environment: Mapping[str, str] = os.environ) -> Programs:
    """Finds helm and kubectl, or builds them. Raises NoPrograms, BuildFailed."""
    found = await _find(_INSTALLERS, display, environment)
    return Programs(found["helm"], found["kubectl"])


def are_present(environment: Mapping[str, str] = os.environ) -> bool:
    """Tells whether helm and kubectl are available without a build."""
    return _find_present(_INSTALLERS, environment) is not None


async def find_promtool(display: Display, environment: Mapping[str, str] = os.environ) -> Path:
    """Finds promtool, or builds it."""
    return (await _find(_PROMTOOL, display, environment))["promtool"]


async def find_krew(display: Display, environment: Mapping[str, str] = os.environ) -> Path:
    """Finds krew, or builds it."""
    return (await _find(_KREW, display, environment))["krew"]


async def _find(module: _Module, display: Display, environment: Mapping[str, str]) -> dict[str, Path]:
    found = _find_present(module, environment)
    if found is not None:
        return found
    cache = cache_directory(environment)
    cache.mkdir(parents=True, exist_ok=True)
    async with exclusive(cache / module.lock, module.what, display):
        return _find_present(module, environment) or await _make(module, _folder(module, cache), display, environment)


def wanted() -> dict[str, Version]:
    """Returns the versions to build."""
    return {name: version for module in (_INSTALLERS, _PROMTOOL, _KREW) for name, version in module.wanted().items()}


def fits(name: str, found: Version) -> bool:
    """Tells whether a version is suitable: kubectl may differ by one minor version, as Kubernetes allows; others need
    the same major version, and must not be older.
    """
    wish = wanted()[name]
    if name == "kubectl":
        return found.major == wish.major and abs(found.minor - wish.minor) <= 1
    return found.major == wish.major and (found.minor, found.patch) >= (wish.minor, wish.patch)


def _find_present(module: _Module, environment: Mapping[str, str]) -> dict[str, Path] | None:
    found = {name: next(_fitting(module, name, environment), None) for name in module.sources}
    there = {name: path for name, path in found.items() if path is not None}
    return there if there.keys() == found.keys() else None


def _fitting(module: _Module, name: str, environment: Mapping[str, str]) -> Iterator[Path]:
    """Yields suitable programs. Those in the cache are not asked for their version, since only builds are there."""
    for folders in (environment.get("KUBEBUILDER_ASSETS"), environment.get("PATH")):
        found = shutil.which(name, path=folders) if folders else None
        if found is not None and (version := _ask(name, found)) is not None and fits(name, version):
            yield Path(found)
    built = _folder(module, cache_directory(environment)) / name
    if os.access(built, os.X_OK):
        yield built


def _ask(name: str, program: str) -> Version | None:
    """Returns a program's version; None if its answer is not understood."""
    try:
        said = subprocess.run(
            [program, *_ASK[name]], capture_output=True, text=True, timeout=_ASK_SECONDS, check=True, cwd="/"
        ).stdout
        match name:
            case "kubectl":
                return _read_version(json.loads(said)["clientVersion"]["gitVersion"])
            case "promtool":
                return _read_version("v" + said.split()[2])  # promtool, version 3.15.0 (branch: …
            case "krew":
                return _read_version(dict(line.split() for line in said.splitlines())["GitTag"])
            case _:
                return _read_version(said)
    except (OSError, subprocess.SubprocessError, ValueError, KeyError, IndexError):
        return None


def _read_version(text: str) -> Version:
    """Parses a program's or its Go module's version: Prometheus 3.15.0 is module v0.315.0. Raises ValueError."""
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
    with scratch_for(folder) as scratch:
        making = scratch / "programs"
        making.mkdir(mode=0o755)
        await _build(module, making, scratch, display, environment)
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
    for name in ("go.mod", "go.sum"):  # copies that Go may write beside
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
    """Sets the versions they report, and the Kubernetes version that `helm template` assumes."""
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
        "sigs.k8s.io/krew/internal/version.gitTag": f"v{versions['krew']}",
    }
    return " ".join(("-s -w", *(f"-X {name}={value}" for name, value in named.items())))
