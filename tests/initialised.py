"""Data directories for PostgreSQL servers: initdb makes one per test process, and each server gets a copy.

A copy has its own system identifier and superuser password, as if initdb had made it, for a third of the CPU.
"""

import os
import secrets
import shutil
import struct
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio.to_thread

from pgrole_controller.local.postgres import SUPERUSER, PostgresServer, postgres

#: Test data need not survive a power failure.
UNSAFE = {"fsync": "off", "full_page_writes": "off"}
_IDENTIFIER = struct.Struct("=Q")
_WAL_IDENTIFIER_AT = 24  # XLogLongPageHeaderData.xlp_sysid
_CRC = struct.Struct("=I")
_CRC_AT_LEAST = 200  # ControlFileData is longer in every version
#: A file system in memory: copying a server there takes a third of the CPU, and writes nothing to a disk.
_MEMORY = Path("/dev/shm")
#: Bytes that must be free there: enough for all servers of several test processes.
_MEMORY_BYTES = 4 << 30
#: Version and setting for fast logins, since tests connect thousands of times.
_QUICK_LOGIN = (16, "scram_iterations=1")


@dataclass(frozen=True, slots=True)
class Original:
    """The data directory to copy, of a server that ran once and stopped."""

    version: int
    programs: Path
    data: Path


@asynccontextmanager
async def initialised(version: int) -> AsyncIterator[Original]:
    """Yields a data directory made by initdb; removes it at the end."""
    with _server_folder("pgrole-initdb-") as folder:
        async with postgres(folder, version=version, settings=UNSAFE) as server:
            pass
        await anyio.to_thread.run_sync(_leave_holes, server.data / "pg_wal")
        yield Original(version, server.programs, server.data)


@asynccontextmanager
async def copied(original: Original, settings: Mapping[str, str]) -> AsyncIterator[PostgresServer]:
    """Runs a server with a copy of `original`; stops and removes it at the end."""
    with _server_folder("pgrole-postgres-") as folder:
        password = secrets.token_urlsafe(18)
        await anyio.to_thread.run_sync(_copy, original, folder, password)
        async with postgres(folder, version=original.version, settings={**UNSAFE, **settings}) as server:
            yield server


@contextmanager
def _server_folder(prefix: str) -> Iterator[Path]:
    """Yields a folder, in memory if there is room, which is removed at the end."""
    roomy = _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free > _MEMORY_BYTES
    with tempfile.TemporaryDirectory(prefix=prefix, dir=_MEMORY if roomy else None) as folder:
        yield Path(folder)


def _leave_holes(folder: Path) -> None:
    """Rewrites the files without their blocks of zeros, which `cp` then leaves out of every copy."""
    for file in folder.glob("[0-9A-F]" * 24):
        dense = file.with_suffix(".dense")
        file.rename(dense)
        subprocess.run(["cp", "-a", "--sparse=always", dense, file], check=True)
        dense.unlink()


def _copy(original: Original, folder: Path, password: str) -> None:
    subprocess.run(["cp", "-a", original.data, folder / "data"], check=True)
    identify(folder / "data", secrets.randbits(62))
    server = PostgresServer(folder, original.programs, port=1, password=password, settings={})
    since, quick = _QUICK_LOGIN
    subprocess.run(
        server.single_user("fsync=off", *([quick] if original.version >= since else [])),
        input=f"ALTER ROLE {SUPERUSER} PASSWORD '{password}'\n",
        text=True,
        capture_output=True,
        check=True,
    )
    (folder / "password").touch(mode=0o600)
    (folder / "password").write_text(f"{password}\n", encoding="utf-8")


def identify(data: Path, identifier: int) -> None:
    """Gives the stopped server another system identifier, in its control file and in its WAL. Raises ValueError."""
    control = data / "global" / "pg_control"
    content = bytearray(control.read_bytes())
    at = next(at for at, crc in _crcs(content) if at >= _CRC_AT_LEAST and _CRC.unpack_from(content, at)[0] == crc)
    before, after = content[: _IDENTIFIER.size], _IDENTIFIER.pack(identifier)
    content[: _IDENTIFIER.size] = after
    _CRC.pack_into(content, at, next(crc for end, crc in _crcs(content) if end == at))
    _write(control, 0, content)
    for segment in (data / "pg_wal").glob("[0-9A-F]" * 24):
        with segment.open("rb") as file:
            head = file.read(_WAL_IDENTIFIER_AT + _IDENTIFIER.size)
        if any(head) and head[_WAL_IDENTIFIER_AT:] != before:
            raise ValueError(f"{segment} is not of the server of {control}")
        if any(head):
            _write(segment, _WAL_IDENTIFIER_AT, after)


def _write(path: Path, at: int, content: bytes | bytearray) -> None:
    """Writes in place, which keeps the file's owner."""
    with path.open("r+b") as file:
        file.seek(at, os.SEEK_SET)
        file.write(content)


def _crcs(content: bytes | bytearray) -> Iterator[tuple[int, int]]:
    """Yields the CRC-32C of each prefix whose length is a multiple of four, with that length."""
    crc = 0xFFFFFFFF
    for at, byte in enumerate(content):
        if at % 4 == 0:
            yield at, crc ^ 0xFFFFFFFF
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
