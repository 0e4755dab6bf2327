"""Differences between declared and held privileges, one by one, and their descriptions for people."""

from bisect import insort
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import nsmallest

from pgrole_controller.core.errors import PgRoleError, Reason, Refused, Waiting, make_legible
from pgrole_controller.core.names import name_some
from pgrole_controller.core.privileges.acl import DatabaseObject, ObjectId, ObjectKind
from pgrole_controller.core.privileges.awaited_privileges import (
    AppliedDeclaration,
    mark_column,
    mark_default,
    mark_denied,
    mark_object,
    mark_schema,
)
from pgrole_controller.core.privileges.privilege_policy import Denial
from pgrole_controller.core.privileges.reserved_objects import NOT_MANAGED

#: Maximum number of differences that a message names before it counts the rest.
MOST_NAMED = 5


#: How `label_of` begins for a routine, and what to check if one with types of arguments is missing.
_ROUTINE = "routine "
_LONGEST_SIGNATURE = 100
_MOST_SIMILAR = 3
_TYPES = " (a type of an argument that is not PostgreSQL's own needs its schema, such as f(app.state))"
#: Appended where a missing name contains them.
_QUOTES = " (names are declared as they are, without double quotes)"


@dataclass(frozen=True, slots=True)
class PrivilegeDifference:
    """One privilege that is held but undeclared (`held`), or declared but not held.

    `object` None: a default privilege; `place` then describes it for people. `option`: only the grant option differs.
    `grantor_name`: of a held one, who granted it. `declarable` False: no PgRole can declare it, so it is never revoked.
    """

    privilege: str
    object: DatabaseObject | None = None
    column: str = ""
    held: bool = True
    grantor_name: str = ""
    option: bool = False
    place: str = ""
    declarable: bool = True

    @property
    def granted_by(self) -> str:
        """The role in whose name it is granted and revoked; of default privileges, the creator."""
        return self.grantor_name or (self.object.owner_name if self.object else "")

    @property
    def what(self) -> str:
        """For people: `SELECT on column hr.people.id`."""
        return f"{'grant option for ' if self.option else ''}{self.privilege} on {self._where}"

    @property
    def words(self) -> str:
        """Past tense, for messages: `DELETE on table app.orders was granted`."""
        return f"{self.what} was {'granted' if self.held else 'revoked'}"

    @property
    def _where(self) -> str:
        if self.object is None:
            return self.place
        return self.object.label_column(self.column) if self.column else self.object.label


def phrases(differences: Sequence[PrivilegeDifference], most: int = 10) -> tuple[str, ...]:
    """Returns the words of at most `most` of them, then one phrase that counts the others."""
    words = tuple(make_legible(one.words) for one in differences[:most])
    return words if len(differences) <= most else (*words, f"and {len(differences) - most} more")


class DifferenceClassifier:
    """Notes each difference as drift, extension or neither, and decides whether to correct it.

    Before the declaration is applied (`current` False), no difference is drift. Under `report_only` drift is not
    corrected, but privileges on new objects are granted. What waited for its first grant (`applied`) is not drift
    either. If privileges are left to others (`ignored`), only that is granted.
    """

    def __init__(
        self,
        *,
        current: bool,
        report_only: bool,
        new_objects: frozenset[ObjectId] | None,
        applied: AppliedDeclaration = AppliedDeclaration(),  # noqa: B008 -- frozen
        ignored: bool = False,
    ) -> None:
        self._current = current
        self._left = report_only
        self._new_objects = new_objects
        self._applied = applied
        self._ignored = ignored
        self.drift: list[PrivilegeDifference] = []
        self.extended: list[PrivilegeDifference] = []
        self.reported: list[PrivilegeDifference] = []

    def note_held(self, difference: PrivilegeDifference) -> bool:
        """Notes a privilege that is held but undeclared. Returns whether to revoke it."""
        if self._ignored:
            return False
        if self._current:
            self._add_drift(difference)
        return not (self._current and self._left)

    def note_missing(self, difference: PrivilegeDifference, *where: ObjectId, literal: bool = False) -> bool:
        """Notes a declared privilege that is not held. Returns whether to grant it. It is not drift if any object of
        `where` is new, or if it was awaited. `literal`: the declaration names the object exactly.
        """
        if not self._current:
            return True
        waiting = bool(self._applied.awaited)
        is_awaited = waiting and self._applied.awaits(*_marks_of(difference, literal=literal))
        if self._ignored and not is_awaited:
            return False
        if not is_awaited and self._new_objects is None and self._left:
            self.reported.append(difference)
            return False
        if not is_awaited and self._new_objects is not None and self._new_objects.isdisjoint(where):
            self._add_drift(difference)
            return not self._left
        self.extended.append(difference)
        return True

    def note_denied(self, difference: PrivilegeDifference) -> bool:
        """Notes a default privilege that is held and declared, but that policy denies: it would extend to new objects.
        Returns whether to revoke it. It is drift only if policy denied it when the declaration was last applied.
        """
        if self._ignored:
            return False
        if self._applied.awaits(*_marks_of(difference, literal=False)):
            return self.note_held(difference)
        return True

    def note_left(self, difference: PrivilegeDifference) -> None:
        """Notes a privilege that is held, and that no PgRole can declare: the controller does not revoke it."""
        if not self._ignored:
            self.reported.append(replace(difference, declarable=False))

    def _add_drift(self, difference: PrivilegeDifference) -> None:
        self.drift.append(difference)
        if self._left:
            self.reported.append(difference)


def _marks_of(difference: PrivilegeDifference, *, literal: bool) -> Iterator[str]:
    """Yields the marks that a missing privilege may have waited under."""
    obj = difference.object
    if obj is None:
        yield from (mark_default(difference.place), mark_default(difference.place, difference.privilege))
        return
    yield mark_denied(obj, difference.privilege, literal=literal)
    if difference.column:
        yield mark_column(obj, difference.column)
    yield from _marks_of_absent(obj)


def _marks_of_absent(obj: DatabaseObject) -> tuple[str, str]:
    return mark_object(obj.kind, obj.schema, obj.name), mark_schema(obj.schema)


@dataclass(frozen=True, slots=True)
class SimilarRoutines:
    """The routines of one schema that have the name of a missing one; `arguments`: normalized."""

    name: str
    arguments: Collection[str]

    def __str__(self) -> str:
        """For people, after the name of the missing one."""
        some = [f"{self.name}({one})" for one in nsmallest(_MOST_SIMILAR, self.arguments)]
        some = [one if len(one) <= _LONGEST_SIGNATURE else f"{one[:_LONGEST_SIGNATURE]}…" for one in some]
        return f" (there is {name_some(some, count=len(self.arguments))})"


class PendingNames:
    """Collects what could not be done, for messages that name a few items and count the rest.

    `awaited`: marks of it. `only`: only what this awaits counts; None: everything.
    """

    def __init__(self, database: str, only: AppliedDeclaration | None = None) -> None:
        self._database = database
        self._only = only
        self._missing: dict[str, SimilarRoutines | None] = {}
        self._of_postgresql: dict[str, None] = {}
        self._denied: dict[str, list[str]] = {}
        self._counts: Counter[str] = Counter()
        self.awaited: set[str] = set()

    def add_mark(self, mark: str, *others: str) -> bool:
        """Notes that something waits, which is reported elsewhere. Returns whether it counts. `others`: marks that it
        may have waited under before.
        """
        if self._only is not None and not self._only.awaits(mark, *others):
            return False
        self.awaited.add(mark)
        return True

    def add_missing(self, what: str, mark: str, *others: str, similar: SimilarRoutines | None = None) -> None:
        if self.add_mark(mark, *others):
            self._missing[what] = similar

    def add_of_postgresql(self, what: str) -> None:
        """An object in a schema of PostgreSQL that no extension created there."""
        self._of_postgresql[what] = None

    def add_column(self, obj: DatabaseObject, column: str) -> None:
        """A column that does not exist."""
        self.add_missing(obj.label_column(column), mark_column(obj, column), *_marks_of_absent(obj))

    def add_denied_on(self, obj: DatabaseObject, privilege: str, denial: Denial, *, literal: bool) -> None:
        self.add_denied(denial, mark_denied(obj, privilege, literal=literal), *_marks_of_absent(obj))

    def add_denied(self, denial: Denial, mark: str, *others: str) -> None:
        """Notes a denial. Of each remedy's, the first by name are kept, since objects come in no particular order."""
        if not self.add_mark(mark, *others):
            return
        self._counts[denial.remedy] += 1
        kept = self._denied.setdefault(denial.remedy, [])
        insort(kept, denial.what)
        del kept[MOST_NAMED:]

    def errors(self) -> tuple[PgRoleError, ...]:
        """Returns Refused for each remedy and for PostgreSQL's own objects, and one Waiting for what does not exist.

        The texts do not depend on the order in which the objects were read.
        """
        where = f'spec.privileges: database "{self._database}"'
        found: list[PgRoleError] = []
        for remedy, named in sorted(self._denied.items()):
            what = name_some(named, count=self._counts[remedy])
            found.append(Refused(Reason.NOT_ALLOWED, f"{where}: the server's policy does not allow {what}: {remedy}"))
        if self._of_postgresql:
            what = name_some(list(self._of_postgresql))
            found.append(Refused(Reason.INVALID_SPEC, f"{where}: {what}: {NOT_MANAGED}"))
        if self._missing:
            named = [f"{one}{self._missing[one] or ''}" for one in nsmallest(MOST_NAMED, self._missing)]
            what = name_some(named, count=len(self._missing))
            message = f"{where}: waiting for {what}: the controller grants the privileges once each exists"
            if any(one.startswith(_ROUTINE) and one.endswith(")") and one[-2:] != "()" for one in self._missing):
                message += _TYPES
            if any('"' in one and not one.startswith(_ROUTINE) for one in self._missing):
                message += _QUOTES
            found.append(Waiting(Reason.PRIVILEGE_PENDING, message))
        return tuple(found)


def label_of(kind: ObjectKind, schema: str, name: str) -> str:
    """Returns the label of an object that does not exist, for people: `table app.orders`."""
    return f"{kind.words} {schema}.{name}"
