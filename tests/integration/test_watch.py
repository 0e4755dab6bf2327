"""sql/install: the procedure `watch` detects changes by itself, within a tick and a read, but not its own commits."""

import random
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import anyio
import asyncpg
import pytest
import pytest_asyncio

from pgrole_controller.local.postgres import PostgresServer
from pgrole_controller.local.process import reached
from pgrole_controller.postgres.connection import Connection
from pgrole_controller.postgres.watch import read_clock
from tests.integration.sql_support import DEADLINE, MISMATCHES, NotificationListener, listening, role_oid, seen_home
from tests.servers import Servers

# Errors with which concurrent role DDL may fail.
MAY_FAIL = (
    asyncpg.InternalServerError,  # tuple concurrently updated
    asyncpg.UniqueViolationError,
    asyncpg.DuplicateObjectError,
    asyncpg.UndefinedObjectError,
    asyncpg.DeadlockDetectedError,
    asyncpg.InvalidGrantOperationError,
    asyncpg.DependentObjectsStillExistError,
)

# What a tenant would like a superuser to call.
FORGERY = """
    CREATE VIEW pgrole.turn_to_look AS SELECT true AS turn;
    CREATE FUNCTION pgrole.try_turn_to_look() RETURNS boolean LANGUAGE plpgsql AS
        'BEGIN ALTER ROLE other SUPERUSER; RETURN true; END';
    CREATE FUNCTION pgrole.observe(everything boolean DEFAULT false) RETURNS text LANGUAGE plpgsql AS
        'BEGIN ALTER ROLE other SUPERUSER; RETURN now(); END'
"""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def server(servers: Servers) -> AsyncIterator[PostgresServer]:
    async with servers.run(settings={"autovacuum": "off", "max_prepared_transactions": "5"}) as own:
        yield own


@pytest_asyncio.fixture(loop_scope="session")
async def home(server: PostgresServer) -> AsyncIterator[Connection]:
    """A superuser in the home database, with a new schema pgrole where everything has been observed."""
    async with seen_home(
        server.dsn(), after="DROP SCHEMA IF EXISTS pgrole CASCADE; DROP ROLE IF EXISTS subject, other"
    ) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="session")
async def listener(server: PostgresServer, home: Connection) -> AsyncIterator[NotificationListener]:
    async with listening(server.dsn()) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="session")
async def watcher(server: PostgresServer, home: Connection) -> AsyncIterator[Connection]:
    """The connection that runs `watch`."""
    connection = await asyncpg.connect(server.dsn())
    yield connection
    connection.terminate()


async def while_watching(watcher: Connection, work: Callable[[], Awaitable[None]]) -> None:
    """Runs `watch` repeatedly while `work` runs."""

    async def watch() -> None:
        while True:
            await watcher.execute("CALL pgrole.watch()")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch)
        await work()
        tasks.cancel_scope.cancel()


@asynccontextmanager
async def watching(home: Connection, watcher: Connection) -> AsyncIterator[None]:
    """`watcher` runs `watch` once meanwhile, and can be used afterwards."""

    async def watch() -> None:
        with suppress(asyncpg.QueryCanceledError):
            await watcher.execute(f"CALL pgrole.watch(lasting => '{2 * DEADLINE} s')")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch)
        yield
        await home.execute("SELECT pg_cancel_backend($1)", watcher.get_server_pid())


async def looks(watcher: Connection) -> int:
    """Number of calls of observe() by this connection, with track_functions."""
    # Statistics are reported later and all at once, so they are complete once they include this call.
    mark = f"pg_temp.mark_{secrets.token_hex(4)}"
    await watcher.execute(f"CREATE FUNCTION {mark}() RETURNS void LANGUAGE plpgsql AS 'BEGIN END'; SELECT {mark}()")

    async def is_told() -> bool:
        return bool(await watcher.fetchval(f"SELECT pg_stat_get_function_calls('{mark}'::regproc)"))

    assert await reached(is_told, DEADLINE)
    return int(await watcher.fetchval("SELECT coalesce(pg_stat_get_function_calls('pgrole.observe'::regproc), 0)"))


async def transactions(connection: Connection) -> int:
    """Number of transactions that this connection has begun."""
    return int(
        await connection.fetchval(
            "SELECT split_part(virtualtransaction, '/', 2) FROM pg_locks "
            "WHERE pid = pg_backend_pid() AND locktype = 'virtualxid'"
        )
    )


async def test_ticks_that_see_no_change_share_a_transaction(watcher: Connection) -> None:
    await watcher.execute("CALL pgrole.watch(lasting => '1 ms')")
    before = await transactions(watcher)
    await watcher.execute("CALL pgrole.watch(tick => '1 ms', lasting => '2 s')")
    # each lasts as long as all before it, up to a second
    assert await transactions(watcher) - before <= 20


async def test_between_observations_watch_holds_no_lock_and_no_old_snapshot(
    home: Connection, watcher: Connection
) -> None:
    """A snapshot older than what others commit would hold back vacuum and CREATE INDEX CONCURRENTLY."""
    commits = 50
    holds = """
        SELECT age(a.backend_xmin) >= age(($2::text)::xid)
            OR EXISTS (SELECT FROM pg_locks AS l WHERE l.pid = a.pid AND l.locktype <> 'virtualxid')
        FROM pg_stat_activity AS a
        WHERE a.pid = $1
    """

    async with watching(home, watcher):
        start = time.monotonic()
        for _ in range(commits):
            written = await home.fetchval("SELECT pg_current_xact_id()::text")

            async def is_free(written: str = written) -> bool:
                return not await home.fetchval(holds, watcher.get_server_pid(), written)

            assert await reached(is_free, DEADLINE, every=0.001)
        # it would take a second each if the ticks kept their transaction
        assert time.monotonic() - start < commits / 2


@pytest.mark.parametrize(
    "setting", ["transaction_timeout", "idle_in_transaction_session_timeout", "lock_timeout", "deadlock_timeout"]
)
async def test_a_timeout_shorter_than_a_shared_transaction_does_not_end_watch(
    watcher: Connection, setting: str
) -> None:
    await watcher.execute("SELECT set_config(name, '100ms', false) FROM pg_settings WHERE name = $1", setting)
    await watcher.execute("CALL pgrole.watch(lasting => '500 ms')", timeout=DEADLINE)
    kept = await watcher.fetchval("SELECT current_setting(name) FROM pg_settings WHERE name = $1", setting)
    assert kept in ("100ms", None)  # PostgreSQL 16 has no transaction_timeout


async def test_changes_of_a_prepared_transaction_are_notified_when_it_is_committed(
    server: PostgresServer, home: Connection, watcher: Connection, listener: NotificationListener
) -> None:
    other = await asyncpg.connect(server.dsn())
    try:
        async with watching(home, watcher):
            await home.execute("CREATE ROLE subject; CREATE ROLE other")
            await listener.first(name="other")
            await other.execute("BEGIN; ALTER ROLE subject CREATEDB; PREPARE TRANSACTION 'early'")
            await home.execute("ALTER ROLE other CREATEDB")
            await listener.first(name="other")
            assert [message for message in await listener.so_far() if message["name"] == "subject"] == []
            await other.execute("COMMIT PREPARED 'early'")
            await listener.first(name="subject")
        assert await home.fetch(MISMATCHES) == []
    finally:
        await other.close()


async def test_watch_does_not_return_before_the_requested_time(watcher: Connection) -> None:
    start = time.monotonic()
    await watcher.execute("CALL pgrole.watch(lasting => '300 ms')", timeout=DEADLINE)
    assert time.monotonic() - start >= 0.3


async def test_the_servers_clock_is_read_in_seconds(home: Connection) -> None:
    before = time.time()
    assert before - 1.0 < await read_clock(home) < time.time() + 1.0


async def test_watch_returns_even_while_another_transaction_blocks_observing(
    server: PostgresServer, home: Connection, watcher: Connection
) -> None:
    async with home.transaction():
        await home.execute("CREATE ROLE subject")
        await home.execute("SELECT pgrole.observe()")
        await watcher.execute("SET lock_timeout = '100 ms'")
        await watcher.execute("CALL pgrole.watch(lasting => '300 ms')", timeout=DEADLINE)


async def test_watch_notifies_each_change_by_itself(
    home: Connection, watcher: Connection, listener: NotificationListener
) -> None:
    async def change() -> None:
        await home.execute("CREATE ROLE subject")
        oid = await role_oid(home, "subject")
        assert await listener.first(name="subject") == {"op": "insert", "oid": oid, "name": "subject"}
        for limit in range(20):
            await home.execute(f"ALTER ROLE subject CONNECTION LIMIT {limit}")
            assert (await listener.first(name="subject"))["op"] == "update"
        await home.execute("DROP ROLE subject")
        assert (await listener.first(name="subject"))["op"] == "delete"

    await while_watching(watcher, change)


async def test_watch_notifies_earlier_changes_at_once(
    home: Connection, watcher: Connection, listener: NotificationListener
) -> None:
    await home.execute("CREATE ROLE subject")
    await watcher.execute("CALL pgrole.watch(tick => '200 ms', lasting => '1 ms')")
    assert [message["name"] for message in await listener.so_far()] == ["subject"]


async def test_watch_does_not_observe_again_because_of_its_own_commits(
    server: PostgresServer, home: Connection, listener: NotificationListener
) -> None:
    changes = 5
    watcher = await asyncpg.connect(server.dsn(), server_settings={"track_functions": "pl"})
    try:
        before = await looks(watcher)
        async with watching(home, watcher):
            await home.execute("CREATE ROLE subject")
            await listener.first(name="subject")
            for limit in range(changes - 1):
                await home.execute(f"ALTER ROLE subject CONNECTION LIMIT {limit}")
                await listener.first(name="subject")
        # one at the start, one for each change; twice as many if own commits counted
        assert changes <= await looks(watcher) - before < 2 * changes
    finally:
        await watcher.close()


async def test_unrelated_commits_cause_no_notification_and_few_observations(
    server: PostgresServer, home: Connection, listener: NotificationListener
) -> None:
    watcher = await asyncpg.connect(server.dsn(), server_settings={"track_functions": "pl"})
    try:
        before, commits = await looks(watcher), 0
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watcher.execute, "CALL pgrole.watch(lasting => '1 s')")
            end = time.monotonic() + 1
            while time.monotonic() < end:
                await home.execute("SELECT pg_current_xact_id()")
                commits += 1
        # one at the start, and no more than one in each tick of 10 ms
        assert 1 <= await looks(watcher) - before <= min(commits, 100) + 1
        assert await listener.so_far() == []
    finally:
        await watcher.close()


async def test_a_hostile_search_path_has_no_effect_and_is_restored(home: Connection, watcher: Connection) -> None:
    await home.execute("""
        CREATE SCHEMA trap;
        CREATE FUNCTION trap.pg_sleep(float8) RETURNS void LANGUAGE plpgsql AS 'BEGIN RAISE ''trapped''; END';
        CREATE FUNCTION trap.clock_timestamp() RETURNS timestamptz LANGUAGE plpgsql AS 'BEGIN RAISE ''trapped''; END';
        CREATE FUNCTION trap.same(text, text) RETURNS bool LANGUAGE plpgsql AS 'BEGIN RAISE ''trapped''; END';
        CREATE OPERATOR trap.= (FUNCTION = trap.same, LEFTARG = text, RIGHTARG = text)
    """)
    try:
        await watcher.execute("SET search_path = trap, pg_catalog")
        await watcher.execute("CALL pgrole.watch(lasting => '50 ms')")
        assert await watcher.fetchval("SHOW search_path") == "trap, pg_catalog"
    finally:
        await home.execute("DROP SCHEMA trap CASCADE")


async def test_a_blocked_observation_does_not_delay_the_next_one(
    server: PostgresServer, home: Connection, watcher: Connection, listener: NotificationListener
) -> None:
    other = await asyncpg.connect(server.dsn())
    try:
        async with watching(home, watcher):
            await home.execute("CREATE ROLE subject")
            await listener.first(name="subject")
            async with other.transaction():
                await other.execute("LOCK TABLE pgrole.fingerprint IN ACCESS EXCLUSIVE MODE")
                with anyio.fail_after(DEADLINE):
                    while not await home.fetchval("SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)"):
                        await home.execute("SELECT pg_current_xact_id()")
                await other.execute("SELECT pg_sleep(0.5)")
            await home.execute("ALTER ROLE subject CREATEDB")
            start = time.monotonic()
            await listener.first(name="subject")
            # 48 times half a second if the blocked one counted
            assert time.monotonic() - start < 12
    finally:
        await other.close()


async def test_a_schema_that_a_tenant_creates_in_place_of_a_dropped_one_is_not_called(
    server: PostgresServer, home: Connection, watcher: Connection, listener: NotificationListener
) -> None:
    """In one transaction, so that no observation fails in between because the schema is missing."""
    await home.execute("CREATE ROLE other")
    other = await asyncpg.connect(server.dsn())
    try:
        async with anyio.create_task_group() as tasks:

            async def watch() -> None:
                with pytest.raises(asyncpg.PostgresError) as caught:
                    await watcher.execute("CALL pgrole.watch()", timeout=DEADLINE)
                assert caught.value.sqlstate == "PGR02"

            tasks.start_soon(watch)
            await listener.first(name="other")
            async with other.transaction():
                await other.execute("DROP SCHEMA pgrole CASCADE; CREATE SCHEMA pgrole AUTHORIZATION other")
                await other.execute(f"SET LOCAL ROLE other; {FORGERY}; RESET ROLE")
        assert not await home.fetchval("SELECT rolsuper FROM pg_roles WHERE rolname = 'other'")
    finally:
        await other.close()


@pytest.mark.parametrize(
    "intrusion",
    [
        "ALTER SCHEMA pgrole OWNER TO other",
        "GRANT CREATE ON SCHEMA pgrole TO other",
        "GRANT CREATE ON SCHEMA pgrole TO PUBLIC",
    ],
)
async def test_watch_ends_when_its_schema_can_no_longer_be_trusted(
    home: Connection, watcher: Connection, intrusion: str
) -> None:
    await home.execute(f"CREATE ROLE other; {intrusion}")
    with pytest.raises(asyncpg.PostgresError) as caught:
        await watcher.execute("CALL pgrole.watch()", timeout=DEADLINE)
    assert caught.value.sqlstate == "PGR02"


async def storm(server: PostgresServer, seed: int, transactions: int) -> None:
    """Random role DDL on a few roles: in transactions of several statements, some begun early, some rolled back."""
    dice = random.Random(seed)
    connection = await asyncpg.connect(server.dsn())

    def statement() -> str:
        one, two = (f"storm_{dice.randrange(12)}" for _ in range(2))
        return dice.choice((
            f"CREATE ROLE {one}",
            f"CREATE ROLE {one} IN ROLE pg_monitor",
            f"DROP ROLE {one}",
            f"ALTER ROLE {one} CONNECTION LIMIT {dice.randrange(50)}",
            f"ALTER ROLE {one} CREATEDB",
            f"ALTER ROLE {one} NOCREATEDB",
            f"ALTER ROLE {one} RENAME TO {two}",
            f"GRANT {one} TO {two}",
            f"REVOKE {one} FROM {two}",
            f"GRANT pg_monitor TO {one}",
            f"REVOKE pg_monitor FROM {one}",
            f"ALTER ROLE {one} SET work_mem = '{dice.randrange(1, 90)}MB'",
            f"ALTER ROLE {one} RESET ALL",
            f"COMMENT ON ROLE {one} IS '{dice.randrange(90)}'",
            f"COMMENT ON ROLE {one} IS NULL",
        ))  # fmt: skip

    try:
        await connection.execute("SET lock_timeout = '2s'")
        for _ in range(transactions):
            transaction = connection.transaction()
            await transaction.start()
            try:
                if dice.random() < 0.4:
                    await connection.execute("SELECT pg_current_xact_id()")
                    await anyio.sleep(dice.random() * 0.02)  # others take their ids and commit meanwhile
                for _ in range(dice.randrange(1, 5)):
                    nested = connection.transaction()
                    await nested.start()
                    try:
                        await connection.execute(statement())
                    except (*MAY_FAIL, asyncpg.LockNotAvailableError):
                        await nested.rollback()
                    else:
                        await (nested.rollback() if dice.random() < 0.1 else nested.commit())
                    if dice.random() < 0.05:
                        await connection.execute("SELECT pgrole.observe()")
            except (*MAY_FAIL, asyncpg.LockNotAvailableError):
                await transaction.rollback()
            else:
                await (transaction.rollback() if dice.random() < 0.15 else transaction.commit())
    finally:
        await connection.close()


async def observe_over_and_over(server: PostgresServer) -> None:
    connection = await asyncpg.connect(server.dsn())
    try:
        while True:
            # a transaction of the storm that observes, and then waits for a role, may cause a deadlock
            with suppress(asyncpg.DeadlockDetectedError):
                await connection.execute("SELECT pgrole.observe()")
            await anyio.sleep(0.003)
    finally:
        connection.terminate()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
async def test_after_a_storm_of_role_ddl_everything_is_observed_and_each_change_was_notified(
    server: PostgresServer, home: Connection, watcher: Connection, listener: NotificationListener, seed: int
) -> None:
    state = "SELECT oid, name, digest FROM pgrole.role_state"
    before = {row["oid"]: (row["name"], row["digest"]) for row in await home.fetch(state)}

    async def rage() -> None:
        async with anyio.create_task_group() as raging:
            for observer in range(2):
                raging.start_soon(observe_over_and_over, server, name=f"observer {observer}")
            async with anyio.create_task_group() as storms:
                for number in range(5):
                    storms.start_soon(storm, server, 100 * seed + number, 60)
            raging.cancel_scope.cancel()

    await while_watching(watcher, rage)
    # reads nothing again that was observed before
    await home.execute("SELECT pgrole.observe()")
    assert await home.fetch(MISMATCHES) == []

    told = await listener.so_far()
    after = {row["oid"]: (row["name"], row["digest"]) for row in await home.fetch(state)}
    changed = {oid for oid in before.keys() | after.keys() if before.get(oid) != after.get(oid)}
    assert changed <= {message["oid"] for message in told}
    # the messages alone show at each moment which roles exist
    believed = {oid: name for oid, (name, _) in before.items()}
    for message in told:
        if message["op"] == "delete":
            assert believed.pop(message["oid"]) == message["name"]
        else:
            assert (message["oid"] in believed) is (message["op"] == "update")
            assert believed.get(message["oid"], message["name"]) == message.get("was", message["name"])
            believed[message["oid"]] = message["name"]
    assert believed == {oid: name for oid, (name, _) in after.items()}

    await home.execute("SELECT pgrole.observe(true)")
    assert await listener.so_far() == []
    for name in [name for name, _ in after.values() if name.startswith("storm_")]:
        await home.execute(f"DROP ROLE {name}")
