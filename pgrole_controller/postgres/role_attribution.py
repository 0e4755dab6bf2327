"""Who changed a role. PostgreSQL fires no event trigger for that, so other sources are asked, the best first.

1. pgaudit in jsonlog: the line has the transaction's id, in DO blocks and functions too.
2. The statement log in jsonlog: names the role, top-level statements only.
3. pg_stat_statements: a user who ran such a statement at some time, if it is only one.
4. Sessions that are still connected and whose last statement names the role, if all have one user.

The first two only if the server's owner allows it (PgServer.spec.attribution.auditLog).
"""

import logging
from dataclasses import dataclass, field

import anyio

from pgrole_controller import resources
from pgrole_controller.core.audit_line import ChangedRole, find_author
from pgrole_controller.core.database_options import AuditSource
from pgrole_controller.core.ddl import quote_identifier
from pgrole_controller.core.errors import PgRoleError
from pgrole_controller.core.privileges.privilege_result import DriftAuthor, Evidence
from pgrole_controller.postgres.audit_log import JSONLOG_VERSION, JsonLog
from pgrole_controller.postgres.catalog import read_suspects
from pgrole_controller.postgres.connection import Connection
from pgrole_controller.postgres.privileges.acl_attribution import legible
from pgrole_controller.postgres.rows import fetch, first

log = logging.getLogger(__name__)

#: Seconds to wait before each read of the log: the server writes it through another process.
_WAITS = (0.0, 0.02, 0.1, 0.4)

_SECONDS = 2.0


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
    schemas = await fetch(connection, "statistics", _query("statistics"), seconds=_SECONDS)
    if not schemas:
        return None
    try:
        schema = quote_identifier(schemas[0].text("schema"))
    except ValueError:  # a name in another encoding
        return None
    query = _query("statement_users").replace("statistics_schema", schema)
    users = await fetch(connection, "statement_users", query, changed.role_name, seconds=_SECONDS)
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


async def read_role_xmins(connection: Connection, oid: int) -> tuple[int, ...]:
    """Reads the transactions that last wrote the role's rows, latest first.

    Until a drift is repaired, they are those of the drift. Without the right to read pg_authid, only those of
    memberships, settings and comment. Raises PgRoleError.
    """
    rows = await fetch(connection, "role_xmins", _query("role_rows"), oid, seconds=_SECONDS)
    if first(await fetch(connection, "role_xmins", _query("sees_roles"), seconds=_SECONDS)).get("sees", bool):
        rows = [*await fetch(connection, "role_xmins", _query("role_row"), oid, seconds=_SECONDS), *rows]
    xmins = [row.get("xmin", int) for row in rows]
    return tuple(dict.fromkeys(xmins))


def _query(name: str) -> str:
    return resources.text("sql", "attribution", f"{name}.sql")
