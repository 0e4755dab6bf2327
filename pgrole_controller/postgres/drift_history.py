"""The history of drifts, in table pgrole.drift_history of the database where each was found.

A repairing transaction records its drifts itself, so a committed repair has its row, unless the table is locked.
Another database's rows are copied to the home database, at least once, identified by their uuid. Statements of role DDL
are never recorded.

Equal drifts of a minute by one login share a row, so a contest adds a row a minute for each. A drift that is only
reported is recorded once, by its `key` and `occasion`, whatever number of resyncs and restarts finds it.

Leave the history out of dumps with `pg_dump --exclude-table-data='pgrole.*'`.
"""

import hashlib
import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import anyio

from pgrole_controller.core.ddl import quote_literal, storable
from pgrole_controller.core.privileges.privilege_result import DriftAuthor, Evidence
from pgrole_controller.core.server_options import HistoryConfig
from pgrole_controller.postgres.claim_store import CHANGE_TIMEOUTS
from pgrole_controller.postgres.connection import Connection
from pgrole_controller.postgres.errors import translate_errors
from pgrole_controller.postgres.fence import Fence

#: Drifts that one statement records.
MOST_RECORDED = 1000

#: Characters of a statement that are kept.
STATEMENT_SHOWN = 120

#: Bytes of other texts and of a statement, as in record_drifts(), which in a database of encoding SQL_ASCII would cut a
#: character in two.
_LONGEST_TEXT = 63
_LONGEST_STATEMENT = 400

#: Phrases that `details` keep, bytes of each, and characters of the digest: what the table's limit for `details` fits.
_MOST_WORDS = 5
_LONGEST_WORDS = 100
_DIGEST = 16

_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class RecordedDrift:
    """One drift to record, or as recorded. `database` is empty for roles.

    `key`: identifies a drift that may be found again; the same one is recorded once. Empty: it happens once.
    `occasion`: tells apart drifts with one key, each of which happens once. `standing`: an earlier process may have
    recorded it, knowing more or less of who caused it and when.
    `fields`: of spec. `values`: by field, what was declared and observed. `words`: what happened to privileges, one
    phrase each.
    """

    role: str
    fields: tuple[str, ...]
    corrected: bool
    database: str = ""
    at: datetime | None = None  # None: now, by the database's clock
    count: int = 1
    by: DriftAuthor = field(default_factory=DriftAuthor)
    cluster: str = ""
    key: str = ""
    occasion: str = ""
    standing: bool = False
    values: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    words: tuple[str, ...] = ()


#: Characters of half a UUID, as in record_drifts().
_HALF = 18

_NAMESPACE = uuid.UUID("5d9f1f2c-3f4e-5a8e-9d3b-0f4c1f0a7b11")


def build_record_statement(drifts: Sequence[RecordedDrift], config: HistoryConfig) -> str:
    """Returns the statement with which a repairing transaction records these drifts, the first MOST_RECORDED.

    The transaction has called pgrole.lock_changes() and has verified that schema pgrole can be trusted.
    """
    rows = [_to_json(drift, config) for drift in drifts[:MOST_RECORDED]]
    # A database of encoding SQL_ASCII accepts no escaped character in jsonb.
    given = json.dumps(rows, ensure_ascii=False)
    return f"SELECT pgrole.record_drifts({quote_literal(given)}::pg_catalog.jsonb)"


def _to_json(drift: RecordedDrift, config: HistoryConfig) -> dict[str, object]:
    of_role = not drift.database
    by = drift.by
    row: dict[str, object] = {
        "role": _cut(storable(drift.role), _LONGEST_TEXT),
        "kind": "role" if of_role else "privileges",
        "fields": [storable(field) for field in drift.fields],
        "corrected": drift.corrected,
        "count": drift.count,
    }
    known = {
        "database": drift.database,
        "login": by.login,
        "acting": by.role,
        "application": by.application,
        "address": by.address if config.addresses else "",
        "statement": "" if of_role else by.statement[:STATEMENT_SHOWN],
        "proof": "" if by.proof is Evidence.NONE else by.proof.value,
        "cluster": drift.cluster,
    }
    longest = {"statement": _LONGEST_STATEMENT}
    row |= {name: _cut(storable(value), longest.get(name, _LONGEST_TEXT)) for name, value in known.items() if value}
    if drift.values:
        row["details"] = {
            name: {side: storable(value) for side, value in pair.items()} for name, pair in drift.values.items()
        }
    elif drift.words:
        row["details"] = _shorten([storable(words) for words in drift.words])
    if drift.at is not None:
        row["at"] = drift.at.isoformat()
    if drift.key:
        row["drift"] = _identify(drift)
        row["standing"] = drift.standing
    return row


def _cut(text: str, size: int) -> str:
    """At most so many bytes of a text, in whole characters."""
    return text.encode()[:size].decode(errors="ignore")


def _identify(drift: RecordedDrift) -> str:
    """Returns a UUID. Its first half is the same on all occasions."""
    parts = (drift.cluster, drift.database, drift.role, drift.key)
    alike, this = (
        str(uuid.uuid5(_NAMESPACE, "\0".join(some).encode(errors="surrogateescape").hex()))
        for some in (parts, (*parts, drift.occasion) if drift.occasion else parts)
    )
    return alike[:_HALF] + this[_HALF:]


def _shorten(words: Sequence[str]) -> dict[str, object]:
    """Returns `details` of privileges. A digest tells apart what is shortened to the same words: only drifts with equal
    details share a row.
    """
    shown = [_cut(one, _LONGEST_WORDS) for one in words[:_MOST_WORDS]]
    if shown == list(words):
        return {"words": shown}
    return {"words": shown, "digest": hashlib.sha256("\0".join(words).encode()).hexdigest()[:_DIGEST]}


async def record_at_home(
    connection: Connection,
    drifts: Sequence[RecordedDrift],
    config: HistoryConfig,
    opening: Sequence[str],
    fence: Fence | None,
) -> None:
    """Records drifts of roles, the first MOST_RECORDED, in a transaction of its own in the home database.

    `opening`: how a transaction begins there (ClaimStore.opening). Raises PgRoleError, also if another process leads.
    """
    lead = [fence.statement] if fence is not None and fence.statement is not None else []
    if fence is not None:
        fence.check_clock(enforcing=True)
    script = ";\n".join((*CHANGE_TIMEOUTS, *opening, *lead, build_record_statement(drifts, config)))
    with translate_errors("record_drifts"), anyio.fail_after(_SECONDS, shield=True):
        await connection.execute(script)
