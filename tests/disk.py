"""Moves a running PostgreSQL onto a small disk that can be filled and freed."""

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import anyio
import pytest

from pgrole_controller.local.postgres import PostgresServer

_BLOCK = 1 << 13


@dataclass(frozen=True, slots=True)
class Disk:
    folder: Path

    @property
    def _filler(self) -> Path:
        return self.folder / "filler"

    def fill(self) -> None:
        """Fills the disk to its last block."""
        with self._filler.open("ab", buffering=0) as file, suppress(OSError):
            while file.write(bytes(_BLOCK)):
                pass
        assert os.statvfs(self.folder).f_bavail * os.statvfs(self.folder).f_bsize < _BLOCK

    def free(self) -> None:
        self._filler.unlink()


@asynccontextmanager
async def small_disk(server: PostgresServer, part: str, megabytes: int) -> AsyncIterator[Disk]:
    """Restarts the server with this part of its data directory ("." for all of it) on a disk of its own.

    Skips the test if this process may not mount one.
    """
    place, disk = server.folder / "disk", server.data / part
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=0700", "tmpfs", str(place)]
    mounted = await anyio.run_process(mount, check=False)
    if mounted.returncode != 0:
        words = mounted.stderr.decode().strip()
        pytest.skip(f"this test mounts a small disk, which requires root and CAP_SYS_ADMIN: {words}")
    try:
        await server.stop()
        await anyio.run_process(["cp", "-a", "--sparse=never", f"{disk}/.", str(place)])
        shutil.rmtree(disk)
        disk.symlink_to(place)
        await server.start()
        yield Disk(place)
    finally:
        with anyio.CancelScope(shield=True):
            await server.stop()
            await anyio.run_process(["umount", "--lazy", str(place)])
