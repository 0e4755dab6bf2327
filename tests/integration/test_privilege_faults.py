"""controller/privileges/database_worker when databases, tables, triggers, connections and privileges fail.

In the end every declaration is enforced. Meanwhile everything else continues, and what cannot be done is reported with
a remedy.
"""

import contextlib
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import anyio
import anyio.abc
import asyncpg
import pytest
from anyio.streams.stapled import MultiListener

from pgrole_controller.controller.leadership import Leadership
from pgrole_controller.controller.privileges import database_worker, large_rounds, privilege_round, read_pace
from pgrole_controller.controller.privileges.database_worker import DatabaseContext, DatabaseWorker
from pgrole_controller.controller.privileges.grantees import Grantees
from pgrole_controller.core.backoff import Backoff
from pgrole_controller.core.errors import DropInterrupted, PgRoleError, Reason
from pgrole_controller.core.privileges.acl import ObjectKind
from pgrole_controller.core.privileges.grantee import (
    Access,
    DatabasePrivileges,
    Grantee,
    ObjectPrivileges,
    SchemaAccess,
)
from pgrole_controller.core.privileges.privilege_result import News, PrivilegeResult
from pgrole_controller.core.request import Key
from pgrole_controller.core.server_options import DatabaseMode
from pgrole_controller.kube.lease import Term
from pgrole_controller.local.postgres import PostgresServer
from pgrole_controller.local.process import reached
from pgrole_controller.postgres.capabilities import identify
from pgrole_controller.postgres.connection import Endpoint, connect
from pgrole_controller.postgres.privileges import acl_batches, database_session
from pgrole_controller.postgres.privileges.acl_repair import AclRepair
from pgrole_controller.postgres.schema import install as install_home
from tests.integration.database_world import (
    DEADLINE,
    POLICY,
    READ,
    SERVER,
    DatabaseWorkerWorld,
    make_world,
    note_sessions,
)
from tests.servers import Servers

OTHER = Key("shop", "other")
PASSWORD = "c"


@pytest.fixture
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes checks frequent that normally run once a minute, and retries almost immediate."""
    monkeypatch.setattr(database_session, "BACKSTOP_SECONDS", 0.2)
    for name in ("RETRY", "LOCK_RETRY"):
        monkeypatch.setattr(read_pace, name, Backoff(0.2, 0.5))


def error_of(result: PrivilegeResult) -> PgRoleError:
    assert result.error is not None, result
    return result.error


def remedies(error: PgRoleError) -> list[str]:
    """What a superuser is asked to run, without options that only later versions have."""
    found = re.search(r"\. A superuser can allow it: (.*?)(?:\. A|$)", error.message)
    return [] if found is None else [one.partition(" WITH ")[0] for one in found[1].split("; ")]


async def follow(world: DatabaseWorkerWorld, error: PgRoleError) -> None:
    found = re.search(r"\. A superuser can (?:allow it|do it, in database [^:]*): (.*)$", error.message)
    assert found, error.message
    await world.hand.execute(re.sub(r"; and \d+ more$", "", found[1]))


async def another_grantee(world: DatabaseWorkerWorld, *schemas: SchemaAccess, name: str = "other") -> Grantee:
    """A second role of the same namespace, with its own object."""
    role = f"{world.database}_{name}"
    await world.home.execute(f"CREATE ROLE {role}")
    oid = await world.home.fetchval("SELECT oid FROM pg_roles WHERE rolname = $1", role)
    declared = DatabasePrivileges(world.database, schemas=schemas or (READ,))
    grantee = Grantee(OTHER, "uid-2", 1, role, oid, {world.database: declared}, policy=POLICY)
    world.grantees.publish(SERVER, grantee)
    return grantee


async def wait_mode(worker: DatabaseWorker, mode: DatabaseMode) -> None:
    async def is_so() -> bool:
        return worker.mode is mode

    assert await reached(is_so, DEADLINE), (worker.mode, worker.trouble, worker.why)


async def drop_role(world: DatabaseWorkerWorld, role: str) -> None:
    await world.hand.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


async def grants(world: DatabaseWorkerWorld, table: str) -> list[tuple[str, str]]:
    """(privilege, grantor) of the role on a table."""
    rows = await world.hand.fetch(
        "SELECT a.privilege_type, a.grantor::regrole::text FROM pg_class AS c, aclexplode(c.relacl) AS a "
        "WHERE c.oid = $1::text::regclass AND a.grantee = $2 ORDER BY 1, 2",
        table,
        world.oid,
    )
    return [(row[0], row[1]) for row in rows]


# Event triggers that are dropped, disabled, or emptied.


@pytest.mark.usefixtures("hurry")
@pytest.mark.parametrize(
    "harm",
    [
        "ALTER EVENT TRIGGER pgrole_on_ddl DISABLE",
        "ALTER EVENT TRIGGER pgrole_on_ddl ENABLE REPLICA",
        "DROP EVENT TRIGGER pgrole_on_drop",
        "DROP FUNCTION pgrole.on_ddl() CASCADE",
        "DROP TABLE pgrole.ddl_event",
        "DROP SCHEMA pgrole CASCADE",
    ],
)
async def test_a_dropped_or_disabled_part_is_detected_and_installed_again(
    world: DatabaseWorkerWorld, harm: str
) -> None:
    world.declare(READ)
    async with world.working() as worker:
        await world.wait_settled()
        await world.hand.execute(harm)
        await world.hand.execute(f"GRANT UPDATE ON app.orders TO {world.role}")
        await world.wait_may("UPDATE", "app.orders", expected=False)

        async def is_back() -> bool:
            armed = "SELECT count(*) FROM pg_event_trigger WHERE evtname LIKE 'pgrole%' AND evtenabled = 'A'"
            there = "SELECT to_regclass('pgrole.ddl_event') IS NOT NULL"
            return (await world.hand.fetchval(armed), await world.hand.fetchval(there), worker.mode) == (
                2,
                True,
                DatabaseMode.EVENTS,
            )

        assert await reached(is_back, DEADLINE), (worker.mode, worker.trouble, worker.why)
        await world.wait_settled()


@pytest.mark.usefixtures("hurry")
async def test_without_install_a_dropped_trigger_leads_to_poll_and_the_reason_is_given(
    world: DatabaseWorkerWorld,
) -> None:
    world.declare(READ)
    async with world.working():
        await world.wait_settled()
    world.config = replace(world.config, may_install=False, interval=0.2)
    async with world.working() as worker:
        await wait_mode(worker, DatabaseMode.EVENTS)
        await world.hand.execute("DROP EVENT TRIGGER pgrole_on_ddl")
        await wait_mode(worker, DatabaseMode.POLL)
        assert "event triggers" in worker.why
        assert "pgrole-controller sql --database" in worker.why
        await world.hand.execute(f"GRANT UPDATE ON app.orders TO {world.role}")
        await world.wait_may("UPDATE", "app.orders", expected=False)


async def test_grants_are_corrected_after_a_crash_that_lost_the_events(servers: Servers) -> None:
    async with servers.run() as own, make_world(own) as world:
        world.declare(READ)
        async with world.working() as worker:
            await world.wait_settled()
            for _ in range(5):
                await world.hand.execute(f"GRANT UPDATE ON app.items TO {world.role}")
                await world.wait_may("UPDATE", "app.items", expected=False)
            before = await world.hand.fetchval("SELECT max(id) FROM pgrole.ddl_event")
            await world.hand.execute("CHECKPOINT")
            await own.kill()
            await own.start()
            world.hand.terminate()
            world.home.terminate()
            world.hand = await asyncpg.connect(own.dsn(database=world.database))
            world.home = await asyncpg.connect(own.dsn())
            await world.hand.execute(f"GRANT UPDATE ON app.orders TO {world.role}")
            assert await world.hand.fetchval("SELECT count(*) FROM pgrole.ddl_event") < before
            assert worker.mode is not DatabaseMode.EVENTS
        # workers start again with the session of the home database
        async with world.working() as worker:
            await world.wait_may("UPDATE", "app.orders", expected=False)
            await world.hand.execute(f"GRANT DELETE ON app.orders TO {world.role}")
            await world.wait_may("DELETE", "app.orders", expected=False)
            assert worker.mode is DatabaseMode.EVENTS


# Databases that disappear, come back, and are copied.


async def test_a_database_that_allows_no_connections_is_reported_and_served_again_later(
    world: DatabaseWorkerWorld,
) -> None:
    world.declare(READ)
    async with world.working() as worker:
        await world.wait_settled()
        await world.hand.close()
        await world.home.execute(f"ALTER DATABASE {world.database} ALLOW_CONNECTIONS false")
        worker.note_database()
        result = await world.wait(lambda result: result.error is not None)
        assert error_of(result).reason is Reason.PRIVILEGE_PENDING
        assert "does not accept connections: run ALTER DATABASE" in error_of(result).message
        moved = f"{world.database}_old"
        await world.home.execute(f"ALTER DATABASE {world.database} RENAME TO {moved}")
        await world.home.execute(f"ALTER DATABASE {moved} ALLOW_CONNECTIONS true")
        worker.note_database()
        await world.wait(lambda result: "does not exist" in str(result.error))
        hand = await asyncpg.connect(world.server.dsn(database=moved))
        await hand.execute(f"GRANT UPDATE ON app.orders TO {world.role}")
        await hand.close()
        await world.home.execute(f"ALTER DATABASE {moved} RENAME TO {world.database}")
        worker.note_database()
        began = anyio.current_time()
        await world.wait(lambda result: result.error is None)
        assert anyio.current_time() - began < 10.0
        world.hand = await asyncpg.connect(world.server.dsn(database=world.database))
        assert not await world.may("UPDATE", "app.orders")


async def test_a_database_whose_drop_was_interrupted_is_reported_until_it_is_dropped(
    world: DatabaseWorkerWorld,
) -> None:
    world.declare(READ)
    await world.home.execute(f"UPDATE pg_database SET datconnlimit = -2 WHERE datname = '{world.database}'")
    async with world.working() as worker:
        error = error_of(await world.wait(lambda result: result.error is not None))
        assert (error.reason, isinstance(error, DropInterrupted)) == (Reason.PRIVILEGE_PENDING, True)
        assert f'database "{world.database}" can only be dropped' in error.message
        assert "run DROP DATABASE again" in error.message
        await world.hand.close()
        await world.home.execute(f"DROP DATABASE {world.database} WITH (FORCE)")
        worker.note_database()
        await world.wait(lambda result: "does not exist" in str(result.error))


@pytest.mark.parametrize(
    "change", ["GRANT CREATE ON DATABASE {database} TO {tenant}", "ALTER DATABASE {database} OWNER TO {tenant}"]
)
async def test_reads_are_guarded_as_soon_as_another_role_may_create_schemas(
    world: DatabaseWorkerWorld, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    sessions = note_sessions(monkeypatch)
    world.declare(READ)
    async with world.working() as worker:
        await world.wait_settled()
        assert not sessions[-1].guarded
        await world.home.execute(change.format(database=world.database, tenant=world.other))
        worker.note_database()

        async def is_guarded() -> bool:
            return sessions[-1].guarded

        assert await reached(is_guarded, DEADLINE)
        await world.hand.execute(f"GRANT UPDATE ON app.orders TO {world.role}")
        await world.wait_may("UPDATE", "app.orders", expected=False)


async def test_a_copy_of_a_managed_database_starts_without_applied_declarations(world: DatabaseWorkerWorld) -> None:
    """The copy has schema pgrole, with leader, digests and counts."""
    world.declare(READ)
    async with world.working():
        await world.wait_settled()
        await world.hand.execute(f"GRANT DELETE ON app.items TO {world.role}")
        await world.wait_more_drifts(0)
    await world.hand.execute(
        f"REVOKE SELECT ON app.orders FROM {world.role}; GRANT UPDATE ON app.items TO {world.role}"
    )
    copy = f"{world.database}_copy"
    await world.hand.close()
    await world.home.execute(f"CREATE DATABASE {copy} TEMPLATE {world.database}")
    await world.home.execute(f"DROP DATABASE {world.database}")
    world.database = copy
    world.hand = await asyncpg.connect(world.server.dsn(database=copy))
    world.declare(READ)
    async with world.working() as worker:
        result = await world.wait_settled()
        assert worker.mode is DatabaseMode.EVENTS
        assert await world.may("SELECT", "app.orders")
        assert not await world.may("UPDATE", "app.items")
        assert (result.drift_count, result.last_drifts) == (0, ())
        await world.hand.execute(f"GRANT UPDATE ON app.orders TO {world.role}")
        await world.wait_may("UPDATE", "app.orders", expected=False)
        await world.wait(lambda result: result.drift_count == 1)
    world.grantees = Grantees()
    world.declare(READ)
    async with world.working():
        result = await world.wait(lambda result: bool(result.last_drifts))
        assert (result.drift_count, result.last_drifts[-1].words) == (1, ("UPDATE on table app.orders was granted",))
    await world.hand.execute("DROP TABLE app.orders, app.items")
    await world.hand.execute(f"DROP OWNED BY {world.role}")


async def test_events_that_a_dump_brought_from_another_server_cause_no_rounds(
    world: DatabaseWorkerWorld,
) -> None:
    world.declare(READ)
    async with world.working():
        await world.wait_settled()
    await world.hand.execute(
        "INSERT INTO pgrole.ddl_event (xid, pid, session, acting, app, tag, command, kind) "
        "SELECT (1000000000 + i)::text::xid8, 1, 'alice', 'none', '', 'GRANT', 'GRANT', 'TABLE' "
        "FROM generate_series(1, 1500) AS i"
    )
    async with world.working() as worker:
        await wait_mode(worker, DatabaseMode.EVENTS)
        await anyio.sleep(0.5)
        rounds: list[object] = []
        run_round = privilege_round.run_round

        async def counted(*arguments: object, **options: object) -> object:
            rounds.append(arguments[2])
            return await run_round(*arguments, **options)  # type: ignore[arg-type]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(database_worker, "run_round", counted)
            await world.hand.execute("NOTIFY pgrole, 'x'")
            await anyio.sleep(0.3)
            assert rounds == []
            await world.hand.execute(f"GRANT UPDATE ON app.orders TO {world.role}")
            await world.wait_may("UPDATE", "app.orders", expected=False)
        assert worker.mode is DatabaseMode.EVENTS


# Tables that other sessions lock.


@pytest.mark.usefixtures("hurry")
async def test_a_locked_table_delays_no_other_object_and_is_repaired_once_it_is_free(
    world: DatabaseWorkerWorld,
) -> None:
    world.declare(READ)
    other = await asyncpg.connect(world.server.dsn(database=world.database))
    async with world.working():
        await world.wait_settled()
        await world.hand.execute(f"GRANT UPDATE ON app.orders, app.items TO {world.role}")
        await world.wait_may("UPDATE", "app.items", expected=False)
        async with other.transaction():
            await other.execute(
                f"GRANT UPDATE ON app.orders TO {world.role}; LOCK TABLE app.orders IN ACCESS EXCLUSIVE MODE"
            )
            await world.hand.execute(f"GRANT DELETE ON app.items TO {world.role}")
            await world.wait_may("DELETE", "app.items", expected=False)
        await world.wait_may("UPDATE", "app.orders", expected=False)
    await other.close()


@pytest.mark.usefixtures("hurry")
async def test_a_migration_that_holds_many_tables_delays_no_other_object(world: DatabaseWorkerWorld) -> None:
    """Like VACUUM, it runs no DDL at its end that would cause an event."""
    world.declare(READ)
    names = ", ".join(f"app.a{number}" for number in range(40))
    await world.hand.execute(
        "DO $$ BEGIN FOR i IN 0 .. 39 LOOP EXECUTE format('CREATE TABLE app.a%s ()', i); END LOOP; END $$;"
        "CREATE TABLE app.z ()"
    )
    other = await asyncpg.connect(world.server.dsn(database=world.database))
    async with world.working():
        await world.wait_settled()
        async with other.transaction():
            await other.execute(f"LOCK TABLE {names} IN SHARE UPDATE EXCLUSIVE MODE")
            took = list[float]()
            for _ in range(3):
                await world.hand.execute(f"GRANT UPDATE ON {names}, app.z TO {world.role}")
                began = anyio.current_time()
                await world.wait_may("UPDATE", "app.z", expected=False)
                took.append(anyio.current_time() - began)
            assert min(took) < 5.0  # the machine may have been busy in the others
            result = await world.wait(lambda result: result.error is not None)
            assert error_of(result).reason is Reason.PROGRESSING
            assert "another transaction has locked table app.a" in error_of(result).message
        await world.wait_may("UPDATE", "app.a39", expected=False)
        await world.wait_may("UPDATE", "app.a0", expected=False)
        await world.wait_settled()
    await other.close()


async def test_autovacuum_of_a_table_does_not_delay_the_repair_of_its_privileges(servers: Servers) -> None:
    """It can take hours, and gives way to whoever waits for its lock for deadlock_timeout."""
    settings = {"autovacuum_naptime": "1s", "deadlock_timeout": "60s"}  # the controller's session sets its own
    async with servers.run(settings) as server, make_world(server) as world:
        await world.hand.execute("""
            CREATE TABLE app.large (id int) WITH (
                autovacuum_vacuum_threshold = 0, autovacuum_vacuum_scale_factor = 0,
                autovacuum_vacuum_cost_delay = 100, autovacuum_vacuum_cost_limit = 1
            );
            INSERT INTO app.large SELECT generate_series(1, 100000);
            DELETE FROM app.large
        """)
        world.declare(READ)
        async with world.working():
            await world.wait_settled()

            async def is_vacuumed() -> bool:
                query = "SELECT count(*) = 1 FROM pg_stat_progress_vacuum WHERE relid = 'app.large'::regclass"
                return bool(await world.hand.fetchval(query))

            assert await reached(is_vacuumed, DEADLINE)
            await world.hand.execute(f"GRANT UPDATE ON app.large TO {world.role}")
            await world.wait_may("UPDATE", "app.large", expected=False)


async def test_open_transactions_that_grant_delay_no_other_repair(world: DatabaseWorkerWorld) -> None:
    """They hold no lock on the tables. Other objects of a waiting role, and other roles, are repaired at once."""
    await world.hand.execute(f"""
        CREATE SCHEMA a; CREATE ROLE {world.database}_creator;
        DO $$ BEGIN
            FOR i IN 1..40 LOOP EXECUTE format('CREATE TABLE a.t%s ()', i); END LOOP;
            FOR i IN 1..40 LOOP EXECUTE format('CREATE SCHEMA m%s', i); END LOOP;
        END $$;
        CREATE TABLE app.late ()
    """)
    defaults = f"ALTER DEFAULT PRIVILEGES FOR ROLE {world.database}_creator IN SCHEMA "
    defaults += ", ".join(f"m{number}" for number in range(1, 41))
    world.declare(READ, SchemaAccess("a", frozenset({Access.READ})))
    second = world.declare_other(READ)
    other = await asyncpg.connect(world.server.dsn(database=world.database))
    async with world.working():
        await world.wait_settled()
        await other.execute(
            f"BEGIN; REVOKE SELECT ON ALL TABLES IN SCHEMA a FROM {world.role};"
            f"{defaults} GRANT SELECT ON TABLES TO {world.role}; COMMIT;"
            f"BEGIN; GRANT INSERT ON ALL TABLES IN SCHEMA a TO {second};"
            f"{defaults} GRANT INSERT ON TABLES TO {world.role}"
        )
        await world.wait(lambda result: result.error is not None)
        took = list[float]()
        for role, table in ((second, "app.orders"), (world.role, "app.late"), (second, "app.items")):
            began = anyio.current_time()
            await world.hand.execute(f"GRANT DELETE ON {table} TO {role}")
            await world.wait_may("DELETE", table, expected=False, role=role)
            took.append(anyio.current_time() - began)
        assert min(took) < 3.0  # the machine may have been busy in the others
        assert not await world.may("SELECT", "a.t1")
        assert "another transaction has locked" in error_of(await world.wait(lambda one: one.error is not None)).message
        await other.execute("ROLLBACK")
        await world.wait_may("SELECT", "a.t40")
        await world.wait_settled()
    await other.execute(f"DROP OWNED BY {world.database}_creator; DROP ROLE {world.database}_creator")
    await other.close()


async def test_an_irrevocable_entry_delays_no_other_role_on_the_same_object(
    world: DatabaseWorkerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    delegate = f"{world.database}_delegate"
    monkeypatch.setattr(read_pace, "RETRY", Backoff(60.0, 60.0))
    await world.hand.execute(f"""
        CREATE ROLE {delegate}; GRANT USAGE ON SCHEMA app TO {delegate};
        GRANT INSERT ON app.orders TO {delegate} WITH GRANT OPTION;
        SET ROLE {delegate}; GRANT INSERT ON app.orders TO {world.role}; RESET ROLE; ALTER ROLE {delegate} SUPERUSER
    """)
    world.declare(READ)
    second = world.declare_other(READ)
    async with world.working():
        assert "NOSUPERUSER" in error_of(await world.wait(lambda result: result.error is not None)).message
        await world.wait_may("SELECT", "app.orders")  # the same role's other privileges
        await world.wait_may("SELECT", "app.orders", role=second)

        async def has_no_error() -> bool:
            found = world.grantees.results(SERVER, OTHER).get(world.database)
            return found is not None and found.error is None

        assert await reached(has_no_error, DEADLINE)
        applied = "SELECT count(*) FROM pgrole.applied WHERE role_name = $1"
        assert await world.hand.fetchval(applied, second) == 1
        assert await world.hand.fetchval(applied, world.role) == 1
    await world.hand.execute(f"ALTER ROLE {delegate} NOSUPERUSER; DROP TABLE app.orders")
    await drop_role(world, delegate)


async def test_default_privileges_that_outlived_their_schema_are_no_drift(world: DatabaseWorkerWorld) -> None:
    """PostgreSQL locks no schema for ALTER DEFAULT PRIVILEGES. What it writes while the schema is dropped stays."""
    await world.hand.execute("CREATE SCHEMA passing")
    other = await asyncpg.connect(world.server.dsn(database=world.database))
    try:
        await other.execute("BEGIN; DROP SCHEMA passing")
        await world.hand.execute(f"ALTER DEFAULT PRIVILEGES IN SCHEMA passing GRANT SELECT ON TABLES TO {world.role}")
        await other.execute("COMMIT")
    finally:
        await other.close()
    assert await world.hand.fetchval("SELECT count(*) FROM pg_default_acl") == 1
    world.declare(READ)
    async with world.working():
        await world.wait_settled()
        await world.hand.execute(f"ALTER DEFAULT PRIVILEGES GRANT DELETE ON TABLES TO {world.role}")
        result = await world.wait(lambda result: result.drift_count > 0)
        assert result.error is None
        left = await world.hand.fetchval(
            "SELECT array_agg(e.privilege_type) FROM pg_default_acl, aclexplode(defaclacl) AS e"
        )
        assert left == ["SELECT"]


async def test_a_change_that_no_event_names_is_found_in_the_same_session(world: DatabaseWorkerWorld) -> None:
    world.declare(READ)
    async with world.working() as worker:
        await world.wait_settled()
        begun = "SELECT backend_start FROM pg_stat_activity WHERE datname = $1 AND application_name LIKE 'pgrole-c%'"
        before = await world.home.fetchval(begun, world.database)
        await world.hand.execute(
            f"DO $$ BEGIN EXECUTE 'GRANT UPDATE ON ' || 'app.' || 'orders TO {world.role}'; END $$"
        )
        await world.wait_may("UPDATE", "app.orders", expected=False)
        assert worker.mode is DatabaseMode.EVENTS
        assert await world.home.fetchval(begun, world.database) == before


@pytest.mark.slow
async def test_5000_grants_in_one_transaction_are_revoked(world: DatabaseWorkerWorld) -> None:
    await world.hand.execute(
        "DO $$ BEGIN FOR i IN 1 .. 5000 LOOP EXECUTE format('CREATE TABLE app.t%s ()', i); END LOOP; END $$"
    )
    world.declare(READ)
    async with world.working():
        await world.wait_settled()
        async with world.hand.transaction():
            for number in range(1, 5001):
                await world.hand.execute(f"GRANT UPDATE ON app.t{number} TO {world.role}")
        left = "SELECT count(*) FROM pg_class WHERE relkind = 'r' AND has_table_privilege($1, oid, 'UPDATE')"

        async def are_revoked() -> bool:
            return bool(await world.hand.fetchval(left, world.role) == 0)

        assert await reached(are_revoked, 120.0), await world.hand.fetchval(left, world.role)
        await world.wait(lambda result: result.error is None and result.drift_count >= 1)


# Others who undo its work.


async def test_a_contest_about_one_role_delays_no_other(world: DatabaseWorkerWorld) -> None:
    world.declare(READ)
    other = await another_grantee(world)
    async with world.working():
        await world.wait_settled()
        for _ in range(5):
            count = world.result.drift_count if world.result else 0
            await world.hand.execute(f"GRANT UPDATE ON app.orders TO {world.role}")
            await world.wait_more_drifts(count)
        await world.hand.execute(f"GRANT UPDATE ON app.orders TO {world.role}")
        result = await world.wait(lambda result: result.error is not None)
        assert error_of(result).reason is Reason.CONTESTED
        took = list[float]()
        for _ in range(3):
            await world.hand.execute(f"GRANT UPDATE ON app.orders TO {other.role_name}")
            held = "SELECT has_table_privilege($1, 'app.orders', 'UPDATE')"

            async def is_revoked(query: str = held) -> bool:
                return not await world.hand.fetchval(query, other.role_name)

            began = anyio.current_time()
            assert await reached(is_revoked, DEADLINE)
            took.append(anyio.current_time() - began)
        assert min(took) < 1.0  # the machine may have been busy in the others
        assert world.result is not None
        assert error_of(world.result).reason is Reason.CONTESTED
    await drop_role(world, other.role_name)


async def test_grants_of_a_delegate_that_lost_its_usage_or_was_dropped_are_corrected(
    world: DatabaseWorkerWorld,
) -> None:
    """A delegate grants and then loses its USAGE, or is dropped with everything that it granted."""
    delegate = f"{world.database}_delegate"
    world.declare(READ)
    await world.hand.execute(
        f"CREATE ROLE {delegate}; GRANT USAGE ON SCHEMA app TO {delegate};"
        f"GRANT UPDATE, SELECT ON app.orders TO {delegate} WITH GRANT OPTION"
    )
    async with world.working():
        await world.wait_settled()
        await world.hand.execute(
            f"SET ROLE {delegate}; GRANT UPDATE ON app.orders TO {world.role}; RESET ROLE;"
            f"REVOKE USAGE ON SCHEMA app FROM {delegate}"
        )
        await world.wait_may("UPDATE", "app.orders", expected=False)
        await world.hand.execute(
            f"GRANT USAGE ON SCHEMA app TO {delegate}; SET ROLE {delegate}; "
            f"GRANT SELECT ON app.orders TO {world.role}; RESET ROLE; DROP OWNED BY {delegate}; DROP ROLE {delegate}"
        )
        await world.wait_may("SELECT", "app.orders")
        await world.wait_settled()
        assert ("SELECT", "postgres") in await grants(world, "app.orders")


# A controller that is not a superuser.


@asynccontextmanager
async def as_owner(world: DatabaseWorkerWorld, *, member: bool) -> AsyncIterator[str]:
    """The controller's role is as docs/privileges.md describes; the tables belong to another role."""
    name = world.database
    role, owner = f"{name}_controller", f"{name}_owner"
    await world.uninstall()
    await world.hand.execute(
        f"CREATE ROLE {role} LOGIN CREATEROLE PASSWORD '{PASSWORD}'; CREATE ROLE {owner};"
        f"GRANT CREATE ON DATABASE {name} TO {role}; ALTER SCHEMA app OWNER TO {owner};"
        f"ALTER TABLE app.orders OWNER TO {owner}; ALTER TABLE app.items OWNER TO {owner}"
    )
    if member:
        await world.hand.execute(f"GRANT {owner} TO {role}")
    world.config = replace(world.config, endpoint=Endpoint(world.server.dsn(role, password=PASSWORD)), interval=0.2)
    yield owner
    await world.hand.execute(
        f"DROP OWNED BY {role} CASCADE; DROP OWNED BY {owner} CASCADE; DROP ROLE {role}; DROP ROLE {owner}"
    )


@pytest.mark.usefixtures("hurry")
async def test_a_controller_that_acts_for_the_owner_polls_and_gives_the_reason(world: DatabaseWorkerWorld) -> None:
    async with as_owner(world, member=True) as owner:
        world.declare(READ)
        async with world.working() as worker:
            await world.wait_settled()
            assert worker.mode is DatabaseMode.POLL
            assert "the controller cannot install event triggers" in worker.why
            assert "pgrole-controller sql --database" in worker.why
            await world.hand.execute(f"GRANT UPDATE ON app.orders TO {world.role}")
            await world.wait_may("UPDATE", "app.orders", expected=False)
            await world.hand.execute(f"GRANT UPDATE (total) ON app.orders TO {world.role}")
            await world.wait(lambda result: result.drift_count == 2 and result.error is None)
            await world.hand.execute(f"SET ROLE {owner}; CREATE TABLE app.late (); RESET ROLE")
            await world.wait_may("SELECT", "app.late")


@pytest.mark.usefixtures("hurry")
async def test_a_controller_with_only_grant_options_grants_and_reports_what_it_cannot_revoke(
    world: DatabaseWorkerWorld,
) -> None:
    async with as_owner(world, member=False) as owner:
        role = f"{world.database}_controller"
        await world.hand.execute(
            f"GRANT USAGE ON SCHEMA app TO {role} WITH GRANT OPTION;"
            f"GRANT SELECT, UPDATE ON app.orders TO {role} WITH GRANT OPTION"
        )
        declared = ObjectPrivileges(ObjectKind.TABLE, "app", ("orders",), frozenset({"SELECT"}))
        grantee = world.declare()
        privileges = DatabasePrivileges(world.database, objects=(declared,))
        world.grantees.publish(SERVER, replace(grantee, declared={world.database: privileges}))
        async with world.working():
            await world.wait_settled()
            assert await grants(world, "app.orders") == [("SELECT", role)]
            await world.hand.execute(f"SET ROLE {owner}; GRANT UPDATE ON app.orders TO {world.role}; RESET ROLE")
            result = await world.wait(lambda result: result.error is not None)
            error = error_of(result)
            assert error.reason is Reason.DATABASE_ERROR
            assert remedies(error) == [f'GRANT "{owner}" TO "{role}"']
            await follow(world, error)
            await world.wait_may("UPDATE", "app.orders", expected=False)
            await world.wait_settled()


@pytest.mark.usefixtures("hurry")
async def test_a_controller_without_privileges_reports_the_statement_to_run(
    world: DatabaseWorkerWorld,
) -> None:
    async with as_owner(world, member=False) as owner:
        world.declare(READ)
        async with world.working():
            result = await world.wait(lambda result: result.error is not None)
            error = error_of(result)
            assert error.reason is Reason.DATABASE_ERROR
            assert remedies(error) == [f'GRANT "{owner}" TO "{world.database}_controller"']
            await follow(world, error)
            await world.wait_settled()
            assert await world.may("SELECT", "app.orders")
            # no one should let the controller act as a superuser
            await world.hand.execute(
                f"ALTER TABLE app.items OWNER TO postgres; REVOKE SELECT ON app.items FROM {world.role};"
                f"GRANT UPDATE ON app.items TO {world.role}"
            )
            error = error_of(await world.wait(lambda result: result.error is not None))
            assert "A superuser can do it, in database" in error.message
            await follow(world, error)
            await world.wait_settled()
            assert await grants(world, "app.items") == [("SELECT", "postgres")]


@pytest.mark.usefixtures("hurry")
@pytest.mark.parametrize("kind", ["correct", "report", "ignored"])
async def test_a_table_that_cannot_be_granted_keeps_no_change_of_another_from_being_drift(
    world: DatabaseWorkerWorld, kind: str
) -> None:
    legacy = f"{world.database}_legacy"
    async with as_owner(world, member=True):
        await world.hand.execute(f"CREATE ROLE {legacy}; ALTER TABLE app.items OWNER TO {legacy}")
        grantee = replace(world.declare(READ, report_only=kind == "report"), ignored=kind == "ignored")
        world.grantees.publish(SERVER, grantee)
        other = world.declare_other(READ) if kind == "ignored" else ""
        count, found = 0, []
        for privilege in ("UPDATE", "DELETE"):  # the second time after a restart
            async with world.working() as worker:
                await wait_mode(worker, DatabaseMode.POLL)
                await world.wait_may("SELECT", "app.orders")
                result = await world.wait(lambda result: result.error is not None)
                assert remedies(error_of(result)) == [f'GRANT "{legacy}" TO "{world.database}_controller"']
                await world.hand.execute(f"GRANT {privilege} ON app.orders TO {world.role}")
                words = f"{privilege} on table app.orders"
                if kind == "correct":
                    count += 1
                    await world.wait_may(privilege, "app.orders", expected=False)
                    await world.wait(lambda result, count=count: result.drift_count == count)  # type: ignore[misc]
                    assert await world.count_drifts() == count
                elif kind == "report":
                    found.append(f"{words} was granted")
                    await world.wait(lambda result, found=found: set(result.reported) == set(found))  # type: ignore[misc]
                else:  # what is granted later is read no earlier
                    await world.wait_may("SELECT", "app.orders", role=other)
                    await world.hand.execute(f"GRANT {privilege} ON app.orders TO {other}")
                    await world.wait_may(privilege, "app.orders", expected=False, role=other)
                assert await world.may(privilege, "app.orders") is (kind != "correct")
                told = {"correct": [News.DRIFT_CORRECTED], "report": [News.DRIFT_REPORTED]}.get(kind, [])
                assert [reason for reason, note in world.news() if words in note] == told
                assert world.result is not None
                assert error_of(world.result).reason is Reason.DATABASE_ERROR
                if privilege == "DELETE":
                    await follow(world, error_of(result))
                    await world.wait_may("SELECT", "app.items")
                    assert (await world.wait_settled()).drift_count == count
                    ((reason, note),) = world.news()
                    assert (reason, "SELECT on table app.items" in note) == (News.PRIVILEGES_EXTENDED, True)
    await drop_role(world, legacy)


@pytest.mark.usefixtures("hurry")
async def test_more_tables_that_cannot_be_granted_than_one_attempt_has_time_for_keep_no_drift_from_being_reported(
    world: DatabaseWorkerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    legacy = f"{world.database}_legacy"
    monkeypatch.setattr(acl_batches, "DIVIDING_SECONDS", 0.2)
    async with as_owner(world, member=True):
        await world.hand.execute(f"""
            CREATE ROLE {legacy};
            DO $$ BEGIN FOR i IN 1..80 LOOP
                EXECUTE format('CREATE TABLE app.t%s (); ALTER TABLE app.t%s OWNER TO {legacy}', i, i);
            END LOOP; END $$
        """)
        world.declare(READ, report_only=True)
        async with world.working():
            applied = "SELECT count(*) FROM pgrole.applied WHERE role_name = $1"

            async def is_applied() -> bool:
                there = await world.hand.fetchval("SELECT to_regclass('pgrole.applied') IS NOT NULL")
                return there and bool(await world.hand.fetchval(applied, world.role))

            assert await reached(is_applied, DEADLINE), world.result
            await world.hand.execute(f"GRANT DELETE ON app.orders TO {world.role}")
            result = await world.wait(lambda result: result.reported == ("DELETE on table app.orders was granted",))
            assert remedies(error_of(result)) == [f'GRANT "{legacy}" TO "{world.database}_controller"']
    await drop_role(world, legacy)


@pytest.mark.usefixtures("hurry")
async def test_what_cannot_be_revoked_is_revoked_later_under_report_and_is_drift_only_when_it_is_granted_again(
    world: DatabaseWorkerWorld,
) -> None:
    delegate = f"{world.database}_delegate"
    grant = f"SET ROLE {delegate}; GRANT INSERT ON app.orders TO {world.role}; RESET ROLE"
    await world.hand.execute(f"""
        CREATE ROLE {delegate}; GRANT USAGE ON SCHEMA app TO {delegate};
        GRANT INSERT ON app.orders TO {delegate} WITH GRANT OPTION; {grant}; ALTER ROLE {delegate} SUPERUSER
    """)
    world.declare(READ, report_only=True)
    async with world.working():
        assert "NOSUPERUSER" in error_of(await world.wait(lambda result: result.error is not None)).message
        await world.wait_may("SELECT", "app.orders")
        await world.hand.execute(f"GRANT DELETE ON app.items TO {world.role}")
        reported = ("DELETE on table app.items was granted",)
        result = await world.wait(lambda result: result.reported == reported)
        assert "NOSUPERUSER" in error_of(result).message
    async with world.working():
        await world.hand.execute(f"ALTER ROLE {delegate} NOSUPERUSER")
        await world.wait_may("INSERT", "app.orders", expected=False)
        result = await world.wait_settled()
        assert (result.reported, result.drift_count) == (reported, 0)
        await world.hand.execute(grant)
        await world.wait(lambda result: "INSERT on table app.orders was granted" in result.reported)
        assert await world.may("INSERT", "app.orders")
    await world.hand.execute("DROP TABLE app.orders")
    await drop_role(world, delegate)


@pytest.mark.usefixtures("hurry")
async def test_for_pg_database_owner_the_controller_needs_the_databases_owner(world: DatabaseWorkerWorld) -> None:
    async with as_owner(world, member=False) as owner:
        await world.hand.execute(f"ALTER SCHEMA app OWNER TO pg_database_owner; REVOKE ALL ON SCHEMA app FROM {owner}")
        world.declare(SchemaAccess("app", frozenset({Access.READ}), ("*",)))
        async with world.working():
            error = error_of(await world.wait(lambda result: result.error is not None))
            assert "A superuser can do it, in database" in error.message
            await world.hand.execute(f"ALTER DATABASE {world.database} OWNER TO {owner}")
            world.declare(READ)
            error = error_of(await world.wait(lambda result: bool(result.error and remedies(result.error))))
            assert remedies(error) == [f'GRANT "{owner}" TO "{world.database}_controller"']
            await follow(world, error)
            await world.wait_settled()
            assert await world.may("SELECT", "app.orders")
        await world.hand.execute(f"ALTER SCHEMA app OWNER TO {owner}")
        await world.hand.execute(f"ALTER DATABASE {world.database} OWNER TO postgres")


@pytest.mark.usefixtures("hurry")
async def test_a_grantor_that_the_controller_may_not_act_as_is_reported_with_the_statement_to_run(
    world: DatabaseWorkerWorld,
) -> None:
    delegate = f"{world.database}_delegate"
    async with as_owner(world, member=True):
        await world.hand.execute(
            f"CREATE ROLE {delegate}; GRANT USAGE ON SCHEMA app TO {delegate};"
            f"GRANT UPDATE ON app.orders TO {delegate} WITH GRANT OPTION"
        )
        world.declare(READ)
        async with world.working():
            await world.wait_settled()
            await world.hand.execute(f"SET ROLE {delegate}; GRANT UPDATE ON app.orders TO {world.role}; RESET ROLE")
            await world.hand.execute(f"GRANT UPDATE ON app.items TO {world.role}")
            result = await world.wait(lambda result: result.error is not None)
            error = error_of(result)
            assert error.reason is Reason.DATABASE_ERROR
            assert remedies(error) == [f'GRANT "{delegate}" TO "{world.database}_controller"']
            assert not await world.may("UPDATE", "app.items")
            await follow(world, error)
            await world.wait_may("UPDATE", "app.orders", expected=False)
            await world.wait_settled()
            creator = f"{world.database}_creator"
            await world.hand.execute(
                f"CREATE ROLE {creator};"
                f"ALTER DEFAULT PRIVILEGES FOR ROLE {creator} GRANT INSERT ON TABLES TO {world.role}"
            )
            error = error_of(await world.wait(lambda result: result.error is not None))
            assert remedies(error) == [f'GRANT "{creator}" TO "{world.database}_controller"']
            await follow(world, error)
            await world.wait_settled()
            assert not await world.hand.fetchval("SELECT count(*) FROM pg_default_acl")
        await world.hand.execute(f"DROP ROLE {creator}; DROP OWNED BY {delegate}; DROP ROLE {delegate}")


async def declare_columns(world: DatabaseWorkerWorld, count: int, *privileges: str) -> None:
    """Each of these privileges on this number of columns of a superuser's table."""
    columns = {one: tuple(f"{one.lower()}_{number:02}" for number in range(count)) for one in privileges}
    names = ", ".join(f"{name} int" for some in columns.values() for name in some)
    await world.hand.execute(f"CREATE TABLE app.wide ({names})")
    objects = tuple(
        ObjectPrivileges(ObjectKind.TABLE, "app", ("wide",), frozenset({one}), some) for one, some in columns.items()
    )
    schema = SchemaAccess("app", frozenset({Access.READ}), ("*",))
    declared = DatabasePrivileges(world.database, schemas=(schema,), objects=objects)
    world.grantees.publish(SERVER, replace(world.declare(schema), declared={world.database: declared}))


@pytest.mark.usefixtures("hurry")
async def test_statements_that_do_not_fit_into_a_message_follow_once_the_first_are_run(
    world: DatabaseWorkerWorld,
) -> None:
    async with as_owner(world, member=True):
        await declare_columns(world, 14, "SELECT", "INSERT", "UPDATE")
        async with world.working():
            error = error_of(await world.wait(lambda result: "; and 1 more" in str(result.error)))
            assert error.message.count("GRANT") == 2
            assert len(error.message) < 800
            await follow(world, error)
            error = error_of(await world.wait(lambda result: "; and 1 more" not in str(result.error)))
            await follow(world, error)
            await world.wait_settled()
        await world.hand.execute("DROP TABLE app.wide")


@pytest.mark.usefixtures("hurry")
async def test_if_not_even_one_statement_fits_the_message_names_the_command_that_prints_it(
    world: DatabaseWorkerWorld,
) -> None:
    async with as_owner(world, member=True):
        await declare_columns(world, 60, "SELECT")
        async with world.working():
            error = error_of(await world.wait(lambda result: result.error is not None))
            assert "A superuser can do it, in database" in error.message
            assert "`pgrole-controller diff -o sql` prints the statements" in error.message
            assert len(error.message) < 600
        await world.hand.execute("DROP TABLE app.wide")


@pytest.mark.usefixtures("hurry")
async def test_what_grantors_granted_before_they_became_superusers_can_be_revoked_with_the_whole_statements_told(
    world: DatabaseWorkerWorld,
) -> None:
    grant, grantors = "GRANT UPDATE ON app.orders TO", [f"{world.database}_grantor_{number}" for number in range(3)]
    async with as_owner(world, member=True):
        for name in grantors:
            await world.hand.execute(
                f"CREATE ROLE {name}; GRANT USAGE ON SCHEMA app TO {name}; {grant} {name} WITH GRANT OPTION;"
                f"SET ROLE {name}; {grant} {world.role}; RESET ROLE; ALTER ROLE {name} SUPERUSER"
            )
        world.declare(READ)
        async with world.working():
            first = error_of(await world.wait(lambda result: str(result.error).endswith("; COMMIT; and 1 more")))
            await follow(world, first)
            second = error_of(await world.wait(lambda result: str(result.error).endswith("; COMMIT")))
            await follow(world, second)
            await world.wait_settled()
            for message in (first.message, second.message):
                assert message.count("BEGIN; ALTER ROLE") == message.count("; COMMIT")
                assert len(message) < 800
            assert not await world.may("UPDATE", "app.orders")
        query = "SELECT count(*) FROM pg_roles WHERE rolname = ANY ($1) AND rolsuper"
        assert await world.hand.fetchval(query, grantors) == len(grantors)
        for name in grantors:
            await world.hand.execute(f"ALTER ROLE {name} NOSUPERUSER")
            await drop_role(world, name)


# A controller that is killed, paused, or replaced.


_ENDED = (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream)


class Cutter:
    """A proxy that ends a connection, as if the controller were killed, before its n-th message to the server."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self.port = 0
        self.left: int | None = None

    async def serve(self, listener: MultiListener[anyio.abc.SocketStream]) -> None:
        await listener.serve(self._pass_on)

    async def _pass_on(self, client: anyio.abc.SocketStream) -> None:
        async with (
            client,
            await anyio.connect_tcp(self._server.host, self._server.port) as upstream,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(self._copy, upstream, client)
            with contextlib.suppress(*_ENDED):
                async for part in client:
                    if self.left is not None:
                        if self.left == 0:
                            break
                        self.left -= 1
                    await upstream.send(part)
            tasks.cancel_scope.cancel()

    async def _copy(self, one: anyio.abc.SocketStream, other: anyio.abc.SocketStream) -> None:
        with contextlib.suppress(*_ENDED):
            async for part in one:
                await other.send(part)


@asynccontextmanager
async def cutting(world: DatabaseWorkerWorld) -> AsyncIterator[Cutter]:
    cutter = Cutter(world.server)
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    cutter.port = listener.extra(anyio.abc.SocketAttribute.local_port)
    plain = world.config
    dsn = world.server.dsn().replace(f":{world.server.port}/", f":{cutter.port}/")
    world.config = replace(plain, endpoint=Endpoint(dsn))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(cutter.serve, listener)
        yield cutter
        tasks.cancel_scope.cancel()
    await listener.aclose()
    world.config = plain


@contextlib.contextmanager
def never_again() -> Iterator[None]:
    """Keeps a worker whose session failed from starting another one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(database_worker, "_RECONNECT", Backoff(3600.0, 3600.0))
        yield


@pytest.mark.slow
async def test_a_worker_killed_before_any_message_converges_after_the_next_start(world: DatabaseWorkerWorld) -> None:
    """The declaration gave up DELETE, and drift and new objects appeared while no controller ran."""
    write = SchemaAccess("app", frozenset({Access.WRITE}))
    first = world.declare(write)
    async with world.working():
        await world.wait_settled()
    former = {world.database: (first.declared[world.database],)}
    async with cutting(world) as cutter:
        cut = 0
        reader = first
        while True:
            await world.hand.execute(
                f"GRANT TRUNCATE ON app.orders TO {world.role}; CREATE TABLE app.new_{cut} (id int);"
                f"REVOKE SELECT ON app.items FROM {world.role};"
                f"ALTER DEFAULT PRIVILEGES IN SCHEMA app GRANT INSERT ON TABLES TO {world.role}"
            )
            declared = DatabasePrivileges(world.database, schemas=(READ,))
            changed = replace(reader, declared={world.database: declared}, former=former)
            world.grantees.publish(SERVER, changed)
            cutter.left = cut
            with never_again():
                async with world.working() as killed:

                    async def is_over(worker: DatabaseWorker = killed, wanted: Grantee = changed) -> bool:
                        result = world.result
                        done = result is not None and result.digest == wanted.digest_of(world.database)
                        return (worker.mode is None and cutter.left == 0) or (
                            done and result is not None and result.confirmed
                        )

                    assert await reached(is_over, DEADLINE)
            survived = cutter.left != 0
            cutter.left = None
            async with world.working():
                digest = changed.digest_of(world.database)
                await world.wait(lambda result, digest=digest: result.digest == digest and result.confirmed)  # type: ignore[misc]
                await world.wait_settled()
                for table in ("app.orders", "app.items", f"app.new_{cut}"):
                    assert await world.may("SELECT", table), (cut, table)
                    for privilege in ("DELETE", "INSERT", "UPDATE", "TRUNCATE"):
                        assert not await world.may(privilege, table), (cut, table, privilege)
                assert not await world.hand.fetchval("SELECT count(*) FROM pg_default_acl")
                if survived:
                    break
                reader = world.declare(write)
                await world.wait_may("DELETE", "app.items")
                await world.wait_settled()
            cut += 1
    assert cut > 15


class WorkerReplica:
    """One of two processes that share a Lease, with its own knowledge of who holds it."""

    def __init__(self, world: DatabaseWorkerWorld, holder: str) -> None:
        self.term = Term()
        self._world = world
        leadership = Leadership(self.term, "i1", holder)
        leadership.synced = lambda: True
        self.leadership = leadership

    def lead(self, seconds: float = 3600.0) -> None:
        now = anyio.current_time()
        self.term.hold(now, now + seconds)

    @asynccontextmanager
    async def working(self) -> AsyncIterator[DatabaseWorker]:
        world = self._world
        async with connect(Endpoint(world.server.dsn()), "test") as connection:
            identity = await identify(connection)
        context = DatabaseContext(
            lambda: world.config, world.grantees, self.leadership, "c1", identity, "postgres", lambda: world.suspended
        )
        worker = DatabaseWorker(world.database, context)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._renew)
            tasks.start_soon(worker.run)
            yield worker
            tasks.cancel_scope.cancel()

    def lose_kubernetes(self) -> None:
        """From now on, nothing confirms that this process leads."""
        self.term.away_since = anyio.current_time() - 60.0
        self.term.hold(0.0, 0.0)

    async def _renew(self) -> None:
        """Keeps renewing the Lease."""
        while self.term.away_since is None:
            self.lead()
            await anyio.sleep(0.05)


async def test_a_process_that_was_paused_while_another_took_over_changes_nothing(world: DatabaseWorkerWorld) -> None:
    world.declare(READ)
    paused, second = WorkerReplica(world, "one"), WorkerReplica(world, "two")
    async with paused.working() as stale:
        await world.wait_settled()
        led = "SELECT number FROM pgrole.leader WHERE installation = 'i1'"
        before = await world.hand.fetchval(led)
        with never_again():
            async with second.working():

                async def leads() -> bool:
                    return bool(await world.hand.fetchval(led) > before)

                assert await reached(leads, DEADLINE)
            # the first still believes that it holds the Lease
            world.declare(SchemaAccess("app", frozenset({Access.WRITE})))
            stale.note_everything()

            async def is_refused() -> bool:
                return stale.trouble is not None and "another process leads" in stale.trouble.message

            assert await reached(is_refused, DEADLINE), stale.trouble
            assert not await world.may("DELETE", "app.orders")


async def test_a_declaration_is_not_applied_once_kubernetes_cannot_be_reached(
    world: DatabaseWorkerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was decided about before, but nothing was sent yet."""
    world.declare(READ)
    replica = WorkerReplica(world, "one")
    group_changes = large_rounds.group_changes

    def lose_kubernetes(*arguments: Any) -> list[AclRepair]:
        replica.lose_kubernetes()
        return group_changes(*arguments)

    async with replica.working() as worker:
        await world.wait_settled()
        monkeypatch.setattr(large_rounds, "group_changes", lose_kubernetes)
        digest = world.declare(SchemaAccess("app", frozenset({Access.WRITE}))).digest_of(world.database)
        worker.note_everything()
        result = await world.wait(lambda result: result.digest == digest)
        assert "Kubernetes cannot be reached" in error_of(result).message
        assert not await world.may("DELETE", "app.orders")


async def test_a_role_whose_declaration_is_not_applied_delays_no_repair_of_others_while_kubernetes_is_away(
    world: DatabaseWorkerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One round decides about both, and none follows soon."""
    for name in ("RETRY", "LOCK_RETRY", "SUSPENDED_RETRY"):
        monkeypatch.setattr(read_pace, name, Backoff(600.0, 600.0))
    world.declare(READ)
    second = world.declare_other(READ)
    replica = WorkerReplica(world, "one")
    async with replica.working() as worker:
        await world.wait_settled()
        await world.wait_other_settled()
        world.suspended = True
        await world.hand.execute(f"GRANT UPDATE ON app.orders TO {second}")

        async def is_left() -> bool:
            return world.grantees.results(SERVER, OTHER)[world.database].error is not None

        assert await reached(is_left, DEADLINE)
        replica.lose_kubernetes()
        digest = world.declare(SchemaAccess("app", frozenset({Access.WRITE}))).digest_of(world.database)
        world.suspended = False
        worker.note_everything()
        result = await world.wait(lambda result: result.digest == digest)
        assert "Kubernetes cannot be reached" in error_of(result).message
        await world.wait_may("UPDATE", "app.orders", expected=False, role=second)
        await world.wait_other_settled()
        assert not await world.may("DELETE", "app.orders")


async def test_a_copy_of_the_home_database_is_served_like_any_other_database(world: DatabaseWorkerWorld) -> None:
    """The copy has claims and observations of roles, which do not apply to it."""
    async with connect(Endpoint(world.server.dsn(database=world.database)), "test") as connection:
        await install_home(connection)
        await connection.execute(
            "INSERT INTO pgrole.leader (installation, drawn, number, holder) VALUES ('i1', 7, 7, 'another')"
        )
    await world.hand.close()
    copy = f"{world.database}_copy"
    await world.home.execute(f"CREATE DATABASE {copy} TEMPLATE {world.database}")
    await world.home.execute(f"DROP DATABASE {world.database}")
    await world.home.execute(f"ALTER DATABASE {copy} RENAME TO {world.database}")
    world.hand = await asyncpg.connect(world.server.dsn(database=world.database))
    world.declare(READ)
    replica = WorkerReplica(world, "one")
    async with replica.working() as worker:
        await world.wait_settled()
        assert worker.mode is DatabaseMode.EVENTS
        await world.hand.execute(f"GRANT UPDATE ON app.orders TO {world.role}")
        await world.wait_may("UPDATE", "app.orders", expected=False)
        assert await world.hand.fetchval("SELECT holder FROM pgrole.leader WHERE installation = 'i1'") == "one"
