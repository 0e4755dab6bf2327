"""Keeps a round with very many objects or roles from delaying everything else of this process, and from filling memory.

60 roles in a database of 50,000 tables are 3 million comparisons, and at the first declaration as many changes.
"""

from collections.abc import Iterable

from pgrole_controller.controller.privileges.privilege_progress import PrivilegeProgress
from pgrole_controller.core.privileges.acl import AclChange, ObjectId
from pgrole_controller.core.privileges.observed_database import ObservedDatabase
from pgrole_controller.postgres.privileges.acl_verification import AclRepair

#: Number of changes, each of about 180 bytes, from which on no further role is decided about before they are applied.
MOST_CHANGES = 300_000
#: Number of comparisons of a role with an object from which on a thread makes them: each takes up to 10 µs.
MANY_COMPARISONS = 2_000


def group_changes(some: Iterable[PrivilegeProgress], observed: ObservedDatabase) -> list[AclRepair]:
    """Returns the changes of all these roles, by object."""
    acls = {one.object.id: one for one in observed.acls}
    by_object: dict[ObjectId, list[AclChange]] = {}
    for one in some:
        for change in one.changes:
            by_object.setdefault(change.object.id, []).append(change)
    return [AclRepair(acls[identity], tuple(changes)) for identity, changes in by_object.items()]
