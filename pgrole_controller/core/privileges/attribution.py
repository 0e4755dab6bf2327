"""Who changed a privilege: the choice among the DDL events whose transaction may have written the changed row.

Expected flow: the event trigger records each command with its transaction's id; a changed row carries the id (xmin) of
the transaction or subtransaction that wrote it; `RowWriters` compares the two.

Guarantees: proof TRANSACTION means that the row has the very id of the transaction, or that no other recorded one can
have written it with a command that fits, or that all that can have the same author, or that the event has the next id
after the row's. Otherwise the proof is SESSION. (A subtransaction's parent cannot be asked for. Ids of transactions
that run at the same time are interleaved, but a command's event directly follows its change.) A transaction whose
recorded statements do not make the change has only overwritten what an earlier one left. Then the last statement that
makes it is named, with proof TRANSACTION only if it has the same author, since the row no longer has its id.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum
from itertools import groupby
from typing import TypeAlias

from pgrole_controller.core.privileges.privilege_result import DriftAuthor, Evidence
from pgrole_controller.core.privileges.recorded_statement import ChangedPrivilege, find_name, read_statement

#: What a name is qualified with, at most this many characters before it.
_QUALIFIER = re.compile(r'(?P<name>[\w$]+|"(?:[^"]|"")*")\s*\.$')
_LONGEST_QUALIFIER = 140

#: Maximum length of a statement in a DriftAuthor.
STATEMENT_LENGTH = 1000

#: Login, application, address.
AuthorKey: TypeAlias = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class DdlEvent:
    """A command that the event trigger recorded.

    - `id`: in the order of execution within a session.
    - `xid`: its transaction's, with epoch.
    - `login`: who logged in; `role`: whom the session acted as.
    - `exact`: the changed row has that very id, or the id of the event's row: no other transaction can have written it.
    - `distance`: transaction ids between the changed row and the event's row.
    - `object`: oid, or 0: GRANT and REVOKE name none.
    - `statement`: empty unless it was a GRANT, REVOKE or ALTER DEFAULT PRIVILEGES alone.
    - `own`: a session of the controller caused it.
    """

    id: int
    xid: int
    login: str
    role: str
    application: str
    address: str
    time: datetime
    tag: str
    exact: bool = True
    distance: int = 0
    object: int = 0
    statement: str = ""
    own: bool = False


@dataclass(frozen=True, slots=True)
class ChangedRow:
    """A row whose ACL someone changed, as far as it is known.

    `tags`: commands that make such a change, e.g. GRANT. `names`: that such a statement contains: of the object, of the
    grantee. `oid`: of the object, else 0. `xmin` 0: the row is gone, or does not show the change. `schema`: a statement
    about all objects of a schema contains this name instead of the object's. `change` None: anything.
    """

    xmin: int
    tags: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    oid: int = 0
    schema: str = ""
    change: ChangedPrivilege | None = None

    @property
    def grantee(self) -> str:
        """Empty if it is not known."""
        return self.names[-1] if self.names else ""

    @property
    def is_elsewhere(self) -> bool:
        """Whether the change may have left the table's row as it was: a column's REVOKE may write only the column's."""
        return self.change is not None and bool(self.change.column) and not self.change.granted


@dataclass(frozen=True, slots=True)
class FoundAuthor:
    """`shown`: by the recorded statement, or because the object was created. Otherwise, e.g. for a DO block, an earlier
    statement may be a better explanation. `writers`: the authors of all events that may have written the row. `own`:
    the author is the controller, which overwrote what another left.
    """

    author: DriftAuthor = DriftAuthor()  # noqa: RUF009 -- frozen
    shown: bool = False
    writers: frozenset[AuthorKey] = frozenset()
    own: bool = False


GRANTED = ("GRANT",)
REVOKED = ("REVOKE", "DROP OWNED")
DEFAULTS = ("ALTER DEFAULT PRIVILEGES", "DROP OWNED")


#: Statements that change the same rows.
COMMANDS = (*GRANTED, *REVOKED, *DEFAULTS)


class LastEvents:
    """The last commands in the database, among which someone may have changed a row that does not prove it.

    Rows with the same kind of change share the choice among the events. `stored`: by the name of a role, the
    transaction in which the controller last stored what it applied for that role. It has answered earlier commands.
    """

    def __init__(self, events: Sequence[DdlEvent], stored: Mapping[str, int] | None = None) -> None:
        self._events = sorted(keep_distinct(events), key=lambda event: event.id, reverse=True)
        self._stored = stored or {}
        self._chosen: dict[tuple[tuple[str, ...], ChangedPrivilege | None], EventsByName] = {}

    def find_better(self, changed: ChangedRow, found: FoundAuthor | None) -> DriftAuthor:
        """Returns who changed a row instead of `found`, which is not shown; with proof NONE if that is no better.

        A row that is gone, or was written again by others, proves nothing. None: the transaction that wrote it has
        no event, as after a repair for another role.
        """
        made = self._find_made(changed)
        same = made is not None and found is not None and found.writers == {_author_key(made)}
        if found is None or found.author.proof is Evidence.TRANSACTION:
            return DriftAuthor() if made is None or same else _drift_author(made, Evidence.SESSION)
        if made is not None and same:
            return _drift_author(made, Evidence.TRANSACTION)
        return self._find_nearest(changed)

    def _find_made(self, changed: ChangedRow) -> DdlEvent | None:
        """The last statement that made the change to an object, unless a later one or the controller took it back."""
        change = changed.change
        if change is None or not changed.oid:
            return None
        opposite = replace(changed, tags=(), change=replace(change, granted=not change.granted))
        made = next(
            (one for one in self._choose(changed) if self._is_open(changed, one) and _shows(changed, one)), None
        )
        undone = next((one for one in self._choose(opposite) if _shows(opposite, one)), None)
        return None if made is not None and undone is not None and undone.id > made.id else made

    def _find_nearest(self, changed: ChangedRow) -> DriftAuthor:
        """The last event that fits; for an existing row, only if its statement names the object and the grantee."""
        fitting = [event for event in self._choose(changed) if is_possible(changed, event)]
        if changed.xmin and not changed.is_elsewhere:
            fitting = [event for event in fitting if _shows(changed, event)]
        if not fitting:
            return DriftAuthor()
        best = max(fitting, key=lambda event: (_fit(changed, event).value, self._is_open(changed, event), event.id))
        return _drift_author(best, Evidence.SESSION)

    def _is_open(self, changed: ChangedRow, event: DdlEvent) -> bool:
        """Whether the controller has not yet answered the command for the row's grantee."""
        return event.xid >= self._stored.get(changed.grantee, 0)

    def _choose(self, changed: ChangedRow) -> Sequence[DdlEvent]:
        """The latest first."""
        kind = (changed.tags, changed.change)
        if kind not in self._chosen:
            alike = ChangedRow(0, changed.tags, change=changed.change)
            self._chosen[kind] = EventsByName([event for event in self._events if is_possible(alike, event)])
        return self._chosen[kind].select(changed)


class EventsByName:
    """Finds events without comparing each with each of the thousands of rows that one transaction may have changed."""

    def __init__(self, events: Sequence[DdlEvent]) -> None:
        self._events = events
        self._naming: dict[str, list[int]] = {}  # places, by what the statement names
        self._others: list[int] = []  # places of events that need not name the object
        for place, event in enumerate(events):
            statement = read_statement(event.statement)
            if event.object or statement.in_schema or statement.unnamed or _is_cut(event) or not statement.names:
                self._others.append(place)
            for name in statement.names or ():
                self._naming.setdefault(name, []).append(place)

    def select(self, changed: ChangedRow) -> Sequence[DdlEvent]:
        """Leaves out only events that do not fit the row, and keeps the order."""
        if not changed.names or not all(map(str.isprintable, changed.names)):
            return self._events
        naming = self._naming.get(changed.names[0].casefold(), ())
        return [self._events[place] for place in sorted({*naming, *self._others})]


def keep_distinct(events: Iterable[DdlEvent]) -> list[DdlEvent]:
    """Leaves out events that tell the same as a later one: a command on a schema has one for each of its objects."""
    by_id = sorted(events, key=lambda event: event.id)
    return list({replace(event, id=0, time=by_id[0].time): event for event in by_id}.values())


def _is_repeated(events: Sequence[DdlEvent]) -> bool:
    """Whether a statement may not be that of its command: an event trigger of others may grant more within a GRANT."""
    said = [(event.xid, event.statement) for event in events if event.statement]
    return len(set(said)) < len(said)


class RowWriters:
    """The events whose transaction may have written the rows with one xmin. `cut`: there are more."""

    def __init__(self, events: Sequence[DdlEvent], *, cut: bool = False) -> None:
        self._unclear = cut or _is_repeated(events)
        distinct = keep_distinct(events)
        self._exact = _author_keys([event for event in distinct if event.exact])
        self._by_name = EventsByName(distinct)

    def find_author(self, changed: ChangedRow) -> FoundAuthor:
        """Returns who changed the row, according to the events. If none fits, a DriftAuthor with proof NONE.

        A transaction that wrote the row last has not changed the privilege if its commands do not: it has overwritten
        what another left. An ALTER of the object may have changed its owner, which grants nothing. If there are more
        events, or two have the same statement, any event may have made the change.
        """
        found = self._find_author(changed)
        if found.author.proof is Evidence.TRANSACTION or changed.change is None or not self._unclear:
            return found
        unknown = self._find_author(replace(changed, change=None))
        return replace(unknown, shown=False) if unknown.author.proof is Evidence.TRANSACTION else found

    def _find_author(self, changed: ChangedRow) -> FoundAuthor:
        events = self._by_name.select(changed)
        if not self._exact:
            return _choose_writer(changed, events)
        exact = [event for event in events if event.exact]
        explaining = [event for event in exact if _explains(changed, event)]
        if explaining:
            return _found(changed, _best(changed, explaining), self._exact, certain=True)
        altering = [event for event in exact if event.tag.startswith("ALTER ") and event.object == changed.oid != 0]
        if altering and not (changed.change is not None and changed.change.granted):
            return _found(changed, _best(changed, altering), self._exact, certain=False)
        return FoundAuthor(writers=self._exact)


def _choose_writer(changed: ChangedRow, events: Sequence[DdlEvent]) -> FoundAuthor:
    # Who wrote the row last need not have made the change.
    written = replace(changed, change=None)
    writers = [event for event in events if is_possible(written, event)]
    authors = _author_keys(writers)
    candidates = [event for event in events if is_possible(changed, event)]
    if not candidates:
        return FoundAuthor(writers=authors)
    naming = {event.xid for event in candidates if _fit(changed, event) is Fit.NAMED}
    nearest = min(writers, key=lambda event: (event.distance, event.id))
    fitting = min(candidates, key=lambda event: (event.distance, event.id))
    xid = naming.pop() if len(naming) == 1 else fitting.xid
    chosen = [event for event in candidates if event.xid == xid]
    alike = len(authors) == 1
    certain = alike or (xid == nearest.xid and nearest.distance == 1) or len({event.xid for event in writers}) == 1
    return _found(changed, _best(changed, chosen), authors, certain=certain)


def _found(changed: ChangedRow, event: DdlEvent, writers: frozenset[AuthorKey], *, certain: bool) -> FoundAuthor:
    created = event.object == changed.oid != 0
    # In a text whose comments cannot be told, the privilege may be part of one.
    said = _fit(changed, event) is Fit.NAMED and read_statement(event.statement).words is None
    proof = Evidence.TRANSACTION if certain else Evidence.SESSION
    return FoundAuthor(_drift_author(event, proof), changed.change is None or created or said, writers, event.own)


def _author_key(event: DdlEvent) -> AuthorKey:
    return event.login, event.application, event.address


def _author_keys(events: Sequence[DdlEvent]) -> frozenset[AuthorKey]:
    return frozenset(map(_author_key, events))


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


def _is_cut(event: DdlEvent) -> bool:
    return len(event.statement) >= STATEMENT_LENGTH


def _fit(changed: ChangedRow, event: DdlEvent) -> Fit:
    if not event.statement:
        return Fit.UNKNOWN
    statement, cut = read_statement(event.statement), _is_cut(event)
    if changed.change is not None and not statement.may_make(changed.change, cut=cut):
        return Fit.OTHER
    if not changed.names or cut:
        return Fit.UNKNOWN
    names = (changed.schema, *changed.names[1:]) if changed.schema and statement.in_schema else changed.names
    if all(map(statement.mentions, names)):
        return Fit.NAMED
    return Fit.OTHER if not statement.unnamed and all(map(str.isprintable, names)) else Fit.UNKNOWN


def _shows(changed: ChangedRow, event: DdlEvent) -> bool:
    """Whether the statement makes the change, whichever row its transaction has written."""
    if _fit(changed, event) is not Fit.NAMED:
        return False
    statement = read_statement(event.statement)
    if not (changed.schema and changed.names) or statement.in_schema:
        return True
    return _mentions_in_schema(statement.text, changed.names[0].casefold(), changed.schema.casefold())


def _mentions_in_schema(text: str, name: str, schema: str) -> bool:
    """Whether the name occurs without a schema, or with this one."""
    for place in find_name(text, name.replace('"', '""')):
        before = text[max(place - _LONGEST_QUALIFIER, 0) : place].removesuffix('"').rstrip()
        if not before.endswith("."):
            return True
        qualifier = _QUALIFIER.search(before)
        if qualifier is None or schema == qualifier["name"].strip('"').replace('""', '"'):
            return True
    return False


def _explains(changed: ChangedRow, event: DdlEvent) -> bool:
    """Whether a command of the transaction that wrote the row may have made the change."""
    creating = event.tag.startswith(("CREATE ", "SELECT INTO", "IMPORT ")) and event.object == changed.oid != 0
    # Its creation takes no privilege from anyone.
    return (creating and (changed.change is None or changed.change.granted)) or is_possible(changed, event)


def is_possible(changed: ChangedRow, event: DdlEvent) -> bool:
    """Whether the command may have made the change, as far as its tag and its statement tell."""
    return (not changed.tags or event.tag in changed.tags) and _fit(changed, event) is not Fit.OTHER


def _drift_author(event: DdlEvent, proof: Evidence) -> DriftAuthor:
    return DriftAuthor(
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
