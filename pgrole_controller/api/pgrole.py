"""PgRole: a PostgreSQL role as its owner declares it.

The models are both the source of the CRD and the Python API: build objects with Python's or YAML's field names, and
dump them with `model_dump(by_alias=True, exclude_none=True, mode="json")`. They reject what CEL rejects at admission,
with the same messages.
"""

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, StrictBool, model_validator
from pydantic_core import PydanticCustomError

from pgrole_controller.api.meta import NAME_BYTES, UNIQUE, Integer, Model, ObjectMeta, check_once
from pgrole_controller.api.privileges import PRIVILEGES_SCHEMA, Privileges
from pgrole_controller.api.role_values import (
    COMMENT_SCHEMA,
    MOMENT_SCHEMA,
    PARAMETERS_SCHEMA,
    Comment,
    DatabaseParameters,
    MembershipSpec,
    ParameterMap,
    Timestamp,
)
from pgrole_controller.api.secrets import PASSWORD_RULES, ConnectionSecret, PasswordSpec
from pgrole_controller.api.status import PgRoleStatus
from pgrole_controller.api.validation import immutable_optional, list_schema, map_schema, rule, rules

GROUP = "pgrole.dev"
VERSION = "v1alpha1"

_RESERVED = ("public", "none")

_NAME_SIZE = "spec.name must have 1 to 63 bytes (UTF-8): shorten it, since PostgreSQL silently truncates longer names"
_NAME_NUL = "spec.name must not contain NUL (U+0000), which PostgreSQL cannot store: remove it"
_NAME_PREFIX = 'spec.name must not begin with "pg_", which PostgreSQL reserves for its own roles: choose another name'
_NAME_RESERVED = 'spec.name must not be "public" or "none", which PostgreSQL reserves: choose another name'
_DEFAULT_NAME = (
    "metadata.name cannot be used as the name of the role in PostgreSQL, "
    'which must have at most 63 bytes and not be "public" or "none": set spec.name'
)
_NAME_FIXED = "spec.name is immutable and cannot be added or removed: to use another name, create another PgRole"
_SERVER_FIXED = "spec.serverRef is immutable: to use another server, create another PgRole"
_NEW_OWNER_SIZE = "spec.reassignOwnedTo must have at most 63 bytes (UTF-8) and no NUL, like every name in PostgreSQL"
_NOT_DELIVERED = "spec.password.generate requires spec.connectionSecret, which delivers the password: add it"
_NOT_LEFT = (
    "spec.drift.ignore must not list password while spec.password.generate is set: "
    "the Secret could then hold a password that the database does not accept. Remove one of the two"
)
_ONLY_WITH_DROP = (
    "spec.reassignOwnedTo and spec.terminateSessions require spec.deletionPolicy: Drop; set it, or remove them"
)
_GROUP_TWICE = 'spec.memberOf names role "{name}" twice: remove one of them'
_DATABASE_TWICE = 'spec.databaseParameters names database "{name}" twice: put its parameters into one item'


def _check_name(name: str) -> str:
    if not 1 <= len(name.encode()) <= NAME_BYTES:
        problem = _NAME_SIZE
    elif "\x00" in name:
        problem = _NAME_NUL
    elif name.startswith("pg_"):
        problem = _NAME_PREFIX
    elif name in _RESERVED:
        problem = _NAME_RESERVED
    else:
        return name
    raise PydanticCustomError("role_name", problem)


def _check_new_owner(name: str) -> str:
    if len(name.encode()) > NAME_BYTES or "\x00" in name:
        raise PydanticCustomError("reassign_owned_to", _NEW_OWNER_SIZE)
    return name


OptionalRole = Annotated[str, AfterValidator(_check_new_owner)]
IgnoredField = Literal[
    "login",
    "superuser",
    "createdb",
    "createrole",
    "inherit",
    "replication",
    "bypassrls",
    "connectionLimit",
    "validUntil",
    "comment",
    "password",
    "memberOf",
    "parameters",
    "databaseParameters",
    "privileges",
]
RoleName = Annotated[str, AfterValidator(_check_name)]


class ServerRef(Model):
    """Reference to a PgServer."""

    name: str = Field(
        default="default",
        description='Name of the PgServer. "default" can also be the server in the controller\'s own settings.',
        min_length=1,
        max_length=253,
        pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$",
    )


class DriftSpec(Model):
    """How to handle drift: a change of the role inside the database that this object does not declare."""

    policy: Literal["Correct", "Report"] = Field(
        default="Correct",
        description=(
            "Correct reverts drift at once. Report lists what differs and leaves it so, until the spec changes or "
            "someone approves the correction."
        ),
    )
    ignore: Annotated[list[IgnoredField], UNIQUE] = Field(
        default_factory=list,
        description=(
            "Fields of spec that the controller sets when it creates the role and then leaves to others. Their changes "
            "are not drift."
        ),
        max_length=32,
        json_schema_extra=list_schema(32),
    )


class PgRoleSpec(Model):
    """Desired state of the role."""

    server_ref: ServerRef = Field(
        default=ServerRef.model_construct(),
        description="Server that the role is on. Immutable.",
        json_schema_extra={"x-kubernetes-map-type": "atomic"},
    )
    name: RoleName | None = Field(
        default=None,
        description=(
            "Name of the role in PostgreSQL: 1 to 63 bytes, any characters. Defaults to metadata.name. Immutable. "
            'It must not be "public" or "none", nor begin with "pg_".'
        ),
        json_schema_extra={
            "minLength": 1,
            "maxLength": NAME_BYTES,
            **rules(
                rule(f"size(bytes(self)) <= {NAME_BYTES}", _NAME_SIZE),
                rule(r"!self.contains('\u0000')", _NAME_NUL),
                rule("!self.startsWith('pg_')", _NAME_PREFIX),
                rule("!(self in ['public', 'none'])", _NAME_RESERVED),
            ),
        },
    )
    login: StrictBool = Field(default=False, description="Whether the role can log in.")
    superuser: StrictBool = Field(default=False, description="Whether the role bypasses all permission checks.")
    createdb: StrictBool = Field(default=False, description="Whether the role can create databases.")
    createrole: StrictBool = Field(
        default=False, description="Whether the role can create, alter and drop other roles."
    )
    inherit: StrictBool = Field(
        default=True,
        description=(
            "Whether the role inherits the privileges of roles it is a member of. Since PostgreSQL 16, "
            "memberOf[].inherit decides instead; this is only the default of memberships that others grant."
        ),
    )
    replication: StrictBool = Field(
        default=False, description="Whether the role can start replication and manage replication slots."
    )
    bypassrls: StrictBool = Field(
        default=False, description="Whether the role bypasses every row-level security policy."
    )
    connection_limit: Integer = Field(
        default=-1,
        ge=-1,
        le=2**31 - 1,
        description="Maximum number of concurrent connections of the role. -1 means no limit.",
        json_schema_extra={"format": "int32"},
    )
    valid_until: Timestamp | None = Field(
        default=None,
        description=(
            "Time at which the role's password expires (RFC 3339, years 1 to 9999). If omitted, the password never "
            "expires."
        ),
        json_schema_extra=MOMENT_SCHEMA,
    )
    comment: Comment | None = Field(
        default=None,
        description="Comment on the role, as set by COMMENT ON ROLE. If omitted or empty, the role has no comment.",
        json_schema_extra=COMMENT_SCHEMA,
    )
    password: PasswordSpec | None = Field(
        default=None,
        description="Password of the role. If omitted, the controller does not manage the password.",
        json_schema_extra=PASSWORD_RULES,
    )
    member_of: list[MembershipSpec] = Field(
        default_factory=list,
        description="Roles that this role is a member of. Memberships you do not list are revoked.",
        max_length=64,
        json_schema_extra=map_schema(64, "role"),
    )
    parameters: ParameterMap = Field(
        default_factory=dict,
        description="Settings for the role's sessions, as in ALTER ROLE … SET. Settings you do not list are reset.",
        json_schema_extra=PARAMETERS_SCHEMA,
    )
    database_parameters: list[DatabaseParameters] = Field(
        default_factory=list,
        description=(
            "Settings for the role's sessions in specific databases, as in ALTER ROLE … IN DATABASE … SET. Settings "
            "you do not list are reset."
        ),
        max_length=32,
        json_schema_extra=map_schema(32, "database"),
    )
    privileges: Privileges | None = Field(
        default=None,
        description=(
            "What the role may do, by database. In each listed database, privileges you do not list are revoked; "
            "databases you do not list are left alone. If omitted, the controller does not manage the role's "
            "privileges. Privileges that the role has through PUBLIC or as an owner are never changed."
        ),
        json_schema_extra=PRIVILEGES_SCHEMA,
    )
    connection_secret: ConnectionSecret | None = Field(
        default=None,
        description="Secret with everything an application needs to connect as the role. This object owns it.",
    )
    drift: DriftSpec = Field(
        default=DriftSpec.model_construct(),
        description="How to handle changes of the role inside the database.",
        json_schema_extra={"default": {"policy": "Correct"}},
    )
    adopt: StrictBool = Field(
        default=False,
        description=(
            "Whether the object can take over an existing role. The role is not adopted if its attributes or "
            "memberships, or its privileges in the databases of spec.privileges, exceed what this object may request."
        ),
    )
    deletion_policy: Literal["Retain", "Drop"] = Field(
        default="Retain",
        description=(
            "What happens to the role when the object is deleted. Retain keeps the role in the database. Drop drops "
            "it, and the object remains until the role is dropped; to release the object at once, set Retain."
        ),
    )
    reassign_owned_to: OptionalRole = Field(
        default="",
        description=(
            "With Drop: the role that takes over the objects this role owns, in every database; privileges granted "
            "to this role are revoked. The new owner must be declared by another PgRole in this namespace or be "
            "allowed by the server's policy. If empty, a role that still owns objects, holds privileges on objects of "
            "others, or has members is not dropped."
        ),
        json_schema_extra={
            "maxLength": NAME_BYTES,
            **rules(
                rule(f"size(bytes(self)) <= {NAME_BYTES}", _NEW_OWNER_SIZE),
                rule(r"!self.contains('\u0000')", _NEW_OWNER_SIZE),
            ),
        },
    )
    terminate_sessions: StrictBool = Field(
        default=False,
        description="With Drop: whether to terminate the role's sessions instead of waiting for them to end.",
    )
    suspend: StrictBool = Field(
        default=False,
        description="Whether to suspend reconciliation. While true, the controller does not change the role.",
    )

    @model_validator(mode="after")
    def _check_twice(self) -> Self:
        check_once([one.role for one in self.member_of], _GROUP_TWICE)
        check_once([one.database for one in self.database_parameters], _DATABASE_TWICE)
        return self

    @model_validator(mode="after")
    def _check_delivery(self) -> Self:
        if self.password is not None and self.password.generate is not None and self.connection_secret is None:
            raise PydanticCustomError("password", _NOT_DELIVERED)
        if self.password is not None and self.password.generate is not None and "password" in self.drift.ignore:
            raise PydanticCustomError("password", _NOT_LEFT)
        return self


class PgRole(Model):
    """A PostgreSQL role. The controller keeps it as declared and detects drift in the database within milliseconds."""

    api_version: Literal["pgrole.dev/v1alpha1"] = "pgrole.dev/v1alpha1"
    kind: Literal["PgRole"] = "PgRole"
    metadata: ObjectMeta
    spec: PgRoleSpec = Field(
        description=(
            "Desired state of the role. Fields you omit are kept at PostgreSQL's defaults, except password and "
            "privileges, which are then not managed. Privileges that were declared before are revoked."
        ),
        json_schema_extra=rules(
            rule("self.serverRef.name == oldSelf.serverRef.name", _SERVER_FIXED, field_path=".serverRef.name"),
            immutable_optional("name", _NAME_FIXED),
            rule(
                "!has(self.password) || !has(self.password.generate) || has(self.connectionSecret)",
                _NOT_DELIVERED,
                field_path=".connectionSecret",
            ),
            rule(
                "!has(self.password) || !has(self.password.generate) || !has(self.drift.ignore) "
                "|| !('password' in self.drift.ignore)",
                _NOT_LEFT,
                field_path=".drift.ignore",
            ),
            # Of an object that has them already, Retain releases a blocked deletion.
            {
                **rule(
                    "self.deletionPolicy == 'Drop' || (self.reassignOwnedTo == '' && !self.terminateSessions) || "
                    "oldSelf.hasValue() && (oldSelf.value().deletionPolicy == 'Drop' || "
                    "oldSelf.value().reassignOwnedTo != '' || oldSelf.value().terminateSessions)",
                    _ONLY_WITH_DROP,
                    field_path=".deletionPolicy",
                ),
                "optionalOldSelf": True,
            },
        ),
    )
    status: PgRoleStatus | None = Field(
        default=None,
        description=(
            "Observed state of the role. The controller reads it to prove ownership of a role that has no claim "
            "in the database, and to continue its counts and histories."
        ),
        json_schema_extra={"default": {"observedGeneration": -1}},
    )

    @property
    def role_name(self) -> str:
        """Name of the role in PostgreSQL."""
        return self.metadata.name if self.spec.name is None else self.spec.name

    @model_validator(mode="after")
    def _check_default_name(self) -> Self:
        name = self.metadata.name
        if self.spec.name is None and (len(name.encode()) > NAME_BYTES or name in _RESERVED):
            raise PydanticCustomError("role_name", _DEFAULT_NAME)
        return self


#: For the whole object, where CEL sees metadata.name.
ROOT_RULES = rules(
    rule(
        f"has(self.spec.name) || (size(self.metadata.name) <= {NAME_BYTES} "
        "&& !(self.metadata.name in ['public', 'none']))",
        _DEFAULT_NAME,
        field_path=".spec.name",
    )
)
