"""Runs GRANT, REVOKE and ALTER DEFAULT PRIVILEGES within a transaction, where needed in the name of the grantor."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import asyncpg

from pgrole_controller.core.ddl import divide_names, seen_name
from pgrole_controller.core.errors import Reason, Transient
from pgrole_controller.core.privileges import grant_ddl
from pgrole_controller.core.privileges.acl import AclChange, DatabaseObject, DefaultAclChange, ObjectId, ObjectKind
from pgrole_controller.core.privileges.grant_ddl import GrantStatement
from pgrole_controller.postgres import queries
from pgrole_controller.postgres.connection import Connection, has_raw_names
from pgrole_controller.postgres.rows import fetch


def _note_and_check(query: str, setting: str) -> tuple[str, str]:
    """Returns statements that note what a query returns, and that fail if it returns something else."""
    acls = f"coalesce(({queries.privileges(query)}), '')"
    return (
        f"SELECT pg_catalog.set_config('{setting}', {acls}, true)",
        f"DO $check$ BEGIN IF {acls} <> pg_catalog.current_setting('{setting}') THEN "
        "RAISE EXCEPTION USING ERRCODE = '40001', MESSAGE = 'a role was renamed meanwhile'; END IF; END $check$",
    )


_NOTE_ACLS, _CHECK_ACLS = _note_and_check("schema_acls", "pgrole.schema_acls")
_NOTE_COLUMNS, _CHECK_COLUMNS = _note_and_check("column_acls", "pgrole.column_acls")


async def execute_changes(
    connection: Connection,
    version: int,
    changes: Sequence[AclChange],
    defaults: Sequence[DefaultAclChange] = (),
    *,
    cascade: bool = False,
) -> asyncpg.InsufficientPrivilegeError | None:
    """Returns an error of a statement that may have had nothing left to do: with `cascade`, an earlier one may have
    taken everything from a grantor, who then may not even revoke. `version`: server_version_num.

    Raises Transient for a change that has no statement, and asyncpg's errors.
    """
    refused = None
    try:
        statements = grant_ddl.statements(changes, defaults, version, cascade=cascade)
    except ValueError as error:  # for one object: the others are changed without it
        raise Transient(Reason.DATABASE_ERROR, str(error)) from error
    for one in statements:
        if not one.acting_as:
            await connection.execute(one.text)
        elif not cascade:
            await _execute_as_grantor(connection, one)
        else:
            await connection.execute("SAVEPOINT grantor")
            try:
                await _execute_as_grantor(connection, one)
            except asyncpg.InsufficientPrivilegeError as error:
                refused = error
                await connection.execute("ROLLBACK TO SAVEPOINT grantor")
            await connection.execute("RELEASE SAVEPOINT grantor")
    return refused


@dataclass(frozen=True, slots=True)
class Loan:
    """What a grantor needs for its statement and has not: how to lend it, and how to take it back afterwards."""

    given: tuple[AclChange, ...] = ()
    taken: tuple[AclChange, ...] = ()

    def around(self, texts: Sequence[str]) -> list[str]:
        return [*_texts(self.given), *texts, *_texts(self.taken)]


async def find_loans(connection: Connection, statement: GrantStatement) -> tuple[Loan, Loan]:
    """Returns what to lend on schemas, and on columns. Raises PgRoleError.

    A grantor without USAGE on a schema, of the object or of the types of its arguments, could not name them, and gets
    USAGE until the statement is done. One that lost the grant option for columns gets that as well.
    """
    closed = await _find_closed_schemas(connection, statement)
    opening = tuple(AclChange(one, 0, statement.acting_as, ("USAGE",)) for one in closed)
    lost = await _find_lost_options(connection, statement)
    return (
        Loan(opening, tuple(replace(one, revoke=True) for one in opening)),
        Loan(tuple(replace(one, revoke=False, option_only=True) for one in lost), tuple(lost)),
    )


async def _execute_as_grantor(connection: Connection, statement: GrantStatement) -> None:
    """Lends the grantor what it lacks. The transaction fails if any role then has other privileges on the schema or the
    columns than before. Raises asyncpg's errors; 40001 if roles were renamed meanwhile.
    """
    # What it returns cannot be sent if it is not UTF-8.
    acting = f"SELECT pg_catalog.set_config('role', {seen_name(statement.acting_as)}, true) IS NOT NULL"
    texts = [acting, statement.text, "RESET ROLE"]
    schemas, columns = await find_loans(connection, statement)
    if schemas.given:
        texts = [
            f"SELECT pg_catalog.set_config('pgrole.schemas', '{{{_oids(schemas)}}}', true)",
            _NOTE_ACLS,
            *schemas.around(texts),
            _CHECK_ACLS,
        ]
    if columns.given:
        texts = [
            f"SELECT pg_catalog.set_config('pgrole.tables', '{{{_oids(columns)}}}', true)",
            _NOTE_COLUMNS,
            *columns.around(texts),
            _CHECK_COLUMNS,
        ]
    await connection.execute(";\n".join(texts))


def _oids(loan: Loan) -> str:
    return ",".join(str(one.object.id.oid) for one in loan.given)


def _texts(changes: Sequence[AclChange]) -> list[str]:
    return [one.text for one in grant_ddl.statements(changes)]


async def _find_closed_schemas(connection: Connection, statement: GrantStatement) -> list[DatabaseObject]:
    relations, routines = (
        [one.oid for one in statement.objects if one.catalog == catalog] for catalog in ("pg_class", "pg_proc")
    )
    grantor = divide_names([statement.acting_as])
    question = queries.privileges("closed_schemas", raw=has_raw_names(connection))
    rows = await fetch(connection, question, *grantor, relations, routines)
    found = [(ObjectId("pg_namespace", row.get("oid", int)), row.text("name")) for row in rows]
    return [DatabaseObject(schema, ObjectKind.SCHEMA, name, name, 0, "") for schema, name in found]


async def _find_lost_options(connection: Connection, statement: GrantStatement) -> list[AclChange]:
    """Returns how to take back what the grantor must be granted, with the grant option, before it can revoke."""
    if not statement.columns:
        return []
    grantor = divide_names([statement.acting_as])
    columns = [one.encode(errors="surrogateescape") for one in statement.columns]
    oids = [one.oid for one in statement.objects]
    question = queries.privileges("lost_options", raw=has_raw_names(connection))
    rows = await fetch(connection, question, *grantor, oids, columns, list(statement.privileges))
    return [
        AclChange(
            DatabaseObject(
                ObjectId("pg_class", row.get("oid", int)), ObjectKind.TABLE, row.text("schema"), row.text("name"), 0, ""
            ),
            0,
            statement.acting_as,
            (row.get("privilege", str),),
            revoke=True,
            columns=tuple(row.text("columns").split("\0")),
            option_only=row.get("kept", bool),
        )
        for row in rows
    ]
