"""Who changed a privilege: the choice among the DDL events whose transaction may have written the changed row.

Expected flow: the event trigger records each command with its transaction's id; a changed row carries the id (xmin) of
the transaction or subtransaction that wrote it; `find_culprit_of` compares the two.

Guarantees: proof TRANSACTION means that the row has the very id of the transaction, or that no other recorded one can
have written it with a command that fits, or that all that can have the same author, or that the event has the next id
after the row's. Otherwise the proof is SESSION. (A subtransaction's parent cannot be asked for. Ids of transactions
that run at the same time are interleaved, but a command's event directly follows its change.)
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from itertools import groupby

from pgrole_controller.core.privileges.privilege_result import Culprit, Evidence

#: Statements that need not name the object and the grantee.
_UNNAMED = re.compile(r"\bon\s+all\s|\balter\s+default\s|\b(?:current_user|current_role|session_user)\b|\bu&\"")

#: Maximum length of a statement in a Culprit.
STATEMENT_LENGTH = 1000


@dataclass(frozen=True, slots=True)
class DdlEvent:
    """A command that the event trigger recorded.

    - `id`: in the order of execution within a session.
    - `xid`: its transaction's, with epoch.
    - `login`: who logged in; `role`: whom the session acted as.
    - `exact`: the changed row has that very id, or the id of the event's row: no other transaction can have written it.
    - `distance`: transaction ids between the changed row and the event's row.
    - `kind`: of the object, as PostgreSQL spells it: `TABLE` for GRANT, `table` for others.
    - `object`: oid, or 0: GRANT and REVOKE name none.
    - `statement`: empty unless it was a GRANT, REVOKE or ALTER DEFAULT PRIVILEGES alone.
    """

    id: int
    xid: int
    login: str
    role: str
    application: str
    address: str
    time: datetime
    tag: str
    kind: str
    exact: bool = True
    distance: int = 0
    object: int = 0
    statement: str = ""


@dataclass(frozen=True, slots=True)
class ChangedRow:
    """A row whose ACL someone changed, as far as it is known.

    `tags`: commands that make such a change, e.g. GRANT. `names`: that such a statement contains: of the object, of the
    grantee. `oid`: of the object, else 0. `xmin` 0: the row is gone, or does not show the change.
    """

    xmin: int
    tags: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    oid: int = 0


GRANTED = ("GRANT",)
REVOKED = ("REVOKE", "DROP OWNED")
DEFAULTS = ("ALTER DEFAULT PRIVILEGES", "DROP OWNED")


def find_nearest(changed: ChangedRow, events: Sequence[DdlEvent]) -> Culprit:
    """Who may have changed a row that is gone or was written again: the last event that fits, which proves nothing.

    For an existing row, only an event whose statement names the object and the grantee counts.
    """
    fitting = [event for event in events if _is_possible(changed, event)]
    if changed.xmin:
        fitting = [event for event in fitting if _fit(changed, event) is Fit.NAMED]
    if not fitting:
        return Culprit()
    return _culprit(max(fitting, key=lambda event: (_fit(changed, event).value, event.id)), Evidence.SESSION)


def find_culprit_of(changed: ChangedRow, events: Sequence[DdlEvent]) -> Culprit:
    """Returns who changed the row, according to the events that may have. Without any, a Culprit with proof NONE.

    A transaction that wrote the row last has not changed the privilege if its commands do not: it has overwritten what
    another left. An ALTER of the object may have changed its owner.
    """
    exact = [event for event in events if event.exact]
    if exact:
        explaining = [event for event in exact if _explains(changed, event)]
        if explaining:
            return _culprit(_best(changed, explaining), Evidence.TRANSACTION)
        altering = [event for event in exact if event.tag.startswith("ALTER ") and event.object == changed.oid != 0]
        return _culprit(_best(changed, altering), Evidence.SESSION) if altering else Culprit()
    candidates = [event for event in events if _is_possible(changed, event)]
    if not candidates:
        return Culprit()
    naming = {event.xid for event in candidates if _fit(changed, event) is Fit.NAMED}
    nearest = min(candidates, key=lambda event: (event.distance, event.id))
    xid = naming.pop() if len(naming) == 1 else nearest.xid
    chosen = [event for event in candidates if event.xid == xid]
    alike = len({(event.login, event.application, event.address) for event in candidates}) == 1
    certain = alike or (xid == nearest.xid and nearest.distance == 1) or len({event.xid for event in candidates}) == 1
    return _culprit(_best(changed, chosen), Evidence.TRANSACTION if certain else Evidence.SESSION)


def _best(changed: ChangedRow, events: Sequence[DdlEvent]) -> DdlEvent:
    """Returns the command of one transaction that explains the change best; the last one of equals."""
    return max(
        events,
        key=lambda event: (
            changed.oid != 0 and event.object == changed.oid,
            _fit(changed, event).value,
            event.id,
        ),
    )


class Fit(Enum):
    """How well a statement matches the changed row."""

    OTHER = 0
    UNKNOWN = 1  # e.g. in a DO block
    NAMED = 2


def _fit(changed: ChangedRow, event: DdlEvent) -> Fit:
    if not event.statement or not changed.names or len(event.statement) >= STATEMENT_LENGTH:
        return Fit.UNKNOWN
    statement = event.statement.casefold()
    if all(_mentions(statement, name.casefold()) for name in changed.names):
        return Fit.NAMED
    legible = all(name.isprintable() for name in changed.names)
    return Fit.OTHER if legible and not _UNNAMED.search(statement) else Fit.UNKNOWN


def _mentions(statement: str, name: str) -> bool:
    spellings = {name, name.replace('"', '""')}
    return any(re.search(rf"(?<!\w){re.escape(one)}(?!\w)", statement) for one in spellings)


def _explains(changed: ChangedRow, event: DdlEvent) -> bool:
    """Whether a command of the transaction that wrote the row may have made the change."""
    creating = event.tag.startswith(("CREATE ", "SELECT INTO", "IMPORT ")) and event.object == changed.oid != 0
    return creating or _is_possible(changed, event)


def _is_possible(changed: ChangedRow, event: DdlEvent) -> bool:
    return (not changed.tags or event.tag in changed.tags) and _fit(changed, event) is not Fit.OTHER


def _culprit(event: DdlEvent, proof: Evidence) -> Culprit:
    return Culprit(
        proof,
        login=event.login,
        role=event.role,
        application=event.application,
        address=event.address,
        time=event.time,
        statement=event.statement[:STATEMENT_LENGTH],
    )


def group_by_row(pairs: Sequence[tuple[int, DdlEvent]]) -> dict[int, tuple[DdlEvent, ...]]:
    """Groups events by the xmin of the row that they may have written. `pairs` are sorted by it."""
    return {xmin: tuple(event for _, event in some) for xmin, some in groupby(pairs, key=lambda pair: pair[0])}
