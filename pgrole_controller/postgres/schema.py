"""Schema pgrole: installed where the controller may, in the one home database of a server.

Whoever can create objects in the home database could create schema `pgrole` first and have a superuser call what is in
it. So nothing in it is called before every object in it is known to belong to the controller's role or to a superuser,
and it is created without IF NOT EXISTS: from then on only its owner can put anything into it.

Claims and locks live in one database, roles in the whole server: two controllers with a home each would contest roles
that either has claimed for itself. So the home is recorded where every database of the server sees it: in a setting of
the database, `pgrole.home`, which only superusers can set.
"""

import logging
from dataclasses import dataclass
from enum import Enum

import asyncpg

from pgrole_controller import resources
from pgrole_controller.core.errors import Reason, Refused
from pgrole_controller.postgres import queries
from pgrole_controller.postgres.connection import Connection
from pgrole_controller.postgres.errors import translate_errors
from pgrole_controller.postgres.rows import Row, fetch_row

log = logging.getLogger(__name__)

#: Of which databases it was said already that they are not recorded: system identifier and name.
_SAID: set[tuple[int, str]] = set()


@dataclass(frozen=True, slots=True)
class Home:
    """`database` is the one that we are in, `elsewhere` others that are recorded and come first: quoted names."""

    database: str
    recorded: bool
    elsewhere: tuple[str, ...]
    may_record: bool


async def read_home(connection: Connection) -> Home:
    row = await fetch_row(connection, "", queries.inspect("home"))
    return Home(
        database=_text(row["database"]),
        recorded=row["recorded"],
        elsewhere=tuple(_text(name) for name in row["elsewhere"]),
        may_record=row["may_record"],
    )


def check_only(home: Home) -> None:
    """Raises Refused when another database of the server is the home."""
    if home.elsewhere:
        other = home.elsewhere[0]
        raise Refused(
            Reason.SERVER_NOT_READY,
            f"schema pgrole on this server is in home database {other}, whose claims a second home, {home.database}, "
            f"would not know. Name database {other}; or, to move the home, DROP SCHEMA pgrole CASCADE there and, as a "
            f"superuser, ALTER DATABASE {other} RESET pgrole.home",
        )


async def record_home(connection: Connection) -> None:
    """Records the database that we are in, where we may; else says once what a superuser can do."""
    home = await read_home(connection)
    if not home.recorded and home.may_record:
        await connection.execute(resources.text("sql", "install", "07_home.sql"))
        home = await read_home(connection)  # another may have been recorded in the same moment
        log.info("home database recorded", extra={"database": home.database})
    check_only(home)
    if not home.recorded:
        await _report_unrecorded(connection, home)


async def _report_unrecorded(connection: Connection, home: Home) -> None:
    server = await connection.fetchval("SELECT s.system_identifier FROM pg_catalog.pg_control_system() AS s")
    if (server, home.database) not in _SAID:
        _SAID.add((server, home.database))
        remedy = f"ALTER DATABASE {home.database} SET pgrole.home = 'on'"
        log.info("home database not recorded: only a superuser can record it", extra={"remedy": remedy})


#: Raised with every change of sql/install. One version older and newer than this one can be worked with.
VERSION = 4

_SCHEMA = "CREATE SCHEMA pgrole"
# Its lock on the schema is its owner's alone, as one on a table in it is; and the schema is there before any table.
_LOCK = "COMMENT ON SCHEMA pgrole IS 'is being installed'"


class SchemaMissing(Refused):
    """There is no schema pgrole, and the controller may not make it."""


class _InstalledMeanwhile(Exception):
    """Another did it, perhaps a later version: that is not to be replaced by ours."""


class SchemaState(Enum):
    """What `install` found to do.

    NONE: there is no schema, and the session does without. OLDER: it is of the version before, and not ours to change.
    """

    NONE = "none"
    OLDER = "older"
    PRESENT = "present"
    MADE = "made"
    CHANGED = "changed"


async def install(connection: Connection, *, allowed: bool = True) -> SchemaState:
    """Brings schema pgrole to this version, in one transaction; does nothing where it is there and whole.

    One of the version before that may not be changed is worked with: an administrator brings it up to date later.
    Raises Missing when it is not there and may not be made, Refused when it belongs to somebody else, is in another
    database of the server, or is too old and may not be changed, Transient when the server fails.
    """
    with translate_errors("install"):
        try:
            return await _install(connection, allowed=allowed)
        except (asyncpg.UniqueViolationError, asyncpg.DuplicateSchemaError, _InstalledMeanwhile):
            return await _install(connection, allowed=allowed)


async def is_current(connection: Connection) -> bool:
    """Whether there is nothing to install. Changes nothing."""
    with translate_errors("install"):
        version = await _read_version(connection, await _read_parts(connection))
    return version is not None and version >= VERSION


async def others_may_create(connection: Connection) -> bool:
    """Whether anybody but superusers and the controller's role may make a schema in this database, at this moment.

    If so, a schema `pgrole` that is dropped can be theirs a moment later: sql/inspect/guard.sql.
    """
    with translate_errors("install"):
        return bool((await _read_row(connection))["others_may_create"])


async def _install(connection: Connection, *, allowed: bool) -> SchemaState:
    row = await _read_parts(connection)
    version = await _read_version(connection, row)
    if version is not None and version >= VERSION:
        _check_announcing(row)
        await record_home(connection)
        return SchemaState.PRESENT
    check_only(await read_home(connection))  # also where it may not be installed: the claims are there
    if not allowed or not (row["present"] or row["may_create"]):
        if version is not None:
            _check_announcing(row)
            return SchemaState.OLDER
        raise (Refused if row["present"] else SchemaMissing)(
            Reason.SERVER_NOT_READY,
            "schema pgrole is missing or outdated, and the controller is not allowed to install it; "
            f"an administrator can install it with the output of `pgrole-controller sql`{_remedy(allowed, row)}",
        )
    try:
        await _create_or_replace(connection, row)
    except asyncpg.InsufficientPrivilegeError:
        if version is None:
            raise
        _check_announcing(row)
        return SchemaState.OLDER
    await record_home(connection)
    return SchemaState.CHANGED if row["present"] else SchemaState.MADE


async def _create_or_replace(connection: Connection, row: Row) -> None:
    async with connection.transaction():
        if not row["present"]:
            await connection.execute(_SCHEMA)
        await connection.execute(_LOCK)
        version = await _read_version(connection, await _read_parts(connection))
        if version is not None and version >= VERSION:
            raise _InstalledMeanwhile
        await connection.execute(queries.install())
        await _read_parts(connection)


def _remedy(allowed: bool, row: Row) -> str:
    return f". A superuser can allow it: {_text(row.get('grant_to_create', bytes))}" if allowed else ""


async def _read_version(connection: Connection, row: Row) -> int | None:
    """Of a schema that is whole and can be worked with; else None."""
    if not row["versioned"]:
        return None
    async with connection.transaction():
        await connection.execute(queries.inspect("guard"))
        installed = await connection.fetchrow("SELECT version, parts FROM pgrole.installation")
    if installed is None:
        return None
    version: int = installed["version"]
    if version > VERSION + 1:
        raise Refused(
            Reason.SERVER_NOT_READY,
            f"schema pgrole has version {version}, but this controller knows {VERSION}: upgrade the controller",
        )
    whole = installed["parts"] == row["parts"] and (row["armed"] or version != VERSION)
    return version if version >= VERSION - 1 and whole else None


def _check_announcing(row: Row) -> None:
    """Raises Refused when the triggers do not fire in our sessions; those of this version always do."""
    if not row["announcing"]:
        raise Refused(
            Reason.SERVER_NOT_READY,
            "session_replication_role is replica for the controller's role or in its database, so schema pgrole sends "
            "no notifications: an administrator can RESET it there (ALTER ROLE, ALTER DATABASE), or update the schema "
            "with the output of `pgrole-controller sql`",
        )


async def _read_parts(connection: Connection) -> Row:
    """What of the schema is there. Raises Refused when any of it is not to be trusted."""
    row = await _read_row(connection)
    if row["foreign_parts"]:
        raise Refused(
            Reason.SERVER_NOT_READY,
            "schema pgrole is not trusted, and nothing in it is called: the controller's role or a superuser "
            f"must own the schema and everything in it, but does not own: {_text(row['foreign_parts'])}. "
            "An administrator must inspect and drop it (DROP SCHEMA pgrole CASCADE)",
        )
    return row


async def _read_row(connection: Connection) -> Row:
    return await fetch_row(connection, "", queries.inspect("installation"))


def _text(value: bytes) -> str:
    return value.decode(errors="replace")
