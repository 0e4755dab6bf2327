"""A publication FOR ALL TABLES publishes each new table: schema pgrole must not stop the subscribers."""

from collections.abc import AsyncIterator

import asyncpg
import pytest
import pytest_asyncio

from pgrole_controller.controller.privileges.database_worker import DatabaseWorker
from pgrole_controller.core.server_options import DatabaseMode
from pgrole_controller.local.postgres import PostgresServer
from pgrole_controller.local.process import reached
from pgrole_controller.postgres import queries, schema
from pgrole_controller.postgres.connection import Connection, Endpoint, connect
from pgrole_controller.postgres.diagnosis import read_event_trigger_facts, read_schema_facts
from pgrole_controller.postgres.privileges import database_session
from pgrole_controller.postgres.privileges.database_schema import inspect_database, install_database
from tests.integration.database_world import DEADLINE, READ, DatabaseWorkerWorld, make_world
from tests.releases import BEFORE
from tests.servers import Servers

PUBLISH = 'CREATE PUBLICATION "all of it" FOR ALL TABLES'
COUNT = "SELECT count(*) FROM app.payments"


@pytest_asyncio.fixture(loop_scope="session")
async def connection(database: str) -> AsyncIterator[Connection]:
    async with connect(Endpoint(database), "test") as made:
        await made.execute(PUBLISH)
        yield made


async def has_schema(connection: Connection) -> bool:
    return bool(await connection.fetchval("SELECT to_regnamespace('pgrole') IS NOT NULL"))


async def test_the_schema_is_not_installed_in_a_database_that_publishes_all_tables(connection: Connection) -> None:
    found = await install_database(connection, allowed=True)
    assert not found.present
    assert 'publication "all of it" is FOR ALL TABLES' in found.remedy
    assert "pgrole-controller sql --database" in found.remedy
    assert not await has_schema(connection)


async def test_nor_is_that_of_the_home_database(connection: Connection) -> None:
    with pytest.raises(schema.SchemaMissing, match='publication "all of it" is FOR ALL TABLES') as caught:
        await schema.install(connection)
    assert "GRANT" not in str(caught.value)
    assert not await has_schema(connection)


async def test_doctor_says_why_nothing_is_installed(connection: Connection) -> None:
    assert (await read_schema_facts(connection, "postgres")).publications == ('"all of it"',)
    assert (await read_event_trigger_facts(connection, "postgres")).publications == ('"all of it"',)
    await connection.execute("CREATE SCHEMA pgrole")
    assert not (await read_event_trigger_facts(connection, "postgres")).publications


async def test_a_home_database_of_the_previous_version_is_not_updated(connection: Connection) -> None:
    async with connection.transaction():
        await connection.execute(BEFORE.install_sql())
    assert await schema.install(connection) is schema.SchemaState.OLDER
    assert (await install_database(connection, allowed=True)).publications


async def test_a_publication_keeps_no_dropped_part_from_being_restored(connection: Connection) -> None:
    await connection.execute('DROP PUBLICATION "all of it"')
    await install_database(connection, allowed=True)
    await connection.execute(f"{PUBLISH}; DROP EVENT TRIGGER pgrole_on_ddl")
    assert (await install_database(connection, allowed=True)).armed
    await connection.execute("DROP TABLE pgrole.applied")
    assert (await install_database(connection, allowed=True)).armed
    assert not (await inspect_database(connection)).publications


async def test_without_the_publication_the_schema_is_installed(
    world: DatabaseWorkerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_session, "BACKSTOP_SECONDS", 0.2)
    await world.uninstall()
    await world.hand.execute(PUBLISH)
    world.declare(READ)
    async with world.working() as worker:
        await world.wait_settled()
        assert worker.mode is DatabaseMode.POLL
        assert "FOR ALL TABLES" in worker.why
        await world.hand.execute('DROP PUBLICATION "all of it"')
        await wait_events(worker)


async def test_replication_goes_on_with_a_schema_that_was_installed_at_the_subscriber_first(servers: Servers) -> None:
    async with servers.run({"wal_level": "logical"}) as server, make_world(server) as world:
        subscriber = await make_subscriber(server, world)
        world.declare(READ)
        async with world.working() as worker:
            await world.wait_settled()
            assert worker.mode is DatabaseMode.POLL
            await wait_replicated(world, subscriber)
        for session in (subscriber, world.hand):
            await session.execute(f"BEGIN; {queries.install_database()}; COMMIT")
        await world.hand.execute(queries.install_event_triggers())
        async with world.working() as worker:
            await wait_events(worker)
            await world.hand.execute(f"GRANT DELETE ON app.orders TO {world.role}")
            await world.wait_may("DELETE", "app.orders", expected=False)
            await wait_replicated(world, subscriber)
            await subscriber.execute("ALTER SUBSCRIPTION s REFRESH PUBLICATION WITH (copy_data = false)")
            await world.hand.execute(f"GRANT DELETE ON app.orders TO {world.role}")
            await world.wait_may("DELETE", "app.orders", expected=False)
            await wait_replicated(world, subscriber)
        await subscriber.execute("ALTER SUBSCRIPTION s DISABLE; ALTER SUBSCRIPTION s SET (slot_name = NONE)")
        await subscriber.execute("DROP SUBSCRIPTION s")
        await subscriber.close()
        drop = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE active_pid IS NULL"

        async def is_dropped() -> bool:
            await world.home.execute(drop)
            return not await world.home.fetchval("SELECT count(*) FROM pg_replication_slots")

        assert await reached(is_dropped, DEADLINE)


async def make_subscriber(server: PostgresServer, world: DatabaseWorkerWorld) -> Connection:
    """A database that receives all tables of the world's."""
    await world.uninstall()
    name = f"{world.database}_copy"
    await world.hand.execute("CREATE TABLE app.payments (id int PRIMARY KEY)")
    await world.home.execute(f"CREATE DATABASE {name}")
    made: Connection = await asyncpg.connect(server.dsn(database=name))
    await made.execute(
        "CREATE SCHEMA app; CREATE TABLE app.orders (id int, total int); CREATE TABLE app.items (id int);"
        "CREATE TABLE app.payments (id int PRIMARY KEY)"
    )
    await world.hand.execute(PUBLISH)
    # in one server, CREATE SUBSCRIPTION would wait for its own transaction
    await world.hand.fetchval("SELECT pg_create_logical_replication_slot('s', 'pgoutput')")
    await made.execute(
        f"CREATE SUBSCRIPTION s CONNECTION '{server.dsn(database=world.database)}' PUBLICATION \"all of it\""
        " WITH (create_slot = false)"
    )
    await wait_replicated(world, made)
    return made


async def wait_events(worker: DatabaseWorker) -> None:
    async def is_so() -> bool:
        return worker.mode is DatabaseMode.EVENTS

    assert await reached(is_so, DEADLINE), worker.why


async def wait_replicated(world: DatabaseWorkerWorld, subscriber: Connection) -> None:
    """Commits a row, and waits until the subscriber has it."""
    await world.hand.execute("INSERT INTO app.payments SELECT count(*) FROM app.payments")
    expected = await world.hand.fetchval(COUNT)

    async def is_so() -> bool:
        return bool(await subscriber.fetchval(COUNT) == expected)

    assert await reached(is_so, DEADLINE), "replication stopped"
