"""The `status` that the controller writes to a PgRole."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from pgrole_controller.api.meta import NAME_BYTES, Condition, Model
from pgrole_controller.api.validation import list_schema, map_schema


class AppliedRole(Model):
    """Role in the database."""

    name: str = Field(description="Name of the role.", json_schema_extra={"maxLength": NAME_BYTES})
    oid: int = Field(
        description="OID of the role.",
        json_schema_extra={"format": "int64", "minimum": 1, "maximum": 2**32 - 1},
    )
    applied: str = Field(
        default="",
        description="Digest of the state that was last applied, or a note that LOGIN was taken away to drop the role.",
        json_schema_extra={"maxLength": 128},
    )


class AppliedServer(Model):
    """Server that the role is on."""

    name: str = Field(description="Name of the PgServer.", json_schema_extra={"maxLength": 253})
    system_identifier: str = Field(
        description="System identifier of the database cluster.", json_schema_extra={"maxLength": 20}
    )


AuthorProof = Literal["Transaction", "Log", "Statistics", "Session", "None"]
_PROOF = (
    "What proves it. Transaction: an event or a line of the audit log with the transaction's ID. Log: a line of the "
    "audit or statement log that names the role, but not this transaction. Statistics: pg_stat_statements, which names "
    "only the login. Session: a session that was connected and may have done it. None: unknown."
)
_LOGIN = "Name of the role that the session logged in as."


class DriftCause(Model):
    """Who caused a drift. Fields that are unknown are absent."""

    login: str | None = Field(default=None, description=_LOGIN, json_schema_extra={"maxLength": NAME_BYTES})
    role: str | None = Field(
        default=None,
        description="Name of the role that the session acted as, if different.",
        json_schema_extra={"maxLength": NAME_BYTES},
    )
    application: str | None = Field(
        default=None,
        description=(
            "The session's application_name, which any client can set. Present only if the PgServer sets "
            "spec.attribution.expose to Full."
        ),
        json_schema_extra={"maxLength": NAME_BYTES},
    )
    address: str | None = Field(
        default=None,
        description=(
            "Address of the client, which can be a connection pooler. Present only if the PgServer sets "
            "spec.attribution.expose to Full."
        ),
        json_schema_extra={"maxLength": 64},
    )
    time: datetime | None = Field(default=None, description="Time of the change, by the database's clock.")
    statement: str | None = Field(
        default=None,
        description=(
            "First 120 characters of the statement. Present only if the PgServer sets spec.attribution.expose to Full."
        ),
        json_schema_extra={"maxLength": 120},
    )
    proof: AuthorProof = Field(description=_PROOF)


class RecordedCause(Model):
    """Who caused a drift, in short."""

    login: str | None = Field(default=None, description=_LOGIN, json_schema_extra={"maxLength": NAME_BYTES})
    proof: AuthorProof = Field(description=_PROOF)


class DriftHistoryEntry(Model):
    """One drift in short, at most 512 bytes."""

    time: datetime = Field(description="Time of the change if known, otherwise of its detection.")
    fields: list[Annotated[str, Field(json_schema_extra={"maxLength": NAME_BYTES})]] = Field(
        default_factory=list,
        description="Fields of spec that differed; the first five.",
        json_schema_extra=list_schema(5, "atomic"),
    )
    database: str | None = Field(
        default=None,
        description="Database whose privileges differed.",
        json_schema_extra={"maxLength": NAME_BYTES},
    )
    details: list[Annotated[str, Field(json_schema_extra={"maxLength": 120})]] | None = Field(
        default=None,
        description="What happened, one phrase each.",
        json_schema_extra=list_schema(5, "atomic"),
    )
    count: int | None = Field(
        default=None,
        description="Number of fields or privileges that differed.",
        json_schema_extra={"format": "int64", "minimum": 0},
    )
    corrected: bool = Field(description="Whether the controller restored the role.")
    by: RecordedCause | None = Field(default=None, description="Who caused the drift.")


class PrivilegesStatus(Model):
    """State of the role's privileges in one database."""

    database: str = Field(description="Name of the database.", json_schema_extra={"maxLength": NAME_BYTES})
    ready: bool = Field(description="Whether the privileges match the spec and nothing else is granted.")
    reason: str = Field(
        description="Machine-readable reason, in CamelCase.",
        json_schema_extra={"maxLength": 64, "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"},
    )
    message: str | None = Field(
        default=None, description="Human-readable explanation and remedy.", json_schema_extra={"maxLength": 1536}
    )


class LastDrift(Model):
    """Last drift: a change of the role inside the database."""

    time: datetime = Field(description="Time of the change if known, otherwise of its detection.")
    fields: list[Annotated[str, Field(json_schema_extra={"maxLength": NAME_BYTES})]] = Field(
        default_factory=list,
        description="Fields of spec that differed.",
        json_schema_extra=list_schema(64, "atomic"),
    )
    corrected: bool = Field(description="Whether the controller restored the role.")
    database: str | None = Field(
        default=None,
        description="Database whose privileges differed.",
        json_schema_extra={"maxLength": NAME_BYTES},
    )
    details: list[Annotated[str, Field(json_schema_extra={"maxLength": 512})]] | None = Field(
        default=None,
        description="What happened, one phrase each, such as: DELETE on table app.orders was granted.",
        json_schema_extra=list_schema(11, "atomic"),
    )
    by: DriftCause | None = Field(default=None, description="Who caused the drift.")


class ApprovableField(Model):
    """Reported drift of one field. Long values are truncated; values that cannot be shown are absent."""

    name: str = Field(description="Field of spec.", json_schema_extra={"maxLength": NAME_BYTES})
    declared: str | None = Field(default=None, description="Declared value.", json_schema_extra={"maxLength": 512})
    observed: str | None = Field(
        default=None, description="Value in the database.", json_schema_extra={"maxLength": 512}
    )


class ApprovableDatabase(Model):
    """Reported drift of privileges in one database, and the approval that was handled there."""

    name: str = Field(description="Name of the database.", json_schema_extra={"maxLength": NAME_BYTES})
    changes: list[Annotated[str, Field(json_schema_extra={"maxLength": 512})]] | None = Field(
        default=None,
        description="What happened, one phrase each, such as: DELETE on table app.orders was granted.",
        json_schema_extra=list_schema(11, "atomic"),
    )
    handled: str | None = Field(
        default=None,
        description="Value of the annotation pgrole.dev/approve that was last acted on in this database.",
        json_schema_extra={"maxLength": 128},
    )


class ApprovalStatus(Model):
    """Drift that is reported and that a person can approve for correction."""

    digest: str | None = Field(
        default=None,
        description=(
            "Digest of the reported drift. To correct exactly this drift, once, set the annotation pgrole.dev/approve "
            "to this digest, a slash, and any text that was not used before."
        ),
        json_schema_extra={"maxLength": 2048},
    )
    fields: list[ApprovableField] | None = Field(
        default=None,
        description="Fields of the role that differ.",
        json_schema_extra=list_schema(64, "atomic"),
    )
    databases: list[ApprovableDatabase] | None = Field(
        default=None,
        description="Databases whose privileges differ, or in which an approval was handled.",
        json_schema_extra=list_schema(32, "atomic"),
    )
    handled: str | None = Field(
        default=None,
        description=(
            "Value of the annotation pgrole.dev/approve that was last acted on for the role; a hash of it if it is "
            "longer than 128 characters."
        ),
        json_schema_extra={"maxLength": 128},
    )


class PgRoleStatus(Model):
    """Observed state of the role."""

    observed_generation: int = Field(
        default=-1,
        description="The metadata.generation that was last reconciled. -1 before the first reconcile.",
        json_schema_extra={"format": "int64", "minimum": -1},
    )
    conditions: list[Condition] = Field(
        default_factory=list,
        description="Ready is always present; Reconciling, Stalled and DriftDetected only while True.",
        json_schema_extra=map_schema(16, "type"),
    )
    role: AppliedRole | None = Field(default=None, description="Role in the database.")
    server: AppliedServer | None = Field(default=None, description="Server that the role is on.")
    last_drift: LastDrift | None = Field(
        default=None, description="Last drift: a change of the role inside the database."
    )
    drift_count: int | None = Field(
        default=None,
        description="Number of times the controller has corrected drift since the role was first applied.",
        json_schema_extra={"format": "int64", "minimum": 0},
    )
    drift_history: list[DriftHistoryEntry] | None = Field(
        default=None,
        description="The last ten drifts, newest first.",
        json_schema_extra=list_schema(10, "atomic"),
    )
    privileges: list[PrivilegesStatus] | None = Field(
        default=None,
        description=(
            "State of the role's privileges in each database of spec.privileges, and in each one that was removed from "
            "there until its privileges are revoked."
        ),
        json_schema_extra=map_schema(32, "database"),
    )
    approval: ApprovalStatus | None = Field(
        default=None, description="Reported drift that can be approved, and the approvals that were handled."
    )
    password_secret_version: str | None = Field(
        default=None,
        description="The resourceVersion of the Secret whose password was last applied.",
        json_schema_extra={"maxLength": 128},
    )
    next_rotation: datetime | None = Field(
        default=None, description="Time at which the controller will generate a new password."
    )
