"""sql/install: one version of schema pgrole can follow another, in either order, while controllers use it."""

import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import asyncpg
import pytest
import pytest_asyncio

from pgrole_controller.api import crd
from pgrole_controller.core.errors import Refused
from pgrole_controller.local.postgres import PostgresServer
from pgrole_controller.postgres import queries
from pgrole_controller.postgres.connection import Connection, Endpoint, connect
from pgrole_controller.postgres.schema import VERSION, SchemaState, install, is_current
from pgrole_controller.postgres.session import Session, run_session
from pgrole_controller.postgres.watch import ChangeCallbacks
from tests.integration.sql_support import MISMATCHES
from tests.releases import BEFORE
from tests.servers import create_database

#: Everything that is called or written by name, one line each, with all that its callers depend on.
PARTS = """
SELECT format('%s %s.%s %s %s', c.relkind, c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull)
FROM pg_class AS c JOIN pg_attribute AS a ON a.attrelid = c.oid
WHERE c.relnamespace = 'pgrole'::regnamespace AND c.relkind IN ('r', 'v') AND a.attnum > 0 AND NOT a.attisdropped
UNION ALL
SELECT format('%s %s(%s) %s %s', p.prokind, p.proname, pg_get_function_arguments(p.oid), pg_get_function_result(p.oid),
              p.prosecdef)
FROM pg_proc AS p WHERE p.pronamespace = 'pgrole'::regnamespace
UNION ALL
SELECT format('trigger %s on %s', t.tgname, t.tgrelid::regclass)
FROM pg_trigger AS t JOIN pg_class AS c ON c.oid = t.tgrelid
WHERE c.relnamespace = 'pgrole'::regnamespace AND NOT t.tgisinternal
UNION ALL
SELECT format('operator %s', o.oid::regoperator) FROM pg_operator AS o WHERE o.oprnamespace = 'pgrole'::regnamespace
UNION ALL
SELECT i.indexdef FROM pg_indexes AS i WHERE i.schemaname = 'pgrole' AND i.indexdef LIKE '%UNIQUE%'
"""

#: The whole schema, with bodies and privileges; columns in their order.
WHOLE = """
SELECT format('%s: %s', p.oid::regprocedure, pg_get_functiondef(p.oid) || coalesce(p.proacl::text, ''))
FROM pg_proc AS p WHERE p.pronamespace = 'pgrole'::regnamespace
UNION ALL
SELECT format('%s %s: %s', c.relkind, c.relname, coalesce(c.relacl::text, '') || coalesce(pg_get_viewdef(c.oid), ''))
FROM pg_class AS c WHERE c.relnamespace = 'pgrole'::regnamespace AND c.relkind <> 'i'
UNION ALL
SELECT format('%s.%s %s %s %s %s', c.relname, a.attnum, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull,
              pg_get_expr(d.adbin, d.adrelid))
FROM pg_class AS c
JOIN pg_attribute AS a ON a.attrelid = c.oid
LEFT JOIN pg_attrdef AS d ON (d.adrelid, d.adnum) = (c.oid, a.attnum)
WHERE c.relnamespace = 'pgrole'::regnamespace AND c.relkind IN ('r', 'v') AND a.attnum > 0
UNION ALL
SELECT pg_get_constraintdef(n.oid) FROM pg_constraint AS n WHERE n.connamespace = 'pgrole'::regnamespace
UNION ALL
SELECT pg_get_triggerdef(t.oid)
FROM pg_trigger AS t JOIN pg_class AS c ON c.oid = t.tgrelid WHERE c.relnamespace = 'pgrole'::regnamespace
UNION ALL
SELECT i.indexdef FROM pg_indexes AS i WHERE i.schemaname = 'pgrole'
UNION ALL
SELECT format('installation %s %s', i.version, i.parts) FROM pgrole.installation AS i
UNION ALL
SELECT format('schema %s', n.nspacl) FROM pg_namespace AS n WHERE n.nspname = 'pgrole'
"""

#: Claims as controllers leave them, with records of passwords.
CLAIMS = """
INSERT INTO pgrole.claim (
    role_name, role_oid, system_identifier, cluster, namespace, namespace_uid, object, object_uid, applied, drift_count,
    password_source, password_digest, rotated_at, rotate_handled, connection_secret, released_at
) VALUES
    ('held', 16999, 7, 'c', 'n', 'nu', 'held', 'u1', 'sha256', 4, 'one/2', 'digest', now(), '1', 'delivered', NULL),
    ('released', 16998, 7, 'c', 'n', 'nu', 'gone', 'u2', 'sha256', 0, '', '', NULL, '', '', now())
"""
#: Without the columns that this version adds: a column with a default rewrites no row.
ROWS = """
SELECT
    (to_jsonb(c) - ARRAY['object_generation', 'server_uid', 'server_generation', 'privileges', 'approve_handled'])::text
    || c.ctid || c.xmin
FROM pgrole.claim AS c
ORDER BY c.role_name
"""


@pytest_asyncio.fixture(loop_scope="session")
async def connection(database: str) -> AsyncIterator[Connection]:
    async with connect(Endpoint(database), "test") as made:
        yield made


@pytest_asyncio.fixture(loop_scope="session")
async def other(database: str, connection: Connection) -> AsyncIterator[Connection]:
    """A session in a second database."""
    name = f"{await connection.fetchval('SELECT current_database()')}_other"
    await create_database(connection, name)
    async with connect(Endpoint(f"{database}_other"), "test") as made:
        yield made
    await connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


async def forget_home(connection: Connection) -> None:
    """Removes the record of the home, since a server has only one, to compare with a second database."""
    await connection.execute(f'ALTER DATABASE "{await connection.fetchval("SELECT current_database()")}" RESET ALL')


async def run_script(connection: Connection, script: str) -> None:
    """Runs a script as an administrator runs the output of `pgrole-controller sql`."""
    async with connection.transaction():
        await connection.execute(script)


async def run_before(connection: Connection) -> None:
    await run_script(connection, BEFORE.install_sql())


async def run_present(connection: Connection) -> None:
    await run_script(connection, queries.install())


async def read(connection: Connection, question: str) -> list[Any]:
    return sorted(row[0] for row in await connection.fetch(question))


async def version(connection: Connection) -> int:
    found: int = await connection.fetchval("SELECT version FROM pgrole.installation")
    return found


def test_the_wheel_of_the_previous_release_has_its_crds_and_its_sql() -> None:
    assert {path.name for path in BEFORE.crds.glob("*.yaml")} == {*crd.files()}
    assert BEFORE.install_sql().count("INSERT INTO pgrole.installation") == 1


async def test_the_kept_controller_is_the_one_of_the_previous_release(tmp_path: Path) -> None:
    environment = BEFORE.unpack(tmp_path / "before")
    command = [sys.executable, "-m", "pgrole_controller", "--version"]
    with anyio.fail_after(60):
        done = await anyio.run_process(command, env=environment)
    assert done.stdout.decode().split() == ["pgrole-controller", BEFORE.version]


async def test_each_release_installs_the_version_that_it_names(connection: Connection, other: Connection) -> None:
    await run_before(connection)
    assert await version(connection) == BEFORE.schema == VERSION - 1
    await forget_home(connection)
    await run_present(other)
    assert await version(other) == VERSION


async def test_every_part_of_the_previous_version_still_exists_unchanged(
    connection: Connection, other: Connection
) -> None:
    await run_before(connection)
    before = await read(connection, PARTS)
    await forget_home(connection)
    await run_present(other)
    assert len(before) > 60
    assert set(before) - set(await read(other, PARTS)) == set()


async def test_columns_added_to_a_table_of_the_previous_version_are_optional_in_an_insert(
    connection: Connection, other: Connection
) -> None:
    columns = """
        SELECT format('%s.%s', a.attrelid::regclass, a.attname), a.atthasdef OR NOT a.attnotnull AS optional
        FROM pg_attribute AS a JOIN pg_class AS c ON c.oid = a.attrelid
        WHERE c.relnamespace = 'pgrole'::regnamespace AND c.relkind = 'r' AND a.attnum > 0
    """
    await run_before(connection)
    before = {name for name, _ in await connection.fetch(columns)}
    tables = {name.rsplit(".", 1)[0] for name in before}
    await forget_home(connection)
    await run_present(other)
    added = {name: optional for name, optional in await other.fetch(columns) if name not in before}
    assert [name for name, optional in added.items() if name.rsplit(".", 1)[0] in tables and not optional] == []


async def test_an_upgraded_schema_equals_a_new_one_and_keeps_every_claim(
    connection: Connection, other: Connection
) -> None:
    await run_before(connection)
    await connection.execute(CLAIMS)
    claims = await read(connection, ROWS)
    assert await install(connection) is SchemaState.CHANGED
    assert await read(connection, ROWS) == claims
    upgraded = await read(connection, WHOLE)
    await forget_home(connection)
    assert await install(other) is SchemaState.MADE
    assert upgraded == await read(other, WHOLE)


async def test_the_script_of_the_previous_version_run_by_mistake_removes_nothing(connection: Connection) -> None:
    await install(connection)
    await connection.execute(CLAIMS)
    number = await connection.fetchval("SELECT pgrole.draw_number('i')")
    await connection.execute("SELECT pgrole.lead('i', $1, 'first')", number)
    claims, whole = await read(connection, ROWS), await read(connection, WHOLE)
    parts = await read(connection, PARTS)
    await run_before(connection)
    assert set(parts) - set(await read(connection, PARTS)) == set()
    assert await read(connection, ROWS) == claims
    await connection.execute("SELECT pgrole.check_lead('i', $1)", number)
    assert await install(connection) is SchemaState.CHANGED
    assert await read(connection, WHOLE) == whole
    await connection.execute("SELECT pgrole.check_lead('i', $1)", number)


async def test_a_schema_of_the_previous_version_that_may_not_be_changed_is_used(connection: Connection) -> None:
    await run_before(connection)
    whole = await read(connection, WHOLE)
    assert await install(connection, allowed=False) is SchemaState.OLDER
    assert not await is_current(connection)
    assert await read(connection, WHOLE) == whole


async def test_a_schema_of_the_previous_version_that_another_transaction_uses_is_updated_afterwards(
    postgres_server: PostgresServer, connection: Connection
) -> None:
    await run_before(connection)
    whole = await read(connection, WHOLE)
    await connection.execute("SET lock_timeout = '100ms'")
    name = await connection.fetchval("SELECT current_database()")
    async with connect(Endpoint(postgres_server.dsn(database=name)), "dump") as dump, dump.transaction():
        await dump.execute("LOCK TABLE pgrole.claim IN ACCESS SHARE MODE")  # as pg_dump
        assert await install(connection) is SchemaState.IN_USE
        assert await read(connection, WHOLE) == whole
    assert await install(connection) is SchemaState.CHANGED


async def test_a_session_ends_to_update_a_schema_that_another_transaction_used(
    postgres_server: PostgresServer, connection: Connection
) -> None:
    await run_before(connection)
    name = await connection.fetchval("SELECT current_database()")
    endpoint = Endpoint(postgres_server.dsn(database=name))
    states: list[SchemaState] = []

    async def work(session: Session) -> None:
        states.append(session.schema_state)
        assert await session.read_claims() == ([], None)
        if session.schema_state is SchemaState.IN_USE:
            await anyio.sleep_forever()

    async def run() -> None:
        await run_session(endpoint, "cluster", interval=0.01, may_install=True, callbacks=ChangeCallbacks(), work=work)

    with anyio.fail_after(60):
        async with connect(endpoint, "dump") as dump, dump.transaction():
            await dump.execute("LOCK TABLE pgrole.claim IN ACCESS SHARE MODE")  # as pg_dump
            await run()
        await run()
    assert states == [SchemaState.IN_USE, SchemaState.CHANGED]


async def test_a_session_ends_to_install_what_someone_dropped_from_the_schema(
    postgres_server: PostgresServer, connection: Connection
) -> None:
    await run_present(connection)
    name = await connection.fetchval("SELECT current_database()")
    states: list[SchemaState] = []

    async def work(session: Session) -> None:
        states.append(session.schema_state)
        if len(states) == 1:
            await connection.execute("DROP FUNCTION pgrole.take_claim CASCADE")
            await anyio.sleep_forever()

    with anyio.fail_after(60):
        for _ in range(2):
            await run_session(
                Endpoint(postgres_server.dsn(database=name)),
                "cluster",
                interval=0.01,
                may_install=True,
                callbacks=ChangeCallbacks(),
                work=work,
            )
    assert states == [SchemaState.PRESENT, SchemaState.CHANGED]


async def test_a_role_that_does_not_own_a_schema_of_the_previous_version_uses_it_unchanged(
    postgres_server: PostgresServer, connection: Connection
) -> None:
    await run_before(connection)
    await connection.execute(
        "CREATE ROLE versions_worker LOGIN PASSWORD 'p'; GRANT USAGE ON SCHEMA pgrole TO versions_worker;"
        "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA pgrole TO versions_worker;"
        "GRANT EXECUTE ON ALL ROUTINES IN SCHEMA pgrole TO versions_worker"
    )
    name = await connection.fetchval("SELECT current_database()")
    whole = await read(connection, WHOLE)
    try:
        dsn = postgres_server.dsn("versions_worker", password="p", database=name)
        async with connect(Endpoint(dsn), "test") as worker:
            assert await install(worker) is SchemaState.OLDER
            assert await read(connection, WHOLE) == whole
            await run_present(connection)
            assert await install(worker) is SchemaState.PRESENT
    finally:
        await connection.execute("DROP OWNED BY versions_worker; DROP ROLE versions_worker")


async def test_an_upgrade_keeps_grants_on_existing_parts_and_new_parts_lack_them(
    connection: Connection,
) -> None:
    await connection.execute("CREATE ROLE versions_steward")
    lacking = """
        SELECT p.proname FROM pg_proc AS p WHERE p.pronamespace = 'pgrole'::regnamespace
          AND NOT has_function_privilege('versions_steward', p.oid, 'EXECUTE')
        UNION ALL
        SELECT c.relname FROM pg_class AS c WHERE c.relnamespace = 'pgrole'::regnamespace AND c.relkind IN ('r', 'v')
          AND NOT has_table_privilege('versions_steward', c.oid, 'SELECT')
    """
    try:
        await run_before(connection)
        before = set(await read(connection, lacking))
        await connection.execute(
            "GRANT USAGE ON SCHEMA pgrole TO versions_steward;"
            "GRANT SELECT ON ALL TABLES IN SCHEMA pgrole TO versions_steward;"
            "GRANT EXECUTE ON ALL ROUTINES IN SCHEMA pgrole TO versions_steward"
        )
        await run_present(connection)
        added = set(await read(connection, lacking))
        assert {
            "act_on",
            "keep_approval",
            "keep_privileges",
            "expect_applied",
            "check_not_suspended",
            "beat",
            "lead_while_away",
        } <= added
        assert not added & before
    finally:
        await connection.execute("DROP OWNED BY versions_steward; DROP ROLE versions_steward")


async def test_a_schema_of_the_previous_version_with_a_part_of_a_tenant_is_not_trusted(
    connection: Connection,
) -> None:
    await connection.execute("CREATE ROLE versions_tenant")
    try:
        await run_before(connection)
        await connection.execute("ALTER FUNCTION pgrole.take_turn() OWNER TO versions_tenant")
        for allowed in (True, False):
            with pytest.raises(Refused, match="versions_tenant"):
                await install(connection, allowed=allowed)
    finally:
        await connection.execute("DROP OWNED BY versions_tenant; DROP ROLE versions_tenant")


async def test_the_version_is_not_changed_during_a_reconcile(database: str, connection: Connection) -> None:
    """A transaction that holds the lock ends before the functions that it calls are replaced."""
    await run_before(connection)
    async with connect(Endpoint(database), "test") as visitor:
        async with visitor.transaction():
            await visitor.execute("SELECT pgrole.take_turn()")
            await connection.execute("SET lock_timeout = '100ms'")
            with pytest.raises(asyncpg.LockNotAvailableError):
                await run_present(connection)
        await connection.execute("RESET lock_timeout")
        await run_present(connection)
    assert await version(connection) == VERSION


async def test_observations_of_the_previous_version_hide_no_change_from_this_one(connection: Connection) -> None:
    """The previous version recorded only rows that concern roles, and no comments on databases, for example."""
    database = await connection.fetchval("SELECT quote_ident(current_database())")
    written = "SELECT xmin FROM pgrole.role_state WHERE name = 'versions_subject'"
    await connection.execute(f"COMMENT ON DATABASE {database} IS 'old'; ALTER DATABASE {database} SET work_mem = '8MB'")
    await connection.execute("CREATE ROLE versions_subject; COMMENT ON ROLE versions_subject IS 'c'")
    await connection.execute("ALTER ROLE versions_subject SET work_mem = '8MB'")
    try:
        await run_before(connection)
        await connection.execute("SELECT pgrole.observe()")
        before = await connection.fetchval(written)
        await run_present(connection)
        await connection.execute("SELECT pgrole.observe()")
        assert await connection.fetchval(written) == before
        for change in (
            f"COMMENT ON ROLE versions_subject IS NULL; COMMENT ON DATABASE {database} IS 'new'",
            f"ALTER ROLE versions_subject RESET ALL; ALTER DATABASE {database} SET work_mem = '9MB'",
            "COMMENT ON ROLE versions_subject IS 'd'; COMMENT ON TABLESPACE pg_default IS 't'",
            "COMMENT ON ROLE versions_subject IS NULL; COMMENT ON TABLESPACE pg_global IS 't'",
        ):
            await connection.execute(change)
            await connection.execute("SELECT pgrole.observe()")
            assert await connection.fetch(MISMATCHES) == [], change
    finally:
        await connection.execute("COMMENT ON TABLESPACE pg_default IS NULL; COMMENT ON TABLESPACE pg_global IS NULL")
        await connection.execute(f"COMMENT ON DATABASE {database} IS NULL; DROP ROLE versions_subject")
