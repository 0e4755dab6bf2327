"""Differences between declared and held privileges, one by one, and what status and Events say about them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property

from pgrole_controller.core.errors import make_legible
from pgrole_controller.core.names import spell_name
from pgrole_controller.core.privileges.acl import DatabaseObject, ObjectId
from pgrole_controller.core.privileges.awaited_privileges import (
    MOST_AWAITED,
    WITHHELD,
    AppliedDeclaration,
    digest_mark,
    mark_column,
    mark_default,
    mark_denied,
    mark_denied_object,
    marks_of_absent,
)
from pgrole_controller.core.privileges.privilege_result import DriftAuthor, News, PrivilegeDrift, PrivilegeNews

#: Far below the limits of PostgreSQL and Kubernetes; people stop reading sooner.
MOST_WORDS = 5
_LONGEST_NOTE = 1000
_MOST_PHRASES = 10


@dataclass(frozen=True)
class PrivilegeDifference:
    """One privilege that is held but undeclared (`held`), or declared but not held.

    `object` None: a default privilege; `default_label` then names its place. `option`: only the grant option differs.
    `grantor_name`: of a held one, who granted it. `declarable` False: no PgRole can declare it, so it is never revoked.
    """

    privilege: str
    object: DatabaseObject | None = None
    column: str = ""
    held: bool = True
    grantor_name: str = ""
    option: bool = False
    default_label: str = ""
    declarable: bool = True

    @property
    def granted_by(self) -> str:
        """The role in whose name it is granted and revoked; of default privileges, the creator."""
        return self.grantor_name or (self.object.owner_name if self.object else "")

    @property
    def what(self) -> str:
        """For people: `SELECT on column hr.people.id`."""
        return f"{'grant option for ' if self.option else ''}{self.privilege} on {self._where}"

    @cached_property
    def words(self) -> str:
        """Past tense, for messages: `DELETE on table app.orders was granted`. Spelled once: there may be very many."""
        return f"{self.what} was {'granted' if self.held else 'revoked'}"

    @property
    def mark(self) -> str:
        """What it waits under if PostgreSQL refused to grant or revoke it, whatever the columns and the option."""
        where = self.default_label if self.object is None else f"{self.object.id.catalog} {self.object.id.oid}"
        by = f" {self.granted_by}" if self.held else ""
        return f"refused {self.privilege} {where}{by}"

    @property
    def wide_mark(self) -> str:
        """Stands for everything to grant, or to revoke, in the name of the same role."""
        return f"refused {self.held} {self.granted_by}"

    @property
    def _where(self) -> str:
        if self.object is None:
            return self.default_label
        return self.object.label_column(self.column) if self.column else self.object.label


def phrases(differences: Sequence[PrivilegeDifference], most: int = 10) -> tuple[str, ...]:
    """Returns the words of at most `most` of them, then one phrase that counts the others."""
    words = tuple(make_legible(one.words) for one in differences[:most])
    return words if len(differences) <= most else (*words, f"and {len(differences) - most} more")


def mark_refused(differences: Sequence[PrivilegeDifference]) -> frozenset[str]:
    """Returns marks of differences that PostgreSQL refused to correct: of each, or if these are too many, wide ones."""
    marks = frozenset(one.mark for one in differences)
    return marks if len(marks) <= MOST_AWAITED else frozenset(one.wide_mark for one in differences)


class DifferenceClassifier:
    """Notes each difference as drift, extension or neither, and decides whether to correct it.

    Before the declaration is applied (`current` False), no difference is drift. Under `report_only` drift is not
    corrected, but privileges on new objects are granted, and the controller's own on renamed ones revoked. What waited
    to be applied (`applied`) is not drift either. If privileges are left to others (`ignored`), only that is granted or
    revoked. If the object is `refused`, nothing is granted.
    """

    def __init__(
        self,
        *,
        current: bool,
        report_only: bool,
        new_objects: frozenset[ObjectId] | None,
        applied: AppliedDeclaration = AppliedDeclaration(),  # noqa: B008 -- frozen
        ignored: bool = False,
        refused: bool = False,
    ) -> None:
        self._current = current
        self._report_only = report_only
        self._new_objects = new_objects
        self._applied = applied
        self._marks = bool(applied.awaited - {digest_mark(WITHHELD)})
        self._ignored = ignored
        self._refused = refused
        self.drift: list[PrivilegeDifference] = []
        self.extended: list[PrivilegeDifference] = []
        self.left_over: list[PrivilegeDifference] = []
        self.awaited = False  # something to grant or revoke was
        self.reported: list[PrivilegeDifference] = []
        self.met = set[str]()  # digests of marks of `applied`, under which a difference waits

    def note_held(self, difference: PrivilegeDifference, *, left_over: bool = False) -> bool:
        """Notes a privilege that is held but undeclared. Returns whether to revoke it. `left_over`: the controller
        granted it unless it waited, e.g. because the object was refused: it is no drift.
        """
        if not self._current:
            return True
        if self._marks and self._meet(difference.mark, difference.wide_mark):
            self.awaited = True
            return True
        if self._ignored:
            return False
        if left_over and not self._may_have_waited(difference):
            self.left_over.append(difference)
            return True
        self._add_drift(difference)
        return not self._report_only

    def note_missing(self, difference: PrivilegeDifference, *where: ObjectId, literal: bool = False) -> bool:
        """Notes a declared privilege that is not held. Returns whether to grant it. It is not drift if any object of
        `where` is new, or if it was awaited. `literal`: the declaration names the object exactly.
        """
        if not self._current:
            return not self._refused
        is_awaited = bool(self._applied.awaited) and self._is_awaited(difference, literal=literal)
        if self._ignored and not is_awaited:
            return False
        if not is_awaited and self._new_objects is None and self._report_only:
            self.reported.append(difference)
            return False
        is_drift = not is_awaited and self._new_objects is not None and self._new_objects.isdisjoint(where)
        if self._refused and not (is_drift and self._report_only):
            return False
        if is_drift:
            self._add_drift(difference)
            return not self._report_only
        self.extended.append(difference)
        self.awaited = self.awaited or is_awaited
        return True

    def note_denied(self, difference: PrivilegeDifference) -> bool:
        """Notes a default privilege that is held and declared, but that policy denies: it would extend to new objects.
        Returns whether to revoke it. It is drift only if policy denied it when the declaration was last applied.
        """
        if self._ignored or self._applied.awaits(*_marks_of(difference, literal=False)):
            return self.note_held(difference)
        return True

    def was_denied(self, difference: PrivilegeDifference, *, literal: bool) -> bool:
        """Whether policy denied this, on the object or on equal ones, when the declaration was last applied."""
        obj = difference.object
        if obj is None or not self._current or self._ignored:
            return False
        marks = (mark(obj, difference.privilege, literal=literal) for mark in (mark_denied, mark_denied_object))
        return self._applied.awaits(*marks)

    def note_left(self, difference: PrivilegeDifference) -> None:
        """Notes a privilege that is held, and that no PgRole can declare: the controller does not revoke it."""
        if not self._ignored:
            self.reported.append(replace(difference, declarable=False))

    def _is_awaited(self, difference: PrivilegeDifference, *, literal: bool) -> bool:
        if self._marks and self._meet(*_marks_of(difference, literal=literal)):
            return True
        # What drift policy leaves as it is waits for nothing.
        return not (self._report_only or self._ignored) and self._applied.awaits(WITHHELD)

    def _may_have_waited(self, difference: PrivilegeDifference) -> bool:
        """Whether the controller may not have granted the privilege when it last applied the declaration."""
        if self._refused or self._applied.awaits(WITHHELD):
            return True
        return any(self._applied.awaits(*_marks_of(difference, literal=literal)) for literal in (True, False))

    def _meet(self, *marks: str) -> bool:
        """Whether it waited under any of these marks."""
        found = self._applied.select(*marks)
        self.met |= found
        return bool(found)

    def _add_drift(self, difference: PrivilegeDifference) -> None:
        self.drift.append(difference)
        if self._report_only:
            self.reported.append(difference)


def _marks_of(difference: PrivilegeDifference, *, literal: bool) -> Iterator[str]:
    """Yields the marks that a missing privilege may have waited under."""
    obj = difference.object
    yield from (difference.mark, difference.wide_mark)
    if obj is None:
        yield from (
            mark_default(difference.default_label),
            mark_default(difference.default_label, difference.privilege),
        )
        return
    yield mark_denied(obj, difference.privilege, literal=literal)
    yield mark_denied_object(obj, difference.privilege, literal=literal)
    if difference.column:
        yield mark_column(obj, difference.column)
    yield from marks_of_absent(obj)


def describe_drift(
    differences: Sequence[PrivilegeDifference], by: DriftAuthor, now: datetime, *, corrected: bool, exposed: bool
) -> PrivilegeDrift:
    """Describes one drift. `exposed`: address, application and statement may be shown."""
    shown = by if exposed else replace(by, application="", address="", statement="")
    return PrivilegeDrift(by.time or now, phrases(differences), len(differences), corrected, shown)


def combine_drifts(drifts: Sequence[PrivilegeDrift]) -> PrivilegeDrift:
    """Several drifts of one round, the latest last, as one: `by` is the latest's, and the words name the others'
    authors. At most 10 phrases, at least one for each author.
    """
    latest = drifts[-1]
    if len(drifts) == 1:
        return latest
    most = max(_MOST_PHRASES // len(drifts), 1)
    words: list[str] = []
    for one in reversed(drifts[-_MOST_PHRASES:]):
        shown = list(one.words[:most])
        if one.count > len(shown) and shown:
            shown[-1] += f", and {one.count - len(shown)} more"
        author = "" if one is latest else f" by {spell_name(one.by.login) if one.by.login else 'an unknown login'}"
        words += [f"{phrase}{author}" for phrase in shown]
    return replace(latest, words=tuple(words), count=sum(one.count for one in drifts))


def announce_drift(
    database: str, drift: PrivilegeDrift, differences: Sequence[PrivilegeDifference], *, first: bool = False
) -> PrivilegeNews:
    """`DELETE on table app.orders (database orders) was granted by alice at 16:04:09.113 and revoked`. `first`: as in
    PrivilegeNews.
    """
    reason = News.DRIFT_CORRECTED if drift.corrected else News.DRIFT_REPORTED
    return PrivilegeNews(reason, _cut(_sentence(database, drift, differences)), first)


def _sentence(database: str, drift: PrivilegeDrift, differences: Sequence[PrivilegeDifference]) -> str:
    where, by = f"(database {spell_name(database)})", _name(drift.by)
    if len(differences) == 1:
        (one,) = differences
        done, undone = ("granted", "revoked") if one.held else ("revoked", "granted again")
        end = f" and {undone}" if drift.corrected else f"; not corrected, since {_why_left(differences)}"
        return f"{one.what} {where} was {done}{by}{end}"
    words = "; ".join(phrases(tuple(differences), MOST_WORDS))
    end = "corrected" if drift.corrected else f"not corrected, since {_why_left(differences)}"
    return f"{len(differences)} privileges {where} were changed{by} and {end}: {words}"


def _why_left(differences: Sequence[PrivilegeDifference]) -> str:
    left = [one for one in differences if not one.declarable]
    if not left:
        return "spec.drift.policy is Report"
    if len(left) < len(differences):
        return "spec.drift.policy is Report, and no PgRole can declare some of them"
    return "no PgRole can declare them" if len(left) > 1 else "no PgRole can declare it: revoke it if it is not wanted"


def _name(by: DriftAuthor) -> str:
    if not by.login:
        return ""
    at = f" at {by.time.astimezone(UTC).strftime('%H:%M:%S.%f')[:-3]}" if by.time else ""
    return f" by {by.describe()}{at}"


def announce_extension(database: str, differences: Sequence[PrivilegeDifference]) -> PrivilegeNews:
    """Returns the news that declared privileges were granted which are no drift: on new objects, or that policy denied
    or PostgreSQL refused until now, or since the object is accepted again.
    """
    words = [one.what for one in differences[:MOST_WORDS]]
    if len(differences) > MOST_WORDS:
        words.append(f"and {len(differences) - MOST_WORDS} more")
    where = f"(database {spell_name(database)})"
    return PrivilegeNews(News.PRIVILEGES_EXTENDED, _cut(f"granted declared privileges {where}: {'; '.join(words)}"))


def _cut(note: str) -> str:
    note = make_legible(note)
    return note if len(note) <= _LONGEST_NOTE else f"{note[: _LONGEST_NOTE - 1]}…"
