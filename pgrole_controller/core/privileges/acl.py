"""Privileges in one database as PostgreSQL stores them: objects, the entries of their ACLs, and changes to these."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from pgrole_controller.core.names import spell_name


class ObjectKind(StrEnum):
    """A kind of object that has an ACL."""

    DATABASE = "Database"
    SCHEMA = "Schema"
    TABLE = "Table"
    VIEW = "View"
    MATERIALIZED_VIEW = "MaterializedView"
    FOREIGN_TABLE = "ForeignTable"
    SEQUENCE = "Sequence"
    ROUTINE = "Routine"
    TYPE = "Type"
    LANGUAGE = "Language"
    FOREIGN_DATA_WRAPPER = "ForeignDataWrapper"
    FOREIGN_SERVER = "ForeignServer"
    LARGE_OBJECT = "LargeObject"

    @property
    def words(self) -> str:
        """For people: `materialized view`."""
        return _WORDS[self]

    @property
    def widest(self) -> "ObjectKind":
        """The kind that GRANT uses: TABLE for all TABLE_KINDS, each other one for itself."""
        return ObjectKind.TABLE if self in TABLE_KINDS else self


_WORDS = {kind: re.sub(r"\B(?=[A-Z])", " ", kind.value).lower() for kind in ObjectKind}


#: The grantee of entries for every role (PUBLIC).
PUBLIC = 0

#: Kinds that GRANT … ON TABLE covers. A declaration of kind Table includes the others.
TABLE_KINDS = frozenset({ObjectKind.TABLE, ObjectKind.VIEW, ObjectKind.MATERIALIZED_VIEW, ObjectKind.FOREIGN_TABLE})

_TABLE_PRIVILEGES = ("SELECT", "INSERT", "UPDATE", "DELETE", "TRUNCATE", "REFERENCES", "TRIGGER", "MAINTAIN")

#: server_version_num of the first version with MAINTAIN.
MAINTAIN_SINCE = 170000

#: Privileges of each kind that a PgRole can declare.
DECLARABLE: dict[ObjectKind, tuple[str, ...]] = {
    ObjectKind.DATABASE: ("CONNECT", "TEMPORARY", "CREATE"),
    ObjectKind.SCHEMA: ("USAGE", "CREATE"),
    **dict.fromkeys(TABLE_KINDS, _TABLE_PRIVILEGES),
    ObjectKind.SEQUENCE: ("USAGE", "SELECT", "UPDATE"),
    ObjectKind.ROUTINE: ("EXECUTE",),
}

#: Kinds that no declaration can name.
UNDECLARABLE = frozenset(ObjectKind) - DECLARABLE.keys()

#: Privileges that exist on columns too.
COLUMN_PRIVILEGES = frozenset({"SELECT", "INSERT", "UPDATE", "REFERENCES"})

#: FirstNormalObjectId: PostgreSQL's own objects and roles, and the bootstrap superuser, have lower oids.
FIRST_NORMAL_OID = 16384

#: The schema that comes with every database as `public`, also after it was renamed.
PUBLIC_SCHEMA_OID = 2200

#: Schemas that PostgreSQL was initialized with, except public. Of their objects, only those of extensions are managed.
POSTGRESQL_SCHEMAS = frozenset({"pg_catalog", "information_schema"})

#: The schema of the controller's own objects. No rule opens it.
OWN_SCHEMA = "pgrole"

#: Schemas whose objects are never matched by a pattern.
SYSTEM_SCHEMAS = POSTGRESQL_SCHEMAS | {OWN_SCHEMA}

#: Prefixes of schemas that belong to sessions, or to PostgreSQL's storage.
TEMPORARY_SCHEMAS = ("pg_temp_", "pg_toast")


class ObjectId(NamedTuple):
    """Identifies an object of one database. `catalog` is e.g. pg_class, without its schema."""

    catalog: str
    oid: int


@dataclass(frozen=True, slots=True)
class DatabaseObject:
    """An object of one database.

    `schema` is empty for objects without one; for a schema it is its own name. `arguments`: the types of a routine's
    input arguments as `pg_get_function_identity_arguments` spells them without names, e.g. `bigint, text`.
    `extension`: it belongs to an extension. `elevated`: a routine that can do more than its caller: it is SECURITY
    DEFINER, or in a language that is not trusted, such as C.
    """

    id: ObjectId
    kind: ObjectKind
    schema: str
    name: str
    owner: int
    owner_name: str
    arguments: str = ""
    extension: bool = False
    elevated: bool = False

    @property
    def label(self) -> str:
        """For people: `table app.orders`."""
        parts = (self.name,) if self.kind is ObjectKind.SCHEMA or not self.schema else (self.schema, self.name)
        qualified = ".".join(map(spell_name, parts))
        ending = f"({self.arguments})" if self.kind is ObjectKind.ROUTINE else ""
        return f"{self.kind.words} {qualified}{ending}"

    def label_column(self, column: str) -> str:
        """For people: `column hr.people.id`."""
        return f"column {'.'.join(map(spell_name, (self.schema, self.name, column)))}"


def future_object(kind: ObjectKind, schema: str, owner: int, owner_name: str) -> DatabaseObject:
    """Returns an object that does not exist yet, to judge default privileges by."""
    return DatabaseObject(ObjectId("", FIRST_NORMAL_OID), kind, schema, "", owner, owner_name)


def needs_exact_name(obj: DatabaseObject) -> bool:
    """Tells whether only an exact name may match: objects of PostgreSQL, of the controller and of extensions. Schema
    `public` comes with every database, but is for its users.
    """
    if obj.extension or is_of_system(obj.schema):
        return True
    return obj.id.oid < FIRST_NORMAL_OID and not (
        obj.kind is ObjectKind.DATABASE or (obj.kind is ObjectKind.SCHEMA and obj.id.oid == PUBLIC_SCHEMA_OID)
    )


def is_of_system(schema: str) -> bool:
    return schema in SYSTEM_SCHEMAS or schema.startswith(TEMPORARY_SCHEMAS)


@dataclass(frozen=True, slots=True)
class AclEntry:
    """One privilege that one role was granted by another. `column` is empty for the whole object."""

    grantee: int
    grantor: int
    grantor_name: str
    privilege: str
    grantable: bool = False
    column: str = ""


_NO_COLUMNS: Mapping[str, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ObservedAcl:
    """One object with the ACL entries of the requested grantees, columns included.

    `seen`: digest of owner and whole ACL; a repair verifies that it has not changed. `xmin`: the transaction that last
    wrote the object's row, 0 if unknown. `column_xmins`: of the rows of columns with entries, by name.
    """

    object: DatabaseObject
    entries: tuple[AclEntry, ...] = ()
    seen: str = ""
    xmin: int = 0
    column_xmins: Mapping[str, int] = field(default_factory=lambda: _NO_COLUMNS, hash=False)


#: Of default privileges: creator's name, schema (empty: the whole database), type of object.
DefaultPlace: TypeAlias = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class DefaultAcl:
    """Default privileges of one creator for one grantee. `schema` is empty for those of the whole database.

    `object_type` is as in pg_default_acl: r (tables and views), S (sequences), f (routines), T, n, L. `xmin`: the
    transaction that wrote the row; 0: unknown.
    """

    creator: int
    creator_name: str
    schema: str
    object_type: str
    entries: tuple[AclEntry, ...]
    xmin: int = 0

    @property
    def place(self) -> DefaultPlace:
        return self.creator_name, self.schema, self.object_type


@dataclass(frozen=True, slots=True)
class AclChange:
    """One GRANT or REVOKE on one object, for one grantee.

    `columns` is empty for the whole object. `grantor`: for a REVOKE, the role that granted, in whose name it is
    revoked; empty: the object's owner. `option_only`: REVOKE GRANT OPTION FOR; of a GRANT: WITH GRANT OPTION.
    """

    object: DatabaseObject
    grantee: int
    grantee_name: str
    privileges: tuple[str, ...]
    revoke: bool = False
    columns: tuple[str, ...] = ()
    grantor: str = ""
    option_only: bool = False

    @property
    def size(self) -> int:
        """Number of privileges on columns that it grants or revokes; 1 for the whole object."""
        return len(self.columns) * len(self.privileges) or 1


@dataclass(frozen=True, slots=True)
class DefaultAclChange:
    """One ALTER DEFAULT PRIVILEGES FOR ROLE `creator_name`, for one grantee; fields as in DefaultAcl and AclChange."""

    creator: int
    creator_name: str
    schema: str
    object_type: str
    grantee: int
    grantee_name: str
    privileges: tuple[str, ...]
    revoke: bool = False
    option_only: bool = False

    @property
    def place(self) -> DefaultPlace:
        return self.creator_name, self.schema, self.object_type
