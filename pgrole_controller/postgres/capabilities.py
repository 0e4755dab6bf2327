"""The server of a connection, the state of its home database, and the privileges of the controller's role there."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import anyio

from pgrole_controller.core.errors import PgRoleError, Reason, Transient
from pgrole_controller.core.server_options import Mode
from pgrole_controller.core.state import OLDEST_VERSION, Claims
from pgrole_controller.postgres import queries
from pgrole_controller.postgres.connection import Connection
from pgrole_controller.postgres.errors import IS_STANDBY, is_lacking, translate_errors
from pgrole_controller.postgres.missing_privileges import explain_access, find_missing_language
from pgrole_controller.postgres.rows import Row, fetch_row
from pgrole_controller.postgres.schema import SchemaMissing, SchemaState, install, is_current, others_may_create


@dataclass(frozen=True, slots=True)
class Identity:
    """The server of a connection. `system_identifier` and `started_at` together identify one running server."""

    version: str
    version_number: int  # e.g. 180004
    system_identifier: int
    started_at: datetime
    own_roles: frozenset[str]
    superuser: bool
    sees_passwords: bool

    def is_same_server(self, other: "Identity") -> bool:
        return (self.system_identifier, self.started_at) == (other.system_identifier, other.started_at)

    def check_answer(self, row: Row) -> None:
        """Raises Transient if a row with `in_recovery` and `started_at` is the answer of another server."""
        if row.get("in_recovery", bool) or row.get("started_at", datetime) != self.started_at:
            raise Transient(Reason.SERVER_NOT_READY, "a different server answers on the same address")


async def check_same_server(connection: Connection, server: Identity) -> None:
    """Raises Transient unless the connection, which may be to any database, is to this server."""
    server.check_answer(await fetch_row(connection, queries.inspect("server"), label="identify"))


async def identify(connection: Connection) -> Identity:
    """Raises PgRoleError, also for a server that is read-only or too old, and for a database that is not UTF8."""
    row = await fetch_row(connection, queries.inspect("server"), label="identify")
    # Packagers add their own: 18.4 (Debian 18.4-1.pgdg13+1).
    version, number = row.get("version", str).partition(" ")[0][:40], row.get("version_number", int)
    if row.get("in_recovery", bool):
        raise Transient(Reason.SERVER_NOT_READY, IS_STANDBY)
    if number < OLDEST_VERSION * 10_000:
        raise Transient(
            Reason.SERVER_NOT_READY,
            f"PostgreSQL {version} is too old: the controller requires {OLDEST_VERSION} or later",
        )
    encoding = row.get("encoding", str)
    if encoding != "UTF8":
        raise Transient(
            Reason.SERVER_NOT_READY,
            f"the home database has the encoding {encoding[:40]}: use a home database with encoding UTF8",
        )
    return Identity(
        version=version,
        version_number=number,
        system_identifier=row.get("system_identifier", int),
        started_at=row.get("started_at", datetime),
        own_roles=frozenset({row.text("acting_role"), row.text("session_role")}),
        superuser=row.get("superuser", bool),
        sees_passwords=row.get("sees_passwords", bool),
    )


#: Maximum time between two checks of the controller's privileges in a session, in seconds.
ACCESS_CHECK_SECONDS = 60.0
_DEADLINE = 10.0

_COLUMNS = (
    "own_role",
    "database",
    "creates",
    "publishes",
    "present",
    "owns",
    "uses",
    "sees_versions",
    "sees_passwords",
    "sees_system",
    "language",
)

#: One row of sql/inspect/access.sql.
AccessRow = Mapping[str, Any]


async def read_access(connection: Connection) -> AccessRow:
    """The privileges of the controller's role in the home database. Raises PgRoleError."""
    with translate_errors():
        row = await connection.fetchrow(queries.inspect("access"), timeout=_DEADLINE)
    if row is None:
        raise Transient(Reason.SERVER_NOT_READY, "the controller's role no longer exists: create it again")
    return {column: Row(row, Reason.SERVER_NOT_READY)[column] for column in _COLUMNS}


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The state of the home database. `missing`: why schema pgrole does not exist; claims are in status then."""

    identity: Identity
    access: AccessRow
    schema_state: SchemaState
    guarded: bool
    missing: SchemaMissing | None

    @property
    def claims(self) -> Claims:
        return "Status" if self.missing else "Database"


async def read_capabilities(writer: Connection) -> Capabilities | None:
    """None if schema pgrole is missing or older. Changes nothing. Raises PgRoleError."""
    if not await is_current(writer):
        return None
    identity, access = await identify(writer), await read_access(writer)
    return Capabilities(identity, access, SchemaState.PRESENT, await others_may_create(writer), None)


async def prepare_schema(
    writer: Connection, detection: Mode, may_install: bool, seen: Capabilities | None
) -> Capabilities:
    """Installs schema pgrole if allowed. `seen`: as read before this process led; raises Transient if it changed, or if
    the controller cannot run its statements.
    """
    if seen is not None:
        found = await read_capabilities(writer)
        if found is None or (found.access, found.guarded) != (seen.access, seen.guarded):
            raise Transient(Reason.SERVER_NOT_READY, "the controller's privileges changed while another process led")
        _check_language(found.access)
        await install(writer, allowed=may_install)
        return found
    identity = await identify(writer)
    access = await read_access(writer)
    _check_language(access)
    try:
        schema_state = await install(writer, allowed=may_install)
    except SchemaMissing as error:
        if detection is Mode.WATCH:
            raise
        return Capabilities(identity, access, SchemaState.NONE, False, error)
    if schema_state is not SchemaState.PRESENT:
        access = await read_access(writer)
    return Capabilities(identity, access, schema_state, await others_may_create(writer), None)


def _check_language(access: AccessRow) -> None:
    if missing := find_missing_language(access):
        raise Transient(Reason.SERVER_NOT_READY, missing)


async def await_access_change(
    connection: Connection, lock: anyio.Lock, before: Capabilities, seconds: float, only: str | None = None
) -> tuple[str, ...]:
    """Checks every `seconds`, and returns the columns that differ from `before`, or that others may create objects now.
    `only`: compares this column alone.
    """
    while True:
        await anyio.sleep(seconds)
        async with lock:
            now, guarded = await read_access(connection), await others_may_create(connection)
        changed = tuple(name for name in now if now[name] != before.access[name] and only in (None, name))
        if guarded != before.guarded and before.missing is None:
            changed += ("others_may_create",)
        if changed:
            return changed


Explanation = Callable[[Connection, PgRoleError], Awaitable[PgRoleError]]


@asynccontextmanager
async def explaining(writer: Connection, explain: Explanation = explain_access) -> AsyncIterator[None]:
    """If a session lacks a privilege, its error names the missing GRANT."""
    try:
        yield
    except PgRoleError as error:
        if not is_lacking(error) or writer.is_closed():
            raise
        raise await explain(writer, error) from error.__cause__
