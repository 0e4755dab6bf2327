"""Reconciles the privileges of some roles in one database: read, decide for each role, apply, read back.

Guarantees: an error of one role or object delays no other; the digest of what was applied, the count of drifts and,
unless its table is locked, their history are written by the transaction of the last repair; a role is reported without
an error only after everything was read back, by the transaction that changed it or after it.
"""

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from itertools import chain

import anyio

from pgrole_controller import metrics
from pgrole_controller.controller.privileges import large_rounds
from pgrole_controller.controller.privileges.applied_state import restore_applied, set_applied
from pgrole_controller.controller.privileges.large_rounds import Interruptions, Uninterrupted, read_beside
from pgrole_controller.controller.privileges.privilege_approval import mention_approval
from pgrole_controller.controller.privileges.privilege_attribution import AuthorDifferences, find_authors
from pgrole_controller.controller.privileges.privilege_decisions import RoundDecisions, RoundRead
from pgrole_controller.controller.privileges.privilege_memory import PrivilegeMemory
from pgrole_controller.controller.privileges.privilege_progress import (
    AuthorDrift,
    PrivilegeProgress,
    build_result,
    find_outdated_roles,
    is_verified,
    note_failures,
    report_unfinished,
    select_done,
    where_changed,
)
from pgrole_controller.controller.privileges.privilege_records import (
    RECORD_SECONDS,
    RoundRecords,
)
from pgrole_controller.controller.privileges.privilege_screening import RoundScreening, find_dependent
from pgrole_controller.controller.privileges.role_memory import AppliedState
from pgrole_controller.controller.server_config import ServerConfig
from pgrole_controller.core.contest import Moment
from pgrole_controller.core.errors import PgRoleError, Reason, Refused, Transient
from pgrole_controller.core.privileges.acl import ObjectId
from pgrole_controller.core.privileges.grantee import Grantee
from pgrole_controller.core.privileges.observed_database import ObservedDatabase
from pgrole_controller.core.privileges.privilege_difference import (
    PrivilegeDifference,
    announce_drift,
    announce_extension,
    describe_drift,
    phrases,
)
from pgrole_controller.core.privileges.privilege_result import DriftAuthor, PrivilegeDrift, PrivilegeResult
from pgrole_controller.core.request import Key
from pgrole_controller.event_loop import Turns, run_aside
from pgrole_controller.postgres.privileges.acl_repair import AclRepair
from pgrole_controller.postgres.privileges.acl_transaction import AppliedAcls
from pgrole_controller.postgres.privileges.database_session import DatabaseSession
from pgrole_controller.postgres.privileges.ddl_events import PrivilegeRead, Scope

#: Maximum number of passes; what still differs then is left to a retry.
PASSES = 3


@dataclass(frozen=True, slots=True)
class RoundContext:
    """What reconciles in one database need. `grantees`: that are published now, a live view. `cluster`: of this
    controller's objects. `suspended`: whether changes are suspended on the server.
    """

    session: DatabaseSession
    memory: PrivilegeMemory
    config: ServerConfig
    grantees: Callable[[], Mapping[Key, Grantee]]
    cluster: str
    suspended: Callable[[], bool]


@dataclass(frozen=True, slots=True)
class ReconciledRoles:
    """The results of `PrivilegeReconcile.reconcile_roles`. `undecided`: not decided about, because of
    large_rounds.MOST_CHANGES. `unclear`: a partial read did not suffice for a report on these. `read`: as in
    PrivilegeMemory.note_granted.
    """

    results: Sequence[PrivilegeResult] = ()
    undecided: Sequence[Grantee] = ()
    unclear: Set[Key] = frozenset()
    read: frozenset[ObjectId] | None = None


class PrivilegeReconcile:
    """The reconciles of one round. Hold the session's lock. `everyone`: the number of roles that the database has.
    `since`: as in Notice.
    """

    def __init__(
        self, context: RoundContext, *, everyone: int, since: float, interruptions: Interruptions | None = None
    ) -> None:
        self._session = context.session
        self._everyone = everyone
        self._memory = context.memory
        self._config = context.config
        self._suspended = context.suspended
        self._published = context.grantees
        self._interruptions = interruptions or Uninterrupted()
        self._now = Moment(anyio.current_time(), datetime.now(UTC))
        self._since = since
        self._repaired_at = -math.inf  # when the last correction of a drift was committed, on the loop's clock
        self._is_suspended = False
        self._screening = RoundScreening(context.memory, context.session.database)
        self._records = RoundRecords(context.session, context.memory.drifts, context.cluster, context.config.history)

    async def reconcile_roles(self, grantees: Sequence[Grantee], to_read: PrivilegeRead) -> ReconciledRoles:
        """Returns a result for each role if `to_read` is everything, else for those on which something was found.
        Raises PgRoleError if the session fails.
        """
        if not grantees:
            return ReconciledRoles()
        complete, undecided = to_read.scope is Scope.FULL, list[Grantee]()
        read = await self._read(grantees, to_read)
        found = None if complete else frozenset(one.object.id for one in read.observed.acls)
        every = some = await self._begin(await self._screening.choose(grantees, read.observed))
        waiting = frozenset[Key]() if complete else self._memory.waiting()
        unclear = await self._screening.find_awaited([one for one in grantees if one.key in waiting], read.observed)
        for turn in range(1, PASSES + 1):
            stored = await self._session.read_left_out(read.stored, [one.grantee.oid for one in some])
            turns = Turns()
            for one in some:
                restore_applied(one, stored, self._memory.applied, self._session)
                self._count(one)
                await turns.share()
            number = await self._decide(some, read, large_rounds.MOST_CHANGES if turn == 1 else sys.maxsize)
            if number < len(some):
                undecided = [one.grantee for one in some[number:]]
                every = some = some[:number]
            some = await self._correct(some, read, complete=complete, last=turn == PASSES)
            if not some:
                break
            if not complete:
                to_read = where_changed(some)
            read = await self._read([one.grantee for one in some], to_read)
        if not complete:
            if self._memory.take_replaced():
                unclear |= find_dependent(grantees, self._session.database)
            # What was awaited is no longer: a complete read stores that.
            unclear |= {
                one.grantee.key
                for one in every
                if one.role.pending or one.decision.reported or one.decision.pending or one.decision.awaited
            }
        self._measure_repair()
        results = await self._finish(every, found, read.previous, complete=complete)
        return ReconciledRoles(results, undecided, unclear, found)

    def _measure_repair(self) -> None:
        if self._repaired_at > self._since:
            seconds = self._repaired_at - self._since
            metrics.PRIVILEGE_REPAIR_SECONDS.labels(self._config.name).observe(seconds)
        self._repaired_at = -math.inf

    async def _finish(
        self, every: Sequence[PrivilegeProgress], found: frozenset[ObjectId] | None, previous: int, *, complete: bool
    ) -> list[PrivilegeResult]:
        """`found`: as ReconciledRoles.read. `previous`: as in RoundRead."""
        turns, results = Turns(), list[PrivilegeResult]()
        with anyio.CancelScope(shield=True):  # what is noted as announced is reported
            for one in every:
                if one.is_applied:
                    self._interruptions.note_applied(one.grantee.key)
                unfinished = None if one.undecided else frozenset(change.object.id for change in one.changes)
                self._memory.note_granted(one.grantee.key, found, unfinished, self._now, one.decided)
                if complete or one.touched:
                    results.append(self._result(one, previous, complete=complete))
                await turns.share()
        return results

    async def _correct(
        self, some: Sequence[PrivilegeProgress], read: RoundRead, *, complete: bool, last: bool
    ) -> list[PrivilegeProgress]:
        """Makes the changes, if that is allowed now. Returns the roles to be read back. `last`: of the passes."""
        some = self._leave_out_unapplied(some)
        if not any(one.has_changes or one.needs_storing for one in some):
            return []
        if last:
            report_unfinished(some, self._session.database)
            return []
        repairs = await run_aside(
            read.observed.size, large_rounds.MANY_COMPARISONS, large_rounds.group_changes, some, read.observed
        )
        # nothing is awaited between this and the first transaction
        if (error := self._why_not(some)) is not None:
            for one in some:
                one.error = error if one.has_changes else None
            return []
        await self._apply(some, repairs, read)
        if not complete and is_verified(some):
            for one in some:
                one.changes = ()
            return []
        outdated = find_outdated_roles(some, self._published())
        return [one for one in some if one.has_changes and one.grantee.oid not in outdated]

    async def record(self) -> None:
        """As `RoundRecords.record_waiting`, unless nothing may be written now."""
        if self._why_not(()) is None:
            await self._records.record_waiting()
        elif self._memory.drifts.failed:
            self._memory.drifts.record_at = anyio.current_time() + RECORD_SECONDS

    async def _begin(self, grantees: Iterable[Grantee]) -> list[PrivilegeProgress]:
        turns, begun = Turns(), list[PrivilegeProgress]()
        for one in grantees:
            begun.append(PrivilegeProgress(one, self._memory.role(one, self._session.database)))
            await turns.share()
        return begun

    async def _read(self, grantees: Sequence[Grantee], to_read: PrivilegeRead) -> RoundRead:
        previous = self._memory.begin_reading() if to_read.scope is Scope.FULL else 0
        reach = self._memory.reach(grantees, self._session.database)
        self._screening.forget()
        oids = [one.oid for one in grantees]
        read = partial(self._session.read, oids, reach, to_read, self._memory.with_columns)
        if to_read.takes_long:
            observed, stored = await read_beside(self._interruptions, self._session, read)
        else:
            observed, stored = await read()
        self._is_suspended, self._now = stored.suspended, self._now._replace(at=stored.at)
        whole = len(grantees) == self._everyone
        if observed.complete:
            self._memory.note_creators(reach.creators, observed.roles, whole=whole)
        return RoundRead(observed, stored, oids, whole, previous)

    async def _decide(self, some: Sequence[PrivilegeProgress], read: RoundRead, most_changes: int) -> int:
        """Returns the number of roles decided about."""
        decisions = RoundDecisions(self._session, self._memory, self._screening, self._interruptions, read, self._now)
        number = await decisions.decide(some, most_changes)
        if read.observed.complete:
            for one in some[:number]:
                one.reported = ()
                if not one.undecided:
                    one.role.keep_authors(chain(one.decision.drift, one.decision.reported), read.previous)
        await self._attribute(some[:number], read.observed)
        return number

    def _count(self, one: PrivilegeProgress) -> None:
        """Adds drifts that an interruption corrected."""
        counted = self._interruptions.drift_count(one.grantee.key)
        if counted > one.applied.drift_count:
            one.applied = replace(one.applied, drift_count=counted)

    async def _attribute(self, some: Sequence[PrivilegeProgress], observed: ObservedDatabase) -> None:
        """Finds who caused the drift before it is repaired or reported. A repair for another role would overwrite the
        rows that show it.
        """

        def correct(one: PrivilegeProgress, found: Sequence[AuthorDifferences]) -> None:
            one.to_correct = tuple(AuthorDrift(self._describe(by, each), each, by) for by, each in found)

        def report(one: PrivilegeProgress, found: Sequence[AuthorDifferences]) -> None:
            one.reported = tuple(found)

        def leave(one: PrivilegeProgress, found: Sequence[AuthorDifferences]) -> None:
            one.role.note_authors({each: by for by, differences in found for each in differences}, one.decided)

        asked = [(one, drift, correct) for one in some if one.has_changes and (drift := one.drift)]
        asked += [(one, list(new), report) for one in some if observed.complete and (new := one.newly_reported)]
        asked += [(one, drift, leave) for one in some if (drift := one.unattributed)]
        if not asked:
            return
        every = await find_authors([(one, differences) for one, differences, _ in asked], observed, self._session)
        for (one, _, note), found in zip(asked, every, strict=True):
            note(one, found)

    def _describe(
        self, by: DriftAuthor, differences: Sequence[PrivilegeDifference], *, corrected: bool = True
    ) -> PrivilegeDrift:
        exposed = self._config.attribution.exposes_all
        return describe_drift(differences, by, self._now.at, corrected=corrected, exposed=exposed)

    def _leave_out_unapplied(self, some: Sequence[PrivilegeProgress]) -> Sequence[PrivilegeProgress]:
        """Returns the roles that may be changed now: all, or while Kubernetes cannot be reached, those whose
        declaration was applied before. Of the others, those with changes get the error.
        """
        if not self._session.enforcing:
            return some
        for one in some:
            if one.has_changes and not one.decision.current:
                one.error = _tell_unreachable()
        return [one for one in some if one.decision.current]

    def _why_not(self, some: Iterable[PrivilegeProgress]) -> PgRoleError | None:
        """Returns why nothing may be written now; None if writing is allowed."""
        if self._session.enforcing and not all(one.decision.current for one in some):
            return _tell_unreachable()
        if self._session.blocked is not None:
            return self._session.blocked
        if self._suspended() or self._is_suspended:
            return Refused(
                Reason.SUSPENDED,
                f'changes are suspended in database "{self._session.database}" (pgrole.suspend): the controller '
                "changes nothing there until a superuser resets it",
            )
        return None

    async def _apply(self, some: Sequence[PrivilegeProgress], repairs: Sequence[AclRepair], read: RoundRead) -> None:
        defaults = [change for one in some for change in one.default_changes]
        for one in some:
            one.error = None if one.has_changes else one.error
        give_way = partial(self._give_way, some)
        applied = await self._records.apply(some, repairs, defaults, read.oids, whole=read.whole, give_way=give_way)
        if applied.stored and any(one.to_correct for one in some):
            self._repaired_at = anyio.current_time()
        if applied.failed:
            for one in some:
                note_failures(one, applied)
                one.to_correct = tuple(self._keep_succeeded(one, applied))
            if not applied.stored:
                await self._records.apply(some)
        for one in some:
            self._conclude(one, applied)

    async def _give_way(self, some: Sequence[PrivilegeProgress]) -> frozenset[int]:
        await self._interruptions.give_way()
        return find_outdated_roles(some, self._published())

    def _keep_succeeded(self, one: PrivilegeProgress, applied: AppliedAcls) -> Iterator[AuthorDrift]:
        """Yields what was corrected, described without the rest. Notes who caused the rest."""
        for drift, differences, by in one.to_correct:
            done = select_done(differences, one.grantee.oid, applied)
            one.role.note_authors(dict.fromkeys(set(differences).difference(done), by), one.decided)
            if done:
                yield AuthorDrift(drift if done == differences else self._describe(by, done), done, by)

    def _conclude(self, one: PrivilegeProgress, applied: AppliedAcls) -> None:
        """Notes the results of a transaction that had changes of this role."""
        self._count(one)
        database, corrected, announced = self._session.database, set[str](), len(one.news)
        for drift, differences, _ in one.to_correct:
            corrected.update(difference.granted_by for difference in differences)
            one.corrected.append(drift)
            one.role.last_drifts = tuple(one.corrected)
            one.news.append(announce_drift(database, drift, differences))
        extended = select_done(one.decision.extended, one.grantee.oid, applied)
        if extended:
            one.news.append(announce_extension(database, extended))
        one.note_revoked(select_done(one.decision.left_over, one.grantee.oid, applied))
        if one.approval is None:
            one.role.note_repair(self._now, corrected)
        elif len(one.news) > announced:
            one.news[announced:] = [mention_approval(news, one.approval) for news in one.news[announced:]]
        handled = one.approval.value if one.approval else one.applied.approve_handled
        stale = one.applied.stale and not one.decision.applied
        count = one.applied.drift_count + bool(one.to_correct)
        set_applied(one, AppliedState(one.declaration, count, handled, stale), database)
        if not self._session.stores:
            self._memory.applied[one.grantee.oid] = one.applied
            self._memory.drifts.note_unstored(self._records.record_corrections(one))
        one.to_correct = ()

    def _result(self, one: PrivilegeProgress, previous: int, *, complete: bool) -> PrivilegeResult:
        self._count(one)
        if complete and not one.undecided:
            role, decision = one.role, one.decision
            self._announce_reported(one)
            role.pending, role.reported = decision.pending, phrases(decision.reported)
            role.left_off = frozenset(each.object.id for each in decision.reported if each.object and not each.held)
            role.declarable = any(difference.declarable for difference in decision.reported)
            role.confirmed = decision.confirmed
        return build_result(one, self._session.database, complete=complete, last=previous)

    def _announce_reported(self, one: PrivilegeProgress) -> None:
        """Drift that is left as it is, once."""
        unrecorded = self._memory.drifts
        note_record = unrecorded.note_waiting if self._session.stores else unrecorded.note_unstored
        drifts: list[PrivilegeDrift] = []
        first = one.role.announced is None
        for by, differences in one.reported:
            drift = self._describe(by, differences, corrected=False)
            drifts.append(drift)
            one.news.append(announce_drift(self._session.database, drift, differences, first=first))
            key = "\0".join((one.grantee.uid, *sorted(difference.words for difference in differences)))
            occasion = f"{by.login}\0{drift.time.isoformat()}" if by.login or not first else ""
            record = self._records.record(one.grantee, drift, by)
            note_record([replace(record, key=key, occasion=occasion, standing=first)])
        one.role.announced = frozenset(difference.words for difference in one.decision.reported)
        if drifts:
            one.role.last_drifts = tuple(drifts)


def _tell_unreachable() -> PgRoleError:
    return Transient(
        Reason.PROGRESSING,
        "Kubernetes cannot be reached: until it can, only privileges that were applied before are kept",
    )
