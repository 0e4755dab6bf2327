"""Reads what the server answers while a role is emptied, and turns its errors into blockers."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache

from pgrole_controller import resources
from pgrole_controller.core.errors import PgRoleError, Reason
from pgrole_controller.core.plan import Blocker, ReassignOwned, blocked
from pgrole_controller.postgres.connection import Connection
from pgrole_controller.postgres.errors import (
    CHANGES_SUSPENDED,
    DEPENDENT,
    GRANTOR_IS_SUPERUSER,
    NOT_LEADING,
    NOT_THE_GRANTOR,
    sqlstate_of,
    translate_errors,
)
from pgrole_controller.postgres.rows import Row, fetch

#: Prefixes of SQLSTATEs that concern the server or the connection, not one database.
_OF_THE_SERVER = ("08", "53300", "57P", "PGR01", NOT_LEADING, CHANGES_SUSPENDED)
_REMEDIES = {
    DEPENDENT: "objects of other roles depend on it",
    "42501": "the controller needs the privileges of both roles, and CONNECT on the database",
    NOT_THE_GRANTOR: "GRANT it to the controller's role, or revoke them as a superuser, with SET ROLE to it",
    GRANTOR_IS_SUPERUSER: "PostgreSQL lets no one revoke these: make it NOSUPERUSER until the role is dropped",
    "53200": "too many objects for one transaction: raise max_locks_per_transaction",
}


@cache
def reassign_sql(name: str) -> str:
    return resources.text("sql", "reassign", f"{name}.sql")


async def ask(connection: Connection, name: str, *arguments: object) -> list[Row]:
    """The rows of a question in sql/reassign. Raises PgRoleError."""
    return await fetch(connection, "reassign", reassign_sql(name), *arguments, reason=Reason.SERVER_NOT_READY)


@asynccontextmanager
async def refusing(task: ReassignOwned) -> AsyncIterator[None]:
    """Reports errors of statements on shared objects as blockers: raises Waiting."""
    try:
        with translate_errors("reassign"):
            yield
    except PgRoleError as error:
        raise blocked(task.role, [Blocker("", describe_blocker(error))]) from error


def describe_blocker(error: PgRoleError) -> str:
    """The text of a blocker. Raises the error itself if it concerns the whole server."""
    code = sqlstate_of(error)
    if error.reason != Reason.DROP_BLOCKED and (not code or code.startswith(_OF_THE_SERVER)):
        raise error
    remedy = _REMEDIES.get(code)
    return f"{error.message} ({remedy})" if remedy else error.message
