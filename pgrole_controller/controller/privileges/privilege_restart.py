"""Tells drift from new objects at the first complete read of a process, which remembers no objects.

A privilege is missing either because someone revoked it, or because its object was created while no controller ran. The
object is old if it was created before the role's declaration was last applied in this database, as
`pgrole.applied` records. Where nothing is stored, or the age is not certain, the object counts as new.
"""

from collections.abc import Iterable, Sequence

from pgrole_controller.controller.privileges.privilege_progress import PrivilegeProgress
from pgrole_controller.core.privileges.acl import ObjectId
from pgrole_controller.core.privileges.observed_database import ObservedDatabase
from pgrole_controller.core.privileges.privilege_difference import PrivilegeDifference
from pgrole_controller.core.request import Key
from pgrole_controller.postgres.privileges.database_session import DatabaseSession


async def find_new_objects(
    some: Sequence[PrivilegeProgress], observed: ObservedDatabase, session: DatabaseSession
) -> dict[Key, frozenset[ObjectId]]:
    """By role that misses something: objects, and creators of default privileges, that may be new.

    Raises PgRoleError.
    """
    asked = {one.grantee.key: objects for one in some if (objects := _missing_on(one, observed))}
    if not asked or not session.stores:
        return {}
    oids = {one.grantee.key: one.grantee.oid for one in some}
    older = await session.read_older([(oids[key], each) for key, objects in asked.items() for each in objects])
    return {
        key: frozenset(each for each in objects if (oids[key], each) not in older) for key, objects in asked.items()
    }


def _missing_on(one: PrivilegeProgress, observed: ObservedDatabase) -> frozenset[ObjectId]:
    missing = [each for each in (*one.decision.extended, *one.decision.reported) if not each.held]
    objects = {each.object.id for each in missing if each.object is not None}
    return frozenset(objects | _creators(missing, observed))


def _creators(missing: Iterable[PrivilegeDifference], observed: ObservedDatabase) -> set[ObjectId]:
    if all(each.object is not None for each in missing):
        return set()
    return {ObjectId("pg_authid", oid) for oid in observed.roles.values()}
