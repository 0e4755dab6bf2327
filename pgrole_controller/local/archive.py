"""Downloads archives; unpacks kube-apiserver and etcd from the envtest release."""

import hashlib
import tarfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import anyio
import anyio.to_thread
import yaml

from pgrole_controller.local.display import Display

INDEX_URL = "https://raw.githubusercontent.com/kubernetes-sigs/controller-tools/HEAD/envtest-releases.yaml"
PROGRAMS = ("kube-apiserver", "etcd")
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
                content = archive.extractfile(member) if member.isfile() and name in PROGRAMS else None
                if content is not None:
                    target = into / name
                    target.write_bytes(content.read())
                    target.chmod(0o755)
    except tarfile.TarError as error:
        raise ArchiveError(f"{packed.name} is not readable: {error}") from error
