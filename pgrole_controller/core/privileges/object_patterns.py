"""Which privileges a declaration grants on an object of a database, by the object's kind, schema and name.

A declaration is compiled once and then applied to each object: literal names are looked up, and what depends only on
schema and kind is decided once for all objects of a schema.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType

from pgrole_controller.core.names import compile_patterns, is_pattern
from pgrole_controller.core.privileges.acl import (
    DECLARABLE,
    FIRST_NORMAL_OID,
    MAINTAIN_SINCE,
    TABLE_KINDS,
    DatabaseObject,
    ObjectKind,
    is_of_system,
    needs_exact_name,
)
from pgrole_controller.core.privileges.grantee import Access, DatabasePrivileges, ObjectPrivileges
from pgrole_controller.core.privileges.routine_signature import normalize_arguments, split_signature

_READ: Mapping[ObjectKind, str] = {
    **dict.fromkeys(TABLE_KINDS, "SELECT"),
    ObjectKind.SEQUENCE: "SELECT",
    ObjectKind.SCHEMA: "USAGE",
}
_WRITE: Mapping[ObjectKind, str] = {
    **dict.fromkeys(TABLE_KINDS, "SELECT INSERT UPDATE DELETE"),
    ObjectKind.SEQUENCE: "SELECT USAGE UPDATE",
    ObjectKind.SCHEMA: "USAGE",
}
_EXECUTE: Mapping[ObjectKind, str] = {ObjectKind.ROUTINE: "EXECUTE", ObjectKind.SCHEMA: "USAGE"}

#: What each access gives, by kind of object.
ACCESS: Mapping[Access, Mapping[ObjectKind, frozenset[str]]] = {
    access: {kind: frozenset(privileges.split()) for kind, privileges in given.items()}
    for access, given in ((Access.READ, _READ), (Access.WRITE, _WRITE), (Access.EXECUTE, _EXECUTE))
}

_NOTHING: Mapping[str, frozenset[str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a declaration wants on one object. Columns are by privilege. `literal`, `literal_columns`: the part whose
    declaration names schema and object exactly.
    """

    privileges: frozenset[str] = frozenset()
    columns: Mapping[str, frozenset[str]] = field(default_factory=lambda: _NOTHING)
    literal: frozenset[str] = frozenset()
    literal_columns: Mapping[str, frozenset[str]] = field(default_factory=lambda: _NOTHING)

    @property
    def is_by_name(self) -> bool:
        """Whether the declaration names this object exactly."""
        return bool(self.literal or self.literal_columns)

    def has(self, privilege: str, column: str = "") -> bool:
        """Tells whether it wants the privilege on the whole object, or on the column."""
        return column in self.columns.get(privilege, ()) if column else privilege in self.privileges

    def has_literal(self, privilege: str, column: str = "") -> bool:
        return column in self.literal_columns.get(privilege, ()) if column else privilege in self.literal


NOTHING_WANTED = Wanted()


@dataclass(frozen=True, slots=True)
class LiteralName:
    """A schema or an object that a declaration names exactly; a schema has no `name`. `kind` TABLE stands for all
    TABLE_KINDS.
    """

    kind: ObjectKind
    schema: str
    name: str = ""


#: Maximum number of compiled declarations kept, and of schemas that each remembers.
_MOST_COMPILED = 2000
_MOST_REMEMBERED = 500


@dataclass(frozen=True, slots=True)
class _Wish:
    """A part of a declaration, for objects of one kind in one schema. `literal`: it names this schema exactly."""

    privileges: frozenset[str]
    columns: tuple[str, ...] = ()
    literal: bool = False


@dataclass(frozen=True, slots=True)
class _ObjectNames:
    """The names of one part of a declaration, the same for all schemas: the `exact` ones are looked up. Names of
    routines are (name, arguments), where arguments None means every overload.
    """

    exact: frozenset[tuple[str, str | None]]
    patterns: tuple[tuple[re.Pattern[str], re.Pattern[str] | None], ...]

    @classmethod
    def of(cls, kind: ObjectKind, names: Iterable[str]) -> "_ObjectNames":
        exact, wide, patterns = set[tuple[str, str | None]](), [], []
        for text in names:
            name, arguments = split_signature(text) if kind is ObjectKind.ROUTINE else (text, None)
            if not is_pattern(text):
                exact.add((name, arguments))
            elif arguments is None:
                wide.append(name)
            else:
                patterns.append((compile_patterns([name]), compile_patterns([arguments])))
        return cls(frozenset(exact), (*patterns, *([(compile_patterns(wide), None)] if wide else ())))

    def include(self, obj: DatabaseObject) -> bool:
        arguments = normalize_arguments(obj.arguments) if obj.kind is ObjectKind.ROUTINE else ""
        return not self.exact.isdisjoint([(obj.name, None), (obj.name, arguments)]) or any(
            name.fullmatch(obj.name) and (those is None or those.fullmatch(arguments)) for name, those in self.patterns
        )


@dataclass(frozen=True, slots=True)
class _Part:
    """What a declaration wants on the objects of one kind in one schema.

    `always`: on every object. `access`: on every object except those whose name matches; `by_access`: unions of these,
    by the ones that apply.
    """

    always: Wanted
    reserved: bool
    access: tuple[tuple[frozenset[str], _ObjectNames], ...]
    named: tuple[tuple[frozenset[tuple[str, str | None]], _Wish], ...]
    patterns: tuple[tuple[re.Pattern[str], re.Pattern[str] | None, _Wish], ...]
    by_access: dict[tuple[bool, ...], Wanted] = field(default_factory=dict)


class CompiledPrivileges:
    """A compiled declaration, for many objects. `version`: server_version_num. `schema_names`, `schema_pattern`: of the
    schemas in which it may want something; None: only those with these names.
    """

    def __init__(self, declared: DatabasePrivileges, version: int) -> None:
        self.declared = declared
        self._without = frozenset[str]() if version >= MAINTAIN_SINCE else frozenset({"MAINTAIN"})
        self._parts: dict[tuple[str, ObjectKind], _Part] = {}
        self._schemas = [(compile_patterns([one.schema]), one) for one in declared.schemas]
        self._objects = [
            (compile_patterns([one.schema]), one, _ObjectNames.of(one.kind, one.names)) for one in declared.objects
        ]
        self._unmanaged = compile_patterns(declared.unmanaged) if declared.unmanaged else None
        self._left_alone: dict[str, bool] = {}
        self.schema_names, self.schema_pattern = schema_patterns(declared)

    def schemas_among(self, schemas: Collection[str]) -> frozenset[str]:
        """Returns those of these schemas in which `wanted` may want something. Look-ups in `schemas` must be fast."""
        literal = (name for name in self.schema_names if name in schemas)
        if self.schema_pattern is None:
            return frozenset(literal)
        return frozenset((*literal, *filter(self.schema_pattern.fullmatch, schemas)))

    def wanted(self, obj: DatabaseObject) -> Wanted:
        """Returns what the declaration wants on this object; nothing for kinds that cannot be declared."""
        part = self._parts.get((obj.schema, obj.kind))
        if part is None:
            if len(self._parts) >= _MOST_REMEMBERED:
                self._parts.clear()
            part = self._parts[obj.schema, obj.kind] = self._part(obj.schema, obj.kind)
        if part.reserved or obj.extension or (obj.id.oid < FIRST_NORMAL_OID and needs_exact_name(obj)):
            return self._wanted_of_reserved(obj, part)
        if not part.access and not part.named and not part.patterns:
            return part.always
        return _collect(part, obj)

    def is_unmanaged(self, schema: str) -> bool:
        """Tells whether the declaration leaves the role's other privileges in this schema alone."""
        if self._unmanaged is None:
            return False
        known = self._left_alone.get(schema)
        if known is None:
            if len(self._left_alone) >= _MOST_REMEMBERED:
                self._left_alone.clear()
            known = self._left_alone[schema] = self._unmanaged.fullmatch(schema) is not None
        return known

    def literal_names(self) -> Iterator[LiteralName]:
        """Yields the schemas and objects that the declaration names exactly, in its order."""
        for access in self.declared.schemas:
            if not is_pattern(access.schema):
                yield LiteralName(ObjectKind.SCHEMA, access.schema)
        for one in self.declared.objects:
            if one.kind is ObjectKind.SCHEMA:
                for name in _schema_names(one):
                    if not is_pattern(name):
                        yield LiteralName(ObjectKind.SCHEMA, name)
            elif not is_pattern(one.schema):
                yield LiteralName(ObjectKind.SCHEMA, one.schema)
                for name in one.names:
                    if not is_pattern(name):
                        yield LiteralName(one.kind, one.schema, name)

    def _part(self, schema: str, kind: ObjectKind) -> _Part:
        possible = frozenset(DECLARABLE.get(kind, ())) - self._without
        if kind is ObjectKind.DATABASE:
            privileges = self.declared.on_database & possible
            return _Part(Wanted(privileges, literal=privileges), False, (), (), ())
        always: list[_Wish] = []
        excepted: list[tuple[frozenset[str], _ObjectNames]] = []
        named: list[tuple[frozenset[tuple[str, str | None]], _Wish]] = []
        patterns: list[tuple[re.Pattern[str], re.Pattern[str] | None, _Wish]] = []
        for matcher, access in self._schemas:
            if not matcher.fullmatch(schema):
                continue
            privileges = given_by(access.access, kind) & possible
            if kind is ObjectKind.SCHEMA:
                always.append(_Wish(privileges, literal=access.schema == schema and not is_pattern(schema)))
            elif privileges and access.exceptions:
                excepted.append((privileges, _ObjectNames.of(kind, access.exceptions)))
            elif privileges:
                always.append(_Wish(privileges))
        for matcher, one, known in self._objects:
            if one.kind is ObjectKind.SCHEMA and kind is ObjectKind.SCHEMA:
                names = _schema_names(one)
                if compile_patterns(names).fullmatch(schema):
                    exact = schema in names and not is_pattern(schema)
                    always.append(_Wish(one.privileges & possible, literal=exact))
            elif covers(one.kind, kind) and kind is not ObjectKind.SCHEMA and matcher.fullmatch(schema):
                exact = one.schema == schema and not is_pattern(schema)
                wish = _Wish(one.privileges & possible, one.columns, literal=exact)
                named += [(known.exact, wish)] if known.exact else ()
                patterns += [(*each, wish) for each in known.patterns]
        return _Part(
            _combine((wish, wish.literal) for wish in always),
            is_of_system(schema),
            tuple(excepted),
            tuple(named),
            tuple(patterns),
        )

    def _wanted_of_reserved(self, obj: DatabaseObject, part: _Part) -> Wanted:
        """Returns only what names both the schema and the object exactly."""
        if obj.kind is ObjectKind.SCHEMA:
            return Wanted(part.always.literal, literal=part.always.literal)
        return _combine((wish, True) for wish in _named(part, obj) if wish.literal)


@lru_cache(maxsize=_MOST_COMPILED)
def compile_privileges(declared: DatabasePrivileges, version: int) -> CompiledPrivileges:
    """As CompiledPrivileges; returns the same instance for the same declaration, since each change compiles those of
    all roles.
    """
    return CompiledPrivileges(declared, version)


def schema_patterns(declared: DatabasePrivileges) -> tuple[frozenset[str], re.Pattern[str] | None]:
    """Returns the schemas in which a declaration may want something: exact names, and a pattern for others, if any."""
    named = {one.schema for one in declared.schemas}
    for one in declared.objects:
        named.update(_schema_names(one) if one.kind is ObjectKind.SCHEMA else (one.schema,))
    patterns = sorted(filter(is_pattern, named))
    return frozenset(named.difference(patterns)), compile_patterns(patterns) if patterns else None


def covers(declared: ObjectKind, kind: ObjectKind) -> bool:
    """Tells whether a declared kind includes this one: Table includes views and foreign tables."""
    return declared is kind or (declared is ObjectKind.TABLE and kind in TABLE_KINDS)


def count_patterns(declared: DatabasePrivileges) -> int:
    """Returns the number of patterns and exceptions that may be compared with the name of one object."""
    in_schemas = sum(len(one.exceptions) for one in declared.schemas)
    return in_schemas + sum(is_pattern(name) for one in declared.objects for name in one.names)


def given_by(access: Iterable[Access], kind: ObjectKind) -> frozenset[str]:
    """Returns what these give together on objects of this kind."""
    return frozenset[str]().union(*(ACCESS[one].get(kind, frozenset()) for one in access))


def _schema_names(one: ObjectPrivileges) -> tuple[str, ...]:
    return one.names or ((one.schema,) if one.schema else ())


def _named(part: _Part, obj: DatabaseObject) -> tuple[_Wish, ...]:
    keys: list[tuple[str, str | None]] = [(obj.name, None)]
    if part.named and obj.kind is ObjectKind.ROUTINE:
        keys.append((obj.name, normalize_arguments(obj.arguments)))
    return tuple(wish for exact, wish in part.named if not exact.isdisjoint(keys))


def _collect(part: _Part, obj: DatabaseObject) -> Wanted:
    wishes = [(wish, wish.literal) for wish in _named(part, obj)] if part.named else []
    for matcher, arguments, wish in part.patterns:
        if matcher.fullmatch(obj.name) and (
            arguments is None or arguments.fullmatch(normalize_arguments(obj.arguments))
        ):
            wishes.append((wish, False))
    given = tuple(not exceptions.include(obj) for _, exceptions in part.access)
    found = part.by_access.get(given)
    if found is None:
        some = (privileges for (privileges, _), is_given in zip(part.access, given, strict=True) if is_given)
        found = part.by_access[given] = Wanted(part.always.privileges.union(*some))
    if not wishes:
        return found
    more = _combine(wishes)
    return Wanted(found.privileges | more.privileges, more.columns, more.literal, more.literal_columns)


def _combine(wishes: Iterable[tuple[_Wish, bool]]) -> Wanted:
    privileges, literal = set[str](), set[str]()
    columns: dict[str, frozenset[str]] = {}
    literal_columns: dict[str, frozenset[str]] = {}
    for wish, exact in wishes:
        if not wish.columns:
            privileges |= wish.privileges
            literal |= wish.privileges if exact else set()
            continue
        some = frozenset(wish.columns)
        for privilege in wish.privileges:
            columns[privilege] = columns.get(privilege, frozenset()) | some
            if exact:
                literal_columns[privilege] = literal_columns.get(privilege, frozenset()) | some
    return Wanted(frozenset(privileges), columns, frozenset(literal), literal_columns)
