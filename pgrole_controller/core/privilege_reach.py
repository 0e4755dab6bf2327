"""What declarations can concern in a database, so that the rest need not be read."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from pgrole_controller.core.acl import TABLE_KINDS, DatabaseObject, ObjectKind
from pgrole_controller.core.grantee import Access, DatabasePrivileges, Grantee
from pgrole_controller.core.policy import matches

#: Maximum number of schemas with a cached answer.
_MOST_REMEMBERED = 5000


@dataclass(slots=True)
class PrivilegeReach:
    """`relations`, `routines`: patterns of schemas. `with_columns`: schemas and names of tables with declared columns.

    `creators`: roles whose default privileges are declared.
    """

    relations: frozenset[str]
    routines: frozenset[str]
    with_columns: tuple[tuple[str, tuple[str, ...]], ...]
    creators: frozenset[str]
    _known: dict[tuple[str, bool], bool] = field(default_factory=dict)

    @classmethod
    def of(cls, database: str, grantees: Iterable[Grantee]) -> "PrivilegeReach":
        """Returns the reach of everything that these declare, or declared, in this database."""
        some = list(_declarations(database, grantees))
        access = [one for declared in some for one in declared.schemas]
        objects = [one for declared in some for one in declared.objects]
        relations = {one.schema for one in access if one.access - {Access.EXECUTE}}
        relations |= {one.schema for one in objects if one.kind is not ObjectKind.ROUTINE}
        routines = {one.schema for one in access if Access.EXECUTE in one.access}
        routines |= {one.schema for one in objects if one.kind is ObjectKind.ROUTINE}
        return cls(
            frozenset(relations),
            frozenset(routines),
            tuple({(one.schema, one.names) for one in objects if one.columns}),
            frozenset(name for declared in some for name in declared.created_by),
        )

    def touches(self, schema: str, kind: ObjectKind) -> bool:
        """Whether a declaration may match objects of this kind in the schema: ROUTINE, or TABLE for all kinds of
        relations.
        """
        routine = kind is ObjectKind.ROUTINE
        known = self._known.get((schema, routine))
        if known is None:
            if len(self._known) >= _MOST_REMEMBERED:
                self._known.clear()
            known = self._known[schema, routine] = matches(schema, self.routines if routine else self.relations)
        return known

    def covers(self, objects: Iterable[DatabaseObject]) -> bool:
        """Whether a declaration may match one of these objects. The database and its schemas always match."""
        return any(
            one.kind in (ObjectKind.DATABASE, ObjectKind.SCHEMA) or self.touches(one.schema, one.kind)
            for one in objects
        )

    def has_columns(self, obj: DatabaseObject) -> bool:
        """Whether a declaration names columns of this object."""
        return obj.kind in TABLE_KINDS and any(
            matches(obj.schema, (schema,)) and matches(obj.name, names) for schema, names in self.with_columns
        )


def _declarations(database: str, grantees: Iterable[Grantee]) -> Iterable[DatabasePrivileges]:
    for grantee in grantees:
        if database in grantee.declared:
            yield grantee.declared[database]
        yield from grantee.former.get(database, ())
