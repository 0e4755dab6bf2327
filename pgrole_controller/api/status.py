"""What the controller says of a PgRole: `status`."""

from datetime import datetime
from typing import Annotated

from pydantic import Field

from pgrole_controller.api.meta import NAME_BYTES, Condition, Model


class AppliedRole(Model):
    """The role in the database."""

    name: str = Field(description="Its name.", json_schema_extra={"maxLength": NAME_BYTES})
    oid: int = Field(
        description="Its object identifier in the server.",
        json_schema_extra={"format": "int64", "minimum": 1, "maximum": 2**32 - 1},
    )
    applied: str = Field(
        default="",
        description="Digest of the declaration that was last brought into the database.",
        json_schema_extra={"maxLength": 128},
    )


class AppliedServer(Model):
    """The server that the role is on."""

    name: str = Field(description="Name of the PgServer.", json_schema_extra={"maxLength": 253})
    system_identifier: str = Field(
        description="PostgreSQL's system identifier of the server.", json_schema_extra={"maxLength": 20}
    )


class LastDrift(Model):
    """The last time that the role was found changed inside the database."""

    time: datetime = Field(description="When it was noticed.")
    fields: list[Annotated[str, Field(json_schema_extra={"maxLength": 63})]] = Field(
        default_factory=list,
        description="The fields of spec that differed.",
        json_schema_extra={"maxItems": 64, "x-kubernetes-list-type": "atomic"},
    )
    corrected: bool = Field(description="Whether the role was set back.")


class PgRoleStatus(Model):
    """What the controller last saw and did. It is output: changing it changes nothing."""

    observed_generation: int = Field(
        default=-1,
        description="The metadata.generation that was last looked at; -1 before the first look.",
        json_schema_extra={"format": "int64", "minimum": -1},
    )
    conditions: list[Condition] = Field(
        default_factory=list,
        description="Ready; Reconciling, Stalled and DriftDetected while they hold.",
        json_schema_extra={
            "maxItems": 16,
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["type"],
        },
    )
    role: AppliedRole | None = Field(default=None, description="The role in the database.")
    server: AppliedServer | None = Field(default=None, description="The server that the role is on.")
    last_drift: LastDrift | None = Field(
        default=None, description="The last time that the role was found changed inside the database."
    )
    drift_count: int | None = Field(
        default=None,
        description="How many times drift was corrected since the role was first applied.",
        json_schema_extra={"format": "int64", "minimum": 0},
    )
    password_secret_version: str | None = Field(
        default=None,
        description="The resourceVersion of the Secret whose password was last brought into the database.",
        json_schema_extra={"maxLength": 128},
    )
    next_rotation: datetime | None = Field(
        default=None, description="When the generated password will be replaced by another one."
    )
