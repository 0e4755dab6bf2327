"""Reads which PgRoles declare privileges, and when ACLs and memberships were last written. It calls nothing in schema
pgrole: its owner may be anyone.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime

from pgrole_controller.core.access.access_origin import Changes, ChangeSource, Declarations, LastChange, RoleClaim
from pgrole_controller.core.ddl import quote_identifier
from pgrole_controller.core.errors import PgRoleError
from pgrole_controller.core.privileges.acl import ObjectId
from pgrole_controller.core.privileges.kept_privileges import read_kept
from pgrole_controller.postgres.access_catalog import CATALOG_OIDS, AclVersion, access_query
from pgrole_controller.postgres.answer_pages import fetch_pages
from pgrole_controller.postgres.catalog import MEMBERSHIP_OPTIONS_VERSION
from pgrole_controller.postgres.connection import Connection
from pgrole_controller.postgres.rows import Row, fetch, fetch_row
from pgrole_controller.postgres.trusted_schema import StoredTable, explain_unsafe, find_tables, savepoint


@dataclass(frozen=True, slots=True)
class OriginTables:
    """The tables of schema pgrole that tell where privileges come from, locked in the transaction of a connection."""

    claims: StoredTable
    events: StoredTable


@dataclass(frozen=True, slots=True)
class ReadChanges:
    """What is known about the last changes. `notes`: what could not be seen, with the remedy."""

    changes: Changes
    notes: tuple[str, ...]


async def find_origins(connection: Connection) -> OriginTables:
    """Finds the tables. Call it before any query of the transaction. Raises PgRoleError."""
    return OriginTables(*await find_tables(connection, "claim", "ddl_event"))


async def read_declarations(
    connection: Connection, table: StoredTable, roles: Collection[int], holders: Collection[int], version: int
) -> Declarations:
    """Reads which PgRoles manage these roles, and what they declare for the holders, from the claims in the connected
    database. Raises PgRoleError.
    """
    if not table.readable:
        return Declarations(version, problem=await _explain_unread(connection, table))
    try:
        async with savepoint(connection):
            query = access_query(connection, "claims")
            rows = await fetch_pages(connection, query, sorted(roles), sorted(holders))
    except PgRoleError as error:
        if connection.is_closed():
            raise
        return Declarations(version, problem=f"DECLARED BY is unknown: the claims cannot be read: {error.message}")
    return Declarations(version, {row.get("role", int): _claim(row) for row in rows})


def _claim(row: Row) -> RoleClaim:
    owner = f"{row.text('namespace')}/{row.text('object')}"
    text = row.find_text("privileges")
    try:
        return RoleClaim(owner, None if text is None else read_kept(text))
    except PgRoleError:
        return RoleClaim(owner, None)  # shown as unknown; the claims of other roles stay readable


async def _explain_unread(connection: Connection, table: StoredTable) -> str:
    row = await fetch_row(connection, access_query(connection, "login"))
    database, login = row.text("database"), row.text("login")
    if not table.present:
        return (
            f'DECLARED BY is unknown: database "{database}" has no table pgrole.claim: connect to the database that '
            "the controller uses"
        )
    if table.permitted:
        return f"DECLARED BY is unknown: {explain_unsafe('claim', database, login)}"
    return (
        f'DECLARED BY is unknown: login "{login}" cannot read pgrole.claim: in database "{database}", run '
        f"{_grant('claim', login)}"
    )


async def read_changes(
    connection: Connection, events: StoredTable, place: ObjectId, rows: Iterable[AclVersion], version: int
) -> ReadChanges:
    """Reads the last changes of an object's ACL and of all memberships. Raises PgRoleError."""
    rows = list(rows)
    logins: dict[int, tuple[datetime, str]] = {}
    if events.readable:
        query = access_query(connection, "events")
        xmins = sorted({row.xmin for row in rows})
        for row in await fetch(connection, query, xmins, CATALOG_OIDS[place.catalog], place.oid):
            logins[row.get("xmin", int)] = row.get("at", datetime), row.find_text("login") or ""
    acls: dict[str, LastChange] = {}
    for one in rows:
        event = logins.get(one.xmin)
        if one.changed_at is not None:
            acls[one.column] = LastChange(one.changed_at, ChangeSource.COMMIT, event[1] if event else "")
        elif event is not None:
            acls[one.column] = LastChange(event[0], ChangeSource.EVENT, event[1])
    setting = await fetch_row(connection, access_query(connection, "login"))
    tracked = setting.get("tracked", bool)
    memberships: dict[tuple[int, int], datetime] = {}
    if tracked and version >= MEMBERSHIP_OPTIONS_VERSION:
        for row in await fetch_pages(connection, access_query(connection, "membership_changes")):
            memberships[row.get("member", int), row.get("group_role", int)] = row.get("changed_at", datetime)
    notes = []
    if not tracked:
        notes.append(
            "SINCE: PostgreSQL stores no time of a grant. Set track_commit_timestamp = on and restart PostgreSQL to "
            "know it of later changes"
        )
    elif version < MEMBERSHIP_OPTIONS_VERSION:
        notes.append("SINCE: paths through memberships have a time since PostgreSQL 16")
    database, login = setting.text("database"), setting.text("login")
    if events.unsafe:
        notes.append(f"SINCE: {explain_unsafe('ddl_event', database, login)}")
    if events.exists and not events.permitted:
        notes.append(
            f'SINCE: login "{login}" cannot read pgrole.ddl_event, which tells who granted: in database "{database}", '
            f"run {_grant('ddl_event', login)}"
        )
    return ReadChanges(Changes(acls, memberships), tuple(notes))


def _grant(table: str, login: str) -> str:
    name = quote_identifier(login)
    return f"GRANT USAGE ON SCHEMA pgrole TO {name}; GRANT SELECT ON pgrole.{table} TO {name}"
