"""A server runs out of disk or connections: the controller reports it, continues as far as possible, and delays no
other server.
"""

import re
import secrets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import asyncpg
import pytest
import pytest_asyncio

from pgrole_controller.local.apiserver import ApiServer
from pgrole_controller.local.postgres import PostgresServer
from pgrole_controller.local.process import reached
from tests.acceptance.privileges import CONTROLLER_ROLE, PASSWORD, role_sql
from tests.acceptance.scraped_metrics import scrape
from tests.acceptance.servers import PgServers, pgservers
from tests.acceptance.timed_controller import TimedController, staying_responsive
from tests.acceptance.world import PATIENCE, Database, Json, Kube, condition, make_kube, open_database, remove, says
from tests.disk import Disk, small_disk
from tests.servers import Servers

pytestmark = pytest.mark.slow

#: A server with few connections, three of them for superusers.
FEW = {"max_connections": "12", "superuser_reserved_connections": "3", "max_wal_senders": "0"}

#: Limits that leave the controller's role no connection.
LIMITS = ("all", "ordinary", "role", "database", "closed")

SHORT, OTHER = "short", "other"
BEGINS = "session with PostgreSQL begins"
#: Text that fits into no existing page of a table: three bytes for each letter, in random order.
LONG = "".join(chr(0x4E00 + secrets.randbelow(0x5000)) for _ in range(1024))
ROLES = 100
#: Maximum number of attempts to connect while a test waits, since their delays grow.
ATTEMPTS = 20


@dataclass(frozen=True, slots=True)
class Two:
    """Two servers and a controller: one that runs short, and the other."""

    kube: Kube
    servers: PgServers
    short: PostgresServer
    other: Database
    controller: TimedController

    async def declare(self, name: str, **spec: object) -> None:
        await self.kube.apply(name, name=name, serverRef={"name": SHORT}, **spec)

    async def drift_elsewhere(self) -> None:
        """Verifies that the other server's drift is repaired."""
        await self.other.execute("ALTER ROLE elsewhere CREATEDB")
        await self.other.wait_role("elsewhere", lambda row: not row["rolcreatedb"], "repaired on the other server")

    async def drift(self, database: Database, name: str) -> None:
        await database.execute(f"ALTER ROLE {name} CREATEDB")
        await database.wait_role(name, lambda row: not row["rolcreatedb"], "repaired")

    def sessions(self, server: str) -> int:
        return len(re.findall(rf'"{BEGINS}".*"server": "{server}"', self.controller.log))

    async def attempts(self, server: str = SHORT) -> float:
        """Number of failed attempts to connect to a server."""
        return (await scrape(self.controller)).sum("pgrole_session_failures_total", server=server)


@asynccontextmanager
async def two(
    api: ApiServer, folder: Path, short: PostgresServer, other: PostgresServer, user: str = "", password: str = ""
) -> AsyncIterator[Two]:
    kube = await make_kube(api)
    async with pgservers(api) as declared, open_database(other.dsn()) as database:
        await declared.apply(OTHER, other)
        await kube.apply("elsewhere", name="elsewhere", serverRef={"name": OTHER})
        await declared.apply(SHORT, short)
        if user:
            await declared.apply_credentials(SHORT, user, password)
        async with staying_responsive(TimedController(api, "", folder)) as controller:
            await kube.wait_ready("elsewhere")
            yield Two(kube, declared, short, database, controller)
            assert len(re.findall(rf'"{BEGINS}".*"server": "{OTHER}"', controller.log)) == 1
        await remove(kube)


@pytest_asyncio.fixture(loop_scope="session")
async def other_postgres(servers: Servers) -> AsyncIterator[PostgresServer]:
    async with servers.run() as server:
        yield server


class TestDisk:
    async def test_what_a_full_disk_prevents_is_reported_while_the_rest_continues_and_repaired_afterwards(
        self, api_server: ApiServer, own_postgres: PostgresServer, other_postgres: PostgresServer, tmp_path: Path
    ) -> None:
        async with (
            small_disk(own_postgres, ".", 128) as disk,
            two(api_server, tmp_path, own_postgres, other_postgres) as both,
        ):
            await _try_changes_that_need_space(both, disk)
            await _try_full_pages(both, disk)

    async def test_a_full_disk_that_prevents_recording_changes_is_reported_on_server_and_objects(
        self, api_server: ApiServer, own_postgres: PostgresServer, other_postgres: PostgresServer, tmp_path: Path
    ) -> None:
        async with (
            small_disk(own_postgres, ".", 128) as disk,
            two(api_server, tmp_path, own_postgres, other_postgres) as both,
            open_database(own_postgres.dsn()) as database,
        ):
            await both.declare("kept")
            await both.kube.wait_ready("kept")
            # From now on there is space for roles, but none for recording them in pgrole.role_state.
            await database.execute(_each("CREATE ROLE old_%s", 2000))
            await database.execute(_each("DROP ROLE old_%s", 1999))
            for _ in range(2):  # the second one recycles index pages that the first one emptied
                await _wait_horizon(database)
                await database.execute("VACUUM pg_authid")
            await database.execute("VACUUM FULL pgrole.role_state")
            async with open_database(own_postgres.dsn()):  # only the first session of a database writes files
                disk.fill()
            await database.execute(_each("CREATE ROLE new_%s", 300))
            await both.servers.wait_for(SHORT, _names_disk, "reported on the server")
            await both.kube.wait_for("kept", _names_disk, "reported on its object")
            await both.drift_elsewhere()
            await database.execute("ALTER ROLE kept CREATEDB")
            disk.free()
            await both.servers.wait_ready(SHORT)
            await database.wait_role("kept", lambda row: not row["rolcreatedb"], "repaired")
            await both.kube.wait_ready("kept")
            assert 0 < await both.attempts() < ATTEMPTS

    async def test_the_controller_recovers_after_a_full_disk_stopped_the_server(
        self, api_server: ApiServer, own_postgres: PostgresServer, other_postgres: PostgresServer, tmp_path: Path
    ) -> None:
        """The server stops without space for WAL, and an administrator restarts it."""
        async with (
            small_disk(own_postgres, "pg_wal", 64) as disk,
            two(api_server, tmp_path, own_postgres, other_postgres) as both,
        ):
            await both.declare("kept")
            await both.kube.wait_ready("kept")
            disk.fill()
            async with open_database(own_postgres.dsn()) as database:
                with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, OSError)):
                    await _write_until_full(database)
            await both.servers.wait_for(SHORT, lambda obj: says(obj, "ServerNotReady"), "reported on the server")
            await both.kube.wait_reason("kept", "ServerNotReady")
            await both.drift_elsewhere()
            disk.free()
            await own_postgres.kill()
            await own_postgres.start()
            await both.servers.wait_ready(SHORT)
            await both.kube.wait_ready("kept")
            async with open_database(own_postgres.dsn()) as database:
                await both.drift(database, "kept")


class TestConnections:
    """Limits: max_connections, connections reserved for superusers, those of the role and the home database, and a home
    database without connections.
    """

    async def test_missing_connections_at_the_start_are_reported_with_the_remedy(
        self, api_server: ApiServer, servers: Servers, other_postgres: PostgresServer, tmp_path: Path
    ) -> None:
        """Each limit is that of a server of its own."""
        async with AsyncExitStack() as stack:
            short = {what: await stack.enter_async_context(servers.run(FEW)) for what in LIMITS}
            held: dict[str, AsyncExitStack] = {}
            for what, server in short.items():
                async with open_database(server.dsn()) as database:
                    await database.execute(role_sql(servers.version))
                held[what] = await stack.enter_async_context(taking(server, what))
            both = await stack.enter_async_context(
                two(api_server, tmp_path, short["all"], other_postgres, CONTROLLER_ROLE, PASSWORD)
            )
            declared = {SHORT if what == "all" else what: what for what in LIMITS}
            for name, what in declared.items():
                if name != SHORT:
                    await both.servers.apply(name, short[what])
                    await both.servers.apply_credentials(name, CONTROLLER_ROLE, PASSWORD)
                await both.kube.apply(name, name="waiting", serverRef={"name": name})
            for number, (name, what) in enumerate(declared.items()):
                lacks = _is_closed if what == "closed" else _names_connections
                await both.servers.wait_for(name, lacks, "reported on the server")
                await both.kube.wait_for(name, lacks, "reported on its object")
                if number == 0:
                    await both.drift_elsewhere()
                await held[what].aclose()  # at once, since attempts to connect become rare
            for name in declared:
                await both.servers.wait_ready(name)
                await both.kube.wait_ready(name)
                assert 0 < await both.attempts(name) < ATTEMPTS, name

    async def test_a_session_continues_when_no_further_connection_is_available(
        self, api_server: ApiServer, servers: Servers, other_postgres: PostgresServer, tmp_path: Path
    ) -> None:
        """Emptying a role needs further connections: it waits for them, and nothing else does."""
        async with (
            servers.run(FEW) as short,
            open_database(short.dsn()) as database,
            two(api_server, tmp_path, short, other_postgres) as both,
        ):
            await both.declare("stays")
            await both.declare("heir")
            await both.declare("goes", deletionPolicy="Drop", reassignOwnedTo="heir")
            await both.kube.wait_all_ready()
            await database.execute("CREATE TABLE belongings (); ALTER TABLE belongings OWNER TO goes")
            async with taking(short, "all"):
                await both.kube.delete("goes")
                await both.kube.wait_for("goes", _lacks_connections, "reported")
                await both.drift(database, "stays")
                await both.drift_elsewhere()
                await both.servers.wait_ready(SHORT)
            await both.kube.wait_gone("goes")
            assert await database.role("goes") is None
            assert (
                await database.fetchval("SELECT relowner::regrole::text FROM pg_class WHERE relname = 'belongings'")
                == "heir"
            )
            assert both.sessions(SHORT) == 1


async def _try_changes_that_need_space(both: Two, disk: Disk) -> None:
    await both.declare("small")
    await both.kube.wait_ready("small")
    disk.fill()
    await both.declare("big", comment=LONG)
    await both.kube.wait_for("big", _names_disk, "reported")
    await both.drift_elsewhere()
    async with open_database(both.short.dsn()) as database:
        await both.drift(database, "small")
    disk.free()
    await both.kube.wait_ready("big")
    assert both.sessions(SHORT) == 1


async def _try_full_pages(both: Two, disk: Disk) -> None:
    names = [f"many_{number}" for number in range(ROLES)]
    await both.kube.apply_all({name.replace("_", "-"): {"name": name, "serverRef": {"name": SHORT}} for name in names})
    await both.kube.wait_all_ready()
    async with open_database(both.short.dsn()) as database, open_database(both.short.dsn()) as reader:
        # Old row versions free no space while a transaction could still read them.
        await reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT")
        await reader.fetchval("SELECT count(*) FROM pg_class")
        disk.fill()
        drifted = await _drift_until_full(database, names)
        assert drifted

        async def is_said() -> bool:
            return any(_names_disk(obj) for obj in await both.kube.objects())

        assert await reached(is_said, PATIENCE)
        await both.drift_elsewhere()
        disk.free()
        await both.kube.wait_all_ready()
        await database.wait_value("SELECT count(*) FROM pg_roles WHERE rolcreatedb AND NOT rolsuper", 0)
        await both.servers.wait_ready(SHORT)


@asynccontextmanager
async def taking(server: PostgresServer, what: str) -> AsyncIterator[AsyncExitStack]:
    """Leaves the controller's role no connection until the stack is closed."""
    async with AsyncExitStack() as held:
        if what in ("all", "ordinary"):
            who = server.dsn() if what == "all" else server.dsn(CONTROLLER_ROLE, password=PASSWORD)
            with pytest.raises(asyncpg.TooManyConnectionsError):
                await _take_each(held, who)
        else:
            database = await held.enter_async_context(open_database(server.dsn(database="template1")))
            subject, none, any_number = _STATEMENTS[what]
            await database.execute(f"ALTER {subject} {none}")
            held.push_async_callback(database.execute, f"ALTER {subject} {any_number}")
        yield held


_STATEMENTS = {
    "role": (f"ROLE {CONTROLLER_ROLE}", "CONNECTION LIMIT 0", "CONNECTION LIMIT -1"),
    "database": ("DATABASE postgres", "CONNECTION LIMIT 0", "CONNECTION LIMIT -1"),
    "closed": ("DATABASE postgres", "ALLOW_CONNECTIONS false", "ALLOW_CONNECTIONS true"),
}


async def _take_each(held: AsyncExitStack, dsn: str) -> NoReturn:
    while True:
        await held.enter_async_context(open_database(dsn))


def _names_connections(obj: Json) -> bool:
    return says(obj, "ServerNotReady", "no connection left", "raise max_connections")


def _is_closed(obj: Json) -> bool:
    return says(obj, "ServerNotReady", "not currently accepting connections")


def _lacks_connections(obj: Json) -> bool:
    return "no connection left" in condition(obj, "Ready").get("message", "")


async def _wait_horizon(database: Database) -> None:
    """Waits until no transaction can see rows deleted so far, so that VACUUM removes all of them."""
    now = await database.fetchval("SELECT pg_current_xact_id()::xid::text::bigint")
    older = "SELECT count(*) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND backend_xmin::text::bigint <= {}"
    await database.wait_value(older.format(now), 0)


def _each(statement: str, count: int) -> str:
    return f"DO $$ BEGIN FOR n IN 1..{count} LOOP EXECUTE format('{statement}', n); END LOOP; END $$"


async def _write_until_full(database: Database) -> NoReturn:
    """Writes until an error. Each round begins another WAL file."""
    while True:
        await database.execute("SELECT pg_switch_wal()")
        await database.execute("CREATE ROLE one; DROP ROLE one")


async def _drift_until_full(database: Database, names: list[str]) -> list[str]:
    """Makes one role after another drift until the disk is full; returns the names of those that drifted."""
    drifted = []
    for name in names:
        try:
            await database.execute(f"ALTER ROLE {name} CREATEDB")
        except asyncpg.DiskFullError:
            break
        drifted.append(name)
    return drifted


def _names_disk(obj: Json) -> bool:
    return says(obj, "ServerNotReady", "disk is full", "No space left")
