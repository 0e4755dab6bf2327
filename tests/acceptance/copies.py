"""Copies a server as administrators do: base backup, standby, dump and restore, upgrade."""

import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from pgrole_controller.local.display import Display
from pgrole_controller.local.postgres import SUPERUSER, PostgresServer, _unprivileged, find_programs

_SETTINGS = {"fsync": "off", "full_page_writes": "off", "shared_buffers": "64MB"}
_NOBODY = 65534
_SECONDS = 180.0


def client(server: PostgresServer, name: str) -> Path:
    """Returns a client program for this server: its own, or a newer one."""
    return server.psql.parent / name


async def back_up(server: PostgresServer, folder: Path, *options: str) -> Path:
    """Makes a base backup of the running server; with option -R it starts as a standby."""
    folder = _owned(folder)
    await _run(server, client(server, "pg_basebackup"), "-D", folder / "data", "-c", "fast", "--no-sync", *options)
    return folder


@asynccontextmanager
async def serving(
    like: PostgresServer, folder: Path, port: int, programs: Path | None = None
) -> AsyncIterator[PostgresServer]:
    """Runs a server on the data in `folder`, with the superuser's password of the original."""
    server = PostgresServer(folder, programs or like.programs, port=port, password=like.password, settings=_SETTINGS)
    try:
        await server.start()
        yield server
    finally:
        with anyio.CancelScope(shield=True):
            await server.stop()


async def dump(server: PostgresServer, path: Path) -> None:
    """Dumps the whole server with `pg_dumpall`, which orders roles by name."""
    await _run(server, client(server, "pg_dumpall"), "-f", _owned(path.parent) / path.name)


async def dump_schema(server: PostgresServer, schema: str, path: Path) -> None:
    """Dumps one schema of database postgres."""
    folder = _owned(path.parent)
    await _run(server, client(server, "pg_dump"), "--schema", schema, "-f", folder / path.name, "postgres")


async def restore(server: PostgresServer, path: Path, database: str = "postgres") -> None:
    """Restores a dump with psql, which continues where something already exists, such as the superuser."""
    await _run(server, server.psql, "-q", "-d", database, "-f", path)


async def upgrade(old: PostgresServer, folder: Path, version: int) -> Path:
    """Upgrades the stopped server's data into `folder`; returns the folder with that major version's programs."""
    programs = await find_programs(version, Display(sys.stderr))
    folder, password = _owned(folder), folder / "password"
    password.write_text(old.password)
    await _run(
        *(old, programs / "initdb", "-D", folder / "data", "-U", SUPERUSER, f"--pwfile={password}"),
        *("--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", "--no-sync", "--no-data-checksums"),
    )
    await _run(
        *(old, programs / "pg_upgrade", "-U", SUPERUSER, "--no-sync", "-s", folder),
        *("-b", old.programs, "-B", programs, "-d", old.data, "-D", folder / "data"),
        cwd=folder,
    )
    return programs


def _owned(folder: Path) -> Path:
    folder.mkdir(mode=0o700, exist_ok=True)
    if os.geteuid() == 0:
        shutil.chown(folder, _NOBODY, _NOBODY)
    return folder


async def _run(server: PostgresServer, *command: str | Path, cwd: Path | None = None) -> None:
    """Runs a client or server program as the user that runs the server. Fails with its output."""
    environment = {
        **os.environ,
        "PGHOST": server.host,
        "PGPORT": str(server.port),
        "PGUSER": SUPERUSER,
        "PGPASSWORD": server.password,
    }
    if cwd is not None:  # pg_upgrade starts both servers itself
        del environment["PGHOST"], environment["PGPORT"]
    with anyio.fail_after(_SECONDS):
        done = await anyio.run_process(
            _unprivileged(list(command), signal.SIGKILL), check=False, env=environment, cwd=cwd
        )
    said = (done.stdout + done.stderr).decode(errors="replace")
    assert done.returncode == 0, f"{command}:\n{said[-3000:]}"
