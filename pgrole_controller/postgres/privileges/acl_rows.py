"""Rows about ACLs: groups of objects with the same owner and ACL, and the entries of an ACL in parallel arrays."""

import struct
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from pgrole_controller.core.errors import Reason, Transient
from pgrole_controller.core.privileges.acl import (
    TEMPORARY_SCHEMAS,
    AclEntry,
    DatabaseObject,
    ObjectId,
    ObjectKind,
    ObservedAcl,
)
from pgrole_controller.postgres.rows import Row

T = TypeVar("T")

#: Whether a declaration may match objects of this kind in the schema with this name. It is asked for TABLE, which
#: stands for every kind of relation and for sequences, and for ROUTINE.
SchemaFilter: TypeAlias = Callable[[str, ObjectKind], bool]

#: PostgreSQL's fixed oids of the catalogs whose rows have an ACL.
CATALOGS = {
    1259: "pg_class",
    1255: "pg_proc",
    2615: "pg_namespace",
    1262: "pg_database",
    1247: "pg_type",
    2612: "pg_language",
    2328: "pg_foreign_data_wrapper",
    1417: "pg_foreign_server",
    2613: "pg_largeobject",
}

_RELATION_KINDS = {
    "r": ObjectKind.TABLE,
    "p": ObjectKind.TABLE,
    "v": ObjectKind.VIEW,
    "m": ObjectKind.MATERIALIZED_VIEW,
    "f": ObjectKind.FOREIGN_TABLE,
    "S": ObjectKind.SEQUENCE,
}

_KINDS = {
    "pg_proc": ObjectKind.ROUTINE,
    "pg_namespace": ObjectKind.SCHEMA,
    "pg_database": ObjectKind.DATABASE,
    "pg_type": ObjectKind.TYPE,
    "pg_language": ObjectKind.LANGUAGE,
    "pg_foreign_data_wrapper": ObjectKind.FOREIGN_DATA_WRAPPER,
    "pg_foreign_server": ObjectKind.FOREIGN_SERVER,
    "pg_largeobject": ObjectKind.LARGE_OBJECT,
}


LAST_OID = 0xFFFF_FFFF

#: An object of an extension: the oids of its catalog and its own.
MEMBER = struct.Struct("!II")


class TooManyObjects(Transient):
    """Objects with one owner and ACL do not fit in a row. Only a complete read has portions."""

    def __init__(self) -> None:
        super().__init__(Reason.DATABASE_ERROR, "too many objects with the same privileges changed at once")


def named_objects(
    grantees: Collection[int],
    oids: Collection[int],
    *,
    tables: Collection[int] = (),
    names: Collection[str] = (),
    since: str | None = None,
    columns: bool = False,
) -> tuple[object, ...]:
    """Returns the arguments of sql/privileges/objects.sql about the objects of sources/named_objects.sql."""
    return (list(grantees), None, None, sorted(tables), sorted(oids), sorted(names), since, columns)


@dataclass(frozen=True, slots=True)
class AclGroup:
    """Objects with the same owner and ACL. `oids`, `names` and `versions` have the same length."""

    row: Row
    catalog: str
    oids: tuple[int, ...]
    names: tuple[str, ...]
    versions: tuple[int, ...]


def is_touched(group: AclGroup, touched: SchemaFilter) -> bool:
    """Whether a declaration may match these objects, or a grantee that does not own them holds something on them."""
    row = group.row
    if group.catalog not in ("pg_class", "pg_proc") or row.get("apart", bool) or row.get("held", bool):
        return True
    schema = row.find_text("schema") or ""
    kind = ObjectKind.ROUTINE if group.catalog == "pg_proc" else ObjectKind.TABLE
    return not schema.startswith(TEMPORARY_SCHEMAS) and touched(schema, kind)


def kind_of(catalog: int, kind: str) -> ObjectKind | None:
    """Returns the kind of an object; None for a kind without an ACL. `catalog`: oid. `kind`: relkind, for relations."""
    name = CATALOGS.get(catalog)
    if name is None:
        return None
    return _RELATION_KINDS.get(kind) if name == "pg_class" else _KINDS[name]


def read_group(row: Row) -> AclGroup:
    """Raises TooManyObjects; another PgRoleError for a row that cannot be read."""
    catalog = CATALOGS.get(row.get("catalog", int))
    if catalog is None:
        raise row.wrong("catalog")
    if row.find("oids", bytes) is None:
        raise TooManyObjects
    oids, versions = numbers(row, "oids"), numbers(row, "versions")
    names = row.text("names").split("\0")
    if not len(oids) == len(versions) == len(names):
        raise row.wrong("names")
    return AclGroup(row, catalog, oids, tuple(names), versions)


def observed_acls(
    group: AclGroup,
    signatures: Mapping[int, str],
    members: Collection[ObjectId],
    entries: tuple[AclEntry, ...] | None = None,
) -> Iterator[ObservedAcl]:
    """`members`: objects of extensions, where the row does not say. `entries`: instead of the row's."""
    row, catalog = group.row, group.catalog
    kind = _RELATION_KINDS.get(row.get("kind", str)) if catalog == "pg_class" else _KINDS[catalog]
    if kind is None:
        raise row.wrong("kind")
    schema, owner, owner_name = row.find_text("schema") or "", row.get("owner", int), row.text("owner_name")
    elevated, seen = row.get("elevated", bool), row.get("seen", str)
    if entries is None:
        entries = tuple(read_entries(row))
    extension = row.find("extension", bool)
    for oid, name, version in zip(group.oids, group.names, group.versions, strict=True):
        identity = ObjectId(catalog, oid)
        if kind is ObjectKind.ROUTINE and oid not in signatures:
            continue  # dropped meanwhile
        found = DatabaseObject(
            id=identity,
            kind=kind,
            schema=schema,
            name=name,
            owner=owner,
            owner_name=owner_name,
            arguments=signatures.get(oid, "") if kind is ObjectKind.ROUTINE else "",
            extension=identity in members if extension is None else extension,
            elevated=elevated,
        )
        yield ObservedAcl(found, entries, seen, version)


def read_entries(row: Row) -> Iterator[AclEntry]:
    grantees, grantors = row.some("grantees", int), row.some("grantors", int)
    names, privileges = row.texts("grantor_names"), row.some("privileges", str)
    grantable = row.some("grantable", bool)
    if any(len(part) != len(grantees) for part in (grantors, names, privileges, grantable)):
        raise row.wrong("grantees")
    return map(AclEntry, grantees, grantors, names, privileges, grantable)


def numbers(row: Row, column: str) -> tuple[int, ...]:
    """Oids or transaction ids, of 4 bytes each after a first byte; none for NULL. Without that byte, those that begin
    with a small one, which a tenant can choose for large objects, would look like an array (framing.check_row).
    """
    value = row.find(column, bytes)
    if value is None:
        return ()
    if len(value) % 4 != 1:
        raise row.wrong(column)
    return struct.unpack_from(f"!{len(value) // 4}I", value, 1)


def pair(row: Row, names: Sequence[str], values: Sequence[T], column: str) -> Iterator[tuple[str, T]]:
    if len(names) != len(values):
        raise row.wrong(column)
    return zip(names, values, strict=True)
