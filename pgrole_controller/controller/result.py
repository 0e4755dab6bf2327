"""One object within a reconcile: what was read, decided and done so far, and its result."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import anyio

from pgrole_controller.controller.containment import contain
from pgrole_controller.controller.objects import Target, generation_of
from pgrole_controller.core.approval import Approval, RoleOffer
from pgrole_controller.core.claim import Claim
from pgrole_controller.core.contest import Contests, Moment, Suspect
from pgrole_controller.core.deletion import block_drop
from pgrole_controller.core.diff import describe_cascades, field_names
from pgrole_controller.core.errors import PgRoleError, Reason, Transient
from pgrole_controller.core.next_attempt import Ending
from pgrole_controller.core.outcome import Outcome, add_privileges, of_contest, of_error, of_read_back
from pgrole_controller.core.password import PasswordTask, next_rotation
from pgrole_controller.core.plan import Action, Plan, ReassignOwned
from pgrole_controller.core.privileges.granted_privileges import GrantedPrivileges
from pgrole_controller.core.privileges.privilege_result import PrivilegeNews
from pgrole_controller.core.request import Key
from pgrole_controller.core.role import FIELD_NAMES, ObservedRole
from pgrole_controller.core.role_drift import FoundCause, RoleDrift, compare_values
from pgrole_controller.core.state import Observed, Server
from pgrole_controller.core.status import find_reported_time
from pgrole_controller.postgres.apply import PartlyApplied
from pgrole_controller.postgres.errors import is_passing, is_rejection
from pgrole_controller.postgres.rows import Deferred

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Result:
    """How the reconcile of one key ended. `outcome`: what to report on the object; None: nothing."""

    target: Target
    outcome: Outcome | None = None
    claim: Claim | None = None
    action: Action = Action.NOTHING
    fields: tuple[str, ...] = ()  # that were changed
    reported: tuple[str, ...] = ()  # those that were not
    observed_at: datetime | None = None  # when the role was read, by the server's clock
    cascades: tuple[str, ...] = ()  # what the changes revoked from others, in words
    released: tuple[str, ...] = ()  # role names that no object claims any more
    password_task: PasswordTask | None = None  # must run before the next reconcile, which follows at once
    reassign: ReassignOwned | None = None  # must run before the next reconcile, which follows at once
    next_rotation: datetime | None = None  # by the server's clock
    decided: bool = False  # the role was read, and a plan was made
    done_with: bool = False  # the object may be deleted: its finalizer is removed
    changed_at: float | None = None  # when the first change of the role was answered, on the loop's clock
    corrected: tuple[str, ...] = ()  # fields that drifted and were restored
    rotated: bool = False  # another password was generated and set, whatever the action
    privileges: GrantedPrivileges | None = None  # None: it has none
    news: tuple[PrivilegeNews, ...] = ()  # of privileges, to be announced
    drift: RoleDrift | None = None  # that was corrected here, or that is reported
    cause: FoundCause | None = None  # of the last drift of the role, if it was found
    exposes_all: bool | None = None  # whether status may show everything about who caused a drift; None: unknown
    offer: RoleOffer | None = None  # drift that is reported and can be approved
    approval: Approval | None = None  # by which drift was corrected here

    @property
    def key(self) -> Key:
        return self.target.key

    @property
    def ending(self) -> Ending:
        """What decides when the key is reconciled next, once everything in this result is written."""
        desired, outcome = self.target.desired, self.outcome
        compared = bool(desired and desired.password_result and outcome and outcome.ready)
        due, now = self.next_rotation, self.observed_at
        return Ending(
            outcome,
            again_at_once=self.prepares_next,
            decided=self.decided,
            gone=self.done_with or self.target.stored is None,
            unconfirmed=self.action is not Action.NOTHING or compared,
            rotation_in=(due - now).total_seconds() if due and now else None,
        )

    @property
    def writes_finalizer(self) -> bool:
        """Whether the object's finalizer is set or removed before this reconcile ends."""
        return self.target.stored is not None and (self.target.finalizer is not None or self.done_with)

    @property
    def prepares_next(self) -> bool:
        """Whether this reconcile ends only when a prerequisite of the next one is done."""
        needed = self.target.finalizer is not None or self.password_task is not None or self.reassign is not None
        return needed and self.target.stored is not None


def refuse(target: Target, error: PgRoleError) -> Result:
    """Returns the result for an object about which nothing could be done."""
    return Result(target, of_error(error))


def current_moment() -> Moment:
    return Moment(anyio.current_time(), datetime.now(UTC))


class ObjectReconcile:
    """One object within a reconcile: what was last read and decided, and what was done so far."""

    def __init__(self, target: Target, contests: Contests, *, exposes_all: bool = False) -> None:
        """`exposes_all`: whether the message of a contest may show everything about who causes it."""
        self.target = target
        self._contests = contests
        self._exposes_all = exposes_all
        self.decision: Plan | PgRoleError = Plan(role_name="")
        self.observed = Observed()
        self.was_read = False  # the observed state could be read
        self.refusal: PgRoleError | None = None  # PostgreSQL rejected the plan
        self._planned = True  # the last decision was a plan for what is declared
        self._done: list[Plan] = []
        self._drift: RoleDrift | None = None
        self._continues = False  # the last correction was of a part of the memberships
        self._changed_at: float | None = None
        self._privileges: GrantedPrivileges | None = None

    def observe(self, observed: Observed | PgRoleError, decision: Plan | PgRoleError, server: Server) -> None:
        try:
            self._observe(observed, decision, server)
        except Exception as error:  # noqa: BLE001 -- this object's error
            self.decision = contain(error, self.target.key)

    def _observe(self, observed: Observed | PgRoleError, decision: Plan | PgRoleError, server: Server) -> None:
        self.was_read = isinstance(observed, Observed)
        self._planned = isinstance(decision, Plan) and not decision.refused
        if isinstance(observed, Observed):
            self.observed = observed
        desired = self.target.desired
        held_back = isinstance(decision, Plan) and decision.approval is None and self._contests.knows(self._uid)
        if isinstance(decision, Plan) and desired and not desired.terminating and held_back:
            sent = desired.password_result.password_task if desired.password_result else None
            decision = self._contests.hold(
                self._uid, self._generation, decision, sent, server.system_identifier, current_moment()
            )
        self.decision = decision
        if log.isEnabledFor(logging.DEBUG):
            log.debug("decision made", extra={"object": str(self.target.key), **_describe(decision)})

    def end(self, plan: Plan, failure: PgRoleError | None) -> None:
        try:
            self._end(plan, failure)
        except Exception as error:  # noqa: BLE001 -- this object's error
            self.decision = contain(error, self.target.key)

    def _end(self, plan: Plan, failure: PgRoleError | None) -> None:
        desired = self.target.desired
        if failure is None:
            self._note_applied(plan)
            return
        if isinstance(failure, PartlyApplied):
            self._note_applied(failure.applied)
        if desired and desired.terminating and desired.drop:
            self.decision = block_drop(failure)
            return
        self.decision = failure
        if self.refusal is None and is_rejection(failure):
            self.refusal = failure

    def _note_applied(self, plan: Plan) -> None:
        self._done.append(plan)
        if plan.changes and self._changed_at is None:
            self._changed_at = anyio.current_time()
        if plan.drift and plan.changes:
            self._drift = self._describe_drift(plan.drift, self.observed, corrected=True)
            if plan.approval is None:
                self._note_repair(plan.drift)

    def _note_repair(self, fields: tuple[str, ...]) -> None:
        """Notes the repair once, however many rounds it takes to read all memberships."""
        repaired = tuple(name for name in fields if not (self._continues and name == FIELD_NAMES["member_of"]))
        held = self.observed.named or self.observed.claimed
        self._continues = held is not None and held.cut
        if repaired:
            self._contests.repaired(self._uid, self._generation, repaired, current_moment())

    @property
    def is_open(self) -> bool:
        """Whether another round may do more: what others granted is revoked even if PostgreSQL rejects the plan."""
        decision = self.decision
        if not isinstance(decision, PgRoleError) or decision is self.refusal or isinstance(decision, PartlyApplied):
            return True
        # another change came first, so that reading again at once makes sense
        return isinstance(decision, Transient) and decision.reason is Reason.PROGRESSING

    @property
    def is_refused(self) -> bool:
        """Whether the role may gain nothing, whoever refuses the object."""
        return not self._planned or self.refusal is not None

    @property
    def is_read_back(self) -> bool:
        """Whether the role was changed here, and read afterwards, and no contest is known."""
        return bool(self._done) and self.was_read and not self._contests.knows(self._uid)

    def needs_suspects(self, now: Moment) -> bool:
        return isinstance(self.decision, Plan) and self._contests.needs_suspects(self._uid, now)

    def name_suspects(self, suspects: Iterable[Suspect], now: Moment) -> None:
        self._contests.name_suspects(self._uid, suspects, now)

    @property
    def role_name(self) -> str:
        return self.target.role_name

    @property
    def claim(self) -> Claim | None:
        return self.observed.claim

    @property
    def has_privileges(self) -> bool:
        """Whether privileges are declared, or the claim holds earlier ones."""
        desired, claim = self.target.desired, self.observed.claim
        return desired is not None and bool(desired.privileges or (claim and claim.privileges))

    @property
    def changed_claims(self) -> bool:
        """Whether a claim was taken or released, so that the namespace owns other roles."""
        return any(plan.owner or plan.releases for plan in self._done)

    def note_privileges(self, privileges: GrantedPrivileges) -> None:
        """Notes what is known of the role's privileges after it was published or withdrawn."""
        self._privileges = privileges

    @property
    def named(self) -> ObservedRole | None:
        return self.observed.named

    @property
    def _observed_at(self) -> datetime | None:
        return self.observed.at if self.was_read else None

    @property
    def _uid(self) -> str:
        return self.target.stored.uid if self.target.stored else ""

    @property
    def _generation(self) -> int:
        return generation_of(self.target.stored) if self.target.stored else 0

    @property
    def left_behind(self) -> Plan:
        """Releases what earlier objects of this key claimed under other names."""
        uid = self.target.desired.owner.object_uid if self.target.desired else ""
        return Plan(role_name="", releases=self.observed.find_left_behind(uid))

    def conclude(self) -> Result:
        try:
            return self._result()
        except Exception as error:  # noqa: BLE001 -- this object's error
            return refuse(self.target, contain(error, self.target.key))

    def _result(self) -> Result:
        released = tuple(name for plan in self._done for name in plan.released)
        if self._lets_go:
            extra = {"object": str(self.target.key), "error": str(self.decision)}
            log.warning("object released before its claim", extra=extra)
            return Result(self.target, released=released, done_with=True)
        desired, claim = self.target.desired, self.observed.claim
        due = next_rotation(desired.password, claim.record.rotated_at) if desired and claim else None
        cascades = describe_cascades(change for plan in self._done for change in plan.changes)
        if isinstance(self.decision, PgRoleError):
            refused = replace(
                refuse(self.target, self.decision),
                released=released,
                changed_at=self._changed_at,
                privileges=self._privileges,
                observed_at=self._observed_at,
                rotated=self._rotated,
            )
            if desired and desired.terminating and claim and claim.is_held_by(desired.owner):
                # where status is the only record of the claim, it says that the login was taken away
                refused = replace(refused, claim=claim, next_rotation=due)
            if not self._corrected:
                return refused
            refused = replace(refused, claim=claim, next_rotation=due, action=Action.CORRECTED, fields=self._corrected)
            return replace(refused, cascades=cascades, corrected=self._corrected, drift=self._corrected_drift)
        ending = desired is None or desired.terminating
        acting = [plan for plan in self._done if plan.action is not Action.NOTHING]
        first = next(iter([*acting, *self._done]), self.decision)
        return Result(
            self.target,
            outcome=None if ending else self._outcome(first, self.decision),
            claim=claim,
            action=first.action,
            fields=first.drift or field_names(first.changes),
            cascades=cascades,
            reported=self.decision.reported,
            observed_at=self._observed_at,
            released=released,
            done_with=ending and not self.decision.writes and self.decision.reassign is None,
            password_task=self.decision.password_task,
            reassign=self.decision.reassign,
            next_rotation=due,
            decided=True,
            changed_at=self._changed_at,
            corrected=self._corrected,
            rotated=self._rotated,
            privileges=self._privileges,
            drift=self._corrected_drift or self._reported_drift,
            offer=self._offer,
            approval=next((plan.approval for plan in self._done if plan.approval), None),
        )

    @property
    def _lets_go(self) -> bool:
        """Whether a deleted object leaves its role although that cannot be released now: with Retain, only an error
        that soon passes delays the deletion. The claim is released later, with those of other deleted objects.
        """
        desired, error = self.target.desired, self.decision
        leaves = desired is not None and desired.terminating and not desired.drop
        return leaves and isinstance(error, PgRoleError) and not (is_passing(error) or isinstance(error, Deferred))

    def _describe_drift(self, fields: tuple[str, ...], observed: Observed, *, corrected: bool) -> RoleDrift | None:
        desired = self.target.desired
        if desired is None:
            return None
        held = observed.named or observed.claimed
        values = compare_values(fields, desired.role, held.role if held else None)
        return RoleDrift(self.role_name, held.oid if held else 0, self._uid, fields, corrected, observed.at, values)

    @property
    def _corrected_drift(self) -> RoleDrift | None:
        """Returns the drift with the time that the claim has, as it was read back."""
        drift, claim = self._drift, self.observed.claim
        if drift is None or claim is None or claim.last_drift_at is None:
            return drift
        return replace(drift, at=claim.last_drift_at)

    @property
    def _reported_drift(self) -> RoleDrift | None:
        if not isinstance(self.decision, Plan) or not self.decision.reported or self.target.stored is None:
            return None
        drift = self._describe_drift(self.decision.reported, self.observed, corrected=False)
        status = self.target.stored.object().get("status")
        seen = find_reported_time(status if isinstance(status, dict) else {}, self.decision.reported)
        return drift if drift is None or seen is None else replace(drift, at=seen)

    @property
    def _offer(self) -> RoleOffer | None:
        decision, drift = self.decision, self._reported_drift
        if not isinstance(decision, Plan) or decision.offer is None:
            return None
        return replace(decision.offer, values=drift.values if drift else {})

    @property
    def _corrected(self) -> tuple[str, ...]:
        return tuple(name for plan in self._done if plan.changes for name in plan.drift)

    @property
    def _rotated(self) -> bool:
        """Whether a newly generated password was set, alone or with a role that was created again."""
        return any(
            plan.rotated and not {"password", "role"}.isdisjoint(field_names(plan.changes)) for plan in self._done
        )

    def _outcome(self, first: Plan, last: Plan) -> Outcome:
        outcome = of_read_back(last)
        if first.action is Action.RECLAIMED and outcome.ready:
            message = (
                "the role matches the spec; its claim was missing from the database, and the controller wrote it again"
            )
            outcome = replace(outcome, message=message)
        if self._privileges is not None and self.target.desired is not None:
            expected = {*(self.target.desired.privileges or ()), *(self.claim.privileges if self.claim else ())}
            outcome = add_privileges(outcome, self._privileges, sorted(expected))
        contest = self._contests.describe(self._uid, exposes_all=self._exposes_all)
        return of_contest(contest, outcome) if contest and not (last.writes or last.reported) else outcome


def _describe(decision: Plan | PgRoleError) -> dict[str, str]:
    """Returns the names of fields for the log, never their values."""
    if isinstance(decision, PgRoleError):
        return {"decided": "refused", "reason": decision.reason.value}
    fields = {"differs": field_names(decision.changes), "drift": decision.drift, "reported": decision.reported}
    decided = decision.action.value if decision.writes else "password" if decision.password_task else "nothing"
    return {"decided": decided, **{name: ", ".join(some) for name, some in fields.items() if some}}
