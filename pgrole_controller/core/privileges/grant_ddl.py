"""SQL text of changes to privileges: GRANT, REVOKE, ALTER DEFAULT PRIVILEGES."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from pgrole_controller.core.ddl import make_sendable, render_identifier
from pgrole_controller.core.privileges.acl import (
    COLUMN_PRIVILEGES,
    DECLARABLE,
    MAINTAIN_SINCE,
    TABLE_KINDS,
    AclChange,
    DatabaseObject,
    DefaultAclChange,
    ObjectId,
    ObjectKind,
)

_T = TypeVar("_T")

#: Maximum number of objects of one statement, which keeps transactions short.
OBJECTS_PER_STATEMENT = 100
#: Maximum number of grantees of one statement.
GRANTEES_PER_STATEMENT = 100

#: Catalogs in which names of local objects that are not UTF-8 are looked up.
_CATALOGS: Mapping[str, str] = {
    "pg_namespace": "nspname",
    "pg_class": "relname",
    "pg_proc": "proname",
    "pg_type": "typname",
    "pg_attribute": "attname",
}

_KEYWORDS: Mapping[ObjectKind, str] = {
    ObjectKind.DATABASE: "DATABASE",
    ObjectKind.SCHEMA: "SCHEMA",
    **dict.fromkeys(TABLE_KINDS, "TABLE"),
    ObjectKind.SEQUENCE: "SEQUENCE",
    ObjectKind.ROUTINE: "ROUTINE",
}

#: Sequences have columns, too, which GRANT … ON SEQUENCE does not accept.
_COLUMN_PRIVILEGES: Mapping[ObjectKind, frozenset[str]] = {
    **dict.fromkeys(TABLE_KINDS, COLUMN_PRIVILEGES),
    ObjectKind.SEQUENCE: frozenset({"SELECT"}),
}

#: Keyword and privileges of the object types of pg_default_acl.
_DEFAULT_TYPES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "r": ("TABLES", DECLARABLE[ObjectKind.TABLE]),
    "S": ("SEQUENCES", DECLARABLE[ObjectKind.SEQUENCE]),
    "f": ("ROUTINES", DECLARABLE[ObjectKind.ROUTINE]),
    "n": ("SCHEMAS", DECLARABLE[ObjectKind.SCHEMA]),
}

#: Types as format_type spells them: words, quoted names, arrays, and no other SQL.
_QUOTED = r'"(?!"(?!"))[^"\x00]*+(?:""[^"\x00]*+)*+"'
_QUOTED_OR_COMMA = re.compile(rf"{_QUOTED}|, ")
_UNQUOTED = r"[A-Za-z0-9_ ,.\[\]]*+"
_TYPES = re.compile(rf"{_UNQUOTED}(?:{_QUOTED}{_UNQUOTED})*+")


@dataclass(frozen=True, slots=True)
class GrantStatement:
    """One statement without a closing semicolon, and what it is about.

    `objects`: sorted by oid; empty for default privileges. `acting_as`: the role in whose name it is run
    (`SET LOCAL ROLE`); empty: the controller's own. `privileges`, `columns`: as in AclChange.
    """

    text: str
    objects: tuple[ObjectId, ...] = ()
    acting_as: str = ""
    privileges: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Form:
    """Everything but objects and grantees: changes with the same form can share statements."""

    keyword: str
    privileges: tuple[str, ...]
    columns: tuple[str, ...]
    revoke: bool
    option_only: bool
    acting_as: str


def statements(
    changes: Iterable[AclChange],
    default_changes: Iterable[DefaultAclChange] = (),
    version: int = MAINTAIN_SINCE,
    *,
    cascade: bool = False,
) -> tuple[GrantStatement, ...]:
    """Returns the statements in order: revokes in delegates' names, revokes, grants; each for at most
    OBJECTS_PER_STATEMENT objects, and GRANTEES_PER_STATEMENT grantees whose objects are the same. `version`:
    server_version_num. `cascade`: REVOKE … CASCADE.

    Raises ValueError for a change that has no statement, e.g. for a privilege that the kind of object does not have.
    """
    return (
        *_object_statements(tuple(changes), version, cascade=cascade),
        *(_default_statement(one, version, cascade=cascade) for one in _revokes_first(default_changes)),
    )


def _revokes_first(changes: Iterable[DefaultAclChange]) -> list[DefaultAclChange]:
    return sorted(changes, key=lambda one: not one.revoke)


def _object_statements(changes: Sequence[AclChange], version: int, *, cascade: bool) -> Iterator[GrantStatement]:
    stages: dict[int, dict[tuple[_Form, str], list[DatabaseObject]]] = defaultdict(dict)
    ranks = _rank(changes)
    for change, rank in zip(changes, ranks, strict=True):
        stages[rank].setdefault((_form(change, version), change.grantee_name), []).append(change.object)
    for _, forms in sorted(stages.items()):
        for (form, objects), grantees in sorted(_shared(forms).items(), key=lambda one: one[0][1][0].id.oid):
            for some in _chunks(objects, OBJECTS_PER_STATEMENT):
                for names in _chunks(grantees, GRANTEES_PER_STATEMENT):
                    text = make_sendable(_text(form, some, names, cascade=cascade), _CATALOGS)
                    ids = tuple(obj.id for obj in some)
                    yield GrantStatement(text, ids, form.acting_as, form.privileges, form.columns)


def _shared(
    forms: Mapping[tuple[_Form, str], list[DatabaseObject]],
) -> dict[tuple[_Form, tuple[DatabaseObject, ...]], list[str]]:
    """Returns the grantees that have the same changes on the same objects, sorted by oid."""
    shared: dict[tuple[_Form, tuple[DatabaseObject, ...]], list[str]] = {}
    for (form, grantee), objects in forms.items():
        in_order = tuple(sorted(objects, key=lambda obj: obj.id.oid))
        shared.setdefault((form, in_order), []).append(grantee)
    return shared


def _chunks(values: Sequence[_T], size: int) -> Iterator[Sequence[_T]]:
    return (values[start : start + size] for start in range(0, len(values), size))


def _rank(changes: Sequence[AclChange]) -> list[int]:
    """Returns the place of each change in the order: privileges that a delegate granted are revoked before the
    delegate's own grant option, then owners' grants are revoked, and then everything else is granted.
    """
    delegated: dict[ObjectId, list[int]] = defaultdict(list)
    for index, change in enumerate(changes):
        if change.revoke and change.grantor:
            delegated[change.object.id].append(index)
    ranks: dict[int, int] = {}
    for some in delegated.values():
        ranks.update(_rank_delegated(changes, some))
    last = max(ranks.values(), default=0)
    return [ranks.get(index, last + (1 if change.revoke else 2)) for index, change in enumerate(changes)]


def _rank_delegated(changes: Sequence[AclChange], delegated: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yields the index and rank of each of these revokes on one object, in linear time: roles can grant in a long row.

    A role may have granted something to itself: that waits only for what it granted to others.
    """
    by_grantee: dict[tuple[str, bool], list[int]] = defaultdict(list)
    given: Counter[tuple[str, bool]] = Counter()  # what waits for the same, by what it waits for
    for index in delegated:
        one = changes[index]
        to_itself = one.grantor == one.grantee_name
        by_grantee[one.grantee_name, to_itself].append(index)
        given[one.grantor, False] += 1
        given[one.grantor, True] += not to_itself
    ready, rank = [key for key in by_grantee if not given[key]], 0
    while by_grantee:
        # PostgreSQL allows no circular grant options.
        some = [index for key in ready or list(by_grantee) for index in by_grantee.pop(key)]
        freed: dict[tuple[str, bool], None] = {}
        for index in some:
            yield index, rank
            one = changes[index]
            for key in ((one.grantor, False), (one.grantor, True))[: 1 if one.grantor == one.grantee_name else 2]:
                given[key] -= 1
                freed[key] = None
        ready, rank = [key for key in freed if not given[key] and key in by_grantee], rank + 1


def _form(change: AclChange, version: int) -> _Form:
    obj = change.object
    if obj.kind not in _KEYWORDS:
        raise ValueError(f"privileges on a {obj.kind.value} are not changed")
    _check_privileges(change.privileges, DECLARABLE[obj.kind], version)
    if change.columns and not _COLUMN_PRIVILEGES.get(obj.kind, frozenset()).issuperset(change.privileges):
        raise ValueError(f"{', '.join(change.privileges)} on columns of a {obj.kind.value} does not exist")
    return _Form(
        keyword="TABLE" if change.columns else _KEYWORDS[obj.kind],
        privileges=change.privileges,
        columns=change.columns,
        revoke=change.revoke,
        option_only=change.option_only,
        acting_as=change.grantor if change.revoke else "",
    )


def _check_privileges(privileges: tuple[str, ...], possible: tuple[str, ...], version: int) -> None:
    unknown = set(privileges) - set(possible)
    if version < MAINTAIN_SINCE:
        unknown |= {"MAINTAIN"} & set(privileges)
    if unknown or not privileges:
        raise ValueError(f"not a privilege of such an object: {', '.join(sorted(unknown)) or 'none'}")


def _text(form: _Form, objects: Sequence[DatabaseObject], grantees: Sequence[str], *, cascade: bool) -> str:
    columns = f" ({', '.join(map(render_identifier, form.columns))})" if form.columns else ""
    privileges = ", ".join(f"{privilege}{columns}" for privilege in form.privileges)
    target = f"{form.keyword} {', '.join(map(_name, objects))}"
    return _command(privileges, target, grantees, form.revoke, form.option_only, cascade)


def _command(
    privileges: str, target: str, grantees: Sequence[str], revoke: bool, option_only: bool, cascade: bool
) -> str:
    names = ", ".join(map(render_identifier, grantees))
    if not revoke:
        return f"GRANT {privileges} ON {target} TO {names}{' WITH GRANT OPTION' if option_only else ''}"
    what = f"GRANT OPTION FOR {privileges}" if option_only else privileges
    return f"REVOKE {what} ON {target} FROM {names}{' CASCADE' if cascade else ''}"


def _name(obj: DatabaseObject) -> str:
    if obj.kind in (ObjectKind.DATABASE, ObjectKind.SCHEMA):
        return render_identifier(obj.name)
    name = f"{render_identifier(obj.schema)}.{render_identifier(obj.name)}"
    return f"{name}({render_types(obj.arguments)})" if obj.kind is ObjectKind.ROUTINE else name


def render_types(arguments: str) -> str:
    """Renders the types of a routine's arguments, which PostgreSQL's format_type spelled with an empty search_path.

    With IN, they are those of input arguments only. Without, a procedure that has the same types as OUT arguments would
    match, too, and PostgreSQL would find the name not unique. Raises ValueError for any text that this function cannot
    have returned.
    """
    if not _TYPES.fullmatch(arguments):
        raise ValueError("a routine's argument types contain what no type's name does")
    return "IN " + _QUOTED_OR_COMMA.sub(_render_part, arguments) if arguments else ""


def _render_part(found: re.Match[str]) -> str:
    return f"{found[0]}IN " if found[0] == ", " else render_identifier(found[0][1:-1].replace('""', '"'))


def _default_statement(change: DefaultAclChange, version: int, *, cascade: bool) -> GrantStatement:
    if change.object_type not in _DEFAULT_TYPES:
        raise ValueError(f'default privileges of type "{change.object_type}" are not changed')
    keyword, possible = _DEFAULT_TYPES[change.object_type]
    _check_privileges(change.privileges, possible, version)
    schema = f" IN SCHEMA {render_identifier(change.schema)}" if change.schema else ""
    command = _command(
        ", ".join(change.privileges), keyword, (change.grantee_name,), change.revoke, change.option_only, cascade
    )
    text = f"ALTER DEFAULT PRIVILEGES FOR ROLE {render_identifier(change.creator_name)}{schema} {command}"
    return GrantStatement(make_sendable(text, _CATALOGS))
