"""Finds out who caused the drift of roles, and records these drifts in the history of the home database.

Both happen beside the worker, on a connection of their own: neither delays a repair nor ends a session.

Expected flow: the worker notes a drift once it is repaired or reported (`Attributor.note`, which neither waits nor
raises); `run` asks the sources of the server and writes the row; `on_found` gets the key of each drift whose cause was
found, and `find_cause` the cause, for the next status of that object.

Guarantees: at most MOST_WAITING drifts wait; more are recorded without a cause. A row that could not be written is
tried again, also in the next session, as long as this process lives. After a restart, the claims tell the last drift of
each role (`note_claim`). The connection, which is to the server of the session, is opened at the first drift and closed
after IDLE_SECONDS without one.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TypeVar

import anyio

from pgrole_controller.controller.server_config import ServerConfig
from pgrole_controller.core.audit_line import ChangedRole
from pgrole_controller.core.backoff import Backoff
from pgrole_controller.core.claim import Claim
from pgrole_controller.core.errors import PgRoleError
from pgrole_controller.core.privileges.privilege_result import DriftAuthor, Evidence
from pgrole_controller.core.request import Key
from pgrole_controller.core.role_drift import FoundCause, RoleDrift
from pgrole_controller.event_loop import Signal
from pgrole_controller.logs import describe_error
from pgrole_controller.postgres.capabilities import check_same_server
from pgrole_controller.postgres.connection import Connection, connect
from pgrole_controller.postgres.drift_history import MOST_RECORDED, RecordedDrift, record_at_home
from pgrole_controller.postgres.errors import sqlstate_of
from pgrole_controller.postgres.role_attribution import RoleAttribution, read_role_xmins
from pgrole_controller.postgres.session import Session

log = logging.getLogger(__name__)

MOST_WAITING = 100
IDLE_SECONDS = 60.0

#: Maximum number of causes, of rows, and of roles whose last drift is known to be recorded.
MOST_KEPT = 1000
MOST_NOTED = 20_000

#: Maximum age of a command in the log, relative to a drift, for the command to be its cause, in seconds. Applies once
#: the session has lasted that long; until then the drift may date from before the session.
RECENT_SECONDS = 60.0

#: For how long drifts that claims mention are recorded if they are missing.
CLAIMS_AGE = timedelta(hours=24)

_DRIFT_SECONDS = 10.0
#: Pause between two drifts, in seconds: repairs come first.
_PAUSE_SECONDS = 0.01
_RETRY = Backoff(1.0, 60.0)

#: What shares one row: object, role, fields, whether corrected; the minute and, unless they are its first, the values
#: and the login; or, of a reported drift, values and rows.
_RowKey = tuple[str, str, str, bool, str]

Name = TypeVar("Name")
Value = TypeVar("Value")


class Attributor:
    """Finds and records the causes of drift on one server, across its sessions. `on_found` is called with the key of
    each drift whose cause was found.
    """

    def __init__(self, config: Callable[[], ServerConfig], cluster: str, on_found: Callable[[Key], None]) -> None:
        self._config = config
        self._cluster = cluster
        self._on_found = on_found
        self._waiting: OrderedDict[Key, tuple[RoleDrift, tuple[int, ...]]] = OrderedDict()
        self._found: OrderedDict[Key, FoundCause] = OrderedDict()
        self._reported: dict[Key, RoleDrift] = {}  # reported, and not yet undone
        self._noted: OrderedDict[str, datetime] = OrderedDict()  # the last drift of each role
        self._recent: OrderedDict[_RowKey, RecordedDrift] = OrderedDict()
        self._rows: OrderedDict[_RowKey, RecordedDrift] = OrderedDict()  # not yet written
        self._changed = Signal()

    def note(
        self, key: Key, drift: RoleDrift, xmins: tuple[int, ...] = (), observed_at: datetime | None = None
    ) -> RoleDrift:
        """Notes a drift that was repaired or, once for all resyncs, reported. `xmins`: of the role's rows before the
        repair. Returns it as noted: one that was reported before as it was then; one that followed another, of the
        same fields too, with the time at which it was observed.
        """
        if not drift.corrected:
            standing = self._reported.get(key)
            if standing is not None and standing.is_observed_as(drift):
                return standing
            if standing is not None:
                self.note_unreported(key)
                drift = replace(drift, at=observed_at or drift.at)
            self._reported[key] = drift
        else:
            _keep(self._noted, drift.role_name, drift.at, MOST_NOTED)
        if key in self._waiting:
            self._add_row(self._waiting.pop(key)[0], DriftAuthor())
        self._waiting[key] = drift, xmins
        while len(self._waiting) > MOST_WAITING:
            self._add_row(self._waiting.popitem(last=False)[1][0], DriftAuthor())
        self._changed.set()
        return drift

    def note_unreported(self, key: Key) -> None:
        """Notes that no drift of this object is reported any more: the next one may have another cause."""
        if self._reported.pop(key, None) is not None and key in self._found and not self._found[key].drift.corrected:
            del self._found[key]

    def forget(self) -> None:
        """Forgets the drifts of another server."""
        for known in (self._waiting, self._found, self._reported, self._noted, self._recent, self._rows):
            known.clear()

    def note_claim(self, claim: Claim) -> None:
        """Records the drift that the claim mentions, unless it is known to be recorded."""
        at = claim.last_drift_at
        if at is None or self._noted.get(claim.role_name) == at or datetime.now(UTC) - at > CLAIMS_AGE:
            return
        _keep(self._noted, claim.role_name, at, MOST_NOTED)
        uid = claim.owner.object_uid
        self._add_row(RoleDrift(claim.role_name, claim.role_oid, uid, claim.last_drift_fields, True, at), DriftAuthor())
        self._changed.set()

    def find_cause(self, key: Key) -> FoundCause | None:
        """Returns the cause of this object's last drift for which one was found."""
        return self._found.get(key)

    async def run(self, session: Session) -> None:
        """Runs until cancelled, and raises no other exception."""
        attribution, failures, began = RoleAttribution(), 0, anyio.current_time()
        while True:
            await self._changed.wait()
            endpoint = self._config().endpoint
            try:
                if endpoint is not None:
                    async with connect(endpoint, "attribution") as connection:
                        await check_same_server(connection, session.identity)
                        await self._answer_all(connection, session, attribution, began)
                failures = 0
                continue
            except PgRoleError as error:
                extra = {"error": error.message}
            except Exception as error:  # noqa: BLE001 -- it must not end the session
                extra = describe_error(error)
            failures += 1
            level = logging.WARNING if failures == 1 else logging.DEBUG
            log.log(level, "cannot record drifts of roles", extra={"server": self._config().name, **extra})
            while self._waiting:
                self._add_row(self._waiting.popitem(last=False)[1][0], DriftAuthor())
            await anyio.sleep(_RETRY.delay(failures))

    async def _answer_all(
        self, connection: Connection, session: Session, attribution: RoleAttribution, began: float
    ) -> None:
        """Returns after IDLE_SECONDS without a drift. Raises PgRoleError."""
        while True:
            self._changed.clear()
            try:
                await self._ask_all(connection, attribution, began)
                await self._write(connection, session)
            except BaseException:
                self._changed.set()
                raise
            with anyio.move_on_after(IDLE_SECONDS) as idle:
                await self._changed.wait()
            if idle.cancelled_caught:
                return

    async def _ask_all(self, connection: Connection, attribution: RoleAttribution, began: float) -> None:
        while self._waiting:
            key, (drift, xmins) = next(iter(self._waiting.items()))
            attribution.source = self._config().attribution.audit_log
            written = xmins
            if drift.oid and not drift.corrected:
                written = await read_role_xmins(connection, drift.oid, drift.fields)
            by = await self._ask(connection, attribution, drift, written, began)
            if self._waiting.get(key) == (drift, xmins):
                del self._waiting[key]
                self._add_row(drift, by, written)
            self._keep_cause(key, drift, by)
            await anyio.sleep(_PAUSE_SECONDS)

    async def _ask(
        self,
        connection: Connection,
        attribution: RoleAttribution,
        drift: RoleDrift,
        xmins: tuple[int, ...],
        began: float,
    ) -> DriftAuthor:
        # the drift wrote the latest row, unless it removed one: older rows are of earlier changes
        recent = anyio.current_time() - began > RECENT_SECONDS
        since = drift.at - timedelta(seconds=RECENT_SECONDS) if recent else None
        with anyio.move_on_after(_DRIFT_SECONDS):
            return await attribution.find_author(connection, ChangedRole(drift.role_name, xmins[:1], since))
        return DriftAuthor()

    async def _write(self, connection: Connection, session: Session) -> None:
        """Writes the waiting rows. Without schema pgrole, only status records drifts."""
        if not session.has_current_schema:
            self._rows.clear()
        while self._rows:
            some = list(self._rows.items())[:MOST_RECORDED]
            try:
                await self._record(connection, session, some)
            except PgRoleError as error:
                if not _concerns_data(error):
                    raise
                for one in some:
                    await self._record_alone(connection, session, one)

    async def _record(
        self, connection: Connection, session: Session, some: Sequence[tuple[_RowKey, RecordedDrift]]
    ) -> None:
        opening, rows = session.claims.opening(), [row for _, row in some]
        await record_at_home(connection, rows, self._config().history, opening, session.fence)
        for row_key, row in some:
            if self._rows.get(row_key) is row:
                del self._rows[row_key]

    async def _record_alone(self, connection: Connection, session: Session, one: tuple[_RowKey, RecordedDrift]) -> None:
        """A row with a character that the database's encoding lacks is recorded without its values, or dropped."""
        row_key, row = one
        for attempt in (row, replace(row, values={}, by=DriftAuthor())):
            try:
                await self._record(connection, session, [(row_key, attempt)])
            except PgRoleError as error:
                if not _concerns_data(error):
                    raise
            else:
                break
        else:
            log.warning("a drift cannot be recorded", extra={"server": self._config().name, "role": row.role})
        if self._rows.get(row_key) is row:
            del self._rows[row_key]

    def _add_row(self, drift: RoleDrift, by: DriftAuthor, xmins: tuple[int, ...] = ()) -> None:
        """Adds a row to write. Equal drifts of one minute share a row, unless different logins caused them; so does a
        reported drift with itself after a restart. A drift that only a claim tells has no values: it shares the first
        row of its minute.
        """
        values = repr(sorted(drift.values.items()))
        told_apart_by = f"{drift.at:%Y-%m-%dT%H:%M}" if drift.corrected else f"({values}, {xmins})"
        row_key = drift.uid, drift.role_name, ",".join(drift.fields), drift.corrected, told_apart_by
        known = self._recent.get(row_key) if drift.corrected else None
        if known is not None and drift.values and known.values != drift.values:
            row_key = *row_key[:-1], f"{told_apart_by} {values}"
            known = self._recent.get(row_key)
        if known is not None and known.by.login and by.login and known.by.login != by.login:
            row_key = *row_key[:-1], f"{row_key[-1]} {by.login!r}"
            known = self._recent.get(row_key)
        before = self._rows.pop(row_key, None) or known
        row = RecordedDrift(
            drift.role_name,
            drift.fields,
            drift.corrected,
            at=drift.at,
            count=1 if known is None else known.count + 1,
            by=before.by if before is not None and before.by.proof is not Evidence.NONE else by,
            cluster=self._cluster,
            key="\0".join(map(str, row_key)),
            values=drift.values,
        )
        _keep(self._recent, row_key, row)
        _keep(self._rows, row_key, row)

    def _keep_cause(self, key: Key, drift: RoleDrift, by: DriftAuthor) -> None:
        stands = drift.corrected or self._reported.get(key) is drift
        if stands and by.proof is not Evidence.NONE:
            self._found.pop(key, None)
            _keep(self._found, key, FoundCause(drift, by))
            self._on_found(key)


def _concerns_data(error: PgRoleError) -> bool:
    """Whether the server refused a value."""
    return sqlstate_of(error).startswith("22")


def _keep(kept: OrderedDict[Name, Value], name: Name, value: Value, most: int = MOST_KEPT) -> None:
    """Adds the newest entry, and drops the oldest beyond `most`."""
    kept.pop(name, None)
    kept[name] = value
    while len(kept) > most:
        kept.popitem(last=False)
