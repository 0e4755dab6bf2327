"""Installs what each database with managed privileges needs, and removes it: schema `pgrole` and its event triggers.

The parts are those of sql/database. They protect themselves as the home database's do (`schema`): nothing in the schema
is called before every object in it is known to belong to the controller's role or to a superuser. The home database
has the same parts beside its own, in one version; there, only the event triggers are added here.

Leader, applied digests and history are installed wherever the controller may create a schema, also where event triggers
are not permitted: privileges are polled then, and repairs still know who leads and what was applied.
"""

import logging
from dataclasses import dataclass, replace

import asyncpg

from pgrole_controller.core.errors import Reason, Refused, Transient
from pgrole_controller.postgres import queries, schema
from pgrole_controller.postgres.connection import Connection
from pgrole_controller.postgres.errors import shorten, translate_errors
from pgrole_controller.postgres.missing_privileges import describe_missing_language
from pgrole_controller.postgres.rows import Row, fetch, fetch_row

log = logging.getLogger(__name__)

_SCHEMA = "CREATE SCHEMA pgrole"
_LOCK = "COMMENT ON SCHEMA pgrole IS 'is being installed'"
_WITHOUT_EVENT_TRIGGERS = "SET LOCAL event_triggers = off"
#: server_version_num of the first version in which a session can turn off event triggers.
_OWN_EVENT_TRIGGERS_VERSION = 170_000

_AS_SUPERUSER = "A superuser can, with the output of `pgrole-controller sql --database`"
_AFTER_REMOVAL = (
    "A superuser can, if the schema of the controller's role is removed first: with the output of `pgrole-controller "
    "sql --remove` and that of `pgrole-controller sql --database`, in one psql, and then the three grants of "
    "docs/privileges.md"
)
_POLLED_AT_HOME = "It owns schema pgrole there, which has the claims, so it polls; nothing needs to be done"


@dataclass(frozen=True, slots=True)
class DatabaseInstallation:
    """What of schema pgrole is in the connected database.

    - `database`: quoted, for people. `home`: it is the home database, too.
    - `present`: complete, trusted and of a version this controller works with.
    - `current`: present, and of this version or a later one.
    - `creatable`: not present, and the controller's role may create it.
    - `armed`: both event triggers record what changes. `switched_off`: by which setting they do not fire in other
      sessions, with the remedy, for people.
    - `foreign_parts`: parts of the schema that an untrusted role owns, for people; nothing in it may be called.
    - `foreign_event_triggers`: enabled ones (quoted, at most 5) whose owner, or whose function's owner, is neither a
      superuser nor the controller's role. `silent`: none fires in this session now. `spared`: nor does one after the
      server's configuration is loaded again.
    - `max_prepared_transactions`: unless it is 0, events send no notification.
    - `others_may_create`: call the guard (sql/inspect/guard.sql) before anything in the schema is called.
    - `publications`: those that keep the controller from adding tables to the schema (`schema.find_publications`).
    - `plainly_owned`: the owner of the schema is no superuser, and so the controller's role, if it is trusted.
    - `missing_language`: why the controller's statements cannot be run there, with the remedy, for people.
    - `remedy`: if something could not be installed, why, and what an administrator can do.
    """

    database: str
    home: bool
    present: bool
    current: bool
    armed: bool
    foreign_parts: str
    foreign_event_triggers: tuple[str, ...]
    silent: bool
    spared: bool
    max_prepared_transactions: int
    others_may_create: bool
    publications: tuple[str, ...] = ()
    creatable: bool = False
    switched_off: str = ""
    plainly_owned: bool = False
    missing_language: str = ""
    remedy: str = ""

    @property
    def essentials(self) -> tuple[object, ...]:
        """What a session relies on: it ends when this changes."""
        trusted = self.foreign_parts, self.others_may_create
        hindered = self.publications, self.switched_off, self.missing_language
        return self.present, self.creatable, self.armed, self.endangered, *trusted, *hindered

    @property
    def notifies(self) -> bool:
        """Whether each change sends a notification; if only `armed`, its row has to be looked for."""
        return self.armed and self.max_prepared_transactions == 0

    @property
    def endangered(self) -> bool:
        """Whether DDL in this session would run code of a role that is not trusted."""
        return bool(self.foreign_event_triggers) and not self.silent

    @property
    def danger(self) -> str:
        """Which event triggers would run code of a role that is not trusted, with the remedies, for people."""
        return (
            "event triggers that belong to neither a superuser nor the controller's role would run with the "
            f"controller's privileges: {', '.join(self.foreign_event_triggers)}. The controller writes nothing there: "
            "disable them (ALTER EVENT TRIGGER … DISABLE), or make a superuser the owner of each and of its function. "
            "Since PostgreSQL 17, GRANT SET ON PARAMETER event_triggers TO the controller's role suffices"
        )


async def turn_off_event_triggers(connection: Connection, version: int) -> None:
    """Has no event trigger fire in this session, if its role may decide that. `version`: server_version_num. Raises
    PgRoleError.
    """
    if version >= _OWN_EVENT_TRIGGERS_VERSION:
        await fetch(connection, queries.inspect("turn_off_event_triggers"))


async def inspect_database(connection: Connection) -> DatabaseInstallation:
    """Changes nothing, and calls nothing of a schema that is not trusted. Raises PgRoleError.

    Raises Refused for a schema that is more than one version newer.
    """
    with translate_errors("install"):
        parts = await fetch_row(connection, queries.inspect("installation"), None)
        row = await fetch_row(connection, queries.inspect("database_installation"))
        names = (row.get(name, bytes) for name in ("role", "plain_name"))
        missing_language = describe_missing_language(row.find("language", bool), *names)
        version = None
        if not (parts["foreign_parts"] or missing_language) and row.get("versioned", bool):
            version = await schema.read_version(connection, parts)
        # An incomplete schema is repaired. The home database has a session of its own for that.
        repaired = version is None and parts.get("present", bool) and not parts.get("home", bool)
        complete = repaired or (version is not None and version >= schema.VERSION)
        return DatabaseInstallation(
            database=_text(row, "database"),
            home=parts.get("home", bool),
            present=version is not None,
            current=version is not None and version >= schema.VERSION,
            armed=row.get("armed", bool) and version is not None,
            foreign_parts=_text(parts, "foreign_parts"),
            foreign_event_triggers=tuple(
                name.decode(errors="replace") for name in row.some("foreign_event_triggers", bytes)
            ),
            silent=row.get("silent", bool),
            spared=row.get("spared", bool),
            max_prepared_transactions=row.get("max_prepared_transactions", int),
            others_may_create=parts.get("others_may_create", bool),
            publications=() if complete else schema.find_publications(parts),
            plainly_owned=row.get("plainly_owned", bool),
            creatable=version is None and parts.get("may_create", bool),
            switched_off=await _find_setting(connection, _text(row, "database")),
            missing_language=missing_language,
        )


async def _find_setting(connection: Connection, database: str) -> str:
    """As `switched_off`. `database`: quoted."""
    row = await fetch_row(connection, queries.inspect("event_triggers_off"))
    of_database = row.find("of_database", bool)
    if of_database is not None:
        where = f"ALTER DATABASE {database}" if of_database else "ALTER ROLE ALL"
        return f"event_triggers is off: {where} RESET event_triggers" if row.get("off", bool) else ""
    if row.get("ask_configuration", bool):
        row = await fetch_row(connection, queries.inspect("configured_event_triggers"))
    return "event_triggers is off in the server's configuration" if row.get("configured_off", bool) else ""


async def install_database(
    connection: Connection, *, allowed: bool, event_triggers: bool = True
) -> DatabaseInstallation:
    """Installs what is missing, if `allowed`; does nothing where all of it is in place. `event_triggers`: whether
    to install these as well.

    What the controller's role may not install is left out: `present`, `armed` and `remedy` of the result tell. Raises
    Refused if the schema is not trusted, or if installing would run the code of an untrusted role's event trigger;
    Transient if the server fails, or if the controller cannot run its statements there.
    """
    found = await inspect_database(connection)
    if found.missing_language:
        raise Transient(Reason.DATABASE_ERROR, found.missing_language)
    if found.foreign_parts:
        raise Refused(
            Reason.SERVER_NOT_READY,
            f"schema pgrole in database {found.database} is not trusted, and nothing in it is called: the controller's "
            f"role or a superuser must own the schema and everything in it, but does not own: {found.foreign_parts}. "
            "An administrator must inspect and drop it (DROP SCHEMA pgrole CASCADE)",
        )
    if _is_complete(found, event_triggers) or not allowed:
        return _explain(found, event_triggers, allowed=allowed)
    if found.publications:
        return _explain(found, event_triggers, refused=schema.describe_publications(found.publications))
    await _check_event_triggers(connection, found)
    with translate_errors("install"):
        if not found.current:
            try:
                await _install_parts(connection, found)
            except (asyncpg.UniqueViolationError, asyncpg.DuplicateSchemaError, schema.InstalledMeanwhile):
                log.info("another controller installed schema pgrole", extra={"database": found.database})
            except asyncpg.InsufficientPrivilegeError as error:
                return _explain(await inspect_database(connection), event_triggers, refused=shorten(str(error)))
        refused = await _install_event_triggers(connection) if event_triggers else ""
    return _explain(await inspect_database(connection), event_triggers, refused=refused)


async def remove(connection: Connection) -> None:
    """Removes schema and event triggers from the connected database; does nothing if there are none.

    Raises PgRoleError, in particular if the controller's role does not own them. A schema `pgrole` of an untrusted role
    stays.
    """
    found = await inspect_database(connection)
    if found.foreign_parts:
        raise Refused(
            Reason.SERVER_NOT_READY,
            f"schema pgrole in database {found.database} is not the controller's: {found.foreign_parts}",
        )
    with translate_errors("remove"):
        async with connection.transaction():
            await connection.execute(queries.remove())


async def _check_event_triggers(connection: Connection, found: DatabaseInstallation) -> None:
    """Raises Refused if a statement of the installation would fire an event trigger that is not trusted."""
    if found.endangered and not await _can_be_spared(connection):
        raise Refused(Reason.SERVER_NOT_READY, f"in database {found.database}, {found.danger}")


async def _can_be_spared(connection: Connection) -> bool:
    """Whether the controller may turn event triggers off for its own transactions (since PostgreSQL 17)."""
    try:
        async with connection.transaction():
            await connection.execute(_WITHOUT_EVENT_TRIGGERS)
    except (asyncpg.UndefinedObjectError, asyncpg.InsufficientPrivilegeError):
        return False
    return True


async def _install_parts(connection: Connection, found: DatabaseInstallation) -> None:
    if found.home:
        await schema.install(connection)
        return
    async with connection.transaction():
        if found.endangered:
            await connection.execute(_WITHOUT_EVENT_TRIGGERS)
        if await connection.fetchval("SELECT pg_catalog.to_regnamespace('pgrole') IS NULL"):
            await connection.execute(_SCHEMA)
        await connection.execute(_LOCK)
        if (await inspect_database(connection)).current:
            raise schema.InstalledMeanwhile
        await connection.execute(queries.install_database())


async def _install_event_triggers(connection: Connection) -> str:
    """Empty, or why PostgreSQL does not permit them."""
    try:
        async with connection.transaction():
            if (await inspect_database(connection)).endangered:
                await connection.execute(_WITHOUT_EVENT_TRIGGERS)
            await connection.execute(queries.install_event_triggers())
    except (asyncpg.InsufficientPrivilegeError, asyncpg.UndefinedFunctionError) as error:
        return shorten(str(error))
    return ""


def _is_complete(found: DatabaseInstallation, event_triggers: bool) -> bool:
    return found.current and (found.armed or not event_triggers)


def _explain(
    found: DatabaseInstallation, event_triggers: bool, *, allowed: bool = True, refused: str = ""
) -> DatabaseInstallation:
    """With the remedy for what is missing."""
    if _is_complete(found, event_triggers):
        return found
    what = "event triggers" if found.current else "schema pgrole"
    why = f": {refused}" if refused else "" if allowed else ": it is not allowed to install anything there"
    remedy = _AS_SUPERUSER
    if found.plainly_owned:  # a superuser's script refuses it
        remedy = _POLLED_AT_HOME if found.home else _AFTER_REMOVAL
    return replace(found, remedy=f"the controller cannot install {what} in database {found.database}{why}. {remedy}")


def _text(row: Row, column: str) -> str:
    return (row.find(column, bytes) or b"").decode(errors="replace")
