"""A fingerprint of all privileges in one database, which differs whenever one of them was changed.

Where events announce changes, the fingerprint shows what they missed, for example while a trigger was disabled. Most
differences then come from changes that events explain and that were read: these cause no further complete read.
"""

import secrets
from contextlib import nullcontext
from datetime import datetime

from pgrole_controller import resources
from pgrole_controller.core.errors import Reason, Transient
from pgrole_controller.postgres.backend_memory import forgetting
from pgrole_controller.postgres.capabilities import Identity
from pgrole_controller.postgres.connection import Connection
from pgrole_controller.postgres.privileges.ddl_events import (
    EVERYTHING,
    SCHEMA,
    WITH_PRIVILEGES,
    PrivilegeRead,
    Scope,
    UnexplainedWrites,
    oldest_running,
)
from pgrole_controller.postgres.privileges.own_transactions import OwnSession
from pgrole_controller.postgres.rows import fetch, first

_SECONDS = 15.0
#: Kinds of objects that can be dropped without an event.
_DROPPED = WITH_PRIVILEGES - {SCHEMA}


class Fingerprints:
    """Compares each fingerprint of all privileges with the last one. `events`: events announce changes. `tables`: oids
    of those with declared columns, whose names count. `snapshot`: of the last one. `guarded`: as in EventReader.
    """

    def __init__(self, connection: Connection, identity: Identity, *, events: bool, guarded: bool) -> None:
        self.tables = frozenset[int]()
        self._connection = connection
        self._events = events
        self._guarded = guarded
        self._started_at = identity.started_at
        self._key = secrets.randbits(64) - 2**63
        self.snapshot: str | None = None
        self._objects: int | None = None
        self._others: int | None = None

    async def compare(self, another: Connection | None = None, own: OwnSession | None = None) -> PrivilegeRead:
        """Returns what to read because it differs from the last one; nothing the first time. `another`, `own`: as in
        `UnexplainedWrites.ask`. Raises PgRoleError.

        With events: the recent rows, if events explain every row written since, and only relations, routines, columns,
        default privileges and the database differ. A row that was deleted leaves none.
        """
        with forgetting() if self._events else nullcontext():
            rows = await fetch(
                another or self._connection,
                "fingerprint",
                resources.text("sql", "events", "fingerprint.sql"),
                self.snapshot,
                self._key,
                list(self.tables),
                seconds=_SECONDS,
                reason=Reason.SERVER_NOT_READY,
            )
        row = first(rows)
        if row.get("in_recovery", bool) or row.get("started_at", datetime) != self._started_at:
            raise Transient(Reason.SERVER_NOT_READY, "a different server answers on the same address")
        # of the session, so that the next comparison considers what the session does meanwhile
        snapshot, self.snapshot = self.snapshot, row.get("snapshot", str) if own is None else own.snapshot
        if not row.find("computed", bool):
            return PrivilegeRead()
        before = self._objects, self._others
        self._objects, self._others = row.find("objects", int), row.find("others", int)
        if snapshot is None or before == (self._objects, self._others):
            return PrivilegeRead()
        if not self._events or before[1] != self._others:
            return EVERYTHING
        unexplained = await UnexplainedWrites(self._connection, snapshot, self._guarded).ask(another, own)
        if unexplained.scope is not Scope.NOTHING:
            return EVERYTHING
        return PrivilegeRead(Scope.RECENT, xid=oldest_running(snapshot), defaults=True, dropped=_DROPPED, searches=True)
