"""Attacks by tenants, and by anyone with a session in the database: none succeeds."""

import contextlib
import secrets
from collections.abc import AsyncIterator

import asyncpg
import pytest
import pytest_asyncio

from pgrole_controller.local.postgres import PostgresServer
from tests.acceptance.world import Controller, Database, Kube, Stage, condition, running

pytestmark = pytest.mark.slow


@pytest.fixture
def prefix() -> str:
    return f"x{secrets.token_hex(3)}"


@pytest_asyncio.fixture(loop_scope="session")
async def latin(
    shared_postgres: PostgresServer, database: Database
) -> AsyncIterator["asyncpg.Connection[asyncpg.Record]"]:
    """A session in a database with another encoding, whose text gets into the same shared catalogs."""
    await database.execute("CREATE DATABASE latin TEMPLATE template0 ENCODING LATIN1 LC_COLLATE 'C' LC_CTYPE 'C'")
    connection = await asyncpg.connect(shared_postgres.dsn(database="latin"))
    yield connection
    await connection.close()
    await database.execute("DROP DATABASE latin WITH (FORCE)")


async def test_a_role_renamed_to_the_name_in_another_object_is_not_taken_over(
    kube: Kube, database: Database, prefix: str
) -> None:
    await kube.apply("a", name=f"{prefix}_a", login=True, drift={"policy": "Report"})
    mine = await kube.wait_ready("a")
    await database.execute(f"ALTER ROLE {prefix}_a RENAME TO {prefix}_x")
    await kube.apply("b", name=f"{prefix}_x", adopt=True, deletionPolicy="Drop")
    obj = await kube.wait_reason("b", "NameTaken")
    assert f"{kube.namespace}/a" in condition(obj, "Ready")["message"]
    await kube.delete("b")
    await kube.wait_gone("b")
    role = await database.role(f"{prefix}_x")
    assert role is not None
    assert role["oid"] == mine["status"]["role"]["oid"]
    assert role["rolcanlogin"]


async def test_two_roles_that_swap_names_are_restored_with_one_claim_each(
    kube: Kube, database: Database, prefix: str
) -> None:
    await kube.apply("a", name=f"{prefix}_a", comment="a")
    await kube.apply("b", name=f"{prefix}_b", comment="b", login=True)
    await kube.wait_ready("a")
    await kube.wait_ready("b")
    await database.execute(f"BEGIN; DROP ROLE {prefix}_a; ALTER ROLE {prefix}_b RENAME TO {prefix}_a; COMMIT")
    await database.wait_role(f"{prefix}_b", lambda row: row["comment"] == "b" and row["rolcanlogin"], "b as declared")
    await database.wait_role(
        f"{prefix}_a", lambda row: row["comment"] == "a" and not row["rolcanlogin"], "a as declared"
    )
    await kube.wait_ready("a")
    await kube.wait_ready("b")
    assert (
        await database.fetchval(
            "SELECT count(DISTINCT role_oid) FROM pgrole.claim WHERE role_name LIKE $1", f"{prefix}%"
        )
        == 2
    )


async def test_a_comment_in_another_encoding_is_corrected(
    kube: Kube, database: Database, latin: "asyncpg.Connection[asyncpg.Record]", prefix: str, controller: Controller
) -> None:
    await kube.apply("app", name=f"{prefix}_app", comment="as declared")
    await kube.wait_ready("app")
    await latin.execute(f"COMMENT ON ROLE {prefix}_app IS 'caf\u00e9'")
    await kube.wait_for("app", lambda obj: obj["status"].get("driftCount", 0) == 1, "driftCount 1")
    role = await database.role(f"{prefix}_app")
    assert role is not None
    assert role["comment"] == "as declared"
    assert controller.process.running


async def test_a_role_name_in_another_encoding_does_not_stop_other_repairs(
    kube: Kube, database: Database, latin: "asyncpg.Connection[asyncpg.Record]", prefix: str, controller: Controller
) -> None:
    await kube.apply("odd", name=f"{prefix}_odd")
    await kube.apply("app", name=f"{prefix}_app")
    await kube.wait_ready("odd")
    await kube.wait_ready("app")
    await latin.execute(f'ALTER ROLE {prefix}_odd RENAME TO "{prefix}_\u00e9"')
    await database.execute(f"ALTER ROLE {prefix}_app CREATEDB")
    await database.wait_role(f"{prefix}_app", lambda row: not row["rolcreatedb"], "repaired")
    await kube.wait_for("odd", lambda obj: obj["status"].get("driftCount", 0) == 1, "driftCount 1")
    await kube.wait_ready("odd")
    assert await database.role(f"{prefix}_odd") is not None
    assert controller.process.running


async def test_references_to_names_in_another_encoding_do_not_prevent_repair(
    kube: Kube, database: Database, latin: "asyncpg.Connection[asyncpg.Record]", prefix: str
) -> None:
    app = f"{prefix}_app"
    await kube.apply("app", name=app)
    await kube.wait_ready("app")
    await latin.execute(f'CREATE ROLE "{prefix}_\u00e9"')
    await latin.execute(f'CREATE DATABASE "{prefix}_\u00e9"')
    try:
        await latin.execute(
            f'GRANT "{prefix}_\u00e9" TO {app}; ALTER ROLE {app} IN DATABASE "{prefix}_\u00e9" SET work_mem = \'1MB\';'
            f"ALTER ROLE {app} SUPERUSER"
        )
        await database.wait_role(app, lambda row: not row["rolsuper"], "NOSUPERUSER")
        await database.wait_value(f"SELECT count(*) FROM pg_auth_members WHERE member = '{app}'::regrole", 0)
        await database.wait_value(f"SELECT count(*) FROM pg_db_role_setting WHERE setrole = '{app}'::regrole", 0)
        await kube.wait_ready("app")
    finally:
        await latin.execute(f'DROP DATABASE "{prefix}_\u00e9"')
        await latin.execute(f'DROP ROLE "{prefix}_\u00e9"')


async def test_a_flood_of_notifications_does_not_delay_a_repair(
    kube: Kube, database: Database, shared_postgres: PostgresServer, prefix: str
) -> None:
    await database.execute(f"CREATE ROLE {prefix}_nobody LOGIN PASSWORD 'p'")
    await kube.apply("app", name=f"{prefix}_app")
    await kube.wait_ready("app")
    flooder = await asyncpg.connect(shared_postgres.dsn(f"{prefix}_nobody", password="p"))
    try:
        await flooder.execute(
            "SELECT pg_notify('pgrole', json_build_object('op', 'many', 'n', n)::text)"
            " FROM generate_series(1, 20000) AS n"
        )
        await database.execute(f"ALTER ROLE {prefix}_app CREATEDB")
        await database.wait_role(f"{prefix}_app", lambda row: not row["rolcreatedb"], "repaired")
    finally:
        await flooder.close()
        await database.execute(f"DROP ROLE {prefix}_nobody")


async def test_a_role_locked_by_an_open_transaction_does_not_delay_others(
    kube: Kube, database: Database, shared_postgres: PostgresServer, prefix: str
) -> None:
    for name in ("locked", "free"):
        await kube.apply(name, name=f"{prefix}_{name}")
        await kube.wait_ready(name)
    holder = await asyncpg.connect(shared_postgres.dsn())
    try:
        await holder.execute(f"BEGIN; ALTER ROLE {prefix}_locked CONNECTION LIMIT 5")
        await kube.apply("locked", name=f"{prefix}_locked", login=True)
        await database.execute(f"ALTER ROLE {prefix}_free CREATEDB")
        await database.wait_role(f"{prefix}_free", lambda row: not row["rolcreatedb"], "repaired")
        await holder.execute("ROLLBACK")
    finally:
        await holder.close()
    await kube.wait_ready("locked")


async def test_a_forged_pgrole_schema_is_never_called(stage: Stage) -> None:
    """A tenant with CREATE on the database waits for an administrator to drop ours."""
    async with stage.database() as database:
        await database.execute(
            "CREATE ROLE tenant LOGIN PASSWORD 'p'; GRANT CREATE ON DATABASE postgres TO tenant;"
            "CREATE SEQUENCE public.trace; GRANT USAGE ON SEQUENCE public.trace TO PUBLIC"
        )
        async with running(stage.controller()) as controller:
            await stage.kube.apply("app", login=True)
            await stage.kube.wait_ready("app")
            tenant = await asyncpg.connect(stage.postgres.dsn("tenant", password="p"))
            try:
                for _ in range(3):
                    while not await usurp(database, tenant):
                        await stage.kube.wait_ready("app")
                    await database.execute("ALTER ROLE app CREATEDB")
                    await stage.kube.wait_reason("app", "ServerNotReady")
                    assert not await database.fetchval("SELECT is_called FROM public.trace")
                    await tenant.execute("BEGIN; SELECT pgrole.observe(); ROLLBACK")
                    assert await database.fetchval("SELECT is_called FROM public.trace"), "a call leaves a trace"
                    await database.execute("ALTER SEQUENCE public.trace RESTART")
                    await database.execute("DROP SCHEMA IF EXISTS pgrole CASCADE")
                    await stage.kube.wait_ready("app")
            finally:
                await tenant.close()
            await database.wait_role("app", lambda row: not row["rolcreatedb"], "repaired")
            assert controller.process.running


async def usurp(database: Database, tenant: "asyncpg.Connection[asyncpg.Record]") -> bool:
    """An administrator drops our schema, and the tenant creates one that records its callers everywhere. Returns False
    if the controller reinstalled ours first.
    """
    await database.drop_schema()
    leave = "BEGIN PERFORM nextval('public.trace'); RETURN NULL; END"  # no rollback undoes that
    with contextlib.suppress(asyncpg.DuplicateSchemaError, asyncpg.InsufficientPrivilegeError):
        await tenant.execute(
            "CREATE SCHEMA pgrole; GRANT USAGE ON SCHEMA pgrole TO PUBLIC;"
            "CREATE FUNCTION pgrole.observe(everything boolean DEFAULT false) RETURNS text LANGUAGE plpgsql"
            f" AS $$ {leave} $$;"
            f"CREATE FUNCTION pgrole.lock_changes() RETURNS text LANGUAGE plpgsql AS $$ {leave} $$;"
            f"CREATE FUNCTION pgrole.trap() RETURNS text LANGUAGE plpgsql AS $$ {leave} $$;"
            "CREATE TABLE pgrole.turn_to_look (a int); CREATE TABLE pgrole.turn_to_change (a int);"
            "CREATE VIEW pgrole.claim AS SELECT pgrole.trap() AS role_name, 1::oid AS role_oid,"
            " 1::bigint AS system_identifier, '' AS cluster, '' AS namespace, '' AS namespace_uid, '' AS object,"
            " '' AS object_uid, '' AS applied, 0::bigint AS drift_count, now() AS last_drift_at,"
            " '{}'::text[] AS last_drift_fields, now() AS released_at;"
            "GRANT ALL ON ALL TABLES IN SCHEMA pgrole TO PUBLIC"
        )
        return True
    return False
