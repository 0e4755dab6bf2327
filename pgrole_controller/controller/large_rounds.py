"""Keeps a round with very many objects or roles from delaying everything else of this process, and from filling memory.

60 roles in a database of 50,000 tables are 3 million comparisons, and at the first declaration as many changes.
"""

from collections.abc import Callable, Iterable
from typing import TypeVar

import anyio.to_thread

from pgrole_controller.controller.privilege_progress import PrivilegeProgress
from pgrole_controller.core.acl import AclChange, ObjectId
from pgrole_controller.core.observed_database import ObservedDatabase
from pgrole_controller.postgres.acl_verification import AclRepair

#: Number of changes, each of about 180 bytes, from which on no further role is decided about before they are applied.
MOST_CHANGES = 300_000
#: Number of objects from which on a thread decides: each takes up to 10 µs for one role.
MANY_OBJECTS = 2_000

_T = TypeVar("_T")


async def run_aside(observed: ObservedDatabase, call: Callable[..., _T], *arguments: object) -> _T:
    """Calls it, in a thread if there are many objects: the loop serves every server."""
    if len(observed.acls) < MANY_OBJECTS:
        return call(*arguments)
    return await anyio.to_thread.run_sync(call, *arguments)


def group_changes(some: Iterable[PrivilegeProgress], observed: ObservedDatabase) -> list[AclRepair]:
    """Returns the changes of all these roles, by object."""
    acls = {one.object.id: one for one in observed.acls}
    by_object: dict[ObjectId, list[AclChange]] = {}
    for one in some:
        for change in one.changes:
            by_object.setdefault(change.object.id, []).append(change)
    return [AclRepair(acls[identity], tuple(changes)) for identity, changes in by_object.items()]
