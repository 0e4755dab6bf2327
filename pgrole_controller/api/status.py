"""The `status` that the controller writes to a PgRole."""

from datetime import datetime
from typing import Annotated

from pydantic import Field

from pgrole_controller.api.meta import NAME_BYTES, Condition, Model


class AppliedRole(Model):
    """Role in the database."""

    name: str = Field(description="Name of the role.", json_schema_extra={"maxLength": NAME_BYTES})
    oid: int = Field(
        description="OID of the role.",
        json_schema_extra={"format": "int64", "minimum": 1, "maximum": 2**32 - 1},
    )
    applied: str = Field(
        default="",
        description="Digest of the state that was last applied.",
        json_schema_extra={"maxLength": 128},
    )


class AppliedServer(Model):
    """Server that the role is on."""

    name: str = Field(description="Name of the PgServer.", json_schema_extra={"maxLength": 253})
    system_identifier: str = Field(
        description="System identifier of the database cluster.", json_schema_extra={"maxLength": 20}
    )


class LastDrift(Model):
    """Last drift: a change of the role inside the database."""

    time: datetime = Field(description="Time at which the controller detected the drift.")
    fields: list[Annotated[str, Field(json_schema_extra={"maxLength": 63})]] = Field(
        default_factory=list,
        description="Fields of spec that differed.",
        json_schema_extra={"maxItems": 64, "x-kubernetes-list-type": "atomic"},
    )
    corrected: bool = Field(description="Whether the controller restored the role.")


class PgRoleStatus(Model):
    """Observed state of the role. Apart from the proof of ownership, the controller never reads it as input."""

    observed_generation: int = Field(
        default=-1,
        description="The metadata.generation that was last reconciled. -1 before the first reconcile.",
        json_schema_extra={"format": "int64", "minimum": -1},
    )
    conditions: list[Condition] = Field(
        default_factory=list,
        description="Ready, always; Reconciling, Stalled and DriftDetected only while they are True.",
        json_schema_extra={
            "maxItems": 16,
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["type"],
        },
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
    password_secret_version: str | None = Field(
        default=None,
        description="The resourceVersion of the Secret whose password was last applied.",
        json_schema_extra={"maxLength": 128},
    )
    next_rotation: datetime | None = Field(
        default=None, description="Time at which the controller will generate a new password."
    )
