"""Which roles, and which objects of each, a round in one database has to decide about, and which objects may be new.

A privilege is missing either because someone revoked it, or because its object was created while no controller ran. A
process remembers no objects before its first complete read. There, an object is old if it was created before the role's
declaration was last applied in this database, as `pgrole.applied` records. Where nothing is stored, or the age is not
certain, the object counts as new.
"""

from collections.abc import Collection, Iterable, Sequence

from pgrole_controller.controller.privileges import large_rounds
from pgrole_controller.controller.privileges.privilege_memory import PrivilegeMemory
from pgrole_controller.controller.privileges.privilege_progress import PrivilegeProgress
from pgrole_controller.core.privileges.acl import ObjectId, ObservedAcl
from pgrole_controller.core.privileges.acl_decision import find_objects_to_date
from pgrole_controller.core.privileges.acl_screening import AclScreening
from pgrole_controller.core.privileges.grantee import Grantee
from pgrole_controller.core.privileges.object_patterns import compile_privileges
from pgrole_controller.core.privileges.observed_database import ObservedDatabase
from pgrole_controller.core.request import Key
from pgrole_controller.event_loop import run_aside
from pgrole_controller.postgres.privileges.database_session import DatabaseSession
from pgrole_controller.postgres.privileges.ddl_events import SCHEMA


def find_dependent(grantees: Iterable[Grantee], database: str, dropped: Collection[str] = ()) -> frozenset[Key]:
    """Returns the roles that may declare something which exists no longer, under its name. `dropped`: as in
    PrivilegeRead.
    """
    found = set[Key]()
    for one in grantees:
        declared = one.declared.get(database)
        if declared is not None and (declared.objects or (SCHEMA in dropped and declared.schemas)):
            found.add(one.key)
    return frozenset(found)


class RoundScreening:
    """Keeps the screening of the last read, since most roles have equal terms."""

    def __init__(self, memory: PrivilegeMemory, database: str) -> None:
        self._memory = memory
        self._database = database
        self._last: AclScreening | None = None

    async def choose(self, grantees: Sequence[Grantee], observed: ObservedDatabase) -> Sequence[Grantee]:
        """Returns the roles that need a decision after this read."""
        if observed.complete or observed.defaults is not None:
            return grantees
        comparisons = observed.size + len(observed.acls) * self._memory.weigh(self._database)
        keys = await run_aside(comparisons, large_rounds.MANY_COMPARISONS, self._find_differing, grantees, observed)
        keys |= self._memory.contested()
        chosen = [one for one in grantees if one.key in keys]
        self._memory.note_unchanged(grantees, chosen, observed)
        return chosen

    async def find_awaited(self, grantees: Sequence[Grantee], observed: ObservedDatabase) -> set[Key]:
        """Returns the roles that declare an object of this read by its name."""
        if not grantees:
            return set()
        comparisons = len(observed.acls) * self._memory.weigh(self._database)
        return await run_aside(comparisons, large_rounds.MANY_COMPARISONS, self._find_named, grantees, observed)

    def count_comparisons(self, grantee: Grantee, observed: ObservedDatabase) -> int:
        """Returns the number of comparisons of usual length that take as long as those with this role."""
        return observed.size * self._memory.terms(grantee, self._database).weight

    def select(self, grantee: Grantee, observed: ObservedDatabase) -> Sequence[ObservedAcl]:
        """Returns the objects on which the role may differ from its declaration."""
        return self._screen(observed).select(grantee, self._memory.terms(grantee, self._database))

    def _screen(self, observed: ObservedDatabase) -> AclScreening:
        if self._last is None or self._last.observed is not observed:
            self._last = AclScreening(observed)
        return self._last

    def forget(self) -> None:
        """Frees the last screening, with what was read for it."""
        self._last = None

    def _find_named(self, grantees: Iterable[Grantee], observed: ObservedDatabase) -> set[Key]:
        concerned = self._memory.concerned(observed)
        return {one.key for one in grantees if one.key in concerned and self._names_any(one, observed)}

    def _names_any(self, grantee: Grantee, observed: ObservedDatabase) -> bool:
        declared = grantee.declared.get(self._database)
        if declared is None:
            return False
        compiled = compile_privileges(declared, observed.facts.version)
        return any(compiled.wanted(acl.object).is_by_name for acl in observed.acls)

    def _find_differing(self, grantees: Iterable[Grantee], observed: ObservedDatabase) -> set[Key]:
        concerned = self._memory.concerned(observed)
        return {one.key for one in grantees if one.key in concerned and self._differs(one, observed)}

    def _differs(self, grantee: Grantee, observed: ObservedDatabase) -> bool:
        try:
            return self._screen(observed).differs(grantee, self._memory.terms(grantee, self._database))
        except Exception:  # noqa: BLE001 -- the decision meets it again, as this role's error
            return True


async def find_new_objects(
    some: Sequence[PrivilegeProgress], observed: ObservedDatabase, session: DatabaseSession
) -> dict[Key, frozenset[ObjectId]]:
    """By role that misses something: objects, and creators of default privileges, that may be new.

    Raises PgRoleError.
    """
    asked = {one.grantee.key: objects for one in some if (objects := find_objects_to_date(one.decision, observed))}
    if not asked or not session.stores:
        return asked
    oids = {one.grantee.key: one.grantee.oid for one in some}
    older = await session.read_older([(oids[key], each) for key, objects in asked.items() for each in objects])
    return {
        key: frozenset(each for each in objects if (oids[key], each) not in older) for key, objects in asked.items()
    }
