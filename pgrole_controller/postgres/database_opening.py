"""Opens a session with one database whose privileges are managed, and explains why a database does not accept one."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

from pgrole_controller import resources
from pgrole_controller.core.database_options import DatabaseMode
from pgrole_controller.core.errors import PgRoleError, Reason, Transient, Waiting
from pgrole_controller.postgres.capabilities import Identity, identify
from pgrole_controller.postgres.connection import Connection, Endpoint, connect
from pgrole_controller.postgres.database_schema import DatabaseInstallation, install_database
from pgrole_controller.postgres.database_session import DatabaseSession
from pgrole_controller.postgres.errors import convert_unexpected, refusing_connections, translate_errors
from pgrole_controller.postgres.fence import Candidate, Fence, NotLeading, lead_while_away, take_lead
from pgrole_controller.postgres.rows import fetch_row

_DATABASE_MISSING = "3D000"
_NOT_ACCEPTING = "55000"
_FORBIDDEN = "42501"
_FULL = "53300"


@asynccontextmanager
async def open_database(
    endpoint: Endpoint,
    database: str,
    home: str,
    server: Identity,
    *,
    detection: DatabaseMode,
    interval: float,
    may_install: bool,
    candidate: Candidate | None,
    on_notice: Callable[[], None],
    known: Fence | None = None,
) -> AsyncIterator[DatabaseSession]:
    """A session with one database of the server that `server` identifies. `home`: the name of the home database.
    `known`: the lead that this process took there in an earlier session.

    `on_notice` is called when something may have changed. Raises PgRoleError if the session cannot begin; what is wrong
    with the database itself is Waiting or names the remedy.
    """
    with convert_unexpected():
        async with _connect(endpoint.at(database), database) as connection:
            identity = await _identify(connection, database)
            if not identity.is_same_server(server):
                raise Transient(Reason.SERVER_NOT_READY, f'database "{database}" is on a different server')
            await _silence_triggers(connection, identity)
            installation = await install_database(connection, allowed=may_install)
            fence = await _lead(connection, candidate, installation, known)
            place = await fetch_row(connection, "", resources.text("sql", "events", "place.sql"))
            session = DatabaseSession(
                database,
                home,
                connection,
                identity,
                installation,
                fence,
                place.get("oid", int),
                interval=interval,
                on_notice=on_notice,
            )
            await session.detect(detection)
            yield session


@asynccontextmanager
async def _connect(endpoint: Endpoint, database: str) -> AsyncIterator[Connection]:
    """Raises PgRoleError that is about the database where the database is at fault."""
    opened = False
    try:
        # PostgreSQL would plan the large questions of each round again: that takes longer than to answer them
        async with connect(endpoint, "database", plan_cache_mode="force_generic_plan") as connection:
            opened = True
            yield connection
    except PgRoleError as error:
        if opened:
            raise
        raise explain(error, database) from error.__cause__


def explain(error: PgRoleError, database: str) -> PgRoleError:
    """Returns the error for the objects that declare privileges in a database to which the controller cannot
    connect.
    """
    codes = _codes(error, set())
    if _DATABASE_MISSING in codes:
        return DatabaseMissing(database)
    if _NOT_ACCEPTING in codes:
        return refusing_connections(database)
    if _FORBIDDEN in codes:
        return Transient(
            Reason.DATABASE_ERROR,
            f'the controller\'s role may not connect to database "{database}": GRANT CONNECT ON DATABASE "{database}" '
            "TO the controller's role",
        )
    if _FULL in codes:
        return Transient(
            Reason.DATABASE_ERROR, f'the controller cannot connect to database "{database}": {error.message}'
        )
    return error


class DatabaseMissing(Waiting):
    """The database does not exist: nothing can be granted there, and nothing is left to revoke."""

    def __init__(self, database: str) -> None:
        super().__init__(Reason.PRIVILEGE_PENDING, f'database "{database}" does not exist')


def _codes(error: BaseException | None, within: set[int]) -> set[str]:
    """SQLSTATEs of an error and its causes."""
    if error is None or id(error) in within:
        return set()
    within.add(id(error))
    found = {str(getattr(error, "sqlstate", None) or "")}
    if isinstance(error, BaseExceptionGroup):
        found |= {code for one in error.exceptions for code in _codes(one, within)}
    return (found | _codes(error.__cause__, within)) - {""}


async def _identify(connection: Connection, database: str) -> Identity:
    try:
        return await identify(connection)
    except PgRoleError as error:
        if connection.is_closed():
            raise
        raise type(error)(error.reason, error.message.replace("the home database", f'database "{database}"')) from error


async def _silence_triggers(connection: Connection, identity: Identity) -> None:
    """Turns off event triggers for the controller's own changes, where its role may do that."""
    if identity.superuser and identity.version_number >= 170_000:
        with translate_errors():
            await connection.execute("SET event_triggers = off")


async def _lead(
    connection: Connection, candidate: Candidate | None, installation: DatabaseInstallation, known: Fence | None
) -> Fence | None:
    if candidate is None:
        return None
    guarded = installation.others_may_create
    if known is not None and known.number is not None and installation.present and known.acting:
        known = replace(known, guarded=guarded)
        with suppress(NotLeading):
            await known.beat(connection)
            return known
    if not candidate.is_leading() and installation.present and candidate.away() > 0.0:
        fence = await lead_while_away(connection, candidate, guarded=guarded)
        if fence is None:
            raise Transient(Reason.PROGRESSING, "another process leads in this database")
        return fence
    return await take_lead(connection, candidate, guarded=guarded, fencing=installation.present)
