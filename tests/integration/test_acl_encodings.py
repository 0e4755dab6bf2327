"""postgres/privileges in databases of other encodings, where names need not be UTF-8."""

from collections.abc import AsyncIterator

import pytest_asyncio

from pgrole_controller.core.privileges.acl import DECLARABLE
from pgrole_controller.local.postgres import PostgresServer
from pgrole_controller.postgres.privileges.acl_verification import AclRepair
from tests.integration.acl_support import AclDatabase, acl_database, held
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
