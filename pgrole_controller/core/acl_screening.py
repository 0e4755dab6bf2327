"""Finds the roles whose privileges may differ from what they declare. After each change, all others need no decision.

What is wanted on an object is found once for all roles with equal terms.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pgrole_controller.core.acl import ObjectKind
from pgrole_controller.core.acl_comparison import AclComparison
from pgrole_controller.core.grantee import DatabasePrivileges, Grantee, PrivilegePolicy
from pgrole_controller.core.object_patterns import compile_privileges
from pgrole_controller.core.observed_database import NOTHING_HELD, HeldByRole, ObservedDatabase
from pgrole_controller.core.privilege_difference import DifferenceLedger, PendingNames


@dataclass(frozen=True, slots=True)
class PrivilegeTerms:
    """What decides which privileges a role may hold in one database, besides its name and oid. Fields as in Grantee."""

    declared: DatabasePrivileges | None
    policy: PrivilegePolicy
    owned: frozenset[int]

    @classmethod
    def of(cls, grantee: Grantee, database: str) -> "PrivilegeTerms":
        return cls(grantee.declared.get(database), grantee.policy, grantee.owned)


def find_differing(
    grantees: Iterable[tuple[Grantee, PrivilegeTerms]], observed: ObservedDatabase
) -> list[tuple[Grantee, PrivilegeTerms]]:
    """Leaves out roles that hold exactly what they declare on each of these objects, and may declare it. Pass the same
    PrivilegeTerms for roles with equal ones. Default privileges are not looked at.
    """
    known: dict[int, _Expected] = {}
    differing = []
    for grantee, terms in grantees:
        expected = known.get(id(terms))
        if expected is None:
            expected = known[id(terms)] = _find_expected(grantee, terms, observed)
        if expected.differs(grantee.oid, observed):
            differing.append((grantee, terms))
    return differing


@dataclass(frozen=True, slots=True)
class _Screen:
    """What a role may hold on one object without being looked at. `exact`: as `AclComparison.find_exact`."""

    owner: int
    held: HeldByRole
    exact: frozenset[str] | None

    def differs(self, role: int) -> bool:
        return role != self.owner and (self.exact is None or self.held.get(role, NOTHING_HELD)[1] != self.exact)


@dataclass(frozen=True, slots=True)
class _Expected:
    """What roles with the same terms may hold: `screens` on the database and in `schemas`, nothing elsewhere."""

    schemas: frozenset[str]
    screens: Sequence[_Screen]

    def differs(self, role: int, observed: ObservedDatabase) -> bool:
        return any(one.differs(role) for one in self.screens) or any(
            acl.object.owner != role for acl in observed.index.held_outside(role, self.schemas)
        )


def _find_expected(grantee: Grantee, terms: PrivilegeTerms, observed: ObservedDatabase) -> _Expected:
    facts = observed.facts
    declaration = None if terms.declared is None else compile_privileges(terms.declared, facts.version)
    ledger = DifferenceLedger(current=True, report_only=True, new_objects=frozenset(), granted_before=frozenset())
    comparison = AclComparison(grantee, observed, declaration, ledger, PendingNames(facts.database))
    schemas = frozenset[str]() if declaration is None else declaration.schemas_among(observed.index.schemas)
    screens = [
        _Screen(acl.object.owner, observed.held_by_role(acl), comparison.find_exact(acl.object))
        for acl in observed.index.in_schemas(schemas)
        if acl.object.kind is not ObjectKind.DATABASE or acl.object.name == facts.database
    ]
    return _Expected(schemas, screens)
