"""postgres/schema: installs schema pgrole where permitted, maintains it, and never trusts one that belongs to
others.
"""

from collections.abc import AsyncIterator

import anyio
import asyncpg
import pytest
import pytest_asyncio

from pgrole_controller.core.errors import Reason, Refused, Transient
from pgrole_controller.local.process import reached
from pgrole_controller.postgres import queries
from pgrole_controller.postgres.connection import Connection, Endpoint, connect
from pgrole_controller.postgres.schema import VERSION, SchemaState, install, others_may_create
from tests.commands import run_command

GUARD = queries.guard()


@pytest_asyncio.fixture(loop_scope="session")
async def connection(database: str) -> AsyncIterator[Connection]:
    async with connect(Endpoint(database), "test") as made:
        yield made


@pytest_asyncio.fixture(loop_scope="session")
async def tenant(connection: Connection) -> AsyncIterator[str]:
    """An ordinary role that may create in this database."""
    name = "install_tenant"
    database = await connection.fetchval("SELECT current_database()")
    await connection.execute(f'CREATE ROLE {name}; GRANT CREATE ON DATABASE "{database}" TO {name}')
    yield name
    await connection.execute(f"RESET ROLE; DROP OWNED BY {name} CASCADE; DROP ROLE {name}")


async def test_the_schema_is_created_once_and_then_left_unchanged(connection: Connection) -> None:
    assert await install(connection) is SchemaState.MADE
    before = await connection.fetch("SELECT oid, xmin::text FROM pg_proc WHERE pronamespace = 'pgrole'::regnamespace")
    assert await install(connection) is SchemaState.PRESENT
    after = await connection.fetch("SELECT oid, xmin::text FROM pg_proc WHERE pronamespace = 'pgrole'::regnamespace")
    assert before == after


@pytest.mark.parametrize(
    "loss",
    [
        "DROP FUNCTION pgrole.lock_changes()",
        "DROP TABLE pgrole.installation",
        "DROP PROCEDURE pgrole.watch",
        "DROP TRIGGER announce_update ON pgrole.role_state",
        "DROP TRIGGER announce_truncate ON pgrole.claim",
    ],
)
async def test_a_missing_part_is_created_again_and_claims_are_kept(connection: Connection, loss: str) -> None:
    await install(connection)
    await connection.execute(
        "INSERT INTO pgrole.claim (role_name, role_oid, system_identifier, cluster, namespace, namespace_uid, object,"
        " object_uid) VALUES ('kept', 1, 2, 'c', 'n', 'nu', 'o', 'ou')"
    )
    await connection.execute(loss)
    assert await install(connection) is SchemaState.CHANGED
    assert await install(connection) is SchemaState.PRESENT
    assert await connection.fetchval("SELECT count(*) FROM pgrole.claim") == 1


async def test_an_older_version_is_upgraded(connection: Connection) -> None:
    await install(connection)
    await connection.execute("UPDATE pgrole.installation SET version = 0")
    assert await install(connection) is SchemaState.CHANGED


async def test_a_transaction_that_keeps_an_old_schema_from_being_updated_is_reported(
    database: str, connection: Connection
) -> None:
    await install(connection)
    await connection.execute("UPDATE pgrole.installation SET version = 0; SET lock_timeout = '100ms'")
    async with connect(Endpoint(database), "dump") as dump, dump.transaction():
        await dump.execute("LOCK TABLE pgrole.claim IN ACCESS SHARE MODE")
        with pytest.raises(Transient, match="while another transaction uses it"):
            await install(connection)


async def test_the_next_version_is_left_unchanged_and_a_later_one_is_refused(connection: Connection) -> None:
    await install(connection)
    await connection.execute(f"UPDATE pgrole.installation SET version = {VERSION + 1}")
    assert await install(connection) is SchemaState.PRESENT
    await connection.execute(f"UPDATE pgrole.installation SET version = {VERSION + 2}")
    with pytest.raises(Refused, match="upgrade"):
        await install(connection)


@pytest.mark.parametrize("part", [(), ("--database",), ("--remove",)])
async def test_the_printed_script_can_be_run_again_without_a_message(database: str, part: tuple[str, ...]) -> None:
    """Among fifty notices about parts that exist already, an administrator would miss an error."""
    script = (await run_command("sql", *part)).out
    connection = await asyncpg.connect(database)
    told: list[str] = []
    connection.add_log_listener(lambda _, message: told.append(str(message)))
    try:
        for _ in range(2):
            await connection.execute(script)
    finally:
        await connection.execute("DROP SCHEMA IF EXISTS pgrole CASCADE")
        await connection.close()
    assert told == []


async def test_neither_installing_nor_removing_reads_long_settings_of_another_database(database: str) -> None:
    """Its owner can store hundreds of megabytes there, compressed to little."""
    reads = (
        "SELECT sum(pg_stat_get_xact_numscans(i.indexrelid)) FROM pg_class AS c"
        " JOIN pg_index AS i ON i.indrelid = c.reltoastrelid WHERE c.oid = 'pg_db_role_setting'::regclass"
    )
    connection = await asyncpg.connect(database)
    try:
        await connection.execute("SELECT set_config('a.b', repeat('x', 8000000), false)")
        await connection.execute("ALTER DATABASE template1 SET a.b FROM CURRENT")
        async with connection.transaction():
            before = await connection.fetchval(reads)
            await connection.execute(f"{queries.install()}; {queries.remove()}")
            assert await connection.fetchval(reads) == before
    finally:
        await connection.execute("ALTER DATABASE template1 RESET a.b")
        await connection.close()


async def test_if_installation_is_not_allowed_the_error_says_how_an_administrator_can(connection: Connection) -> None:
    with pytest.raises(Refused, match="pgrole-controller sql") as caught:
        await install(connection, allowed=False)
    assert caught.value.reason is Reason.SERVER_NOT_READY
    assert await connection.fetchval("SELECT to_regnamespace('pgrole')") is None


async def test_a_schema_that_a_tenant_created_first_is_refused_and_its_code_is_not_run(
    connection: Connection, tenant: str
) -> None:
    await connection.execute(f"SET ROLE {tenant}")
    await connection.execute(
        "CREATE SCHEMA pgrole; CREATE TABLE pgrole.trace (who text);"
        "CREATE TABLE pgrole.installation (singleton bool, version int, parts int);"
        "CREATE FUNCTION pgrole.trap() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN INSERT INTO pgrole.trace VALUES (current_user); RETURN NEW; END $$;"
        "CREATE TRIGGER trap BEFORE INSERT ON pgrole.installation FOR EACH ROW EXECUTE FUNCTION pgrole.trap()"
    )
    await connection.execute("RESET ROLE")
    with pytest.raises(Refused, match=tenant):
        await install(connection)
    assert await connection.fetchval("SELECT count(*) FROM pgrole.trace") == 0
    assert await connection.fetchval("SELECT to_regprocedure('pgrole.observe(boolean)')") is None


@pytest.mark.parametrize(
    "intrusion",
    [
        "ALTER FUNCTION pgrole.observe(boolean) OWNER TO {}",
        "ALTER TABLE pgrole.claim OWNER TO {}",
        "GRANT CREATE ON SCHEMA pgrole TO {}",
        "ALTER SCHEMA pgrole OWNER TO {}",
        "CREATE TYPE pgrole.odd AS (a int); ALTER TYPE pgrole.odd OWNER TO {}",
    ],
)
async def test_a_schema_with_any_part_that_a_tenant_controls_is_refused(
    connection: Connection, tenant: str, intrusion: str
) -> None:
    await install(connection)
    await connection.execute(intrusion.format(tenant))
    with pytest.raises(Refused, match=tenant):
        await install(connection)


async def test_what_an_extension_has_in_the_schema_is_no_part_of_it(connection: Connection, tenant: str) -> None:
    """PostgreSQL asks for no privilege on the schema: whoever may create in the database can put the objects of a
    trusted extension there, which a superuser then owns.
    """
    await install(connection)
    objects = ("FUNCTION pgrole.f()", "TYPE pgrole.pair", "TABLE pgrole.t", "OPERATOR pgrole.@@@ (NONE, int)")
    await connection.execute(
        "CREATE FUNCTION pgrole.f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';"
        "CREATE TYPE pgrole.pair AS (a int, b int); CREATE TABLE pgrole.t (a int PRIMARY KEY);"
        "CREATE TRIGGER t BEFORE INSERT ON pgrole.t FOR EACH ROW EXECUTE FUNCTION pgrole.f();"
        "CREATE OPERATOR pgrole.@@@ (FUNCTION = int4up, RIGHTARG = int);"
        + ";".join(f"ALTER EXTENSION plpgsql ADD {one}" for one in objects)
    )
    assert await install(connection, allowed=False) is SchemaState.PRESENT
    await connection.execute("DROP FUNCTION pgrole.lock_changes()")
    assert await install(connection) is SchemaState.CHANGED
    await connection.execute(f"ALTER TABLE pgrole.t OWNER TO {tenant}")
    with pytest.raises(Refused, match=tenant):
        await install(connection)
    await connection.execute(";".join(f"ALTER EXTENSION plpgsql DROP {one}; DROP {one} CASCADE" for one in objects))
    assert await install(connection, allowed=False) is SchemaState.PRESENT


@pytest.mark.parametrize(
    "grant",
    [
        "GRANT CREATE ON DATABASE {0} TO {1}",
        "GRANT CREATE ON DATABASE {0} TO PUBLIC",
        "ALTER DATABASE {0} OWNER TO {1}",
    ],
)
async def test_others_may_create_detects_that_another_role_may_create_schemas(
    connection: Connection, grant: str
) -> None:
    database = await connection.fetchval("SELECT current_database()")
    await connection.execute("CREATE ROLE install_other")
    assert not await others_may_create(connection)
    try:
        await connection.execute(grant.format(f'"{database}"', "install_other"))
        assert await others_may_create(connection)
    finally:
        await connection.execute(f'ALTER DATABASE "{database}" OWNER TO postgres')
        await connection.execute("DROP OWNED BY install_other; DROP ROLE install_other")


async def test_the_guard_accepts_our_schema_and_prevents_its_drop(database: str, connection: Connection) -> None:
    await install(connection)
    async with connect(Endpoint(database), "test") as other, connection.transaction():
        await connection.execute(f"{GUARD}; SELECT pgrole.lock_changes()")
        await other.execute("SET lock_timeout = '50ms'")
        with pytest.raises(asyncpg.LockNotAvailableError):
            await other.execute("DROP SCHEMA pgrole CASCADE")


@pytest.mark.parametrize(
    ("intrusion", "sqlstate"),
    [
        ("ALTER SCHEMA pgrole OWNER TO {}", "PGR02"),
        ("GRANT CREATE ON SCHEMA pgrole TO {}", "PGR02"),
        ("GRANT CREATE ON SCHEMA pgrole TO PUBLIC", "PGR02"),
        ("DROP SCHEMA pgrole CASCADE", "3F000"),
    ],
)
async def test_the_guard_stops_a_transaction_before_it_calls_what_a_tenant_controls(
    connection: Connection, tenant: str, intrusion: str, sqlstate: str
) -> None:
    await install(connection)
    await connection.execute(intrusion.format(tenant))
    with pytest.raises(asyncpg.PostgresError) as caught:
        await connection.execute(f"SET LOCAL lock_timeout = '3s'; {GUARD}; SELECT 1 / 0")
    assert caught.value.sqlstate == sqlstate


async def test_concurrent_installations_all_succeed(database: str) -> None:
    endpoint = Endpoint(database)
    found: list[SchemaState] = []

    async def one() -> None:
        async with connect(endpoint, "test") as own:
            found.append(await install(own))

    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(one)
    assert len(found) == 3


async def test_a_later_version_that_is_installed_meanwhile_is_not_replaced(
    database: str, connection: Connection
) -> None:
    await install(connection)
    await connection.execute(f"UPDATE pgrole.installation SET version = {VERSION - 1}")
    found: list[SchemaState] = []

    async def install_late(own: Connection) -> None:
        found.append(await install(own))

    async with connect(Endpoint(database), "test") as own:
        pid = own.get_server_pid()

        async def is_waiting() -> bool:
            return bool(await connection.fetchval("SELECT bool_or(NOT granted) FROM pg_locks WHERE pid = $1", pid))

        async with anyio.create_task_group() as tasks, connection.transaction():
            await connection.execute("COMMENT ON SCHEMA pgrole IS 'brought in by the version after'")
            tasks.start_soon(install_late, own)
            assert await reached(is_waiting, 60)
            await connection.execute(f"UPDATE pgrole.installation SET version = {VERSION + 1}")
    assert found == [SchemaState.PRESENT]
    assert await connection.fetchval("SELECT version FROM pgrole.installation") == VERSION + 1


async def test_a_session_keeps_its_settings_whatever_its_database_sets(database: str, connection: Connection) -> None:
    name = await connection.fetchval("SELECT current_database()")
    for setting in (
        "search_path = 'public'",
        "statement_timeout = '1ms'",
        "default_transaction_isolation = 'serializable'",
    ):
        await connection.execute(f'ALTER DATABASE "{name}" SET {setting}')
    async with connect(Endpoint(database), "test") as other:
        assert await other.fetchval("SHOW search_path") == "pg_catalog, pg_temp"
        assert await other.fetchval("SHOW transaction_isolation") == "read committed"
        await other.execute("SELECT pg_sleep(0.01)")


async def test_the_representation_of_an_endpoint_does_not_show_its_dsn() -> None:
    assert "secret" not in repr(Endpoint("postgresql://user:secret@host/db"))


async def test_the_error_for_a_wrong_password_does_not_show_it(database: str) -> None:
    head, tail = database.rsplit("@", 1)
    dsn = f"{head.rsplit(':', 1)[0]}:wr0ng-secret@{tail}"
    with pytest.raises(Transient, match="credentials") as caught:
        async with connect(Endpoint(dsn), "test"):
            pass
    assert "wr0ng-secret" not in str(caught.value)
