"""Parts of PgServer about its databases: where the controller manages privileges, which ones, and how long it keeps the
history of drift.
"""

from typing import Annotated, Literal

from pydantic import Field, StrictBool

from pgrole_controller.api.meta import NAME_BYTES, UNIQUE, Integer, Model, Pattern
from pgrole_controller.api.validation import between, list_schema, read_retention, retention_schema

_KEPT = "spec.history.retention must be a number of days or a duration, from 1d to 424d, such as 90d"

DatabasePattern = Annotated[str, Field(min_length=1, max_length=NAME_BYTES)]
ObjectKindName = Literal[
    "Database", "Schema", "Table", "View", "MaterializedView", "ForeignTable", "Sequence", "Routine"
]
PrivilegeName = Literal[
    "SELECT",
    "INSERT",
    "UPDATE",
    "DELETE",
    "TRUNCATE",
    "REFERENCES",
    "TRIGGER",
    "MAINTAIN",
    "USAGE",
    "CREATE",
    "CONNECT",
    "TEMPORARY",
    "EXECUTE",
]


class AllowedPrivileges(Model):
    """Privileges that PgRoles can declare in spec.privileges. All fields of a rule must match."""

    databases: Annotated[list[Pattern], UNIQUE] | None = Field(
        default=None,
        description="Patterns of databases, in the format of roleNames. If omitted: all.",
        min_length=1,
        max_length=64,
        json_schema_extra=list_schema(64, least=1),
    )
    schemas: Annotated[list[Pattern], UNIQUE] | None = Field(
        default=None,
        description=(
            "Patterns of schemas, in the format of roleNames. If omitted: all. The schemas pg_catalog and "
            "information_schema must be listed by their exact names; schema pgrole is never allowed."
        ),
        min_length=1,
        max_length=64,
        json_schema_extra=list_schema(64, least=1),
    )
    kinds: Annotated[list[ObjectKindName], UNIQUE] | None = Field(
        default=None,
        description=(
            "Kinds of objects. Table includes views, materialized views and foreign tables. If omitted: all that "
            "spec.privileges can name."
        ),
        min_length=1,
        max_length=8,
        json_schema_extra=list_schema(8, least=1),
    )
    privileges: Annotated[list[PrivilegeName], UNIQUE] | None = Field(
        default=None,
        description="Privileges. If omitted: all.",
        min_length=1,
        max_length=13,
        json_schema_extra=list_schema(13, least=1),
    )
    owned_by: Annotated[list[Pattern], UNIQUE] | None = Field(
        default=None,
        description=(
            "Patterns of the roles that own the objects, in the format of roleNames. If omitted: objects of any owner."
        ),
        min_length=1,
        max_length=64,
        json_schema_extra=list_schema(64, least=1),
    )


class DatabasesSpec(Model):
    """Databases in which the controller can manage privileges."""

    match_names: Annotated[list[DatabasePattern], UNIQUE] = Field(
        description='Patterns of databases, with * and ? as wildcards. "*" matches every database.',
        min_length=1,
        max_length=64,
        json_schema_extra=list_schema(64, least=1),
    )
    except_: Annotated[list[DatabasePattern], UNIQUE] = Field(
        default_factory=list,
        alias="except",
        description="Patterns of databases in which the controller manages no privileges, although matchNames matches.",
        max_length=64,
        json_schema_extra=list_schema(64),
    )
    max_: Integer = Field(
        default=50,
        alias="max",
        ge=1,
        le=500,
        description=(
            "Maximum number of databases with a connection of their own. If PgRoles declare privileges in more "
            "databases, those that have been quiet for longest are polled in turn through one connection, and changes "
            "there are noticed later."
        ),
        json_schema_extra={"format": "int32"},
    )
    detection: Literal["Auto", "Events", "Poll", "Resync"] = Field(
        default="Auto",
        description=(
            "Events detects changes within milliseconds by event triggers, which the controller installs in each "
            "database. Poll installs no event triggers and reads the privileges once per spec.drift.interval, less "
            "often in a large database. Resync detects changes only when every object is reconciled. Auto uses Events "
            "if the database supports it, otherwise Poll."
        ),
    )


class AttributionSpec(Model):
    """How the controller finds out who caused a drift, and what readers of PgRoles see of it."""

    audit_log: Literal["Never", "Pgaudit", "Statements"] = Field(
        default="Never",
        description=(
            "Log of the server that the controller can read. Pgaudit: lines of the pgaudit extension in the server's "
            "jsonlog. Statements: statements that the server logs, which can contain passwords."
        ),
    )
    expose: Literal["Minimal", "Full"] = Field(
        default="Minimal",
        description=(
            "What status and Events contain. Minimal: login, role and time. Full: also the application name, the "
            "client's address and, in status, the statement, which everyone who can read the PgRole can then read."
        ),
    )


class HistorySpec(Model):
    """What the controller records about drift in the databases, in table pgrole.drift_history."""

    retention: Annotated[str, between("1d", "424d", _KEPT, read_retention)] = Field(
        default="90d",
        description="Time for which drifts are kept in the history, 1d to 424d: days such as 90d, or a duration such "
        "as 36h.",
        json_schema_extra=retention_schema(1, 424, _KEPT),
    )
    max_rows: Integer = Field(
        default=1_000_000,
        ge=1000,
        le=100_000_000,
        description="Maximum number of drifts in the history of one database. The oldest are deleted first.",
        json_schema_extra={"format": "int32"},
    )
    addresses: StrictBool = Field(default=True, description="Whether the history contains the addresses of clients.")


class DatabaseStatus(Model):
    """State of one database in which the controller manages privileges."""

    name: str = Field(description="Name of the database.", json_schema_extra={"maxLength": NAME_BYTES})
    detection: Literal["Events", "Poll", "Resync"] | None = Field(
        default=None, description="How the controller detects changes of privileges there. Absent before it connected."
    )
    ready: bool = Field(description="Whether the controller is connected to the database, or was at its last poll.")
    message: str = Field(
        default="",
        description="Why it is not ready, why Events is not used, or that it is polled in turn.",
        json_schema_extra={"maxLength": 512},
    )
