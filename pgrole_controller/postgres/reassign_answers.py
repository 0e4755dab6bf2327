"""Reads what the server answers while a role is emptied, and turns its errors into blockers."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import cache

import asyncpg

from pgrole_controller import resources
from pgrole_controller.core.errors import PgRoleError, Reason, Transient, Waiting
from pgrole_controller.core.plan import Blocker, ReassignOwned, blocked
from pgrole_controller.postgres.connection import Connection
from pgrole_controller.postgres.errors import (
    CHANGES_SUSPENDED,
    GRANTOR_IS_SUPERUSER,
    NOT_LEADING,
    NOT_THE_GRANTOR,
    translate_errors,
)

#: Prefixes of SQLSTATEs that concern the server or the connection, not one database.
_OF_THE_SERVER = ("08", "53300", "57P", "PGR01", NOT_LEADING, CHANGES_SUSPENDED)
_REMEDIES = {
    "2BP01": "objects of other roles depend on it",
    "42501": "the controller needs the privileges of both roles, and CONNECT on the database",
    NOT_THE_GRANTOR: "GRANT it to the controller's role, or revoke them as a superuser, with SET ROLE to it",
    GRANTOR_IS_SUPERUSER: "PostgreSQL lets no one revoke these: make it NOSUPERUSER until the role is dropped",
    "53200": "too many objects for one transaction: raise max_locks_per_transaction",
}


@cache
def reassign_sql(name: str) -> str:
    return resources.text("sql", "reassign", f"{name}.sql")


async def query_rows(connection: Connection, query: str, *arguments: object) -> list[asyncpg.Record]:
    """The rows of a query; read their values within `reading_answer`."""
    with translate_errors("reassign"), reading_answer():
        return list(await connection.fetch(query, *arguments))


@contextmanager
def reading_answer() -> Iterator[None]:
    """Raises Transient for an answer that does not have the expected form: the server is at fault."""
    try:
        yield
    except asyncpg.InterfaceError:  # some are ValueErrors as well
        raise
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, AssertionError) as error:
        kind = type(error).__name__
        raise Transient(Reason.SERVER_NOT_READY, f"the controller cannot read the server's answer ({kind})") from error


@contextmanager
def decoding_errors() -> Iterator[None]:
    """Raises Waiting for an error message that is not UTF-8, since it may quote a name in another encoding."""
    try:
        yield
    except UnicodeDecodeError as error:
        words = "PostgreSQL's error message is in an encoding that cannot be read: run REASSIGN OWNED there by hand"
        raise Waiting(Reason.DROP_BLOCKED, words) from error


@asynccontextmanager
async def refusing(task: ReassignOwned) -> AsyncIterator[None]:
    """Reports errors of statements on shared objects as blockers: raises Waiting."""
    try:
        with translate_errors("reassign"), decoding_errors():
            yield
    except PgRoleError as error:
        raise blocked(task.role, [Blocker("", describe_blocker(error))]) from error


def describe_blocker(error: PgRoleError) -> str:
    """The text of a blocker. Raises the error itself if it concerns the whole server."""
    code = sqlstate_of(error)
    if error.reason != Reason.DROP_BLOCKED and (code is None or code.startswith(_OF_THE_SERVER)):
        raise error
    remedy = _REMEDIES.get(code or "")
    return f"{error.message} ({remedy})" if remedy else error.message


def sqlstate_of(error: PgRoleError) -> str | None:
    code = getattr(error.__cause__, "sqlstate", None)
    return code if isinstance(code, str) else None


def read_number(value: object) -> int | None:
    return None if value is None else int(str(value))


def read_bytes(value: object) -> bytes:
    if not isinstance(value, bytes):  # bytes(7) would be seven zero bytes
        raise TypeError(type(value).__name__)
    return value


def show_name(name: bytes) -> str:
    """A name in any encoding; bytes that are not UTF-8 are escaped."""
    return name.decode(errors="backslashreplace")
