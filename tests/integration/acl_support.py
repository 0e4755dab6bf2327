"""Shared by the tests of privileges: a database with schema app, and roles that own, grant and hold privileges."""

import secrets
from collections.abc import AsyncIterator, Collection, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import asyncpg

from pgrole_controller.core.privileges.acl import ObjectKind, ObservedAcl
from pgrole_controller.local.postgres import PostgresServer
from pgrole_controller.postgres.answer_pages import SingleRow
from pgrole_controller.postgres.connection import Connection, Endpoint, connect
from pgrole_controller.postgres.privileges.acl_catalog import read_database, read_named_acls_and, read_recent_acls
from pgrole_controller.postgres.privileges.acl_rows import SchemaFilter
from tests.servers import create_database

#: Roles of every such database; `owner` owns schema app.
ROLES = ("owner", "heir", "delegate", "reader", "writer", "stranger")

#: Each table has these columns, too.
SYSTEM_COLUMNS = frozenset({"cmax", "cmin", "ctid", "tableoid", "xmax", "xmin"})


@dataclass(frozen=True, slots=True)
class AclDatabase:
    """`connection` is the controller's, as superuser; `beside` belongs to another superuser. `oids` has ROLES by name.

    In SQL, role names end in `suffix`, so that databases on one server share no roles.
    """

    dsn: str
    connection: Connection
    beside: Connection
    oids: dict[str, int] = field(default_factory=dict)
    suffix: str = ""

    async def run(self, script: str) -> None:
        """Runs a script as the other superuser, with `{owner}` and so on replaced by role names."""
        await self.beside.execute(self.fill(script))

    def fill(self, script: str) -> str:
        for role in ROLES:
            script = script.replace(f"{{{role}}}", self.name(role))
        return script

    def name(self, role: str) -> str:
        return f"{role}_{self.suffix}"

    def grantees(self, *roles: str) -> list[int]:
        return [self.oids[role] for role in roles]


@asynccontextmanager
async def acl_database(server: PostgresServer, options: str = "") -> AsyncIterator[AclDatabase]:
    suffix = secrets.token_hex(4)
    database = f"acl_{suffix}"
    home = await asyncpg.connect(server.dsn())
    names = {role: f"{role}_{suffix}" for role in ROLES}
    try:
        await create_database(home, database, options)
        await home.execute("".join(f"CREATE ROLE {name};" for name in names.values()))
        beside = await asyncpg.connect(server.dsn(database=database))
        try:
            await beside.execute(
                f"CREATE SCHEMA app AUTHORIZATION {names['owner']};"
                f"GRANT USAGE ON SCHEMA app TO {names['delegate']}; GRANT CREATE ON SCHEMA app TO {names['heir']}"
            )
            oids = {
                role: await beside.fetchval("SELECT oid FROM pg_roles WHERE rolname = $1", name)
                for role, name in names.items()
            }
            async with connect(Endpoint(dsn=server.dsn(database=database)), "test") as connection:
                yield AclDatabase(server.dsn(database=database), connection, beside, oids, suffix)
        finally:
            await beside.close()
    finally:
        await home.execute(f'DROP DATABASE IF EXISTS "{database}" WITH (FORCE)')
        await home.execute(f"DROP ROLE IF EXISTS {', '.join(names.values())}")
        await home.close()


def anywhere(_schema: str, _kind: ObjectKind) -> bool:
    return True


def nowhere(_schema: str, _kind: ObjectKind) -> bool:
    return False


def named(acls: Iterable[ObservedAcl], name: str, schema: str = "app") -> ObservedAcl:
    """Returns the only ACL with this name."""
    (found,) = (one for one in acls if one.object.name == name and one.object.schema in (schema, ""))
    return found


def held(one: ObservedAcl, *grantees: int) -> set[tuple[str, str]]:
    """Returns the grantees' privileges, or everyone's if no grantee is given, as (column, privilege)."""
    return {(entry.column, entry.privilege) for entry in one.entries if not grantees or entry.grantee in grantees}


def labels(acls: Collection[ObservedAcl]) -> set[str]:
    return {one.object.label for one in acls}


async def read_acls(connection: Connection, grantees: Collection[int], touched: SchemaFilter) -> list[ObservedAcl]:
    """The ACLs that a complete read returns."""
    return list((await read_database(connection, grantees, (), touched, lambda _table: False)).acls)


async def read_named(
    connection: Connection, grantees: Collection[int], names: Collection[str], oids: Collection[int] = ()
) -> list[ObservedAcl]:
    """The ACLs of the objects with these names, in whichever schema, or these oids."""
    nothing = SingleRow("SELECT 1 AS one")
    return (await read_named_acls_and(nothing, connection, grantees, oids, names, 0, columns=False))[0]


async def next_xid(connection: Connection) -> int:
    """The id of the next transaction, or of a later one: others run in the same server."""
    return int(await connection.fetchval("SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint"))


async def read_recent(
    connection: Connection, grantees: Collection[int], since: int, touched: SchemaFilter, tables: Collection[int] = ()
) -> list[ObservedAcl]:
    """The ACLs that transactions from this id on may have written. `tables`: as in read_recent_acls."""
    nothing = SingleRow("SELECT 1 AS one")
    found, _ = await read_recent_acls(nothing, connection, grantees, since, touched, tables, database=False)
    return found
