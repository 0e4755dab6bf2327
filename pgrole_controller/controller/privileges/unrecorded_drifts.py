"""Drifts of one database that have still to be recorded, there or in the home database."""

import math
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from pgrole_controller.postgres.drift_history import MOST_RECORDED, RecordedDrift


@dataclass(slots=True)
class UnrecordedDrifts:
    """Of more than MOST_RECORDED, the oldest are lost.

    `waiting`: those that this database is to record. `record_at`: when to try that again, on the loop's clock; inf: at
    the end of the round. `unstored`: those that the home database is to record, since this one stores nothing.
    `recorded`: this database recorded some that the home database lacks.
    """

    waiting: list[RecordedDrift] = field(default_factory=list)
    record_at: float = math.inf
    unstored: list[RecordedDrift] = field(default_factory=list)
    recorded: bool = False

    @property
    def failed(self) -> bool:
        """Whether the last attempt to record failed."""
        return self.record_at < math.inf

    def note_waiting(self, drifts: Iterable[RecordedDrift], record_at: float = math.inf) -> None:
        """Adds to `waiting`."""
        self.waiting = _append(self.waiting, drifts)
        self.record_at = min(self.record_at, record_at)

    def note_unstored(self, drifts: Iterable[RecordedDrift]) -> None:
        """Adds to `unstored`."""
        self.unstored = _append(self.unstored, drifts)

    def take_unstored(self) -> list[RecordedDrift]:
        """Returns `unstored`, and forgets it."""
        taken, self.unstored = self.unstored, []
        return taken

    def take_recorded(self) -> bool:
        """Whether drifts were recorded since the last call."""
        recorded, self.recorded = self.recorded, False
        return recorded


def _append(known: list[RecordedDrift], drifts: Iterable[RecordedDrift]) -> list[RecordedDrift]:
    """With keys, so that two attempts record each drift once."""
    return [*known, *(replace(one, key=one.key or uuid.uuid4().hex) for one in drifts)][-MOST_RECORDED:]
