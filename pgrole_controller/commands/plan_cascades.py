"""What others lose when a role's privileges are revoked: with a grant option, it may have granted them in turn.

PostgreSQL then revokes only with CASCADE, as the controller does.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from pgrole_controller.core.privileges.acl import AclChange, ObjectId
from pgrole_controller.core.privileges.observed_database import ObservedDatabase
from pgrole_controller.postgres.plan_reading import PassedOn

#: By object, what a role may grant there: privilege and column; an empty column for the whole object.
GrantOptions: TypeAlias = Mapping[ObjectId, Iterable[tuple[str, str]]]


def find_options(role: int, changes: Iterable[AclChange], observed: ObservedDatabase) -> GrantOptions:
    """Returns what the role may grant on objects on which it loses something."""
    revoked = {one.object.id for one in changes if one.revoke}
    found: dict[ObjectId, set[tuple[str, str]]] = {}
    for acl in observed.index.concerning(role, ()) if revoked else ():
        if acl.object.id in revoked:
            entries, _ = observed.entries_of(acl, role)
            options = {(one.privilege, one.column) for one in entries if one.grantable}
            if options:
                found[acl.object.id] = options
    return found


def find_cascades(
    changes: Iterable[AclChange], options: GrantOptions, passed_on: Mapping[ObjectId, Sequence[PassedOn]]
) -> dict[AclChange, tuple[str, ...]]:
    """Returns the changes that need CASCADE, with the roles that lose something."""
    found: dict[AclChange, tuple[str, ...]] = {}
    for change in changes:
        names = {
            name
            for one in (passed_on.get(change.object.id, ()) if change.revoke else ())
            if one.privilege in change.privileges and (not change.columns or one.column in change.columns)
            if (one.privilege, one.column) in options.get(change.object.id, ())
            for name in one.grantees
        }
        if names:
            found[change] = tuple(sorted(names))
    return found
