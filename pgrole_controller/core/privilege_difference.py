"""Differences between declared and held privileges, one by one, and their descriptions for people."""

from bisect import insort
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from heapq import nsmallest

from pgrole_controller.core.acl import DatabaseObject, ObjectId, ObjectKind
from pgrole_controller.core.errors import PgRoleError, Reason, Refused, Waiting, make_legible
from pgrole_controller.core.object_patterns import NOT_MANAGED
from pgrole_controller.core.privilege_policy import Denial

#: Maximum number of differences that a message names before it counts the rest.
MOST_NAMED = 5
#: Missing columns that are remembered for one role.
MOST_AWAITED = 2000


#: How `label_of` begins for a routine, and what to check if one with types of arguments is missing.
_ROUTINE = "routine "
_TYPES = " (a type of an argument that is not PostgreSQL's own needs its schema, such as f(app.state))"


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
        """The role in whose name it is granted and revoked; empty for default privileges."""
        return self.grantor_name or (self.object.owner_name if self.object else "")

    @property
    def what(self) -> str:
        """For people, without quotes: `SELECT on column hr.people.id`."""
        return f"{'grant option for ' if self.option else ''}{self.privilege} on {self._where}"

    @property
    def words(self) -> str:
        """For people, as something that happened: `DELETE on table app.orders was granted`."""
        return f"{self.what} was {'granted' if self.held else 'revoked'}"

    @property
    def _where(self) -> str:
        if self.object is None:
            return self.place
        return label_column(self.object, self.column) if self.column else self.object.label


def label_column(obj: DatabaseObject, column: str) -> str:
    """For people, without quotes: `column hr.people.id`."""
    return f"column {obj.schema}.{obj.name}.{column}"


def phrases(differences: Sequence[PrivilegeDifference], most: int = 10) -> tuple[str, ...]:
    """Returns the words of at most `most` of them, then one phrase that counts the others."""
    words = tuple(make_legible(one.words) for one in differences[:most])
    return words if len(differences) <= most else (*words, f"and {len(differences) - most} more")


class DifferenceLedger:
    """Notes each difference as drift, extension or neither, and decides whether to correct it.

    Before the declaration is applied (`current` False), no difference is drift. Under `report_only` drift is not
    corrected, but privileges on new objects are granted.
    """

    def __init__(
        self,
        *,
        current: bool,
        report_only: bool,
        new_objects: frozenset[ObjectId] | None,
        granted_before: Collection[tuple[ObjectId, str]],
        awaited: Collection[tuple[ObjectId, str]] = (),
    ) -> None:
        self._current = current
        self._left = report_only
        self._new_objects = new_objects
        self._granted_before = granted_before
        self._awaited = awaited
        self.drift: list[PrivilegeDifference] = []
        self.extended: list[PrivilegeDifference] = []
        self.reported: list[PrivilegeDifference] = []

    def note_held(self, difference: PrivilegeDifference) -> bool:
        """Notes a privilege that is held but undeclared. Returns whether to revoke it."""
        if self._current:
            self._add_drift(difference)
        return not (self._current and self._left)

    def note_missing(self, difference: PrivilegeDifference, *where: ObjectId) -> bool:
        """Notes a declared privilege that is not held. Returns whether to grant it. It is not drift if any object of
        `where` is new, or its column.
        """
        if not self._current:
            return True
        is_new = (where[0], difference.column) in self._awaited
        if is_new:
            drifted = False
        elif self._new_objects is None:
            drifted = (where[0], difference.privilege) in self._granted_before
        else:
            drifted = self._new_objects.isdisjoint(where)
        if drifted:
            self._add_drift(difference)
        elif self._left and self._new_objects is None and not is_new:
            self.reported.append(difference)
        else:
            self.extended.append(difference)
            return True
        return not self._left

    def note_left(self, difference: PrivilegeDifference) -> None:
        """Notes a privilege that is held, and that no PgRole can declare: the controller does not revoke it."""
        self.reported.append(replace(difference, declarable=False))

    def _add_drift(self, difference: PrivilegeDifference) -> None:
        self.drift.append(difference)
        if self._left:
            self.reported.append(difference)


class PendingNames:
    """Collects what could not be done, for messages that name a few items and count the rest."""

    def __init__(self, database: str) -> None:
        self._database = database
        self._missing: dict[str, None] = {}
        self._of_postgresql: dict[str, None] = {}
        self.columns: set[tuple[ObjectId, str]] = set()
        self._denied: dict[str, list[str]] = {}
        self._counts: Counter[str] = Counter()

    def add_missing(self, what: str) -> None:
        self._missing[what] = None

    def add_of_postgresql(self, what: str) -> None:
        """An object in a schema of PostgreSQL that no extension created there."""
        self._of_postgresql[what] = None

    def add_column(self, obj: DatabaseObject, column: str) -> None:
        """A column that does not exist."""
        self.add_missing(label_column(obj, column))
        if len(self.columns) < MOST_AWAITED:
            self.columns.add((obj.id, column))

    def add_denied(self, denial: Denial) -> None:
        """Notes a denial. Of each remedy's, the first by name are kept, since objects come in no particular order."""
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
            what = _enumerate(named, self._counts[remedy])
            found.append(Refused(Reason.NOT_ALLOWED, f"{where}: the server's policy does not allow {what}: {remedy}"))
        if self._of_postgresql:
            what = _enumerate(list(self._of_postgresql)[:MOST_NAMED], len(self._of_postgresql))
            found.append(Refused(Reason.INVALID_SPEC, f"{where}: {what}: {NOT_MANAGED}"))
        if self._missing:
            what = _enumerate(nsmallest(MOST_NAMED, self._missing), len(self._missing))
            message = f"{where}: waiting for {what}: the privileges are granted when it exists"
            if any(one.startswith(_ROUTINE) and one.endswith(")") and one[-2:] != "()" for one in self._missing):
                message += _TYPES
            found.append(Waiting(Reason.PRIVILEGE_PENDING, message))
        return tuple(found)


def _enumerate(named: Sequence[str], count: int) -> str:
    return ", ".join(named) + (f" and {count - len(named)} more" if count > len(named) else "")


def label_of(kind: ObjectKind, schema: str, name: str) -> str:
    """Returns the label of an object that does not exist, for people: `table app.orders`."""
    word = {ObjectKind.MATERIALIZED_VIEW: "materialized view", ObjectKind.FOREIGN_TABLE: "foreign table"}.get(kind)
    return f"{word or kind.value.lower()} {schema}.{name}"
