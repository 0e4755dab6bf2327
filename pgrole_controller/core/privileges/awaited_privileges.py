"""What of a declaration waits to be applied: policy denies it, its object does not exist, PostgreSQL refused it, or the
PgRole is refused.

It is kept with the digest that was last applied. So it is applied as a part of the declaration once that is possible:
it is no drift, is applied under policy Report and while privileges are ignored, and also after a restart.

A mark names something that waits. Whether policy denies a privilege does not depend on an object's name, so one mark
stands for all equal objects, however many there are. Each has a mark of its own, too, while there is room: the object
may become one that policy allows. Messages name a few of those that wait, and count the rest.
"""

from bisect import insort
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import blake2b
from heapq import nsmallest
from typing import TypeAlias

from pgrole_controller.core.errors import PgRoleError, Reason, Refused, Waiting
from pgrole_controller.core.names import cut_end, explain_names, name_some, spell_name
from pgrole_controller.core.privileges.acl import DatabaseObject, ObjectKind
from pgrole_controller.core.privileges.privilege_policy import NOT_MANAGED, Denial, traits_of
from pgrole_controller.core.privileges.routine_signature import split_signature

#: Maximum number of marks that are kept for one role in one database of what policy denies or does not exist, and as
#: many of what PostgreSQL refused. What exceeds it may count as drift.
MOST_AWAITED = 500
#: Maximum number of the former that are of single objects: a small round reads what is stored for a role with a query
#: of its own if that has more than 2,000 bytes (`sql/events/short_applied.sql`).
MOST_ON_OBJECTS = 150

#: Maximum number of differences that a message names before it counts the rest.
MOST_NAMED = 5

#: The mark of everything: the object was refused since, so that its role was granted nothing.
WITHHELD = "withheld"

#: How `label_of` begins for a routine, and what to check if one with types of arguments is missing.
_ROUTINE = "routine "
_LONGEST_SIGNATURE = 100
_MOST_SIMILAR = 3
_TYPES = " (a type of an argument that is not PostgreSQL's own needs its schema, such as f(app.state))"
#: Appended where a missing name contains them.
_QUOTES = " (names are declared as they are, without double quotes)"


@dataclass(frozen=True, slots=True)
class AppliedDeclaration:
    """What was last applied for a role in a database. `digest`: as Grantee.digest_of, empty if nothing was. `awaited`:
    digests of marks.
    """

    digest: str = ""
    awaited: frozenset[str] = frozenset()

    @classmethod
    def parse(cls, text: str) -> "AppliedDeclaration":
        """The inverse of `text`. Another version's text may have a digest alone."""
        digest, _, awaited = text.partition(" ")
        return cls(digest, frozenset(awaited.split()))

    @classmethod
    def of(cls, digest: str, pending: "PendingNames") -> "AppliedDeclaration":
        kept = sorted({digest_mark(mark) for mark in pending.awaited})[:MOST_AWAITED]
        objects = nsmallest(min(MOST_ON_OBJECTS, MOST_AWAITED - len(kept)), pending.on_objects)
        return cls(digest, frozenset((*kept, *(digest_mark(_spell(one)) for one in objects))))

    def add(self, marks: Collection[str]) -> "AppliedDeclaration":
        """Returns the same, which also awaits at most MOST_AWAITED of these marks."""
        return replace(self, awaited=self.awaited | frozenset(sorted(map(digest_mark, marks))[:MOST_AWAITED]))

    @property
    def text(self) -> str:
        return " ".join((self.digest, *sorted(self.awaited)))

    @property
    def withheld(self) -> "AppliedDeclaration":
        """The same, but whatever is missing waits."""
        return AppliedDeclaration(self.digest, self.awaited | {digest_mark(WITHHELD)})

    def without_done(self, pending: "PendingNames", met: Collection[str]) -> "AppliedDeclaration":
        """The same, with the marks of what waits by now, and without what is as declared. `met`: digests of marks of
        what is not.
        """
        waiting = AppliedDeclaration.of(self.digest, pending).awaited
        return replace(self, awaited=waiting | self.awaited.intersection([*met, digest_mark(WITHHELD)]))

    def select(self, *marks: str) -> frozenset[str]:
        """Returns the digests of those marks that it awaits."""
        return self.awaited.intersection(map(digest_mark, marks))

    def awaits(self, *marks: str) -> bool:
        return bool(self.awaited) and any(digest_mark(mark) in self.awaited for mark in marks)


@lru_cache(4096)
def digest_mark(mark: str) -> str:
    return blake2b(mark.encode(errors="surrogatepass"), digest_size=4).hexdigest()


def mark_denied(obj: DatabaseObject, privilege: str, *, literal: bool) -> str:
    """Of everything on which the answer of `privilege_policy.why_not_granted` depends, except the policy."""
    owner, kind, schema, *others = traits_of(obj)
    return f"denied {privilege} {kind} {(owner, *others, literal)} {schema}"


#: What a mark of a single object says: its oid; its catalog, empty for a column; the privilege or column; whether the
#: declaration names it exactly. There may be very many, and only those that are kept are spelled.
ObjectMark: TypeAlias = tuple[int, str, str, bool]


def _denied_on(obj: DatabaseObject, privilege: str, *, literal: bool) -> ObjectMark:
    return obj.id.oid, obj.id.catalog, privilege, literal


def _column_of(obj: DatabaseObject, column: str) -> ObjectMark:
    return obj.id.oid, "", column, False


def _spell(mark: ObjectMark) -> str:
    oid, catalog, name, literal = mark
    return f"denied {name} {catalog} {oid} {literal}" if catalog else f"column {oid} {name}"


def mark_denied_object(obj: DatabaseObject, privilege: str, *, literal: bool) -> str:
    """Of this object alone, whatever the policy depends on."""
    return _spell(_denied_on(obj, privilege, literal=literal))


def mark_column(obj: DatabaseObject, column: str) -> str:
    return _spell(_column_of(obj, column))


def mark_schema(schema: str) -> str:
    return f"schema {schema}"


def mark_object(kind: ObjectKind, schema: str, name: str) -> str:
    """`name`: for routines with or without argument types, which do not count."""
    bare = name.partition("(")[0] if kind is ObjectKind.ROUTINE else name
    return f"{kind.widest} {schema}\0{bare}"


def marks_of_absent(obj: DatabaseObject) -> tuple[str, str]:
    """Returns the marks under which something on the object waited while the object did not exist."""
    return mark_object(obj.kind, obj.schema, obj.name), mark_schema(obj.schema)


def mark_default(place: str, privilege: str = "") -> str:
    """`place`: `PrivilegeDifference.default_label`. Without a privilege: all of them."""
    return f"default {privilege} {place}"


@dataclass(frozen=True, slots=True)
class SimilarRoutines:
    """The routines of one schema that have the name of a missing one; `arguments`: normalized."""

    name: str
    arguments: Collection[str]

    def __str__(self) -> str:
        """For people, after the name of the missing one."""
        few = nsmallest(_MOST_SIMILAR, self.arguments)
        some = [cut_end(f"{spell_name(self.name)}({one})", _LONGEST_SIGNATURE) for one in few]
        return f" (there is {name_some(some, count=len(self.arguments))})"


class PendingNames:
    """Collects what could not be done, for messages that name a few items and count the rest.

    `awaited`: marks of it. `on_objects`: those that are kept while there is room.
    `only`: only what this awaits counts; None: everything.
    """

    def __init__(self, database: str, only: AppliedDeclaration | None = None) -> None:
        self._database = database
        self._only = only
        self._missing: dict[str, SimilarRoutines | None] = {}
        self._of_postgresql: dict[str, None] = {}
        self._denied: dict[str, list[str]] = {}
        self._counts: Counter[str] = Counter()
        self.awaited: set[str] = set()
        self.on_objects: set[ObjectMark] = set()

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
        """A declared column that does not exist."""
        self.add_missing(obj.label_column(column), mark_column(obj, column), *marks_of_absent(obj))

    def add_possible_column(self, obj: DatabaseObject, column: str) -> None:
        """A column that a pattern asks for where it exists: no message names it."""
        self._add_on_object(obj, _column_of(obj, column))

    def add_denied_on(self, obj: DatabaseObject, privilege: str, denial: Denial, *, literal: bool) -> None:
        own = _denied_on(obj, privilege, literal=literal)
        self._add_on_object(obj, own)
        others = () if self._only is None else (_spell(own), *marks_of_absent(obj))
        self.add_denied(denial, mark_denied(obj, privilege, literal=literal), *others)

    def _add_on_object(self, obj: DatabaseObject, mark: ObjectMark) -> None:
        if self._only is None or self._only.awaits(_spell(mark), *marks_of_absent(obj)):
            self.on_objects.add(mark)

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
            # a label doubles the quotes that are a part of a name
            if any('""' in one and not one.startswith(_ROUTINE) for one in self._missing):
                message += _QUOTES
            message += explain_names(one for one in self._missing if not one.startswith(_ROUTINE))
            found.append(Waiting(Reason.PRIVILEGE_PENDING, message))
        return tuple(found)


def label_of(kind: ObjectKind, schema: str, name: str) -> str:
    """Returns the label of an object that does not exist, for people: `table app.orders`. `name`: as declared."""
    bare = split_signature(name)[0] if kind is ObjectKind.ROUTINE else name
    return f"{kind.words} {spell_name(schema)}.{spell_name(bare)}{name[len(bare) :]}"
