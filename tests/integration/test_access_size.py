"""`pgrole-controller access` reads whatever a tenant can store: wide tables, long signatures, and ACLs with very many
entries.
"""

import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
import pytest_asyncio

from pgrole_controller.commands.access_reading import MOST_USERS
from pgrole_controller.core.access.access_report import who_can
from pgrole_controller.core.access.effective_access import AccessJudge, SubjectJudge
from pgrole_controller.core.privileges.acl import COLUMN_PRIVILEGES, ObjectId, ObjectKind
from pgrole_controller.postgres import access_catalog
from pgrole_controller.postgres.access_catalog import (
    find_object,
    find_role,
    read_databases,
    read_object_name,
    read_objects,
    read_role_graph,
    read_version,
)
from pgrole_controller.postgres.connection import Connection, Endpoint, connect
from pgrole_controller.postgres.plan_reading import read_passed_on

COLUMNS = 1_590
HOLDERS = 40_000


@dataclass(frozen=True, slots=True)
class Crowd:
    """A database in a transaction that is rolled back. `reader`: a role with two groups."""

    connection: Connection
    reader: str
    groups: tuple[str, str]

    async def widen(self, table: str) -> None:
        """Creates a table on whose columns all three roles hold everything."""
        columns = ", ".join(f"column_{number:04} int" for number in range(COLUMNS))
        names = ", ".join(f"column_{number:04}" for number in range(COLUMNS))
        granted = ", ".join(f"{privilege} ({names})" for privilege in sorted(COLUMN_PRIVILEGES))
        await self.connection.execute(f"CREATE TABLE {table} ({columns})")
        for role in (self.reader, *self.groups):
            await self.connection.execute(f"GRANT {granted} ON {table} TO {role}")

    async def reached(self) -> set[int]:
        graph = await read_role_graph(self.connection)
        return {find_role(graph, role) for role in (self.reader, *self.groups)}


@pytest_asyncio.fixture(loop_scope="session")
async def crowd(database: str) -> AsyncIterator[Crowd]:
    suffix = secrets.token_hex(4)
    reader, *groups = (f"crowd_{role}_{suffix}" for role in ("reader", "first", "second"))
    async with connect(Endpoint(dsn=database), "test") as connection:
        transaction = connection.transaction()
        await transaction.start()
        try:
            await connection.execute(f"CREATE ROLE {reader}; CREATE ROLE {groups[0]}; CREATE ROLE {groups[1]}")
            await connection.execute(f"GRANT {groups[0]}, {groups[1]} TO {reader}; SET allow_system_table_mods = on")
            yield Crowd(connection, reader, (groups[0], groups[1]))
        finally:
            await transaction.rollback()


async def test_columns_of_wide_tables_are_read(crowd: Crowd) -> None:
    await crowd.widen("public.wide")
    await crowd.widen("public.other")
    # No two columns have the same ACL.
    await crowd.connection.execute(
        "UPDATE pg_attribute SET attacl = attacl || makeaclitem(attnum::int::oid, 10, 'SELECT', false) "
        "WHERE attrelid = 'public.other'::regclass AND attnum > 0"
    )
    read = await read_objects(crowd.connection, await crowd.reached(), everything=False)
    assert not read.cut
    for table in ("wide", "other"):
        (group,) = [one for one in read.groups if one.names == (table,)]
        held = [entry for entry in group.acl.entries if entry.column]
        assert len({(one.grantee, one.privilege, one.column) for one in held}) == 3 * 4 * COLUMNS
        judge = AccessJudge(await read_role_graph(crowd.connection), await read_version(crowd.connection))
        subject = find_role(judge.graph, crowd.reader)
        assert len(SubjectJudge(judge, subject).privileges(group.acl)) == 4 * COLUMNS


async def test_beyond_the_most_entries_of_columns_the_answer_says_that_it_is_cut(
    crowd: Crowd, monkeypatch: pytest.MonkeyPatch
) -> None:
    await crowd.widen("public.wide")
    monkeypatch.setattr(access_catalog, "MOST_COLUMN_ENTRIES", COLUMNS)
    read = await read_objects(crowd.connection, await crowd.reached(), everything=False)
    assert read.cut


async def test_very_long_signatures_hide_no_other_object(crowd: Crowd) -> None:
    schema, domain = "s" * 63, "d" * 63
    many = 1_400
    await crowd.connection.execute(
        f"""
        CREATE SCHEMA {schema}; CREATE DOMAIN {schema}.{domain} AS int; CREATE TABLE public.plain ();
        GRANT SELECT ON public.plain TO {crowd.reader};
        DO $do$ BEGIN
            FOR number IN 1 .. {many} LOOP
                EXECUTE format('CREATE FUNCTION public.f%s(%s) RETURNS int LANGUAGE sql RETURN 1', number,
                               rtrim(repeat('{schema}.{domain}, ', 100), ', '));
            END LOOP;
        END $do$
        """
    )
    read = await read_objects(crowd.connection, await crowd.reached(), everything=False)
    assert any(one.names == ("plain",) for one in read.groups)
    (routines,) = [one for one in read.groups if one.acl.object.kind is ObjectKind.ROUTINE and one.acl.count == many]
    assert 0 < len(routines.names) < many


def _forge(owner: str, privilege: str, holders: int = HOLDERS) -> str:
    """Entries of roles that do not exist."""
    entry = f"makeaclitem((4000000000 + n)::oid, {owner}, '{privilege}', false)"
    return f"ARRAY(SELECT {entry} FROM generate_series(1::bigint, {holders}) AS n)"


async def test_schemas_and_databases_granted_to_very_many_roles_are_read(crowd: Crowd) -> None:
    await crowd.connection.execute(
        f"""
        CREATE SCHEMA crowded; GRANT USAGE ON SCHEMA crowded TO {crowd.reader};
        UPDATE pg_namespace SET nspacl = nspacl || {_forge("nspowner", "USAGE")} WHERE nspname = 'crowded';
        GRANT CREATE ON DATABASE {await crowd.connection.fetchval("SELECT current_database()")} TO {crowd.reader};
        UPDATE pg_database SET datacl = datacl || {_forge("datdba", "CREATE")} WHERE datname = current_database()
        """
    )
    databases = await read_databases(crowd.connection)
    (here,) = [one.acl for one in databases if one.current]
    assert len([one.acl.object.name for one in databases]) == len({one.acl.object.id for one in databases})
    assert len({one.grantee for one in here.entries if one.privilege == "CREATE"}) >= HOLDERS + 1
    found = await find_object(crowd.connection, read_object_name("crowded"), here)
    assert len({one.grantee for one in found.acl.entries}) >= HOLDERS + 1
    assert len(found.versions) == 1
    judge = AccessJudge(await read_role_graph(crowd.connection), await read_version(crowd.connection))
    users = who_can(judge, found.acl, found.around, MOST_USERS)
    assert find_role(judge.graph, crowd.reader) in {user.role for user in users.users}


async def test_what_a_role_passed_on_is_read_from_wide_tables(crowd: Crowd) -> None:
    await crowd.widen("public.wide")
    oid = await crowd.connection.fetchval("SELECT 'public.wide'::regclass::oid")
    owner = await crowd.connection.fetchval("SELECT relowner FROM pg_class WHERE oid = $1", oid)
    forged = _forge(str(owner), "SELECT", 420)
    await crowd.connection.execute(
        f"UPDATE pg_attribute SET attacl = attacl || {forged} WHERE attrelid = {oid} AND attnum > 0"
    )
    place = owner, ObjectId("pg_class", oid)
    passed = (await read_passed_on(crowd.connection, [place]))[place]
    assert {(one.privilege, one.column) for one in passed} == {
        (privilege, f"column_{number:04}") for privilege in COLUMN_PRIVILEGES for number in range(COLUMNS)
    }
    assert all({crowd.reader, *crowd.groups} <= set(one.grantees) for one in passed)
    assert sum(len(one.grantees) for one in passed) == COLUMNS * (3 * len(COLUMN_PRIVILEGES) + 420)
