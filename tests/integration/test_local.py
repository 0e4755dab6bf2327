"""The local API server and PostgreSQL: what they keep, what they survive, and that they leave nothing behind."""

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from io import StringIO
from pathlib import Path

import anyio
import asyncpg
import pytest

from pgrole_controller.local import dev
from pgrole_controller.local.apiserver import ApiServer, LocalApiError
from pgrole_controller.local.apiserver import api_server as run_api_server
from pgrole_controller.local.binaries import Binaries
from pgrole_controller.local.display import Display
from pgrole_controller.local.manifests import create_namespace
from pgrole_controller.local.postgres import PostgresServer, Stop, postgres
from pgrole_controller.local.process import LocalError, NotStopped, alive, descendants, reached

PAST_ANY_DELAY = 90.0

BOTH = """
import sys, anyio
from pgrole_controller.local.apiserver import api_server
from pgrole_controller.local.postgres import postgres

async def main():
    async with postgres() as database, api_server() as server:
        print("running", flush=True)
        await anyio.sleep_forever()

anyio.run(main)
"""

DEV = """
import sys, anyio
from functools import partial
from pathlib import Path
from pgrole_controller.local.dev import run_dev

state = Path(sys.argv[1]) if sys.argv[1] else None
sys.exit(anyio.run(partial(run_dev, state, controller=sys.argv[2:])))
"""

STUBBORN = """
import signal

signal.signal(signal.SIGTERM, lambda *_: print("stopping", flush=True))
print("ready", flush=True)
while True:
    signal.pause()
"""

CONTROLLER = """
# Sets Ready on each PgRole as the controller does, then waits for SIGTERM.
import http.server, json, os, signal, ssl, sys, threading, urllib.request, yaml

signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
config = yaml.safe_load(open(sys.argv[-1]))
cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]

def call(method, path, body=None):
    kind = "application/merge-patch+json"
    headers = {"Authorization": "Bearer " + user["token"], "Content-Type": kind}
    request = urllib.request.Request(cluster["server"] + path, method=method, headers=headers, data=body)
    trust = ssl.create_default_context(cafile=cluster["certificate-authority"])
    with urllib.request.urlopen(request, context=trust) as response:
        return json.load(response)

for role in call("GET", "/apis/pgrole.dev/v1alpha1/pgroles")["items"]:
    meta = role["metadata"]
    ready = {"type": "Ready", "status": "True", "reason": "Reconciled", "message": "",
             "lastTransitionTime": meta["creationTimestamp"]}
    status = {"status": {"observedGeneration": meta["generation"], "conditions": [ready]}}
    path = f"/apis/pgrole.dev/v1alpha1/namespaces/{meta['namespace']}/pgroles/{meta['name']}/status"
    call("PATCH", path, json.dumps(status).encode())
class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/readyz" else 404)
        self.end_headers()

    def log_message(self, *_):
        pass

health = http.server.HTTPServer(("127.0.0.1", int(os.environ["PGROLE_HEALTH_PORT"])), Health)
threading.Thread(target=health.serve_forever, daemon=True).start()
print("a line of the controller", flush=True)
signal.sigwait({signal.SIGTERM})
print("the controller's last line", flush=True)
"""


class DevSession:
    """A program as a terminal runs it: it leads its own process group, and its output arrives line by line."""

    def __init__(self, process: anyio.abc.Process) -> None:
        self.process = process
        self.said: list[str] = []
        self._rest = ""

    async def says(self, text: str) -> str:
        """Waits for the first line with `text`, and returns it."""
        with anyio.fail_after(PAST_ANY_DELAY):
            while not (found := [line for line in self.said if text in line]):
                await self._read()
        return found[0]

    async def ends(self) -> int:
        """Returns its exit code, after every line was read."""
        with anyio.fail_after(PAST_ANY_DELAY):
            try:
                while True:
                    await self._read()
            except anyio.EndOfStream:
                return await self.process.wait()

    async def _read(self) -> None:
        assert self.process.stdout is not None
        text = self._rest + (await self.process.stdout.receive()).decode()
        *lines, self._rest = text.split("\n")
        self.said += lines


@asynccontextmanager
async def session(program: str, *arguments: str, scratch: Path) -> AsyncIterator[DevSession]:
    """Runs a program with `scratch` as the folder of its temporary files."""
    process = await anyio.open_process(
        [sys.executable, "-c", program, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "TMPDIR": str(scratch)},
        start_new_session=True,
    )
    async with process:
        try:
            yield DevSession(process)
        except BaseException:
            with suppress(ProcessLookupError):  # it has ended
                os.killpg(process.pid, signal.SIGKILL)
            raise


def name_of(pid: int) -> str:
    """Returns the process's name; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


async def all_gone(pids: list[int]) -> bool:
    return not any(alive(pid) for pid in pids)


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    (tmp_path / "scratch").mkdir()
    return tmp_path / "scratch"


def is_empty(folder: Path) -> bool:
    return not any(folder.iterdir())


async def uid_of(server: ApiServer, namespace: str) -> str:
    return str((await server.request("GET", f"/api/v1/namespaces/{namespace}"))["metadata"]["uid"])


@pytest.mark.slow
async def test_the_api_server_keeps_its_data_address_and_tokens_from_run_to_run(
    tmp_path: Path, binaries: Binaries
) -> None:
    async with run_api_server(tmp_path, binaries=binaries) as server:
        await create_namespace(server, "kept")
        before = (server.url, server.token, await uid_of(server, "kept"))
        pids = [server.etcd.pid, server.process.pid]
    assert await all_gone(pids)
    async with run_api_server(tmp_path, binaries=binaries) as server:
        assert (server.url, server.token, await uid_of(server, "kept")) == before


@pytest.mark.slow
async def test_the_api_server_comes_back_with_its_data_after_stop_kill_and_pause(
    tmp_path: Path, binaries: Binaries
) -> None:
    async with run_api_server(binaries=binaries, users={"viewer": ["shop:viewers"]}) as server:
        await create_namespace(server, "kept")
        uid = await uid_of(server, "kept")
        await server.kill()
        assert not server.process.running
        await server.start()
        assert await uid_of(server, "kept") == uid
        server.pause()

        async def is_silent() -> bool:
            with anyio.move_on_after(0.5) as unanswered:
                await uid_of(server, "kept")
            return unanswered.cancelled_caught

        assert await reached(is_silent, 10.0)
        server.resume()
        assert await uid_of(server, "kept") == uid
        with pytest.raises(LocalApiError, match=r"403: .*viewer"):
            await server.request("GET", "/api/v1/namespaces", user="viewer")
        folder = server.folder
    assert not folder.exists()


async def test_an_api_server_that_does_not_start_is_reported_with_the_end_of_its_log(
    tmp_path: Path, binaries: Binaries
) -> None:
    (tmp_path / "service-account.key").write_text("no key")
    with pytest.raises(LocalError, match=r"kube-apiserver ended before it was ready; last lines of (?s:.*)key"):
        async with run_api_server(tmp_path, binaries=binaries):
            pass


async def test_the_crds_are_served_once_they_are_applied(api_server: ApiServer, namespace: str) -> None:
    path = f"/apis/pgrole.dev/v1alpha1/namespaces/{namespace}/pgroles"
    assert (await api_server.request("GET", path))["items"] == []


async def select(server: PostgresServer, query: str) -> object:
    connection = await asyncpg.connect(server.dsn())
    try:
        return await connection.fetchval(query)
    finally:
        await connection.close()


@pytest.mark.slow
async def test_postgresql_keeps_its_data_port_and_password_from_run_to_run(tmp_path: Path) -> None:
    async with postgres(tmp_path) as server:
        await select(server, "CREATE ROLE kept")
        before = server.dsn()
        pids = [server.process.pid, *descendants(server.process.pid)]
    assert await all_gone(pids)
    async with postgres(tmp_path) as server:
        assert server.dsn() == before
        assert await select(server, "SELECT count(*) FROM pg_roles WHERE rolname = 'kept'") == 1


@pytest.mark.slow
async def test_postgresql_comes_back_with_committed_data_after_restart_kill_and_pause() -> None:
    async with postgres(settings={"work_mem": "7MB"}) as server:
        assert await select(server, "SHOW work_mem") == "7MB"
        await select(server, "CREATE ROLE kept")
        await server.kill()
        await server.start()
        await server.restart(Stop.IMMEDIATE)
        assert await select(server, "SELECT count(*) FROM pg_roles WHERE rolname = 'kept'") == 1
        connection = await asyncpg.connect(server.dsn())
        server.pause()
        with pytest.raises(TimeoutError):
            await connection.fetchval("SELECT 1", timeout=0.5)
        server.resume()
        assert await select(server, "SELECT 1") == 1
        connection.terminate()
        folder = server.folder
    assert not folder.exists()


async def test_postgresql_requires_the_password_and_its_files_are_private(
    postgres_server: PostgresServer,
) -> None:
    with pytest.raises(asyncpg.InvalidPasswordError):
        await asyncpg.connect(postgres_server.dsn(password="wrong"))
    assert postgres_server.data.stat().st_mode & 0o777 == 0o700
    assert (postgres_server.folder / "password").stat().st_mode & 0o777 == 0o600


async def test_psql_of_the_embedded_postgresql_connects(postgres_server: PostgresServer) -> None:
    command = [postgres_server.psql, postgres_server.dsn(), "-AtX", "-c", "SELECT 6 * 7"]
    done = await anyio.run_process([str(part) for part in command])
    assert done.stdout == b"42\n"


@pytest.mark.slow
async def test_postgresql_16_runs_too_and_18_refuses_its_data(tmp_path: Path) -> None:
    async with postgres(tmp_path, version=16) as server:
        assert str(await select(server, "SHOW server_version")).startswith("16.")
    with pytest.raises(LocalError, match="was initialized by PostgreSQL 16, but this is 18"):
        async with postgres(tmp_path):
            pass


async def test_a_postgresql_that_does_not_start_is_reported_with_the_end_of_its_log(tmp_path: Path) -> None:
    with pytest.raises(LocalError, match=r'PostgreSQL ended before it was ready(?s:.*)"no_such_setting"'):
        async with postgres(tmp_path, settings={"no_such_setting": "1"}):
            pass


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends children with their parent")
@pytest.mark.slow
async def test_killing_the_parent_leaves_no_process(binaries: Binaries, scratch: Path) -> None:
    async with session(BOTH, scratch=scratch) as parent:
        await parent.says("running")
        pids = descendants(parent.process.pid)
        assert {"etcd", "kube-apiserver", "postgres"} <= {name_of(pid) for pid in pids}
        os.kill(parent.process.pid, signal.SIGKILL)
        assert await reached(lambda: all_gone(pids), PAST_ANY_DELAY)


@pytest.mark.slow
async def test_ctrl_c_ends_dev_and_leaves_no_process_and_no_file(
    binaries: Binaries, tmp_path: Path, scratch: Path
) -> None:
    controller = tmp_path / "controller.py"
    controller.write_text(CONTROLLER)
    async with session(DEV, "", sys.executable, str(controller), scratch=scratch) as dev:
        await dev.says("Ctrl-C stops everything")
        assert any("PgRoles orders-app, readers, billing-app are Ready" in line for line in dev.said)
        assert any("ALTER ROLE orders_app CREATEDB" in line for line in dev.said)
        pids = descendants(dev.process.pid)
        os.killpg(dev.process.pid, signal.SIGINT)
        assert await dev.ends() == 0, dev.said
    assert "a line of the controller" in dev.said
    assert "the controller's last line" in dev.said
    assert len(pids) > 4
    assert await all_gone(pids)
    assert is_empty(scratch)


@pytest.mark.slow
async def test_ctrl_c_while_dev_starts_leaves_no_process_and_no_file(binaries: Binaries, scratch: Path) -> None:
    async with session(DEV, "", sys.executable, "-c", "", scratch=scratch) as dev:
        await dev.says("PostgreSQL 18 ready")
        pids = descendants(dev.process.pid)
        os.killpg(dev.process.pid, signal.SIGINT)
        assert await dev.ends() == 0, dev.said
    assert await all_gone(pids)
    assert is_empty(scratch)


@pytest.mark.parametrize(
    ("error", "code"), [(LocalError("etcd ended before it was ready"), 0), (NotStopped("etcd did not exit"), 1)]
)
async def test_an_error_that_ctrl_c_causes_is_no_failure_of_dev(
    monkeypatch: pytest.MonkeyPatch, error: LocalError, code: int
) -> None:
    async def interrupted(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        try:
            await anyio.sleep_forever()
        finally:
            raise error

    monkeypatch.setattr(dev, "_run_servers", interrupted)
    said = StringIO()
    assert await dev.run_dev(stream=said) == code
    assert (str(error) in said.getvalue()) is (code == 1)


async def test_a_program_that_dev_has_to_kill_is_named_and_its_last_lines_are_marked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dev, "_STOP_SECONDS", 1.0)
    said = StringIO()
    async with dev._child("console", [sys.executable, "-c", STUBBORN], Display(said), prefix="console: ") as child:
        assert child.process.stdout is not None
        assert await child.process.stdout.readline() == b"ready\n"
    assert await reached(lambda: all_gone([child.process.pid]), PAST_ANY_DELAY)
    assert said.getvalue().splitlines() == ["console: stopping", "The console did not exit within 1 s; killing it"]


def test_a_state_folder_has_one_dev_at_a_time(tmp_path: Path) -> None:
    with dev._locked(tmp_path), pytest.raises(LocalError, match="another"), dev._locked(tmp_path):
        pass
    with dev._locked(tmp_path):
        pass


@pytest.mark.slow
async def test_dev_reports_that_the_controller_exited_and_keeps_the_state_of_the_chosen_version(
    binaries: Binaries, tmp_path: Path, scratch: Path
) -> None:
    state = tmp_path / "state"
    broken = [sys.executable, "-c", "print('out of luck'); raise SystemExit(3)"]
    program = DEV.replace("state, controller", "state, version=16, controller")
    async with session(program, str(state), *broken, scratch=scratch) as dev:
        assert await dev.ends() == 1
    assert any("PostgreSQL 16 ready" in line for line in dev.said)
    assert "the controller exited with code 3; its last lines:" in dev.said
    assert dev.said[-1] == "  out of luck"
    assert is_empty(scratch)
    assert (state / "postgres" / "data" / "PG_VERSION").read_text().strip() == "16"


@pytest.mark.slow
async def test_dev_reports_which_server_was_killed(binaries: Binaries, tmp_path: Path, scratch: Path) -> None:
    controller = tmp_path / "controller.py"
    controller.write_text(CONTROLLER)
    async with session(DEV, "", sys.executable, str(controller), scratch=scratch) as dev:
        await dev.says("Ctrl-C stops everything")
        [server, *_] = [pid for pid in descendants(dev.process.pid) if name_of(pid) == "postgres"]
        os.kill(server, signal.SIGKILL)
        assert await dev.ends() == 1
    assert any(line.startswith("PostgreSQL exited unexpectedly; last lines of") for line in dev.said)
    assert is_empty(scratch)


@pytest.mark.slow
async def test_a_second_dev_with_the_same_state_is_refused(binaries: Binaries, tmp_path: Path, scratch: Path) -> None:
    forever = [sys.executable, "-c", "import time; time.sleep(600)"]
    async with session(DEV, str(tmp_path / "state"), *forever, scratch=scratch) as first:
        await first.says("PostgreSQL 18 ready")
        async with session(DEV, str(tmp_path / "state"), *forever, scratch=scratch) as second:
            assert await second.ends() == 1
        assert any("another `pgrole-controller dev` is using" in line for line in second.said)
        first.process.send_signal(signal.SIGTERM)
        assert await first.ends() == 0
