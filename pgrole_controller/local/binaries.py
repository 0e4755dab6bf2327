"""Finds kube-apiserver and etcd for any machine.

Takes the first place that has both: the folder KUBEBUILDER_ASSETS (the convention of envtest), the cache, the envtest
release archive, and a build with Go from the module proxy. Downloads and builds stay in the cache, in one folder for
each Kubernetes version; only complete folders are moved there.
"""

import asyncio
import hashlib
import os
import platform
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import anyio
import anyio.to_thread
import platformdirs
import yaml

from pgrole_controller.local.display import Display
from pgrole_controller.local.process import LocalError, tied_to_parent
from pgrole_controller.local.workspace import exclusive, scratch_for

INDEX_URL = "https://raw.githubusercontent.com/kubernetes-sigs/controller-tools/HEAD/envtest-releases.yaml"
_PROGRAMS = ("kube-apiserver", "etcd")
# Many machines cannot reach it, often without an error, so the wait before the next way is short.
_TIMEOUT = aiohttp.ClientTimeout(total=600, connect=5, sock_connect=5, sock_read=15)


class ArchiveError(Exception):
    """The archive is unavailable, or is not the published one."""


async def fetch_archive(into: Path, minor: str, machine: str, display: Display, index_url: str) -> str:
    """Installs both programs of the newest release of `minor` (like 1.36) into a folder; returns its version, like
    v1.36.0.

    `machine` is like linux-amd64. Raises ArchiveError. Nothing is unpacked before the archive's SHA-512 matches.
    """
    display.say(f"Looking for the envtest release of Kubernetes {minor} (a few seconds, then about 60 MB)")
    try:
        async with _getting(index_url) as response:
            index = yaml.safe_load(await response.text())
    except (TimeoutError, aiohttp.ClientError, OSError, yaml.YAMLError) as error:
        raise ArchiveError(f"{index_url}: {type(error).__name__} {error}") from error
    version, url, published = _newest(index, minor, machine)
    content = await download(url, display)
    found = hashlib.sha512(content).hexdigest()
    if found != published:
        raise ArchiveError(f"{url} has SHA-512 {found[:16]}…, but the published one is {published[:16]}…: not used")
    packed = into / "archive.tar.gz"
    packed.write_bytes(content)
    await anyio.to_thread.run_sync(_unpack, packed, into)
    packed.unlink()
    return version


@asynccontextmanager
async def _getting(url: str) -> AsyncIterator[aiohttp.ClientResponse]:
    async with (
        aiohttp.ClientSession(timeout=_TIMEOUT, trust_env=True, raise_for_status=True) as session,
        session.get(url) as response,
    ):
        yield response


async def download(url: str, display: Display) -> bytes:
    """Downloads a URL and displays progress. Raises ArchiveError."""
    content = bytearray()
    try:
        async with _getting(url) as response:
            total = response.content_length or 0
            async for chunk in response.content.iter_chunked(1 << 18):
                content += chunk
                of = f" of {total >> 20}" if total else ""
                display.advance(f"fetching {url.rpartition('/')[2]}: {len(content) >> 20}{of} MB")
    except (TimeoutError, aiohttp.ClientError, OSError) as error:
        raise ArchiveError(f"{url}: {type(error).__name__} {error}") from error
    return bytes(content)


def _newest(index: object, minor: str, machine: str) -> tuple[str, str, str]:
    """Returns version, URL and SHA-512 of the newest patch release of `minor`."""
    releases = index.get("releases") if isinstance(index, dict) else None
    fitting: list[tuple[int, str, str, str]] = []
    for version, archives in (releases or {}).items():
        patch = version.removeprefix(f"v{minor}.")
        archive = archives.get(f"envtest-{version}-{machine}.tar.gz") if archives else None
        if patch.isdecimal() and archive:
            fitting.append((int(patch), version, archive["selfLink"], archive["hash"].lower()))
    if not fitting:
        raise ArchiveError(f"Kubernetes {minor} has no published release for {machine}")
    _, version, url, published = max(fitting)
    return version, url, published


def _unpack(packed: Path, into: Path) -> None:
    try:
        with tarfile.open(packed) as archive:
            for member in archive:
                name = Path(member.name).name
                content = archive.extractfile(member) if member.isfile() and name in _PROGRAMS else None
                if content is not None:
                    target = into / name
                    target.write_bytes(content.read())
                    target.chmod(0o755)
    except tarfile.TarError as error:
        raise ArchiveError(f"{packed.name} is not readable: {error}") from error


_MODULE = Path(__file__).with_name("controlplane")


class BuildError(Exception):
    """Go is missing or failed; the message contains its last lines."""


async def build(into: Path, version: str, display: Display, environment: Mapping[str, str] = os.environ) -> None:
    """Builds both programs into a folder; they report `version`, like 1.36.3. Raises BuildError."""
    go = shutil.which("go", path=environment.get("PATH"))
    if go is None:
        raise BuildError("`go` is not on the PATH")
    # An older Go downloads the toolchain that go.mod requires; "local" is often set and forbids that.
    settings = {**environment, "GOTOOLCHAIN": "auto", "CGO_ENABLED": "0", "GOWORK": "off", "GOFLAGS": ""}
    with tempfile.TemporaryDirectory(prefix="pgrole-controlplane-") as scratch:
        module = Path(scratch)
        for name in ("go.mod", "go.sum"):
            shutil.copyfile(_MODULE / name, module / name)
        display.say(
            "Building kube-apiserver and etcd with Go, once: 4 minutes on 2 cores (seconds if Go has them cached)"
        )
        display.say("  counting packages (the first time Go fetches their sources now, about 300 MB)")
        packages = await _run([go, "list", "-deps", "tool"], module, settings, display, "fetched {} modules")
        total = len(packages)
        await _run(
            [go, "build", "-v", "-trimpath", f"-ldflags={_ldflags(version)}", "-o", f"{into}/", "tool"],
            module,
            settings,
            display,
            f"compiled {{}} of at most {total} packages",
        )
    (into / "server").rename(into / "etcd")


def _ldflags(version: str) -> str:
    major, minor, _ = version.split(".")
    package = "k8s.io/component-base/version"
    return f"-s -w -X {package}.gitVersion=v{version} -X {package}.gitMajor={major} -X {package}.gitMinor={minor}"


async def _run(
    command: list[str], folder: Path, environment: Mapping[str, str], display: Display, progress: str
) -> list[str]:
    """Returns the lines that a Go command prints; counts its other lines in `progress`."""
    with (folder / "output").open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *tied_to_parent(command, signal.SIGTERM),
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    assert process.stderr is not None  # noqa: S101
    tail: deque[str] = deque(maxlen=12)
    try:
        count = 0
        async for line in process.stderr:
            count += 1
            tail.append(line.decode(errors="replace").rstrip())
            display.advance(progress.format(count))
        code = await process.wait()
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            with anyio.CancelScope(shield=True):
                await process.wait()
    if code != 0:
        last = "\n".join(f"      {line}" for line in tail)
        raise BuildError(f"`go {command[1]}` failed with exit code {code}:\n{last}")
    return (folder / "output").read_text(encoding="utf-8").splitlines()


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
            return Binaries(folder / _PROGRAMS[0], folder / _PROGRAMS[1], origin)
    raise BinariesError(_CHOICES.format(reasons="\n".join(reasons), minor=_minor(), cache=folder, index=index_url))


def _move(making: Path, folder: Path) -> None:
    """Publishes a complete folder atomically; it replaces an incomplete one."""
    shutil.rmtree(folder, ignore_errors=True)
    making.chmod(0o755)
    making.rename(folder)


def _both_in(folder: Path, origin: str) -> Binaries | None:
    paths = [folder / name for name in _PROGRAMS]
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
