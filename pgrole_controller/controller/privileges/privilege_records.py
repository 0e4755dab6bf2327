"""What a round in one database records there: digests, counts, last drifts, history, approvals that were acted on."""

import logging
import math
import uuid
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

import anyio

from pgrole_controller.controller.privileges.applied_state import shorten_drift
from pgrole_controller.controller.privileges.privilege_progress import PrivilegeProgress
from pgrole_controller.core.errors import PgRoleError
from pgrole_controller.core.privileges.acl import DefaultAclChange
from pgrole_controller.core.privileges.grantee import Grantee
from pgrole_controller.core.privileges.privilege_result import DriftAuthor, PrivilegeDrift
from pgrole_controller.core.server_options import HistoryConfig
from pgrole_controller.postgres.drift_history import MOST_RECORDED, RecordedDrift, build_record_statement
from pgrole_controller.postgres.fence import is_another_leading
from pgrole_controller.postgres.privileges.acl_batches import GiveWay, go_on
from pgrole_controller.postgres.privileges.acl_repair import AclRepair
from pgrole_controller.postgres.privileges.acl_transaction import AppliedAcls
from pgrole_controller.postgres.privileges.database_session import DatabaseSession
from pgrole_controller.postgres.privileges.stored_state import build_applied_statement, build_approval_statement

log = logging.getLogger(__name__)

#: Seconds until drifts that could not be recorded are tried again.
RECORD_SECONDS = 10.0


@dataclass(slots=True)
class UnrecordedDrifts:
    """Drifts of one database that have still to be recorded, there or in the home database. Of more than MOST_RECORDED,
    the oldest are lost.

    `waiting`: those that this database is to record. `record_at`: when to try that again, on the loop's clock; inf: at
    the end of the round. `unstored`: those that the home database is to record, since this one stores nothing.
    `recorded`: this database recorded some that the home database lacks.
    """

    waiting: list[RecordedDrift] = field(default_factory=list)
    record_at: float = math.inf
    unstored: list[RecordedDrift] = field(default_factory=list)
    recorded: bool = False

    @property
    def failed(self) -> bool:
        """Whether the last attempt to record failed."""
        return self.record_at < math.inf

    def note_waiting(self, drifts: Iterable[RecordedDrift], record_at: float = math.inf) -> None:
        """Adds to `waiting`."""
        self.waiting = _append(self.waiting, drifts)
        self.record_at = min(self.record_at, record_at)

    def note_unstored(self, drifts: Iterable[RecordedDrift]) -> None:
        """Adds to `unstored`."""
        self.unstored = _append(self.unstored, drifts)

    def take_unstored(self) -> list[RecordedDrift]:
        """Returns `unstored`, and forgets it."""
        taken, self.unstored = self.unstored, []
        return taken

    def take_recorded(self) -> bool:
        """Whether drifts were recorded since the last call."""
        recorded, self.recorded = self.recorded, False
        return recorded


def _append(known: list[RecordedDrift], drifts: Iterable[RecordedDrift]) -> list[RecordedDrift]:
    """With keys, so that two attempts record each drift once."""
    return [*known, *(replace(one, key=one.key or uuid.uuid4().hex) for one in drifts)][-MOST_RECORDED:]


@dataclass(frozen=True, slots=True)
class RoundRecords:
    """Applies changes with what has to be recorded of them: nothing where the database stores nothing. `drifts`: of
    this database. `cluster`: of this controller's objects.
    """

    session: DatabaseSession
    drifts: UnrecordedDrifts
    cluster: str
    history: HistoryConfig

    def build(self, some: Iterable[PrivilegeProgress]) -> str:
        """Counts what these roles' repairs corrected, and stores what is applied, unless something failed that may
        succeed soon.
        """
        statements: list[str] = []
        for one in some if self.session.stores else ():
            if one.needs_storing or one.to_correct or (one.approval is not None and one.error is None):
                statements.append(self._store(one))
            if one.approval is not None:
                holder = one.grantee.holder_in(self.session.database)
                statements.append(build_approval_statement(one.grantee.oid, holder, one.approval.value))
        return ";\n".join(statements)

    def _store(self, one: PrivilegeProgress) -> str:
        grantee, server = one.grantee, self.session.identity.system_identifier
        holder = grantee.holder_in(self.session.database)
        drift = shorten_drift(one.to_correct[-1].drift) if one.to_correct else None
        return build_applied_statement(server, grantee.oid, grantee.role_name, holder, one.declaration, drift)

    def record_corrections(self, one: PrivilegeProgress) -> list[RecordedDrift]:
        """What this role's repairs corrected."""
        return [self.record(one.grantee, each.drift, each.by) for each in one.to_correct]

    def record(self, grantee: Grantee, drift: PrivilegeDrift, by: DriftAuthor) -> RecordedDrift:
        return RecordedDrift(
            grantee.role_name,
            ("privileges",),
            drift.corrected,
            database=self.session.database,
            at=drift.time,
            by=by,
            cluster=self.cluster,
            words=drift.words,
        )

    async def apply(
        self,
        some: Iterable[PrivilegeProgress],
        repairs: Sequence[AclRepair] = (),
        defaults: Sequence[DefaultAclChange] = (),
        grantees: Collection[int] = (),
        *,
        whole: bool = False,
        give_way: GiveWay = go_on,
    ) -> AppliedAcls:
        """As `DatabaseSession.apply`, with what these roles' repairs have to record. If others have locked the table of
        the history, it is recorded later. Raises PgRoleError.
        """
        session, drifts = self.session, self.drifts
        corrections = [record for one in some for record in self.record_corrections(one)] if session.stores else []
        history = build_record_statement(corrections, self.history) if corrections and not drifts.failed else ""
        applied = await session.apply(
            repairs, defaults, grantees, self.build(some), history=history, whole=whole, give_way=give_way
        )
        if corrections and applied.stored:
            drifts.recorded = True
            if applied.unrecorded is not None:
                extra = {"database": session.database, "error": applied.unrecorded.message}
                log.warning("drifts are recorded later", extra=extra)
            if applied.unrecorded is not None or not history:
                drifts.note_waiting(corrections, anyio.current_time() + RECORD_SECONDS)
        return applied

    async def record_waiting(self) -> None:
        """Records drifts that are only reported, each once, however many resyncs find it, and those that could not be
        recorded with their repair. Raises PgRoleError if the session fails.
        """
        session, drifts = self.session, self.drifts
        now, again = anyio.current_time(), drifts.failed
        some = drifts.waiting[:MOST_RECORDED]
        if again and now < drifts.record_at:
            return
        drifts.record_at = now + RECORD_SECONDS if some and session.stores else math.inf
        if drifts.record_at == math.inf:
            return
        try:
            applied = await session.apply([], [], [], build_record_statement(some, self.history))
        except PgRoleError as error:
            if session.connection.is_closed() or is_another_leading(error):
                raise
            extra = {"database": session.database, "error": error.message}
            log.log(logging.DEBUG if again else logging.WARNING, "drifts are recorded later", extra=extra)
            return
        if applied.stored:
            del drifts.waiting[: len(some)]
            drifts.record_at = now if drifts.waiting else math.inf
            drifts.recorded = True
