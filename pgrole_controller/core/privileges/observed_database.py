"""What was read of one database for some roles, and which objects and entries of ACLs concern each.

A role costs nothing for what others have: otherwise a thousand roles with a schema each would need a thousand
comparisons per object.
"""

from collections.abc import Collection, Iterable, Iterator, KeysView, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Self

from pgrole_controller.core.privileges.acl import (
    TABLE_KINDS,
    AclEntry,
    DatabaseObject,
    DefaultAcl,
    ObjectId,
    ObjectKind,
    ObservedAcl,
)
from pgrole_controller.core.privileges.privilege_policy import DatabaseFacts
from pgrole_controller.core.privileges.routine_signature import normalize_arguments

#: By role: its entries, and their privileges if no entry is of a column or has a grant option.
HeldByRole = Mapping[int, tuple[Sequence[AclEntry], frozenset[str] | None]]
NOTHING_HELD: tuple[tuple[AclEntry, ...], frozenset[str]] = ((), frozenset())


@dataclass(frozen=True, slots=True)
class SchemaNames:
    """The names in one schema. `objects`: by kind. `routines`: the normalized arguments of each, by name."""

    objects: Mapping[ObjectKind, Collection[str]]
    routines: Mapping[str, Collection[str]]

    @classmethod
    def of(cls, objects: Iterable[DatabaseObject]) -> Self:
        names: dict[ObjectKind, set[str]] = {}
        routines: dict[str, set[str]] = {}
        for obj in objects:
            names.setdefault(obj.kind, set()).add(obj.name)
            if obj.kind is ObjectKind.ROUTINE:
                routines.setdefault(obj.name, set()).add(normalize_arguments(obj.arguments))
        return cls(names, routines)

    def has(self, kind: ObjectKind, name: str) -> bool:
        """Whether an object has this name; `kind` TABLE stands for all TABLE_KINDS."""
        kinds = TABLE_KINDS if kind is ObjectKind.TABLE else (kind,)
        return any(name in self.objects.get(one, ()) for one in kinds)


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
        self._names: dict[str, SchemaNames] = {}
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

    def names_in(self, schema: str) -> SchemaNames:
        """The names of the objects of this schema; the same for every role."""
        known = self._names.get(schema)
        if known is None:
            objects = (self._acls[place].object for place in self._by_schema.get(schema, ()))
            known = self._names[schema] = SchemaNames.of(objects)
        return known

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


@dataclass(frozen=True)
class ObservedDatabase:
    """What was read of one database for some grantees.

    - `acls`: objects with the entries of these grantees; the database itself and schemas included.
    - `defaults`: default privileges for these grantees; None: not read.
    - `roles`: oids of the existing roles among the declared creators, by name.
    - `schemas`: every schema that exists.
    - `complete`: `acls` has every object, and `roles` every creator that exists. Otherwise nothing is reported as
      missing, and only these are decided.
    - `columns`: existing columns of objects that have declared columns; an object left out is one whose columns are
      not known.
    - `largest_acl`: number of entries in the largest ACL of a table, view or sequence; 0 if not `complete`.
    """

    facts: DatabaseFacts
    acls: Sequence[ObservedAcl] = ()
    defaults: Sequence[DefaultAcl] | None = None
    roles: Mapping[str, int] = field(default_factory=dict)
    schemas: frozenset[str] = frozenset()
    complete: bool = True
    columns: Mapping[ObjectId, frozenset[str]] = field(default_factory=dict)
    largest_acl: int = 0
    _by_grantee: dict[int, HeldByRole] = field(default_factory=dict, init=False, repr=False, compare=False)

    @cached_property
    def size(self) -> int:
        """Number of objects and of their entries: a table has entries for up to 1,600 columns."""
        return sum(1 + len(one.entries) for one in self.acls)

    @cached_property
    def index(self) -> AclIndex:
        """Finds what concerns one grantee."""
        return AclIndex(self.acls, self.defaults or ())

    def entries_of(self, acl: ObservedAcl, grantee: int) -> tuple[Sequence[AclEntry], frozenset[str] | None]:
        """Returns the grantee's entries, and their privileges if no entry is of a column or has a grant option."""
        return self.entries_by_role(acl).get(grantee, NOTHING_HELD)

    def entries_by_role(self, acl: ObservedAcl) -> HeldByRole:
        """As `entries_of`, for each grantee that has entries.

        Objects with the same ACL share the tuple of entries, which is sorted by grantee once. `acls` keeps it alive, so
        its id stands for it.
        """
        known = self._by_grantee.get(id(acl.entries))
        if known is None:
            found: dict[int, list[AclEntry]] = {}
            for entry in acl.entries:
                found.setdefault(entry.grantee, []).append(entry)
            known = self._by_grantee[id(acl.entries)] = {one: (some, _plain(some)) for one, some in found.items()}
        return known


def _plain(entries: Sequence[AclEntry]) -> frozenset[str] | None:
    special = any(entry.column or entry.grantable for entry in entries)
    return None if special else frozenset(entry.privilege for entry in entries)
