"""Finds the roles whose privileges may differ from what they declare. After each change, all others need no decision.

What is wanted on an object is found once for all roles with equal terms.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pgrole_controller.core.acl import ObjectKind
from pgrole_controller.core.acl_comparison import AclComparison
from pgrole_controller.core.grantee import DatabasePrivileges, Grantee, PrivilegePolicy
from pgrole_controller.core.object_patterns import compile_privileges
from pgrole_controller.core.observed_database import ObservedDatabase
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
    known: dict[int, Sequence[frozenset[str] | None]] = {}
    differing = []
    for grantee, terms in grantees:
        exact = known.get(id(terms))
        if exact is None:
            exact = known[id(terms)] = _find_exact(grantee, terms, observed)
        if _differs(grantee.oid, observed, exact):
            differing.append((grantee, terms))
    return differing


def _find_exact(grantee: Grantee, terms: PrivilegeTerms, observed: ObservedDatabase) -> Sequence[frozenset[str] | None]:
    """As `AclComparison.find_exact`, for each object."""
    facts = observed.facts
    declaration = None if terms.declared is None else compile_privileges(terms.declared, facts.version)
    ledger = DifferenceLedger(current=True, report_only=True, new_objects=frozenset(), granted_before=frozenset())
    comparison = AclComparison(grantee, observed, declaration, ledger, PendingNames(facts.database))
    return [comparison.find_exact(acl.object) for acl in observed.acls]


def _differs(oid: int, observed: ObservedDatabase, exact: Sequence[frozenset[str] | None]) -> bool:
    for acl, privileges in zip(observed.acls, exact, strict=True):
        obj = acl.object
        if obj.owner == oid or (obj.kind is ObjectKind.DATABASE and obj.name != observed.facts.database):
            continue
        held = observed.entries_of(acl, oid)[1]
        if held is None or held != privileges:
            return True
    return False
