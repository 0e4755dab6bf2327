"""Finds kube-apiserver and etcd for any machine.

Takes the first place that has both: the folder KUBEBUILDER_ASSETS (the convention of envtest), the cache, the envtest
release archive, and a build with Go from the module proxy. Downloads and builds stay in the cache, in one folder for
each Kubernetes version; only complete folders are moved there.
"""

import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from pgrole_controller.local.archive import INDEX_URL, PROGRAMS, ArchiveError, fetch_archive
from pgrole_controller.local.display import Display
from pgrole_controller.local.go_build import BuildError, build
from pgrole_controller.local.process import LocalError
from pgrole_controller.local.workspace import exclusive, scratch_for

KUBERNETES = "1.36.3"
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_CHOICES = """kube-apiserver and etcd are needed, but every way to get them failed:
{reasons}
Choose one of these, then run the same command again:
  - install Go 1.24 or newer (https://go.dev/dl), which builds them once from the Go module proxy in 4 to 10 minutes;
  - set KUBEBUILDER_ASSETS to a folder that holds both (`setup-envtest use {minor} -p path` makes one);
  - copy both into {cache} ;
  - allow this machine to reach {index} and the releases named there."""


class BinariesError(LocalError):
    """kube-apiserver and etcd are unavailable; the message lists what was tried and the alternatives."""


@dataclass(frozen=True, slots=True)
class Binaries:
    """The two programs, and where they were found: KUBEBUILDER_ASSETS, cache, archive or Go."""

    kube_apiserver: Path
    etcd: Path
    origin: str


def cache_directory(environment: Mapping[str, str] = os.environ) -> Path:
    """Returns the folder for downloads and builds: PGROLE_CACHE_DIR, else the user's cache folder."""
    chosen = environment.get("PGROLE_CACHE_DIR")
    return Path(chosen) if chosen else platformdirs.user_cache_path("pgrole-controller")


def find_present(environment: Mapping[str, str] = os.environ) -> Binaries | None:
    """Returns the programs already on this machine. Raises BinariesError if the folder KUBEBUILDER_ASSETS lacks one."""
    assets = environment.get("KUBEBUILDER_ASSETS")
    if assets:
        found = _both_in(Path(assets), "KUBEBUILDER_ASSETS")
        if found is None:
            raise BinariesError(
                f"KUBEBUILDER_ASSETS is {assets}, which has no executable kube-apiserver and etcd: correct or unset it"
            )
        return found
    return _both_in(_folder(cache_directory(environment)), "cache")


async def find(display: Display, environment: Mapping[str, str] = os.environ, index_url: str = INDEX_URL) -> Binaries:
    """Finds the programs; downloads or builds them if missing. Raises BinariesError with the alternatives."""
    found = find_present(environment)
    if found is not None:
        return found
    cache = cache_directory(environment)
    cache.mkdir(parents=True, exist_ok=True)
    async with exclusive(cache / "lock", "kube-apiserver and etcd", display):
        found = find_present(environment)
        if found is not None:
            return found
        return await _make(_folder(cache), display, environment, index_url)


async def _make(folder: Path, display: Display, environment: Mapping[str, str], index_url: str) -> Binaries:
    reasons: list[str] = []
    with scratch_for(folder) as scratch:
        for origin in ("archive", "Go"):
            started = time.monotonic()
            making = Path(tempfile.mkdtemp(dir=scratch))
            try:
                if origin == "archive":
                    await fetch_archive(making, _minor(), _platform(), display, index_url)
                else:
                    await build(making, KUBERNETES, display, environment)
            except (ArchiveError, BuildError) as error:
                display.say(f"  not from {origin}: {error}")
                reasons.append(f"  - {origin}: {error}")
                continue
            if _both_in(making, origin) is None:
                reasons.append(f"  - {origin}: it does not contain both programs")
                continue
            _move(making, folder)
            display.done(f"kube-apiserver and etcd from {origin}, cached in {folder}", since=started)
            return Binaries(folder / PROGRAMS[0], folder / PROGRAMS[1], origin)
    raise BinariesError(_CHOICES.format(reasons="\n".join(reasons), minor=_minor(), cache=folder, index=index_url))


def _move(making: Path, folder: Path) -> None:
    """Publishes a complete folder atomically; it replaces an incomplete one."""
    shutil.rmtree(folder, ignore_errors=True)
    making.chmod(0o755)
    making.rename(folder)


def _both_in(folder: Path, origin: str) -> Binaries | None:
    paths = [folder / name for name in PROGRAMS]
    if all(path.is_file() and os.access(path, os.X_OK) for path in paths):
        return Binaries(paths[0], paths[1], origin)
    return None


def _folder(cache: Path) -> Path:
    return cache / f"kubernetes-v{KUBERNETES}-{_platform()}"


def _minor() -> str:
    return KUBERNETES.rpartition(".")[0]


def _platform() -> str:
    """Returns the machine in Go's notation, like linux-amd64."""
    machine = platform.machine().lower()
    return f"{sys.platform}-{_ARCHITECTURES.get(machine, machine)}"
