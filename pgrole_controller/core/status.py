"""How one reconcile of an object ended, and the status that is written for it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import Enum
from typing import Any

from pgrole_controller.core.claim import Claim
from pgrole_controller.core.errors import PgRoleError, Reason, Refused
from pgrole_controller.core.password import version_of
from pgrole_controller.core.plan import Plan


class Phase(Enum):
    """The kinds of outcome. They decide the conditions (kstatus) and the retry."""

    DONE = "done"  # Ready
    WORKING = "working"  # Reconciling: retried with back-off
    STALLED = "stalled"  # Stalled: it will not come right by itself
    PAUSED = "paused"  # neither


@dataclass(frozen=True, slots=True)
class Outcome:
    phase: Phase
    reason: Reason
    message: str

    @property
    def ready(self) -> bool:
        return self.phase is Phase.DONE

    @property
    def retried(self) -> bool:
        """Whether it is looked at again, with back-off, without being asked.

        What an object is refused for may lie in the database, where not everything that could end it is announced.
        What is contested has a time of its own.
        """
        if self.reason is Reason.CONTESTED:
            return False
        return self.phase is Phase.WORKING or (self.phase is Phase.STALLED and self.reason not in _OWN_FAULT)


#: What only a change of the object, or a restart of the controller, can end.
_OWN_FAULT = frozenset({Reason.INVALID_SPEC, Reason.SERVER_GONE})

RECONCILED = Outcome(Phase.DONE, Reason.RECONCILED, "the role matches the spec")
PROGRESSING = Outcome(Phase.WORKING, Reason.PROGRESSING, "the role changed again while the controller applied the spec")


def of_error(error: PgRoleError) -> Outcome:
    if error.reason is Reason.SUSPENDED:
        return Outcome(Phase.PAUSED, error.reason, error.message)
    phase = Phase.STALLED if isinstance(error, Refused) else Phase.WORKING
    return Outcome(phase, error.reason, error.message)


def of_contest(told: str, outcome: Outcome) -> Outcome:
    """The outcome of a look while a field is contested: it is not Ready before that ends. `told` says what goes on."""
    rest = "everything else matches the spec" if outcome.ready else outcome.message
    return Outcome(Phase.WORKING, Reason.CONTESTED, f"{told}. Apart from that: {rest}")


def of_read_back(plan: Plan) -> Outcome:
    """The outcome of the plan of a look: Ready only when there is nothing left to do."""
    if plan.reported and not plan.writes:
        fields = ", ".join(plan.reported)
        return Outcome(
            Phase.PAUSED,
            Reason.DRIFT_REPORTED,
            f"drift detected but not corrected, since spec.drift.policy is Report: {fields}",
        )
    if plan.writes:
        return PROGRESSING
    return of_error(plan.pending[0]) if plan.pending else RECONCILED


#: A condition as in the object: type, status, reason, message, observedGeneration, lastTransitionTime.
Condition = Mapping[str, Any]

_MESSAGE_LIMIT = 2048


@dataclass(frozen=True, slots=True)
class StatusDetails:
    """What status says beside the conditions. `reported` are the fields that drifted and were left as they are."""

    server_name: str
    claim: Claim | None = None
    reported: tuple[str, ...] = ()
    next_rotation: datetime | None = None


def build_status(
    previous: Mapping[str, Any], outcome: Outcome, details: StatusDetails, generation: int, now: datetime
) -> dict[str, Any]:
    """The whole status. `previous` is the status that the object has; what is not known anew is kept from it."""
    status: dict[str, Any] = {
        "observedGeneration": generation,
        "conditions": build_conditions(previous.get("conditions", ()), outcome, generation, now),
    }
    claim = details.claim
    kept = ("role", "server", "lastDrift", "driftCount")
    for name in kept if claim else (*kept, "passwordSecretVersion", "nextRotation"):
        if name in previous:
            status[name] = previous[name]
    if claim is not None:
        status["role"] = {"name": claim.role_name, "oid": claim.role_oid, "applied": claim.applied}
        status["server"] = {"name": details.server_name, "systemIdentifier": str(claim.system_identifier)}
        status["driftCount"] = max(claim.drift_count, int(previous.get("driftCount", 0)))
        if claim.last_drift_at is not None:
            status["lastDrift"] = {
                "time": rfc3339(claim.last_drift_at),
                "fields": list(claim.last_drift_fields),
                "corrected": True,
            }
        if version := version_of(claim.record.source):
            status["passwordSecretVersion"] = version
        if details.next_rotation is not None:
            status["nextRotation"] = rfc3339(details.next_rotation)
    if details.reported:
        status["lastDrift"] = _reported_drift(previous.get("lastDrift"), details.reported, now)
    return status


def _reported_drift(previous: Mapping[str, Any] | None, fields: Sequence[str], now: datetime) -> dict[str, Any]:
    """The time stays that of the first look that saw these fields."""
    if previous and not previous.get("corrected") and previous.get("fields") == list(fields):
        return dict(previous)
    return {"time": rfc3339(now), "fields": list(fields), "corrected": False}


def build_conditions(
    previous: Sequence[Condition], outcome: Outcome, generation: int, now: datetime, *, keep_message: bool = True
) -> list[dict[str, Any]]:
    """`keep_message`: what was said when the object became Ready stays while it is."""
    states = {"Ready": outcome.ready}
    # kstatus: these two stand only while they are true.
    if outcome.phase is Phase.WORKING:
        states["Reconciling"] = True
    if outcome.phase is Phase.STALLED:
        states["Stalled"] = True
    if outcome.reason is Reason.DRIFT_REPORTED:
        states["DriftDetected"] = True
    before = {condition["type"]: condition for condition in previous}
    ready = before.get("Ready") if keep_message else None
    if outcome.ready and ready and (ready["status"], ready.get("observedGeneration")) == ("True", generation):
        outcome = replace(outcome, message=ready["message"])
    return [_condition(before.get(kind), kind, true, outcome, generation, now) for kind, true in states.items()]


def _condition(
    before: Condition | None, kind: str, true: bool, outcome: Outcome, generation: int, now: datetime
) -> dict[str, Any]:
    status = "True" if true else "False"
    same = before is not None and before["status"] == status
    return {
        "type": kind,
        "status": status,
        "reason": outcome.reason.value,
        "message": outcome.message[:_MESSAGE_LIMIT],
        "observedGeneration": generation,
        "lastTransitionTime": before["lastTransitionTime"] if same and before else rfc3339(now),
    }


def rfc3339(moment: datetime) -> str:
    """A moment in UTC with whole seconds, as metav1.Time has it."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
