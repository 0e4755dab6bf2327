"""Installs schema pgrole, if the controller may, in the home database of a server.

Any role that can create schemas in the home database could create schema `pgrole` first, and wait for a superuser to
call its functions. Therefore the controller calls nothing in the schema before it has verified that every object in it
belongs to its own role or to a superuser, and creates it without IF NOT EXISTS: then only its owner can add objects.

Claims and locks are in one database, roles belong to the whole server: with two home databases, two controllers could
claim the same role. Therefore the home database is recorded where every database can read it: in the setting
`pgrole.home` of the database, which only superusers can set.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import asyncpg

from pgrole_controller import resources
from pgrole_controller.core.errors import Reason, Refused, Transient
from pgrole_controller.postgres import queries
from pgrole_controller.postgres.connection import Connection
from pgrole_controller.postgres.errors import translate_errors
from pgrole_controller.postgres.rows import Row, fetch_row

log = logging.getLogger(__name__)

#: Databases for which the missing record was already logged: system identifier and name.
_LOGGED: set[tuple[int, str]] = set()


@dataclass(frozen=True, slots=True)
class Home:
    """The home database. `database`: the connected one; `elsewhere`: recorded ones with precedence; quoted names."""

    database: str
    recorded: bool
    elsewhere: tuple[str, ...]
    may_record: bool


async def read_home(connection: Connection) -> Home:
    row = await fetch_row(connection, queries.inspect("home"))
    return Home(
        database=_text(row["database"]),
        recorded=row["recorded"],
        elsewhere=tuple(_text(name) for name in row["elsewhere"]),
        may_record=row["may_record"],
    )


def check_only(home: Home) -> None:
    """Raises Refused if another database of the server is the home."""
    if home.elsewhere:
        other = home.elsewhere[0]
        raise Refused(
            Reason.SERVER_NOT_READY,
            f"the home database of this server is {other}, not {home.database}: a second one would not see its claims. "
            f"Name database {other}; or, to move the home, first copy schema pgrole with its claims (docs/servers.md), "
            f"then DROP SCHEMA pgrole CASCADE there and, as a superuser, ALTER DATABASE {other} RESET pgrole.home",
        )


async def check_connected_home(connection: Connection) -> None:
    """Raises Refused, with what the author of a command's DSN can do, if another database is recorded as the home."""
    home = await read_home(connection)
    if home.elsewhere:
        raise Refused(
            Reason.SERVER_NOT_READY,
            f"the home database of this server, which has the claims, is {home.elsewhere[0]}, not {home.database}: "
            f"connect to database {home.elsewhere[0]}",
        )


async def record_home(connection: Connection) -> None:
    """Records the connected database as the home, or logs once how a superuser can. Raises Refused for another home."""
    home = await read_home(connection)
    if not home.recorded and home.may_record:
        await connection.execute(resources.text("sql", "install", "07_home.sql"))
        home = await read_home(connection)  # another may have been recorded concurrently
        log.info("home database recorded", extra={"database": home.database})
    check_only(home)
    if not home.recorded:
        await _report_unrecorded(connection, home)


async def _report_unrecorded(connection: Connection, home: Home) -> None:
    server = await connection.fetchval("SELECT s.system_identifier FROM pg_catalog.pg_control_system() AS s")
    if (server, home.database) not in _LOGGED:
        _LOGGED.add((server, home.database))
        remedy = f"ALTER DATABASE {home.database} SET pgrole.home = 'on'"
        log.info("home database not recorded: only a superuser can record it", extra={"remedy": remedy})


#: Incremented with every change of sql/install. The controller also works with the previous and the next version.
VERSION = 4

_SCHEMA = "CREATE SCHEMA pgrole"
_IN_USE = (
    "schema pgrole cannot be updated while another transaction uses it, such as that of pg_dump: find it in "
    "pg_stat_activity, and end it or wait"
)
# Takes a lock on the schema, which only its owner can take. A lock on a table would need a table first.
_LOCK = "COMMENT ON SCHEMA pgrole IS 'is being installed'"


class SchemaMissing(Refused):
    """Schema pgrole does not exist, and the controller may not create it."""


class InstalledMeanwhile(Exception):
    """Another controller installed the schema first. It may be a later version, which must not be replaced."""


class SchemaState(Enum):
    """The result of `install`.

    NONE: there is no schema, and the session works without. OLDER: the previous version, which the controller may not
    update. IN_USE: the previous version, which another transaction keeps from being updated. PRESENT: nothing to do.
    MADE: created. CHANGED: updated or repaired.
    """

    NONE = "none"
    OLDER = "older"
    IN_USE = "in use"
    PRESENT = "present"
    MADE = "made"
    CHANGED = "changed"

    @property
    def is_older(self) -> bool:
        return self in (SchemaState.OLDER, SchemaState.IN_USE)


async def install(connection: Connection, *, allowed: bool = True) -> SchemaState:
    """Installs this version of schema pgrole in one transaction; does nothing if it is installed and complete.

    If the schema has the previous version and cannot be updated, the session uses it until it is updated. Raises
    SchemaMissing if the schema does not exist and may not be created; Refused if it belongs to another role, is in
    another database of the server, or is too old and may not be updated; Transient if the server fails.
    """
    with translate_errors("install"):
        try:
            return await _install(connection, allowed=allowed)
        except (asyncpg.UniqueViolationError, asyncpg.DuplicateSchemaError, InstalledMeanwhile):
            return await _install(connection, allowed=allowed)


async def is_current(connection: Connection) -> bool:
    """Whether this version or a later one is installed and complete. Changes nothing. Raises PgRoleError."""
    with translate_errors("install"):
        version = await _read_home_version(connection, await _read_parts(connection))
    return version is not None and version >= VERSION


async def others_may_create(connection: Connection) -> bool:
    """Whether a role other than superusers and the controller's role can currently create schemas in this database.

    Such a role could create schema `pgrole` right after it is dropped: sql/inspect/guard.sql. Raises PgRoleError.
    """
    with translate_errors("install"):
        return bool((await _read_row(connection))["others_may_create"])


async def _install(connection: Connection, *, allowed: bool) -> SchemaState:
    row = await _read_parts(connection)
    version = await _read_home_version(connection, row)
    if version is not None and version >= VERSION:
        _check_announcing(row)
        await record_home(connection)
        return SchemaState.PRESENT
    check_only(await read_home(connection))  # even if it may not be installed: claims may be in that database
    publications = () if row["home"] and version is None else find_publications(row)
    if not allowed or publications or not (row["present"] or row["may_create"]):
        if version is not None:
            _check_announcing(row)
            return SchemaState.OLDER
        raise (Refused if row["present"] else SchemaMissing)(
            Reason.SERVER_NOT_READY,
            f"schema pgrole is missing or outdated, and the controller {_why_not(publications)}; "
            "an administrator can install it with the output of `pgrole-controller sql`"
            f"{_remedy(allowed and not publications, row)}",
        )
    try:
        await _create_or_replace(connection, row)
    except asyncpg.InsufficientPrivilegeError:
        if version is None:
            raise
        _check_announcing(row)
        return SchemaState.OLDER
    except asyncpg.LockNotAvailableError as error:
        if version is None:
            raise Transient(Reason.SERVER_NOT_READY, _IN_USE) from error
        _check_announcing(row)
        log.warning(_IN_USE)
        return SchemaState.IN_USE
    await record_home(connection)
    return SchemaState.CHANGED if row["present"] else SchemaState.MADE


async def _create_or_replace(connection: Connection, row: Row) -> None:
    async with connection.transaction():
        if not row["present"]:
            await connection.execute(_SCHEMA)
        await connection.execute(_LOCK)
        version = await _read_home_version(connection, await _read_parts(connection))
        if version is not None and version >= VERSION:
            raise InstalledMeanwhile
        await connection.execute(queries.install())
        await _read_parts(connection)


def find_publications(row: Row) -> tuple[str, ...]:
    """Publications FOR ALL TABLES (quoted, at most 5). A subscriber stops at the first row in a table that it lacks, so
    they keep the controller from adding tables. It may replace those that others dropped.

    `row`: of sql/inspect/installation.sql.
    """
    return tuple(_text(name) for name in row.some("publications", bytes))


def describe_publications(publications: Sequence[str]) -> str:
    return (
        f"publication {', '.join(publications)} is FOR ALL TABLES, and its subscribers would stop for lack of the "
        "tables of schema pgrole (docs/running.md)"
    )


def _why_not(publications: Sequence[str]) -> str:
    if not publications:
        return "is not allowed to install it"
    return f"does not install it: {describe_publications(publications)}"


def _remedy(allowed: bool, row: Row) -> str:
    return f". A superuser can allow it: {_text(row.get('grant_to_create', bytes))}" if allowed else ""


async def _read_home_version(connection: Connection, row: Row) -> int | None:
    """The version of a home database's schema that is complete and usable; else None. Raises as `read_version`."""
    return await read_version(connection, row) if row["versioned"] and row["home"] else None


async def read_version(connection: Connection, row: Row) -> int | None:
    """The version of a schema that is complete and usable; else None. Raises Refused for one that is too new.

    `row`: of sql/inspect/installation.sql, without foreign parts; the table pgrole.installation exists.
    """
    async with connection.transaction():
        await connection.execute(queries.guard())
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
    """Raises Refused if the triggers do not fire in the controller's sessions; this version's always do."""
    if not row["announcing"]:
        raise Refused(
            Reason.SERVER_NOT_READY,
            "session_replication_role is replica for the controller's role or in its database, so schema pgrole sends "
            "no notifications: an administrator can RESET it there (ALTER ROLE, ALTER DATABASE), or update the schema "
            "with the output of `pgrole-controller sql`",
        )


async def _read_parts(connection: Connection) -> Row:
    """The installed parts of the schema. Raises Refused if any of them belongs to an untrusted role."""
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
    return await fetch_row(connection, queries.inspect("installation"), None)


def _text(value: bytes) -> str:
    return value.decode(errors="replace")
