"""postgres/privileges/searches: a fingerprint differs after every change of a privilege, and is free otherwise."""

from collections.abc import AsyncIterator

import pytest_asyncio

from pgrole_controller import resources
from pgrole_controller.local.postgres import PostgresServer
from pgrole_controller.postgres.capabilities import identify
from pgrole_controller.postgres.privileges.searches import Fingerprints
from tests.integration.acl_support import AclDatabase, acl_database

CREATED = """
SET ROLE {owner};
CREATE TABLE app.t (id int, name text);
CREATE SEQUENCE app.s;
CREATE FUNCTION app.fn(int) RETURNS int LANGUAGE sql AS 'SELECT 1';
RESET ROLE;
"""


@pytest_asyncio.fixture(loop_scope="session")
async def db(postgres_server: PostgresServer) -> AsyncIterator[AclDatabase]:
    async with acl_database(postgres_server) as made:
        await made.run(CREATED)
        yield made


async def test_the_fingerprint_differs_after_every_change_of_a_privilege(db: AclDatabase) -> None:
    fingerprints = Fingerprints(db.connection, await identify(db.connection), events=False, guarded=False)
    assert not (await fingerprints.compare()).is_needed
    database = await db.beside.fetchval("SELECT current_database()")
    for change in (
        "GRANT SELECT ON app.t TO {reader}",
        "GRANT SELECT (id) ON app.t TO {reader}, {writer}",
        "GRANT SELECT (name) ON app.t TO {reader}",
        "REVOKE SELECT (name) ON app.t FROM {reader}",
        "GRANT INSERT (id, name) ON app.t TO {reader}",
        "GRANT UPDATE (id) ON app.t TO {reader}, {writer}",
        "REVOKE SELECT (id), UPDATE (id) ON app.t FROM {reader}, {writer}",
        "GRANT USAGE ON SEQUENCE app.s TO {reader}",
        "GRANT USAGE ON SCHEMA app TO {reader}",
        "GRANT EXECUTE ON FUNCTION app.fn TO {reader}",
        f'GRANT CREATE ON DATABASE "{database}" TO {{reader}}',
        "ALTER DEFAULT PRIVILEGES FOR ROLE {owner} GRANT SELECT ON TABLES TO {reader}",
        "ALTER DEFAULT PRIVILEGES FOR ROLE {owner} REVOKE SELECT ON TABLES FROM {reader}",
        "ALTER TABLE app.t OWNER TO {heir}",
        "CREATE TABLE app.new ()",
        "ALTER EXTENSION plpgsql ADD TABLE app.new",
        "ALTER EXTENSION plpgsql DROP TABLE app.new",
        "DROP TABLE app.new",
        "CREATE DOMAIN app.tags AS text[]",
        "ALTER DOMAIN app.tags OWNER TO {heir}",
        "ALTER DOMAIN app.tags RENAME TO labels",
        "DROP DOMAIN app.labels",
    ):
        await db.run(change)
        assert (await fingerprints.compare()).is_needed, change
        assert not (await fingerprints.compare()).is_needed, change


async def test_the_fingerprint_differs_after_a_column_was_renamed_in_a_table_with_declared_columns(
    db: AclDatabase,
) -> None:
    fingerprints = Fingerprints(db.connection, await identify(db.connection), events=False, guarded=False)
    oid = await db.beside.fetchval("SELECT 'app.t'::regclass::oid::bigint")
    for tables, expected in ((frozenset[int](), False), (frozenset({oid}), True)):
        fingerprints.tables = tables
        await fingerprints.compare()
        for old, new in (("name", "title"), ("title", "name")):
            await db.run(f"ALTER TABLE app.t RENAME {old} TO {new}")
            assert (await fingerprints.compare()).is_needed is expected, (tables, old)


async def test_the_fingerprint_is_not_computed_while_no_transaction_ends(own_postgres: PostgresServer) -> None:
    async with acl_database(own_postgres) as db:
        snapshot, first = await ask(db, None)
        assert first is not None
        assert await ask(db, snapshot) == (snapshot, None)
        await db.run("CREATE TABLE app.t ()")
        _, other = await ask(db, snapshot)
        assert other not in (None, first)


async def ask(db: AclDatabase, since: str | None) -> tuple[str, int | None]:
    row = await db.connection.fetchrow(resources.text("sql", "events", "fingerprint.sql"), since, 1, [])
    assert row is not None
    return row["snapshot"], row["objects"]
