"""Makes PgRoles of existing roles. Whatever a role is and holds, applying its object changes nothing.

A field whose value cannot be declared is listed in drift.ignore, so that the controller leaves it as it is.
"""

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from pgrole_controller.api.privileges import MOST_DATABASES, MOST_NAMES
from pgrole_controller.api.reading import Invalid, read_pgrole
from pgrole_controller.api.validation import is_object_name
from pgrole_controller.commands.export_yaml import texts_of
from pgrole_controller.core.desired import desired_role_of
from pgrole_controller.core.diff import diff, field_names
from pgrole_controller.core.errors import NOT_UTF8, Reason, Refused
from pgrole_controller.core.folding.privilege_folding import FoldedDatabase
from pgrole_controller.core.parameters import LIST_PARAMETERS, Parameters, elements, join
from pgrole_controller.core.privileges.acl import DECLARABLE, ObjectKind
from pgrole_controller.core.privileges.grantee import Access, DatabasePrivileges
from pgrole_controller.core.role import FIELD_NAMES, Membership, ObservedRole, Role, to_moment

_NAME_BYTES = 63

_RESERVED = frozenset({"public", "none"})
_PLAIN = re.compile("[a-z_][a-z0-9_]*")
_API = {"apiVersion": "pgrole.dev/v1alpha1", "kind": "PgRole"}

#: Attributes that always have a value, with their defaults, by their names in Role.
_ATTRIBUTES = {one.name: one.default for one in fields(Role) if isinstance(one.default, bool | int)}


@dataclass(frozen=True, slots=True)
class ExportedObject:
    """A PgRole in the form of YAML. `notes` for people: what it does not declare, and what would refuse it."""

    role_name: str
    document: dict[str, Any]
    notes: tuple[str, ...]
    groups: tuple[str, ...]

    @property
    def name(self) -> str:
        """metadata.name: a DNS subdomain."""
        name: str = self.document["metadata"]["name"]
        return name


def name_objects(role_names: Iterable[str]) -> dict[str, str]:
    """Returns a metadata.name for each role. Pass every role of the server, so that names do not depend on the
    selection.

    Uses a role's own name where Kubernetes accepts it; otherwise a name derived from it, with a digest where two would
    be equal: a whole one, which makes a name longer than any role's, where even a short one is another role's name.
    """
    names = list(role_names)
    found = {name: name for name in names if is_object_name(name) and name not in _RESERVED}
    made: dict[str, list[str]] = {}
    for name in names:
        if name not in found:
            made.setdefault(_to_dns(name), []).append(name)
    taken = found.keys() | made.keys()
    for wished, some in sorted(made.items()):
        for name in some:
            alone = len(some) == 1 and wished not in found
            digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()
            short = f"{wished}-{digest[:8]}"
            found[name] = wished if alone else f"{wished}-{digest}" if short in taken else short
    return found


def _to_dns(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:_NAME_BYTES].strip("-") or "role"


def make_object(
    found: ObservedRole, name: str, *, namespace: str | None = None, server: str | None = None
) -> ExportedObject:
    """The PgRole of a role that exists, without privileges. Raises Refused if its name cannot be declared."""
    role = found.role
    spec: dict[str, Any] = {}
    if server is not None:
        spec["serverRef"] = {"name": server}
    if name != role.name:
        spec["name"] = role.name
    metadata = {"name": name} if namespace is None else {"name": name, "namespace": namespace}
    document = {**_API, "metadata": metadata, "spec": spec}
    for field, default in _ATTRIBUTES.items():
        if getattr(role, field) != default:
            spec[FIELD_NAMES[field]] = getattr(role, field)
    try:
        read_pgrole(document)
    except Invalid as error:
        raise Refused(Reason.INVALID_SPEC, f'role "{role.name}": {error}') from error
    for field, value in _values(role):
        document["spec"] = {**spec, field: value}
        if _is_valid(document):
            spec[field] = value
    ignored = _find_ignored({**document, "spec": spec}, role)
    notes = [f"{field} cannot be declared exactly, and is left as it is (drift.ignore)" for field in ignored]
    if ignored:
        spec["drift"] = {"ignore": list(ignored)}
    spec["adopt"] = True
    return ExportedObject(
        role.name, {**document, "spec": spec}, tuple(notes), tuple(held.role for held in role.member_of)
    )


def _is_valid(document: dict[str, Any]) -> bool:
    if any(NOT_UTF8.search(text) for text in texts_of(document)):
        return False
    try:
        desired_role_of(read_pgrole(document))
    except (Invalid, Refused):
        return False
    return True


def _values(role: Role) -> Iterable[tuple[str, Any]]:
    """Yields the fields that may hold something no PgRole can declare, each with its value in spec."""
    moment = _moment(role.valid_until)
    if moment is not None:
        yield "validUntil", moment
    if role.comment is not None:
        yield "comment", role.comment
    if role.member_of:
        yield "memberOf", [_membership(held) for held in role.member_of]
    if role.parameters:
        yield "parameters", _parameters(role.parameters)
    if role.database_parameters:
        some = role.database_parameters
        yield "databaseParameters", [{"database": name, "parameters": _parameters(held)} for name, held in some]


def _moment(microseconds: int | None) -> str | None:
    """None also for a time beyond the years 1 to 9999: it stays undeclared, and validUntil is ignored."""
    if microseconds is None:
        return None
    try:
        return to_moment(microseconds).isoformat().replace("+00:00", "Z")
    except OverflowError:
        return None


def _parameters(parameters: Parameters) -> dict[str, str]:
    """Returns settings as people write them: lists without quotes around plain names."""
    return {name: _simplify(value) if name in LIST_PARAMETERS else value for name, value in parameters}


def _simplify(value: str) -> str:
    try:
        names = elements(value)
    except ValueError:  # what is stored is no list; no object can declare it
        return value
    return ", ".join(name if _PLAIN.fullmatch(name) else join([name]) for name in names)


def _membership(held: Membership) -> dict[str, Any]:
    options = {"admin": (held.admin, False), "inherit": (held.inherit, True), "set": (held.set, True)}
    return {"role": held.role} | {name: value for name, (value, default) in options.items() if value != default}


def _find_ignored(document: dict[str, Any], role: Role) -> tuple[str, ...]:
    """Names of the fields in which the object differs from the role, except its password."""
    return field_names(diff(desired_role_of(read_pgrole(document)), replace(role, password=None)))


def add_privileges(made: ExportedObject, privileges: Sequence[FoldedDatabase]) -> ExportedObject:
    """Declares what the role holds, and notes the databases that do not fit in one object."""
    declared: list[DatabasePrivileges] = []
    notes: list[str] = []
    left = MOST_NAMES
    for one in privileges:
        if one.declared is None:
            continue
        size = count_names(one.declared)
        if len(declared) == MOST_DATABASES or size > left:
            notes.append(
                f"database {one.declared.database}: left out: an object declares at most {MOST_DATABASES} databases "
                f"and {MOST_NAMES} names"
            )
            continue
        declared.append(one.declared)
        left -= size
    spec = dict(made.document["spec"])
    if declared:
        after = {field: spec.pop(field) for field in ("drift", "adopt") if field in spec}
        spec |= {"privileges": [privileges_to_spec(one) for one in declared], **after}
    return replace(made, document={**made.document, "spec": spec}, notes=(*notes, *made.notes))


def count_names(declared: DatabasePrivileges) -> int:
    """Counts names and patterns as the API does."""
    in_schemas = sum(1 + len(one.exceptions) for one in declared.schemas)
    in_objects = sum(1 + len(one.names) + len(one.columns) for one in declared.objects)
    return 1 + in_schemas + in_objects + len(declared.created_by) + len(declared.unmanaged)


def privileges_to_spec(declared: DatabasePrivileges) -> dict[str, Any]:
    """One item of spec.privileges."""
    item: dict[str, Any] = {"database": declared.database}
    if declared.on_database:
        item["onDatabase"] = _sort_privileges(ObjectKind.DATABASE, declared.on_database)
    if declared.schemas:
        item["schemas"] = [
            {"name": one.schema, "access": [access.value for access in Access if access in one.access]}
            | ({"except": list(one.exceptions)} if one.exceptions else {})
            for one in declared.schemas
        ]
    if declared.objects:
        item["objects"] = [
            {"kind": one.kind.value, "schema": one.schema, "names": list(one.names)}
            | ({"columns": list(one.columns)} if one.columns else {})
            | {"privileges": _sort_privileges(one.kind, one.privileges)}
            for one in declared.objects
        ]
    for field, names in (("createdBy", declared.created_by), ("unmanaged", declared.unmanaged)):
        if names:
            item[field] = list(names)
    return item


def _sort_privileges(kind: ObjectKind, privileges: Iterable[str]) -> list[str]:
    some = set(privileges)
    return [one for one in DECLARABLE[kind] if one in some]


def sort_groups_first(objects: Sequence[ExportedObject]) -> list[ExportedObject]:
    """Sorts in the order in which PostgreSQL could create them: every role after the roles it is a member of."""
    by_role = {one.role_name: one for one in objects}
    done: dict[str, ExportedObject] = {}
    waiting = [one.role_name for one in sorted(objects, key=lambda one: one.role_name, reverse=True)]
    opened = set[str]()
    while waiting:
        name = waiting[-1]
        if name in done:
            waiting.pop()
            continue
        before = [group for group in by_role[name].groups if group in by_role and group not in done]
        if name in opened or not before:  # opened twice: a cycle, which PostgreSQL allows no one to make
            done[name] = by_role[waiting.pop()]
            continue
        opened.add(name)
        waiting += sorted(before, reverse=True)
    return list(done.values())
