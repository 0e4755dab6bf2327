"""Ten servers, six of which misbehave: the controller reports each of these, and none affects another.

`python -m bench.isolation` measures how long a repair takes with and without them.
"""

import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

import anyio
import pytest
import pytest_asyncio

from bench.neighbours import SMALL, Neighbour, neighbours
from pgrole_controller.local.apiserver import ApiServer
from pgrole_controller.local.postgres import PostgresServer
from tests.acceptance.servers import EVERYTHING, PgServers, pgservers
from tests.acceptance.world import (
    Controller,
    Database,
    Json,
    Kube,
    condition,
    make_kube,
    open_database,
    remove,
    running,
    says,
)
from tests.servers import Servers

pytestmark = pytest.mark.slow

HEALTHY = 4
#: PgRoles of each misbehaving server; few, so that their work does not delay others.
ROLES = 5

#: Maximum number of log lines about one server: for its attempts right after the start, and then per minute.
FIRST_LINES, LINES_A_MINUTE = 15, 10


@dataclass(frozen=True, slots=True)
class ManyServers:
    healthy: dict[str, PostgresServer]
    databases: dict[str, Database]
    others: tuple[Neighbour, ...]
    servers: PgServers
    kube: Kube
    controller: Controller
    began: datetime

    async def drift(self, name: str) -> None:
        """Makes the role of a healthy server drift; returns when it is repaired."""
        await self.databases[name].execute("ALTER ROLE app CREATEDB")
        await self.databases[name].wait_role("app", lambda row: not row["rolcreatedb"], f"repaired on {name}")

    async def drift_all(self, but: str = "") -> None:
        async with anyio.create_task_group() as tasks:
            for name in self.healthy.keys() - {but}:
                tasks.start_soon(self.drift, name)

    async def declare(self, name: str, port: int) -> None:
        connection: Json = {
            "hosts": ["127.0.0.1"],
            "port": port,
            "sslMode": "disable",
            "credentialsSecretRef": {"name": name},
        }
        await self.servers.apply_spec(name, {"connection": connection, "allow": EVERYTHING})


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def many_servers(
    api_server: ApiServer, servers: Servers, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[ManyServers]:
    controller = Controller(
        api_server, "", tmp_path_factory.mktemp("many_servers"), "--log-level", "info", "--log-format", "json"
    )
    async with AsyncExitStack() as stack:
        others = await stack.enter_async_context(neighbours(servers.run))
        healthy = {f"s{number}": await stack.enter_async_context(servers.run(SMALL)) for number in range(HEALTHY)}
        databases = {
            name: await stack.enter_async_context(open_database(server.dsn())) for name, server in healthy.items()
        }
        declared = await stack.enter_async_context(pgservers(api_server))
        kube = await make_kube(api_server)
        opened = ManyServers(healthy, databases, others, declared, kube, controller, datetime.now(UTC))
        for name, server in healthy.items():
            await declared.apply(name, server)
            await kube.apply(name, name="app", serverRef={"name": name})
        for other in others:
            await declared.apply_credentials(other.name, "postgres", other.password)
            await opened.declare(other.name, other.port)
            for number in range(ROLES):
                await kube.apply(f"{other.name}-{number}", serverRef={"name": other.name})
        async with running(controller, connected=False):
            yield opened
        await remove(kube)


async def test_each_misbehaving_server_and_its_roles_report_the_reason(many_servers: ManyServers) -> None:
    for other in many_servers.others:
        if not other.words:
            await many_servers.servers.wait_ready(other.name)
            continue
        said = await many_servers.servers.wait_for(other.name, partial(_says, other.words), other.words)
        for number in range(ROLES):
            obj = await many_servers.kube.wait_reason(f"{other.name}-{number}", "ServerNotReady")
            assert condition(said, "Ready")["message"] in condition(obj, "Ready")["message"]


def _says(words: str, obj: Json) -> bool:
    return says(obj, "ServerNotReady", words)


async def test_healthy_servers_are_ready_and_every_drift_on_them_is_repaired(many_servers: ManyServers) -> None:
    for name in many_servers.healthy:
        await many_servers.servers.wait_ready(name)
        await many_servers.kube.wait_ready(name)
    for _ in range(4):
        await many_servers.drift_all()
    for name in many_servers.healthy:
        await many_servers.kube.wait_for(name, lambda obj: obj["status"].get("driftCount", 0) >= 4, "driftCount 4")


async def test_roles_of_the_slow_server_become_ready(many_servers: ManyServers) -> None:
    for number in range(ROLES):
        await many_servers.kube.wait_ready(f"slow-{number}")


async def test_a_frozen_server_is_reported_delays_no_other_and_recovers(many_servers: ManyServers) -> None:
    frozen = many_servers.healthy["s0"]
    frozen.pause()
    try:
        await many_servers.drift_all(but="s0")
        await many_servers.servers.wait_for("s0", lambda obj: says(obj, "ServerNotReady"), "ServerNotReady")
        await many_servers.drift_all(but="s0")
    finally:
        frozen.resume()
    await many_servers.servers.wait_ready("s0")
    await many_servers.drift("s0")


async def test_a_server_with_corrected_credentials_is_used_again(many_servers: ManyServers) -> None:
    slow = next(one for one in many_servers.others if one.name == "slow")
    # "refusing" has the same server as "slow", whose PgServer is older.
    await many_servers.servers.apply_credentials("refusing", "postgres", slow.password)
    await many_servers.servers.wait_for(
        "refusing", lambda obj: condition(obj, "Ready")["reason"] in ("Conflict", "Reconciled"), "connected"
    )
    await many_servers.servers.apply_credentials("refusing", "postgres", "wrong")
    await many_servers.servers.wait_for(
        "refusing", lambda obj: says(obj, "ServerNotReady", "password authentication failed"), "refused again"
    )


async def test_misbehaving_servers_neither_flood_the_log_nor_end_sessions_of_healthy_ones(
    many_servers: ManyServers,
) -> None:
    log = many_servers.controller.log
    minutes = (datetime.now(UTC) - many_servers.began).total_seconds() / 60
    for other in many_servers.others:
        lines = len(re.findall(rf'"server": "{other.name}"', log))
        assert lines > 0, other.name
        assert lines <= 2 * FIRST_LINES + LINES_A_MINUTE * minutes, other.name
    for name in many_servers.healthy.keys() - {"s0"}:
        begins = re.findall(rf'"session with PostgreSQL begins".*"server": "{name}"', log)
        assert len(begins) == 1, name
    not_ready = log.count("object is not ready")
    assert not_ready <= 3 * len(many_servers.others) * ROLES + HEALTHY
