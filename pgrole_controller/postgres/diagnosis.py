"""Reads what `doctor` judges. Changes nothing, and calls nothing of schema pgrole, whoever owns it.

Each function asks one question, bounded by a timeout, in a transaction of its own: one that fails hides no other.
All raise PgRoleError.
"""

import time
from collections.abc import Collection
from datetime import UTC, datetime
from ssl import SSLObject, cert_time_to_seconds
from typing import NamedTuple

from pgrole_controller import resources
from pgrole_controller.core.errors import Reason, Refused
from pgrole_controller.core.findings.server_facts import (
    ClaimCount,
    EventTriggerFacts,
    HistoryFacts,
    RoleFacts,
    SchemaFacts,
    ServerFacts,
    SessionFacts,
)
from pgrole_controller.postgres import queries
from pgrole_controller.postgres.connection import Connection
from pgrole_controller.postgres.rows import Row, fetch, fetch_row, first
from pgrole_controller.postgres.schema import read_home
from pgrole_controller.postgres.trusted_schema import reading_table

_SECONDS = 10.0


class Suspension(NamedTuple):
    """A setting that suspends changes. Empty names: in any database, for any role. `of_home`: it holds in the home
    database.
    """

    database: str
    role: str
    of_home: bool


async def read_server_facts(connection: Connection) -> ServerFacts:
    began, start = datetime.now(UTC), time.monotonic()
    row = await fetch_row(connection, _query("server"), seconds=_SECONDS)
    took = time.monotonic() - start
    now = row.get("now", datetime)
    verified, expires = _read_certificate(connection)
    settings = await fetch(connection, _query("settings"), seconds=_SECONDS)
    return ServerFacts(
        version=row.get("version", str),
        version_number=row.get("version_number", int),
        encoding=row.get("encoding", str),
        database=row.text("database"),
        login=row.text("login"),
        behind=(began - now).total_seconds() + took / 2,
        uncertain=took / 2,
        max_connections=row.get("max_connections", int),
        reserved=row.get("reserved", int),
        database_limit=row.get("database_limit", int),
        by_socket=row.get("by_socket", bool),
        encrypted=row.get("encrypted", bool),
        protocol=row.get("protocol", str),
        verified=verified,
        expires=expires,
        settings={one.get("name", str): one.find("setting", str) or "" for one in settings},
        fixed=frozenset(one.get("name", str) for one in settings if one.get("fixed", bool)),
    )


def _read_certificate(connection: Connection) -> tuple[bool, datetime | None]:
    """Reads whether the server's certificate was verified, and its end: Python shows only verified certificates."""
    transport = getattr(connection, "_transport", None)
    ssl_object = None if transport is None else transport.get_extra_info("ssl_object")
    if not isinstance(ssl_object, SSLObject):
        return False, None
    end = (ssl_object.getpeercert() or {}).get("notAfter")
    if not isinstance(end, str):
        return False, None
    return True, datetime.fromtimestamp(cert_time_to_seconds(end), UTC)


async def read_role_facts(connection: Connection, name: str | None) -> RoleFacts:
    """`name`: the controller's role; None: the role that logged in. Refused if it does not exist."""
    given = None if name is None else _bytes(name)
    rows = await fetch(connection, _query("role"), given, seconds=_SECONDS)
    if not rows:
        raise Refused(Reason.SERVER_NOT_READY, f'role "{name}" does not exist: give --login the controller\'s role')
    row = rows[0]
    flags = {column: row.get(column, bool) for column in _FLAGS}
    return RoleFacts(
        name=row.text("name"),
        connection_limit=row.get("connection_limit", int),
        language=row.find("language", bool),
        **flags,
    )


_FLAGS = (
    "superuser",
    "createrole",
    "login",
    "expires_soon",
    "monitors",
    "creates",
    "owns",
    "uses",
    "sees_versions",
    "sees_passwords",
    "sees_system",
    "reads_logs",
    "administers",
)


async def read_schema_facts(connection: Connection, role: str) -> SchemaFacts:
    """`role`: the controller's."""
    row = await fetch_row(connection, _query("schema"), seconds=_SECONDS)
    parts = await fetch_row(connection, queries.inspect("installation"), _bytes(role), seconds=_SECONDS)
    home = await read_home(connection)
    installed = await _read_stored(connection, "installation", "schema_version")
    return SchemaFacts(
        owner=row.find_text("owner"),
        version=installed[0].get("version", int) if installed else None,
        installed_parts=installed[0].get("parts", int) if installed else None,
        parts=parts.get("parts", int),
        armed=parts.get("armed", bool),
        keeps_history=row.get("keeps_history", bool),
        home=parts.get("home", bool),
        foreign_parts=parts.find_text("foreign_parts") or "",
        recorded=home.recorded,
        elsewhere=home.elsewhere,
        publications=parts.texts("publications"),
    )


async def read_session_facts(connection: Connection, role: str) -> SessionFacts:
    row = await fetch_row(connection, _query("sessions"), _bytes(role), seconds=_SECONDS)
    return SessionFacts(row.get("server", int), row.get("database", int), row.get("role", int))


async def read_event_trigger_facts(connection: Connection, role: str) -> EventTriggerFacts:
    """Reads the event triggers of the connected database."""
    row = await fetch_row(connection, _query("event_triggers"), _bytes(role), seconds=_SECONDS)
    setting = await fetch_row(connection, queries.inspect("event_triggers_off"), seconds=_SECONDS)
    others = row.texts("others")
    if row.get("may_be_off", bool) and others:
        found = await fetch_row(connection, _query("turns_off_event_triggers"), _bytes(role), seconds=_SECONDS)
        if found.get("turned_off", bool):
            others = ()
    return EventTriggerFacts(
        database=row.text("database"),
        installed=row.get("installed", int),
        disabled=row.texts("disabled"),
        switched_off=setting.find("off", bool) or False,
        others=others,
        publications=row.texts("publications"),
        plainly_owned=row.get("plainly_owned", bool),
        home=row.get("home", bool),
        connects=row.get("connects", bool),
        uses=row.get("uses", bool),
        language=row.find("language", bool),
    )


async def read_declared_databases(connection: Connection) -> tuple[str, ...] | None:
    """Reads the databases for which held claims have privileges; None if this login cannot read claims."""
    rows = await _read_stored(connection, "claim", "declared_databases")
    return None if rows is None else tuple(row.text("name") for row in rows)


async def read_claim_counts(connection: Connection) -> tuple[ClaimCount, ...] | None:
    """Reads the number of claims by cluster; None if this login cannot read claims."""
    rows = await _read_stored(connection, "claim", "claim_counts")
    if rows is None:
        return None
    return tuple(
        ClaimCount(row.text("cluster"), row.get("held_or_released", int), row.get("released", int)) for row in rows
    )


async def read_history_facts(connection: Connection, cluster: str | None) -> HistoryFacts | None:
    """Reads the history, of one cluster if it is known; None if this login cannot."""
    rows = await _read_stored(connection, "drift_history", "history_size", cluster)
    if rows is None:
        return None
    row = first(rows)
    return HistoryFacts(row.get("bytes", int), row.get("rows", int), row.find("oldest", datetime))


async def read_suspensions(
    connection: Connection, databases: Collection[str] = (), role: str | None = None
) -> list[Suspension]:
    """Reads the settings that suspend changes in the home database and in these others. `role`: the controller's; None:
    unknown.
    """
    names = [_bytes(name) for name in sorted(databases)]
    of_role = None if role is None else _bytes(role)
    rows = await fetch(connection, _query("suspensions"), names, of_role, seconds=_SECONDS)
    return [
        Suspension(row.find_text("database") or "", row.find_text("role") or "", row.get("of_home", bool))
        for row in rows
    ]


async def read_old_transactions(connection: Connection) -> tuple[tuple[str, int], ...]:
    """Reads what holds back vacuum, and for how many seconds, oldest first."""
    rows = await fetch(connection, _query("old_transactions"), seconds=_SECONDS)
    return tuple((row.text("what"), row.get("seconds", int)) for row in rows)


async def count_md5_roles(connection: Connection) -> int:
    """Counts roles with an MD5 verifier. Only for a login that may read pg_authid."""
    return first(await fetch(connection, _query("md5_verifiers"), seconds=_SECONDS)).get("roles", int)


async def _read_stored(connection: Connection, table: str, query: str, *arguments: object) -> list[Row] | None:
    """Reads a table of schema pgrole; None if this login may not, or if that could run code of the table's owner.
    Raises Transient if another session holds a lock.
    """
    async with reading_table(connection, table) as found:
        return await fetch(connection, _query(query), *arguments, seconds=_SECONDS) if found.readable else None


def _bytes(name: str) -> bytes:
    return name.encode(errors="surrogateescape")


def _query(name: str) -> str:
    return resources.text("sql", "diagnosis", f"{name}.sql")
