"""Where event triggers fire in no other session (event_triggers, since PostgreSQL 17), privileges are polled."""

from collections.abc import Callable

import pytest

from pgrole_controller.controller.privileges.database_worker import DatabaseWorker
from pgrole_controller.core.server_options import DatabaseMode
from pgrole_controller.local.process import reached
from pgrole_controller.postgres import queries
from pgrole_controller.postgres.connection import Endpoint, connect
from pgrole_controller.postgres.diagnosis import read_event_trigger_facts
from pgrole_controller.postgres.privileges import database_session
from pgrole_controller.postgres.privileges.database_schema import inspect_database
from tests.integration.database_world import DEADLINE, READ, DatabaseWorkerWorld
from tests.servers import Servers


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_session, "BACKSTOP_SECONDS", 0.2)


@pytest.fixture(autouse=True)
def since_17(servers: Servers) -> None:
    if servers.version < 17:
        pytest.skip("the setting exists since PostgreSQL 17")


async def wait_mode(worker: DatabaseWorker, mode: DatabaseMode, why: str = "") -> None:
    async def is_so() -> bool:
        return worker.mode is mode and why in worker.why

    assert await reached(is_so, DEADLINE), (worker.mode, worker.why)


SETTINGS: dict[str, tuple[Callable[[str], str], str]] = {
    "of the database": (lambda name: f"ALTER DATABASE {name} {{}}", "ALTER DATABASE {name} RESET event_triggers"),
    "of all roles": (lambda _: "ALTER ROLE ALL {}", "ALTER ROLE ALL RESET event_triggers"),
    "of the server": (lambda _: "ALTER SYSTEM {}", "in the server's configuration"),
}


@pytest.mark.parametrize("where", SETTINGS)
async def test_the_mode_is_poll_while_no_event_can_come(world: DatabaseWorkerWorld, where: str) -> None:
    make, told = SETTINGS[where]
    statement = make(world.database)
    world.declare(READ)
    async with world.working() as worker:
        await wait_mode(worker, DatabaseMode.EVENTS)
        try:
            await world.home.execute(statement.format("SET event_triggers = off"))
            await world.home.execute("SELECT pg_reload_conf()")
            await wait_mode(worker, DatabaseMode.POLL, told.format(name=world.database))
            facts = await read_event_trigger_facts(world.hand, "postgres")
            assert facts.switched_off is (where != "of the server")
            await world.hand.execute(f"SET event_triggers = off; GRANT DELETE ON app.orders TO {world.role}")
            await world.wait_may("DELETE", "app.orders", expected=False)
        finally:
            await world.home.execute(statement.format("RESET event_triggers"))
            await world.home.execute("SELECT pg_reload_conf()")
        await wait_mode(worker, DatabaseMode.EVENTS)


async def test_a_setting_of_the_database_counts_more_than_one_of_all_roles(world: DatabaseWorkerWorld) -> None:
    await world.home.execute(f"ALTER DATABASE {world.database} SET event_triggers = on")
    await world.home.execute("ALTER ROLE ALL SET event_triggers = off")
    world.declare(READ)
    try:
        async with world.working() as worker:
            await wait_mode(worker, DatabaseMode.EVENTS)
        assert not (await read_event_trigger_facts(world.hand, "postgres")).switched_off
    finally:
        await world.home.execute("ALTER ROLE ALL RESET event_triggers")


@pytest.mark.parametrize("where", ["of the database", "of the server"])
async def test_every_spelling_that_postgresql_accepts_is_understood(world: DatabaseWorkerWorld, where: str) -> None:
    words = ["off", "false", "no", "on", "true", "yes"]
    spellings = {word[:length] for word in words for length in range(1, len(word) + 1)} - {"o"} | {"0", "1", "Fal"}
    statement = SETTINGS[where][0](world.database)
    async with connect(Endpoint(world.server.dsn(database=world.database)), "test") as connection:
        for spelling in sorted(spellings):
            try:
                await world.home.execute(statement.format(f"SET event_triggers = '{spelling}'"))
                found = await inspect_database(connection)
                expected = not await connection.fetchval("SELECT $1::text::boolean", spelling)
                assert bool(found.switched_off) is expected, spelling
            finally:
                await world.home.execute(statement.format("RESET event_triggers"))


async def test_the_servers_configuration_protects_from_event_triggers_only_while_it_lasts(
    world: DatabaseWorkerWorld,
) -> None:
    login = f"{world.role}_plain"
    await world.home.execute(f"CREATE ROLE {login} LOGIN PASSWORD 'plain'")
    await world.hand.execute(
        "CREATE FUNCTION app.trap() RETURNS event_trigger LANGUAGE plpgsql AS 'BEGIN END';"
        f"ALTER FUNCTION app.trap() OWNER TO {world.role};"
        "CREATE EVENT TRIGGER trap ON ddl_command_end EXECUTE FUNCTION app.trap();"
        f"GRANT USAGE ON SCHEMA pgrole TO {login}; GRANT SELECT ON ALL TABLES IN SCHEMA pgrole TO {login}"
    )
    try:
        await world.home.execute("ALTER SYSTEM SET event_triggers = off")
        await world.home.execute("SELECT pg_reload_conf()")
        endpoint = Endpoint(world.server.dsn(login, world.database, "plain"))
        async with connect(endpoint, "test") as connection:

            async def is_off() -> bool:
                return bool(await connection.fetchval("SELECT current_setting('event_triggers') = 'off'"))

            async def is_on() -> bool:
                return not await is_off()

            assert await reached(is_off, DEADLINE)
            found = await inspect_database(connection)
            assert found.foreign_event_triggers == ("trap",)
            assert (found.silent, found.spared, found.endangered) == (True, False, False)
            assert await connection.fetchval(queries.privileges("foreign_triggers")) is False
            await world.home.execute("ALTER SYSTEM RESET event_triggers")
            await world.home.execute("SELECT pg_reload_conf()")
            assert await reached(is_on, DEADLINE)
            assert await connection.fetchval(queries.privileges("foreign_triggers")) is True
            assert (await inspect_database(connection)).endangered
    finally:
        await world.home.execute("ALTER SYSTEM RESET event_triggers")
        await world.home.execute("SELECT pg_reload_conf()")
        await world.hand.execute(f"DROP EVENT TRIGGER trap; DROP OWNED BY {login}; DROP ROLE {login}")
