"""What declarations can concern in a database, so that the rest need not be read."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache

from pgrole_controller.core.names import compile_patterns, is_pattern, matches
from pgrole_controller.core.privileges.acl import TABLE_KINDS, DatabaseObject, ObjectKind
from pgrole_controller.core.privileges.grantee import Access, DatabasePrivileges, Grantee

#: Maximum number of schemas with a cached answer.
_MOST_REMEMBERED = 5000


@dataclass(slots=True)
class PrivilegeReach:
    """`relations`, `routines`: patterns of schemas. `with_columns`: schemas and names of tables with declared columns.

    `creators`: roles whose default privileges are declared. `creates_in_schemas`: CREATE on schemas is declared.
    """

    relations: frozenset[str]
    routines: frozenset[str]
    with_columns: tuple[tuple[str, tuple[str, ...]], ...]
    creators: frozenset[str]
    creates_in_schemas: bool
    _known: dict[tuple[str, bool], bool] = field(default_factory=dict)
    _columns: dict[str, "_TableNames"] = field(default_factory=dict, init=False)  # by name of the schema
    _wide_columns: dict[str, "_TableNames"] = field(default_factory=dict, init=False)  # by pattern

    def __post_init__(self) -> None:
        for schema, names in self.with_columns:
            by_schema = self._wide_columns if is_pattern(schema) else self._columns
            by_schema.setdefault(schema, _TableNames()).add(names)

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
            any(one.kind is ObjectKind.SCHEMA and "CREATE" in one.privileges for one in objects),
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
            patterns = self.routines if routine else self.relations
            known = schema in patterns or _compile_wide(patterns).fullmatch(schema) is not None
            self._known[schema, routine] = known
        return known

    def has_columns(self, obj: DatabaseObject) -> bool:
        """Whether a declaration names columns of this object."""
        if obj.kind not in TABLE_KINDS:
            return False
        names = self._columns.get(obj.schema)
        if names is not None and names.has(obj.name):
            return True
        wide = self._wide_columns.items()
        return any(some.has(obj.name) and matches(obj.schema, (schema,)) for schema, some in wide)


@dataclass(slots=True)
class _TableNames:
    """Every table of a database is looked up among those of all roles."""

    exact: set[str] = field(default_factory=set)
    patterns: set[str] = field(default_factory=set)

    def add(self, names: Iterable[str]) -> None:
        for name in names:
            (self.patterns if is_pattern(name) else self.exact).add(name)

    def has(self, name: str) -> bool:
        return name in self.exact or matches(name, self.patterns)


@lru_cache(maxsize=64)
def _compile_wide(patterns: frozenset[str]) -> re.Pattern[str]:
    """Compiles the patterns that are not plain names; thousands take 0.1 s."""
    return compile_patterns(filter(is_pattern, patterns))


def _declarations(database: str, grantees: Iterable[Grantee]) -> Iterable[DatabasePrivileges]:
    for grantee in grantees:
        if database in grantee.declared:
            yield grantee.declared[database]
        yield from grantee.former.get(database, ())
