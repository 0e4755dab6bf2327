"""Tenants and servers attack the controller: it stays responsive, and repairs drift of their neighbours meanwhile.

`python -m bench.isolation` measures how long a repair takes meanwhile.
"""

import itertools
import json
import re
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn

import anyio
import asyncpg
import pytest
import pytest_asyncio

from bench.hostile import SETTINGS, flood, hostile_servers, payloads, store
from pgrole_controller.local.apiserver import ApiServer
from pgrole_controller.local.postgres import PostgresServer
from pgrole_controller.local.process import reached
from tests.acceptance.scraped_metrics import scrape
from tests.acceptance.servers import EVERYTHING, PgServers, pgservers
from tests.acceptance.timed_controller import TimedController, check_calm, staying_responsive
from tests.acceptance.world import Database, Json, Kube, condition, make_kube, open_database, remove, says
from tests.servers import Servers

pytestmark = pytest.mark.slow

#: The server with the attacking tenant, and another one.
SHARED, OTHER = "shared", "other"
TENANT, PASSWORD = "mallory", "mallory's own"
#: Roles of other teams on the shared server.
TEAMS = tuple(f"team_{number}" for number in range(20))
#: Roles on the other server: enough that none drifts five times within a minute, which would be a contest.
ELSEWHERE = tuple(f"elsewhere_{number}" for number in range(40))
#: Pause between two drifts on the other server, in seconds.
PAUSE = 0.4
#: Deadline for a repair during an attack, in seconds: the test verifies the repair, not its speed, on a busy machine.
PATIENCE = 120.0
ROUNDS = 3
#: How often a hostile server succeeds before the neighbours are checked.
ATTEMPTS = 2
#: Settings that are stored over and over.
CONTINUOUS = ("elements", "half-quoted", "quoted-elements")


@dataclass(frozen=True, slots=True)
class AttackedServers:
    """The servers, for all tests of this module."""

    api: ApiServer
    shared: PostgresServer
    other: PostgresServer

    def tenant(self) -> str:
        return self.shared.dsn(TENANT, password=PASSWORD)


@dataclass(frozen=True, slots=True)
class UnderAttack:
    """A controller with its objects: one for all attacks of a tenant, and one for the hostile servers."""

    attacked: AttackedServers
    kube: Kube
    servers: PgServers
    controller: TimedController
    inside: Database  # of the shared server
    beside: Database  # of the other
    _teams: "itertools.cycle[str]" = field(default_factory=lambda: itertools.cycle(TEAMS))
    _elsewhere: "itertools.cycle[str]" = field(default_factory=lambda: itertools.cycle(ELSEWHERE))
    _turn: anyio.Lock = field(default_factory=anyio.Lock)  # of the connection with the other server

    async def drift_elsewhere(self) -> None:
        """Makes another role drift each time, since repairs of one that drifts often slow down."""
        async with self._turn:
            await _repaired(self.beside, next(self._elsewhere))

    async def drift_here(self) -> None:
        """Makes another team's role drift each time."""
        await _repaired(self.inside, next(self._teams))

    async def check_neighbours(self) -> None:
        """Verifies that drift on both servers is repaired, and that the controller stays connected to them."""
        for _ in range(ROUNDS):
            await self.drift_elsewhere()
            await self.drift_here()
        assert self.sessions(OTHER) == 1

    def sessions(self, server: str) -> int:
        begins = r'"session with PostgreSQL begins".*"server": '
        return len(re.findall(rf'{begins}"{server}"', self.controller.log))

    def failures(self, server: str) -> list[str]:
        """Returns why sessions with it ended. An attack uses the server's CPU, so an answer can be late on a busy
        machine: the session with the other server shows that the controller itself is not delayed.
        """
        log = self.controller.log
        whole = log[: log.rfind("\n") + 1].splitlines()  # the last line may still be written
        found = [json.loads(line) for line in whole if '"session with PostgreSQL ended"' in line]
        return [
            line["error"] for line in found if line["server"] == server and "no answer in time" not in line["error"]
        ]

    async def declare_hostile(self, kind: str, port: int) -> None:
        """Declares hostile servers with roles of their own, which must not delay others."""
        await self.servers.apply_credentials(kind, "postgres", "any")
        connection: Json = {
            "hosts": ["127.0.0.1"],
            "port": port,
            "sslMode": "disable",
            "credentialsSecretRef": {"name": kind},
        }
        await self.servers.apply_spec(kind, {"connection": connection, "allow": EVERYTHING})
        for role in roles_of(kind):
            await self.kube.apply(role, serverRef={"name": kind})


def roles_of(kind: str) -> list[str]:
    """Returns the objects of one hostile server."""
    return [f"{kind}-{number}" for number in range(3)]


async def _repaired(database: Database, role: str) -> None:
    await database.execute(f"ALTER ROLE {role} CREATEDB")
    await database.wait_role(role, lambda row: not row["rolcreatedb"], "repaired", PATIENCE)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def attacked(api_server: ApiServer, servers: Servers) -> AsyncIterator[AttackedServers]:
    async with servers.run() as shared, servers.run() as other:
        yield AttackedServers(api_server, shared, other)


@pytest_asyncio.fixture(scope="class", loop_scope="session")
async def controlled(attacked: AttackedServers, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[UnderAttack]:
    kube = await make_kube(attacked.api)
    controller = TimedController(attacked.api, "", tmp_path_factory.mktemp("under_attack"))
    async with (
        pgservers(attacked.api) as declared,
        open_database(attacked.shared.dsn()) as inside,
        open_database(attacked.other.dsn()) as beside,
    ):
        await declared.apply(SHARED, attacked.shared)
        await declared.apply(OTHER, attacked.other)
        await kube.apply_secret(TENANT, password=PASSWORD)
        password = {"secretRef": {"name": TENANT}}
        await kube.apply(TENANT, name=TENANT, login=True, password=password, serverRef={"name": SHARED}, adopt=True)
        for name in TEAMS:
            await kube.apply(name.replace("_", "-"), name=name, serverRef={"name": SHARED}, adopt=True)
        for name in ELSEWHERE:
            await kube.apply(name.replace("_", "-"), name=name, serverRef={"name": OTHER}, adopt=True)
        try:
            async with staying_responsive(controller):
                await kube.wait_all_ready()
                yield UnderAttack(attacked, kube, declared, controller, inside, beside)
        finally:
            await remove(kube)


@pytest_asyncio.fixture(loop_scope="session")
async def under_attack(controlled: UnderAttack) -> AsyncIterator[UnderAttack]:
    """Yields once everything is Ready; after the attack, verifies that the controller stayed within its limits."""
    began = time.monotonic()
    await _forgive(controlled.inside)
    await controlled.kube.wait_all_ready(PATIENCE)
    yield controlled
    check_calm(controlled.controller, time.monotonic() - began)


async def _forgive(database: Database) -> None:
    """Removes what an earlier attack left behind, if it succeeded."""
    await database.execute(
        f"DO $$ BEGIN IF to_regrole('{TENANT}') IS NOT NULL THEN ALTER ROLE {TENANT} RESET ALL; END IF; END $$"
    )
    await database.execute("DROP TABLE IF EXISTS held; DROP ROLE IF EXISTS owner")


@asynccontextmanager
async def attacking(*attacks: Callable[[], Coroutine[Any, Any, None]]) -> AsyncIterator[None]:
    """Runs all attacks at once for the duration of the context."""
    async with anyio.create_task_group() as tasks:
        for attack in attacks:
            tasks.start_soon(attack)
        yield
        tasks.cancel_scope.cancel()


class TestTenant:
    """Attacks by a role with LOGIN."""

    @pytest.mark.parametrize("kind", sorted(SETTINGS.keys() - {"elements", "quoted-elements"}))
    async def test_settings_that_are_hard_to_read_are_removed_and_delay_no_neighbour(
        self, under_attack: UnderAttack, kind: str
    ) -> None:
        await store(under_attack.attacked.tenant(), kind)
        await under_attack.check_neighbours()
        await _settings_removed(under_attack)
        assert under_attack.failures(SHARED) == []

    @pytest.mark.parametrize("kind", payloads(TEAMS))
    async def test_flooding_the_channel_delays_no_repair(self, under_attack: UnderAttack, kind: str) -> None:
        attack = partial(flood, under_attack.attacked.tenant(), payloads(TEAMS)[kind])
        async with attacking(attack, attack, attack):
            await under_attack.check_neighbours()
        await under_attack.kube.wait_all_ready(PATIENCE)

    async def test_a_tenant_cannot_end_the_controllers_sessions(self, under_attack: UnderAttack) -> None:
        async with attacking(partial(_terminate_always, under_attack.attacked.tenant())):
            await under_attack.check_neighbours()
        assert under_attack.failures(SHARED) == []

    async def test_locks_on_a_table_to_reassign_delay_only_that_deletion(self, under_attack: UnderAttack) -> None:
        """The owner's object is deleted and its table reassigned. Neighbours do not wait for that, and it succeeds in
        the end.
        """
        await under_attack.kube.apply("owner", name="owner", login=True, serverRef={"name": SHARED}, adopt=True)
        await under_attack.kube.patch(
            "owner", {"spec": {"deletionPolicy": "Drop", "reassignOwnedTo": TEAMS[0], "terminateSessions": False}}
        )
        await under_attack.kube.wait_ready("owner")
        await under_attack.inside.execute(
            f"CREATE TABLE held (); ALTER TABLE held OWNER TO owner; GRANT ALL ON held TO {TENANT}"
        )
        holder = await asyncpg.connect(under_attack.attacked.tenant())
        try:
            transaction = holder.transaction()
            await transaction.start()
            await holder.execute("LOCK TABLE held IN ACCESS SHARE MODE")
            await under_attack.kube.delete("owner")
            await under_attack.kube.wait_for(
                "owner", lambda obj: condition(obj, "Ready").get("reason") == "DropBlocked", "reported", PATIENCE
            )
            await under_attack.check_neighbours()
            await transaction.rollback()
        finally:
            await holder.close()
        await under_attack.kube.wait_gone("owner", PATIENCE)
        await under_attack.inside.execute("DROP TABLE held")

    async def test_settings_stored_continuously_are_removed_end_no_session_and_delay_no_neighbour(
        self, under_attack: UnderAttack
    ) -> None:
        async with attacking(partial(_store_always, under_attack.attacked.tenant())):
            await under_attack.check_neighbours()
        await _settings_removed(under_attack)
        assert under_attack.failures(SHARED) == []


async def _settings_removed(under_attack: UnderAttack) -> None:
    stored = f"SELECT count(*) FROM pg_db_role_setting WHERE setrole = '{TENANT}'::regrole"
    await under_attack.inside.wait_value(stored, 0, PATIENCE)
    await under_attack.kube.wait_ready(TENANT, PATIENCE)


async def _store_always(dsn: str) -> NoReturn:
    while True:
        for kind in CONTINUOUS:
            await store(dsn, kind)


async def _terminate_always(dsn: str) -> NoReturn:
    connection = await asyncpg.connect(dsn)
    try:
        while True:
            for function in ("pg_cancel_backend", "pg_terminate_backend"):
                pids = "SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND pid IS NOT NULL"
                for row in await connection.fetch(pids):
                    try:
                        await connection.execute(f"SELECT {function}({row['pid']})")
                    except asyncpg.InsufficientPrivilegeError:
                        continue
    finally:
        with anyio.CancelScope(shield=True):
            await connection.close(timeout=5)


class TestServer:
    """Attacks by the server behind a PgServer."""

    async def test_hostile_servers_are_retried_and_delay_only_themselves(self, under_attack: UnderAttack) -> None:
        async with hostile_servers() as ports:
            for kind, port in ports.items():
                await under_attack.declare_hostile(kind, port)
            for kind in ports:
                await under_attack.servers.wait_for(kind, lambda obj: says(obj, "ServerNotReady"), "reported", PATIENCE)
            tried: dict[str, float] = {}

            async def are_tried() -> bool:
                figures = await scrape(under_attack.controller)
                tried.update({kind: figures.sum("pgrole_session_failures_total", server=kind) for kind in ports})
                return min(tried.values()) >= ATTEMPTS

            async with attacking(partial(_drift_always, under_attack)):
                assert await reached(are_tried, 2 * PATIENCE, every=0.5), tried
                await under_attack.check_neighbours()
            assert under_attack.failures(SHARED) == []
            for kind in ports:
                for role in roles_of(kind):
                    await under_attack.kube.wait_reason(role, "ServerNotReady", PATIENCE)
            # Deleted now, so that the cleanup does not wait for these servers.
            for kind in ports:
                for role in roles_of(kind):
                    await under_attack.kube.delete(role)
            # A control of `failures`: this one it must find. Later tests of this controller cannot expect none.
            sessions = "FROM pg_stat_activity WHERE application_name LIKE 'pgrole-controller %'"
            await under_attack.inside.execute(f"SELECT pg_terminate_backend(pid) {sessions}")

            async def is_found() -> bool:
                return bool(under_attack.failures(SHARED))

            assert await reached(is_found, PATIENCE), under_attack.controller.log


async def _drift_always(under_attack: UnderAttack) -> NoReturn:
    while True:
        await under_attack.drift_elsewhere()
        await anyio.sleep(PAUSE)
