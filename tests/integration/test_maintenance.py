"""controller/maintenance: records of the event triggers are bounded in every admitted database, used or not."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import cast

import anyio
import asyncpg
import pytest

from pgrole_controller.controller import maintenance as maintenance_module
from pgrole_controller.controller.context import WorkerContext
from pgrole_controller.controller.maintenance import Maintenance
from pgrole_controller.controller.privileges.databases import Databases
from pgrole_controller.controller.privileges.grantees import Grantees
from pgrole_controller.controller.privileges.privilege_records import UnrecordedDrifts
from pgrole_controller.controller.server_config import ServerConfig
from pgrole_controller.core.connection_secret import Address
from pgrole_controller.core.errors import Reason, Transient
from pgrole_controller.core.policy import ServerPolicy
from pgrole_controller.core.server_options import DatabasesConfig
from pgrole_controller.local.postgres import PostgresServer
from pgrole_controller.postgres import queries
from pgrole_controller.postgres.capabilities import identify
from pgrole_controller.postgres.connection import Endpoint, connect
from pgrole_controller.postgres.database_claims import DatabaseClaims
from pgrole_controller.postgres.drift_history import RecordedDrift
from pgrole_controller.postgres.schema import SchemaState, install
from pgrole_controller.postgres.session import Session

MOST = 100_000
EVENTS = """
INSERT INTO pgrole.ddl_event (xid, pid, session, acting, app, tag, command)
SELECT '1', 1, '', '', '', '', '' FROM generate_series(1, 125000)
"""


@asynccontextmanager
async def maintenance_of(
    server: PostgresServer, databases: Callable[[], DatabasesConfig]
) -> AsyncIterator[Maintenance]:
    """Yields the maintenance of a server whose databases have no worker."""
    async with connect(Endpoint(server.dsn()), "test") as connection:
        await install(connection)
        session = Session(await identify(connection), SchemaState.PRESENT, "c1", DatabaseClaims(), connection)

        def config() -> ServerConfig:
            address = Address("pg", 5432, "postgres", "require")
            return ServerConfig("default", Endpoint(server.dsn()), ServerPolicy(), address, databases=databases())

        context = cast("WorkerContext", SimpleNamespace(grantees=Grantees(), objects=SimpleNamespace(cluster="c1")))
        yield Maintenance(config, Databases(config, context, lambda: False), session, "postgres")


async def make_database(server: PostgresServer, *, installed: bool = True) -> str:
    name = f"left_{secrets.token_hex(4)}"
    admin = await asyncpg.connect(server.dsn())
    await admin.execute(f"CREATE DATABASE {name}")
    await admin.close()
    if installed:
        async with connect(Endpoint(server.dsn(database=name)), "test") as connection:
            await connection.execute(queries.install_database())
            await connection.execute(queries.install_event_triggers())
            await connection.execute(EVENTS)
    return name


async def count_events(server: PostgresServer, database: str) -> int:
    connection = await asyncpg.connect(server.dsn(database=database))
    try:
        return int(await connection.fetchval("SELECT count(*) FROM pgrole.ddl_event"))
    finally:
        await connection.close()


@pytest.mark.slow
async def test_events_are_pruned_where_no_role_declares_privileges(server: PostgresServer) -> None:
    left = await make_database(server)
    bare = await make_database(server, installed=False)
    async with maintenance_of(server, lambda: DatabasesConfig(("left_*", "postgres"))) as maintenance:
        async with connect(Endpoint(server.dsn()), "test") as home:
            await home.execute(EVENTS)
        await maintenance.tend_all()
        assert await count_events(server, left) == MOST
        assert await count_events(server, "postgres") == MOST
        # after the first round, maintenance does not connect again to a database without schema pgrole
        connection = await asyncpg.connect(server.dsn(database=left))
        await connection.execute(EVENTS)
        await connection.close()
        admin = await asyncpg.connect(server.dsn())
        await admin.execute(f"DROP DATABASE {bare}")
        await maintenance.tend_all()
        await admin.close()
        assert await count_events(server, left) == MOST


async def test_maintenance_does_not_prune_a_database_that_the_server_does_not_admit(server: PostgresServer) -> None:
    left = await make_database(server)
    admitted = ["left_*"]
    async with maintenance_of(server, lambda: DatabasesConfig(tuple(admitted), (left,))) as maintenance:
        await maintenance.tend_all()
        assert await count_events(server, left) == 125_000


async def test_only_the_server_of_the_session_is_maintained(server: PostgresServer) -> None:
    """After a failover, the same address may lead to the former primary, where the same process leads."""
    left, drift = await make_database(server), RecordedDrift("elsewhere", ("privileges",), True, "lost", key="2")
    recorded = "SELECT count(*) FROM pgrole.history WHERE role = 'elsewhere'"
    async with maintenance_of(server, lambda: DatabasesConfig((left,))) as maintenance:
        session = maintenance._session
        began = session.identity.started_at + timedelta(seconds=1)
        maintenance._session = replace(session, identity=replace(session.identity, started_at=began))
        maintenance._databases.keep_unstored([drift])
        await maintenance.record_unstored()
        await maintenance.tend({left}, everything=True)
        await maintenance.tend_all()
        assert await count_events(server, left) == 125_000
        async with connect(Endpoint(server.dsn()), "test") as home:
            assert await home.fetchval(recorded) == 0
            maintenance._session = session
            await maintenance.record_unstored()
            await maintenance.tend_all()
            assert await home.fetchval(recorded) == 1
        assert await count_events(server, left) == MOST


@pytest.mark.slow
async def test_events_are_pruned_in_a_database_that_was_served_for_less_than_an_hour(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(maintenance_module, "CHECK_SECONDS", 0.05)
    async with maintenance_of(server, lambda: DatabasesConfig(("left_*", "postgres"))) as maintenance:
        await maintenance.tend_all()
        left = await make_database(server)
        monkeypatch.setattr(maintenance._databases, "take_abandoned", lambda: {left})
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(maintenance.run)
            await anyio.sleep(0.2)
            tasks.cancel_scope.cancel()
        await maintenance.tend_all()
        assert await count_events(server, left) == MOST
        admin = await asyncpg.connect(server.dsn())
        await admin.execute(f"DROP DATABASE {left}")
        await admin.close()
        for _ in range(2):
            await maintenance.tend_all()
        assert sum(record.message.startswith("history and events") for record in caplog.records) == 1, "it is gone"


async def test_drifts_of_databases_that_store_nothing_are_recorded_at_home(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    unrecorded = UnrecordedDrifts()
    unrecorded.note_unstored([RecordedDrift("reader", ("privileges",), True, "bare") for _ in range(2)])
    unrecorded.note_unstored([RecordedDrift("reader", ("privileges",), False, "bare", key="1")])
    drifts = unrecorded.take_unstored()
    assert unrecorded.take_unstored() == []

    async def fail(*_: object) -> None:
        raise Transient(Reason.SERVER_NOT_READY, "no connection")

    async def end_the_session(*_: object) -> None:
        raise asyncio.CancelledError

    async with maintenance_of(server, lambda: DatabasesConfig(("*",))) as maintenance:
        maintenance._databases.keep_unstored(drifts)
        with monkeypatch.context() as failing:
            failing.setattr(maintenance_module, "record_at_home", fail)
            await maintenance.record_unstored()
            failing.setattr(maintenance_module, "record_at_home", end_the_session)
            with pytest.raises(asyncio.CancelledError):
                await maintenance.record_unstored()
        kept = maintenance._databases.take_unstored()
        assert kept == drifts
        maintenance._databases.keep_unstored(kept)
        await maintenance.record_unstored()
        await maintenance.record_unstored()
        maintenance._databases.keep_unstored(drifts)
        await maintenance.record_unstored()  # as if it had not known that it was recorded
        async with connect(Endpoint(server.dsn()), "test") as home:
            rows = await home.fetch("SELECT corrected, count FROM pgrole.history WHERE database = 'bare' ORDER BY 1")
    assert [tuple(row) for row in rows] == [(False, 1), (True, 1), (True, 1)]
