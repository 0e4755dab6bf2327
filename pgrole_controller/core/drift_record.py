"""Drifts as status records them: the last one in full, the last ten in short, and their number in each hour of a day.

The status outlives a process, but a process counts drifts first. So the counts of a process are added to what the
status of the PgServer held when the process first wrote it.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from pgrole_controller.core.errors import make_legible
from pgrole_controller.core.privileges.privilege_result import DriftAuthor, Evidence, PrivilegeDrift

#: Maximum number of entries in status.driftHistory, and bytes of JSON of each.
MOST = 10
LARGEST = 512

#: Hours for which drifts are counted in the status of a PgServer, and maximum of a count, whatever the status contains.
HOURS = 24
MOST_COUNTED = 2**31 - 1

#: A time that is further ahead of the server's clock than this was recorded while that was wrong; likewise of this
#: machine's clock, which may be wrong itself.
_AHEAD = timedelta(minutes=1)
_FAR_AHEAD = timedelta(days=1)

#: A moment, or its text in RFC 3339.
Time = TypeVar("Time", datetime, str)

_FEW = 5
_NAME = 63
_ADDRESS = 64
_DETAIL = 512
_SHORT_DETAIL = 120
_STATEMENT = 120

#: Of a cause, what status has only if the server exposes it.
_EXPOSED = ("application", "address", "statement")
_UNKNOWN: Mapping[str, Any] = {"time": None, "by": None}
_NOBODY: Mapping[str, Any] = {"proof": Evidence.NONE.value}


@dataclass(frozen=True, slots=True)
class DriftRecord:
    """One drift of a role, or of its privileges in one `database`.

    `fields`: of spec. `details`: what happened, one phrase each. `count`: number of fields or ACL entries that
    differed.
    """

    time: datetime
    fields: tuple[str, ...]
    corrected: bool
    count: int
    database: str = ""
    details: tuple[str, ...] = ()
    by: DriftAuthor = field(default_factory=DriftAuthor)


def record_of(database: str, drift: PrivilegeDrift) -> DriftRecord:
    return DriftRecord(drift.time, ("privileges",), drift.corrected, drift.count, database, drift.words, drift.by)


def describe_last(record: DriftRecord, *, exposes_all: bool) -> dict[str, Any]:
    """Returns status.lastDrift. `exposes_all`: include application, address and statement."""
    described: dict[str, Any] = {
        "time": rfc3339(record.time),
        "fields": list(record.fields),
        "corrected": record.corrected,
    }
    if record.database:
        described["database"] = make_legible(record.database, _NAME)
        described["details"] = [make_legible(words, _DETAIL) for words in record.details[: 2 * _FEW + 1]]
    return {**described, "by": _describe_cause(record.by, exposes_all=exposes_all)}


def _describe_cause(by: DriftAuthor, *, exposes_all: bool) -> dict[str, Any]:
    named = {"login": by.login, "role": by.role if by.role != by.login else ""}
    if exposes_all:
        named["application"] = by.application
    described: dict[str, Any] = {name: make_legible(text, _NAME) for name, text in named.items() if text}
    if exposes_all and by.address:
        described["address"] = make_legible(by.address, _ADDRESS)
    if by.time is not None:
        described["time"] = rfc3339(by.time)
    if exposes_all and by.statement:
        described["statement"] = make_legible(by.statement, _STATEMENT)
    return {**described, "proof": by.proof.value}


def _describe_shortly(record: DriftRecord) -> dict[str, Any]:
    """Returns an entry of status.driftHistory."""
    described: dict[str, Any] = {
        "time": rfc3339(record.time),
        "fields": list(record.fields[:_FEW]),
        "count": record.count,
        "corrected": record.corrected,
    }
    if record.database:
        described["database"] = make_legible(record.database, _NAME)
        described["details"] = [make_legible(words, _SHORT_DETAIL) for words in record.details[:_FEW]]
    if record.by.login:
        described["by"] = {"login": make_legible(record.by.login, _NAME), "proof": record.by.proof.value}
    for shortened in ("details", "fields"):
        while described.get(shortened) and _size(described) > LARGEST:
            described[shortened].pop()
    return described


def _size(described: Mapping[str, Any]) -> int:
    return len(json.dumps(described, ensure_ascii=False).encode())


def find_latest_time(observed_at: datetime | None, now: datetime) -> datetime:
    """Returns the latest time that a drift can have. `observed_at`: when the role was read, by the server's clock."""
    return now + _FAR_AHEAD if observed_at is None else observed_at + _AHEAD


def order(time: Time, latest: Time) -> tuple[bool, Time]:
    """By which the newest time sorts last, and times after the latest possible one sort first."""
    return time <= latest, time


def extend_history(
    previous: Sequence[Mapping[str, Any]], records: Iterable[DriftRecord], latest: datetime
) -> list[dict[str, Any]]:
    """Returns status.driftHistory, newest first: the previous entries, and those of these drifts that are new or whose
    cause is new.
    """
    history = {_identity(entry): dict(entry) for entry in previous}
    new: dict[str, dict[str, Any]] = {}
    for record in sorted(records, key=lambda one: one.time):
        described = _describe_shortly(record)
        identity = _identity(described)
        (history if identity in history else new).setdefault(identity, {}).update(described)
    # Times have whole seconds, and sorting keeps the order of equal ones.
    entries = [*reversed(new.values()), *history.values()]
    last = rfc3339(latest)
    return sorted(entries, key=lambda entry: order(str(entry.get("time")), last), reverse=True)[:MOST]


def count_new(history: Iterable[Mapping[str, Any]], records: Iterable[DriftRecord], latest: datetime) -> int:
    """Returns how many of these drifts were corrected and are later than everything in `history`, of the previous
    status. Without a history, none is known to be new.
    """
    last = rfc3339(latest)
    newest = max((order(str(entry.get("time")), last) for entry in history), default=None)
    return 0 if newest is None else sum(one.corrected and order(rfc3339(one.time), last) > newest for one in records)


def keep_known(described: dict[str, Any], previous: Mapping[str, Any] | None) -> dict[str, Any]:
    """Returns status.lastDrift with what the previous status knows of the same drift: a restarted controller knows less
    of its cause and of what happened.
    """
    names = ("time", "fields", "database", "corrected")
    if not previous or any(previous.get(name) != described.get(name) for name in names):
        return described
    kept = dict(described)
    known, by = previous.get("by"), described.get("by")
    if isinstance(known, dict) and (by == _NOBODY or (by and known.items() >= by.items())):
        kept["by"] = known
    details, shown = previous.get("details"), described.get("details", [])
    if isinstance(details, list) and len(details) >= len(shown) and all(map(_begins, details, shown)):
        kept["details"] = details
    return kept


def hide_author(last: Mapping[str, Any]) -> dict[str, Any]:
    """Returns status.lastDrift without what only the server's owner may expose of its author."""
    by = last.get("by")
    if not isinstance(by, dict):
        return dict(last)
    return {**last, "by": {name: value for name, value in by.items() if name not in _EXPOSED}}


def _begins(text: object, words: str) -> bool:
    return str(text).startswith(words)


def keep_reported_time(database: str, drift: PrivilegeDrift, history: Iterable[Mapping[str, Any]]) -> PrivilegeDrift:
    """Returns a drift that is only reported with the time of its first report. `history`: of the previous status. A
    restarted controller observes the drift again, and nothing may tell when it happened.
    """
    if drift.corrected or drift.by.time is not None:
        return drift
    described = {**_describe_shortly(record_of(database, drift)), **_UNKNOWN}
    times = [read_moment(entry.get("time")) for entry in history if {**entry, **_UNKNOWN} == described]
    return replace(drift, time=times[-1] or drift.time) if times else drift


def _identity(entry: Mapping[str, Any]) -> str:
    """Identifies a drift; its cause may be found later."""
    return json.dumps({name: value for name, value in entry.items() if name != "by"}, sort_keys=True)


def rfc3339(moment: datetime) -> str:
    """Formats a moment in UTC with whole seconds, like metav1.Time. Years have four digits, unlike in strftime."""
    return moment.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def read_moment(text: object) -> datetime | None:
    """Reads an RFC 3339 time, in UTC; returns None for anything else, and for a time that is beyond the years 1 to
    9999 in UTC. Whoever may write an object may have chosen the text.
    """
    try:
        moment = datetime.fromisoformat(text) if isinstance(text, str) else None
        return moment.astimezone(UTC) if moment is not None and moment.tzinfo is not None else None
    except (ValueError, OverflowError):
        return None


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
            sums[hour] = (min(before[0] + corrected, MOST_COUNTED), min(before[1] + reported, MOST_COUNTED))
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


def read_hourly_drifts(entries: object) -> HourlyDrifts:
    """Reads `status.driftsPerHour`. Skips anything malformed, since others can write a status."""
    found = HourlyDrifts()
    for entry in entries[: 2 * HOURS] if isinstance(entries, list) else ():
        hour, counts = _read_hour(entry)
        if hour is not None and hour not in found.hours:
            found = HourlyDrifts({**found.hours, hour: counts})
    return found


def _read_hour(entry: object) -> tuple[datetime | None, tuple[int, int]]:
    if not isinstance(entry, dict):
        return None, (0, 0)
    hour = read_moment(entry.get("hour"))
    counts = [entry.get(name, 0) for name in ("corrected", "reported")]
    if hour is None or not all(isinstance(count, int) and 0 <= count <= MOST_COUNTED for count in counts):
        return None, (0, 0)
    return begin_of_hour(hour), (int(counts[0]), int(counts[1]))
