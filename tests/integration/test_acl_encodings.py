"""postgres/privileges in databases of other encodings, where names need not be UTF-8."""

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime

import pytest
import pytest_asyncio

from pgrole_controller.core.privileges.acl import DECLARABLE
from pgrole_controller.core.privileges.privilege_result import DriftAuthor, Evidence
from pgrole_controller.core.server_options import HistoryConfig
from pgrole_controller.local.postgres import PostgresServer
from pgrole_controller.postgres import queries
from pgrole_controller.postgres.connection import Endpoint, connect
from pgrole_controller.postgres.drift_history import RecordedDrift, build_record_statement
from pgrole_controller.postgres.history_listing import list_drifts
from pgrole_controller.postgres.privileges.acl_apply import apply_acls
from pgrole_controller.postgres.privileges.acl_repair import AclRepair
from pgrole_controller.postgres.privileges.acl_transaction import AclDialect
from pgrole_controller.postgres.privileges.stored_state import build_applied_statement, read_state
from tests.integration.acl_support import AclDatabase, acl_database, anywhere, held, named, read_acls
from tests.integration.test_acl_apply import ORPHANED, apply, apply_one, change, read

#: A byte that is not UTF-8, and what the server reads in a format: two kinds of quotes and a backslash.
ILLEGIBLE = "caf\udce9\"'\\ %s"
#: The same in a statement.
SPELLED = "convert_from('\\x636166e922275c202573'::bytea, 'SQL_ASCII')"


@pytest_asyncio.fixture(loop_scope="session")
async def ascii_db(postgres_server: PostgresServer) -> AsyncIterator[AclDatabase]:
    async with acl_database(postgres_server, "TEMPLATE template0 ENCODING 'SQL_ASCII' LOCALE 'C'") as made:
        yield made


@pytest_asyncio.fixture(loop_scope="session", params=["SQL_ASCII", "EUC_JP", "UTF8"])
async def beside_illegible(
    postgres_server: PostgresServer, request: pytest.FixtureRequest
) -> AsyncIterator[AclDatabase]:
    """On its server is a role whose name neither UTF-8 nor EUC_JP can have."""
    options = "TEMPLATE template0 ENCODING '{}' LOCALE 'C'"
    async with (
        acl_database(postgres_server, options.format("LATIN1")) as latin,
        acl_database(postgres_server, options.format(request.param)) as made,
    ):
        await latin.run('CREATE ROLE "café"')
        try:
            await made.run("SET ROLE {owner}; CREATE TABLE app.t (id int, name text); RESET ROLE")
            yield made
        finally:
            await latin.run('DROP ROLE "café"')


async def create(db: AclDatabase, *statements: str) -> None:
    """Runs statements in which %1$I is the illegible name."""
    for one in statements:
        await db.run(f"DO $do$ BEGIN EXECUTE format($f${one}$f$, {SPELLED}); END $do$")


async def test_objects_with_names_that_are_not_utf_8_are_granted_and_revoked(ascii_db: AclDatabase) -> None:
    await create(
        ascii_db,
        "CREATE SCHEMA %1$I",
        "CREATE TABLE %1$I.%1$I (id int)",
        "CREATE SEQUENCE %1$I.s",
        "CREATE TYPE %1$I.typ AS ENUM ()",
        "CREATE FUNCTION %1$I.%1$I(%1$I.typ[]) RETURNS int LANGUAGE plpgsql AS 'BEGIN END'",
    )
    reader = ascii_db.oids["reader"]
    for revoke in (False, True):
        found = [one for one in await read(ascii_db) if ILLEGIBLE in (one.object.schema, one.object.name)]
        assert len(found) == 4
        changes = [change(ascii_db, one, "reader", DECLARABLE[one.object.kind][0], revoke=revoke) for one in found]
        applied = await apply(ascii_db, [AclRepair(one, (each,)) for one, each in zip(found, changes, strict=True)])
        assert not applied.errors
        after = {one.object.id: one for one in await read(ascii_db)}
        assert {bool(held(after[one.object.id], reader)) for one in found} == {not revoke}


async def test_a_drift_of_an_object_with_any_name_is_stored_and_recorded(ascii_db: AclDatabase) -> None:
    connection, role = ascii_db.connection, ascii_db.oids["reader"]
    await ascii_db.run(queries.install_database())
    words = ("DELETE on table app.größe was granted", "SELECT on table app.表 \U0001f418 caf\\xe9 was granted")
    drift = RecordedDrift("größe", ("privileges",), True, "größe", words=words)
    await connection.execute(build_applied_statement(1, role, "größe", "uid", "digest", {"words": list(words)}))
    await connection.execute(f"SELECT pgrole.lock_changes(); {build_record_statement([drift], HistoryConfig())}")
    stored = (await read_state(connection, [role], "postgres", stores=True)).find(role)
    assert stored is not None
    assert stored.last_drift == {"words": list(words)}
    (found,) = await list_drifts(connection, datetime.min.replace(tzinfo=UTC), "größe", 10)
    assert (found.database, found.words) == ("größe", words)


async def test_texts_that_are_too_long_for_the_history_are_cut_in_whole_characters(ascii_db: AclDatabase) -> None:
    await ascii_db.run(queries.install_database())
    text = "x" + "\U0001f418" * 200
    by = DriftAuthor(Evidence.LOG, text, text, text, text, statement=text)
    statement = build_record_statement([RecordedDrift("reader", ("privileges",), True, "x", by=by)], HistoryConfig())
    await ascii_db.connection.execute(f"SELECT pgrole.lock_changes(); {statement}")
    (found,) = await list_drifts(ascii_db.connection, datetime.min.replace(tzinfo=UTC), "reader", 10)
    assert (found.by.login, found.by.statement) == (text[:16], text[:100])


@pytest.mark.parametrize("column", ["größe", ILLEGIBLE])
async def test_columns_with_any_name_are_granted_and_revoked(ascii_db: AclDatabase, column: str) -> None:
    await create(ascii_db, 'CREATE TABLE app.%1$I (id int, "größe" int, %1$I int)')
    reader = ascii_db.oids["reader"]
    for revoke in (False, True):
        found = named(await read(ascii_db), ILLEGIBLE)
        one = change(ascii_db, found, "reader", "SELECT", columns=("id", column), revoke=revoke)
        assert not (await apply(ascii_db, [AclRepair(found, (one,))])).errors
        expected = set() if revoke else {("id", "SELECT"), (column, "SELECT")}
        assert held(named(await read(ascii_db), ILLEGIBLE), reader) == expected


async def test_a_role_whose_name_cannot_be_converted_stops_no_revoke_in_the_name_of_another(
    beside_illegible: AclDatabase,
) -> None:
    """Neither from a grantor that lost the grant option, nor from one that may not use the schema."""
    db = beside_illegible
    await db.run(f"{ORPHANED} REVOKE SELECT ON app.t FROM {{delegate}}; REVOKE USAGE ON SCHEMA app FROM {{delegate}}")
    found = named(await read(db), "t")
    revoke = change(db, found, "reader", "SELECT", columns=("id", "name"), revoke=True, grantor=db.name("delegate"))
    assert await apply_one(db, found, revoke) is None
    assert not held(named(await read(db), "t"), db.oids["reader"])


async def test_a_role_whose_name_cannot_be_converted_hides_no_remedy(
    beside_illegible: AclDatabase, postgres_server: PostgresServer
) -> None:
    db = beside_illegible
    database = await db.beside.fetchval("SELECT current_database()")
    await db.run("ALTER ROLE {stranger} LOGIN PASSWORD 'p'; GRANT USAGE ON SCHEMA app TO {stranger}")
    async with connect(Endpoint(postgres_server.dsn(db.name("stranger"), database, "p")), "test") as steward:
        weak = replace(db, connection=steward)
        found = named(await read(weak), "t")
        error = await apply_one(weak, found, change(weak, found, "reader", "SELECT"))
    assert error is not None
    assert f'A superuser can allow it: GRANT "{db.name("owner")}" TO "{db.name("stranger")}"' in error.message


@pytest_asyncio.fixture(loop_scope="session")
async def illegible_role(ascii_db: AclDatabase) -> AsyncIterator[int]:
    """The oid of a role that may use schema app."""
    await ascii_db.run("CREATE TABLE app.t (id int)")
    await create(ascii_db, "CREATE ROLE %1$I")
    try:
        await create(ascii_db, "GRANT USAGE ON SCHEMA app TO %1$I")
        found = await ascii_db.beside.fetchval(f"SELECT oid FROM pg_roles WHERE rolname = {SPELLED}")
        assert isinstance(found, int)
        yield found
    finally:
        await ascii_db.run("DROP TABLE app.t")
        await create(ascii_db, "DROP OWNED BY %1$I", "DROP ROLE %1$I")


async def test_a_grant_by_a_role_whose_name_is_not_utf_8_is_revoked_in_its_name(
    ascii_db: AclDatabase, illegible_role: int
) -> None:
    await create(ascii_db, "GRANT SELECT ON app.t TO %1$I WITH GRANT OPTION")
    await create(ascii_db, "SET LOCAL ROLE %1$I; " + ascii_db.fill("GRANT SELECT (id) ON app.t TO {reader}"))
    await create(ascii_db, "REVOKE SELECT ON app.t FROM %1$I; REVOKE USAGE ON SCHEMA app FROM %1$I")
    found = named(await read(ascii_db), "t")
    assert {one.grantor for one in found.entries if one.column} == {illegible_role}
    revoke = change(ascii_db, found, "reader", "SELECT", columns=("id",), revoke=True, grantor=ILLEGIBLE)
    assert await apply_one(ascii_db, found, revoke) is None
    assert not held(named(await read(ascii_db), "t"), ascii_db.oids["reader"])


async def test_a_role_whose_name_is_not_utf_8_is_granted_again_what_it_loses_with_its_grantor(
    ascii_db: AclDatabase, illegible_role: int
) -> None:
    await ascii_db.run("GRANT SELECT ON app.t TO {delegate} WITH GRANT OPTION")
    await create(ascii_db, ascii_db.fill("SET LOCAL ROLE {delegate}; GRANT SELECT ON app.t TO %1$I"))
    grantees = [*ascii_db.grantees("delegate"), illegible_role]
    found = named(await read_acls(ascii_db.connection, grantees, anywhere), "t")
    repair = AclRepair(found, (change(ascii_db, found, "delegate", "SELECT", revoke=True),))
    dialect = AclDialect(int(await ascii_db.beside.fetchval("SELECT current_setting('server_version_num')::int")))
    assert not (await apply_acls(ascii_db.connection, [repair], (), grantees, dialect)).errors
    after = named(await read_acls(ascii_db.connection, grantees, anywhere), "t")
    assert {one.grantor for one in found.entries if one.grantee == illegible_role} == {ascii_db.oids["delegate"]}
    assert [one.grantee for one in after.entries if one.grantor == found.object.owner] == [illegible_role]
