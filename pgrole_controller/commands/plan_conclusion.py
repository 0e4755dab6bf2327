"""An object that `plan` or `diff` evaluates, and what they report about it, from the controller's decisions. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pgrole_controller.commands.output import make_unexpected
from pgrole_controller.commands.plan_model import (
    NOT_COMPARED,
    SUSPENDED,
    PlannedAction,
    PlannedChange,
    PlannedObject,
    PlannedSql,
)
from pgrole_controller.commands.plan_privileges import PlannedPrivileges
from pgrole_controller.commands.plan_words import describe_changes, describe_password
from pgrole_controller.core.ddl import statements
from pgrole_controller.core.diff import Create
from pgrole_controller.core.errors import PgRoleError, Reason, Refused, Waiting
from pgrole_controller.core.password import DesiredPassword, PasswordOrigin
from pgrole_controller.core.plan import Action, Plan
from pgrole_controller.core.policy import Policy
from pgrole_controller.core.request import Key
from pgrole_controller.core.simulation import SimulatedObject, Simulation, simulate, split_late
from pgrole_controller.core.state import Desired, Observed, Server

if TYPE_CHECKING:
    from pgrole_controller.api.pgrole import PgRole

#: Maximum number of an object's other claims that a note names.
_NAMED = 5

_NEEDS_DROP = (
    "the API server rejects a new object with spec.reassignOwnedTo or spec.terminateSessions unless "
    "spec.deletionPolicy is Drop"
)
_PRIVILEGES_LEFT = "privileges: not compared, since the object is refused"


@dataclass(frozen=True, slots=True)
class Subject:
    """An object to evaluate.

    `place`: file and line. Empty `uid`, `namespace_uid`: it is not in the cluster. `labels`: of its namespace; None:
    unknown. `cluster_read`: whether a cluster was asked for it. `status`: of the object in the cluster.
    """

    key: Key
    pgrole: "PgRole"
    place: str = ""
    uid: str = ""
    namespace_uid: str = ""
    labels: Mapping[str, str] | None = None
    status: Mapping[str, Any] = field(default_factory=dict)
    created: datetime | None = None
    cluster_read: bool = False


@dataclass(slots=True)
class PlanCase:
    """One object on its way to a result. `placeholder`: the oid of its role if the plan creates that. `assumed`:
    nothing proves the claim in `observed`.
    """

    subject: Subject
    desired: Desired
    policy: Policy
    placeholder: int
    observed: Observed | PgRoleError
    assumed: bool = False
    decision: Plan | PgRoleError | None = None
    privileges: PlannedPrivileges | None = None

    @property
    def planned(self) -> tuple[Observed, Plan] | None:
        """What is observed and planned; None if the object was not decided, or without a plan."""
        if isinstance(self.observed, Observed) and isinstance(self.decision, Plan):
            return self.observed, self.decision
        return None

    def oid(self, plan: Plan) -> int:
        return self.placeholder if plan.oid is None else plan.oid


class PlanConclusion:
    """For the objects of one server. `name`: of its PgServer."""

    def __init__(self, name: str, server: Server, simulation: Simulation) -> None:
        self._name = name
        self._server = server
        self._simulation = simulation

    def conclude(self, case: PlanCase) -> PlannedObject:
        if case.planned is not None:
            return self._of_plan(case, *case.planned)
        if isinstance(case.decision, PgRoleError):
            return self.conclude_error(case.subject, case.decision)
        return self._begin(case.subject)

    def conclude_error(self, subject: Subject, error: PgRoleError) -> PlannedObject:
        return _without_plan(self._begin(subject), error)

    def _begin(self, subject: Subject) -> PlannedObject:
        return PlannedObject(subject.key, subject.place, subject.pgrole.role_name, self._name)

    def _of_plan(self, case: PlanCase, observed: Observed, plan: Plan) -> PlannedObject:
        simulation, privileges = self._simulation, case.privileges
        existing = next((one.role for one in (observed.named, observed.claimed) if one and one.oid == plan.oid), None)
        others = {name: role for name, role in simulation.created.items() if name != plan.role_name}
        early, late = split_late(plan.changes, others)
        options = simulation.references.options
        sql = [
            PlannedSql("", tuple(statements(some, options=options)), is_late)
            for some, is_late in ((early, False), (late, True))
            if some
        ]
        changes = describe_changes(plan.changes, existing)
        changes += self._reported(case, observed, plan)
        notes = list(self._notes_of(case, observed, plan))
        refusals, waits, errors = _sort(plan.pending)
        drift = (*plan.drift, *plan.reported)
        if privileges is not None:
            changes += privileges.changes
            sql += privileges.sql
            notes += privileges.notes
            for known, more in zip((refusals, waits, errors), _sort(privileges.pending), strict=True):
                known.extend(more)
            errors += privileges.errors
            drift += ("privileges",) if privileges.drift else ()
        done = replace(
            self._begin(case.subject),
            changes=tuple(changes),
            sql=tuple(sql),
            drift=tuple(dict.fromkeys(drift)),
            notes=tuple(notes),
            refusals=tuple(refusals),
            waits=tuple(waits),
            errors=tuple(errors),
        )
        return replace(done, action=_action_of(done, plan))

    def _reported(self, case: PlanCase, observed: Observed, plan: Plan) -> tuple[PlannedChange, ...]:
        """Returns the differences that drift.policy Report does not correct."""
        if not plan.reported:
            return ()
        references = self._simulation.references
        one = SimulatedObject(
            replace(case.desired, report_only=False), replace(observed, references=references), case.policy
        )
        (corrected,) = simulate([one], self._server, make_unexpected).decisions
        if not isinstance(corrected, Plan):
            return ()
        existing = next((each.role for each in (observed.named, observed.claimed) if each), None)
        some = tuple(change for change in corrected.changes if change.field in plan.reported)
        return describe_changes(some, existing, corrected=False)

    def _notes_of(self, case: PlanCase, observed: Observed, plan: Plan) -> tuple[str, ...]:
        spec, desired, notes = case.subject.pgrole.spec, case.desired, list[str]()
        if spec.password is not None and not desired.terminating:
            if any(isinstance(change, Create) for change in plan.changes):
                notes.append(_describe_new_password(spec.password))
            elif desired.password.origin is PasswordOrigin.ELSEWHERE:
                notes.append(NOT_COMPARED)
        if spec.privileges and any(isinstance(one, Refused) for one in plan.pending):
            notes.append(_PRIVILEGES_LEFT)
        if others := observed.other_claims:
            names = ", ".join(f'"{one.role_name}"' for one in others[:_NAMED])
            notes.append(
                f"this object has a claim on role {names}: spec.name is immutable, so the API server rejects this "
                "unless the object is deleted first"
            )
        needs_drop = bool(spec.reassign_owned_to) or spec.terminate_sessions
        if needs_drop and spec.deletion_policy == "Retain" and not case.subject.uid:
            notes.append(_NEEDS_DROP)
        if plan.reassign is not None:
            notes.append("before the drop, what the role owns is reassigned and its sessions are checked")
        return tuple(note for note in notes if note)


def _describe_new_password(password: Any) -> str:  # noqa: ANN401 -- PasswordSpec, which is imported late
    if password.secret_ref is not None:
        reference = password.secret_ref
        return describe_password(DesiredPassword(PasswordOrigin.SECRET, reference.name, reference.key))
    return describe_password(DesiredPassword(PasswordOrigin.GENERATED)) if password.generate is not None else ""


def _without_plan(made: PlannedObject, error: PgRoleError) -> PlannedObject:
    if error.reason is Reason.SUSPENDED:
        return replace(made, notes=(SUSPENDED,))
    refusals, waits, errors = _sort([error])
    action = PlannedAction.REFUSE if refusals else PlannedAction.WAIT if waits else PlannedAction.FAIL
    return replace(made, action=action, refusals=tuple(refusals), waits=tuple(waits), errors=tuple(errors))


def _sort(some: Sequence[PgRoleError]) -> tuple[list[PgRoleError], list[PgRoleError], list[PgRoleError]]:
    """Sorts into refusals, waits, and failures."""
    refusals: list[PgRoleError] = [one for one in some if isinstance(one, Refused)]
    waits: list[PgRoleError] = [one for one in some if isinstance(one, Waiting)]
    return refusals, waits, [one for one in some if not isinstance(one, Refused | Waiting)]


def _action_of(one: PlannedObject, plan: Plan) -> PlannedAction:
    corrected = [change for change in one.changes if change.corrected]
    if one.errors:
        return PlannedAction.FAIL
    if plan.action is Action.DROPPED:
        return PlannedAction.DROP
    if plan.action is Action.CREATED or any(isinstance(change, Create) for change in plan.changes):
        return PlannedAction.CREATE
    if plan.action is Action.ADOPTED:
        same = not (one.changes or one.refusals or one.waits or plan.reported or NOT_COMPARED in one.notes)
        return PlannedAction.CLAIM if same else PlannedAction.ADOPT
    if corrected:
        refused = any(isinstance(error, Refused) for error in plan.pending)
        return PlannedAction.REVOKE if refused else PlannedAction.CHANGE
    if one.refusals:
        return PlannedAction.REFUSE
    if one.changes or plan.reported:
        return PlannedAction.REPORT
    return PlannedAction.WAIT if one.waits else PlannedAction.NOTHING
