"""controller/health: health is served even while the controller's event loop is blocked, and reports it."""

import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from types import SimpleNamespace
from typing import cast
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

import anyio
import anyio.to_thread
import pytest

from pgrole_controller.controller.containment import CannotStart, Misconfigured
from pgrole_controller.controller.health import (
    BEAT_SECONDS,
    REST_TIMES,
    STILL_SECONDS,
    Health,
    Heartbeat,
    Scraper,
    Shared,
)
from pgrole_controller.controller.health_port import AT_ONCE, CONNECTIONS, NoAnswer
from pgrole_controller.controller.leadership import Leadership
from pgrole_controller.controller.namespaces import Namespaces
from pgrole_controller.controller.objects import Objects, index_by_owner, index_pgrole
from pgrole_controller.controller.privileges.databases import DatabaseState
from pgrole_controller.controller.queue import Queue
from pgrole_controller.controller.servers import ServerWorkers
from pgrole_controller.controller.session_keeper import SessionState
from pgrole_controller.controller.worker import ServerWorker
from pgrole_controller.controller.worker_memory import OVERDUE_SECONDS, OwnChanges
from pgrole_controller.core.errors import PgRoleError, Reason, Waiting
from pgrole_controller.core.server_options import DatabaseMode, Mode
from pgrole_controller.kube.client import Client
from pgrole_controller.kube.store import Store
from pgrole_controller.listening import EVERY_ADDRESS
from pgrole_controller.local.process import reached
from pgrole_controller.local.workspace import free_port
from pgrole_controller.metrics import Scrape

PATIENCE = 30.0


class Clock:
    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead


def get(port: int, path: str, host: str = "127.0.0.1") -> tuple[int, str]:
    """Returns status and body; 0 while nothing listens."""
    try:
        with urlopen(f"http://{host}:{port}{path}", timeout=PATIENCE) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode()
    except URLError:
        return 0, ""


class SettledWorkers(list[SimpleNamespace]):
    """All that are declared."""

    def __init__(self, workers: list[SimpleNamespace]) -> None:
        super().__init__(workers)
        self.all_started = anyio.Event()
        self.all_started.set()


async def wait_served(port: int) -> None:
    async def is_served() -> bool:
        return await anyio.to_thread.run_sync(get, port, "/healthz") == (200, "ok\n")

    assert await reached(is_served, PATIENCE)


async def test_a_blocked_event_loop_is_reported_until_it_runs_again() -> None:
    clock, port = Clock(), free_port()
    health = Health(Heartbeat(clock))
    with ThreadPoolExecutor(1) as thread:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(health.serve, "127.0.0.1", port)
            await wait_served(port)
            clock.ahead = STILL_SECONDS + 1  # as if the loop had been blocked for so long
            answers = {path: thread.submit(get, port, path) for path in ("/healthz", "/readyz", "/metrics")}
            stands_still = {path: answer.result(PATIENCE) for path, answer in answers.items()}
            await wait_served(port)
            tasks.cancel_scope.cancel()
    status, text = stands_still["/healthz"]
    assert (status, text.split(" for ")[0]) == (503, "the event loop has been blocked")
    status, text = stands_still["/readyz"]
    assert (status, json.loads(text)["ready"]) == (503, False)
    status, text = stands_still["/metrics"]
    assert status == 200
    (age,) = (line for line in text.splitlines() if line.startswith("pgrole_loop_heartbeat_age_seconds "))
    assert float(age.split()[1]) >= STILL_SECONDS
    for unknown in ("pgrole_leader", "pgrole_contested_objects"):  # while the loop is blocked
        assert f"\n{unknown} " not in text


async def test_before_the_api_server_is_reached_the_controller_is_alive_but_neither_ready_nor_leading() -> None:
    port = free_port()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(Health().serve, "127.0.0.1", port)
        await wait_served(port)
        status, text = await anyio.to_thread.run_sync(get, port, "/readyz")
        assert (status, json.loads(text)) == (503, {"ready": False, "synced": False, "leading": False, "servers": {}})
        status, text = await anyio.to_thread.run_sync(get, port, "/metrics")
        assert status == 200
        assert "\npgrole_leader 0.0\n" in text
        tasks.cancel_scope.cancel()


async def test_readiness_names_the_reason_why_a_server_cannot_be_used_but_not_the_message() -> None:
    waiting = Waiting(Reason.SERVER_NOT_READY, 'Secret "admin" in namespace pgrole-system does not exist')

    def worker(name: str, state: SessionState, trouble: PgRoleError | None = None) -> SimpleNamespace:
        return SimpleNamespace(server=SimpleNamespace(name=name), keeper=SimpleNamespace(state=state, trouble=trouble))

    workers = [
        worker("default", SessionState.ACTIVE),
        worker("eu", SessionState.UNAVAILABLE, waiting),
        worker("us", SessionState.CONNECTING),
    ]
    leadership = cast("Leadership", SimpleNamespace(leading=True, synced=lambda: True))
    port, health = free_port(), Health()
    health.watch(Store(), cast("ServerWorkers", SettledWorkers(workers)), leadership, Scrape)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(health.serve, "127.0.0.1", port)
        await wait_served(port)
        _, text = await anyio.to_thread.run_sync(get, port, "/readyz")
        tasks.cancel_scope.cancel()
    assert json.loads(text)["servers"] == {"default": "connected", "eu": "ServerNotReady", "us": "connecting"}
    assert "admin" not in text


async def test_a_failing_scrape_is_answered_with_500_and_serving_continues() -> None:
    def fail() -> Scrape:
        raise RuntimeError("a scrape that fails")

    port, health = free_port(), Health()
    health._scrape = fail
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(health.serve, "127.0.0.1", port)
        await wait_served(port)
        status, _ = await anyio.to_thread.run_sync(get, port, "/metrics")
        assert status == 500
        await wait_served(port)
        tasks.cancel_scope.cancel()


async def test_idle_connections_do_not_block_requests() -> None:
    port = free_port()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(Health().serve, "127.0.0.1", port)
        await wait_served(port)
        with ExitStack() as stack:
            silent = [
                stack.enter_context(socket.create_connection(("127.0.0.1", port), PATIENCE))
                for _ in range(3 * (CONNECTIONS + AT_ONCE))
            ]
            first = silent[: CONNECTIONS + AT_ONCE]

            async def are_ended() -> bool:
                return all(_is_ended(one) for one in first)

            for one in first:
                one.setblocking(False)
            assert await reached(are_ended, PATIENCE)
            await wait_served(port)
        tasks.cancel_scope.cancel()


def _is_ended(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


async def test_every_address_is_served_with_and_without_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    for has_ipv6 in (True, False):
        monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda has=has_ipv6: has)
        port = free_port()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(Health().serve, EVERY_ADDRESS, port)
            await wait_served(port)
            assert await anyio.to_thread.run_sync(get, port, "/healthz", "[::1]") == (
                (200, "ok\n") if has_ipv6 else (0, "")
            )
            tasks.cancel_scope.cancel()


async def test_a_port_in_use_is_named_in_the_error() -> None:
    port = free_port()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(Health().serve, "127.0.0.1", port)
        await wait_served(port)
        with pytest.raises(CannotStart, match=f"--health-port {port}"):
            await Health().serve("127.0.0.1", port)
        tasks.cancel_scope.cancel()


async def test_an_address_of_another_machine_is_named_in_the_error() -> None:
    with pytest.raises(Misconfigured, match=r"--health-host 192\.0\.2\.1"):
        await Health().serve("192.0.2.1", free_port())


async def test_the_heartbeat_is_alive_only_shortly_after_a_beat() -> None:
    clock = Clock()
    heartbeat = Heartbeat(clock)
    clock.ahead = STILL_SECONDS + 1
    assert not heartbeat.alive

    async def is_alive() -> bool:
        return heartbeat.alive

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(heartbeat.beat)
        assert await reached(is_alive, PATIENCE)
        tasks.cancel_scope.cancel()
    assert heartbeat.age < STILL_SECONDS
    assert BEAT_SECONDS * 10 <= STILL_SECONDS


class TestShared:
    """Concurrent requests share a computed answer."""

    async def test_requests_during_a_computation_share_the_next_answer(self) -> None:
        begun, may_end = 0, anyio.Event()

        async def count() -> int:
            nonlocal begun
            begun += 1
            await may_end.wait()
            return begun

        shared, answers = Shared(count, 0.0), list[int]()

        async def ask() -> None:
            answers.append(await shared.get())

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)

            async def is_begun() -> bool:
                return begun == 1

            assert await reached(is_begun, PATIENCE)
            for _ in range(50):
                tasks.start_soon(ask)
            await anyio.wait_all_tasks_blocked()
            may_end.set()
        assert (begun, sorted(answers)) == (2, [1] + [2] * 50)

    async def test_a_failure_is_logged_once_for_all_requests_and_the_next_answer_is_computed_again(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        may_end, failing = anyio.Event(), True

        async def find() -> str:
            await may_end.wait()
            if failing:
                raise ValueError("a scrape that fails")
            return "well"

        shared, failed = Shared(find, 0.0), list[str]()

        async def ask() -> None:
            with pytest.raises(NoAnswer):
                await shared.get()
            failed.append("failed")

        async with anyio.create_task_group() as tasks:
            for _ in range(50):
                tasks.start_soon(ask)
            await anyio.wait_all_tasks_blocked()
            may_end.set()
        assert len(failed) == 50
        assert [record.message for record in caplog.records] == ["health response failed"]
        failing = False
        assert await shared.get() == "well"

    async def test_an_answer_is_computed_again_only_after_many_times_its_own_duration(self) -> None:
        async def work() -> None:
            ends = time.thread_time() + 0.005
            while time.thread_time() < ends:
                pass

        shared = Shared(work, 10.0)
        await shared.get()
        began = time.monotonic()
        await shared.get()
        assert time.monotonic() - began >= 0.005 * REST_TIMES


async def test_a_malformed_request_is_answered_with_400_and_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    port = free_port()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(Health().serve, "127.0.0.1", port)
        await wait_served(port)
        for request in (b"\0" * 100, b"GET /healthz HTTP/9.9\r\n\r\n", b"GET / HTTP/1.1\r\na\0b: c\r\n\r\n"):
            async with await anyio.connect_tcp("127.0.0.1", port) as stream:
                await stream.send(request)
                assert b"400 Bad Request" in await stream.receive()
        tasks.cancel_scope.cancel()
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == []


@pytest.mark.parametrize(("mode", "unheard"), [(Mode.WATCH, 1), (Mode.POLL, 0), (Mode.RESYNC, 0)])
async def test_the_interval_delays_when_an_own_change_is_overdue_only_under_poll(mode: Mode, unheard: int) -> None:
    own_changes = OwnChanges()
    own_changes.begin(["app"])
    own_changes.commit(["app"], anyio.current_time() - OVERDUE_SECONDS - 1)
    session = SimpleNamespace(detection=SimpleNamespace(mode=mode), why="")
    worker = SimpleNamespace(
        server=SimpleNamespace(name="default", interval=60.0),
        keeper=SimpleNamespace(session=session, state=SimpleNamespace(has_session=True)),
        databases=SimpleNamespace(states=list),
        own_changes=own_changes,
    )
    objects = Objects(Store(index_pgrole), Store(index_by_owner), Namespaces(cast("Client", None), Store()), "c1")
    leadership = cast("Leadership", SimpleNamespace(leading=True))
    scraper = Scraper([cast("ServerWorker", worker)], objects, Queue(), leadership)
    assert scraper.scrape().servers[0].unheard == unheard


async def test_the_databases_of_a_server_are_counted_with_those_that_were_reached_and_the_largest_acl() -> None:
    states = [
        DatabaseState("a", DatabaseMode.POLL, "", 5),
        DatabaseState("b", None, "", 9),
        DatabaseState("c", None, ""),
    ]
    worker = SimpleNamespace(
        server=SimpleNamespace(name="default"),
        keeper=SimpleNamespace(session=None, state=SimpleNamespace(has_session=False)),
        databases=SimpleNamespace(states=lambda: states),
    )
    objects = Objects(Store(index_pgrole), Store(index_by_owner), Namespaces(cast("Client", None), Store()), "c1")
    leadership = cast("Leadership", SimpleNamespace(leading=True))
    (figures, _) = Scraper([cast("ServerWorker", worker)], objects, Queue(), leadership).scrape().servers
    assert (figures.databases, figures.databases_connected, figures.largest_acl) == (3, 1, 9)
