"""Decides for each role of a round what to change in the database, or to report.

An error of one role is its own. What takes long is calculated aside, while small rounds repair drift.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from pgrole_controller.controller.containment import contain
from pgrole_controller.controller.privileges import large_rounds
from pgrole_controller.controller.privileges.large_rounds import Interruptions
from pgrole_controller.controller.privileges.privilege_approval import consider_approval
from pgrole_controller.controller.privileges.privilege_memory import PrivilegeMemory
from pgrole_controller.controller.privileges.privilege_progress import PrivilegeProgress
from pgrole_controller.controller.privileges.privilege_screening import RoundScreening, find_new_objects
from pgrole_controller.controller.privileges.role_memory import NewObjects
from pgrole_controller.core.contest import Moment
from pgrole_controller.core.privileges.acl import ObjectId
from pgrole_controller.core.privileges.acl_comparison import RememberedObjects
from pgrole_controller.core.privileges.acl_decision import PrivilegeDecision, decide_privileges
from pgrole_controller.core.privileges.observed_database import ObservedDatabase
from pgrole_controller.event_loop import run_aside
from pgrole_controller.postgres.privileges.acl_refusal import OutdatedAcl
from pgrole_controller.postgres.privileges.database_session import DatabaseSession
from pgrole_controller.postgres.privileges.stored_state import StoredState


@dataclass(frozen=True, slots=True)
class RoundRead:
    """What was read for the roles with these oids. `whole`: for every role that the database has. `previous`: number of
    the last read before it, as in RoleMemory.keep_authors; 0 unless everything was read.
    """

    observed: ObservedDatabase
    stored: StoredState
    oids: Sequence[int]
    whole: bool
    previous: int


class RoundDecisions:
    """About what one read found at `now`."""

    def __init__(
        self,
        session: DatabaseSession,
        memory: PrivilegeMemory,
        screening: RoundScreening,
        interruptions: Interruptions,
        read: RoundRead,
        now: Moment,
    ) -> None:
        self._session = session
        self._memory = memory
        self._screening = screening
        self._interruptions = interruptions
        self._whole = read.whole
        self._observed = read.observed
        self._now = now

    async def decide(self, some: Sequence[PrivilegeProgress], most_changes: int) -> int:
        """Returns the number of roles decided about, at least one, whose changes together may have this size."""
        observed = self._observed
        # Objects that only some roles reach are no reason to forget those of the others.
        complete = observed.complete and self._whole
        new_objects = self._memory.note_objects(observed, complete=complete)
        self._memory.note_columns(observed, complete=complete)
        self._session.note_columns(self._memory.with_columns)
        changes, number = 0, 0
        while number < len(some) and changes < most_changes:
            one = some[number]
            role = one.role
            remembered = RememberedObjects(
                role.select_before(new_objects), role.select_changed(new_objects), role.denied
            )
            await self._decide_beside(one, role.select_new(new_objects), remembered)
            one.decided = new_objects.read
            changes += sum(change.size for change in one.changes)
            number += 1
            if one.is_applied:
                self._interruptions.note_applied(one.grantee.key)
            await self._interruptions.give_way()
        if observed.complete:
            await self._decide_first(some[:number], new_objects)
        return number

    async def _decide_first(self, some: Sequence[PrivilegeProgress], new_objects: NewObjects) -> None:
        """Decides again about roles at their first complete read: the age of the objects tells which are new."""
        some = [one for one in some if one.error is None and one.role.select_new(new_objects) is None]
        known = await find_new_objects(some, self._observed, self._session)
        for one in some:
            await self._interruptions.give_way()
            key = one.grantee.key
            self._memory.begin_noting(key, known.get(key, frozenset()), new_objects.read)
            if key in known:
                await self._decide_beside(one, known[key], RememberedObjects(denied=one.role.denied))

    async def _decide_beside(
        self, one: PrivilegeProgress, new_objects: frozenset[ObjectId] | None, remembered: RememberedObjects
    ) -> None:
        count, many = self._screening.count_comparisons(one.grantee, self._observed), large_rounds.MANY_COMPARISONS
        if count < many:
            self._decide_one(one, new_objects, remembered)
        else:
            decide = partial(run_aside, count, many, self._decide_one, one, new_objects, remembered)
            await self._interruptions.run_beside(decide, one.grantee.key)

    def _decide_one(
        self, one: PrivilegeProgress, new_objects: frozenset[ObjectId] | None, remembered: RememberedObjects
    ) -> None:
        observed = self._observed
        one.refused, one.undecided = None, False
        try:
            one.decision = decide_privileges(
                one.grantee,
                observed,
                one.applied.declaration,
                new_objects=new_objects,
                differing=self._screening.select(one.grantee, observed),
                remembered=remembered,
            )
            self._note_remembered(one, remembered)
            consider_approval(one, observed, new_objects, remembered, self._session)
            one.note_reported()
            self._hold(one)
            if isinstance(one.error, OutdatedAcl) and not one.has_changes:
                one.error = None  # now it is read again
        except Exception as error:  # noqa: BLE001 -- this role's error
            one.decision, one.changes, one.default_changes = PrivilegeDecision(), (), ()
            one.approval, one.newly_reported = None, ()
            one.error, one.touched, one.undecided = contain(error, one.grantee.key), True, True

    def _note_remembered(self, one: PrivilegeProgress, remembered: RememberedObjects) -> None:
        """What is left over, and cannot be revoked now, is no drift later either."""
        objects = {each.object.id for each in one.decision.left_over if each.object}
        found, denied = {oid: remembered.before[oid] for oid in objects}, one.decision.denied
        if not (found or denied or one.role.left_over or one.role.denied or self._observed.complete):
            return
        read = None if self._observed.complete else {acl.object.id for acl in self._observed.acls}
        one.role.note_left_over(found, read)
        if denied is not None:
            one.role.note_denied(denied, read)

    def _hold(self, one: PrivilegeProgress) -> None:
        """Leaves out repairs of contested changes."""
        # A correction that a person approved is never contested.
        drifting = set() if one.approval else {difference.granted_by for difference in one.decision.drift}
        one.hold_back(one.role.hold(self._now, drifting, complete=self._observed.complete))
