"""Drifts as the command `history` lists them, whether a database or the status of a PgRole recorded them."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from pgrole_controller.core.drift_record import read_moment, rfc3339
from pgrole_controller.core.privileges.privilege_result import DriftAuthor, Evidence

#: Maximum number of fields and phrases listed for one drift; both sources keep fewer.
_MOST = 64


@dataclass(frozen=True, slots=True)
class ListedDrift:
    """One drift, or `count` equal ones: `at` is the time of the first, `last_at` of the last.

    `database` is empty for a drift of the role itself. `values`: by field, what was declared and observed. `words`:
    what happened to privileges, one phrase each. `object`: namespace/name of the PgRole that recorded it in its status.
    """

    role: str
    at: datetime
    last_at: datetime
    fields: tuple[str, ...]
    corrected: bool
    count: int = 1
    database: str = ""
    values: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    words: tuple[str, ...] = ()
    by: DriftAuthor = field(default_factory=DriftAuthor)
    cluster: str = ""
    object: str = ""


def read_details(text: str | None) -> tuple[dict[str, tuple[str, str]], tuple[str, ...]]:
    """Reads declared and observed values by field, and phrases, from the JSON of column `details`. Accepts any text."""
    try:
        details = json.loads(text or "{}")
    except (ValueError, RecursionError):
        details = {}
    if not isinstance(details, dict):
        return {}, ()
    values = {
        name: (_text(pair.get("declared")), _text(pair.get("observed")))
        for name, pair in list(details.items())[:_MOST]
        if isinstance(pair, dict)
    }
    words = details.get("words")
    return values, _texts(words)


def read_status_entry(entry: Mapping[str, Any], role: str, owner: str) -> ListedDrift | None:
    """Reads an entry of status.driftHistory; returns None if it is malformed. `owner`: namespace/name of its PgRole."""
    moment = read_moment(entry.get("time"))
    if moment is None:
        return None
    by = entry.get("by")
    by = by if isinstance(by, dict) else {}
    proof = _text(by.get("proof"))
    return ListedDrift(
        role=role,
        at=moment,
        last_at=moment,
        fields=_texts(entry.get("fields")),
        corrected=entry.get("corrected") is True,
        database=_text(entry.get("database")),
        words=_texts(entry.get("details")),
        by=DriftAuthor(read_proof(proof), login=_text(by.get("login"))),
        object=owner,
    )


def read_proof(text: str) -> Evidence:
    """Reads a proof. Returns NONE for an unknown word, which a later version may have written."""
    return Evidence(text) if text in set(Evidence) else Evidence.NONE


def select(drifts: Iterable[ListedDrift], since: datetime, role: str | None) -> list[ListedDrift]:
    """Returns the drifts of a role (None: all) since a moment, latest first."""
    chosen = [one for one in drifts if one.last_at >= since and role in (None, one.role)]
    return sorted(chosen, key=lambda one: (one.last_at, one.at), reverse=True)


def describe(drift: ListedDrift) -> dict[str, Any]:
    """Returns the JSON form. Times are RFC 3339 in UTC; unknown values are null."""
    by = drift.by
    cause = {
        "login": by.login or None,
        "role": by.role or None,
        "application": by.application or None,
        "address": by.address or None,
        "statement": by.statement or None,
        "proof": by.proof.value,
    }
    return {
        "time": rfc3339(drift.at),
        "lastTime": rfc3339(drift.last_at),
        "count": drift.count,
        "role": drift.role,
        "database": drift.database or None,
        "fields": list(drift.fields),
        "values": {
            name: {"declared": declared, "observed": observed} for name, (declared, observed) in drift.values.items()
        },
        "details": list(drift.words),
        "corrected": drift.corrected,
        "by": cause,
        "cluster": drift.cluster or None,
        "object": drift.object or None,
    }


def describe_fields(drift: ListedDrift) -> str:
    """Returns what differed, for people: `createdb: true → false`, observed before declared, or phrases about
    privileges.
    """
    if drift.words:
        return "; ".join(drift.words)
    texts = [_describe_field(name, drift.values.get(name)) for name in drift.fields]
    return ", ".join(texts) or "-"


def _describe_field(name: str, pair: tuple[str, str] | None) -> str:
    return name if pair is None else f"{name}: {pair[1] or '(none)'} → {pair[0] or '(none)'}"


def _texts(value: object) -> tuple[str, ...]:
    return tuple(_text(one) for one in value[:_MOST]) if isinstance(value, list) else ()


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
