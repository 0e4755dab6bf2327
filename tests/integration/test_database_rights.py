"""The grants in docs/privileges.md suffice for a controller without superuser to keep privileges in a database."""

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import pytest_asyncio

from pgrole_controller.core.errors import Reason
from pgrole_controller.core.server_options import DatabaseMode
from pgrole_controller.local.postgres import PostgresServer
from pgrole_controller.local.process import reached
from pgrole_controller.postgres import queries
from pgrole_controller.postgres.connection import Endpoint
from pgrole_controller.postgres.privileges import database_session
from tests.integration.database_world import DEADLINE, READ, DatabaseWorkerWorld, make_world
from tests.servers import Servers

GRANTS = """
CREATE ROLE {owner};
ALTER SCHEMA app OWNER TO {owner};
ALTER TABLE app.orders OWNER TO {owner};
ALTER TABLE app.items OWNER TO {owner};
CREATE ROLE {steward} LOGIN CREATEROLE PASSWORD 's';
GRANT CONNECT, CREATE ON DATABASE {database} TO {steward};
GRANT {owner} TO {steward};
"""
#: Needed where a superuser installed the schema.
THREE = """
GRANT USAGE ON SCHEMA pgrole TO {steward};
GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON ALL TABLES IN SCHEMA pgrole TO {steward};
GRANT EXECUTE ON ALL ROUTINES IN SCHEMA pgrole TO {steward};
"""


@pytest_asyncio.fixture(loop_scope="session")
async def world(server: PostgresServer) -> AsyncIterator[DatabaseWorkerWorld]:
    async with make_world(server) as made:
        await made.uninstall()
        names = {name: made.role.replace("reader", name) for name in ("owner", "steward")} | {"database": made.database}
        await made.hand.execute(GRANTS.format(**names))
        made.config = replace(
            made.config, endpoint=Endpoint(server.dsn(user=names["steward"], password="s")), interval=0.2
        )
        yield made
        await made.hand.execute(
            "DROP OWNED BY {owner}, {steward} CASCADE; DROP ROLE {owner}, {steward}".format(**names)
        )


async def test_without_the_grants_in_a_schema_of_a_superuser_the_error_names_all_of_them(
    world: DatabaseWorkerWorld,
) -> None:
    steward = world.role.replace("reader", "steward")
    await world.hand.execute(f"BEGIN; {queries.install_database()}; {queries.install_event_triggers()}; COMMIT")
    world.declare(READ)
    async with world.working() as worker:
        expected = THREE.format(steward=f'"{steward}"').strip().splitlines()

        async def is_said() -> bool:
            return worker.trouble is not None and "; ".join(expected).replace(";;", ";") in f"{worker.trouble};"

        assert await reached(is_said, DEADLINE), worker.trouble
        await world.hand.execute(" ".join(expected))
        await world.wait_settled()


@pytest.mark.parametrize("held", [False, True])
async def test_without_execute_in_the_schema_no_table_is_blamed_and_the_error_names_the_grants(
    world: DatabaseWorkerWorld, held: bool
) -> None:
    steward = world.role.replace("reader", "steward")
    await world.hand.execute(f"BEGIN; {queries.install_database()}; {queries.install_event_triggers()}; COMMIT")
    *others, execute = THREE.format(steward=f'"{steward}"').strip().splitlines()
    await world.hand.execute(" ".join(others))
    if held:
        await world.hand.execute(
            f"GRANT USAGE ON SCHEMA app TO {world.role}; GRANT SELECT ON ALL TABLES IN SCHEMA app TO {world.role}"
        )
    world.declare(READ)
    async with world.working() as worker:

        async def is_said() -> bool:
            text = f"{getattr(world.result, 'error', '')} {worker.trouble}"
            return execute.rstrip(";") in text and "table app" not in text

        assert await reached(is_said, DEADLINE), f"{worker.trouble} {getattr(world.result, 'error', '')}"
        await world.hand.execute(execute)
        await world.wait_settled()


async def test_the_schema_is_installed_once_the_controller_may_create_it(
    world: DatabaseWorkerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_session, "BACKSTOP_SECONDS", 0.2)
    steward = world.role.replace("reader", "steward")
    await world.hand.execute(f"REVOKE CREATE ON DATABASE {world.database} FROM {steward}")
    world.declare(READ)
    async with world.working() as worker:
        await world.wait_settled()
        assert not worker.stores
        await world.hand.execute(f"GRANT CREATE ON DATABASE {world.database} TO {steward}")

        async def is_installed() -> bool:
            return worker.stores

        assert await reached(is_installed, 15.0), worker.why


@pytest.mark.parametrize("mode", [DatabaseMode.POLL, DatabaseMode.EVENTS])
async def test_the_documented_grants_suffice_to_grant_and_correct(
    world: DatabaseWorkerWorld, mode: DatabaseMode
) -> None:
    if mode is DatabaseMode.EVENTS:
        await world.hand.execute(f"BEGIN; {queries.install_database()}; {queries.install_event_triggers()}; COMMIT")
        await world.hand.execute(THREE.format(steward=world.role.replace("reader", "steward")))
    world.declare(READ)
    async with world.working() as worker:
        await world.wait_settled()
        assert worker.mode is mode, worker.why
        await world.hand.execute(f"GRANT UPDATE ON app.orders TO {world.role}")
        await world.wait_may("UPDATE", "app.orders", expected=False)
        await world.hand.execute(
            "CREATE TABLE app.later (); ALTER TABLE app.later OWNER TO " + world.role.replace("reader", "owner")
        )
        await world.wait_may("SELECT", "app.later")


#: An event trigger whose function belongs to a role that is not trusted.
FOREIGN = """
CREATE FUNCTION app.on_ddl() RETURNS event_trigger LANGUAGE plpgsql AS
'BEGIN IF session_user = ''{steward}'' THEN RAISE ''it ran''; END IF; END';
ALTER FUNCTION app.on_ddl OWNER TO {other};
CREATE EVENT TRIGGER foreign_trigger ON ddl_command_end EXECUTE FUNCTION app.on_ddl()
"""


@pytest.mark.parametrize(
    "allow", ["GRANT SET ON PARAMETER event_triggers TO {}", "ALTER ROLE {} SET event_triggers = off"]
)
async def test_the_controller_may_be_allowed_to_turn_off_event_triggers_of_others(
    world: DatabaseWorkerWorld, servers: Servers, monkeypatch: pytest.MonkeyPatch, allow: str
) -> None:
    if servers.version < 17:
        pytest.skip("the setting exists since PostgreSQL 17")
    monkeypatch.setattr(database_session, "BACKSTOP_SECONDS", 0.2)
    steward = world.role.replace("reader", "steward")
    await world.hand.execute(FOREIGN.format(steward=steward, other=world.other))
    world.declare(READ)
    async with world.working():
        result = await world.wait(lambda result: "event triggers that belong to neither" in str(result.error))
        assert "GRANT SET ON PARAMETER event_triggers TO the controller's role" in str(result.error)
        await world.hand.execute(allow.format(steward))
        if allow.startswith("ALTER"):
            await world.hand.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = $1", steward
            )
        await world.wait_settled()
        assert await world.may("SELECT", "app.orders")
        await world.hand.execute(f"GRANT UPDATE ON app.orders TO {world.role}")
        await world.wait_may("UPDATE", "app.orders", expected=False)
        await world.wait_settled()


@pytest.mark.parametrize("allowed", [True, False])
async def test_a_controller_that_turns_off_event_triggers_sees_that_the_server_does_for_everyone(
    world: DatabaseWorkerWorld, servers: Servers, monkeypatch: pytest.MonkeyPatch, *, allowed: bool
) -> None:
    if servers.version < 17:
        pytest.skip("the setting exists since PostgreSQL 17")
    monkeypatch.setattr(database_session, "BACKSTOP_SECONDS", 0.2)
    steward = world.role.replace("reader", "steward")
    await world.hand.execute(f"BEGIN; {queries.install_database()}; {queries.install_event_triggers()}; COMMIT")
    await world.hand.execute(THREE.format(steward=steward))
    if allowed:
        await world.hand.execute(f"GRANT SET ON PARAMETER event_triggers TO {steward}")

    async def set_on_server(statement: str) -> None:
        await world.home.execute(f"ALTER SYSTEM {statement}")
        await world.home.execute("SELECT pg_reload_conf()")

    world.declare(READ)
    async with world.working() as worker:

        async def polls() -> bool:
            return worker.mode is DatabaseMode.POLL and "in the server's configuration" in worker.why

        async def has_events() -> bool:
            return worker.mode is DatabaseMode.EVENTS

        assert await reached(has_events, DEADLINE), worker.why
        try:
            await set_on_server("SET event_triggers = off")
            assert await reached(polls, DEADLINE), worker.why
            await world.hand.execute(f"GRANT UPDATE ON app.orders TO {world.role}")
            await world.wait_may("UPDATE", "app.orders", expected=False)
        finally:
            await set_on_server("RESET event_triggers")
        assert await reached(has_events, DEADLINE), worker.why


LANGUAGE = 'language plpgsql, which the controller needs, {why} in database "{database}": run {remedy} there'


@pytest.mark.parametrize("running", [False, True])
@pytest.mark.parametrize(
    ("break_it", "remedy", "why"),
    [
        ("DROP EXTENSION plpgsql CASCADE", "CREATE EXTENSION plpgsql", "is missing"),
        (
            "REVOKE USAGE ON LANGUAGE plpgsql FROM PUBLIC",
            'GRANT USAGE ON LANGUAGE plpgsql TO "{steward}"',
            'may not be used by role "{steward}"',
        ),
    ],
)
async def test_without_language_plpgsql_the_error_names_the_database_and_the_remedy(
    world: DatabaseWorkerWorld, monkeypatch: pytest.MonkeyPatch, running: bool, break_it: str, remedy: str, why: str
) -> None:
    monkeypatch.setattr(database_session, "BACKSTOP_SECONDS", 0.2)
    steward = world.role.replace("reader", "steward")
    remedy = remedy.format(steward=steward)
    told = LANGUAGE.format(why=why.format(steward=steward), database=world.database, remedy=remedy)
    if not running:
        await world.hand.execute(break_it)
    world.declare(READ)
    async with world.working():
        if running:
            await world.wait_settled()
            await world.hand.execute(f"{break_it}; GRANT UPDATE ON app.orders TO {world.role}")
        result = await world.wait(lambda result: told in str(result.error))
        assert result.error is not None
        assert result.error.reason is Reason.DATABASE_ERROR
        await world.hand.execute(remedy)
        await world.wait_settled()
        await world.wait_may("SELECT", "app.orders")
        await world.wait_may("UPDATE", "app.orders", expected=False)


@pytest.mark.parametrize("mode", [DatabaseMode.POLL, DatabaseMode.EVENTS])
async def test_a_language_that_is_dropped_is_told_at_once(world: DatabaseWorkerWorld, mode: DatabaseMode) -> None:
    world.config = replace(world.config, endpoint=Endpoint(world.server.dsn()), may_install=mode is DatabaseMode.EVENTS)
    world.declare(READ)
    async with world.working() as worker:
        await world.wait_settled()
        assert worker.mode is mode
        await world.hand.execute(f"DROP EXTENSION plpgsql CASCADE; GRANT UPDATE ON app.orders TO {world.role}")
        result = await world.wait(lambda result: result.error is not None)
        assert "run CREATE EXTENSION plpgsql there" in str(result.error)
        await world.hand.execute("CREATE EXTENSION plpgsql")
        await world.wait_settled()
        await world.wait_may("UPDATE", "app.orders", expected=False)
