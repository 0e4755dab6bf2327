"""Runs GRANT, REVOKE and ALTER DEFAULT PRIVILEGES within a transaction, where needed in the name of the grantor."""

from collections.abc import Sequence

import asyncpg

from pgrole_controller.core.errors import Reason, Transient
from pgrole_controller.core.privileges import grant_ddl
from pgrole_controller.core.privileges.acl import AclChange, DefaultAclChange
from pgrole_controller.postgres.connection import Connection
from pgrole_controller.postgres.privileges.grantor_statements import run_as_grantor


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
            await run_as_grantor(connection, one)
        else:
            await connection.execute("SAVEPOINT grantor")
            try:
                await run_as_grantor(connection, one)
            except asyncpg.InsufficientPrivilegeError as error:
                refused = error
                await connection.execute("ROLLBACK TO SAVEPOINT grantor")
            await connection.execute("RELEASE SAVEPOINT grantor")
    return refused
