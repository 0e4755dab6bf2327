"""postgres/privileges in databases of other encodings, where names need not be UTF-8."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest
import pytest_asyncio

from pgrole_controller.core.privileges.acl import DECLARABLE
from pgrole_controller.core.server_options import HistoryConfig
from pgrole_controller.local.postgres import PostgresServer
from pgrole_controller.postgres import queries
from pgrole_controller.postgres.drift_history import RecordedDrift, build_record_statement
from pgrole_controller.postgres.history_listing import list_drifts
from pgrole_controller.postgres.privileges.acl_verification import AclRepair
from pgrole_controller.postgres.privileges.stored_state import build_applied_statement, read_state
from tests.integration.acl_support import AclDatabase, acl_database, held, named
from tests.integration.test_acl_apply import apply, change, read

#: A byte that is not UTF-8, and what the server reads in a format: two kinds of quotes and a backslash.
ILLEGIBLE = "caf\udce9\"'\\ %s"
#: The same in a statement.
SPELLED = "convert_from('\\x636166e922275c202573'::bytea, 'SQL_ASCII')"


@pytest_asyncio.fixture(loop_scope="session")
async def ascii_db(postgres_server: PostgresServer) -> AsyncIterator[AclDatabase]:
    async with acl_database(postgres_server, "TEMPLATE template0 ENCODING 'SQL_ASCII' LOCALE 'C'") as made:
        yield made


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
