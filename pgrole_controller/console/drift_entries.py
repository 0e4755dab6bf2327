"""Drifts as the status of PgRoles and PgServers contains them, for pages: one by one, and by hour."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from pgrole_controller.console.json_reading import (
    read_flag,
    read_map,
    read_maps,
    read_number,
    read_text,
    read_texts,
    read_time,
)

HOURS = 24
_MOST = 10
_PROOFS = {
    "Transaction": "proven by the transaction",
    "Log": "found in the statement log",
    "Statistics": "found in statement statistics, which name only the login",
    "Session": "was connected then and may have done it",
}


@dataclass(frozen=True, slots=True)
class DriftEntry:
    """One drift of a role, or of its privileges in `database`. Unknown texts are empty.

    `fields`: of spec. `details`: what happened, one phrase each. `proof`: as in status. `by_role`: the role that the
    session acted as, if it is not `login`.
    """

    time: datetime
    fields: tuple[str, ...]
    database: str
    details: tuple[str, ...]
    corrected: bool
    login: str = ""
    by_role: str = ""
    proof: str = ""
    application: str = ""
    address: str = ""
    statement: str = ""

    @property
    def certainty(self) -> str:
        """How certain it is that `login` caused it, in words; empty if the cause is unknown."""
        return _PROOFS.get(self.proof, "") if self.login else ""

    @property
    def is_suspicion(self) -> bool:
        return self.proof == "Session"


@dataclass(frozen=True, slots=True)
class HourCount:
    """Drifts in the hour that begins at `hour` (UTC)."""

    hour: datetime
    corrected: int
    reported: int


def read_entry(entry: Mapping[str, Any]) -> DriftEntry | None:
    """Reads `lastDrift`, or one entry of `driftHistory`. None without a time."""
    time = read_time(entry, "time")
    if time is None:
        return None
    by = read_map(entry, "by")
    return DriftEntry(
        time=time,
        fields=read_texts(entry, "fields", most=64),
        database=read_text(entry, "database"),
        details=read_texts(entry, "details", most=16),
        corrected=read_flag(entry, "corrected") is True,
        login=read_text(by, "login", most=256),
        by_role=read_text(by, "role", most=256),
        proof=read_text(by, "proof", most=32),
        application=read_text(by, "application", most=256),
        address=read_text(by, "address", most=256),
        statement=read_text(by, "statement", most=512),
    )


def read_history(status: Mapping[str, Any]) -> tuple[DriftEntry, ...]:
    """Returns the drifts of a PgRole, newest first. `lastDrift` has more than its entry in the history."""
    if "driftHistory" not in status and "lastDrift" not in status:
        return ()
    entries = [read_entry(each) for each in read_maps(status, "driftHistory", most=_MOST)]
    history = [each for each in entries if each is not None]
    last = read_entry(read_map(status, "lastDrift"))
    if last is not None:
        history = [last, *(each for each in history if not _same(each, last))]
    return tuple(sorted(history, key=lambda each: each.time, reverse=True)[:_MOST])


def _same(one: DriftEntry, other: DriftEntry) -> bool:
    return (one.time, one.database, one.corrected) == (other.time, other.database, other.corrected)


def count_by_hour(entries: Iterable[DriftEntry], now: datetime) -> tuple[HourCount, ...]:
    """Counts drifts in the last 24 hours, the current one included, oldest first."""
    return _fill(((each.time, each.corrected, not each.corrected) for each in entries), now)


def read_counts(servers: Iterable[Mapping[str, Any]], now: datetime) -> tuple[HourCount, ...] | None:
    """Adds up `status.driftsPerHour` of PgServers. None if no server has it."""
    found: list[tuple[datetime, int, int]] = []
    known = False
    for server in servers:
        status = read_map(server, "status")
        known = known or isinstance(status.get("driftsPerHour"), list)
        for each in read_maps(status, "driftsPerHour", most=2 * HOURS):
            hour = read_time(each, "hour")
            corrected, reported = read_number(each, "corrected") or 0, read_number(each, "reported") or 0
            if hour is not None:
                found.append((hour, max(0, corrected), max(0, reported)))
    return _fill(found, now) if known else None


def at_least(counts: Sequence[HourCount], others: Sequence[HourCount]) -> tuple[HourCount, ...]:
    """The larger count of each hour. The controller writes its counts once a minute, histories of roles at once."""
    return tuple(
        HourCount(one.hour, max(one.corrected, other.corrected), max(one.reported, other.reported))
        for one, other in zip(counts, others, strict=True)
    )


def _fill(counts: Iterable[tuple[datetime, int, int]], now: datetime) -> tuple[HourCount, ...]:
    newest = now.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    hours = [newest - timedelta(hours=back) for back in reversed(range(HOURS))]
    sums = {hour: [0, 0] for hour in hours}
    for time, corrected, reported in counts:
        found = sums.get(time.replace(minute=0, second=0, microsecond=0))
        if found is not None:
            found[0] += corrected
            found[1] += reported
    return tuple(HourCount(hour, *sums[hour]) for hour in hours)
