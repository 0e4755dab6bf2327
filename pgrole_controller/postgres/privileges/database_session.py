"""The session with one database whose privileges are managed: detects changes, serves the worker's reads and writes.

The same connection LISTENs and works: notifications that arrive during a transaction are delivered at its end. Without
the installed part, a fingerprint of all privileges is read every interval.

Guarantees: nothing is written unless this process leads in this database; what was committed while no session existed
is never missed, since the worker reads everything when a session begins.
"""

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NoReturn

import anyio

from pgrole_controller import resources
from pgrole_controller.core.errors import PgRoleError, Reason, Refused, Transient
from pgrole_controller.core.privileges.acl import DefaultAclChange, ObjectId
from pgrole_controller.core.privileges.attribution import ChangedRow
from pgrole_controller.core.privileges.observed_database import ObservedDatabase
from pgrole_controller.core.privileges.privilege_reach import PrivilegeReach
from pgrole_controller.core.privileges.privilege_result import DriftAuthor
from pgrole_controller.core.server_options import DatabaseMode
from pgrole_controller.postgres.backend_memory import forgetting
from pgrole_controller.postgres.capabilities import Identity
from pgrole_controller.postgres.connection import Connection, await_end
from pgrole_controller.postgres.errors import refusing_connections
from pgrole_controller.postgres.fence import Fence
from pgrole_controller.postgres.privileges.acl_apply import apply_acls
from pgrole_controller.postgres.privileges.acl_attribution import PatientAttribution
from pgrole_controller.postgres.privileges.acl_batches import GiveWay, go_on
from pgrole_controller.postgres.privileges.acl_catalog import read_older
from pgrole_controller.postgres.privileges.acl_checks import prepare_checks
from pgrole_controller.postgres.privileges.acl_repair import AclRepair
from pgrole_controller.postgres.privileges.acl_transaction import AclDialect, AppliedAcls
from pgrole_controller.postgres.privileges.database_schema import (
    DatabaseInstallation,
    inspect_database,
    turn_off_event_triggers,
)
from pgrole_controller.postgres.privileges.ddl_events import (
    PRUNED_AT_ONCE,
    EventReader,
    PrivilegeRead,
    Scope,
    prune_events,
)
from pgrole_controller.postgres.privileges.privilege_reading import PrivilegeReader
from pgrole_controller.postgres.privileges.reading_connection import ReadingConnections, is_large
from pgrole_controller.postgres.privileges.searches import (
    POLLING_SHARE,
    UNEXPLAINED_SECONDS,
    Fingerprints,
    PollPace,
    Searches,
    UnexplainedWrites,
    forget_own_transactions,
    read_own_session,
)
from pgrole_controller.postgres.privileges.stored_state import StoredState, read_left_out
from pgrole_controller.postgres.rows import Row, fetch_row
from pgrole_controller.postgres.trusted_schema import trusting
from pgrole_controller.postgres.watch import DELIVERY_SECONDS, NotDelivered, QueueFull, is_listening, listen_in_database

#: Interval of reads of the events where no notification can be sent, in seconds.
TICK_SECONDS = 0.05
#: Interval of heartbeats, and deadline of each, in seconds.
BEAT_SECONDS = 5.0
_DEADLINE = 3.0
#: Where events are in place: seconds between two fingerprints, in case a trigger was disabled.
BACKSTOP_SECONDS = 60.0
#: While nothing may be written, how often to see whether an administrator removed the cause.
BLOCKED_SECONDS = 5.0
#: Between two times that old events are deleted, and between two of these deletions, in seconds.
PRUNE_SECONDS = 60.0
_PRUNE_PAUSE = 0.1


@dataclass(slots=True)
class DatabaseSession:
    """`oid`: of the database. `mode` is never Auto; `why`: why it is not Events, if that was possible to ask for.
    `fence` None: no other process can lead. `if_template`: the error if the database is a template; None: it may be.

    Hold `lock` while calling `next_read`, `read*` and `apply`.
    """

    database: str
    home: str
    connection: Connection
    identity: Identity
    installation: DatabaseInstallation
    fence: Fence | None
    oid: int
    reading: ReadingConnections
    on_notice: Callable[[], None]
    mode: DatabaseMode = DatabaseMode.RESYNC
    interval: float = 1.0
    why: str = ""
    if_template: PgRoleError | None = None
    lock: anyio.Lock = field(default_factory=anyio.Lock)
    _reader: EventReader | None = None
    _ticks: bool = False
    _undelivered: bool = False  # Events would be possible if notifications arrived
    _unexplained: UnexplainedWrites | None = None
    _fingerprints: Fingerprints | None = None
    _unread: PrivilegeRead = field(default_factory=PrivilegeRead)
    _unread_waits: bool = False  # events came first
    _attribution: PatientAttribution = field(default_factory=PatientAttribution)

    @property
    def stores(self) -> bool:
        """Whether the database stores what was applied, and the history of drifts."""
        return self.installation.present

    @property
    def guarded(self) -> bool:
        """Whether every read of schema pgrole first verifies that it can be trusted."""
        return self.stores and self.installation.others_may_create

    @property
    def blocked(self) -> PgRoleError | None:
        """Why nothing may be written here."""
        if not self.installation.endangered:
            return None
        return Transient(Reason.DATABASE_ERROR, f'database "{self.database}": {self.installation.danger}')

    @property
    def enforcing(self) -> bool:
        """Whether Kubernetes cannot be reached, and this process only keeps what was applied."""
        return self.fence is not None and self.fence.enforcing

    @property
    def own_acl(self) -> PrivilegeRead:
        """What to read of the privileges on the database itself, about which there is no event."""
        return PrivilegeRead(Scope.NAMED, objects=frozenset({ObjectId("pg_database", self.oid)}))

    def may_tell_of_database(self, found: PrivilegeRead) -> bool:
        """Whether `next_read` may have returned this because the database itself changed."""
        polled = self.mode is DatabaseMode.POLL and found.scope is Scope.FULL
        return polled or self.own_acl.objects <= found.objects

    async def next_read(self) -> PrivilegeRead:
        """Returns what to read after the changes since the last call: after events, or else what `read_again` noted,
        in turn. Raises PgRoleError.
        """
        in_turn = self._unread.is_needed and self._unread_waits
        if self._reader is not None:
            self._reader.forget()
        events = PrivilegeRead() if in_turn else await self.read_events()
        self._unread_waits = events.is_needed and self._unread.is_needed
        if in_turn or self._unread_waits:
            self.on_notice()  # for the others
        if events.is_needed:
            return events
        to_read, self._unread = self._unread, PrivilegeRead()
        return to_read

    async def read_events(self, *, gated: bool = False) -> PrivilegeRead:
        """As `next_read`, after events. `gated`: as in `EventReader.read`. Raises PgRoleError."""
        return PrivilegeRead() if self._reader is None else await self._reader.read(gated=gated)

    @property
    def unannounced_seconds(self) -> float:
        """How long an event may have no notice: whoever holds the lock for longer looks at events without one."""
        return TICK_SECONDS if self._ticks else UNEXPLAINED_SECONDS

    def read_again(self, to_read: PrivilegeRead) -> None:
        """Has one of the next two calls of `next_read` return this, and what was noted before."""
        self._unread |= to_read
        if self._unread.is_needed:
            self.on_notice()

    def note_columns(self, tables: frozenset[int]) -> None:
        """Has changes of these tables' columns noticed: oids of those with declared columns."""
        if self._fingerprints is not None:
            self._fingerprints.tables = tables

    async def check_database(self) -> None:
        """Call it after the database changed its name, owner or ACL. Raises PgRoleError if it accepts no new
        connections, since its administrator wants exclusive access, if others copy it, or if the session relies on what
        has changed.
        """
        async with self.lock:
            with forgetting():
                row = await fetch_row(self.connection, _query("database"), seconds=_DEADLINE)
                if self.blocked is not None:
                    await turn_off_event_triggers(self.connection, self.identity.version_number)
                found = await inspect_database(self.connection)
        if not row.get("accepting", bool):
            raise refusing_connections(self.database)
        self.check_template(row)
        if found.essentials != self.installation.essentials:
            what = f'what is installed in database "{self.database}", or who may create something there, changed'
            raise Transient(Reason.SERVER_NOT_READY, f"{what}: it is read again")

    def check_template(self, row: Row) -> None:
        """`row`: of sql/events/database.sql. Raises `if_template`."""
        if self.if_template is not None and row.get("template", bool):
            raise self.if_template

    async def read(
        self,
        grantees: Sequence[int],
        reach: PrivilegeReach,
        to_read: PrivilegeRead,
        with_columns: Collection[int] = (),
        connection: Connection | None = None,
    ) -> tuple[ObservedDatabase, StoredState]:
        """The privileges of these roles, as much as `to_read` says, and what is stored about them. `with_columns`:
        oids of known tables with declared columns. `connection`: another one than the session's. Raises PgRoleError.

        Reads by name and by oid need no common snapshot: each repair verifies the objects that it changes.
        """
        reader = PrivilegeReader(self.oid, self.home, self.stores, self.guarded)
        return await reader.read(connection or self.connection, grantees, reach, to_read, with_columns)

    async def read_left_out(self, stored: StoredState, roles: Collection[int]) -> StoredState:
        """As `stored_state.read_left_out`. Raises PgRoleError."""
        async with trusting(self.connection, guarded=self.guarded and stored.incomplete):
            return await read_left_out(self.connection, stored, roles)

    async def is_large(self) -> bool:
        """Whether a second connection for a complete read is worth while. Raises PgRoleError."""
        return is_large((await read_own_session(self.connection)).bytes)

    async def prepare(self) -> None:
        """Has PostgreSQL plan what a repair needs: for the first one, that would take longer than running it. Raises
        PgRoleError.
        """
        async with self.lock:
            await self.read((), PrivilegeReach.of(self.database, ()), self.own_acl)
            await prepare_checks(self.connection)

    async def read_older(self, asked: Collection[tuple[int, ObjectId]]) -> frozenset[tuple[int, ObjectId]]:
        """As `acl_catalog.read_older`. Raises PgRoleError."""
        if not (asked and self.stores):
            return frozenset()
        with forgetting():
            async with trusting(self.connection, guarded=self.guarded):
                return await read_older(self.connection, asked)

    async def read_authors(self, rows: Sequence[ChangedRow]) -> dict[ChangedRow, DriftAuthor]:
        """Who changed these rows, as far as it is known. Raises PgRoleError only if the connection is lost, or
        schema pgrole is no longer trusted.
        """
        if not (rows and self.installation.armed):
            return {}
        found = await self._reader.find_authors(rows) if self._reader is not None else {}
        left = [row for row in rows if row not in found]
        if not left:
            return found
        async with trusting(self.connection, guarded=self.guarded):
            return found | await self._attribution.ask(self.connection, self.database, left)

    async def apply(
        self,
        repairs: Sequence[AclRepair],
        defaults: Sequence[DefaultAclChange],
        grantees: Collection[int],
        records: str,
        *,
        history: str = "",
        whole: bool = False,
        give_way: GiveWay = go_on,
    ) -> AppliedAcls:
        """As `apply_acls`. `whole`: as in AclDialect."""
        dialect = AclDialect(self.identity.version_number, self.fence, self.enforcing, self.installation.spared, whole)
        return await apply_acls(
            self.connection, repairs, defaults, grantees, dialect, records, give_way, history=history
        )

    async def detect(self, detection: DatabaseMode) -> None:
        """Begins the best possible mode. Raises PgRoleError, also if a requested mode is not possible."""
        if detection is DatabaseMode.RESYNC:
            return
        why = self.installation.remedy or self.installation.switched_off
        if detection.uses_event_triggers and self.installation.armed and not self.installation.switched_off:
            try:
                self._ticks = not (self.installation.notifies and await self._listen())
            except NotDelivered as error:
                why, self._undelivered = error.message, True
            else:
                await forget_own_transactions(self.connection)
                self._reader = EventReader(self.connection, self.guarded, self.own_acl)
                await self._reader.begin()
                self._unexplained = UnexplainedWrites(self.connection, self._reader.snapshot, self.guarded)
                self.mode = DatabaseMode.EVENTS
        if detection is DatabaseMode.EVENTS and self.mode is not detection:
            raise Refused(Reason.DATABASE_ERROR, f"PgServer.spec.databases.detection: Events is not possible: {why}")
        self.why = "" if detection is DatabaseMode.POLL or self.mode is DatabaseMode.EVENTS else why
        events = self.mode is DatabaseMode.EVENTS
        self._fingerprints = Fingerprints(self.connection, self.identity, events=events, guarded=self.guarded)
        await self._fingerprints.compare()
        if not events:
            self.mode = DatabaseMode.POLL

    async def _listen(self) -> bool:
        """Whether notifications arrive; not while the server's queue of them is full. Raises PgRoleError."""
        try:
            await listen_in_database(self.connection, self.on_notice)
        except QueueFull:
            return False
        return True

    async def run(self) -> None:
        """Detects changes and keeps the leadership, until cancelled. Raises PgRoleError when the session fails."""
        searches = Searches(self.connection, self.lock, self.reading)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(await_end, (self.connection,))
            tasks.start_soon(self._beat)
            tasks.start_soon(self._watch_installation)
            tasks.start_soon(self.reading.close_unused)
            if self.stores:
                tasks.start_soon(self._prune)
            if self._ticks:
                tasks.start_soon(self._watch_snapshot)
            if self._undelivered:
                tasks.start_soon(self._watch_delivery)
            if self._fingerprints is not None:
                tasks.start_soon(self._compare, self._fingerprints, searches)
            if self._unexplained is not None and self._reader is not None:
                watched = self._unexplained, self._reader, self.on_notice, self.read_again
                tasks.start_soon(searches.watch_unexplained, *watched)

    async def _beat(self) -> NoReturn:
        """Detects a lost connection, which receives nothing and raises no error by itself."""
        while True:
            async with self.lock:
                if self.fence is not None and self.fence.acting:
                    await self.fence.beat(self.connection)
                listening = await is_listening(self.connection)
            if self.mode is DatabaseMode.EVENTS and not (self._ticks or listening):
                raise Transient(Reason.SERVER_NOT_READY, "the connection to the database no longer listens")
            await anyio.sleep(BEAT_SECONDS)

    async def _watch_installation(self) -> NoReturn:
        """Ends the session when what it relies on changes: the event triggers, the schema, who may replace it, and
        whether the database accepts connections.
        """
        while True:
            await anyio.sleep(BACKSTOP_SECONDS if self.blocked is None else min(BLOCKED_SECONDS, BACKSTOP_SECONDS))
            await self.check_database()

    async def _prune(self) -> NoReturn:
        pause = PRUNE_SECONDS
        while True:
            await anyio.sleep(pause)
            pause = _PRUNE_PAUSE if await self.prune() else PRUNE_SECONDS

    async def prune(self) -> bool:
        """Deletes old events, to which any DDL adds. Returns whether more are left. Raises PgRoleError."""
        async with self.lock:
            if self.fence is not None and not self.fence.acting:
                return False
            return await prune_events(self.connection, guarded=self.guarded) >= PRUNED_AT_ONCE

    async def _watch_snapshot(self) -> NoReturn:
        """Reads the events often where a notification would break PREPARE TRANSACTION, or the queue is full."""
        before = ""
        while True:
            async with self.lock:
                row = await fetch_row(self.connection, _query("snapshot"), seconds=_DEADLINE)
            snapshot = row.get("snapshot", str)
            if snapshot != before:
                before = snapshot
                self.on_notice()
            await anyio.sleep(TICK_SECONDS)

    async def _watch_delivery(self) -> NoReturn:
        """Ends the session once notifications arrive, on another connection."""
        while True:
            await anyio.sleep(DELIVERY_SECONDS)
            with suppress(PgRoleError):
                async with self.reading.open() as another:
                    if another is not None:
                        await listen_in_database(another, lambda: None)
                        break
        raise Transient(Reason.SERVER_NOT_READY, f'notifications arrive now from database "{self.database}"')

    async def _compare(self, fingerprints: Fingerprints, searches: Searches) -> NoReturn:
        events = self.mode is DatabaseMode.EVENTS
        pause = BACKSTOP_SECONDS if events else self.interval
        pace = PollPace(self.interval)
        while True:
            await anyio.sleep(pause)
            if events:
                to_read, took = await searches.run(fingerprints.compare, fingerprints.snapshot)
                pause = max(BACKSTOP_SECONDS, took / POLLING_SHARE)
            else:
                async with self.lock:
                    began = anyio.current_time()  # without the wait for a round, which may take long
                    to_read = await fingerprints.compare()
                    pause = pace.pause_after(anyio.current_time() - began)
            if to_read.is_needed:
                self.read_again(to_read)


def _query(name: str) -> str:
    return resources.text("sql", "events", f"{name}.sql")
