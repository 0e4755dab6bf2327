"""sql/install: `observe()` detects and notifies every change of a role, and writes nothing without a change."""

from collections.abc import AsyncIterator

import anyio
import asyncpg
import pytest
import pytest_asyncio

from pgrole_controller.local.postgres import PostgresServer
from pgrole_controller.postgres import queries
from pgrole_controller.postgres.connection import Connection
from pgrole_controller.postgres.schema import SchemaState, install
from tests.integration.sql_support import DEADLINE, MISMATCHES, NotificationListener, listening, role_oid, seen_home
from tests.servers import Servers

CHANGES = {
    "login": "ALTER ROLE subject LOGIN",
    "superuser": "ALTER ROLE subject SUPERUSER",
    "createdb": "ALTER ROLE subject CREATEDB",
    "createrole": "ALTER ROLE subject CREATEROLE",
    "noinherit": "ALTER ROLE subject NOINHERIT",
    "replication": "ALTER ROLE subject REPLICATION",
    "bypassrls": "ALTER ROLE subject BYPASSRLS",
    "connection limit": "ALTER ROLE subject CONNECTION LIMIT 5",
    "valid until": "ALTER ROLE subject VALID UNTIL '2031-01-01'",
    "password": "ALTER ROLE subject PASSWORD 'secret'",
    "membership": "GRANT pg_monitor TO subject",
    "admin option": "GRANT pg_read_all_data TO subject WITH ADMIN OPTION",
    "inherit option": "GRANT pg_monitor TO subject WITH INHERIT TRUE",
    "set option": "GRANT pg_monitor TO subject WITH SET FALSE",
    "revoked membership": "REVOKE pg_monitor FROM subject",
    "parameter": "ALTER ROLE subject SET work_mem = '8MB'",
    "another value": "ALTER ROLE subject SET work_mem = '9MB'",
    "reset parameter": "ALTER ROLE subject RESET work_mem",
    "a long value": f"ALTER ROLE subject SET search_path = '{'a' * 10_000}'",
    "another one of the same length": f"ALTER ROLE subject SET search_path = '{'b' * 10_000}'",
    "a shorter one": "ALTER ROLE subject SET search_path = 'b'",
    "parameter in a database": "ALTER ROLE subject IN DATABASE postgres SET work_mem = '8MB'",
    "reset in a database": "ALTER ROLE subject IN DATABASE postgres RESET ALL",
    "comment": "COMMENT ON ROLE subject IS 'first'",
    "another comment": "COMMENT ON ROLE subject IS 'second'",
    "no comment": "COMMENT ON ROLE subject IS NULL",
}
#: Those that only PostgreSQL 16 and later have.
OPTIONS = {"inherit option", "set option"}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def server(servers: Servers) -> AsyncIterator[PostgresServer]:
    async with servers.run(settings={"autovacuum": "off"}) as own:
        yield own


@pytest_asyncio.fixture(loop_scope="session")
async def home(server: PostgresServer) -> AsyncIterator[Connection]:
    """A superuser in the home database, with a new schema pgrole where everything has been observed."""
    async with seen_home(server.dsn(), after="DROP ROLE IF EXISTS subject, renamed, other") as made:
        yield made


@pytest_asyncio.fixture(loop_scope="session")
async def listener(server: PostgresServer, home: Connection) -> AsyncIterator[NotificationListener]:
    async with listening(server.dsn()) as made:
        yield made


async def observe(connection: Connection) -> str:
    return str(await connection.fetchval("SELECT pgrole.observe()"))


async def test_every_kind_of_change_of_a_role_is_notified_once_with_its_name_and_oid(
    servers: Servers, home: Connection, listener: NotificationListener
) -> None:
    await home.execute("CREATE ROLE subject")
    oid = await role_oid(home, "subject")
    await observe(home)
    assert await listener.so_far() == [{"op": "insert", "oid": oid, "name": "subject"}]
    for what, statement in CHANGES.items():
        if what in OPTIONS and servers.version < 16:
            continue
        await home.execute(statement)
        await observe(home)
        assert await listener.so_far() == [{"op": "update", "oid": oid, "name": "subject"}], what
        assert await home.fetch(MISMATCHES) == [], what
    await home.execute("ALTER ROLE subject RENAME TO renamed")
    await observe(home)
    assert await listener.so_far() == [{"op": "update", "oid": oid, "name": "renamed", "was": "subject"}]
    await home.execute("DROP ROLE renamed")
    await observe(home)
    assert await listener.so_far() == [{"op": "delete", "oid": oid, "name": "renamed"}]
    assert await home.fetch(MISMATCHES) == []


async def test_a_role_recreated_between_two_observations_is_notified_as_delete_and_insert(
    home: Connection, listener: NotificationListener
) -> None:
    await home.execute("CREATE ROLE subject")
    before = await role_oid(home, "subject")
    await observe(home)
    await home.execute("DROP ROLE subject; CREATE ROLE subject")
    after = await role_oid(home, "subject")
    await listener.so_far()
    await observe(home)
    told = await listener.so_far()
    assert {(message["op"], message["oid"]) for message in told} == {("delete", before), ("insert", after)}


async def test_a_revoked_and_a_granted_membership_between_two_observations_are_both_notified(
    home: Connection, listener: NotificationListener
) -> None:
    await home.execute("CREATE ROLE subject; CREATE ROLE other; GRANT pg_monitor TO subject")
    await observe(home)
    await listener.so_far()
    await home.execute("REVOKE pg_monitor FROM subject; GRANT pg_monitor TO other")
    await observe(home)
    assert {message["name"] for message in await listener.so_far()} == {"subject", "other"}


async def test_nothing_is_written_or_notified_without_a_change(
    home: Connection, listener: NotificationListener
) -> None:
    await home.execute("SELECT pg_current_xact_id()")
    async with home.transaction():
        seen = await observe(home)
        assert await home.fetchval("SELECT pg_current_xact_id_if_assigned()") is None
        assert seen == await home.fetchval("SELECT pg_current_snapshot()::text")
    assert await listener.so_far() == []


async def test_a_change_undone_and_repeated_between_two_observations_is_notified(
    home: Connection, listener: NotificationListener
) -> None:
    """Otherwise a controller that repaired the role after the first change would miss the second one."""
    await home.execute("CREATE ROLE subject")
    await observe(home)
    await home.execute("ALTER ROLE subject CREATEDB")
    await observe(home)
    await listener.so_far()
    await home.execute("ALTER ROLE subject NOCREATEDB")
    await home.execute("ALTER ROLE subject CREATEDB")
    await observe(home)
    assert [message["name"] for message in await listener.so_far()] == ["subject"]


async def test_a_full_pass_also_notifies_a_change_that_was_undone_and_repeated(
    home: Connection, listener: NotificationListener
) -> None:
    await home.execute("CREATE ROLE subject CREATEDB")
    await observe(home)
    await listener.so_far()
    await home.execute("ALTER ROLE subject NOCREATEDB")
    await home.execute("ALTER ROLE subject CREATEDB")
    await home.execute("SELECT pgrole.observe(true)")
    assert [message["name"] for message in await listener.so_far()] == ["subject"]


async def test_valid_until_infinity_is_the_same_as_none(home: Connection) -> None:
    await home.execute("CREATE ROLE subject")
    await observe(home)
    digest = await home.fetchval("SELECT digest FROM pgrole.role_state WHERE name = 'subject'")
    await home.execute("ALTER ROLE subject VALID UNTIL 'infinity'")
    await observe(home)
    assert digest == await home.fetchval("SELECT digest FROM pgrole.role_state WHERE name = 'subject'")


async def test_vacuum_full_of_the_catalogs_causes_no_notification(
    home: Connection, listener: NotificationListener
) -> None:
    await home.execute("CREATE ROLE subject; GRANT pg_monitor TO subject; COMMENT ON ROLE subject IS 'c'")
    await observe(home)
    await listener.so_far()
    for catalog in ("pg_authid", "pg_auth_members", "pg_db_role_setting", "pg_shdescription"):
        await home.execute(f"VACUUM (FULL, FREEZE) {catalog}")
    await observe(home)
    assert await listener.so_far() == []
    await home.execute("ALTER ROLE subject CREATEDB")
    await observe(home)
    assert [message["name"] for message in await listener.so_far()] == ["subject"]


async def test_more_than_100_changed_roles_cause_one_notification(
    home: Connection, listener: NotificationListener
) -> None:
    for count, told in ((100, 100), (101, 1)):
        await home.execute(f"DO $$ BEGIN FOR i IN 1..{count} LOOP EXECUTE 'CREATE ROLE many_' || i; END LOOP; END $$")
        await observe(home)
        heard = await listener.so_far()
        assert len(heard) == told
        assert (heard == [{"op": "many"}]) is (told == 1)
        await home.execute(f"DO $$ BEGIN FOR i IN 1..{count} LOOP EXECUTE 'DROP ROLE many_' || i; END LOOP; END $$")
        await observe(home)
        assert len(await listener.so_far()) == told
    assert await home.fetch(MISMATCHES) == []


#: For each catalog, statements that create a row, change it, and change it back.
UPDATES = {
    "pg_authid": ("ALTER ROLE {} NOCREATEDB", "ALTER ROLE {} CREATEDB", "ALTER ROLE {} NOCREATEDB"),
    "pg_auth_members": (
        "GRANT pg_monitor TO {}",
        "GRANT pg_monitor TO {} WITH ADMIN OPTION",
        "REVOKE ADMIN OPTION FOR pg_monitor FROM {}",
    ),
    "pg_db_role_setting": (
        "ALTER ROLE {} SET work_mem = '8MB'",
        "ALTER ROLE {} SET work_mem = '9MB'",
        "ALTER ROLE {} SET work_mem = '8MB'",
    ),
    "pg_shdescription": (
        "COMMENT ON ROLE {} IS 'first'",
        "COMMENT ON ROLE {} IS 'second'",
        "COMMENT ON ROLE {} IS 'first'",
    ),
}


@pytest.mark.parametrize("catalog", UPDATES)
async def test_a_transaction_with_a_lower_id_that_commits_later_is_not_missed(
    server: PostgresServer, home: Connection, listener: NotificationListener, catalog: str
) -> None:
    make, change, undo = UPDATES[catalog]
    await home.execute("CREATE ROLE subject; CREATE ROLE other")
    await home.execute(f"{make.format('subject')}; {make.format('other')}")
    early = await asyncpg.connect(server.dsn())
    try:
        for _ in range(3):
            late = early.transaction()
            await late.start()
            await early.execute("SELECT pg_current_xact_id()")
            await home.execute(change.format("other"))
            await observe(home)
            await early.execute(change.format("subject"))
            await observe(home)
            await listener.so_far()
            await late.commit()
            await observe(home)
            assert [message["name"] for message in await listener.so_far()] == ["subject"]
            await home.execute(f"{undo.format('other')}; {undo.format('subject')}")
            await observe(home)
    finally:
        await early.close()


async def test_a_change_after_an_observation_in_the_same_transaction_is_not_missed(
    home: Connection, listener: NotificationListener
) -> None:
    await home.execute("CREATE ROLE subject")
    await observe(home)
    await listener.so_far()
    async with home.transaction():
        await home.execute("ALTER ROLE subject CREATEDB")
        await observe(home)
        await home.execute("ALTER ROLE subject CREATEROLE")
    await observe(home)
    assert await home.fetch(MISMATCHES) == []
    assert [message["name"] for message in await listener.so_far()] == ["subject", "subject"]


async def test_an_observation_that_is_rolled_back_has_no_effect(
    home: Connection, listener: NotificationListener
) -> None:
    await home.execute("CREATE ROLE subject")
    look = home.transaction()
    await look.start()
    await observe(home)
    await look.rollback()
    assert await listener.so_far() == []
    await observe(home)
    assert [message["name"] for message in await listener.so_far()] == ["subject"]


async def test_two_concurrent_observations_notify_a_change_once(
    server: PostgresServer, home: Connection, listener: NotificationListener
) -> None:
    await home.execute("CREATE ROLE subject")
    other = await asyncpg.connect(server.dsn())
    try:
        async with anyio.create_task_group() as tasks, home.transaction():
            await observe(home)
            tasks.start_soon(observe, other)
            with anyio.fail_after(DEADLINE):
                while not await home.fetchval("SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)"):
                    await anyio.lowlevel.checkpoint()
        assert [message["name"] for message in await listener.so_far()] == ["subject"]
        assert await home.fetch(MISMATCHES) == []
    finally:
        await other.close()


async def test_the_returned_snapshot_is_the_next_one_unless_another_transaction_commits(
    server: PostgresServer, home: Connection
) -> None:
    now = "SELECT pg_current_snapshot()::text"
    await home.execute("CREATE ROLE subject")
    assert await observe(home) == await home.fetchval(now)
    async with asyncpg.create_pool(server.dsn(), min_size=1) as pool, pool.acquire() as open_one:
        async with open_one.transaction():
            await open_one.execute("SELECT pg_current_xact_id()")
            await home.execute("ALTER ROLE subject CREATEDB")
            assert await observe(home) == await home.fetchval(now)
            await home.execute("ALTER ROLE subject NOCREATEDB")
            seen = await observe(home)
            assert seen == await home.fetchval(now)
        assert seen != await home.fetchval(now)


@pytest.mark.parametrize(
    ("gone", "come"),
    [
        ("COMMENT ON ROLE subject IS NULL", "COMMENT ON DATABASE other_one IS 'd'"),
        ("COMMENT ON ROLE subject IS NULL", "COMMENT ON TABLESPACE pg_default IS 't'"),
        ("ALTER ROLE subject RESET ALL", "ALTER DATABASE other_one SET work_mem = '9MB'"),
        ("ALTER ROLE subject RESET ALL", "ALTER ROLE ALL IN DATABASE other_one SET work_mem = '9MB'"),
    ],
)
async def test_rows_that_concern_no_role_hide_no_change_of_a_role(
    home: Connection, listener: NotificationListener, gone: str, come: str
) -> None:
    await home.execute("CREATE DATABASE other_one")
    try:
        await home.execute(
            "CREATE ROLE subject; ALTER ROLE subject SET work_mem = '8MB'; COMMENT ON ROLE subject IS 'c'"
        )
        await observe(home)
        await listener.so_far()
        await home.execute(f"{gone}; {come}")
        await observe(home)
        assert [message["name"] for message in await listener.so_far()] == ["subject"]
        await home.execute("COMMENT ON DATABASE other_one IS 'e'; ALTER DATABASE other_one SET work_mem = '7MB'")
        await observe(home)
        await home.execute("COMMENT ON TABLESPACE pg_default IS NULL")
        await home.execute("DROP DATABASE other_one")
        await observe(home)
        assert await listener.so_far() == [{"op": "database", "database": "other_one"}]
    finally:
        await home.execute("COMMENT ON TABLESPACE pg_default IS NULL")
        await home.execute("DROP DATABASE IF EXISTS other_one")
    assert await home.fetch(MISMATCHES) == []


async def test_deleted_rows_are_detected_even_without_statistics(
    server: PostgresServer, home: Connection, listener: NotificationListener
) -> None:
    """PostgreSQL's statistics usually show how many rows a read has scanned."""
    untracked = await asyncpg.connect(server.dsn(), server_settings={"track_counts": "off"})
    try:
        for looking, following in ((untracked, home), (home, untracked), (untracked, untracked)):
            await home.execute("CREATE ROLE subject IN ROLE pg_monitor; COMMENT ON ROLE subject IS 'c'")
            await home.execute("ALTER ROLE subject SET work_mem = '8MB'")
            await observe(looking)
            for removal in (
                "REVOKE pg_monitor FROM subject",
                "COMMENT ON ROLE subject IS NULL",
                "ALTER ROLE subject RESET ALL",
                "DROP ROLE subject",
            ):
                await listener.so_far()
                await home.execute(removal)
                await observe(following)
                assert [message["name"] for message in await listener.so_far()] == ["subject"], removal
            async with looking.transaction():
                await observe(looking)
                assert await looking.fetchval("SELECT pg_current_xact_id_if_assigned()") is None
    finally:
        await untracked.close()


async def test_an_observation_in_a_transaction_where_age_stands_still_sees_later_changes(
    server: PostgresServer, home: Connection, listener: NotificationListener
) -> None:
    """`age()` counts from one transaction id for as long as a transaction lasts."""
    await home.execute("CREATE ROLE subject; CREATE ROLE other")
    await observe(home)
    await listener.so_far()
    looking = await asyncpg.connect(server.dsn())
    try:
        for turn in range(3):
            async with looking.transaction():
                await looking.execute("SELECT age('3'::xid)")
                for limit in range(5):
                    await home.execute(f"ALTER ROLE subject CONNECTION LIMIT {10 * turn + limit}")
                    if limit == 2:
                        await home.execute("SELECT pgrole.observe()")
                await observe(looking)
                await home.execute("GRANT pg_monitor TO other" if turn % 2 == 0 else "REVOKE pg_monitor FROM other")
                await observe(looking)
            assert {message["name"] for message in await listener.so_far()} == {"subject", "other"}
            await observe(home)
            assert await home.fetch(MISMATCHES) == []
    finally:
        await looking.close()


@pytest.mark.parametrize(
    "harm",
    [
        "DELETE FROM pgrole.role_state",
        "UPDATE pgrole.role_state SET digest = '', name = 'x'",
        "DELETE FROM pgrole.seen",
        "UPDATE pgrole.seen SET version = '3', role = 7 WHERE role = 10",
        "TRUNCATE pgrole.fingerprint",
    ],
)
async def test_a_full_observation_repairs_tampered_state(home: Connection, harm: str) -> None:
    await home.execute("CREATE ROLE subject")
    await observe(home)
    await home.execute(harm)
    await home.execute("SELECT pgrole.observe(true)")
    assert await home.fetch(MISMATCHES) == []
    await home.execute("DROP ROLE subject")
    await observe(home)
    assert await home.fetch(MISMATCHES) == []


@pytest.mark.parametrize("table", ["role_state", "seen"])
async def test_a_role_dropped_after_a_table_was_emptied_is_announced(
    home: Connection, listener: NotificationListener, table: str
) -> None:
    await home.execute("CREATE ROLE subject")
    await observe(home)
    await listener.so_far()
    await home.execute(f"TRUNCATE pgrole.{table}")
    await home.execute("DROP ROLE subject")
    await observe(home)
    assert {"op": "many"} in await listener.so_far()
    assert await home.fetch(MISMATCHES) == []
    await observe(home)
    assert await listener.so_far() == []


@pytest.mark.parametrize("table", ["role_state", "seen", "fingerprint", "database_state"])
async def test_after_a_lost_table_is_installed_again_everything_is_observed(home: Connection, table: str) -> None:
    await home.execute("CREATE ROLE subject")
    await observe(home)
    await home.execute(f"DROP TABLE pgrole.{table} CASCADE")
    await home.execute(queries.install())
    await observe(home)
    assert await home.fetch(MISMATCHES) == []
    await home.execute("DROP ROLE subject")
    await observe(home)
    assert await home.fetch(MISMATCHES) == []


@pytest.mark.parametrize(
    "harm",
    [
        "UPDATE pgrole.fingerprint SET system_identifier = 1",
        "UPDATE pgrole.fingerprint SET since = '99999999999'",
        "DELETE FROM pgrole.fingerprint WHERE catalog = 'pg_authid'::regclass",
    ],
)
async def test_observations_from_another_server_are_not_trusted(
    home: Connection, listener: NotificationListener, harm: str
) -> None:
    await home.execute("CREATE ROLE subject")
    await observe(home)
    await home.execute(harm)
    await home.execute("UPDATE pgrole.role_state SET digest = '' WHERE name = 'subject'")
    await listener.so_far()
    await observe(home)
    assert [message["name"] for message in await listener.so_far()] == ["subject"]


async def test_installing_again_keeps_everything(home: Connection, listener: NotificationListener) -> None:
    await home.execute(
        "INSERT INTO pgrole.claim (role_name, role_oid, system_identifier, cluster, namespace, namespace_uid, object, "
        "object_uid) VALUES ('subject', 1, 2, 'c', 'n', 'nu', 'o', 'ou')"
    )
    tables = ("installation", "claim", "role_state", "seen", "fingerprint")
    before = {table: set(await home.fetch(f"SELECT ctid, * FROM pgrole.{table}")) for table in tables}
    async with home.transaction():
        await home.execute(queries.install())
    after = {table: set(await home.fetch(f"SELECT ctid, * FROM pgrole.{table}")) for table in tables}
    assert after == before
    assert await install(home) is SchemaState.PRESENT
    assert await listener.so_far() == []


async def test_an_ordinary_role_has_no_privilege_in_the_schema(home: Connection) -> None:
    await home.execute("CREATE ROLE other")
    async with home.transaction():
        await home.execute("SET LOCAL ROLE other")
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await home.execute("SELECT pgrole.observe()")
    # not even with USAGE on the schema
    await home.execute("GRANT USAGE ON SCHEMA pgrole TO other")
    allowed = await home.fetch("""
        SELECT p.oid::regprocedure::text
        FROM pg_proc AS p
        WHERE p.pronamespace = 'pgrole'::regnamespace AND has_function_privilege('other', p.oid, 'EXECUTE')
        UNION ALL
        SELECT c.oid::regclass::text
        FROM pg_class AS c
        WHERE c.relnamespace = 'pgrole'::regnamespace AND c.relkind IN ('r', 'v')
          AND has_table_privilege('other', c.oid, 'SELECT, INSERT, UPDATE, DELETE, TRUNCATE, REFERENCES, TRIGGER')
    """)
    assert allowed == []
    await home.execute("REVOKE USAGE ON SCHEMA pgrole FROM other")


async def test_a_schema_that_an_ordinary_role_created_first_is_refused(home: Connection) -> None:
    await home.execute("DROP SCHEMA pgrole CASCADE; CREATE ROLE other; CREATE SCHEMA pgrole AUTHORIZATION other")
    with pytest.raises(asyncpg.InsufficientPrivilegeError, match="belongs to"):
        await home.execute(queries.install())
    await home.execute("DROP SCHEMA pgrole")


async def test_an_owner_that_is_not_a_superuser_needs_only_oid_and_xmin(
    server: PostgresServer, home: Connection
) -> None:
    await home.execute("CREATE ROLE steward LOGIN CREATEROLE PASSWORD 'p'")
    await home.execute("CREATE DATABASE stewards OWNER steward")
    await home.execute("ALTER DATABASE postgres RESET pgrole.home")
    admin = await asyncpg.connect(server.dsn(database="stewards"))
    await admin.execute("GRANT SELECT (oid, xmin) ON pg_authid TO steward")
    await admin.close()
    steward = await asyncpg.connect(server.dsn("steward", "stewards", "p"))
    try:
        await install(steward)
        await observe(steward)
        async with listening(server.dsn("steward", "stewards", "p")) as listener:
            await home.execute("CREATE ROLE subject; ALTER ROLE subject SET work_mem = '8MB'")
            await observe(steward)
            await home.execute("ALTER ROLE subject BYPASSRLS")
            await observe(steward)
            await home.execute("ALTER ROLE subject PASSWORD 'unseen'")
            await observe(steward)
            await home.execute("DROP ROLE subject")
            await observe(steward)
            assert [message["op"] for message in await listener.so_far()] == ["insert", "update", "update", "delete"]
        assert await steward.fetch(MISMATCHES) == []
    finally:
        await steward.close()
        await home.execute("DROP DATABASE stewards WITH (FORCE)")
        await home.execute("DROP ROLE steward")
