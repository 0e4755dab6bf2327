"""A database whose owner plants code, forges notifications and floods: the controller runs no code of the owner, and
maintains the privileges of others there and in other databases.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import anyio
import asyncpg
import pytest
import pytest_asyncio

from pgrole_controller.core.errors import PgRoleError, Reason
from pgrole_controller.core.privileges.acl import ObjectKind
from pgrole_controller.core.privileges.grantee import (
    Access,
    DatabasePrivileges,
    Grantee,
    ObjectPrivileges,
    SchemaAccess,
)
from pgrole_controller.core.request import Key
from pgrole_controller.core.server_options import DatabaseMode
from pgrole_controller.local.process import reached
from pgrole_controller.postgres import answer_pages, framing, queries, session_settings
from pgrole_controller.postgres.connection import Connection, Endpoint, connect
from pgrole_controller.postgres.privileges import (
    acl_catalog,
    database_session,
    ddl_events,
    reading_connection,
)
from pgrole_controller.postgres.privileges.acl_catalog import ask_facts, facts_of
from pgrole_controller.postgres.privileges.database_session import DatabaseSession
from pgrole_controller.postgres.privileges.ddl_events import PrivilegeRead, Scope
from pgrole_controller.postgres.privileges.searches import UnexplainedWrites
from pgrole_controller.postgres.privileges.stored_state import StoredState, ask_state, read_left_out, read_state
from pgrole_controller.postgres.rows import fetch_row
from tests.integration.database_world import (
    DEADLINE,
    POLICY,
    READ,
    SERVER,
    DatabaseWorkerWorld,
    make_world,
    note_sessions,
)
from tests.integration.test_database_worker import find_nothing
from tests.servers import Servers

WRITE = SchemaAccess("app", frozenset({Access.WRITE, Access.EXECUTE}))


class Tenant:
    """Owns the database and everything in it, and may log in."""

    def __init__(self, world: DatabaseWorkerWorld) -> None:
        self.world, self.name = world, f"{world.database}_mallory"

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[Connection]:
        made = await asyncpg.connect(self.world.server.dsn(self.name, password="m", database=self.world.database))
        try:
            yield made
        finally:
            await made.close()


@pytest_asyncio.fixture(loop_scope="session")
async def tenant(world: DatabaseWorkerWorld) -> AsyncIterator[Tenant]:
    made = Tenant(world)
    await world.home.execute(
        f"CREATE ROLE {made.name} LOGIN PASSWORD 'm'; ALTER DATABASE {world.database} OWNER TO {made.name}"
    )
    await world.hand.execute(f"""
        ALTER SCHEMA app OWNER TO {made.name}; ALTER TABLE app.orders OWNER TO {made.name};
        ALTER TABLE app.items OWNER TO {made.name}; ALTER SCHEMA public OWNER TO {made.name}
    """)
    yield made  # the role lasts as long as this module's server, since it may own very much


#: Records that code ran in a session of the controller, even if that session rolls back.
RECORDING = """
CREATE SCHEMA trap;
CREATE SEQUENCE trap.ran;
GRANT USAGE ON SCHEMA trap TO PUBLIC; GRANT ALL ON SEQUENCE trap.ran TO PUBLIC;
CREATE FUNCTION trap.spring() RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF pg_catalog.current_setting('application_name') ~ '^pgrole' THEN
        PERFORM pg_catalog.nextval('trap.ran'::pg_catalog.regclass);
    END IF;
    RETURN true;
END $$;
CREATE FUNCTION trap.on_row() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM trap.spring(); RETURN NEW; END $$;
"""

#: Functions that shadow those of pg_catalog which the controller calls, with the same arguments.
SHADOWS = """
DO $do$
DECLARE
    one record;
BEGIN
    FOR one IN
        SELECT p.proname, pg_get_function_identity_arguments(p.oid) AS arguments,
               format_type(p.prorettype, NULL) AS result, p.proretset
        FROM pg_proc AS p JOIN pg_type AS r ON r.oid = p.prorettype
        WHERE p.pronamespace = 'pg_catalog'::regnamespace AND p.prokind = 'f' AND r.typtype = 'b'
          AND p.proname IN (
              'acldefault', 'age', 'current_setting', 'decode', 'format', 'format_type', 'getdatabaseencoding',
              'has_schema_privilege', 'has_table_privilege', 'hashint8extended', 'hashtextextended', 'host', 'left',
              'lower', 'oidsend', 'pg_backend_pid', 'pg_column_size', 'pg_current_snapshot', 'pg_get_userbyid',
              'pg_notify', 'pg_snapshot_xmin', 'pg_visible_in_snapshot', 'replace', 'set_config', 'substr',
              'substring', 'textsend',
              'to_hex', 'to_regclass', 'to_regnamespace', 'xidsend', 'quote_ident', 'clock_timestamp', 'now'
          )
          AND pg_get_function_identity_arguments(p.oid) !~ 'any|VARIADIC|internal|cstring'
    LOOP
        EXECUTE format(
            'CREATE FUNCTION public.%I(%s) RETURNS %s%s LANGUAGE plpgsql AS '
            '''BEGIN PERFORM trap.spring(); RETURN%s; END''',
            one.proname, one.arguments, CASE WHEN one.proretset THEN 'SETOF ' ELSE '' END, one.result,
            CASE WHEN one.proretset THEN '' ELSE ' NULL' END
        );
    END LOOP;
    FOR one IN
        SELECT o.symbol, t.name
        FROM unnest(ARRAY['=', '<>', '<', '>=', '<=', '>', '~~', '!~', '!~~', '~', '||']) AS o (symbol)
        CROSS JOIN unnest(ARRAY[
            'name', 'text', 'oid', 'int4', 'int8', 'xid', 'xid8', '"char"', 'bool', 'timestamptz'
        ]) AS t (name)
    LOOP
        EXECUTE format(
            'CREATE OR REPLACE FUNCTION public.compare(%1$s, %1$s) RETURNS boolean LANGUAGE plpgsql AS '
            '''BEGIN RETURN trap.spring(); END''; '
            'CREATE OPERATOR public.%2$s (LEFTARG = %1$s, RIGHTARG = %1$s, FUNCTION = public.compare)',
            one.name, one.symbol
        );
    END LOOP;
    FOR one IN SELECT unnest(ARRAY[
        'pg_class', 'pg_proc', 'pg_namespace', 'pg_database', 'pg_roles', 'pg_authid', 'pg_shdepend', 'pg_attribute',
        'pg_default_acl',
        'pg_event_trigger', 'pg_extension', 'pg_depend', 'pg_db_role_setting', 'pg_listening_channels'
    ]) AS name LOOP
        EXECUTE format('CREATE VIEW public.%I AS SELECT * FROM pg_catalog.pg_am WHERE trap.spring()', one.name);
    END LOOP;
    FOR one IN
        SELECT unnest(ARRAY['oid', 'name', 'text', 'regclass', 'int4', 'bytea', 'pg_snapshot', 'xid8']) AS name
    LOOP
        EXECUTE format('CREATE TYPE public.%I AS ENUM (''x'')', one.name);
        EXECUTE format(
            'CREATE FUNCTION public.cast_%1$s(pg_catalog.%1$s) RETURNS public.%1$s LANGUAGE plpgsql AS '
            '''BEGIN PERFORM trap.spring(); RETURN ''''x''''; END''; CREATE CAST (pg_catalog.%1$s AS public.%1$s) '
            'WITH FUNCTION public.cast_%1$s(pg_catalog.%1$s) AS IMPLICIT', one.name
        );
    END LOOP;
END
$do$;
"""

#: Code on the tables whose privileges are changed.
ON_TABLES = """
CREATE TRIGGER t BEFORE INSERT OR UPDATE OR DELETE ON app.orders FOR EACH ROW EXECUTE FUNCTION trap.on_row();
CREATE RULE r AS ON DELETE TO app.items DO INSTEAD SELECT trap.spring();
ALTER TABLE app.orders ADD COLUMN planted boolean DEFAULT trap.spring();
ALTER TABLE app.orders ENABLE ROW LEVEL SECURITY;
CREATE POLICY p ON app.orders USING (trap.spring());
CREATE VIEW app.seen AS SELECT trap.spring() AS sprung; CREATE DOMAIN app.d AS int CHECK (trap.spring());
CREATE FUNCTION app.called(app.d) RETURNS boolean LANGUAGE sql AS 'SELECT trap.spring()';
"""


async def plant(world: DatabaseWorkerWorld, tenant: Tenant) -> None:
    await world.hand.execute(RECORDING)
    await world.hand.execute(f"SET ROLE {tenant.name}")
    await world.hand.execute(SHADOWS + ON_TABLES)
    await world.hand.execute(f"""
        ALTER DATABASE {world.database} SET search_path = public, pg_catalog;
        ALTER DATABASE {world.database} SET application_name = 'pgrole?';
        ALTER DATABASE {world.database} SET standard_conforming_strings = off;
        ALTER DATABASE {world.database} SET quote_all_identifiers = on;
        ALTER DATABASE {world.database} SET default_transaction_read_only = on;
        RESET ROLE
    """)


async def assert_untouched(world: DatabaseWorkerWorld) -> None:
    assert not await world.hand.fetchval("SELECT is_called FROM trap.ran"), (
        "a tenant's code ran in the controller's session"
    )


async def spring(world: DatabaseWorkerWorld, statement: str) -> None:
    """Shows that the trap records what runs in a session with the controller's name."""
    await world.hand.execute(f"SET application_name = 'pgrole-controller test'; {statement}; RESET application_name")
    assert await world.hand.fetchval("SELECT is_called FROM trap.ran")


async def test_the_controllers_session_runs_no_code_of_the_database_owner(
    world: DatabaseWorkerWorld, tenant: Tenant
) -> None:
    await plant(world, tenant)
    world.declare(READ)
    async with world.working():
        await world.wait_settled()
        await world.hand.execute(f"GRANT UPDATE, DELETE, SELECT (id) ON app.orders TO {world.role}")
        await world.wait_may("UPDATE", "app.orders", expected=False)
        await world.hand.execute(
            f"DO $$ BEGIN EXECUTE 'GRANT INSERT ON ALL TABLES IN SCHEMA app TO {world.role}'; END $$"
        )
        await world.wait_may("INSERT", "app.items", expected=False)
        world.declare(WRITE)
        await world.wait_may("INSERT", "app.seen")
        await world.hand.execute("CREATE TABLE app.more (id app.d); DROP TABLE app.items")
        await world.wait_may("DELETE", "app.more")
        world.declare()
        await world.wait_may("DELETE", "app.more", expected=False)
    await assert_untouched(world)
    await spring(world, "SELECT 1::oid OPERATOR(public.=) 1::oid")


EVENTS = ("ddl_command_start", "ddl_command_end", "sql_drop", "table_rewrite", "login")


async def plant_event_trigger(world: DatabaseWorkerWorld, tenant: Tenant, event: str) -> None:
    await world.hand.execute(f"""
        CREATE FUNCTION trap.on_event() RETURNS event_trigger LANGUAGE plpgsql AS
        'BEGIN PERFORM trap.spring();
        IF current_setting(''application_name'') ~ ''^pgrole'' THEN RAISE ''planted''; END IF; END';
        ALTER FUNCTION trap.on_event OWNER TO {tenant.name};
        CREATE EVENT TRIGGER "planted ""one" ON {event} EXECUTE FUNCTION trap.on_event();
        ALTER EVENT TRIGGER "planted ""one" ENABLE ALWAYS
    """)


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("when", ["before the session", "during the session"])
async def test_event_triggers_of_others_never_run_in_the_controllers_session(
    world: DatabaseWorkerWorld, tenant: Tenant, servers: Servers, event: str, when: str
) -> None:
    if event == "login" and servers.version < 17:
        pytest.skip("exists since 17")
    await world.hand.execute(RECORDING)
    if when == "before the session":
        await plant_event_trigger(world, tenant, event)
    world.declare(READ)
    async with world.working():
        if when == "during the session":
            await world.wait_settled()
            await plant_event_trigger(world, tenant, event)
            await world.hand.execute(f"GRANT UPDATE ON app.orders TO {world.role}")
        if servers.version >= 17:
            await world.wait_may("SELECT", "app.orders")
            await world.wait_may("UPDATE", "app.orders", expected=False)
        else:
            result = await world.wait(lambda result: result.error is not None and "planted" in result.error.message)
            assert result.error is not None
            assert await world.may("UPDATE", "app.orders") is (when == "during the session")
        await assert_untouched(world)
        await world.hand.execute('ALTER EVENT TRIGGER "planted ""one" DISABLE')
        await world.wait_may("SELECT", "app.orders")
        await world.wait_may("UPDATE", "app.orders", expected=False)
    await assert_untouched(world)
    await spring(world, "SELECT trap.spring()")


#: Schema pgrole as a tenant makes it after someone dropped it: whoever reads a relation in it runs the tenant's code.
REPLACED_SCHEMA = """
DROP SCHEMA pgrole CASCADE;
SET ROLE {tenant};
CREATE SCHEMA pgrole;
CREATE TABLE pgrole.turn_to_look ();
CREATE FUNCTION pgrole.ddl_events() RETURNS TABLE (id bigint, at timestamptz, xid xid8, pid integer, login oid,
    session name, acting text, system text, app text, addr inet, port integer, tag text, command text, kind text,
    class oid, object oid, identity text, said text)
LANGUAGE plpgsql AS $$ BEGIN PERFORM trap.spring(); END $$;
CREATE VIEW pgrole.ddl_event AS SELECT e.* FROM pgrole.ddl_events() AS e;
CREATE FUNCTION pgrole.all_applied() RETURNS TABLE (role_oid oid, role_name text, holder text, digest text,
    drift_count bigint, last_drift_at timestamptz, last_drift jsonb, updated_at timestamptz, approve_handled text)
LANGUAGE plpgsql AS $$ BEGIN PERFORM trap.spring(); END $$;
CREATE VIEW pgrole.applied AS SELECT a.* FROM pgrole.all_applied() AS a;
RESET ROLE;
"""


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("cause", ["event", "search", "everything"])
async def test_a_tenant_that_replaces_the_dropped_schema_has_none_of_its_code_run(
    world: DatabaseWorkerWorld, tenant: Tenant, monkeypatch: pytest.MonkeyPatch, cause: str, *, large: bool
) -> None:
    """`large`: complete reads and searches have a connection of their own."""
    monkeypatch.setattr(reading_connection, "LARGE_CATALOGS", 0 if large else 10**12)
    if cause != "search":
        monkeypatch.setattr(database_session, "UNEXPLAINED_SECONDS", 3600.0)
    await world.hand.execute(RECORDING)
    sessions = note_sessions(monkeypatch)
    world.declare(READ)
    async with world.working() as worker:
        await world.wait_settled()
        assert worker.mode is DatabaseMode.EVENTS
        await world.hand.execute(f"GRANT UPDATE ON app.orders TO {world.role}")
        await world.wait_may("UPDATE", "app.orders", expected=False)
        await world.hand.execute(REPLACED_SCHEMA.format(tenant=tenant.name))
        if cause == "event":
            await world.hand.execute("NOTIFY pgrole, 'x'")
        elif cause == "everything":
            worker.note_everything()

        async def ended() -> bool:
            return worker.trouble is not None or len(sessions) > 1

        assert await reached(ended, DEADLINE)
        await assert_untouched(world)
    await assert_untouched(world)
    await spring(world, "SELECT count(*) FROM pgrole.ddl_event")


@asynccontextmanager
async def neighbours(world: DatabaseWorkerWorld) -> AsyncIterator[DatabaseWorkerWorld]:
    """Another database on the same server, with a worker of its own in the same process."""
    async with make_world(world.server) as beside:
        beside.declare(READ)
        async with beside.working():
            await beside.wait_settled()
            yield beside


async def check_repairs(*worlds: DatabaseWorkerWorld, table: str = "app.orders") -> None:
    for one in worlds:
        await one.hand.execute(f"GRANT UPDATE ON {table} TO {one.role}")
        await one.wait_may("UPDATE", table, expected=False)


FORGED = ("''", "'ddl'", "'{}'", "'greeting'", "repeat('x', 7999)", "E'\\x01\\x7f\\n'", "'pgrole.ddl_event'")


async def test_forged_notifications_delay_no_repair(world: DatabaseWorkerWorld, tenant: Tenant) -> None:
    world.declare(READ)
    async with world.working(), neighbours(world) as beside, anyio.create_task_group() as tasks:
        await world.wait_settled()
        count = world.result.drift_count if world.result else 0

        async def forge() -> None:
            async with tenant.connected() as session:
                while True:
                    await session.execute(";".join(f"SELECT pg_notify('pgrole', {text})" for text in FORGED))

        tasks.start_soon(forge)
        tasks.start_soon(forge)
        await check_repairs(world, beside, world, beside)
        tasks.cancel_scope.cancel()
    assert world.result is not None
    assert world.result.drift_count == count + 2


FLOODS = {
    "grants in one transaction": """
        DO $$ BEGIN FOR n IN 1 .. 5000 LOOP
            EXECUTE 'GRANT SELECT ON app.items TO PUBLIC'; EXECUTE 'REVOKE SELECT ON app.items FROM PUBLIC';
        END LOOP; END $$
    """,
    "grants in a transaction that is rolled back": """
        BEGIN;
        DO $$ BEGIN FOR n IN 1 .. 2000 LOOP EXECUTE 'GRANT SELECT ON app.items TO PUBLIC'; END LOOP; END $$; ROLLBACK
    """,
    "tables": """
        DO $$ BEGIN FOR n IN 1 .. {number} LOOP EXECUTE format('CREATE TABLE app.flood_%s ()', n); END LOOP; END $$
    """,
    "schemas": """
        DO $$ BEGIN FOR n IN 1 .. {number} LOOP EXECUTE format('CREATE SCHEMA flood_%s', n); END LOOP; END $$
    """,
    "a statement of 1 MB": "GRANT SELECT ON app.items TO PUBLIC /* {megabyte} */",
    "a statement with many names": "GRANT SELECT ON {names} TO PUBLIC",
    "what looks like another statement": "GRANT SELECT ON app.items TO PUBLIC; -- grant select on app.orders to nobody",
    "a name of 63 bytes that is SQL": (
        'CREATE TABLE app."x\'); DROP TABLE app.orders; -- \n\x1b[31m {sixty}" (); GRANT SELECT ON app.items TO PUBLIC'
    ),
    "an application's name": (
        "SET application_name = E'\\u00e9\\x01\\n\\\\x''; DROP'; GRANT SELECT ON app.items TO PUBLIC;"
        "RESET application_name"
    ),
}
SLOW = ("tables", "schemas")


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in FLOODS if name not in SLOW])
async def test_a_flood_of_events_stops_no_other_repair(world: DatabaseWorkerWorld, tenant: Tenant, name: str) -> None:
    await attack(world, tenant, FLOODS[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
async def test_a_flood_of_objects_stops_no_other_repair(world: DatabaseWorkerWorld, tenant: Tenant, name: str) -> None:
    await attack(world, tenant, FLOODS[name], times=12)


async def attack(world: DatabaseWorkerWorld, tenant: Tenant, flood: str, times: int = 1) -> None:
    text = (
        flood.replace("{number}", "1000")
        .replace("{megabyte}", "x" * (1 << 20))
        .replace("{names}", ", ".join(["app.items"] * 1_000))
        .replace("{sixty}", "y" * 20)
    )
    world.declare(READ)
    async with world.working(), neighbours(world) as beside, tenant.connected() as session:
        await world.wait_settled()
        ended = anyio.Event()

        async def flooding() -> None:
            for number in range(times):
                await session.execute(text.replace("flood_%s", f"flood_{number}_%s"))
            ended.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(flooding)
            await check_repairs(world, beside)
            await ended.wait()
        await check_repairs(world, beside)
        result = await world.wait_settled()
        for _, note in world.news():
            assert note.isprintable(), note
            note.encode()
        assert result.error is None
        if times > 1 and "TABLE" in flood:
            await world.wait_may("SELECT", f"app.flood_{times - 1}_1000")


#: A setting of any role that may log in: as long as PostgreSQL permits, though it compresses well.
GIANT_SETTING = """
    DO $$ BEGIN EXECUTE 'ALTER ROLE CURRENT_USER SET search_path = ''' || repeat('a', 300000000) || ''''; END $$
"""

#: What ALTER ROLE … IN DATABASE would store after compressing the setting once more.
SAME_IN_DATABASE = """
    INSERT INTO pg_db_role_setting
    SELECT d.oid, s.setrole, s.setconfig FROM pg_db_role_setting AS s, pg_database AS d
    WHERE s.setrole = $1::regrole AND s.setdatabase = 0 AND d.datname = $2
"""


@pytest.mark.slow
async def test_giant_settings_of_roles_stop_no_repair(
    world: DatabaseWorkerWorld, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading them would take longer than the timeout."""
    monkeypatch.setitem(session_settings.PINNED, "statement_timeout", "2s")
    world.declare(READ)
    async with tenant.connected() as session:
        await session.execute(GIANT_SETTING, timeout=600)
    await world.home.execute(SAME_IN_DATABASE, tenant.name, world.database)
    async with world.working():
        await check_repairs(world, world)
    await world.home.execute(f"ALTER ROLE {tenant.name} RESET ALL")
    await world.home.execute(f"ALTER ROLE {tenant.name} IN DATABASE {world.database} RESET ALL")


FORBIDDEN = (
    "INSERT INTO pgrole.ddl_event (xid, pid, session, acting, app, tag, command) VALUES ('1', 1, '', '', '', '', '')",
    "UPDATE pgrole.ddl_event SET app = ''",
    "DELETE FROM pgrole.ddl_event",
    "TRUNCATE pgrole.ddl_event",
    "SELECT count(*) FROM pgrole.ddl_event",
    "DO $$ BEGIN LOCK TABLE pgrole.ddl_event IN ACCESS SHARE MODE; END $$",
    "DROP TABLE pgrole.ddl_event",
    "CREATE RULE r AS ON INSERT TO pgrole.ddl_event DO INSTEAD NOTHING",
    "CREATE TABLE pgrole.mine ()",
    "CREATE TABLE mine () INHERITS (pgrole.ddl_event)",
    "SELECT pgrole.prune_events()",
    "SELECT pgrole.on_ddl()",
    "SELECT pgrole.lock_changes()",
    "SELECT pgrole.store_applied(1, 'x', 'x', 'x')",
    "DELETE FROM pgrole.applied",
    "UPDATE pgrole.leader SET number = 1",
    "ALTER EVENT TRIGGER pgrole_on_ddl DISABLE",
    "DROP SCHEMA pgrole CASCADE",
    "ALTER SCHEMA pgrole RENAME TO gone",
    "ALTER EXTENSION plpgsql ADD SCHEMA pgrole",
)


async def test_the_database_owner_cannot_access_the_controllers_schema(
    world: DatabaseWorkerWorld, tenant: Tenant
) -> None:
    """Even if default privileges were set before the installation."""
    await world.hand.execute(f"""
        ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO {tenant.name};
        ALTER DEFAULT PRIVILEGES GRANT ALL ON FUNCTIONS TO {tenant.name};
        ALTER DEFAULT PRIVILEGES GRANT ALL ON SEQUENCES TO {tenant.name};
        ALTER DEFAULT PRIVILEGES GRANT ALL ON SCHEMAS TO {tenant.name}
    """)
    world.declare(READ)
    async with world.working(), tenant.connected() as session:
        await world.wait_settled()
        reached_by = []
        for statement in FORBIDDEN:
            try:
                await session.execute(statement)
            except (asyncpg.InsufficientPrivilegeError, asyncpg.FeatureNotSupportedError, asyncpg.SyntaxOrAccessError):
                continue
            reached_by.append(statement)
    assert not reached_by


async def test_no_grant_is_hidden_by_calls_so_deep_that_its_event_trigger_fails(
    world: DatabaseWorkerWorld, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(UnexplainedWrites, "ask", find_nothing)
    await world.hand.execute(f"""
        CREATE FUNCTION app.deep(n int, said text) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN
            IF n <= 0 THEN EXECUTE said; RETURN true; END IF;
            RETURN app.deep(n - 1, said);
        END $$; ALTER FUNCTION app.deep OWNER TO {tenant.name}
    """)
    world.declare(READ)
    async with world.working(), tenant.connected() as session:
        await world.wait_settled()
        low, high = 0, 20_000
        while high - low > 1:
            middle = (low + high) // 2
            try:
                await session.execute(f"SELECT app.deep({middle}, 'GRANT SELECT ON app.items TO PUBLIC')")
                low = middle
            except asyncpg.StatementTooComplexError:
                high = middle
        events = "SELECT count(*) FROM pgrole.ddl_event WHERE tag = 'GRANT'"
        before = await world.hand.fetchval(events)
        for depth in range(low, low - 12, -1):
            await session.execute(f"SELECT app.deep({depth}, 'GRANT SELECT ON app.items TO PUBLIC')")
        assert await world.hand.fetchval(events) == before + 12
        await session.execute(f"SELECT app.deep({low - 12}, 'GRANT UPDATE ON app.orders TO {world.role}')")
        await world.wait_may("UPDATE", "app.orders", expected=False)


async def test_a_contest_with_one_owner_delays_no_repair_of_another_owners_objects(
    world: DatabaseWorkerWorld, tenant: Tenant
) -> None:
    await world.hand.execute("CREATE TABLE app.safe (id int)")
    world.declare(READ)
    async with world.working(), tenant.connected() as session:
        await world.wait_settled()
        for _ in range(5):
            count = world.result.drift_count if world.result else 0
            await session.execute(f"GRANT UPDATE ON app.orders TO {world.role}")
            await world.wait_more_drifts(count)
        await session.execute(f"GRANT UPDATE ON app.orders TO {world.role}")
        result = await world.wait(lambda result: result.error is not None)
        assert result.error is not None
        assert result.error.reason is Reason.CONTESTED
        assert tenant.name in result.error.message
        await check_repairs(world, table="app.safe")
        assert await world.may("UPDATE", "app.orders"), "it was repaired too early: the test shows nothing"
        await world.wait_may("UPDATE", "app.orders", expected=False)


async def test_events_are_pruned_during_the_session(
    world: DatabaseWorkerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_session, "PRUNE_SECONDS", 0.1)
    world.declare(READ)
    async with world.working():
        await world.wait_settled()
        too_many = 100_000 + 3 * ddl_events.PRUNED_AT_ONCE
        await world.hand.execute(f"""
            INSERT INTO pgrole.ddl_event (xid, pid, session, acting, app, tag, command)
            SELECT '1', 1, '', '', '', '', '' FROM generate_series(1, {too_many})
        """)

        async def is_pruned() -> bool:
            return bool(await world.hand.fetchval("SELECT count(*) <= 100000 FROM pgrole.ddl_event"))

        assert await reached(is_pruned, DEADLINE)


_COLUMNS = ", ".join(f"c{n:04}{'x' * 58}" for n in range(1500))

#: What a tenant can create and grant to exceed the limit on the answer to one statement: 256 KiB here, since PostgreSQL
#: takes long to revoke what exceeds 16 MiB (see test_acl_catalog.py). No row of theirs holds two of these objects.
BULKS = {
    "many schemas": """
        DO $do$ BEGIN FOR n IN 1 .. 400 LOOP
            EXECUTE format('CREATE SCHEMA m%s', n);
            EXECUTE format('CREATE FUNCTION m%s.f() RETURNS int LANGUAGE sql AS $$ SELECT 1 $$', n);
            EXECUTE format('GRANT EXECUTE ON FUNCTION m%s.f() TO {role}', n);
        END LOOP; END $do$
    """,
    "wide tables": f"""
        DO $do$ BEGIN FOR n IN 1 .. 3 LOOP
            EXECUTE format('CREATE TABLE m.t%s ({_COLUMNS.replace(",", " bool,")} bool)', n);
            EXECUTE format(
                'GRANT SELECT ({_COLUMNS}), INSERT ({_COLUMNS}), UPDATE ({_COLUMNS}), REFERENCES ({_COLUMNS}) ON m.t%s '
                'TO {{role}}', n
            );
        END LOOP; END $do$
    """,
}


@pytest.mark.parametrize("bulk", BULKS)
async def test_content_too_large_for_one_answer_stops_no_other_repair(
    world: DatabaseWorkerWorld, tenant: Tenant, bulk: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.config = replace(world.config, endpoint=Endpoint(world.server.dsn(), volume=256 << 10))
    world.declare(READ)
    world.declare_other(READ)
    async with tenant.connected() as session:
        await session.execute(f"CREATE SCHEMA m; GRANT USAGE ON SCHEMA m TO {world.role}")
        await session.execute(BULKS[bulk].replace("{role}", world.role))
    await check_exceeds_one_answer(world)
    monkeypatch.setattr(answer_pages, "PAGE_BYTES", 64 << 10)
    async with world.working():
        for _ in range(2):
            await world.hand.execute(f"GRANT UPDATE ON app.orders TO {world.other}")
            await world.wait_may("UPDATE", "app.orders", expected=False, role=world.other)
        await world.wait_settled()
    held = """
        SELECT count(*) FROM pg_shdepend AS s JOIN pg_database AS d ON d.oid = s.dbid AND d.datname = current_database()
        WHERE s.refobjid = $1 AND s.deptype = 'a' AND s.objid >= 'm'::regnamespace
    """
    assert await world.hand.fetchval(held, world.oid) == 0


#: What a tenant can create to end the session: objects whose oids together look like an array, and an extension with
#: more members than fit in a row, which is smaller here.
CRAFTED = {
    "large objects": """
        SELECT lo_create(n) FROM generate_series(1, 6) AS n;
        GRANT SELECT ON LARGE OBJECT 1, 2, 3, 4, 5, 6 TO {role}
    """,
    "members of an extension": """
        SET allow_system_table_mods = on;
        INSERT INTO pg_depend (classid, objid, objsubid, refclassid, refobjid, refobjsubid, deptype)
        SELECT 'pg_proc'::regclass, 3000000000 + n, 0, 'pg_extension'::regclass, e.oid, 0, 'e'
        FROM pg_extension AS e, generate_series(1, 40000) AS n
        WHERE e.extname = 'plpgsql'
    """,
}


@pytest.mark.parametrize("crafted", CRAFTED)
async def test_crafted_objects_stop_no_repair(
    world: DatabaseWorkerWorld, tenant: Tenant, crafted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(framing._LONGEST, ord("D"), 100 << 10)
    monkeypatch.setattr(answer_pages, "PAGE_BYTES", 200 << 10)
    script = CRAFTED[crafted].format(role=world.role)
    if "pg_depend" in script:
        await world.hand.execute(f"{script}; RESET allow_system_table_mods")
    else:
        async with tenant.connected() as session:
            await session.execute(script)
    world.declare(READ)
    async with world.working() as worker:
        await world.wait_may("SELECT", "app.orders")
        await world.hand.execute(f"GRANT UPDATE ON app.orders TO {world.role}")
        await world.wait_may("UPDATE", "app.orders", expected=False)
        assert worker.trouble is None


async def check_exceeds_one_answer(world: DatabaseWorkerWorld) -> None:
    """What the role holds does not fit into one answer; the limit on pages is still higher than that on answers."""
    endpoint = replace(world.config.endpoint or Endpoint(""), dsn=world.server.dsn(database=world.database))
    async with connect(endpoint, "test") as connection:
        with pytest.raises(PgRoleError, match="the answer to one statement is larger than"):
            await acl_catalog.read_database(connection, [world.oid], (), lambda *_: False, lambda _: False)


async def test_roles_for_which_very_much_is_stored_stop_no_other_repair(
    world: DatabaseWorkerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One namespace declares privileges on many missing tables for many roles. What waits is stored for each role."""
    monkeypatch.setitem(framing._LONGEST, ord("D"), 32 << 10)
    number, missing = 16, [tuple(f"missing_{i}_{j}" for j in range(128)) for i in range(4)]
    objects = tuple(ObjectPrivileges(ObjectKind.TABLE, "app", names, frozenset({"SELECT"})) for names in missing)
    declared = {world.database: DatabasePrivileges(world.database, objects=objects)}
    roles = [f"{world.database}_{i}" for i in range(number)]
    await world.home.execute("; ".join(f"CREATE ROLE {role}" for role in roles))
    oids = await world.home.fetch("SELECT oid, rolname FROM pg_roles WHERE rolname = ANY ($1)", roles)
    world.declare(READ)
    async with world.working() as worker:
        await world.wait_settled()
        for oid, role in oids:
            key = Key("mallory", role)
            world.grantees.publish(SERVER, Grantee(key, f"uid-{role}", 1, role, oid, declared, policy=POLICY))

        async def are_stored() -> bool:
            query = "SELECT count(*) FROM pgrole.applied WHERE octet_length(digest) > 4500"
            return bool(await world.hand.fetchval(query) == number)

        assert await reached(are_stored, DEADLINE), worker.trouble
        await world.hand.execute(f"GRANT UPDATE ON app.orders TO {world.role}, {roles[0]}")
        await world.wait_may("UPDATE", "app.orders", expected=False)
        await world.wait_may("UPDATE", "app.orders", expected=False, role=roles[0])
        worker.note_everything()
        await world.hand.execute(f"GRANT DELETE ON app.orders TO {world.role}")
        await world.wait_may("DELETE", "app.orders", expected=False)
        await world.hand.execute("CREATE TABLE app.missing_0_0 ()")
        await world.wait_may("SELECT", "app.missing_0_0", role=roles[1])
        await world.wait_settled()
        assert worker.trouble is None
    assert [await world.count_drifts(role) for role in (world.role, *roles[:2])] == [2, 1, 0]
    await world.hand.execute("; ".join(f"DROP OWNED BY {role}; DROP ROLE {role}" for role in roles))


async def test_names_that_are_not_utf8_stop_no_other_repair(
    world: DatabaseWorkerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A declared role that someone renamed, the role that grants to all, and a search_path that any role may store."""
    sessions = note_sessions(monkeypatch)
    latin, names = f"latin_{world.database}", [f"\xe9{world.database}\xe9", f"\xea{world.database}\xe9"]
    await world.home.execute(f"CREATE DATABASE {latin} TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'")
    there = await asyncpg.connect(world.server.dsn(database=latin))
    oids = []
    for name in names:
        await there.execute(f'CREATE ROLE "{name}"')
        oids.append(await there.fetchval("SELECT oid FROM pg_roles WHERE rolname = $1", name))
    await there.execute(f'ALTER ROLE "{names[0]}" SET search_path = "\xe9", "x\xe9"')
    await there.close()
    await world.hand.execute(f"DROP DATABASE {latin}")
    role, giver = (f"(SELECT rolname FROM pg_roles WHERE oid = {oid})" for oid in oids)
    renamed = names[0].encode("latin-1").decode(errors="surrogateescape")
    declared = {world.database: DatabasePrivileges(world.database, schemas=(READ,))}
    await world.hand.execute(f"""
        DO $$ BEGIN
            EXECUTE format('GRANT ALL ON SCHEMA app TO %I', {giver});
            EXECUTE format('GRANT DELETE ON app.orders TO %I WITH GRANT OPTION', {giver});
        END $$
    """)
    world.declare(READ)
    world.grantees.publish(SERVER, Grantee(Key("mallory", "a"), "uid-2", 1, renamed, oids[0], declared, policy=POLICY))
    async with world.working() as worker:
        await world.wait_may("SELECT", "app.orders")
        await world.wait_settled()
        for to in (role, f"'{world.role}'"):
            await world.hand.execute(f"""
                DO $$ BEGIN
                    EXECUTE format('SET LOCAL ROLE %I', {giver});
                    EXECUTE format('GRANT DELETE ON app.orders TO %I', {to});
                    CREATE TABLE IF NOT EXISTS app.mine ();
                    EXECUTE format('GRANT UPDATE ON app.mine TO %I', {to});
                    EXECUTE format('ALTER DEFAULT PRIVILEGES GRANT UPDATE ON TABLES TO %I', {to});
                END $$
            """)
        held = f"""
            SELECT count(*)
            FROM (SELECT relacl FROM pg_class UNION ALL SELECT defaclacl FROM pg_default_acl) AS c (acl)
            CROSS JOIN aclexplode(c.acl)
            WHERE grantee IN ({oids[0]}, {world.oid}) AND privilege_type IN ('DELETE', 'UPDATE')
        """

        async def are_revoked() -> bool:
            return not await world.hand.fetchval(held)

        assert await reached(are_revoked, DEADLINE), worker.trouble
        await world.wait_settled()
    assert len(sessions) == 1
    assert await world.count_drifts(f"\\xe9{world.database}\\xe9") > 0
    await world.hand.execute(f"""
        DO $$ BEGIN
            EXECUTE format('DROP OWNED BY %I, %I', {role}, {giver});
            EXECUTE format('DROP ROLE %I, %I', {role}, {giver});
        END $$
    """)


async def test_what_is_stored_about_all_roles_is_read_in_parts(world: DatabaseWorkerWorld) -> None:
    stored = "INSERT INTO pgrole.applied (role_oid, role_name, holder, digest) SELECT i, i, 'uid', {} FROM {} AS s (i)"
    await world.hand.execute(stored.format("repeat('s', 900)", "generate_series(1, 2000)"))
    await world.hand.execute(stored.format("repeat('l', 5000)", "generate_series(2001, 2003)"))
    async with connect(Endpoint(world.server.dsn(database=world.database)), "test") as connection:
        for roles, in_row in (([1, 2, 2002, 2099], [1, 2]), ([*range(1, 2100)], [])):
            question = ask_state(roles, "postgres", stores=True)
            row = await fetch_row(connection, question.question, *question.arguments)
            state = StoredState.of(row, stores=True)
            assert [role for role in roles if state.find(role)] == in_row
            state = await read_left_out(connection, state, [1, 2002, 2099])
            found = [state.find(role) for role in (1, 2002, 2003, 2099)]
            known = [one and (one.holder, len(one.declaration)) for one in found]
            assert known == [("uid", 900), ("uid", 5000), None, None]
        state = await read_state(connection, [*range(1, 2100)], "postgres", stores=True)
        assert all(state.find(role) for role in range(1, 2004))
        assert not state.suspended


async def test_a_grant_on_more_objects_than_fit_in_a_row_is_revoked(
    world: DatabaseWorkerWorld, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With smaller limits: a row has place for 100 functions, and a portion of a complete read has 50."""
    monkeypatch.setitem(framing._LONGEST, ord("D"), 8 << 10)
    monkeypatch.setattr(acl_catalog, "PORTION_OBJECTS", 50)
    text = queries.privileges

    def limited(name: str, *, objects: str = "", raw: bool = False) -> str:
        return text(name, objects=objects, raw=raw).replace("3600000", "7200")

    monkeypatch.setattr(queries, "privileges", limited)
    sessions, reads = note_sessions(monkeypatch), list[PrivilegeRead]()
    read = DatabaseSession.read

    async def note_read(
        session: DatabaseSession, roles: Any, reach: Any, to_read: PrivilegeRead, *a: Any, **o: Any
    ) -> Any:
        reads.append(to_read)
        return await read(session, roles, reach, to_read, *a, **o)

    monkeypatch.setattr(DatabaseSession, "read", note_read)
    world.declare(READ)
    world.declare_other(READ)
    async with world.working(), tenant.connected() as session:
        await session.execute(f"""
            DO $$ BEGIN FOR n IN 1 .. 200 LOOP
                EXECUTE format('CREATE FUNCTION app.%s() RETURNS int LANGUAGE sql RETURN 1', rpad('f' || n, 60, '_'));
            END LOOP; END $$;
            GRANT USAGE ON SCHEMA app TO {world.role}
        """)
        await world.wait_settled()
        await world.wait_other_settled()
        reads.clear()
        function = "app." + "f200".ljust(60, "_") + "()"
        held = f"SELECT has_function_privilege('{world.role}', '{function}', 'EXECUTE')"
        await session.execute("REVOKE ALL ON ALL FUNCTIONS IN SCHEMA app FROM PUBLIC")
        await session.execute(f"GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA app TO {world.role}")

        async def is_revoked() -> bool:
            return not await world.hand.fetchval(held)

        assert await reached(is_revoked, DEADLINE), world.result
        await world.wait(lambda result: result.drift_count > 0 and result.error is None)
        assert Scope.RECENT in {to_read.scope for to_read in reads}
        assert len(sessions) == 1, "the read ended the session"


async def test_search_paths_of_many_routines_fit_beside_other_answers(
    world: DatabaseWorkerWorld, tenant: Tenant
) -> None:
    async with tenant.connected() as session:
        await session.execute(f"""
            DO $$ BEGIN FOR n IN 1 .. 1000 LOOP
                EXECUTE format('CREATE FUNCTION app.f%s() RETURNS int LANGUAGE sql SET search_path = x%1$s', n)
                    || repeat(', "{chr(0x1F600) * 15}"', 150) || ' RETURN 1';
            END LOOP; END $$
        """)
    async with connect(Endpoint(world.server.dsn(database=world.database)), "test") as connection:
        question = ask_facts(connection, (), search_paths=True)
        row = await fetch_row(connection, question.question, *question.arguments)
        assert sum(len(path) for path in row.some("search_paths", bytes)) <= 2_000_000
        assert facts_of(row)[0].search_paths_cut
