"""Finds the objects of a database that concern one role, so that a role costs nothing for what others have.

Otherwise a thousand roles with a schema each would need a thousand comparisons per object.
"""

from collections.abc import Collection, Iterable, Iterator, KeysView, Sequence

from pgrole_controller.core.privileges.acl import DefaultAcl, ObjectId, ObjectKind, ObservedAcl


class AclIndex:
    """Objects by schema and by the roles in their ACLs. A place is an object's number in `acls`. `schema_ids`: of the
    schemas among the objects, by name.
    """

    def __init__(self, acls: Sequence[ObservedAcl], defaults: Iterable[DefaultAcl]) -> None:
        self._acls = acls
        self._by_schema: dict[str, list[int]] = {}
        self._databases: list[int] = []
        self._by_grantee: dict[int, list[list[int]]] = {}
        self._defaults: dict[int, list[DefaultAcl]] = {}
        self.schema_ids: dict[str, ObjectId] = {}
        by_entries: dict[int, list[int]] = {}  # objects with the same ACL share the tuple
        for place, acl in enumerate(acls):
            obj = acl.object
            self._by_schema.setdefault(obj.schema, []).append(place)
            if obj.kind is ObjectKind.DATABASE:
                self._databases.append(place)
            elif obj.kind is ObjectKind.SCHEMA:
                self.schema_ids[obj.name] = obj.id
            by_entries.setdefault(id(acl.entries), []).append(place)
        for places in by_entries.values():
            for grantee in {entry.grantee for entry in acls[places[0]].entries}:
                self._by_grantee.setdefault(grantee, []).append(places)
        for one in defaults:
            for grantee in {entry.grantee for entry in one.entries}:
                self._defaults.setdefault(grantee, []).append(one)

    @property
    def schemas(self) -> KeysView[str]:
        """The schemas of all objects; empty for objects without one."""
        return self._by_schema.keys()

    @property
    def grantees(self) -> KeysView[int]:
        """Who holds something."""
        return self._by_grantee.keys()

    @property
    def has_database(self) -> bool:
        return bool(self._databases)

    def concerning(self, grantee: int, schemas: Iterable[str]) -> Sequence[ObservedAcl]:
        """The database, the objects of these schemas, and those on which the grantee holds something."""
        return self.select([*self._of(schemas), *self._by_grantee.get(grantee, ())])

    def in_schemas(self, schemas: Iterable[str]) -> Sequence[int]:
        """The places of the database, and of the objects of these schemas."""
        return sorted(set[int]().union(*self._of(schemas)))

    def held_outside(self, grantee: int, schemas: Collection[str]) -> Iterator[int]:
        """The places of objects on which the grantee holds something, except those that `in_schemas` returns."""
        for places in self._by_grantee.get(grantee, ()):
            for place in places:
                obj = self._acls[place].object
                if obj.schema not in schemas and obj.kind is not ObjectKind.DATABASE:
                    yield place

    def select(self, places: Iterable[Iterable[int]]) -> Sequence[ObservedAcl]:
        """The objects at these places, in the order in which they were read."""
        some = set[int]().union(*places)
        if len(some) == len(self._acls):
            return self._acls
        return [self._acls[place] for place in sorted(some)]

    def defaults_for(self, grantee: int) -> Sequence[DefaultAcl]:
        """The default privileges that name the grantee."""
        return self._defaults.get(grantee, ())

    def _of(self, schemas: Iterable[str]) -> list[list[int]]:
        return [self._databases, *(self._by_schema[name] for name in schemas if name in self._by_schema)]
