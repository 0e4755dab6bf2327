"""Reads who may use what: roles, memberships, and ACLs with all their entries. A login without privileges can read it.

Names are sent as bytes: they need not be UTF-8 (`rows.Row.text`).
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from difflib import get_close_matches

from pgrole_controller.core.access.access_report import EnclosingObjects, NamedObjects, named_object
from pgrole_controller.core.access.effective_access import AccessObject
from pgrole_controller.core.access.role_graph import AccessRole, GroupEdge, RoleGraph
from pgrole_controller.core.ddl import quote_identifier
from pgrole_controller.core.errors import NOT_UTF8, Reason, Refused
from pgrole_controller.core.privileges.acl import AclEntry, DatabaseObject, ObjectId, ObjectKind
from pgrole_controller.core.privileges.routine_signature import normalize_arguments
from pgrole_controller.postgres import queries
from pgrole_controller.postgres.answer_pages import fetch_pages
from pgrole_controller.postgres.connection import Connection, has_raw_names
from pgrole_controller.postgres.privileges.acl_rows import CATALOGS, kind_of, read_entries
from pgrole_controller.postgres.rows import Row, fetch, fetch_row

#: Maximum number of distinct ACLs of objects, and of columns, read in one database; of names of objects with the same
#: one; and of entries for columns.
MOST_ACLS = 20_000
MOST_NAMES = 10_000
MOST_COLUMN_ENTRIES = 500_000

_MOST_NEAR = 5
CATALOG_OIDS = {name: oid for oid, name in CATALOGS.items()}


@dataclass(frozen=True, slots=True)
class SeenDatabase:
    """A database of the server. `refusal`: why its objects cannot be read; empty if they may be. `allowed`: it accepts
    connections.
    """

    acl: AccessObject
    current: bool
    refusal: str
    template: bool
    allowed: bool


@dataclass(frozen=True, slots=True)
class AclVersion:
    """A row with an ACL. `xmin`: the transaction that wrote it, 32 bits. `changed_at`: when, if the server keeps that.
    `column`: empty for the object's own row.
    """

    column: str
    xmin: int
    changed_at: datetime | None


@dataclass(frozen=True, slots=True)
class FoundObject:
    """The requested object, with its schema and database. `versions`: of its own row, and of columns with an ACL."""

    acl: AccessObject
    around: EnclosingObjects
    versions: tuple[AclVersion, ...]


@dataclass(frozen=True, slots=True)
class ReadObjects:
    """Objects of one database by their ACLs. `cut`: there are more of them, or more entries, than are read."""

    groups: tuple[NamedObjects, ...]
    totals: Mapping[tuple[str, ObjectKind], int]
    schemas: Mapping[str, AccessObject]
    cut: bool


async def read_role_graph(connection: Connection) -> RoleGraph:
    """Reads all roles and memberships of the server. Raises PgRoleError."""
    roles = [
        AccessRole(
            row.get("oid", int),
            row.text("name"),
            superuser=row.get("superuser", bool),
            login=row.get("login", bool),
            inherit=row.get("inherit", bool),
            bypass_rls=row.get("bypass_rls", bool),
        )
        for row in await fetch_pages(connection, access_query(connection, "roles"))
    ]
    edges = [
        GroupEdge(
            row.get("member", int),
            row.get("group_role", int),
            inherit=row.get("inherit", bool),
            set_role=row.get("set_role", bool),
            admin=row.get("admin", bool),
        )
        for row in await fetch_pages(connection, access_query(connection, "memberships"))
    ]
    return RoleGraph(roles, edges)


async def read_version(connection: Connection) -> int:
    """Reads server_version_num. Raises PgRoleError."""
    row = await fetch_row(connection, "SELECT current_setting('server_version_num')::int AS version")
    return row.get("version", int)


def find_role(graph: RoleGraph, name: str) -> int:
    """Returns the oid of the role with this name. Raises Refused, with similar names, if there is none."""
    for oid, role in graph.roles.items():
        if role.name == name:
            return oid
    near = get_close_matches(name, (role.name for role in graph.roles.values()), n=_MOST_NEAR)
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    raise Refused(Reason.INVALID_SPEC, f'role "{name}" does not exist{hint}')


async def read_databases(connection: Connection) -> list[SeenDatabase]:
    """Reads the databases of the server by name. Raises PgRoleError."""
    found: dict[int, SeenDatabase] = {}
    for row in await fetch_pages(connection, access_query(connection, "databases")):
        name, owner, oid = row.text("name"), row.get("owner", int), row.get("oid", int)
        if oid in found:
            acl = found[oid].acl
            found[oid] = replace(found[oid], acl=replace(acl, entries=(*acl.entries, *read_entries(row))))
            continue
        obj = DatabaseObject(ObjectId("pg_database", oid), ObjectKind.DATABASE, "", name, owner, "")
        refusal, allowed = "", row.get("allowed", bool)
        if not allowed:
            refusal = "it accepts no connections (ALLOW_CONNECTIONS false)"
        elif not row.get("connects", bool):
            refusal = "the login lacks CONNECT on it"
        elif NOT_UTF8.search(name):
            refusal = "its name is not UTF-8"
        acl, current = AccessObject(obj, tuple(read_entries(row))), row.get("current", bool)
        found[oid] = SeenDatabase(acl, current, refusal, row.get("template", bool), allowed)
    return sorted(found.values(), key=lambda one: one.acl.object.name)


@dataclass(frozen=True, slots=True)
class ObjectName:
    """A name as users write it. `name` None: of a schema. `arguments` None: none were given."""

    schema: str
    name: str | None = None
    arguments: str | None = None

    def __str__(self) -> str:
        words = ".".join(_spell(part) for part in (self.schema, self.name) if part is not None)
        return words if self.arguments is None else f"{words}({self.arguments})"


_PLAIN = re.compile(r"[a-z_][a-z0-9_$]*")


def _spell(name: str) -> str:
    return name if _PLAIN.fullmatch(name) else quote_identifier(name)


_PART = re.compile(r'"((?:[^"]|"")+)"|([^\s".(]+)')


def read_object_name(text: str) -> ObjectName:
    """Reads SCHEMA, SCHEMA.NAME or SCHEMA.NAME(TYPES), by PostgreSQL's rules for quotes and case. Raises ValueError."""
    parts: list[str] = []
    place, arguments = 0, None
    text = text.strip()
    while place < len(text):
        found = _PART.match(text, place)
        if found is None or len(parts) == 2:
            raise _misspelt(text)
        quoted, plain = found.groups()
        parts.append(quoted.replace('""', '"') if quoted is not None else plain.lower())
        place = found.end()
        if text[place : place + 1] == "." and place + 1 < len(text):
            place += 1
        elif text[place : place + 1] == "(" and text.endswith(")") and len(parts) == 2:
            arguments, place = text[place + 1 : -1].strip(), len(text)
        elif place < len(text):
            raise _misspelt(text)
    if not parts or "\0" in text:
        raise _misspelt(text)
    return ObjectName(parts[0], parts[1] if len(parts) > 1 else None, arguments)


def _misspelt(text: str) -> ValueError:
    return ValueError(
        f'--on {text}: expected SCHEMA.NAME, SCHEMA.ROUTINE(TYPES) or SCHEMA; quote odd names: "My Schema"."a.b"'
    )


async def find_object(connection: Connection, name: ObjectName, database: AccessObject) -> FoundObject:
    """Returns the object with this name, and its ACL. Raises Refused, with similar names, unless exactly one exists."""
    place = ObjectId(*await _locate(connection, name, database.object.name))
    asked = access_query(connection, "object")
    rows = await fetch_pages(connection, asked, CATALOG_OIDS[place.catalog], place.oid)
    objects: dict[ObjectId, AccessObject] = {}
    entries: dict[ObjectId, list[AclEntry]] = {}
    versions: list[AclVersion] = []
    for row in rows:
        one, column = _access_object(row), row.text("column_name")
        objects.setdefault(one.object.id, one)
        some = entries.setdefault(one.object.id, [])
        some += (replace(entry, column=column) for entry in one.entries) if column else one.entries
        if one.object.id == place and row.get("part", int) == 0:
            versions.append(AclVersion(column, row.get("xmin", int), row.find("changed_at", datetime)))
    acls = {key: replace(one, entries=tuple(entries[key])) for key, one in objects.items()}
    if place not in acls:
        raise Refused(Reason.INVALID_SPEC, f"{name} was dropped meanwhile: run the command again")
    schema = next((one for key, one in acls.items() if key.catalog == "pg_namespace" and key != place), None)
    return FoundObject(acls[place], EnclosingObjects(database, schema), tuple(versions))


async def _locate(connection: Connection, name: ObjectName, database: str) -> tuple[str, int]:
    found = await fetch(connection, access_query(connection, "find"), name.schema, name.name)
    places = [(CATALOGS.get(row.get("catalog", int), ""), row.get("oid", int), row.text("arguments")) for row in found]
    relations = [] if name.arguments is not None else [place for place in places if place[0] != "pg_proc"]
    routines = [place for place in places if place[0] == "pg_proc"]
    if name.arguments is not None:
        wanted = normalize_arguments(name.arguments)
        fitting = [place for place in routines if wanted == normalize_arguments(place[2])]
        if not fitting and routines:
            text = f'{name} does not exist in database "{database}"; {_list(name, routines)}'
            raise Refused(Reason.INVALID_SPEC, text)
        routines = fitting
    if relations or len(routines) == 1:
        catalog, oid, _ = (relations or routines)[0]
        return catalog, oid
    if routines:
        raise Refused(Reason.INVALID_SPEC, f"{name} is the name of several routines; {_list(name, routines)}")
    raise Refused(Reason.INVALID_SPEC, await _explain_missing(connection, name, database))


def _list(name: ObjectName, routines: Sequence[tuple[str, int, str]]) -> str:
    shown = [str(replace(name, arguments=arguments)) for _, _, arguments in sorted(routines)[:_MOST_NEAR]]
    more = f" and {len(routines) - _MOST_NEAR} more" if len(routines) > _MOST_NEAR else ""
    return f"there are {', '.join(shown)}{more}"


async def _explain_missing(connection: Connection, name: ObjectName, database: str) -> str:
    rows = await fetch(connection, access_query(connection, "near"), name.schema, name.name)
    known = [ObjectName(row.text("schema"), row.text("name") or None) for row in rows]
    exists = any(one == ObjectName(name.schema) for one in known)
    what = str(name) if exists or name.name is None else f"schema {ObjectName(name.schema)}"
    what = f"schema {name}" if name.name is None else what
    if exists or name.name is None:
        wanted, near = (name.name or name.schema), [one for one in known if (one.name is None) == (name.name is None)]
    else:
        wanted, near = name.schema, [one for one in known if one.name is None or one.name.lower() == name.name.lower()]
    shown, where = _nearest(wanted, near), f'database "{database}"'
    if shown:
        return f"{what} does not exist in {where}; did you mean {' or '.join(shown)}?"
    hint = f"; write the schema before a name, as in {ObjectName('public', name.schema)}"
    return f"{what} does not exist in {where}{hint if name.name is None else ''}"


def _nearest(wanted: str, names: Sequence[ObjectName]) -> list[str]:
    """Returns the names whose last part is similar: equal except for case, contained in each other, or almost equal."""
    by_part: dict[str, list[str]] = {}
    for one in names:
        by_part.setdefault((one.name or one.schema).lower(), []).append(str(one))
    wanted = wanted.lower()
    containing = [
        part for part in by_part if len(wanted) > 1 and (wanted in part or (len(part) > 2 and part in wanted))
    ]
    parts = [wanted, *sorted(containing, key=len), *get_close_matches(wanted, list(by_part), n=_MOST_NEAR)]
    return list(dict.fromkeys(one for part in parts for one in by_part.get(part, ())))[:_MOST_NEAR]


async def read_objects(connection: Connection, roles: Collection[int], *, everything: bool) -> ReadObjects:
    """Reads the objects on which one of these roles, or every role, holds something, in the connected database.

    `everything`: include objects of PostgreSQL's users without such entries. Raises PgRoleError.
    """
    oids = sorted(roles)
    asked = access_query(connection, "objects")
    rows = await fetch_pages(connection, asked, oids, everything, MOST_NAMES, seconds=_SECONDS)
    columns, cut = await _read_columns(connection, oids)
    groups = [_group(row, columns) for row in rows[:MOST_ACLS]]
    totals: dict[tuple[str, ObjectKind], int] = {}
    for row in await fetch_pages(connection, access_query(connection, "totals")):
        key = row.text("schema"), _kind(row)
        totals[key] = totals.get(key, 0) + row.get("count", int)
    schemas = {one.acl.object.name: one.acl for one in groups if one.acl.object.kind is ObjectKind.SCHEMA}
    return ReadObjects(tuple(groups), totals, schemas, cut=cut or len(rows) > MOST_ACLS)


#: Time limit of a long query, in seconds.
_SECONDS = 60.0


async def _read_columns(connection: Connection, roles: Sequence[int]) -> tuple[dict[int, list[AclEntry]], bool]:
    """The entries of columns by relation, and whether there are more than MOST_ACLS or MOST_COLUMN_ENTRIES."""
    rows = await fetch_pages(connection, access_query(connection, "columns"), roles, seconds=_SECONDS)
    found: dict[int, list[AclEntry]] = {}
    left = MOST_COLUMN_ENTRIES
    for row in rows[:MOST_ACLS]:
        names, entries = row.text("columns").split("\0"), list(read_entries(row))
        left -= len(names) * len(entries)
        if left < 0:
            return found, True
        some = found.setdefault(row.get("relation", int), [])
        some += (replace(entry, column=name) for name in names for entry in entries)
    return found, len(rows) > MOST_ACLS


def _group(row: Row, columns: Mapping[int, Sequence[AclEntry]]) -> NamedObjects:
    """`columns`: entries of columns by relation."""
    names, oid = row.texts("names"), row.get("oid", int)
    obj = DatabaseObject(
        id=ObjectId(CATALOGS[row.get("catalog", int)], oid),
        kind=_kind(row),
        schema=row.text("schema"),
        name="",
        owner=row.get("owner", int),
        owner_name=row.text("owner_name"),
        extension=row.get("extension", bool),
    )
    if names:
        obj = named_object(obj, names[0])
    entries = (*read_entries(row), *(columns.get(oid, ()) if row.get("apart", bool) else ()))
    return NamedObjects(AccessObject(obj, entries, row.get("count", int)), names)


def _access_object(row: Row) -> AccessObject:
    kind = _kind(row)
    obj = DatabaseObject(
        id=ObjectId(CATALOGS[row.get("catalog", int)], row.get("oid", int)),
        kind=kind,
        schema=row.text("schema"),
        name=row.text("name"),
        owner=row.get("owner", int),
        owner_name=row.text("owner_name"),
        arguments=row.text("arguments"),
        extension=row.get("extension", bool),
    )
    return AccessObject(obj, tuple(read_entries(row)))


def _kind(row: Row) -> ObjectKind:
    kind = kind_of(row.get("catalog", int), row.get("kind", str))
    if kind is None:
        raise row.wrong("kind")
    return kind


def access_query(connection: Connection, name: str) -> str:
    """The text of a question in sql/access, as this database can answer it."""
    return queries.access(name, raw=has_raw_names(connection))
