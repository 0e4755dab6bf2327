"""Drifts as the status of PgRoles contains them, for pages."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pgrole_controller.console.object_fields import (
    read_flag,
    read_map,
    read_maps,
    read_text,
    read_texts,
    read_time,
)

_MOST = 10
_PROOFS = {
    "Transaction": "proven by the transaction",
    "Log": "found in the server's log",
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
