"""A PostgreSQL of its own for a test, copied from one that initdb made once: initdb takes most of what a start takes.

A copy has a password and a system identifier of its own, as if initdb had made it. The identifier is in `pg_control`
and in the first page of each WAL segment.
"""

import atexit
import secrets
import shutil
import struct
import subprocess
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import anyio.to_thread
import asyncpg

from pgrole_controller.local.postgres import PostgresServer, postgres

_SETTINGS = {"fsync": "off", "full_page_writes": "off"}
_PREFIX = "pgrole-postgres-"
_IN_WAL_PAGE = 24  # where a long page header has the identifier
_POLYNOMIAL = 0x82F63B78  # of CRC-32C, reversed

_originals: dict[int, Path] = {}


@asynccontextmanager
async def copied_postgres(version: int, settings: Mapping[str, str]) -> AsyncIterator[PostgresServer]:
    """A running server, stopped and removed at the end. `settings` are those of postgresql.conf."""
    original = _originals.get(version) or await _make_original(version)
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as scratch:
        folder = Path(scratch)
        await anyio.to_thread.run_sync(_copy, original, folder)
        async with postgres(folder, version=version, settings={**_SETTINGS, **settings}) as server:
            password = secrets.token_urlsafe(18)
            connection = await asyncpg.connect(server.dsn())
            await connection.execute(f"ALTER ROLE postgres PASSWORD '{password}'")
            await connection.close()
            server.password = password
            yield server


async def _make_original(version: int) -> Path:
    """Stopped in good order, and removed when the tests end."""
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    async with postgres(folder, version=version, settings=_SETTINGS):
        pass
    _originals[version] = folder
    return folder


def _copy(original: Path, folder: Path) -> None:
    subprocess.run(["cp", "-a", original / "data", original / "password", folder], check=True)
    identifier = struct.pack("=Q", secrets.randbits(63))
    control = folder / "data" / "global" / "pg_control"
    content = control.read_bytes()
    end = _find_checksum(content)
    changed = identifier + content[8:end]
    control.write_bytes(changed + struct.pack("=I", _crc32c(changed)) + content[end + 4 :])
    for segment in (folder / "data" / "pg_wal").glob("0*"):
        with segment.open("r+b") as file:
            file.seek(_IN_WAL_PAGE)
            if file.read(8) != content[:8]:
                raise AssertionError(f"{segment} does not begin with the identifier of its server")
            file.seek(_IN_WAL_PAGE)
            file.write(identifier)


def _find_checksum(content: bytes) -> int:
    """Where the checksum of all before it is: the length differs from version to version."""
    crc = 0xFFFFFFFF
    for at, byte in enumerate(content[:512]):
        if at % 4 == 0 and at > 8 and struct.unpack_from("=I", content, at)[0] == crc ^ 0xFFFFFFFF:
            return at
        crc = _step(crc, byte)
    raise AssertionError("pg_control has no checksum that is known")


def _crc32c(content: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in content:
        crc = _step(crc, byte)
    return crc ^ 0xFFFFFFFF


def _step(crc: int, byte: int) -> int:
    crc ^= byte
    for _ in range(8):
        crc = crc >> 1 ^ _POLYNOMIAL * (crc & 1)
    return crc
