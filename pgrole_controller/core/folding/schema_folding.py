"""Folds what one role holds on the objects of one schema into a short declaration.

Access and patterns extend to objects that are created later. So they are used only if they fit every existing object of
their kinds, apart from a few exceptions, and at least two of them; or if default privileges already mean the same.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pgrole_controller.core.errors import NOT_UTF8
from pgrole_controller.core.names import is_pattern, matches
from pgrole_controller.core.privileges.acl import SYSTEM_SCHEMAS, TABLE_KINDS, DatabaseObject, ObjectKind
from pgrole_controller.core.privileges.default_acl_decision import DEFAULT_KINDS
from pgrole_controller.core.privileges.grantee import Access, ObjectPrivileges, SchemaAccess
from pgrole_controller.core.privileges.object_patterns import covers, given_by
from pgrole_controller.core.privileges.routine_signature import split_signature

#: Limits of one item, as in api/privileges.py.
MOST_EXCEPTIONS = 64
MOST_NAMES_OF_ITEM = 128
_LONGEST_NAME = 63
_LONGEST_ROUTINE = 256

#: Minimum number of objects to which an access or a pattern must grant something.
_LEAST = 2

_EVERYTHING = ("*",)
_SERIAL = "*_seq"

#: Every distinct access: Write includes Read.
ACCESSES: tuple[frozenset[Access], ...] = (
    frozenset({Access.READ}),
    frozenset({Access.WRITE}),
    frozenset({Access.EXECUTE}),
    frozenset({Access.READ, Access.EXECUTE}),
    frozenset({Access.WRITE, Access.EXECUTE}),
)


@dataclass(frozen=True, slots=True)
class HeldPrivileges:
    """What one role holds on an object. `columns`: by privilege. `grantable`: some of it with grant option."""

    privileges: frozenset[str] = frozenset()
    columns: tuple[tuple[str, frozenset[str]], ...] = ()
    grantable: bool = False


HOLDS_NOTHING = HeldPrivileges()


@dataclass(frozen=True, slots=True)
class HeldGroup:
    """Objects of one kind on which the role holds the same."""

    kind: ObjectKind
    objects: Sequence[DatabaseObject]
    held: HeldPrivileges


@dataclass(frozen=True, slots=True)
class HeldSchema:
    """A schema and what one role holds in it.

    - `on_schema`: on the schema itself; None: the role owns the schema, so nothing on it is decided.
    - `groups`: every object that access and patterns match, except those that the role owns.
    - `literal`: objects that only exact names match, and on which the role holds something.
    - `overloads`: number of routines with each name, whoever owns them.
    - `defaults`: access that equals the default privileges of some creator there.
    """

    name: str
    on_schema: HeldPrivileges | None
    groups: Sequence[HeldGroup]
    literal: Sequence[HeldGroup]
    overloads: Counter[str]
    defaults: frozenset[frozenset[Access]]


@dataclass(frozen=True, slots=True)
class FoldedSchema:
    """A declaration for one schema. `problem`: why the rest must stay unmanaged; empty if it need not. `exact`: no
    pattern may stand for anything in it.
    """

    access: SchemaAccess | None = None
    objects: tuple[ObjectPrivileges, ...] = ()
    problem: str = ""
    exact: bool = False

    @property
    def size(self) -> int:
        """Number of names and patterns that it lists."""
        access = 0 if self.access is None else 1 + len(self.access.exceptions)
        return access + sum(1 + len(one.names) + len(one.columns) for one in self.objects)

    @property
    def words(self) -> int:
        """Number of privileges that its items spell out."""
        return sum(len(one.privileges) for one in self.objects)


def fold_schema(schema: HeldSchema, *, exact: bool = False) -> FoldedSchema:
    """Folds one schema. `exact`: list objects by name, so that the declaration does not extend to later ones."""
    if schema.name in SYSTEM_SCHEMAS:
        return FoldedSchema(problem="privileges in schemas of PostgreSQL and of the controller cannot be declared")
    if not _is_declarable(schema.name) or is_pattern(schema.name):
        return FoldedSchema(problem="its name cannot be declared")
    problem = _find_problem(schema)
    if exact:  # without arguments, a routine's name means every overload, later ones as well
        schema = replace(schema, overloads=Counter())
    by_name = _fold_by_name(schema)
    ways: list[FoldedSchema | None] = [by_name] if exact else [_fold_with(schema, None), by_name]
    if not exact and (schema.on_schema is None or "USAGE" in schema.on_schema.privileges):
        found = ((access, _fold_with(schema, access)) for access in ACCESSES)
        some = [(access, way) for access, way in found if way is not None]
        backed = [way for access, way in some if access in schema.defaults and not _exceptions(way)]
        ways = [*backed] or [*(way for _, way in some), *ways]
    unlisted = [one for one in schema.groups if one.held.privileges and not _can_list(schema, one)]
    best = min((one for one in ways if one is not None), key=lambda one: (_omits(one, unlisted), one.size, one.words))
    left = any(one.held.privileges and not _can_list(schema, one) for one in schema.literal)
    if not problem and (left or _omits(best, unlisted)):
        problem = "an object's name cannot be listed: it contains * or ?, is too long or is not UTF-8"
    return FoldedSchema(best.access, best.objects, problem, exact)


def _can_list(schema: HeldSchema, group: HeldGroup) -> bool:
    return all(_names_of(schema, group.kind, [one]) for one in group.objects)


def _omits(way: FoldedSchema, unlisted: Iterable[HeldGroup]) -> bool:
    """Whether no pattern stands for something that the role holds on objects of these groups."""
    access = way.access.access if way.access is not None and way.access.exceptions != _EVERYTHING else ()
    patterns = [one for one in way.objects if one.names == _EVERYTHING]
    for group in unlisted:
        given = (one.privileges for one in patterns if covers(one.kind, group.kind))
        if group.held.privileges.difference(given_by(access, group.kind), *given):
            return True
    return False


def _exceptions(way: FoldedSchema) -> tuple[str, ...]:
    return () if way.access is None else way.access.exceptions


def without_access(folded: FoldedSchema) -> FoldedSchema:
    """Returns the same declaration with patterns of objects, which do not imply default privileges."""
    if folded.access is None or folded.access.exceptions:
        return folded
    objects = list(folded.objects)
    for kind in (ObjectKind.TABLE, ObjectKind.SEQUENCE, ObjectKind.ROUTINE):
        given = given_by(folded.access.access, kind)
        if given:
            objects.append(ObjectPrivileges(kind, folded.access.schema, _EVERYTHING, given))
    return FoldedSchema(usage_only(folded.access.schema), tuple(objects), folded.problem)


def usage_only(schema: str) -> SchemaAccess:
    """Returns USAGE on the schema, and nothing on its objects."""
    return SchemaAccess(schema, frozenset({Access.READ}), _EVERYTHING)


def _find_problem(schema: HeldSchema) -> str:
    """Returns why what the role holds here cannot be declared exactly; empty if it can."""
    on_schema = schema.on_schema or HOLDS_NOTHING
    if "CREATE" in on_schema.privileges:
        return "CREATE on a schema cannot be declared"
    if on_schema.grantable:
        return "grant options cannot be declared"
    for group in (*schema.groups, *schema.literal):
        if group.held == HOLDS_NOTHING:
            continue
        if group.held.grantable:
            return "grant options cannot be declared"
        if group.held.columns and group.kind not in TABLE_KINDS:
            return "privileges on columns of a sequence cannot be declared"
        names = [one.name for one in group.objects] if group.held.columns else []
        names += [column for _, columns in group.held.columns for column in columns]
        if any(is_pattern(name) or not _is_declarable(name) for name in names):
            return "a column's privileges cannot be declared: its name or its table's contains * or ?, or is not UTF-8"
    return ""


def _fold_by_name(schema: HeldSchema) -> FoldedSchema:
    items = _name_objects(schema, [(group, group.held.privileges) for group in schema.groups])
    return FoldedSchema(_usage(schema), (*items, *_name_columns(schema), *_name_literal(schema)))


def _usage(schema: HeldSchema) -> SchemaAccess | None:
    held = schema.on_schema is not None and "USAGE" in schema.on_schema.privileges
    return usage_only(schema.name) if held else None


def _fold_with(schema: HeldSchema, access: frozenset[Access] | None) -> FoldedSchema | None:
    """Folds with this access; None if it grants too little or needs too many exceptions. `access` None: USAGE only, if
    held.
    """
    rest: list[tuple[HeldGroup, frozenset[str]]] = []
    if access is None:
        declared = _usage(schema)
        rest = [(group, group.held.privileges) for group in schema.groups]
    else:
        excepted = _find_exceptions(schema.groups, access)
        if not _fits(schema, access, excepted):
            return None
        declared = SchemaAccess(schema.name, access, _shorten(schema, access, excepted))
        for group in schema.groups:
            given = given_by(access, group.kind)
            inside = [one for one in group.objects if one.name not in excepted] if given and excepted else group.objects
            outside = [one for one in group.objects if one.name in excepted] if given and excepted else []
            rest.append((HeldGroup(group.kind, inside, group.held), group.held.privileges - given))
            rest.append((HeldGroup(group.kind, outside, group.held), group.held.privileges))
    patterns: list[ObjectPrivileges] = []
    for kind in (ObjectKind.TABLE, *_NARROW, ObjectKind.SEQUENCE, ObjectKind.ROUTINE):
        rest = _fold_pattern(schema.name, kind, rest, patterns)
    items = (*patterns, *_name_objects(schema, rest), *_name_columns(schema), *_name_literal(schema))
    return FoldedSchema(declared, items)


#: Kinds of relations that a declaration can name apart from tables.
_NARROW = (ObjectKind.VIEW, ObjectKind.MATERIALIZED_VIEW, ObjectKind.FOREIGN_TABLE)


def _find_exceptions(groups: Iterable[HeldGroup], access: frozenset[Access]) -> frozenset[str]:
    """Names of objects on which the role lacks some of what the access gives."""
    return frozenset(
        one.name
        for group in groups
        if not given_by(access, group.kind) <= group.held.privileges
        for one in group.objects
    )


def _fits(schema: HeldSchema, access: frozenset[Access], excepted: frozenset[str]) -> bool:
    """Tells whether each access grants something on enough objects, and the exceptions are few and declarable."""
    if not all(_is_declarable(name) and not is_pattern(name) and split_signature(name)[1] is None for name in excepted):
        return False
    if len(_shorten(schema, access, excepted)) > MOST_EXCEPTIONS:
        return False
    if access in schema.defaults and not excepted:
        return True
    for one in access:
        count = sum(
            obj.name not in excepted for group in schema.groups if given_by([one], group.kind) for obj in group.objects
        )
        if count < max(_LEAST, len(excepted)):
            return False
    return True


def _shorten(schema: HeldSchema, access: frozenset[Access], excepted: frozenset[str]) -> tuple[str, ...]:
    """Returns the exceptions, with one pattern for the sequences of serial columns unless it would match other
    objects.
    """
    names = {name for name in excepted if matches(name, (_SERIAL,))}
    if len(names) >= _LEAST:
        given = (one.name for group in schema.groups if given_by(access, group.kind) for one in group.objects)
        if not any(matches(name, (_SERIAL,)) for name in given if name not in excepted):
            return tuple(sorted({_SERIAL} | (excepted - names)))
    return tuple(sorted(excepted))


def _fold_pattern(
    schema: str,
    kind: ObjectKind,
    rest: list[tuple[HeldGroup, frozenset[str]]],
    patterns: list[ObjectPrivileges],
) -> list[tuple[HeldGroup, frozenset[str]]]:
    """Adds a pattern for what the role holds on every object of the kind, and returns the rest."""
    some = [(group, left) for group, left in rest if covers(kind, group.kind) and group.objects]
    if sum(len(group.objects) for group, _ in some) < _LEAST:
        return rest
    common = frozenset.intersection(*(left for _, left in some))
    if not common:
        return rest
    patterns.append(ObjectPrivileges(kind, schema, _EVERYTHING, common))
    return [(group, left - common if covers(kind, group.kind) else left) for group, left in rest]


def _name_objects(schema: HeldSchema, rest: Iterable[tuple[HeldGroup, frozenset[str]]]) -> Iterator[ObjectPrivileges]:
    """Lists objects by name: those of the same kind with the same privileges share an item."""
    some: dict[tuple[ObjectKind, tuple[str, ...]], list[DatabaseObject]] = {}
    for group, left in rest:
        if left and group.objects:
            some.setdefault((group.kind.widest, tuple(sorted(left))), []).extend(group.objects)
    for (kind, privileges), objects in sorted(some.items()):
        names = _names_of(schema, kind, objects)
        for start in range(0, len(names), MOST_NAMES_OF_ITEM):
            part = tuple(names[start : start + MOST_NAMES_OF_ITEM])
            yield ObjectPrivileges(kind, schema.name, part, frozenset(privileges))


def _names_of(schema: HeldSchema, kind: ObjectKind, objects: Sequence[DatabaseObject]) -> list[str]:
    if kind is not ObjectKind.ROUTINE:
        return sorted({one.name for one in objects if _is_declarable(one.name) and not is_pattern(one.name)})
    # Without arguments, a name means every overload.
    counts = Counter(one.name for one in objects)
    names = set[str]()
    for one in objects:
        whole = counts[one.name] == schema.overloads[one.name] and not one.name.endswith(")")
        names.add(one.name if whole else f"{one.name}({one.arguments})")
    return sorted(name for name in names if _is_declarable(name, _LONGEST_ROUTINE) and not is_pattern(name))


def _name_columns(schema: HeldSchema) -> Iterator[ObjectPrivileges]:
    """Tables whose columns have the same privileges share an item."""
    some: dict[tuple[tuple[str, ...], tuple[str, ...]], list[DatabaseObject]] = {}
    for group in schema.groups:
        for key in _by_columns(group.held.columns):
            some.setdefault(key, []).extend(group.objects)
    for (columns, privileges), objects in sorted(some.items()):
        yield from _column_items(schema, objects, columns, privileges)


def _by_columns(columns: Sequence[tuple[str, frozenset[str]]]) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Yields (columns, privileges)."""
    privileges: dict[tuple[str, ...], list[str]] = {}
    for privilege, some in columns:
        privileges.setdefault(tuple(sorted(some)), []).append(privilege)
    for names, held in privileges.items():
        yield names, tuple(sorted(held))


def _column_items(
    schema: HeldSchema, objects: Sequence[DatabaseObject], columns: tuple[str, ...], privileges: tuple[str, ...]
) -> Iterator[ObjectPrivileges]:
    if not all(_is_declarable(column) and not is_pattern(column) for column in columns):
        return
    tables = [one for one in objects if one.kind in TABLE_KINDS]
    names = _names_of(schema, ObjectKind.TABLE, tables)
    for start in range(0, len(names), MOST_NAMES_OF_ITEM):
        some = tuple(names[start : start + MOST_NAMES_OF_ITEM])
        for first in range(0, len(columns), MOST_NAMES_OF_ITEM):
            part = columns[first : first + MOST_NAMES_OF_ITEM]
            yield ObjectPrivileges(ObjectKind.TABLE, schema.name, some, frozenset(privileges), part)


def _name_literal(schema: HeldSchema) -> Iterator[ObjectPrivileges]:
    held = [group for group in schema.literal if group.held != HOLDS_NOTHING]
    yield from _name_objects(schema, [(group, group.held.privileges) for group in held])
    for group in held:
        for columns, privileges in _by_columns(group.held.columns):
            yield from _column_items(schema, group.objects, columns, privileges)


def _is_declarable(name: str, longest: int = _LONGEST_NAME) -> bool:
    return not NOT_UTF8.search(name) and 1 <= len(name.encode()) <= longest


def access_of(defaults: Mapping[str, frozenset[str]]) -> frozenset[frozenset[Access]]:
    """Returns the access that equals these default privileges, given by type of object as in pg_default_acl."""
    held = {DEFAULT_KINDS[one]: some for one, some in defaults.items() if one in DEFAULT_KINDS and some}
    return frozenset(
        access
        for access in ACCESSES
        if held == {kind: given for kind in DEFAULT_KINDS.values() if (given := given_by(access, kind))}
    )
