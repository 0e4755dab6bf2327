"""What a role may do: `spec.privileges`, by database."""

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from pgrole_controller.api.meta import NAME_BYTES, UNIQUE, Model, check_name, check_once, name_schema
from pgrole_controller.api.validation import list_schema, map_schema, rule, rules

#: In one PgRole: databases, and names and patterns in all. CEL could not count the latter within its cost budget.
MOST_DATABASES = 16
MOST_NAMES = 2000

#: Names of routines can have argument types.
_ROUTINE_BYTES = 256

_TABLE = ("SELECT", "INSERT", "UPDATE", "DELETE", "TRUNCATE", "REFERENCES", "TRIGGER", "MAINTAIN")
_COLUMN = ("SELECT", "INSERT", "UPDATE", "REFERENCES")
_SEQUENCE = ("USAGE", "SELECT", "UPDATE")
_ROUTINE = ("EXECUTE",)

_SIZE = "spec.privileges: a name must have 1 to 63 bytes (UTF-8), like every name in PostgreSQL"
_NUL = "spec.privileges: a name must not contain NUL (U+0000): remove it"
_NAMES_SIZE = (
    "spec.privileges[].objects[].names: a name must have 1 to 63 bytes (UTF-8), or, of kind Routine with argument "
    "types, 256"
)
_WRONG_PRIVILEGE = (
    "spec.privileges[].objects[].privileges: Sequence has USAGE, SELECT and UPDATE, Routine has EXECUTE; all other "
    "kinds have SELECT, INSERT, UPDATE, DELETE, TRUNCATE, REFERENCES, TRIGGER and MAINTAIN"
)
_WRONG_COLUMNS = (
    "spec.privileges[].objects[].columns requires kind Table, and only SELECT, INSERT, UPDATE and REFERENCES in "
    "privileges: remove columns, or put the other privileges into another item"
)
_COLUMN_PATTERN = (
    "spec.privileges[].objects[].columns: with columns, neither names nor columns can contain * or ?: list each by name"
)
_TOO_MANY = (
    "spec.privileges lists {count} names and patterns, and at most {most} are allowed: use patterns, or grant the "
    "privileges to several group roles and list these in spec.memberOf"
)
_DATABASE_TWICE = 'spec.privileges names database "{name}" twice: put its privileges into one item'
_SCHEMA_TWICE = 'spec.privileges[].schemas names "{name}" twice: put its access into one item'


def _check_nul(name: str) -> str:
    if "\x00" in name:
        raise PydanticCustomError("name", _NUL)
    return name


_NAME_SCHEMA = name_schema(_SIZE, _NUL)
_ROUTINE_SCHEMA: dict[str, Any] = {
    "minLength": 1,
    "maxLength": _ROUTINE_BYTES,
    **rules(rule(r"!self.contains('\u0000')", _NUL)),
}

Name = Annotated[str, check_name(_SIZE, _NUL), Field(json_schema_extra=_NAME_SCHEMA)]
NameOfObject = Annotated[str, AfterValidator(_check_nul), Field(json_schema_extra=_ROUTINE_SCHEMA)]


class SchemaPrivilegesSpec(Model):
    """Access to everything in a schema, or in every schema that matches a pattern, now and in the future."""

    name: Name = Field(
        description=(
            "Name of the schema, or a pattern with * and ? as wildcards. A name without wildcards does not have to "
            "exist yet."
        ),
        json_schema_extra=_NAME_SCHEMA,
    )
    access: Annotated[list[Literal["Read", "Write", "Execute"]], UNIQUE] = Field(
        description=(
            "Read: USAGE on the schema, SELECT on tables, views and sequences. Write: Read, and INSERT, UPDATE and "
            "DELETE on tables and views, USAGE and UPDATE on sequences. Execute: USAGE on the schema, EXECUTE on "
            "functions and procedures."
        ),
        min_length=1,
        max_length=3,
        json_schema_extra=list_schema(3, least=1),
    )
    except_: Annotated[list[Name], UNIQUE] = Field(
        default_factory=list,
        alias="except",
        description=(
            "Names or patterns of tables, views, sequences and routines that the access does not extend to. A routine "
            "can be listed with the types of its arguments, as in objects; without them, every overload matches."
        ),
        max_length=64,
        json_schema_extra=list_schema(64),
    )


class ObjectPrivilegesSpec(Model):
    """Privileges on objects of one kind in a schema, by name or by pattern."""

    kind: Literal["Table", "View", "MaterializedView", "ForeignTable", "Sequence", "Routine"] = Field(
        description=(
            "Kind of the objects. Table includes views, materialized views and foreign tables; Routine includes "
            "functions, procedures and aggregates."
        )
    )
    schema_: Name = Field(
        alias="schema",
        description="Name of the schema, or a pattern with * and ? as wildcards.",
        json_schema_extra=_NAME_SCHEMA,
    )
    names: Annotated[list[NameOfObject], UNIQUE] = Field(
        description=(
            "Names or patterns of the objects. A pattern also applies to objects that are created later. A routine "
            "can be listed with the types of its arguments, such as close_order(bigint, app.state); without them, "
            "every overload matches. PostgreSQL's own types can have any of their names, such as int or integer; other "
            "types need their schema."
        ),
        min_length=1,
        max_length=128,
        json_schema_extra=list_schema(128, least=1),
    )
    columns: Annotated[list[Name], UNIQUE] | None = Field(
        default=None,
        description=(
            "Columns that the privileges are limited to. Requires kind Table; only SELECT, INSERT, UPDATE and "
            "REFERENCES exist for columns. If omitted, the privileges apply to the whole object."
        ),
        min_length=1,
        max_length=128,
        json_schema_extra=list_schema(128, least=1),
    )
    privileges: Annotated[
        list[
            Literal[
                "SELECT",
                "INSERT",
                "UPDATE",
                "DELETE",
                "TRUNCATE",
                "REFERENCES",
                "TRIGGER",
                "MAINTAIN",
                "USAGE",
                "EXECUTE",
            ]
        ],
        UNIQUE,
    ] = Field(
        description=(
            "Privileges on these objects. Sequences have USAGE, SELECT and UPDATE; routines have EXECUTE; all other "
            "kinds have SELECT, INSERT, UPDATE, DELETE, TRUNCATE, REFERENCES, TRIGGER and, since PostgreSQL 17, "
            "MAINTAIN."
        ),
        min_length=1,
        max_length=10,
        json_schema_extra=list_schema(10, least=1),
    )

    @model_validator(mode="after")
    def _check_kind(self) -> Self:
        allowed = {"Sequence": _SEQUENCE, "Routine": _ROUTINE}.get(self.kind, _TABLE)
        if not set(self.privileges) <= set(allowed):
            raise PydanticCustomError("privileges", _WRONG_PRIVILEGE)
        longest = _ROUTINE_BYTES if self.kind == "Routine" else NAME_BYTES
        if not all(1 <= len(name.encode()) <= longest for name in self.names):
            raise PydanticCustomError("names", _NAMES_SIZE)
        return self

    @model_validator(mode="after")
    def _check_columns(self) -> Self:
        if self.columns is None:
            return self
        if self.kind != "Table" or not set(self.privileges) <= set(_COLUMN):
            raise PydanticCustomError("columns", _WRONG_COLUMNS)
        if any(set("*?") & set(name) for name in (*self.names, *self.columns)):
            raise PydanticCustomError("columns", _COLUMN_PATTERN)
        return self


def _listed(privileges: tuple[str, ...]) -> str:
    return "[" + ", ".join(f"'{one}'" for one in privileges) + "]"


_OBJECT_RULES = rules(
    rule(
        f"self.privileges.all(one, one in (self.kind == 'Sequence' ? {_listed(_SEQUENCE)} "
        f": self.kind == 'Routine' ? {_listed(_ROUTINE)} : {_listed(_TABLE)}))",
        _WRONG_PRIVILEGE,
        field_path=".privileges",
    ),
    rule(
        f"self.names.all(one, size(bytes(one)) <= (self.kind == 'Routine' ? {_ROUTINE_BYTES} : {NAME_BYTES}))",
        _NAMES_SIZE,
        field_path=".names",
    ),
    rule(
        f"!has(self.columns) || (self.kind == 'Table' && self.privileges.all(one, one in {_listed(_COLUMN)}))",
        _WRONG_COLUMNS,
        field_path=".columns",
    ),
    *(
        rule(
            f"!has(self.columns) || self.{field}.all(one, !one.contains('{wildcard}'))",
            _COLUMN_PATTERN,
            field_path=f".{field}",
        )
        for field in ("names", "columns")  # a rule each, since the cost of a rule is limited
        for wildcard in "*?"
    ),
)
RuledObjectPrivileges = Annotated[ObjectPrivilegesSpec, Field(json_schema_extra=_OBJECT_RULES)]


class DatabasePrivilegesSpec(Model):
    """Everything that the role may do in one database. Privileges you do not list are revoked."""

    database: Name = Field(
        description="Name of the database; not a pattern. It does not have to exist yet.",
        json_schema_extra=_NAME_SCHEMA,
    )
    on_database: Annotated[list[Literal["CONNECT", "TEMPORARY", "CREATE"]], UNIQUE] = Field(
        default_factory=list,
        description="Privileges on the database itself.",
        max_length=3,
        json_schema_extra=list_schema(3),
    )
    schemas: list[SchemaPrivilegesSpec] = Field(
        default_factory=list,
        description="Access to everything in schemas, including objects that are created later, whoever creates them.",
        max_length=64,
        json_schema_extra=map_schema(64, "name"),
    )
    objects: list[RuledObjectPrivileges] = Field(
        default_factory=list,
        description="Privileges on objects by name or pattern, in addition to schemas.",
        max_length=32,
        json_schema_extra=list_schema(32, "atomic"),
    )
    created_by: Annotated[list[Name], UNIQUE] = Field(
        default_factory=list,
        description=(
            "Roles for which the controller also sets default privileges, so that what they create in the listed "
            "schemas is accessible at once. Objects that other roles create become accessible milliseconds later, and "
            "so do objects in schemas that are declared by a pattern or with except, which default privileges cannot "
            "express."
        ),
        max_length=32,
        json_schema_extra=list_schema(32),
    )
    unmanaged: Annotated[list[Name], UNIQUE] = Field(
        default_factory=list,
        description="Names or patterns of schemas in which privileges you do not list are left alone.",
        max_length=32,
        json_schema_extra=list_schema(32),
    )

    @model_validator(mode="after")
    def _check_twice(self) -> Self:
        check_once([one.name for one in self.schemas], _SCHEMA_TWICE)
        return self

    def count_names(self) -> int:
        """Counts the names and patterns, the database's own name included."""
        in_schemas = sum(1 + len(one.except_) for one in self.schemas)
        in_objects = sum(1 + len(one.names) + len(one.columns or ()) for one in self.objects)
        return 1 + in_schemas + in_objects + len(self.created_by) + len(self.unmanaged)


def check_privileges(privileges: list[DatabasePrivilegesSpec]) -> list[DatabasePrivilegesSpec]:
    check_once([one.database for one in privileges], _DATABASE_TWICE)
    count = sum(one.count_names() for one in privileges)
    if count > MOST_NAMES:
        raise PydanticCustomError("names", _TOO_MANY, {"count": count, "most": MOST_NAMES})
    return privileges


PRIVILEGES_SCHEMA = map_schema(MOST_DATABASES, "database")
Privileges = Annotated[list[DatabasePrivilegesSpec], Field(max_length=MOST_DATABASES), AfterValidator(check_privileges)]
