"""Connects to one database of a server, and explains why that database does not accept a connection."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress

import anyio

from pgrole_controller.core.ddl import spell_identifier
from pgrole_controller.core.errors import DropInterrupted, PgRoleError, Reason, Transient, Waiting
from pgrole_controller.dsn import user_of
from pgrole_controller.postgres import queries
from pgrole_controller.postgres.connection import Connection, Endpoint, connect
from pgrole_controller.postgres.errors import NO_DATABASE, refusing_connections
from pgrole_controller.postgres.rows import fetch_row

_NOT_ACCEPTING = "55000"
_FORBIDDEN = "42501"
_FULL = "53300"
#: Time limit in seconds of finding out why a database accepts no connections.
_EXPLAINING_SECONDS = 2.0


@asynccontextmanager
async def connect_to(endpoint: Endpoint, database: str, purpose: str, **settings: str) -> AsyncIterator[Connection]:
    """As `connect`, to this database of the server. If the database is at fault, the error is about it."""
    opened = False
    try:
        async with connect(endpoint.at(database), purpose, **settings) as connection:
            opened = True
            yield connection
    except PgRoleError as error:
        if opened:
            raise
        if _NOT_ACCEPTING in find_sqlstates(error) and await _is_invalid(endpoint, database, purpose, settings):
            raise DropInterrupted(database) from error.__cause__
        raise explain(error, database, login_of(endpoint)) from error.__cause__


async def _is_invalid(endpoint: Endpoint, database: str, purpose: str, settings: Mapping[str, str]) -> bool:
    """Whether a DROP DATABASE was interrupted. Asks the endpoint's own database, since PostgreSQL's message may be
    translated. Returns False without an answer.
    """
    query = queries.inspect("invalid_database")
    with suppress(PgRoleError), anyio.move_on_after(_EXPLAINING_SECONDS):
        async with connect(endpoint, purpose, **settings) as connection:
            return (await fetch_row(connection, query, database)).get("invalid", bool)
    return False


async def check_unreserved(connection: Connection, database: str) -> None:
    """Raises Transient if a superuser's connection, which is to be kept, took one of those that are reserved. With one
    for each of many databases, no administrator could connect any more.
    """
    if (await fetch_row(connection, queries.inspect("reserved"))).get("reserved", bool):
        raise Transient(
            Reason.DATABASE_ERROR,
            f'the controller stays out of database "{database}": the server has no connection left but those reserved '
            "for superusers; close some, raise max_connections, or lower PgServer.spec.databases.max",
        )


@asynccontextmanager
async def connect_read_only(endpoint: Endpoint, database: str | None = None) -> AsyncIterator[Connection]:
    """A connection of a command, whose transactions are READ ONLY. `database`: one other than the endpoint's. Raises
    PgRoleError.
    """
    read_only = {"default_transaction_read_only": "on"}
    opening = (
        connect(endpoint, "command", **read_only)
        if database is None
        else connect_to(endpoint, database, "command", **read_only)
    )
    async with opening as connection:
        yield connection


def login_of(endpoint: Endpoint) -> str:
    """Returns the role that logs in; empty if it is not known."""
    return user_of(endpoint.dsn) if endpoint.dsn is not None else endpoint.user


def explain(error: PgRoleError, database: str, login: str = "") -> PgRoleError:
    """Returns the error for the objects that declare privileges in a database to which the controller cannot
    connect. `login`: the role; empty if it is not known.
    """
    codes = find_sqlstates(error)
    if NO_DATABASE in codes:
        return DatabaseMissing(database)
    if _NOT_ACCEPTING in codes:
        return refusing_connections(database)
    if _FORBIDDEN in codes:
        who, to = (f'role "{login}"', spell_identifier(login)) if login else ("this role", "this role")
        grant = f"GRANT CONNECT ON DATABASE {spell_identifier(database)} TO {to}"
        return Transient(Reason.DATABASE_ERROR, f'{who} may not connect to database "{database}": {grant}')
    if _FULL in codes:
        return Transient(
            Reason.DATABASE_ERROR, f'the controller cannot connect to database "{database}": {error.message}'
        )
    return error


class DatabaseMissing(Waiting):
    """The database does not exist: nothing can be granted there, and nothing is left to revoke."""

    def __init__(self, database: str) -> None:
        super().__init__(Reason.PRIVILEGE_PENDING, f'database "{database}" does not exist')


def find_sqlstates(error: BaseException | None) -> set[str]:
    """Returns the SQLSTATEs of an error and its causes: with several hosts, those of each."""
    if error is None:
        return set()
    found = {str(getattr(error, "sqlstate", None) or "")} | find_sqlstates(error.__cause__)
    if isinstance(error, BaseExceptionGroup):
        found |= {code for one in error.exceptions for code in find_sqlstates(one)}
    return found - {""}
