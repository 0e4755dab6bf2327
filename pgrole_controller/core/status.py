"""The status of an object, which reports the outcome of its last reconcile."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from pgrole_controller.core.approval import RoleOffer
from pgrole_controller.core.claim import Claim
from pgrole_controller.core.drift_record import (
    MOST,
    DriftRecord,
    count_new,
    describe_last,
    extend_history,
    find_latest_time,
    hide_author,
    keep_known,
    keep_reported_time,
    order,
    read_moment,
    record_of,
    rfc3339,
)
from pgrole_controller.core.errors import Reason
from pgrole_controller.core.outcome import LONGEST_MESSAGE, Outcome, Phase
from pgrole_controller.core.password import version_of
from pgrole_controller.core.privileges.granted_privileges import GrantedPrivileges, describe_approval
from pgrole_controller.core.privileges.privilege_difference import combine_drifts
from pgrole_controller.core.privileges.privilege_result import DriftAuthor
from pgrole_controller.core.role_drift import FoundCause

#: A condition as in the object: type, status, reason, message, observedGeneration, lastTransitionTime.
StatusCondition = Mapping[str, Any]

_LARGEST_COUNT = 2**63 - 1  # format int64


@dataclass(frozen=True, slots=True)
class StatusDetails:
    """What status contains besides conditions. `reported` are the fields whose drift was reported and not corrected;
    `reported_at`: when that was first observed; None: the previous status tells. `observed_at`: when the role was read,
    by the server's clock; None: it was not.

    `privileges`: None if there are none, or if nothing is known of them. `cause`: of a drift of the role, if it is
    known. `offer`: drift of the role that can be approved. `earlier`: drifts of the role that were corrected before the
    last one and that no status has yet. `exposes_all`: whether the server's owner lets status show everything about who
    caused a drift; None: unknown, and what it shows stays.
    """

    claim: Claim | None = None
    reported: tuple[str, ...] = ()
    observed_at: datetime | None = field(default=None, compare=False)
    next_rotation: datetime | None = None
    privileges: GrantedPrivileges | None = None
    cause: FoundCause | None = None
    offer: RoleOffer | None = None
    earlier: tuple[DriftRecord, ...] = ()
    exposes_all: bool | None = None
    reported_at: datetime | None = None

    @property
    def has_drifts(self) -> bool:
        """Whether it tells corrected drifts of the role itself."""
        return bool(self.earlier or _record_corrected(self))

    def following(self, before: "StatusDetails") -> "StatusDetails":
        """Returns these with the corrected drifts of others that were never written."""
        last = _record_corrected(self)
        unwritten = [one for one in (*before.earlier, *_record_corrected(before)) if one not in last]
        return replace(self, earlier=tuple(dict.fromkeys(unwritten))[-MOST:])


def build_status(
    previous: Mapping[str, Any],
    outcome: Outcome,
    details: StatusDetails,
    server_name: str,
    generation: int,
    now: datetime,
) -> dict[str, Any]:
    """Builds the whole status. `previous` is the object's current status; fields without a newer value are kept from
    it.
    """
    status: dict[str, Any] = {
        "observedGeneration": generation,
        "conditions": build_conditions(previous.get("conditions", ()), outcome, generation, now),
    }
    claim = details.claim
    kept = ("role", "server", "lastDrift", "driftCount", "driftHistory")
    for name in kept if claim else (*kept, "passwordSecretVersion", "nextRotation", "privileges"):
        if name in previous:
            status[name] = previous[name]
    privileges = details.privileges
    if claim is not None:
        status["role"] = {"name": claim.role_name, "oid": claim.role_oid, "applied": claim.applied}
        status["server"] = {"name": server_name, "systemIdentifier": str(claim.system_identifier)}
        if version := version_of(claim.record.source):
            status["passwordSecretVersion"] = version
        if details.next_rotation is not None:
            status["nextRotation"] = rfc3339(details.next_rotation)
    if privileges is not None and (described := privileges.describe()):
        status["privileges"] = described
    if approval := describe_approval(details.offer, privileges, _handled(previous, claim)):
        status["approval"] = approval
    _add_drifts(status, previous, details, now)
    return status


def _handled(previous: Mapping[str, Any], claim: Claim | None) -> str:
    """Where no schema is, status is the only record."""
    if claim is not None:
        return claim.approve_handled
    before = previous.get("approval")
    return str(before.get("handled") or "") if isinstance(before, dict) else ""


def _add_drifts(status: dict[str, Any], previous: Mapping[str, Any], details: StatusDetails, now: datetime) -> None:
    """Adds lastDrift, driftHistory and driftCount. The previous status may know a later drift: one that was reported
    and undone or, after a restart, one in a database. It may also have counted drifts that no database remembers,
    because the claim, the role or a database was lost since.
    """
    claim = details.claim
    latest_time = find_latest_time(details.observed_at, now)
    results = details.privileges.last_results if details.privileges else ()
    history = previous.get("driftHistory") or ()
    exposes_all = bool(details.exposes_all)
    before = previous.get("lastDrift") or {}
    of_role = _record_corrected(details)
    records, latest = [*details.earlier, *of_role], list(of_role)
    stands = any(one.get("type") == "DriftDetected" for one in previous.get("conditions") or ())
    for result in results:
        drifts = [keep_reported_time(result.database, drift, history if stands else ()) for drift in result.last_drifts]
        records += [record_of(result.database, drift) for drift in (*result.earlier_drifts, *drifts)]
        if drifts:
            latest.append(record_of(result.database, combine_drifts(drifts)))
    if latest:
        newest = max(latest, key=lambda one: order(one.time, latest_time))
        known = read_moment(before.get("time"))
        of_claim = before.get("corrected") and not before.get("database")
        if of_claim or known is None or order(known, latest_time) <= order(newest.time, latest_time):
            status["lastDrift"] = keep_known(describe_last(newest, exposes_all=exposes_all), before)
    if details.reported:
        record = _record_reported(previous, details, now)
        status["lastDrift"] = keep_known(describe_last(record, exposes_all=exposes_all), before)
        records.append(record)
    if details.exposes_all is False and "lastDrift" in status:
        status["lastDrift"] = hide_author(status["lastDrift"])
    if claim is not None:
        in_databases = sum(result.drift_count for result in results)
        remembered = claim.drift_count + max(in_databases, claim.counted)
        counted = int(previous.get("driftCount", 0)) + count_new(history, latest, latest_time)
        status["driftCount"] = min(max(remembered, counted), _LARGEST_COUNT)
    if records:
        status["driftHistory"] = extend_history(history, records, latest_time)


def _record_corrected(details: StatusDetails) -> list[DriftRecord]:
    """Returns the last drift of the role itself that was corrected, if there was one."""
    claim, cause = details.claim, details.cause
    if claim is None or claim.last_drift_at is None:
        return []
    fields = claim.last_drift_fields
    by = cause.by if cause and cause.drift.corrected and cause.drift.at == claim.last_drift_at else DriftAuthor()
    return [DriftRecord(claim.last_drift_at, fields, corrected=True, count=len(fields), by=by)]


def _record_reported(previous: Mapping[str, Any], details: StatusDetails, now: datetime) -> DriftRecord:
    """Returns the drift of the role itself that is only reported."""
    fields, cause = details.reported, details.cause
    by = cause.by if cause and not cause.drift.corrected and cause.drift.fields == fields else DriftAuthor()
    seen = details.reported_at or find_reported_time(previous, fields) or details.observed_at or now
    return DriftRecord(seen, fields, corrected=False, count=len(fields), by=by)


def find_reported_time(previous: Mapping[str, Any], fields: Sequence[str]) -> datetime | None:
    """Returns the time of the reconcile that first observed drift of these fields, if it was not corrected or undone
    since.

    `previous`: the object's status.
    """
    same = [*find_reported(previous)] == list(fields)
    return read_moment((previous.get("lastDrift") or {}).get("time")) if same else None


def find_reported(previous: Mapping[str, Any]) -> Sequence[str]:
    """Returns the drifted fields of the role that a status reports, even if it has another reason by now."""
    last = previous.get("lastDrift") or {}
    is_over = is_ready(previous) or last.get("corrected") or last.get("database")
    return () if is_over else last.get("fields") or ()


def is_ready(status: object) -> bool:
    """Tells whether a status has Ready=True. Accepts a value of any shape."""
    return _has_condition(status, "status", "True")


def is_contested(status: object) -> bool:
    """Tells whether a status says that something else keeps changing the role or its privileges back. Accepts a value
    of any shape.
    """
    return _has_condition(status, "reason", Reason.CONTESTED)


def _has_condition(status: object, name: str, value: str) -> bool:
    """Tells whether `name` of the condition Ready has this value."""
    conditions = status.get("conditions") if isinstance(status, dict) else None
    some = [one for one in conditions if isinstance(one, dict)] if isinstance(conditions, list) else []
    return any((one.get("type"), one.get(name)) == ("Ready", value) for one in some)


def build_conditions(
    previous: Sequence[StatusCondition], outcome: Outcome, generation: int, now: datetime, *, keep_message: bool = True
) -> list[dict[str, Any]]:
    """Builds the conditions. `keep_message`: while the object stays Ready, the message from when it became Ready stays
    too.
    """
    states = {"Ready": outcome.ready}
    # kstatus: these two exist only while they are true.
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
    before: StatusCondition | None, kind: str, true: bool, outcome: Outcome, generation: int, now: datetime
) -> dict[str, Any]:
    status = "True" if true else "False"
    same = before is not None and before["status"] == status
    return {
        "type": kind,
        "status": status,
        "reason": outcome.reason.value,
        "message": outcome.message[:LONGEST_MESSAGE],
        "observedGeneration": generation,
        "lastTransitionTime": before["lastTransitionTime"] if same and before else rfc3339(now),
    }
