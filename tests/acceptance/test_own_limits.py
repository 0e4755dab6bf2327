"""Limits of the controller itself: file descriptors, and requests to its health port."""

import re
import resource
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import aiohttp
import anyio
import anyio.lowlevel
import pytest
import pytest_asyncio
from anyio.abc import SocketStream

from pgrole_controller.local.apiserver import ApiServer
from pgrole_controller.local.postgres import PostgresServer
from pgrole_controller.local.process import reached
from tests.acceptance.scraped_metrics import ScrapedMetrics, wait_figures
from tests.acceptance.servers import PgServers, pgservers
from tests.acceptance.timed_controller import TimedController, check_calm, staying_responsive
from tests.acceptance.world import PATIENCE, Database, Kube, make_kube, open_database, remove
from tests.servers import Servers

pytestmark = pytest.mark.slow

ONE, OTHER = "one", "other"
#: Number of clients of the health port that misbehave at once.
CLIENTS = 50
ROUNDS = 3
#: Number of descriptors: standard input, output and error, which are open.
FEWEST = 3

KINDS = ("silent", "slow", "endless", "pipelined", "scraping", "deaf", "nonsense")


async def drift(database: Database, role: str = "app") -> None:
    await database.execute(f"ALTER ROLE {role} CREATEDB")
    await database.wait_role(role, lambda row: not row["rolcreatedb"], "repaired")


@asynccontextmanager
async def declared(
    api: ApiServer, folder: Path, servers: dict[str, PostgresServer]
) -> AsyncIterator[tuple[Kube, PgServers, TimedController]]:
    """A controller with these servers, and a role on each."""
    kube = await make_kube(api)
    async with pgservers(api) as made:
        for name, server in servers.items():
            await made.apply(name, server)
            await kube.apply(name, name="app", serverRef={"name": name})
        async with staying_responsive(TimedController(api, "", folder)) as controller:
            await kube.wait_all_ready()
            yield kube, made, controller
        await remove(kube)


async def test_without_free_file_descriptors_existing_sessions_continue(
    api_server: ApiServer, servers: Servers, own_postgres: PostgresServer, tmp_path: Path
) -> None:
    async with (
        servers.run() as other,
        open_database(own_postgres.dsn()) as here,
        open_database(other.dsn()) as beside,
        declared(api_server, tmp_path, {ONE: own_postgres, OTHER: other}) as (kube, made, controller),
    ):
        before = resource.prlimit(controller.process.pid, resource.RLIMIT_NOFILE)
        # Open descriptors stay open, but neither a connection nor a file can be opened.
        resource.prlimit(controller.process.pid, resource.RLIMIT_NOFILE, (FEWEST, before[1]))
        await here.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'pgrole-controller %'"
        )
        await controller.wait_log("Too many open files")
        async with await anyio.connect_tcp("127.0.0.1", controller.health_port):  # which it cannot accept
            for _ in range(ROUNDS):
                await drift(beside)
            await controller.wait_log("health server failed")
        resource.prlimit(controller.process.pid, resource.RLIMIT_NOFILE, before)
        await made.wait_ready(ONE)
        await kube.wait_all_ready()
        await drift(here)
        assert controller.log.count("health server failed") == 1
        assert len(re.findall(rf'"session with PostgreSQL begins".*"server": "{OTHER}"', controller.log)) == 1


@dataclass(frozen=True, slots=True)
class ExposedController:
    """A controller that others connect to, and its server, with a role for each kind of client."""

    controller: TimedController
    database: Database
    began: float


@pytest_asyncio.fixture(scope="class", loop_scope="session")
async def exposed(
    api_server: ApiServer, servers: Servers, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[ExposedController]:
    async with (
        servers.run() as server,
        open_database(server.dsn()) as database,
        declared(api_server, tmp_path_factory.mktemp("exposed"), {ONE: server}) as (kube, _, controller),
    ):
        began = time.monotonic()
        await kube.apply_all({kind: {"serverRef": {"name": ONE}} for kind in KINDS})
        await kube.wait_all_ready()
        yield ExposedController(controller, database, began)


class TestHealthPort:
    """Anyone in the network can connect: repairs continue, and valid requests are answered."""

    @pytest.mark.parametrize("kind", KINDS)
    async def test_misbehaving_clients_delay_no_repair_probe_or_scrape(
        self, exposed: ExposedController, kind: str
    ) -> None:
        controller = exposed.controller

        def is_connected(found: ScrapedMetrics) -> bool:
            return found.get("pgrole_server_connected", server=ONE) == 1

        async with anyio.create_task_group() as tasks:
            for _ in range(CLIENTS):
                tasks.start_soon(_misbehave, controller.health_port, kind)
            for _ in range(ROUNDS):
                await drift(exposed.database, kind)
                await _wait_alive(controller)
                await wait_figures(controller, is_connected, "its server is connected")
            tasks.cancel_scope.cancel()
        check_calm(controller, time.monotonic() - exposed.began)


async def _wait_alive(controller: TimedController) -> None:
    """Sends requests like a probe, with a timeout of one second each."""

    async def is_alive() -> bool:
        url = f"http://127.0.0.1:{controller.health_port}/healthz"
        try:
            async with aiohttp.ClientSession() as session, session.get(url, timeout=aiohttp.ClientTimeout(1)) as answer:
                return answer.status == 200
        except (aiohttp.ClientError, TimeoutError):
            return False

    assert await reached(is_alive, PATIENCE)


async def _misbehave(port: int, kind: str) -> NoReturn:
    """Opens one connection after another, each when the last one ended."""
    while True:
        try:
            async with await anyio.connect_tcp("127.0.0.1", port) as stream:
                await CLIENTS_BY_KIND[kind](stream)
        except (OSError, anyio.EndOfStream, anyio.BrokenResourceError):
            await anyio.lowlevel.checkpoint()


async def _keep_silent(stream: SocketStream) -> None:
    await stream.receive()


async def _ask_slowly(stream: SocketStream) -> None:
    """Sends a header that never ends."""
    for byte in b"GET /metrics HTTP/1.1\r\nx: " + b"y" * 1000:
        await stream.send(bytes([byte]))
        await anyio.sleep(0.05)


async def _ask_endlessly(stream: SocketStream) -> None:
    """Sends a body that is too large for the server."""
    await stream.send(b"GET /readyz HTTP/1.1\r\nHost: x\r\nContent-Length: 999999999999\r\n\r\n")
    while True:
        await stream.send(bytes(1 << 16))


async def _ask_at_once(stream: SocketStream) -> None:
    """Sends more requests than are answered, and reads no answer."""
    while True:
        await stream.send(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 1000)


async def _scrape_always(stream: SocketStream) -> None:
    while True:
        await stream.send(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        await stream.receive()


async def _read_nothing(stream: SocketStream) -> None:
    await stream.send(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
    await anyio.sleep_forever()


async def _ask_nonsense(stream: SocketStream) -> None:
    """Sends invalid HTTP that is longer than an error message would quote."""
    await stream.send(b"GET / HTTP/9.9\r\n" + b"\x01" * 8000 + b": y\r\n\r\n")
    await stream.receive()


CLIENTS_BY_KIND: dict[str, Callable[[SocketStream], Awaitable[None]]] = {
    "silent": _keep_silent,
    "slow": _ask_slowly,
    "endless": _ask_endlessly,
    "pipelined": _ask_at_once,
    "scraping": _scrape_always,
    "deaf": _read_nothing,
    "nonsense": _ask_nonsense,
}
