"""Who changed a role. PostgreSQL fires no event trigger for that, so other sources are asked, the best first.

1. pgaudit in jsonlog: the line has the transaction's id, in DO blocks and functions too.
2. The statement log in jsonlog: names the role, top-level statements only.
3. pg_stat_statements: a user who ran such a statement at some time, if it is only one.
4. Sessions that are still connected and whose last statement names the role, if all have one user.

The first two only if the server's owner allows it (PgServer.spec.attribution.auditLog). PostgreSQL writes jsonlog since
version 15; it is read through SQL.

Guarantees: one read of the log takes at most 1,000,000 bytes, however much was written; what is older than that is
skipped. A line that is not complete yet is read by the next one. A rotated file is read to its end before the next one.
Only files that have a size are read: a FIFO, as some operators put in place of the log, has none, and belongs to its
reader.

Caveats: files that were begun and ended between two reads are skipped.
"""

import json
import logging
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field

import anyio
import anyio.to_thread

from pgrole_controller import resources
from pgrole_controller.core.audit_line import JSONLOG_VERSION, ChangedRole, RoleCommand, find_author, read_lines
from pgrole_controller.core.ddl import quote_identifier
from pgrole_controller.core.errors import PgRoleError
from pgrole_controller.core.privileges.privilege_result import DriftAuthor, Evidence
from pgrole_controller.core.server_options import AuditSource
from pgrole_controller.postgres.catalog import read_suspects
from pgrole_controller.postgres.connection import Connection
from pgrole_controller.postgres.privileges.acl_attribution import legible
from pgrole_controller.postgres.rows import Row, fetch, first

log = logging.getLogger(__name__)

#: Seconds to wait before each read of the log: the server writes it through another process.
_WAITS = (0.0, 0.02, 0.1, 0.4)

#: Bytes that one read takes, and commands that are kept.
MOST_BYTES = 1_000_000
MOST_COMMANDS = 1000

_SECONDS = 2.0

#: Fields that are kept in other catalogs than pg_authid.
_OUTSIDE = frozenset({"memberOf", "comment", "parameters", "databaseParameters"})


@dataclass(slots=True)
class JsonLog:
    """What was read of one server's log: the place, and the latest commands, oldest first.

    `own_login`: as whom it was read.
    """

    commands: deque[RoleCommand] = field(default_factory=lambda: deque(maxlen=MOST_COMMANDS))
    own_login: str = ""
    _name: str = ""
    _zone: int = 0
    _offset: int = 0
    _in_line: bool = False  # the offset is inside a line whose beginning was skipped

    async def read_new(self, connection: Connection) -> bool:
        """Reads what was written since the last read; False if the server writes no jsonlog.

        Raises PgRoleError, e.g. if the role may not read it.
        """
        current = first(await _ask(connection, "audit_log", "current_log"))
        name = current.find_text("name")
        if not name:
            return False
        self.own_login, self._zone = current.text("own_login"), current.get("zone", int)
        size, left = current.find("size", int) or 0, MOST_BYTES
        if self._name and self._name != name:
            old = await _ask(connection, "audit_log", "log_size", self._name)
            # The current file is newer, and the last drift is probably in it.
            most = max(MOST_BYTES - size, 0)
            left -= await self._read(connection, old[0].find("size", int) or 0 if old else 0, most)
            self._offset, self._in_line = 0, False
        self._name = name
        await self._read(connection, size, left)
        return True

    async def _read(self, connection: Connection, size: int, most: int) -> int:
        """Reads the file up to `size`, its last `most` bytes at most; returns how many it read."""
        if size < self._offset:  # truncated
            self._offset, self._in_line = 0, False
        if size - self._offset > most:
            self._offset, self._in_line = size - most, True
        wanted = size - self._offset
        if wanted <= 0:
            return 0
        rows = await _ask(connection, "audit_log", "log_part", self._name, self._offset, wanted)
        part = (rows[0].find("part", bytes) if rows else None) or b""
        end = part.rfind(b"\n") + 1
        if end == 0 and len(part) == most:  # a line longer than a read
            self._offset, self._in_line = self._offset + len(part), True
            return len(part)
        begin = part.find(b"\n") + 1 if self._in_line else 0
        if end > 0:
            commands = await anyio.to_thread.run_sync(_parse, part[begin:end], self._zone)
            self._offset, self._in_line = self._offset + end, False  # not before: this may be cancelled
            self.commands.extend(commands)
        return len(part)


def _parse(part: bytes, zone: int) -> list[RoleCommand]:
    return list(read_lines(part.split(b"\n"), zone))[-MOST_COMMANDS:]


@dataclass(slots=True)
class RoleAttribution:
    """Finds who changed roles of one server, across its sessions. `source`: which log may be read."""

    source: AuditSource = AuditSource.NEVER
    audit_log: JsonLog = field(default_factory=JsonLog)
    _unreadable: str = ""  # why, as last logged

    async def find_author(self, connection: Connection, changed: ChangedRole) -> DriftAuthor:
        """Returns who changed the role, by the best source that knows; proof NONE if none does.

        Takes up to 0.6 s where a log is read: call it beside the repair, on a connection that nothing else uses. Raises
        PgRoleError only if the connection is lost.
        """
        for find in (self._ask_log, _ask_statistics, _ask_sessions):
            try:
                author = await find(connection, changed)
            except PgRoleError as error:
                if connection.is_closed():
                    raise
                if error.message != self._unreadable:
                    self._unreadable = error.message
                    log.warning("cannot find out who changes roles", extra={"error": error.message})
                continue
            if author is not None:
                return author
        return DriftAuthor()

    async def _ask_log(self, connection: Connection, changed: ChangedRole) -> DriftAuthor | None:
        if self.source is AuditSource.NEVER or _version(connection) < JSONLOG_VERSION:
            return None
        found = None
        for wait in _WAITS:
            await anyio.sleep(wait)
            if not await self.audit_log.read_new(connection):
                return None
            commands = self.audit_log.commands
            audited = [one for one in commands if bool(one.command) is (self.source is AuditSource.PGAUDIT)]
            found = find_author(audited, changed, self.audit_log.own_login)
            if found is not None and (found.proof is Evidence.TRANSACTION or not changed.xmins):
                return found
        return found


def _version(connection: Connection) -> int:
    version = connection.get_server_version()
    return version.major * 10_000


async def _ask_statistics(connection: Connection, changed: ChangedRole) -> DriftAuthor | None:
    schemas = await _ask(connection, "statistics", "statistics")
    if not schemas:
        return None
    try:
        schema = quote_identifier(schemas[0].text("schema"))
    except ValueError:  # a name in another encoding
        return None
    query = _query("statement_users").replace("statistics_schema", schema)
    users = await fetch(connection, query, changed.role_name, label="statement_users", seconds=_SECONDS)
    if len(users) != 1:
        return None
    return DriftAuthor(Evidence.STATISTICS, login=legible(users[0].get("name", bytes)))


async def _ask_sessions(connection: Connection, changed: ChangedRole) -> DriftAuthor | None:
    suspects = (await read_suspects(connection, [changed.role_name])).get(changed.role_name, ())
    if len({suspect.user for suspect in suspects}) != 1:
        return None
    first, *others = suspects
    application = legible(first.application.encode(errors="surrogateescape"))
    return DriftAuthor(
        Evidence.SESSION,
        login=first.user,
        application=application if not others else "",
        address=first.address if not others else "",
    )


async def read_role_xmins(connection: Connection, oid: int, fields: Collection[str]) -> tuple[int, ...]:
    """Reads the transactions that last wrote the role's rows, latest first.

    Until a drift of these fields is repaired, the first is that of the drift, unless it removed a row. Without the
    right to read pg_authid, only rows of memberships, settings and comment are known: none if other fields drifted.
    Raises PgRoleError.
    """
    if first(await _ask(connection, "role_xmins", "sees_roles")).get("sees", bool):
        rows = await _ask(connection, "role_xmins", "all_role_rows", oid)
    elif _OUTSIDE.issuperset(fields):
        rows = await _ask(connection, "role_xmins", "role_rows", oid)
    else:
        return ()
    xmins = [row.get("xmin", int) for row in rows]
    return tuple(dict.fromkeys(xmins))


def parse_noted_rows(noted: str) -> dict[int, tuple[int, ...]]:
    """Returns, by oid, what sql/attribution/note_rows.sql noted; the last line about a role counts."""
    found: dict[int, tuple[int, ...]] = {}
    for line in noted.splitlines():
        try:
            roles = json.loads(line)
        except (ValueError, RecursionError):  # cut, or not noted by this session
            continue
        for oid, some in roles.items() if type(roles) is dict else ():
            if oid.isdecimal() and type(some) is list:
                found[int(oid)] = tuple(xmin for xmin in some if type(xmin) is int)
    return found


async def _ask(connection: Connection, label: str, name: str, *arguments: object) -> list[Row]:
    """The rows of a question in sql/attribution; `label`: as in `fetch`. Raises PgRoleError."""
    return await fetch(connection, _query(name), *arguments, label=label, seconds=_SECONDS)


def _query(name: str) -> str:
    return resources.text("sql", "attribution", f"{name}.sql")
