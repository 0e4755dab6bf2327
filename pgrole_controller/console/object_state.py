"""The conditions of a PgRole or PgServer, and the state that they tell together (kstatus)."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from sys import intern
from typing import Any

from pgrole_controller.console.object_fields import CHANGED, read_maps, read_number, read_text, read_time


class ObjectState(StrEnum):
    """In the order in which they need attention."""

    STALLED = "stalled"
    DRIFT = "drift"
    RETRYING = "retrying"
    WORKING = "working"
    NEW = "new"
    SUSPENDED = "suspended"
    READY = "ready"

    @property
    def words(self) -> str:
        return _WORDS[self]

    @property
    def rank(self) -> int:
        return _RANKS[self]


_WORDS = {
    ObjectState.STALLED: "Needs action",
    ObjectState.DRIFT: "Drift reported",
    ObjectState.RETRYING: "Retrying",
    ObjectState.WORKING: "In progress",
    ObjectState.NEW: "Not processed",
    ObjectState.SUSPENDED: "Suspended",
    ObjectState.READY: "Ready",
}
_RANKS = {state: rank for rank, state in enumerate(ObjectState)}


@dataclass(frozen=True, slots=True)
class ObjectJudgement:
    """What the conditions of an object mean together. `since`: when Ready last changed, or the object itself did, if
    the controller has not processed that; None: unknown.
    """

    state: ObjectState
    reason: str
    message: str
    since: datetime | None


@dataclass(frozen=True, slots=True)
class ConditionView:
    type: str
    status: str
    reason: str
    message: str
    since: datetime | None


def read_conditions(found: Mapping[str, Any]) -> Iterator[ConditionView]:
    for each in read_maps(found, "status", "conditions", most=16):
        yield ConditionView(
            type=read_text(each, "type", most=128),
            status=read_text(each, "status", most=32),
            reason=read_text(each, "reason", most=128),
            message=read_text(each, "message"),
            since=read_time(each, "lastTransitionTime"),
        )


def judge(found: Mapping[str, Any]) -> ObjectJudgement:
    """Reads the state of a PgRole or PgServer from its conditions."""
    ready: Mapping[str, Any] = {}
    others = set()
    for condition in read_maps(found, "status", "conditions", most=32):
        if condition.get("type") == "Ready":
            ready = condition
        elif condition.get("status") == "True":
            others.add(str(condition.get("type")))
    reason = intern(read_text(ready, "reason", most=128))
    message, since = read_text(ready, "message"), read_time(ready, "lastTransitionTime")
    if not ready:
        created = read_time(found, "metadata", "creationTimestamp")
        return ObjectJudgement(ObjectState.NEW, "", "The controller has not processed this object yet.", created)
    if reason == "Suspended":
        state = ObjectState.SUSPENDED
    elif "DriftDetected" in others or reason == "DriftReported":
        state = ObjectState.DRIFT
    elif "Stalled" in others or reason == "Contested":
        state = ObjectState.STALLED
    elif ready.get("status") == "True":
        if is_current(found):
            return ObjectJudgement(ObjectState.READY, reason, message, since)
        state, reason, since = ObjectState.WORKING, "Progressing", read_time(found, "metadata", "deletionTimestamp")
        message = "The object is being deleted."
        if since is None:
            since = read_time(found, CHANGED)
            message = "The spec changed. The controller has not processed the change yet."
    else:
        state = ObjectState.WORKING if reason == "Progressing" else ObjectState.RETRYING
    return ObjectJudgement(state, reason, message, since)


def is_current(found: Mapping[str, Any]) -> bool:
    """Whether the status is about the spec as it is."""
    generation = read_number(found, "metadata", "generation")
    observed = read_number(found, "status", "observedGeneration")
    return generation is None or observed is None or observed >= generation
