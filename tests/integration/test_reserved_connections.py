"""Connections that are reserved for superusers stay free, however many databases are served."""

from collections.abc import AsyncIterator
from dataclasses import replace

import asyncpg
import pytest
import pytest_asyncio

from pgrole_controller.controller.privileges import database_worker
from pgrole_controller.core.backoff import Backoff
from pgrole_controller.core.errors import Reason
from pgrole_controller.core.server_options import DatabasesConfig
from pgrole_controller.local.postgres import PostgresServer
from pgrole_controller.postgres.capabilities import identify
from pgrole_controller.postgres.connection import Endpoint, connect
from pgrole_controller.postgres.privileges.reading_connection import ReadingConnections
from tests.integration.databases_world import DatabasesWorld, make_databases
from tests.servers import Servers

DATABASES = 8
RESERVED = 3
#: The test's own: one in each database, one in the home database.
OWN = DATABASES + 1
FREE = 4
SETTINGS = {
    "max_connections": str(OWN + FREE + RESERVED),
    "superuser_reserved_connections": str(RESERVED),
    "max_wal_senders": "0",
}
SESSIONS = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgrole-controller database'"


@pytest_asyncio.fixture(loop_scope="session")
async def short(servers: Servers) -> AsyncIterator[PostgresServer]:
    async with servers.run(SETTINGS) as server:
        yield server


@pytest_asyncio.fixture(loop_scope="session")
async def many(short: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[DatabasesWorld]:
    monkeypatch.setattr(database_worker, "_RECONNECT", Backoff(0.5, 1.0))
    async with make_databases(short, DATABASES) as made:
        made.config = replace(made.config, databases=DatabasesConfig(("*",), max=DATABASES))
        yield made


async def test_sessions_with_databases_leave_the_reserved_connections_to_administrators(many: DatabasesWorld) -> None:
    many.declare(*many.names)
    async with many.serving():

        async def are_served() -> bool:
            return bool(await many.home.fetchval(SESSIONS) == FREE)

        def is_out(name: str) -> bool:
            error = getattr(many.result(name), "error", None)
            return error is not None and error.reason is Reason.DATABASE_ERROR and "reserved" in error.message

        async def may_connect() -> bool:
            try:
                await (await asyncpg.connect(many.server.dsn())).close()
            except asyncpg.TooManyConnectionsError:  # attempts of the controller, which last milliseconds
                return False
            return True

        await many.wait(are_served, f"{FREE} are served")
        await many.wait(lambda: sum(map(is_out, many.names)) == DATABASES - FREE, "the others say why they are not")
        await many.wait(may_connect, "an administrator connects")
        for hand in many.hands.values():
            await hand.close()
        await many.wait_settled(*many.names)


async def test_a_turn_may_take_a_reserved_connection_since_it_soon_ends(many: DatabasesWorld) -> None:
    held = [await asyncpg.connect(many.server.dsn()) for _ in range(FREE)]
    many.config = replace(many.config, databases=DatabasesConfig(("*",), max=1))
    many.declare(*many.names[:2])
    async with many.serving():
        await many.wait(
            lambda: any(one is not None and one.error is None for one in map(many.result, many.names[:2])), "served"
        )
    for one in held:
        await one.close()


async def test_a_second_connection_to_a_database_is_not_a_reserved_one(short: PostgresServer) -> None:
    endpoint = Endpoint(short.dsn())
    async with connect(endpoint, "test") as connection:
        server = await identify(connection)
        held = [await asyncpg.connect(short.dsn()) for _ in range(OWN + FREE - 2)]
        for is_free in (True, False):
            reading = ReadingConnections(endpoint, "postgres", server)
            async with reading.open() as second:
                assert (second is not None) is is_free
            await reading.close()
            held.append(await asyncpg.connect(short.dsn()))
        for one in held:
            await one.close()
