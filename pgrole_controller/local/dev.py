"""`pgrole-controller dev`: runs PostgreSQL, the API server with CRDs and samples, and the controller on this machine.

The controller has the ServiceAccount and the rights that it has in a cluster. Everything runs until SIGINT, SIGTERM or
SIGHUP, then stops in reverse order; no process is left and, without a state folder, no file.
"""

import asyncio
import fcntl
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

import aiohttp
import anyio

from pgrole_controller import resources
from pgrole_controller.ending import leaves
from pgrole_controller.local.apiserver import ApiServer, Json, OwnApiServer, api_server
from pgrole_controller.local.binaries import find
from pgrole_controller.local.display import Display
from pgrole_controller.local.manifests import apply_crds, apply_folder, are_ready, path_of
from pgrole_controller.local.postgres import DEFAULT_VERSION, PostgresServer, postgres
from pgrole_controller.local.process import LocalError, NotStopped, Process, reached, tied_to_parent
from pgrole_controller.local.rights import RightsScope, install
from pgrole_controller.local.workspace import free_port
from pgrole_controller.settings import read_settings

_RULE = "─" * 78


def guide(*, kubeconfig: Path, dsn: str, psql: Path, state: Path | None) -> str:
    """Returns the text to print; its commands name programs that this machine has."""
    kept = f"state kept in {state}" if state else "no state is kept"
    return f"""{_RULE}
Everything is running. In another terminal:

  export KUBECONFIG={shlex.quote(str(kubeconfig))}
  export PGROLE_DSN={shlex.quote(dsn)}

1. List the declared roles and their state:
  {_list(kubeconfig)}

2. Watch them in a third terminal:
  {_watch(kubeconfig)}

3. Cause drift; it is repaired within milliseconds, and counted under DRIFTS:
  {_psql(psql, dsn, "ALTER ROLE orders_app CREATEDB")}
  {_psql(psql, dsn, "GRANT CREATE ON SCHEMA public TO readers")}

Ctrl-C stops everything ({kept}).
{_RULE}"""


def _list(kubeconfig: Path) -> str:
    return _kubectl(kubeconfig, "get", "pgr", "-A") or _table(kubeconfig)


def _watch(kubeconfig: Path) -> str:
    return _kubectl(kubeconfig, "get", "pgr", "-A", "-w") or _table(kubeconfig, "--watch")


def _psql(psql: Path, dsn: str, statement: str) -> str:
    program = "psql" if shutil.which("psql") else str(psql)
    return shlex.join([program, dsn, "-c", statement])


def _kubectl(kubeconfig: Path, *arguments: str) -> str:
    if shutil.which("kubectl") is None:
        return ""
    return shlex.join(["kubectl", f"--kubeconfig={kubeconfig}", *arguments])


def _table(kubeconfig: Path, *arguments: str) -> str:
    return shlex.join([sys.executable, "-m", "pgrole_controller.local.table", str(kubeconfig), *arguments])


_CONTROLLER = (sys.executable, "-m", "pgrole_controller", "run")
_CONSOLE = (
    sys.executable,
    "-m",
    "pgrole_controller",
    "console",
    "--auth=kubeconfig",
    "--port=0",
    "--log-level=warning",
)
_READY_SECONDS = 60.0
_STOP_SECONDS = 15.0
_LINE_BYTES = 1 << 20


async def run_dev(
    state: Path | None = None,
    *,
    version: int | None = None,
    console: bool = False,
    stream: TextIO = sys.stdout,
    controller: Sequence[str] = _CONTROLLER,
) -> int:
    """Runs until asked to stop. Returns the exit code: 0 if asked, 1 if a start failed or the controller ended by
    itself.

    `version`: PostgreSQL's, by default the newest. `console`: the web console runs as well. `controller` is the command
    to run; `--kubeconfig PATH` is appended, and PGROLE_DSN is in its environment. Raises WrongSetting before anything
    starts.
    """
    own = read_settings({}, os.environ, only=("own_namespace",)).own_namespace
    installation = RightsScope(namespace=own or "default")
    display = Display(stream)
    code = 0
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    with anyio.open_signal_receiver(*signals) as received:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_cancel_when_told, received, tasks.cancel_scope, display)
            try:
                with _locked(state):
                    await _run_servers(state, version or DEFAULT_VERSION, installation, display, controller, console)
            except* LocalError as errors:
                for error in leaves(errors):
                    # Ctrl-C also ends a program that has not yet left this process group.
                    if isinstance(error, NotStopped) or not tasks.cancel_scope.cancel_called:
                        display.say(str(error))
                        code = 1
            tasks.cancel_scope.cancel()
    if code == 0:
        display.done("all stopped")
    return code


async def _cancel_when_told(
    received: AsyncIterator[signal.Signals], scope: anyio.CancelScope, display: Display
) -> None:
    async for number in received:
        display.say(f"{number.name}: stopping the controller, the API server and PostgreSQL")
        scope.cancel()
        return


async def _run_servers(
    state: Path | None,
    version: int,
    installation: RightsScope,
    display: Display,
    controller: Sequence[str],
    console: bool,
) -> None:
    """Runs until cancelled. Raises LocalError if something does not start, or the controller ends."""
    binaries = await find(display)
    started = time.monotonic()
    async with postgres(None if state is None else state / "postgres", version=version) as database:
        display.done(f"PostgreSQL {version} ready", since=started)
        started = time.monotonic()
        async with api_server(None if state is None else state / "kubernetes", binaries=binaries) as server:
            display.done(f"API server {server.version} ready", since=started)
            started = time.monotonic()
            await apply_crds(server)
            samples = await apply_folder(server, resources.path("deploy", "samples"))
            user = await install(server, installation)
            display.done("CRDs and samples applied", since=started)
            command = [*controller, "--kubeconfig", str(server.kubeconfig_of(user))]
            async with anyio.create_task_group() as tasks:
                if console:
                    tasks.start_soon(_run_console, server, display)
                await _run_controller(command, server, database, samples, state, display)


async def _run_console(server: ApiServer, display: Display) -> None:
    """Runs the web console for the API server's admin until cancelled, and prints its address."""
    command = [*_CONSOLE, "--kubeconfig", str(server.kubeconfig)]
    async with _child("console", command, display, prefix="console: ") as child:
        await child.pass_on()


async def _run_controller(
    command: Sequence[str],
    server: OwnApiServer,
    database: PostgresServer,
    samples: Sequence[Json],
    state: Path | None,
    display: Display,
) -> None:
    health_port = free_port()
    async with _child("controller", command, display, environment=_environment(database, health_port)) as child:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_tell_when_ready, health_port, server, database, samples, state, display)
            for part in (server.etcd, server.process, database.process):
                tasks.start_soon(_watch_over, part)
            await child.pass_on()
            tasks.cancel_scope.cancel()
        code = await child.process.wait()
    ending = "\n".join(f"  {line}" for line in child.last)
    raise LocalError(f"the controller exited with code {code}; its last lines:\n{ending}")


@dataclass(slots=True)
class _Child:
    """A program started by `dev`. `prefix`: of each line that it prints. `last`: its last lines."""

    name: str
    process: asyncio.subprocess.Process
    display: Display
    prefix: str
    last: deque[str] = field(default_factory=lambda: deque(maxlen=15))

    async def pass_on(self) -> None:
        """Forwards every line of the program's output until it ends."""
        if self.process.stdout is None:
            return
        async for line in self.process.stdout:
            text = line.decode(errors="replace").rstrip()
            self.last.append(text)
            self.display.say(f"{self.prefix}{text}")

    async def stop(self) -> None:
        if self.process.returncode is not None:
            return
        self.process.terminate()
        with anyio.move_on_after(_STOP_SECONDS):
            await self.pass_on()
            await self.process.wait()
            return
        self.display.say(f"The {self.name} did not exit within {_STOP_SECONDS:.0f} s; killing it")
        self.process.kill()
        await self.process.wait()


@asynccontextmanager
async def _child(
    name: str,
    command: Sequence[str],
    display: Display,
    *,
    prefix: str = "",
    environment: Mapping[str, str] | None = None,
) -> AsyncIterator[_Child]:
    """Runs a program, and stops it at the end of the context. `environment`: None means that of `dev`."""
    process = await asyncio.create_subprocess_exec(
        *tied_to_parent(command),
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        limit=_LINE_BYTES,
        start_new_session=True,
    )
    child = _Child(name, process, display, prefix)
    try:
        yield child
    finally:
        with anyio.CancelScope(shield=True):
            await child.stop()


def _environment(database: PostgresServer, health_port: int) -> dict[str, str]:
    """Builds the controller's environment: the user's settings, and those of this machine. Its log is text."""
    chosen = {
        name: value for name, value in os.environ.items() if name != "PGROLE_CONTEXT"
    }  # names a context of another kubeconfig
    ours = {
        "PGROLE_DSN": database.dsn(),
        "PGROLE_HEALTH_HOST": "127.0.0.1",
        "PGROLE_HEALTH_PORT": str(health_port),
        "PYTHONUNBUFFERED": "1",
    }
    return {"PGROLE_LOG_FORMAT": "text", "PGROLE_DATABASES_DETECTION": "auto", **chosen, **ours}


async def _is_controller_ready(health_port: int) -> bool:
    """Asks the controller itself: with a kept state folder, the samples are still Ready from the last run."""
    url = f"http://127.0.0.1:{health_port}/readyz"
    timeout = aiohttp.ClientTimeout(total=5)
    try:
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url) as response:
            return response.status == 200
    except (aiohttp.ClientError, TimeoutError):  # if it has ended, `_watch_over` reports it
        return False


async def _tell_when_ready(
    health_port: int,
    server: ApiServer,
    database: PostgresServer,
    samples: Sequence[Json],
    state: Path | None,
    display: Display,
) -> None:
    roles = [sample for sample in samples if sample["kind"] == "PgRole"]
    paths = [await path_of(server, role) for role in roles]

    async def all_ready() -> bool:
        return await _is_controller_ready(health_port) and await are_ready(server, paths)

    started = time.monotonic()
    if await reached(all_ready, _READY_SECONDS, every=0.1):
        names = ", ".join(role["metadata"]["name"] for role in roles)
        display.done(f"PgRoles {names} are Ready: the controller is running", since=started)
    else:
        display.say(f"The samples are not Ready after {_READY_SECONDS:.0f} s; see the log above")
    display.say(guide(kubeconfig=server.kubeconfig, dsn=database.dsn(), psql=database.psql, state=state))


async def _watch_over(process: Process) -> None:
    await process.wait()
    raise process.failure("exited unexpectedly")


@contextmanager
def _locked(state: Path | None) -> Iterator[None]:
    """Allows one `dev` per state folder at a time. Raises LocalError if another one runs."""
    if state is None:
        yield
        return
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (state / "lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise LocalError(f"another `pgrole-controller dev` is using {state}") from error
        yield
