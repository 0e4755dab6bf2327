"""PgServer: a PostgreSQL server as its administrator declares it, and what teams may ask of it."""

import re
from typing import Annotated, Any, Literal, Self

from pydantic import Field, StrictBool, model_validator
from pydantic_core import PydanticCustomError

from pgrole_controller.api.cel import rule, rules
from pgrole_controller.api.duration import between, duration_schema
from pgrole_controller.api.meta import Condition, Model, ObjectMeta
from pgrole_controller.api.names import LONGEST_NAME, OBJECT_KEY, OBJECT_NAME

_INTERVAL = ("100ms", "1h", "spec.drift.interval must be a duration of 100ms to 1h, such as 1s")
_RESYNC = ("1s", "720h", "spec.resyncInterval must be a duration of 1s to 720h, such as 1h")
_NO_CA = "spec.connection.sslMode verify-ca needs spec.connection.caRef: without one any certificate would do"
_CA = "spec.connection.caRef is only for sslMode verify-ca and verify-full: remove it, or set one of these"
_SELECTOR = "spec.allow.namespaces: choose by matchNames, or by matchLabels and matchExpressions, not by both"
_REQUIREMENT = "spec.allow.namespaces.matchExpressions: values are given with In and NotIn, and only with these"
_HOST = re.compile(r"^[A-Za-z0-9]([-A-Za-z0-9._:]*[A-Za-z0-9])?$")
_PATTERN_SIZE = 63 + len("{namespace}")


def _list(most: int, kind: str = "set") -> dict[str, Any]:
    return {"maxItems": most, "x-kubernetes-list-type": kind}


Pattern = Annotated[str, Field(min_length=1, max_length=_PATTERN_SIZE)]
Attribute = Literal["superuser", "createrole", "createdb", "replication", "bypassrls"]
Method = Literal["password", "md5", "scram-sha-256", "none"]
Host = Annotated[str, Field(min_length=1, max_length=LONGEST_NAME, pattern=_HOST.pattern)]


class CaRef(Model):
    """Where the certificates are that the server's own is verified with."""

    kind: Literal["ConfigMap", "Secret"] = Field(default="ConfigMap", description="Kind of the object that holds them.")
    name: str = Field(
        description="Its name, in the controller's own namespace.",
        min_length=1,
        max_length=LONGEST_NAME,
        pattern=OBJECT_NAME,
    )
    key: str = Field(
        default="ca.crt",
        description="Its key with the certificates in PEM.",
        min_length=1,
        max_length=LONGEST_NAME,
        pattern=OBJECT_KEY,
    )


class CredentialsRef(Model):
    """The Secret that holds what the controller logs in with, under the keys username and password."""

    name: str = Field(
        description="Its name, in the controller's own namespace.",
        min_length=1,
        max_length=LONGEST_NAME,
        pattern=OBJECT_NAME,
    )


class ServerConnection(Model):
    """How the controller connects."""

    hosts: list[Host] = Field(
        description="Names or addresses; of several, the first that is not in recovery.",
        min_length=1,
        max_length=16,
        json_schema_extra={"minItems": 1, **_list(16, "atomic")},
    )
    port: int = Field(
        default=5432, ge=1, le=65535, description="Port of every host.", json_schema_extra={"format": "int32"}
    )
    database: str = Field(
        default="postgres",
        description="Home database: schema pgrole is made here. Its encoding is UTF8.",
        min_length=1,
        max_length=63,
    )
    ssl_mode: Literal["disable", "require", "verify-ca", "verify-full"] = Field(
        default="verify-full", description="As libpq's sslmode."
    )
    ca_ref: CaRef | None = Field(
        default=None,
        description="The certificates that the server's own is verified with; those of the system when absent.",
    )
    credentials_secret_ref: CredentialsRef = Field(description="What the controller logs in with.")
    require_auth: list[Method] | None = Field(
        default=None,
        description=(
            "Methods by which the server may ask the controller to log in, as in libpq's require_auth; none: without "
            "a password. When absent, scram-sha-256 and none, or any where sslMode verifies the server's certificate. "
            "password sends it in clear."
        ),
        min_length=1,
        max_length=4,
        json_schema_extra={"minItems": 1, **_list(4)},
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


class LabelRequirement(Model):
    """One requirement of a label selector."""

    key: str = Field(description="The label.", min_length=1, max_length=317)
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"] = Field(description="How it is compared.")
    values: list[Annotated[str, Field(max_length=63)]] = Field(
        default_factory=list,
        description="What it is compared with: at least one for In and NotIn, else none.",
        json_schema_extra=_list(64, "atomic"),
    )

    @model_validator(mode="after")
    def _check_values(self) -> Self:
        if (self.operator in ("In", "NotIn")) != bool(self.values):
            raise PydanticCustomError("values", _REQUIREMENT)
        return self


class Namespaces(Model):
    """Of which namespaces objects may have roles here: by name, or by label."""

    match_names: list[Annotated[str, Field(min_length=1, max_length=63)]] = Field(
        default_factory=list,
        description='Patterns of names, with * and ?; "*" is all.',
        json_schema_extra=_list(256),
    )
    match_labels: dict[str, str] = Field(
        default_factory=dict,
        description="Labels that the namespace has, all of them.",
        json_schema_extra={"additionalProperties": {"type": "string", "maxLength": 63}, "maxProperties": 16},
    )

    match_expressions: list[LabelRequirement] = Field(
        default_factory=list,
        description="Requirements of its labels, all of them, as in every label selector.",
        json_schema_extra=_list(16, "atomic"),
    )

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        if self.match_names and (self.match_labels or self.match_expressions):
            raise PydanticCustomError("namespaces", _SELECTOR)
        return self


class Allow(Model):
    """What teams may ask for here. What is not allowed is refused."""

    namespaces: Namespaces = Field(
        default=Namespaces.model_construct(),
        description="Whose objects may have roles here; nobody's when absent.",
        json_schema_extra={
            "default": {},
            **rules(
                rule(
                    "!has(self.matchNames) || size(self.matchNames) == 0 "
                    "|| ((!has(self.matchLabels) || size(self.matchLabels) == 0) "
                    "&& (!has(self.matchExpressions) || size(self.matchExpressions) == 0))",
                    _SELECTOR,
                ),
                rule(
                    "!has(self.matchExpressions) || self.matchExpressions.all(one, "
                    "(one.operator in ['In', 'NotIn']) == (has(one.values) && size(one.values) > 0))",
                    _REQUIREMENT,
                ),
            ),
        },
    )
    role_names: list[Pattern] = Field(
        default_factory=list,
        description="Patterns of the names of roles, with * and ?; {namespace} is the object's. None when absent.",
        json_schema_extra=_list(64),
    )
    attributes: list[Attribute] = Field(
        default_factory=list,
        description="Attributes that give power beyond one's own data and may be asked for; every other one is free.",
        json_schema_extra=_list(5),
    )
    member_of: list[Pattern] = Field(
        default_factory=list,
        description=(
            "Patterns of the roles that may be joined, as in roleNames. What is reached through them is checked as "
            "well: a superuser, the controller's own role, what reaches the server's files and programs, a protected "
            "role, and one with an attribute that may not be asked for, must each be named here by its very name."
        ),
        json_schema_extra=_list(256),
    )
    parameters: list[Annotated[str, Field(min_length=1, max_length=63)]] = Field(
        default_factory=list,
        description="Names of parameters that may be set although only a superuser could set them.",
        json_schema_extra=_list(64),
    )
    reassign_to: list[Pattern] = Field(
        default_factory=list,
        description="Patterns of the roles that may get what a dropped one owned, beside those of the same namespace.",
        json_schema_extra=_list(64),
    )
    adopt: StrictBool = Field(default=False, description="May objects take over roles that exist already?")
    drop: StrictBool = Field(default=True, description="May objects have their roles dropped?")


class Detection(Model):
    """How changes inside the database are noticed."""

    mode: Literal["Auto", "Watch", "Poll", "Resync"] = Field(
        default="Auto",
        description=(
            "Watch: within milliseconds, by schema pgrole. Poll: within the interval, by asking. Resync: at the next "
            "look at every object. Auto: Watch where that can be, else Poll."
        ),
    )
    interval: Annotated[str, between(*_INTERVAL)] = Field(
        default="1s",
        description="How often Poll asks.",
        json_schema_extra=duration_schema(*_INTERVAL),
    )


class PgServerSpec(Model):
    """A server, and what may be asked of it."""

    connection: ServerConnection = Field(description="How the controller connects.", json_schema_extra=CONNECTION_RULES)
    allow: Allow = Field(
        default=Allow.model_construct(), description="What teams may ask for.", json_schema_extra={"default": {}}
    )
    protected_roles: list[Pattern] = Field(
        default=["rds*", "cloudsql*", "azure_*", "azuresu"],
        description=(
            "Patterns of roles that no object may touch, beside PostgreSQL's own, the bootstrap superuser and the "
            "controller's."
        ),
        json_schema_extra=_list(256),
    )
    drift: Detection = Field(
        default=Detection.model_construct(), description="How changes are noticed.", json_schema_extra={"default": {}}
    )
    resync_interval: Annotated[str, between(*_RESYNC)] = Field(
        default="1h",
        description="Every object is looked at at least this often.",
        json_schema_extra=duration_schema(*_RESYNC),
    )
    install: StrictBool = Field(default=True, description="May the controller install schema pgrole itself?")


class DetectionStatus(Model):
    """What the controller can see of the server."""

    mode: Literal["Watch", "Poll", "Resync"] = Field(description="How changes are noticed.")
    passwords: bool = Field(description="Whether a password that was changed is noticed.")
    claims: Literal["Database", "Status"] = Field(
        description="Where it is written whose a role is: in the database, or in the status of the objects alone."
    )


class RoleCounts(Model):
    """The PgRoles that name the server."""

    declared: int = Field(description="All of them.", json_schema_extra={"format": "int32", "minimum": 0})
    ready: int = Field(description="Those that are Ready.", json_schema_extra={"format": "int32", "minimum": 0})


class PgServerStatus(Model):
    """What the controller last saw. It is output: changing it changes nothing."""

    observed_generation: int = Field(
        default=-1,
        description="The metadata.generation that was last looked at; -1 before the first look.",
        json_schema_extra={"format": "int64", "minimum": -1},
    )
    conditions: list[Condition] = Field(
        default_factory=list,
        description="Ready; Reconciling and Stalled while they hold.",
        json_schema_extra={"maxItems": 16, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    )
    version: str | None = Field(default=None, description="PostgreSQL's version.", json_schema_extra={"maxLength": 128})
    system_identifier: str | None = Field(
        default=None, description="PostgreSQL's system identifier.", json_schema_extra={"maxLength": 20}
    )
    detection: DetectionStatus | None = Field(default=None, description="What the controller can see of the server.")
    roles: RoleCounts | None = Field(default=None, description="The PgRoles that name the server.")


class PgServer(Model):
    """A PostgreSQL server, and what teams may ask of it."""

    api_version: Literal["pgrole.dev/v1alpha1"] = "pgrole.dev/v1alpha1"
    kind: Literal["PgServer"] = "PgServer"
    metadata: ObjectMeta
    spec: PgServerSpec
    status: PgServerStatus | None = Field(default=None, json_schema_extra={"default": {"observedGeneration": -1}})
