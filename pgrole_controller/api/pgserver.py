"""PgServer: a PostgreSQL server as its administrator declares it, with the policy for its roles."""

import re
from datetime import datetime
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, StrictBool, model_validator
from pydantic_core import PydanticCustomError

from pgrole_controller.api.meta import UNIQUE, Condition, Integer, Model, ObjectMeta, Pattern, check_name, name_schema
from pgrole_controller.api.server_databases import (
    AttributionSpec,
    DatabasesSpec,
    DatabaseStatus,
    HistorySpec,
)
from pgrole_controller.api.server_policy import Allow
from pgrole_controller.api.validation import (
    LONGEST_NAME,
    OBJECT_KEY,
    OBJECT_NAME,
    between,
    duration_schema,
    list_schema,
    map_schema,
    rule,
    rules,
)

_INTERVAL = ("100ms", "1h", "spec.drift.interval must be a duration from 100ms to 1h, such as 1s")
_RESYNC = ("1s", "720h", "spec.resyncInterval must be a duration from 1s to 720h, such as 1h")
_NO_CA = "spec.connection.sslMode verify-ca requires spec.connection.caRef: add it, or set verify-full"
_CA = "spec.connection.caRef requires sslMode verify-ca or verify-full: set one of them, or remove caRef"
_DATABASE_SIZE = "spec.connection.database must have 1 to 63 bytes (UTF-8), like every name in PostgreSQL"
_DATABASE_NUL = "spec.connection.database must not contain NUL (U+0000): remove it"
_PORT = "a host must not contain a port: set spec.connection.port, which applies to every host"
_HOST = re.compile(r"^(::)?[A-Za-z0-9]([-A-Za-z0-9._:]*[A-Za-z0-9])?$")

#: An IPv6 address has at least two colons.
_WITH_PORT = "^[^:]+:[0-9]+$"

Method = Literal["password", "md5", "scram-sha-256", "none"]


def _check_no_port(host: str) -> str:
    if re.fullmatch(_WITH_PORT, host):
        raise PydanticCustomError("port", _PORT)
    return host


Host = Annotated[
    str,
    Field(
        min_length=1,
        max_length=LONGEST_NAME,
        pattern=_HOST.pattern,
        json_schema_extra=rules(rule(f"!self.matches('{_WITH_PORT}')", _PORT)),
    ),
    AfterValidator(_check_no_port),
]


class CaRef(Model):
    """A ConfigMap or Secret with the CA certificates that verify the server's certificate."""

    kind: Literal["ConfigMap", "Secret"] = Field(
        default="ConfigMap", description="Kind of the object with the certificates."
    )
    name: str = Field(
        description="Name of the object, in the controller's namespace.",
        min_length=1,
        max_length=LONGEST_NAME,
        pattern=OBJECT_NAME,
    )
    key: str = Field(
        default="ca.crt",
        description="Key whose value is the certificates in PEM format.",
        min_length=1,
        max_length=LONGEST_NAME,
        pattern=OBJECT_KEY,
    )


class CredentialsRef(Model):
    """A Secret with the credentials of the controller, under the keys username and password."""

    name: str = Field(
        description="Name of the object, in the controller's namespace.",
        min_length=1,
        max_length=LONGEST_NAME,
        pattern=OBJECT_NAME,
    )


class ServerConnection(Model):
    """How the controller connects to the server."""

    hosts: list[Host] = Field(
        description=(
            "Host names or addresses, without a port. The controller uses the first host that is not in recovery."
        ),
        min_length=1,
        max_length=16,
        json_schema_extra=list_schema(16, "atomic", least=1),
    )
    port: Integer = Field(
        default=5432, ge=1, le=65535, description="Port of every host.", json_schema_extra={"format": "int32"}
    )
    database: Annotated[str, check_name(_DATABASE_SIZE, _DATABASE_NUL)] = Field(
        default="postgres",
        description="Home database, in which the controller creates schema pgrole. Its encoding must be UTF8.",
        json_schema_extra=name_schema(_DATABASE_SIZE, _DATABASE_NUL),
    )
    ssl_mode: Literal["disable", "require", "verify-ca", "verify-full"] = Field(
        default="verify-full", description="TLS mode, as in libpq's sslmode."
    )
    ca_ref: CaRef | None = Field(
        default=None,
        description="CA certificates that verify the server's certificate. Defaults to the system's CA certificates.",
    )
    credentials_secret_ref: CredentialsRef = Field(description="Secret with the credentials of the controller.")
    require_auth: Annotated[list[Method], UNIQUE] | None = Field(
        default=None,
        description=(
            "Authentication methods that the controller accepts from the server, as in libpq's require_auth. none "
            "means no password; password sends the password in clear text. If omitted, the controller accepts "
            "scram-sha-256 and none, or any method if sslMode verifies the server's certificate."
        ),
        min_length=1,
        max_length=4,
        json_schema_extra=list_schema(4, least=1),
    )

    @model_validator(mode="after")
    def _check_ca(self) -> Self:
        if self.ca_ref is not None and not self.ssl_mode.startswith("verify-"):
            raise PydanticCustomError("ca", _CA)
        if self.ca_ref is None and self.ssl_mode == "verify-ca":
            raise PydanticCustomError("ca", _NO_CA)
        return self


CONNECTION_RULES = rules(
    rule("!has(self.caRef) || self.sslMode in ['verify-ca', 'verify-full']", _CA, field_path=".caRef"),
    rule("has(self.caRef) || self.sslMode != 'verify-ca'", _NO_CA, field_path=".caRef"),
)


class DetectionSpec(Model):
    """How the controller detects changes in the database."""

    mode: Literal["Auto", "Watch", "Poll", "Resync"] = Field(
        default="Auto",
        description=(
            "Watch detects changes within milliseconds and needs schema pgrole. Poll queries the server once per "
            "interval. Resync detects changes only when every object is reconciled. Auto uses Watch if the server "
            "supports it, otherwise Poll."
        ),
    )
    interval: Annotated[str, between(*_INTERVAL)] = Field(
        default="1s",
        description="Interval between two polls in mode Poll.",
        json_schema_extra=duration_schema(*_INTERVAL),
    )


class PgServerSpec(Model):
    """Desired state of a server: how to connect, and the policy for its roles."""

    connection: ServerConnection = Field(
        description="How the controller connects to the server.", json_schema_extra=CONNECTION_RULES
    )
    allow: Allow = Field(
        default=Allow.model_construct(),
        description=(
            "Policy for the PgRoles on this server. Anything not listed is denied, except drop, and privileges on "
            "objects that the namespace's own roles own."
        ),
        json_schema_extra={"default": {}},
    )
    protected_roles: Annotated[list[Pattern], UNIQUE] = Field(
        default=["rds*", "cloudsql*", "azure_*", "azuresu"],
        description=(
            "Patterns of roles that no PgRole can adopt, change or drop, in addition to PostgreSQL's own roles, the "
            "bootstrap superuser and the controller's role. Setting it replaces the default."
        ),
        max_length=256,
        json_schema_extra=list_schema(256),
    )
    drift: DetectionSpec = Field(
        default=DetectionSpec.model_construct(),
        description="How the controller detects changes in the database.",
        json_schema_extra={"default": {}},
    )
    resync_interval: Annotated[str, between(*_RESYNC)] = Field(
        default="1h",
        description="Maximum time between two reconciles of every object.",
        json_schema_extra=duration_schema(*_RESYNC),
    )
    databases: DatabasesSpec | None = Field(
        default=None,
        description=(
            "Databases in which the controller can manage privileges. If omitted, PgRoles cannot declare "
            "spec.privileges. The controller connects to others, except the home database, only to drop a role with "
            "spec.reassignOwnedTo."
        ),
    )
    attribution: AttributionSpec | None = Field(
        default=None,
        description="How the controller finds out who caused a drift, and what readers of PgRoles see of it.",
    )
    history: HistorySpec | None = Field(
        default=None,
        description="What the controller records about drift in the databases.",
    )
    install: StrictBool = Field(default=True, description="Whether the controller can install schema pgrole itself.")


class DetectionStatus(Model):
    """How the controller detects changes on this server."""

    mode: Literal["Watch", "Poll", "Resync"] = Field(description="How the controller detects changes in the database.")
    passwords: bool = Field(description="Whether the controller detects a changed password.")
    claims: Literal["Database", "Status"] = Field(
        description="Where the owner of each role is recorded: in the database, or only in the status of the objects."
    )


class RoleCounts(Model):
    """Number of PgRoles that reference the server."""

    declared: int = Field(
        description="PgRoles that reference the server.", json_schema_extra={"format": "int32", "minimum": 0}
    )
    ready: int = Field(
        description="PgRoles that reference the server and are Ready.",
        json_schema_extra={"format": "int32", "minimum": 0},
    )


class DriftsInHour(Model):
    """Drifts that the controller observed in one hour."""

    hour: datetime = Field(description="Beginning of the hour.")
    corrected: int = Field(
        description="Drifts that the controller corrected.",
        json_schema_extra={"format": "int32", "minimum": 0, "maximum": 2**31 - 1},
    )
    reported: int = Field(
        description="Drifts that the controller only reported.",
        json_schema_extra={"format": "int32", "minimum": 0, "maximum": 2**31 - 1},
    )


class PgServerStatus(Model):
    """Observed state of the server. The controller never reads it as input; it only continues driftsPerHour."""

    observed_generation: int = Field(
        default=-1,
        description="The metadata.generation that was last reconciled. -1 before the first reconcile.",
        json_schema_extra={"format": "int64", "minimum": -1},
    )
    conditions: list[Condition] = Field(
        default_factory=list,
        description="Ready is always present; Reconciling and Stalled only while True.",
        json_schema_extra=map_schema(16, "type"),
    )
    version: str | None = Field(
        default=None, description="Version of PostgreSQL.", json_schema_extra={"maxLength": 128}
    )
    system_identifier: str | None = Field(
        default=None, description="System identifier of the database cluster.", json_schema_extra={"maxLength": 20}
    )
    detection: DetectionStatus | None = Field(
        default=None, description="How the controller detects changes on this server."
    )
    databases: list[DatabaseStatus] | None = Field(
        default=None,
        description="Databases in which the controller manages privileges.",
        json_schema_extra=map_schema(500, "name"),
    )
    roles: RoleCounts | None = Field(default=None, description="Number of PgRoles that reference the server.")
    drifts_per_hour: list[DriftsInHour] | None = Field(
        default=None,
        description="Drifts in the last 24 hours, newest hour first. Hours without drift are absent.",
        json_schema_extra=map_schema(24, "hour"),
    )


class PgServer(Model):
    """A PostgreSQL server and the policy for its roles."""

    api_version: Literal["pgrole.dev/v1alpha1"] = "pgrole.dev/v1alpha1"
    kind: Literal["PgServer"] = "PgServer"
    metadata: ObjectMeta
    spec: PgServerSpec
    status: PgServerStatus | None = Field(default=None, json_schema_extra={"default": {"observedGeneration": -1}})
