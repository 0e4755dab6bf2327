"""Occurrences that wait to be written as Events: which is next, and which is lost when too many wait.

Guarantees: repetitions of a series wait as one; within a namespace, urgent ones come first and are lost last; a
namespace with many takes no place from one with few.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Literal

EventType = Literal["Normal", "Warning"]
SeriesKey = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Occurrence:
    """Something to tell in an Event about the object `regarding`. `recorded`: on the recorder's clock. `urgent`: the
    object's status may never show it.
    """

    regarding: Mapping[str, Any]
    event_type: EventType
    reason: str
    action: str
    note: str
    at: datetime
    recorded: float
    urgent: bool = False
    count: int = 1

    @property
    def namespace(self) -> str:
        """That of the Event."""
        return str(self.regarding.get("namespace") or "default")

    @property
    def series(self) -> SeriesKey:
        return str(self.regarding.get("uid")), self.reason, self.note


@dataclass(slots=True)
class _NamespaceQueue:
    """The occurrences of one namespace, each in the order in which they were put."""

    urgent: dict[SeriesKey, Occurrence] = field(default_factory=dict)
    others: dict[SeriesKey, Occurrence] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.urgent) + len(self.others)


class EventQueue:
    """At most `limit` occurrences."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting: dict[str, _NamespaceQueue] = {}
        self._count = 0

    @property
    def crowded(self) -> bool:
        """Whether half as many wait as may."""
        return self._count * 2 >= self._limit

    def __contains__(self, namespace: str) -> bool:
        return namespace in self._waiting

    def put(self, occurrence: Occurrence) -> Occurrence | None:
        """Returns the one that is lost for it: the last one of the namespace with most."""
        waiting = self._waiting.setdefault(occurrence.namespace, _NamespaceQueue())
        some = waiting.urgent if occurrence.urgent else waiting.others
        before = some.get(occurrence.series)
        if before is not None:
            some[occurrence.series] = replace(before, at=occurrence.at, count=before.count + 1)
            return None
        some[occurrence.series] = occurrence
        if self._count < self._limit:
            self._count += 1
            return None
        most = max(self._waiting.values(), key=len)
        return (most.others or most.urgent).popitem()[1]

    def find_next(self, namespace: str) -> Occurrence | None:
        """Returns the one to write next, which stays; None if no more wait, and the namespace is forgotten."""
        waiting = self._waiting[namespace]
        if waiting:
            return next(iter((waiting.urgent or waiting.others).values()))
        del self._waiting[namespace]
        return None

    def take_next(self, namespace: str) -> Occurrence | None:
        """As `find_next`, and removes it."""
        found = self.find_next(namespace)
        if found is not None:
            waiting = self._waiting[namespace]
            del (waiting.urgent if found.urgent else waiting.others)[found.series]
            self._count -= 1
        return found
