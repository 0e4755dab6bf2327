"""The status of an object: what is written there, from how a look ended and what was seen."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from pgrole_controller.core.claim import Claim
from pgrole_controller.core.credential import version_of
from pgrole_controller.core.errors import Reason
from pgrole_controller.core.outcome import Ending, Outcome

#: A condition as in the object: type, status, reason, message, observedGeneration, lastTransitionTime.
Condition = Mapping[str, Any]

_MESSAGE_LIMIT = 2048


@dataclass(frozen=True, slots=True)
class Standing:
    """What status says beside the conditions. `reported` are the fields that drifted and were left as they are."""

    server_name: str
    claim: Claim | None = None
    reported: tuple[str, ...] = ()
    next_rotation: datetime | None = None


def build_status(
    previous: Mapping[str, Any], outcome: Outcome, standing: Standing, generation: int, now: datetime
) -> dict[str, Any]:
    """The whole status. `previous` is the status that the object has; what is not known anew is kept from it."""
    status: dict[str, Any] = {
        "observedGeneration": generation,
        "conditions": build_conditions(previous.get("conditions", ()), outcome, generation, now),
    }
    claim = standing.claim
    kept = ("role", "server", "lastDrift", "driftCount")
    for name in kept if claim else (*kept, "passwordSecretVersion", "nextRotation"):
        if name in previous:
            status[name] = previous[name]
    if claim is not None:
        status["role"] = {"name": claim.role_name, "oid": claim.role_oid, "applied": claim.applied}
        status["server"] = {"name": standing.server_name, "systemIdentifier": str(claim.system_identifier)}
        status["driftCount"] = max(claim.drift_count, int(previous.get("driftCount", 0)))
        if claim.last_drift_at is not None:
            status["lastDrift"] = {
                "time": rfc3339(claim.last_drift_at),
                "fields": list(claim.last_drift_fields),
                "corrected": True,
            }
        if version := version_of(claim.record.source):
            status["passwordSecretVersion"] = version
        if standing.next_rotation is not None:
            status["nextRotation"] = rfc3339(standing.next_rotation)
    if standing.reported:
        status["lastDrift"] = _reported_drift(previous.get("lastDrift"), standing.reported, now)
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
    if outcome.ending is Ending.WORKING:
        states["Reconciling"] = True
    if outcome.ending is Ending.STALLED:
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
