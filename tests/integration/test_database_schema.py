"""sql/database and postgres/privileges/database_schema: what is installed in each database with managed privileges, and
its protection.
"""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import asyncpg
import pytest
import pytest_asyncio

from pgrole_controller.core.errors import Refused
from pgrole_controller.local.postgres import PostgresServer
from pgrole_controller.postgres import queries, schema
from pgrole_controller.postgres.connection import Connection, Endpoint, connect
from pgrole_controller.postgres.privileges.database_schema import inspect_database, install_database, remove
from tests.disk import small_disk
from tests.integration.sql_support import listening
from tests.releases import BEFORE
from tests.servers import Servers

TENANT = "part_tenant"
EVENTS = "SELECT tag, command, kind, identity FROM pgrole.ddl_event ORDER BY id"

#: Everything in a database that initdb did not create.
CATALOGS = """
SELECT format('%s %s', c.relnamespace::regnamespace, c.relname) FROM pg_class AS c
WHERE c.oid >= 16384 AND c.relnamespace <> 'pg_toast'::regnamespace
UNION ALL SELECT p.oid::regprocedure::text FROM pg_proc AS p WHERE p.oid >= 16384
UNION ALL SELECT n.nspname FROM pg_namespace AS n WHERE n.oid >= 16384
UNION ALL SELECT t.typname FROM pg_type AS t WHERE t.oid >= 16384
UNION ALL SELECT t.evtname FROM pg_event_trigger AS t
UNION ALL
SELECT format('setting %s', s.setconfig) FROM pg_db_role_setting AS s JOIN pg_database AS d ON d.oid = s.setdatabase
WHERE d.datname = current_database()
"""


@pytest_asyncio.fixture(loop_scope="session")
async def connection(database: str) -> AsyncIterator[Connection]:
    async with connect(Endpoint(database), "test") as made:
        yield made


@pytest_asyncio.fixture(loop_scope="session")
async def tenant(postgres_server: PostgresServer, connection: Connection) -> AsyncIterator[Connection]:
    """A session of a role whose only right is to create schemas in the database."""
    name = await connection.fetchval("SELECT current_database()")
    await connection.execute(
        f"CREATE ROLE {TENANT} LOGIN PASSWORD 'p'; GRANT CREATE ON DATABASE \"{name}\" TO {TENANT}"
    )
    made = await asyncpg.connect(postgres_server.dsn(TENANT, password="p", database=name))
    try:
        yield made
    finally:
        await made.close()
        await connection.execute(f"DROP OWNED BY {TENANT} CASCADE; DROP ROLE {TENANT}")


async def read(connection: Connection, question: str) -> list[str]:
    return sorted(str(row[0]) for row in await connection.fetch(question))


async def test_the_schema_is_installed_once_and_then_left_unchanged(connection: Connection) -> None:
    first = await install_database(connection, allowed=True)
    assert first.current
    assert first.notifies
    assert (first.home, first.remedy) == (False, "")
    rows = "SELECT oid, xmin::text FROM pg_proc UNION ALL SELECT oid, xmin::text FROM pg_class ORDER BY 1"
    before = await connection.fetch(rows)
    assert await install_database(connection, allowed=True) == first
    assert await connection.fetch(rows) == before


async def test_the_script_for_administrators_installs_the_same_and_can_be_run_again(connection: Connection) -> None:
    for _ in range(2):
        async with connection.transaction():
            await connection.execute(f"CREATE SCHEMA IF NOT EXISTS pgrole; {queries.install_database()}")
        await connection.execute(queries.install_event_triggers())
        assert (await inspect_database(connection)).notifies


async def test_without_permission_nothing_is_changed_and_the_remedy_names_the_command(connection: Connection) -> None:
    before = await read(connection, CATALOGS)
    found = await install_database(connection, allowed=False)
    assert (found.present, found.armed) == (False, False)
    assert "pgrole-controller sql --database" in found.remedy
    assert await read(connection, CATALOGS) == before


@pytest.mark.parametrize(
    "loss",
    [
        "DROP EVENT TRIGGER pgrole_on_ddl",
        "ALTER EVENT TRIGGER pgrole_on_drop DISABLE",
        "ALTER EVENT TRIGGER pgrole_on_ddl ENABLE",
        "DROP FUNCTION pgrole.on_ddl() CASCADE",
        "DROP TABLE pgrole.ddl_event",
        "DROP TABLE pgrole.drift_history_7",
        "DROP FUNCTION pgrole.store_applied",
    ],
)
async def test_a_missing_or_disabled_part_is_detected_and_restored(connection: Connection, loss: str) -> None:
    await install_database(connection, allowed=True)
    await connection.execute("SELECT pgrole.store_applied(10, 'postgres', 'u', 'digest')")
    await connection.execute(loss)
    found = await inspect_database(connection)
    assert not (found.current and found.armed)
    assert (await install_database(connection, allowed=True)).notifies
    assert await connection.fetchval("SELECT digest FROM pgrole.applied") == "digest"


async def test_event_triggers_are_installed_only_on_request_and_stay_once_they_are(connection: Connection) -> None:
    found = await install_database(connection, allowed=True, event_triggers=False)
    assert found.current
    assert not found.armed
    assert not found.remedy
    assert await connection.fetchval("SELECT count(*) FROM pg_event_trigger WHERE evtname LIKE 'pgrole%'") == 0
    assert await install_database(connection, allowed=False, event_triggers=False) == found
    assert (await install_database(connection, allowed=True)).armed
    assert (await install_database(connection, allowed=True, event_triggers=False)).armed


async def test_in_the_home_database_both_installations_share_one_schema_and_version(connection: Connection) -> None:
    await schema.install(connection)
    found = await install_database(connection, allowed=True)
    assert found.home
    assert found.notifies
    assert await schema.install(connection) is schema.SchemaState.PRESENT
    await connection.execute("DROP TABLE pgrole.applied")
    assert (await install_database(connection, allowed=True)).notifies
    assert await schema.install(connection) is schema.SchemaState.PRESENT


async def test_a_database_with_this_part_can_become_the_home_database(connection: Connection) -> None:
    await install_database(connection, allowed=True)
    assert not await schema.is_current(connection)
    assert await schema.install(connection) is schema.SchemaState.CHANGED
    assert (await inspect_database(connection)).notifies


async def test_a_home_database_of_the_previous_version_refuses_the_script_for_others(
    connection: Connection,
) -> None:
    async with connection.transaction():
        await connection.execute(BEFORE.install_sql())
    with pytest.raises(asyncpg.ObjectNotInPrerequisiteStateError, match="home"):
        async with connection.transaction():
            await connection.execute(queries.install_database())
    assert (await install_database(connection, allowed=True)).notifies
    assert await schema.install(connection) is schema.SchemaState.PRESENT


async def test_a_schema_planted_by_a_tenant_is_refused_and_left_unchanged(
    connection: Connection, tenant: Connection
) -> None:
    await tenant.execute(
        "CREATE SCHEMA pgrole; CREATE TABLE pgrole.installation (version int, parts int);"
        "CREATE TABLE pgrole.turn_to_look (); CREATE TABLE pgrole.applied (); CREATE TABLE pgrole.drift_history ();"
        "CREATE TABLE pgrole.ddl_event ()"
    )
    before = await read(connection, CATALOGS)
    for allowed in (True, False):
        with pytest.raises(Refused, match=TENANT):
            await install_database(connection, allowed=allowed)
    with pytest.raises(Refused, match=TENANT):
        await remove(connection)
    script = f"BEGIN; CREATE SCHEMA IF NOT EXISTS pgrole; {queries.install_database()}; COMMIT"
    with pytest.raises(asyncpg.InsufficientPrivilegeError, match="belongs to"):
        await connection.execute(script)
    await connection.execute("ROLLBACK")
    assert await read(connection, CATALOGS) == before


async def test_a_tenant_can_neither_read_nor_change_the_schema(connection: Connection, tenant: Connection) -> None:
    await install_database(connection, allowed=True)
    for attempt in (
        "SELECT FROM pgrole.ddl_event",
        "INSERT INTO pgrole.ddl_event DEFAULT VALUES",
        "SELECT FROM pgrole.history",
        "SELECT pgrole.lock_changes()",
        "SELECT pgrole.record_drifts('[]')",
        "CREATE TABLE pgrole.planted ()",
        "DROP SCHEMA pgrole CASCADE",
        "ALTER EVENT TRIGGER pgrole_on_ddl DISABLE",
    ):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await tenant.execute(attempt)


async def test_a_member_of_pg_monitor_reads_only_the_history(connection: Connection, tenant: Connection) -> None:
    await install_database(connection, allowed=True)
    await connection.execute(f"GRANT pg_monitor TO {TENANT}")
    assert await tenant.fetch("SELECT * FROM pgrole.history") == []
    for attempt in ("SELECT FROM pgrole.applied", "DELETE FROM pgrole.drift_history", "SELECT pgrole.prune_history()"):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await tenant.execute(attempt)


async def test_installing_never_runs_a_tenants_event_trigger(connection: Connection, tenant: Connection) -> None:
    """Event triggers belong to superusers, but their functions need not."""
    await tenant.execute(
        "CREATE SCHEMA own; CREATE FUNCTION own.trap() RETURNS event_trigger LANGUAGE plpgsql AS "
        "$$ BEGIN EXECUTE 'CREATE TABLE own.trace AS SELECT current_user'; END $$"
    )
    await connection.execute("CREATE EVENT TRIGGER trap ON ddl_command_start EXECUTE FUNCTION own.trap()")
    try:
        found = await inspect_database(connection)
        assert found.foreign_event_triggers == ("trap",)
        if await connection.fetchval("SELECT current_setting('server_version_num')::int") >= 170000:
            assert (await install_database(connection, allowed=True)).notifies
        else:
            with pytest.raises(Refused, match="trap"):
                await install_database(connection, allowed=True)
        assert await connection.fetchval("SELECT to_regclass('own.trace')") is None
    finally:
        await connection.execute("DROP EVENT TRIGGER trap")


async def test_a_role_that_may_not_create_event_triggers_installs_the_rest(
    postgres_server: PostgresServer, connection: Connection
) -> None:
    name = await connection.fetchval("SELECT current_database()")
    await connection.execute(
        f"CREATE ROLE part_worker LOGIN PASSWORD 'p'; GRANT CREATE ON DATABASE \"{name}\" TO part_worker"
    )
    try:
        async with connect(Endpoint(postgres_server.dsn("part_worker", password="p", database=name)), "test") as worker:
            found = await install_database(worker, allowed=True)
            assert (found.current, found.armed) == (True, False)
            assert "event triggers" in found.remedy
            assert found.remedy.index("sql --remove") < found.remedy.index("sql --database")
            await worker.execute("SELECT pgrole.lock_changes(), pgrole.store_applied(10, 'postgres', 'u', 'd')")
            # a superuser's event trigger must not run a function that the worker could replace
            with pytest.raises(asyncpg.UndefinedFunctionError, match="superuser"):
                await connection.execute(queries.install_event_triggers())
            with pytest.raises(asyncpg.InsufficientPrivilegeError, match="belongs to") as raised:
                await connection.execute(queries.install_database())
            assert "sql --remove" in str(raised.value.hint)
            await connection.execute(queries.remove())
            await connection.execute(f"CREATE SCHEMA pgrole; {queries.install_database()}")
            await connection.execute(queries.install_event_triggers())
            await connection.execute(
                "GRANT USAGE ON SCHEMA pgrole TO part_worker;GRANT SELECT ON ALL TABLES IN SCHEMA pgrole TO part_worker"
            )
            assert (await install_database(worker, allowed=True)).notifies
            await connection.execute("CREATE TABLE public.made ()")
            assert await worker.fetchval("SELECT count(*) FROM pgrole.ddl_event WHERE identity = 'public.made'") == 1
    finally:
        await connection.execute(queries.remove())
        await connection.execute("DROP OWNED BY part_worker; DROP ROLE part_worker")


async def test_the_remedy_says_that_the_role_may_not_create_a_schema(
    postgres_server: PostgresServer, connection: Connection
) -> None:
    name = await connection.fetchval("SELECT current_database()")
    await connection.execute("CREATE ROLE part_guest LOGIN PASSWORD 'p'")
    try:
        async with connect(Endpoint(postgres_server.dsn("part_guest", password="p", database=name)), "test") as guest:
            found = await install_database(guest, allowed=True)
            assert not found.present
            assert not await guest.fetchval("SELECT has_database_privilege(current_database(), 'CREATE')")
            assert "permission denied" in found.remedy
    finally:
        await connection.execute("DROP ROLE part_guest")


#: A statement for each tag of the trigger, except for tags that need more than PostgreSQL itself.
STATEMENTS = {
    "CREATE SCHEMA": "CREATE SCHEMA s",
    "CREATE TABLE": "CREATE TABLE s.t (a int, b text)",
    "CREATE TABLE AS": "CREATE TABLE s.copy AS SELECT 1 AS a",
    "SELECT INTO": "SELECT 1 AS a INTO s.into_it",
    "CREATE VIEW": "CREATE VIEW s.v AS SELECT 1 AS a",
    "CREATE MATERIALIZED VIEW": "CREATE MATERIALIZED VIEW s.m AS SELECT 1 AS a",
    "CREATE SEQUENCE": "CREATE SEQUENCE s.q",
    "CREATE FUNCTION": "CREATE FUNCTION s.f() RETURNS int LANGUAGE sql AS 'SELECT 1'",
    "CREATE PROCEDURE": "CREATE PROCEDURE s.p() LANGUAGE sql AS 'SELECT 1'",
    "CREATE AGGREGATE": "CREATE AGGREGATE s.agg (int) (SFUNC = int4pl, STYPE = int)",
    "CREATE TYPE": "CREATE TYPE s.e AS ENUM ('a')",
    "CREATE DOMAIN": "CREATE DOMAIN s.d AS int",
    "CREATE FOREIGN DATA WRAPPER": "CREATE FOREIGN DATA WRAPPER w",
    "CREATE SERVER": "CREATE SERVER r FOREIGN DATA WRAPPER w",
    "CREATE FOREIGN TABLE": "CREATE FOREIGN TABLE s.ft (a int) SERVER r",
    "GRANT": "GRANT SELECT ON s.t TO part_subject",
    "REVOKE": "REVOKE SELECT ON s.t FROM part_subject",
    "ALTER DEFAULT PRIVILEGES": "ALTER DEFAULT PRIVILEGES IN SCHEMA s GRANT SELECT ON TABLES TO part_subject",
    "ALTER TABLE": "ALTER TABLE s.t ADD COLUMN c int",
    "ALTER VIEW": "ALTER VIEW s.v RENAME TO v2",
    "ALTER MATERIALIZED VIEW": "ALTER MATERIALIZED VIEW s.m RENAME TO m2",
    "ALTER FOREIGN TABLE": "ALTER FOREIGN TABLE s.ft RENAME TO ft2",
    "ALTER SEQUENCE": "ALTER SEQUENCE s.q OWNER TO part_subject",
    "ALTER FUNCTION": "ALTER FUNCTION s.f() OWNER TO part_subject",
    "ALTER PROCEDURE": "ALTER PROCEDURE s.p() OWNER TO part_subject",
    "ALTER ROUTINE": "ALTER ROUTINE s.f() RENAME TO g",
    "ALTER AGGREGATE": "ALTER AGGREGATE s.agg (int) RENAME TO agg2",
    "ALTER TYPE": "ALTER TYPE s.e OWNER TO part_subject",
    "ALTER DOMAIN": "ALTER DOMAIN s.d OWNER TO part_subject",
    "ALTER SCHEMA": "ALTER SCHEMA s OWNER TO part_subject",
    "ALTER LANGUAGE": "ALTER LANGUAGE plpgsql OWNER TO CURRENT_USER",
    "ALTER FOREIGN DATA WRAPPER": "ALTER FOREIGN DATA WRAPPER w OPTIONS (a 'b')",
    "ALTER SERVER": "ALTER SERVER r OPTIONS (a 'b')",
    "ALTER LARGE OBJECT": "SELECT lo_create(4711); ALTER LARGE OBJECT 4711 OWNER TO part_subject",
    "ALTER EXTENSION": "ALTER EXTENSION plpgsql DROP LANGUAGE plpgsql; ALTER EXTENSION plpgsql ADD LANGUAGE plpgsql",
    "DROP TABLE": "DROP TABLE s.copy",
    "DROP FUNCTION": "DROP FUNCTION s.g()",
    "DROP SCHEMA": "CREATE SCHEMA gone; CREATE TABLE gone.t (); DROP SCHEMA gone CASCADE",
    "DROP OWNED": "DROP OWNED BY part_subject CASCADE",
}


async def test_every_command_that_can_change_a_privilege_is_recorded_and_notified(
    database: str, connection: Connection
) -> None:
    await install_database(connection, allowed=True)
    await connection.execute("CREATE ROLE part_subject")
    heard = []
    listener = await asyncpg.connect(database)
    await listener.add_listener("pgrole", lambda _c, _pid, _channel, payload: heard.append(payload))
    try:
        for tag, statement in STATEMENTS.items():
            await connection.execute("DELETE FROM pgrole.ddl_event")
            heard.clear()
            await connection.execute(statement)
            assert tag in await read(connection, "SELECT tag FROM pgrole.ddl_event"), tag
            await listener.fetchval("SELECT 1")
            assert "ddl" in heard, tag
    finally:
        await listener.close()
        await connection.execute("DROP FOREIGN DATA WRAPPER w CASCADE; DROP SCHEMA IF EXISTS s CASCADE")
        await connection.execute("DROP OWNED BY part_subject CASCADE; DROP ROLE part_subject")


async def test_a_row_records_login_command_and_transaction(connection: Connection, tenant: Connection) -> None:
    await install_database(connection, allowed=True)
    await tenant.execute("CREATE SCHEMA own; SET application_name = 'app'")
    async with tenant.transaction():
        await tenant.execute("CREATE TABLE own.t ()")
        xid = await tenant.fetchval("SELECT pg_current_xact_id()::text")
    await tenant.execute("GRANT SELECT ON own.t TO pg_monitor")
    made, granted = await connection.fetch(
        "SELECT *, xid::text AS id_of, login::regrole::text AS user FROM pgrole.ddl_event ORDER BY id OFFSET 1"
    )
    assert (made["id_of"], made["session"], made["user"], made["app"]) == (xid, TENANT, TENANT, "app")
    assert (made["kind"], made["identity"], made["said"]) == ("table", "own.t", None)
    assert made["object"] == await connection.fetchval("SELECT 'own.t'::regclass::oid")
    assert (granted["tag"], granted["object"], granted["said"]) == (
        "GRANT",
        None,
        "GRANT SELECT ON own.t TO pg_monitor",
    )
    assert (granted["pid"], granted["acting"]) == (tenant.get_server_pid(), "none")


async def test_ddl_on_temporary_objects_is_not_recorded(connection: Connection) -> None:
    await install_database(connection, allowed=True)
    await connection.execute("CREATE TEMP TABLE tmp (a int); ALTER TABLE pg_temp.tmp ADD b int")
    await connection.execute("CREATE TEMP VIEW v AS SELECT 1 AS a; DROP VIEW pg_temp.v; DROP TABLE pg_temp.tmp")
    assert await connection.fetch(EVENTS) == []


async def test_one_command_has_at_most_100_rows(connection: Connection) -> None:
    await install_database(connection, allowed=True)
    tables = " ".join(f"CREATE TABLE t{number} ()" for number in range(150))
    await connection.execute(f"CREATE SCHEMA s {tables}")
    assert await connection.fetchval("SELECT count(*) FROM pgrole.ddl_event") == 100
    await connection.execute("DROP SCHEMA s CASCADE")
    assert await connection.fetchval("SELECT count(*) FROM pgrole.ddl_event") == 200


async def test_a_transaction_with_many_commands_has_all_rows_and_few_subtransactions(
    database: str, connection: Connection
) -> None:
    await install_database(connection, allowed=True)
    async with connection.transaction():
        for number in range(200):
            await connection.execute(f"CREATE TABLE public.t{number} ()")
        if await connection.fetchval("SELECT current_setting('server_version_num')::int") >= 160000:
            other = await asyncpg.connect(database)
            row = await other.fetchrow(
                "SELECT s.* FROM pg_stat_get_backend_idset() AS b, pg_stat_get_backend_subxact(b) AS s"
                " WHERE pg_stat_get_backend_pid(b) = $1",
                connection.get_server_pid(),
            )
            await other.close()
            assert row is not None
            assert (row["subxact_overflowed"], row["subxact_count"] <= 40) == (False, True)
    rows = await connection.fetch("SELECT kind, identity, xid::text FROM pgrole.ddl_event ORDER BY id")
    assert [row["identity"] for row in rows] == [f"public.t{number}" for number in range(200)]
    assert len({row["xid"] for row in rows}) == 1


@asynccontextmanager
async def locked(database: str, mode: str) -> AsyncIterator[None]:
    other = await asyncpg.connect(database)
    try:
        async with other.transaction():
            await other.execute(f"LOCK TABLE pgrole.ddl_event IN {mode} MODE")
            yield
    finally:
        await other.close()


@pytest.mark.parametrize("commands", [1, 100])
async def test_ddl_succeeds_while_the_event_table_is_locked(
    database: str, connection: Connection, commands: int
) -> None:
    await install_database(connection, allowed=True)
    before = await connection.fetchval("SHOW lock_timeout")
    async with locked(database, "ACCESS EXCLUSIVE"):
        # without waiting 100 ms for each command
        await connection.execute(
            "DO $$ BEGIN FOR i IN 1 .. 3 LOOP EXECUTE format('CREATE TABLE public.l%s ()', i); END LOOP; END $$"
        )
    async with connection.transaction():
        for number in range(commands):
            await connection.execute(f"CREATE TABLE public.t{number} ()")
    assert await connection.fetchval("SELECT count(*) FROM pgrole.ddl_event WHERE identity ~ '[.]t'") == commands
    assert await connection.fetchval("SHOW lock_timeout") == before


@pytest.mark.parametrize(
    "harm",
    [
        "DROP TABLE pgrole.ddl_event",
        "ALTER TABLE pgrole.ddl_event DROP COLUMN tag",
        "ALTER TABLE pgrole.ddl_event ADD CHECK (false) NOT VALID",
        "DELETE FROM pgrole.ddl_event; ALTER TABLE pgrole.ddl_event ADD must text NOT NULL",
        "ALTER TABLE pgrole.ddl_event ALTER id SET MAXVALUE 10 SET START 10 RESTART",
        # as a restored dump leaves it
        "INSERT INTO pgrole.ddl_event (id, xid, pid, session, acting, app, tag, command) OVERRIDING SYSTEM VALUE"
        " SELECT i, '3', 0, '', '', '', '', '' FROM generate_series(36, 60) AS i;"
        " SELECT setval('pgrole.ddl_event_id_seq', 1)",
        "DROP INDEX pgrole.ddl_event_xid",
        "REVOKE ALL ON pgrole.ddl_event FROM CURRENT_USER",
    ],
)
async def test_ddl_succeeds_however_the_event_table_was_damaged(
    connection: Connection, tenant: Connection, harm: str
) -> None:
    await install_database(connection, allowed=True)
    await tenant.execute("CREATE SCHEMA own; CREATE TABLE own.before ()")
    await connection.execute(harm)
    async with tenant.transaction():
        for number in range(40):
            await tenant.execute(f"CREATE TABLE own.t{number} ()")
    await tenant.execute("GRANT SELECT ON own.t1 TO PUBLIC; DROP TABLE own.t1; DROP SCHEMA own CASCADE")
    await connection.execute(queries.remove())


@pytest.mark.slow
async def test_ddl_succeeds_while_the_disk_has_no_space_for_its_event(servers: Servers) -> None:
    async with (
        servers.run() as server,
        small_disk(server, ".", 128) as disk,
        connect(Endpoint(server.dsn()), "test") as made,
    ):
        await install_database(made, allowed=True)
        await made.execute("CREATE TABLE public.kept (a int)")
        await made.execute(f"CREATE TABLE public.old ({', '.join(f'c{number} int' for number in range(900))})")
        await made.execute("DROP TABLE public.old")
        await made.execute("VACUUM pg_attribute")
        await made.execute("DELETE FROM pgrole.ddl_event")
        await made.execute("ALTER TABLE public.kept ALTER a SET STATISTICS 1")
        assert [row["tag"] for row in await made.fetch(EVENTS)] == ["ALTER TABLE"]
        await made.execute("DELETE FROM pgrole.ddl_event")
        await made.execute("VACUUM FULL pgrole.ddl_event")
        disk.fill()
        for number in range(2, 22):
            await made.execute(f"ALTER TABLE public.kept ALTER a SET STATISTICS {number}")
        assert await made.fetch(EVENTS) == []
        disk.free()
        await made.execute("ALTER TABLE public.kept ALTER a SET STATISTICS 22")
        assert [row["tag"] for row in await made.fetch(EVENTS)] == ["ALTER TABLE"]


async def test_the_event_triggers_cause_no_serialization_failures(database: str, connection: Connection) -> None:
    await install_database(connection, allowed=True)
    await connection.execute("CREATE SCHEMA a; CREATE SCHEMA b")
    other = await asyncpg.connect(database)
    try:
        for _ in range(3):
            async with connection.transaction(isolation="serializable"), other.transaction(isolation="serializable"):
                for number in range(50):
                    await connection.execute(f"CREATE TABLE a.t{number} ()")
                    await other.execute(f"CREATE TABLE b.t{number} ()")
            await connection.execute("DROP SCHEMA a, b CASCADE; CREATE SCHEMA a; CREATE SCHEMA b")
    finally:
        await other.close()


async def test_a_transaction_with_ddl_can_still_be_prepared(servers: Servers) -> None:
    async with (
        servers.run(settings={"max_prepared_transactions": "5"}) as server,
        connect(Endpoint(server.dsn()), "test") as connection,
    ):
        found = await install_database(connection, allowed=True)
        assert (found.armed, found.notifies) == (True, False)
        await connection.execute("BEGIN; CREATE TABLE public.t (); PREPARE TRANSACTION 'x'")
        await connection.execute("COMMIT PREPARED 'x'")
        assert await connection.fetchval("SELECT count(*) FROM pgrole.ddl_event WHERE identity = 'public.t'") == 1


async def test_a_crash_loses_the_events_and_nothing_else(own_postgres: PostgresServer) -> None:
    async with connect(Endpoint(own_postgres.dsn()), "test") as connection:
        await install_database(connection, allowed=True)
        await connection.execute("CREATE TABLE public.t (); SELECT pgrole.store_applied(10, 'postgres', 'u', 'd')")
        await connection.execute("CHECKPOINT")
        assert await connection.fetchval("SELECT count(*) FROM pgrole.ddl_event") > 0
    await own_postgres.kill()
    await own_postgres.start()
    async with connect(Endpoint(own_postgres.dsn()), "test") as connection:
        assert (await install_database(connection, allowed=True)).notifies
        assert await connection.fetchval("SELECT count(*) FROM pgrole.ddl_event") == 0
        assert await connection.fetchval("SELECT digest FROM pgrole.applied") == "d"
        await connection.execute("CREATE TABLE public.u ()")
        assert await connection.fetchval("SELECT count(*) FROM pgrole.ddl_event") == 1


async def test_events_are_pruned_by_age_and_by_number(connection: Connection) -> None:
    await install_database(connection, allowed=True)
    for number in range(5):
        await connection.execute(f"CREATE TABLE public.t{number} ()")
    await connection.execute("UPDATE pgrole.ddl_event SET at = at - interval '8 days' WHERE identity = 'public.t0'")
    assert await connection.fetchval("SELECT pgrole.prune_events()") == 1
    assert await connection.fetchval("SELECT pgrole.prune_events('1 day', 2)") == 2
    assert await read(connection, "SELECT identity FROM pgrole.ddl_event") == ["public.t3", "public.t4"]


@pytest.mark.parametrize("back", [1, 3])
async def test_events_are_recorded_after_a_dump_set_their_sequence_back(connection: Connection, back: int) -> None:
    await install_database(connection, allowed=True)
    made = [f"public.t{number}" for number in range(8)]
    for name in made[:4]:
        await connection.execute(f"CREATE TABLE {name} ()")
    await connection.execute(f"SELECT setval(pg_get_serial_sequence('pgrole.ddl_event', 'id'), {back})")
    for name in made[4:]:
        await connection.execute(f"CREATE TABLE {name} ()")
    assert await read(connection, "SELECT identity FROM pgrole.ddl_event ORDER BY id") == made


async def test_events_of_another_server_are_pruned_before_transactions_get_their_ids(connection: Connection) -> None:
    """A dump brings them. Whoever wrote a row with such an id would be told to be the event's author."""
    await install_database(connection, allowed=True)
    await connection.execute(
        "INSERT INTO pgrole.ddl_event (xid, pid, session, acting, app, tag, command) "
        "SELECT (pg_snapshot_xmax(pg_current_snapshot())::text::bigint + 100)::text::xid8, 1, 'alice', 'none', '', "
        "'GRANT', 'GRANT'; CREATE TABLE public.t ()"
    )
    assert await connection.fetchval("SELECT pgrole.prune_events()") == 1
    assert await read(connection, "SELECT identity FROM pgrole.ddl_event") == ["public.t"]


async def test_a_handled_approval_is_kept_by_later_applies(connection: Connection) -> None:
    await install_database(connection, allowed=True)
    handled = "SELECT approve_handled FROM pgrole.applied"
    await connection.execute(
        "SELECT pgrole.store_applied(10, 'postgres', 'u', 'one');"
        "SELECT pgrole.store_approval(10, 'u', 'first');"
        "SELECT pgrole.store_applied(10, 'postgres', 'u', 'two', 1);"
        "SELECT pgrole.store_approval(10, 'other', 'second')"
    )
    assert await connection.fetchval(handled) == "first"


async def test_drifts_are_counted_per_role_and_object(connection: Connection) -> None:
    await install_database(connection, allowed=True)
    await connection.execute(
        "SELECT pgrole.store_applied(10, 'postgres', 'u', 'one');"
        "SELECT pgrole.store_applied(10, 'postgres', 'u', 'one', 2, '{\"words\": []}');"
        "SELECT pgrole.store_applied(10, 'postgres', 'u', 'two', 1)"
    )
    rows = "SELECT digest, drift_count, last_drift_at IS NOT NULL AS drifted, xmin::text FROM pgrole.applied"
    row = await connection.fetchrow(rows)
    assert row is not None
    assert (row["digest"], row["drift_count"], row["drifted"]) == ("two", 3, True)
    await connection.execute("SELECT pgrole.store_applied(10, 'postgres', 'u', 'two')")
    assert await connection.fetchrow(rows) == row
    await connection.execute("SELECT pgrole.store_applied(10, 'postgres', 'other', 'two')")
    row = await connection.fetchrow(rows)
    assert row is not None
    assert row is not None
    assert (row["drift_count"], row["drifted"]) == (0, False)


async def test_ddl_near_the_limit_of_the_stack_is_recorded_or_fails(connection: Connection) -> None:
    await install_database(connection, allowed=True)
    await connection.execute("""
        CREATE TABLE public.own ();
        CREATE FUNCTION public.deep(n integer, what text) RETURNS void LANGUAGE plpgsql AS $$
        BEGIN
            IF n = 0 THEN EXECUTE what; ELSE PERFORM public.deep(n - 1, what); END IF;
        END $$
    """)

    async def runs(depth: int) -> bool:
        try:
            await connection.execute(f"SELECT public.deep({depth}, 'GRANT SELECT ON public.own TO pg_monitor')")
        except asyncpg.StatementTooComplexError:
            return False
        return True

    shallow, deep = 0, 20_000
    while deep - shallow > 1:
        depth = (shallow + deep) // 2
        shallow, deep = (depth, deep) if await runs(depth) else (shallow, depth)
    count = "SELECT count(*) FROM pgrole.ddl_event"
    before = await connection.fetchval(count)
    runs_there = [depth for depth in range(shallow - 10, deep) if await runs(depth)]
    assert runs_there
    assert await connection.fetchval(count) == before + len(runs_there)


async def test_rows_of_dropped_roles_are_pruned_and_those_of_renamed_roles_are_kept(connection: Connection) -> None:
    await install_database(connection, allowed=True)
    await connection.execute(
        "SELECT pgrole.store_applied(10, 'former_name', 'u', 'd'); SELECT pgrole.store_applied(99999, 'gone', 'u', 'd')"
    )
    assert await connection.fetchval("SELECT pgrole.prune_applied()") == 1
    assert await connection.fetchval("SELECT role_name FROM pgrole.applied") == "former_name"


def drift(**columns: object) -> str:
    plain = {"role": "r", "kind": "privileges", "fields": ["a"], "corrected": True, "cluster": "c"}
    return json.dumps([{**plain, **columns}])


async def record(connection: Connection, drifts: str) -> None:
    await connection.execute("SELECT pgrole.record_drifts($1::text::jsonb)", drifts)


async def test_equal_drifts_within_a_minute_share_one_row(connection: Connection) -> None:
    await install_database(connection, allowed=True)
    for columns in (
        {},
        {"login": "other"},
        {"fields": ["b"]},
        {"role": "s"},
        {"corrected": False},
        {"at": "2026-01-02"},
    ):
        await record(connection, drift(**columns))
    await record(connection, drift(count=3))
    counts = await connection.fetch("SELECT role, fields, corrected, count FROM pgrole.history ORDER BY count DESC")
    assert [row["count"] for row in counts] == [4, 1, 1, 1, 1, 1]


@pytest.mark.slow
async def test_the_size_of_a_history_row_is_bounded(connection: Connection) -> None:
    await install_database(connection, allowed=True)
    long = "é" * 100_000
    texts = ("role", "database", "login", "acting", "application", "address", "statement", "proof", "cluster")
    await record(connection, drift(fields=[long] * 100, details={"a": long}, **dict.fromkeys(texts, long)))
    size = await connection.fetchval("SELECT pg_column_size(h.*) FROM pgrole.drift_history AS h")
    assert 500 < size <= 2048
    with pytest.raises(asyncpg.CheckViolationError):
        await connection.execute("UPDATE pgrole.drift_history SET details = to_jsonb(repeat(md5(''), 100))")


async def test_the_history_is_copied_to_the_home_database_once_despite_retries(
    connection: Connection, database: str, postgres_server: PostgresServer
) -> None:
    await install_database(connection, allowed=True)
    name = f"{await connection.fetchval('SELECT current_database()')}_home"
    await connection.execute(f'CREATE DATABASE "{name}"')
    try:
        async with connect(Endpoint(postgres_server.dsn(database=name)), "test") as home:
            await schema.install(home)
            await record(connection, drift())
            first = await connection.fetchval("SELECT pgrole.read_drifts_to_copy()")
            await record(home, first)
            await record(home, first)
            await record(connection, drift())
            # counted again meanwhile, so it is not marked
            await connection.execute("SELECT pgrole.mark_copied($1::text::jsonb)", first)
            again = await connection.fetchval("SELECT pgrole.read_drifts_to_copy()")
            await record(home, again)
            await connection.execute("SELECT pgrole.mark_copied($1::text::jsonb)", again)
            assert await connection.fetchval("SELECT pgrole.read_drifts_to_copy()") is None
            everything = "SELECT * FROM pgrole.history"
            assert await home.fetch(everything) == await connection.fetch(everything)
            assert await home.fetchval("SELECT count FROM pgrole.history") == 2
            await record(home, drift(kind="role"))
            assert await home.fetchval("SELECT pgrole.read_drifts_to_copy()") is None
    finally:
        await connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


async def test_the_history_is_pruned_by_age_and_number_without_changing_relations(connection: Connection) -> None:
    await install_database(connection, allowed=True)
    for month in range(1, 13):
        await record(connection, drift(at=f"2026-{month:02}-10T00:00:00Z", fields=[str(month)]))
    age = await connection.fetchval("SELECT now() - timestamptz '2026-06-15'")
    await connection.execute("SELECT pgrole.prune_history($1)", age)
    kept = "SELECT fields[1] FROM pgrole.history ORDER BY at"
    assert [row[0] for row in await connection.fetch(kept)] == ["7", "8", "9", "10", "11", "12"]
    await connection.execute("SELECT pgrole.prune_history($1, 2)", age)
    assert [row[0] for row in await connection.fetch(kept)] == ["11", "12"]
    assert (await inspect_database(connection)).current


async def test_removal_leaves_nothing(connection: Connection) -> None:
    before = await read(connection, CATALOGS)
    await connection.execute(queries.remove())
    assert await read(connection, CATALOGS) == before
    await install_database(connection, allowed=True)
    await connection.execute("CREATE TABLE public.t ()")
    await record(connection, drift())
    await remove(connection)
    await connection.execute("DROP TABLE public.t")
    assert await read(connection, CATALOGS) == before
    await remove(connection)
    await schema.install(connection)
    await install_database(connection, allowed=True)
    await connection.execute(queries.remove())
    assert await read(connection, CATALOGS) == before


async def test_removal_keeps_a_schema_pgrole_of_another_role(connection: Connection, tenant: Connection) -> None:
    await tenant.execute("CREATE SCHEMA pgrole; CREATE TABLE pgrole.theirs ()")
    before = await read(connection, CATALOGS)
    await connection.execute(queries.remove())
    assert await read(connection, CATALOGS) == before


async def test_a_change_of_a_database_is_notified_with_its_name(database: str, connection: Connection) -> None:
    await schema.install(connection)
    await connection.execute("SELECT pgrole.observe()")
    name = await connection.fetchval("SELECT current_database()")
    async with listening(database) as listener:
        for statement, expected in (
            (f'CREATE DATABASE "{name}_""new"', {"op": "database", "database": f'{name}_"new'}),
            (
                f'ALTER DATABASE "{name}_""new" RENAME TO "{name}_newer"',
                {"op": "database", "database": f"{name}_newer", "database_was": f'{name}_"new'},
            ),
            (f'GRANT CREATE ON DATABASE "{name}_newer" TO pg_monitor', {"op": "database", "database": f"{name}_newer"}),
            (f'ALTER DATABASE "{name}_newer" OWNER TO CURRENT_USER', None),
            (f'DROP DATABASE "{name}_newer"', {"op": "database", "database": f"{name}_newer"}),
        ):
            await connection.execute(statement)
            await connection.execute("SELECT pgrole.observe()")
            heard = [message for message in await listener.so_far() if message["op"] == "database"]
            assert heard == ([expected] if expected else []), statement
    rows = "SELECT xmin::text, oid FROM pgrole.database_state ORDER BY oid"
    before = await connection.fetch(rows)
    await connection.execute("COMMENT ON ROLE pg_monitor IS NULL; SELECT pgrole.observe()")
    assert await connection.fetch(rows) == before


async def test_after_removal_a_role_without_superuser_can_restore_a_dump(
    postgres_server: PostgresServer, connection: Connection, database: str
) -> None:
    await install_database(connection, allowed=True)
    await connection.execute("CREATE TABLE public.kept AS SELECT 7 AS a")
    await connection.execute("CREATE ROLE part_restorer LOGIN PASSWORD 'p'")
    name = await connection.fetchval("SELECT current_database()")
    await connection.execute(f'CREATE DATABASE "{name}_restored" OWNER part_restorer')
    dsn = postgres_server.dsn("part_restorer", password="p", database=f"{name}_restored")
    try:
        assert b"CREATE EVENT TRIGGER" in await dump(postgres_server, database)
        await connection.execute(queries.remove())
        script = await dump(postgres_server, database)
        command = [str(postgres_server.psql), "-v", "ON_ERROR_STOP=1", "-q", dsn]
        await anyio.run_process(command, input=script)
        restored = await asyncpg.connect(dsn)
        assert await restored.fetchval("SELECT a FROM public.kept") == 7
        await restored.close()
    finally:
        await connection.execute(f'DROP DATABASE "{name}_restored" WITH (FORCE)')
        await connection.execute("DROP ROLE part_restorer")


@pytest.mark.parametrize("home", [False, True])
async def test_a_dump_is_restored_in_place_of_what_is_there(
    postgres_server: PostgresServer, connection: Connection, database: str, *, home: bool
) -> None:
    if home:
        await schema.install(connection)
    await install_database(connection, allowed=True)
    await connection.execute("SELECT pgrole.store_applied(10, 'postgres', 'u', 'digest')")
    script = await dump(postgres_server, database, "--clean", "--if-exists")
    await connection.execute("TRUNCATE pgrole.applied")
    command = [str(postgres_server.psql), "-1", "-v", "ON_ERROR_STOP=1", "-q", database]
    await anyio.run_process(command, input=script)
    assert (await install_database(connection, allowed=False)).notifies
    assert await connection.fetchval("SELECT digest FROM pgrole.applied") == "digest"


async def test_a_dump_is_restored_without_the_schema(
    postgres_server: PostgresServer, connection: Connection, database: str, tmp_path: Path
) -> None:
    """As docs/running.md does."""
    await install_database(connection, allowed=True)
    await connection.execute("CREATE TABLE public.kept AS SELECT 7 AS a")
    path, chosen = tmp_path / "all.dump", tmp_path / "list"
    path.write_bytes(await dump(postgres_server, database, "--format=custom"))
    program = str(postgres_server.programs / "pg_restore")
    entries = (await anyio.run_process([program, "--list", str(path)])).stdout.decode().splitlines()
    chosen.write_text("".join(f"{line}\n" for line in entries if "pgrole" not in line))
    await connection.execute("SELECT pgrole.store_applied(10, 'postgres', 'u', 'digest'); TRUNCATE public.kept")
    options = ["--clean", "--if-exists", "--exit-on-error", f"--use-list={chosen}"]
    await anyio.run_process([program, *options, f"--dbname={database}", str(path)])
    assert await connection.fetchval("SELECT a FROM public.kept") == 7
    assert await connection.fetchval("SELECT digest FROM pgrole.applied") == "digest"
    assert (await inspect_database(connection)).notifies


async def test_a_publication_fails_no_update_of_the_history(connection: Connection) -> None:
    await install_database(connection, allowed=True)
    await connection.execute("CREATE PUBLICATION everything FOR ALL TABLES")
    for _ in range(2):
        await connection.execute("SELECT pgrole.record_drifts($1)", json.dumps([{"role": "r", "kind": "role"}]))
    assert await connection.fetchval("SELECT count FROM pgrole.drift_history") == 2
    await connection.execute("UPDATE pgrole.leader SET heartbeat = NULL; UPDATE pgrole.applied SET digest = ''")
    await connection.execute("DELETE FROM pgrole.drift_history; DELETE FROM pgrole.ddl_event")


async def dump(server: PostgresServer, dsn: str, *options: str) -> bytes:
    program = server.programs / "pg_dump"
    if not program.exists():
        pytest.skip("this PostgreSQL comes without pg_dump")
    chosen = options or ("--no-owner", "--no-privileges")
    return (await anyio.run_process([str(program), *chosen, dsn])).stdout
