"""sql/install: roles that can only connect can neither stop `observe` nor make it fail."""

from base64 import b64encode
from collections.abc import AsyncIterator

import asyncpg
import pytest
import pytest_asyncio

from pgrole_controller.local.postgres import PostgresServer
from pgrole_controller.postgres import queries
from pgrole_controller.postgres.connection import Connection
from pgrole_controller.postgres.schema import install
from tests.integration.sql_support import (
    MISMATCHES,
    NotificationListener,
    count_pages_of,
    listening,
    role_oid,
    seen_home,
)

# As version 1 used them.
ADVISORY_LOCKS = (8102098230143320033, 8102098230143320034, 8102098230143320035)
TURNS = ("turn_to_look", "turn_to_change")
MODES = ("ACCESS SHARE", "ROW SHARE", "ROW EXCLUSIVE", "SHARE UPDATE EXCLUSIVE", "SHARE", "EXCLUSIVE")


@pytest_asyncio.fixture(loop_scope="session")
async def home(server: PostgresServer) -> AsyncIterator[Connection]:
    """A superuser in the home database, who waits for no lock, where everything has been observed."""
    async with seen_home(
        server.dsn(),
        before="SET lock_timeout = '5s'; CREATE ROLE subject; CREATE ROLE tenant LOGIN PASSWORD 'p'",
        after="DROP ROLE IF EXISTS subject, tenant",
    ) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="session")
async def tenant(server: PostgresServer, home: Connection) -> AsyncIterator[Connection]:
    connection = await asyncpg.connect(server.dsn("tenant", password="p"))
    yield connection
    await connection.close()


@pytest_asyncio.fixture(loop_scope="session")
async def listener(server: PostgresServer, home: Connection) -> AsyncIterator[NotificationListener]:
    async with listening(server.dsn()) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="session")
async def elsewhere(server: PostgresServer, home: Connection) -> AsyncIterator[Connection]:
    """A superuser in a database with another encoding."""
    await home.execute("CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'")
    connection = await asyncpg.connect(server.dsn(database="latin"))
    yield connection
    await connection.execute("DROP ROLE IF EXISTS café, thé")
    await connection.close()
    await home.execute("DROP DATABASE latin")


async def told(home: Connection, listener: NotificationListener) -> list[dict[str, object]]:
    """Returns messages about roles only. Databases that the fixtures create cause messages, too."""
    await home.execute("SELECT pgrole.observe()")
    return [message for message in await listener.so_far() if message["op"] != "database"]


async def test_no_lock_that_a_tenant_may_take_blocks_observing_changing_or_installing(
    home: Connection, tenant: Connection, listener: NotificationListener
) -> None:
    for number in ADVISORY_LOCKS:
        await tenant.execute(f"SELECT pg_advisory_lock_shared({number})")
    await home.execute("ALTER ROLE subject CREATEDB; SELECT pgrole.lock_changes()")
    assert [message["name"] for message in await told(home, listener)] == ["subject"]
    await home.execute("CALL pgrole.watch(lasting => '1 ms')")
    await home.execute("UPDATE pgrole.installation SET version = 0")
    await install(home)


async def test_a_tenant_may_not_lock_the_objects_that_coordinate_turns(home: Connection, tenant: Connection) -> None:
    await home.execute("GRANT USAGE ON SCHEMA pgrole TO tenant")
    try:
        for turn in TURNS:
            for mode in MODES:
                with pytest.raises(asyncpg.InsufficientPrivilegeError):
                    await tenant.execute(f"BEGIN; LOCK TABLE pgrole.{turn} IN {mode} MODE")
                await tenant.execute("ROLLBACK")
    finally:
        await home.execute("REVOKE USAGE ON SCHEMA pgrole FROM tenant")


async def test_turns_and_vacuum_or_analyze_do_not_wait_for_each_other(server: PostgresServer, home: Connection) -> None:
    carer = await asyncpg.connect(server.dsn())
    try:
        await carer.execute("SET lock_timeout = '5s'")
        async with home.transaction():
            await home.execute("SELECT pgrole.lock_changes(), pgrole.try_turn_to_look()")
            await carer.execute("VACUUM (ANALYZE)")
        async with carer.transaction():
            await carer.execute("ANALYZE")
            await home.execute("SELECT pgrole.lock_changes(), pgrole.try_turn_to_look()")
    finally:
        await carer.close()


async def test_the_turn_to_look_is_exclusive_and_needs_no_transaction_id(
    server: PostgresServer, home: Connection
) -> None:
    turn = "SELECT pgrole.try_turn_to_look()"
    other = await asyncpg.connect(server.dsn())
    try:
        async with home.transaction(), other.transaction():
            assert await home.fetchval(turn)
            assert not await other.fetchval(turn)
            assert await home.fetchval(turn)
            for connection in (home, other):
                assert await connection.fetchval("SELECT pg_current_xact_id_if_assigned()") is None
    finally:
        await other.close()


@pytest.mark.slow
async def test_a_tenants_giant_setting_does_not_prevent_observing_other_roles(
    home: Connection, tenant: Connection, listener: NotificationListener
) -> None:
    """140 MB of text that every quoting doubles."""
    await tenant.execute(
        "DO $$ BEGIN"
        " EXECUTE 'ALTER ROLE CURRENT_USER SET search_path = ''' || repeat(chr(92), 140000000) || ''''; END $$",
        timeout=120,
    )
    await home.execute("ALTER ROLE subject CREATEDB")
    assert {message["name"] for message in await told(home, listener)} == {"subject", "tenant"}
    await home.execute("ALTER ROLE tenant IN DATABASE postgres SET work_mem = '8MB'")
    assert [message["name"] for message in await told(home, listener)] == ["tenant"]
    await home.execute("SELECT pgrole.observe(true)")
    assert await home.fetchval("SELECT count(*) FROM pgrole.role_state WHERE digest = 'undigested'") == 0


@pytest.mark.slow
async def test_observing_and_polling_read_nothing_long_that_a_role_stored(home: Connection, tenant: Connection) -> None:
    """Values that compress well: a few pages on disk, and a second to hash."""

    async def count_pages() -> dict[str, int]:
        every = await home.fetchval("SELECT array_agg(oid)::text FROM pg_roles")
        return {
            "observe": await count_pages_of(
                home, "SELECT d.digest FROM pgrole.digest_all($1::oid[]) AS d", f"('{every}')"
            ),
            "poll": await count_pages_of(home, queries.poll(verifiers=True), "('', 5)"),
            "home": await count_pages_of(home, queries.inspect("home"), ""),
        }

    before = await count_pages()
    await home.execute("CREATE DATABASE tenants OWNER tenant")
    try:
        await tenant.execute("""
            DO $$ BEGIN PERFORM set_config('search_path', repeat('a', 25000000), false); END $$;
            ALTER ROLE CURRENT_USER SET search_path FROM CURRENT;
            ALTER DATABASE tenants SET search_path FROM CURRENT;
            DO $$ BEGIN PERFORM set_config('search_path', repeat('a', 1300000), false); END $$;
            ALTER ROLE CURRENT_USER IN DATABASE postgres SET search_path FROM CURRENT;
            ALTER ROLE CURRENT_USER IN DATABASE template1 SET search_path FROM CURRENT;
            ALTER ROLE CURRENT_USER IN DATABASE tenants SET search_path FROM CURRENT;
            RESET search_path
        """)
        await home.execute(
            "DO $$ BEGIN EXECUTE 'COMMENT ON ROLE tenant IS ''' || repeat('x', 25000000) || ''''; END $$"
        )
        if int(await home.fetchval("SHOW server_version_num")) < 180000:  # limits their length
            key = b64encode(bytes(32)).decode()
            await tenant.execute(f"""
                DO $$ BEGIN
                    EXECUTE format(
                        'ALTER ROLE CURRENT_USER PASSWORD %L',
                        'SCRAM-SHA-256$4096:' || repeat('AAAA', 5000000) || '${key}:{key}'
                    );
                END $$
            """)
        more = {name: pages - before[name] for name, pages in (await count_pages()).items()}
    finally:
        await home.execute("DROP DATABASE tenants")
    assert more == {name: pytest.approx(0, abs=5) for name in more}


async def test_a_role_that_cannot_be_digested_is_notified_when_changed_and_hides_no_other(
    home: Connection, listener: NotificationListener
) -> None:
    await home.execute(
        "CREATE OR REPLACE FUNCTION pgrole.hash_text(content text) RETURNS text LANGUAGE sql IMMUTABLE"
        " RETURN CASE WHEN content = 'poison' THEN (1 / (octet_length(content) - 6))::text ELSE content END"
    )
    await home.execute("COMMENT ON ROLE tenant IS 'poison'; ALTER ROLE subject CREATEDB")
    assert {message["name"] for message in await told(home, listener)} == {"subject", "tenant"}
    await home.execute("ALTER ROLE tenant CONNECTION LIMIT 3")
    assert [message["name"] for message in await told(home, listener)] == ["tenant"]
    await home.execute("SELECT pgrole.observe(true)")
    undigested = "SELECT array_agg(name) FROM pgrole.role_state WHERE digest = 'undigested'"
    assert await home.fetchval(undigested) == ["tenant"]
    assert await home.fetchval("SELECT count(*) FROM pgrole.role_state") == await home.fetchval(
        "SELECT count(*) FROM pg_roles"
    )


async def test_changes_from_a_database_with_another_encoding_are_detected_and_notified_legibly(
    home: Connection, elsewhere: Connection, listener: NotificationListener
) -> None:
    await elsewhere.execute("COMMENT ON ROLE subject IS 'café'")
    oid = await role_oid(home, "subject")
    assert await told(home, listener) == [{"op": "update", "oid": oid, "name": "subject"}]
    await elsewhere.execute("ALTER ROLE subject SET application_name = 'thé'")
    assert await told(home, listener) == [{"op": "update", "oid": oid, "name": "subject"}]
    for statement in (
        "CREATE ROLE café",
        "COMMENT ON ROLE café IS 'é'",
        "ALTER ROLE café SET application_name = 'é'",
        "GRANT subject TO café",
        "ALTER ROLE café RENAME TO thé",
        "DROP ROLE thé",
    ):
        await elsewhere.execute(statement)
        assert {"op": "many"} in await told(home, listener), statement
    await home.execute("SELECT pgrole.observe(true)")
    assert await home.fetch(MISMATCHES) == []


async def test_other_roles_are_notified_by_name_despite_an_illegible_name(
    home: Connection, elsewhere: Connection, listener: NotificationListener
) -> None:
    await elsewhere.execute("CREATE ROLE café; ALTER ROLE subject CREATEDB")
    oid = await role_oid(home, "subject")
    heard = await told(home, listener)
    assert {"op": "update", "oid": oid, "name": "subject"} in heard
    assert {"op": "many"} in heard


async def test_a_digest_does_not_depend_on_the_sessions_settings(home: Connection) -> None:
    await home.execute("ALTER ROLE subject SET work_mem = '8MB'; ALTER ROLE subject VALID UNTIL '2031-01-01'")
    await home.execute("COMMENT ON ROLE subject IS E'a\\\\b'; SELECT pgrole.observe()")
    await home.execute(
        "SET bytea_output = 'escape'; SET DateStyle = 'German'; SET TimeZone = 'Asia/Tokyo';"
        "SET client_encoding = 'LATIN1'"
    )
    assert await home.fetch(MISMATCHES) == []
