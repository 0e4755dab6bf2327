"""Drifts by hour in the last day, for a PgServer's status.

The status outlives a process, but a process counts drifts first. So the counts of a process are added to what the
status held when the process first wrote it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from pgrole_controller.core.drift_record import read_moment

HOURS = 24
#: Upper limit of a count, whatever the status contains.
MOST = 2**31 - 1


@dataclass(frozen=True, slots=True)
class HourlyDrifts:
    """`hours`: beginning of an hour (UTC) → number of corrected and of reported drifts."""

    hours: Mapping[datetime, tuple[int, int]] = field(default_factory=dict)

    def add(self, at: datetime, *, corrected: int = 0, reported: int = 0) -> "HourlyDrifts":
        """Counts drifts in the hour that contains `at`."""
        return self.plus(HourlyDrifts({begin_of_hour(at): (corrected, reported)}))

    def plus(self, other: "HourlyDrifts") -> "HourlyDrifts":
        sums = dict(self.hours)
        for hour, (corrected, reported) in other.hours.items():
            before = sums.get(hour, (0, 0))
            sums[hour] = (min(before[0] + corrected, MOST), min(before[1] + reported, MOST))
        return HourlyDrifts(sums)

    def since(self, now: datetime) -> "HourlyDrifts":
        """Returns the current hour and the 23 before it; drops hours in the future, which remain if a clock was set
        back.
        """
        newest = begin_of_hour(now)
        oldest = newest - timedelta(hours=HOURS - 1)
        return HourlyDrifts({hour: counts for hour, counts in self.hours.items() if oldest <= hour <= newest})

    def to_status(self) -> list[dict[str, Any]]:
        """Returns the entries for the status, newest first. Hours without drift are absent."""
        return [
            {"hour": f"{hour:%Y-%m-%dT%H:%M:%SZ}", "corrected": corrected, "reported": reported}
            for hour, (corrected, reported) in sorted(self.hours.items(), reverse=True)
            if corrected or reported
        ]


def begin_of_hour(at: datetime) -> datetime:
    return at.astimezone(UTC).replace(minute=0, second=0, microsecond=0)


def of_status(entries: object) -> HourlyDrifts:
    """Reads `status.driftsPerHour`. Skips anything malformed, since others can write a status."""
    found = HourlyDrifts()
    for entry in entries[: 2 * HOURS] if isinstance(entries, list) else ():
        hour, counts = _read(entry)
        if hour is not None and hour not in found.hours:
            found = HourlyDrifts({**found.hours, hour: counts})
    return found


def _read(entry: object) -> tuple[datetime | None, tuple[int, int]]:
    if not isinstance(entry, dict):
        return None, (0, 0)
    hour = read_moment(entry.get("hour"))
    counts = [entry.get(name, 0) for name in ("corrected", "reported")]
    if hour is None or not all(isinstance(count, int) and 0 <= count <= MOST for count in counts):
        return None, (0, 0)
    return begin_of_hour(hour), (int(counts[0]), int(counts[1]))
