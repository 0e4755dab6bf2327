"""What lists, charts and graphs show about one PgRole. A summary is small, and made once for each version of an
object.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from sys import intern
from typing import Any
from weakref import ref as weakref

from pgrole_controller.console.drift_entries import DriftEntry, read_history
from pgrole_controller.console.object_fields import (
    LEFT_OUT,
    read_flag,
    read_map,
    read_maps,
    read_number,
    read_text,
    read_texts,
    read_time,
)
from pgrole_controller.console.object_state import ObjectState, judge
from pgrole_controller.console.viewed_objects import ViewedObjects
from pgrole_controller.core.request import Key
from pgrole_controller.kube.stored_object import Stored

_MESSAGE = 300


@dataclass(frozen=True, slots=True)
class RoleSummary:
    """`role`: its name in PostgreSQL. `message`: of Ready, cut; empty if the role is Ready. `drifts`: newest first.

    `left_out`: fields that the console does not keep, because the object is too long.
    """

    key: Key
    role: str
    server: str
    login: bool
    state: ObjectState
    reason: str
    message: str
    since: datetime | None
    deleting: bool
    drift_count: int
    drifts: tuple[DriftEntry, ...]
    member_of: tuple[str, ...]
    left_out: tuple[str, ...] = ()

    @property
    def last_drift(self) -> datetime | None:
        return self.drifts[0].time if self.drifts else None


class SummaryCache:
    """Summaries of stored objects, as long as a viewer's store holds these. A changed object is another one."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref[Stored], RoleSummary]] = {}

    def __len__(self) -> int:
        return len(self._known)

    def list(self, roles: ViewedObjects[Key]) -> Sequence[RoleSummary]:
        """Returns the summary of every role. Only those that are new are parsed."""
        return [self._find(key, roles.stored(key)) for key in roles]

    def _find(self, key: Key, stored: Stored) -> RoleSummary:
        identity = id(stored)
        known = self._known.get(identity)
        if known is not None and known[0]() is stored:
            return known[1]
        summary = summarize(key, stored.parse())
        self._known[identity] = weakref(stored, lambda gone: self._forget(identity, gone)), summary
        return summary

    def _forget(self, identity: int, gone: "weakref[Stored]") -> None:
        """Forgets the summary: another object may have the same identity by now."""
        known = self._known.get(identity)
        if known is not None and known[0] is gone:
            del self._known[identity]


def summarize(key: Key, found: Mapping[str, Any]) -> RoleSummary:
    """Summarizes a PgRole object of any shape."""
    spec, status = read_map(found, "spec"), read_map(found, "status")
    verdict = judge(found)
    return RoleSummary(
        key=key,
        role=read_text(spec, "name", most=256) or key.name,
        server=intern(read_text(spec, "serverRef", "name", most=256) or "default"),
        login=read_flag(spec, "login") is True,
        state=verdict.state,
        reason=verdict.reason,
        message="" if verdict.state is ObjectState.READY else verdict.message[:_MESSAGE],
        since=verdict.since,
        deleting=read_time(found, "metadata", "deletionTimestamp") is not None,
        drift_count=max(0, read_number(status, "driftCount") or 0),
        drifts=read_history(status),
        member_of=tuple(
            name for each in read_maps(spec, "memberOf", most=64) if (name := read_text(each, "role", most=256))
        ),
        left_out=read_texts(found, LEFT_OUT, most=16),
    )
