"""Finds the roles that objects concern, and the objects on which a role's privileges may differ from its declaration.

No other role and no other object needs a decision, so that a change costs nothing for all the others.

What is wanted on an object is found once for all roles with equal terms, and what a role holds is looked up once for
all objects with the same ACL.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from pgrole_controller.core.privileges.acl import ObjectKind, ObservedAcl
from pgrole_controller.core.privileges.acl_comparison import AclComparison
from pgrole_controller.core.privileges.awaited_privileges import PendingNames
from pgrole_controller.core.privileges.grantee import DatabasePrivileges, Grantee, PrivilegePolicy
from pgrole_controller.core.privileges.object_patterns import compile_privileges, count_patterns, schema_patterns
from pgrole_controller.core.privileges.observed_database import NOTHING_HELD, HeldByRole, ObservedDatabase
from pgrole_controller.core.privileges.privilege_difference import DifferenceClassifier
from pgrole_controller.core.privileges.privilege_policy import DatabaseFacts
from pgrole_controller.core.request import Key

#: Maximum number of objects remembered for all terms together, of 8 bytes each.
MOST_PLACES = 2_000_000

#: Number of patterns that take as long to match with one object as everything else.
_LIGHT = 8


@dataclass(frozen=True, slots=True)
class PrivilegeTerms:
    """What decides which privileges a role may hold in one database, besides its name and oid. Fields as in Grantee.

    `weight`: how long a comparison with one object takes; 1: as with a few names.
    """

    declared: DatabasePrivileges | None
    policy: PrivilegePolicy
    owned: frozenset[int]
    weight: int = field(default=1, compare=False)

    @classmethod
    def of(cls, grantee: Grantee, database: str) -> "PrivilegeTerms":
        declared = grantee.declared.get(database)
        weight = 1 if declared is None else 1 + count_patterns(declared) // _LIGHT
        return cls(declared, grantee.policy, grantee.owned, weight)


class AclScreening:
    """Of the roles with privileges in one database, after one read. Pass the same PrivilegeTerms for roles with equal
    ones. Default privileges are not looked at.
    """

    def __init__(self, observed: ObservedDatabase) -> None:
        self.observed = observed
        self._known: dict[int, _EqualTerms] = {}
        self._places = 0

    def differs(self, grantee: Grantee, terms: PrivilegeTerms) -> bool:
        """Whether `select` returns anything; in half the time."""
        return self._expect(grantee, terms).differs(grantee.oid, self.observed)

    def select(self, grantee: Grantee, terms: PrivilegeTerms) -> Sequence[ObservedAcl]:
        """Returns the objects on which the role may differ from its declaration, or declares what it may not."""
        return self.observed.index.select(self._expect(grantee, terms).find_differing(grantee.oid, self.observed))

    def _expect(self, grantee: Grantee, terms: PrivilegeTerms) -> "_EqualTerms":
        expected = self._known.get(id(terms))
        if expected is None:
            expected = _find_expected(grantee, terms, self.observed)
            places = sum(len(one.places) for one in expected.screens)
            if self._places + places > MOST_PLACES:
                self._known, self._places = {}, 0
            self._known[id(terms)] = expected
            self._places += places
        return expected


@dataclass(frozen=True, slots=True)
class _Screen:
    """What a role may hold on objects with the same ACL without being looked at. `exact`: as
    `AclComparison.find_exact`. `places`: of the objects, in `ObservedDatabase.acls`.
    """

    owner: int
    held: HeldByRole
    exact: frozenset[str] | None
    places: list[int] = field(default_factory=list)

    def differs(self, role: int) -> bool:
        return role != self.owner and (self.exact is None or self.held.get(role, NOTHING_HELD)[1] != self.exact)


@dataclass(frozen=True, slots=True)
class _EqualTerms:
    """What roles with the same terms may hold: `screens` on the database and in `schemas`, nothing elsewhere. `terms`:
    kept, since their id stands for them.
    """

    terms: PrivilegeTerms
    schemas: frozenset[str]
    screens: Collection[_Screen]

    def find_differing(self, role: int, observed: ObservedDatabase) -> Iterator[Sequence[int]]:
        """Yields places of objects."""
        yield from (one.places for one in self.screens if one.differs(role))
        yield list(self._find_outside(role, observed))

    def differs(self, role: int, observed: ObservedDatabase) -> bool:
        if any(one.differs(role) for one in self.screens):
            return True
        return any(True for _ in self._find_outside(role, observed))

    def _find_outside(self, role: int, observed: ObservedDatabase) -> Iterator[int]:
        acls = observed.acls
        return (place for place in observed.index.held_outside(role, self.schemas) if acls[place].object.owner != role)


def _find_expected(grantee: Grantee, terms: PrivilegeTerms, observed: ObservedDatabase) -> _EqualTerms:
    facts = observed.facts
    declaration = None if terms.declared is None else compile_privileges(terms.declared, facts.version)
    classifier = DifferenceClassifier(current=True, report_only=True, new_objects=frozenset())
    comparison = AclComparison(grantee, observed, declaration, classifier, PendingNames(facts.database))
    schemas = frozenset[str]() if declaration is None else declaration.schemas_among(observed.index.schemas)
    screens: dict[tuple[int, int, frozenset[str] | None], _Screen] = {}
    for place in observed.index.in_schemas(schemas):
        acl = observed.acls[place]
        obj = acl.object
        if obj.kind is ObjectKind.DATABASE and obj.name != facts.database:
            continue
        exact = comparison.find_exact(obj)
        key = obj.owner, id(acl.entries), exact
        screen = screens.get(key)
        if screen is None:
            screen = screens[key] = _Screen(obj.owner, observed.entries_by_role(acl), exact)
        screen.places.append(place)
    return _EqualTerms(terms, schemas, screens.values())


class GranteeIndex:
    """The roles with privileges in one database, by oid and by the schemas that their declarations name."""

    def __init__(self, facts: DatabaseFacts, grantees: Iterable[Grantee]) -> None:
        self._by_oid: dict[int, list[Key]] = {}  # two objects while one takes a role over
        self._by_schema: dict[str, list[Key]] = {}
        self._wide: dict[re.Pattern[str], list[Key]] = {}
        self._on_database: list[Key] = []
        for one in grantees:
            self._by_oid.setdefault(one.oid, []).append(one.key)
            declared = one.declared.get(facts.database)
            if declared is None:
                continue
            if declared.on_database:
                self._on_database.append(one.key)
            names, pattern = schema_patterns(declared)
            for name in names:
                self._by_schema.setdefault(name, []).append(one.key)
            if pattern is not None:
                self._wide.setdefault(pattern, []).append(one.key)

    def concerned(self, observed: ObservedDatabase) -> set[Key]:
        """The roles that may hold something on an object that was read, or declare something for it."""
        index = observed.index
        found = {key for oid in index.grantees for key in self._by_oid.get(oid, ())}
        if index.has_database:
            found.update(self._on_database)
        for schema in index.schemas:
            found.update(self._by_schema.get(schema, ()))
        for pattern, keys in self._wide.items():
            if any(map(pattern.fullmatch, index.schemas)):
                found.update(keys)
        return found
