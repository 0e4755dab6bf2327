"""spec.allow of a PgServer: whose PgRoles are admitted, and what they may declare."""

from typing import Annotated, Literal, Self

from pydantic import Field, StrictBool, model_validator
from pydantic_core import PydanticCustomError

from pgrole_controller.api.meta import NAME_BYTES, UNIQUE, Model, Pattern, check_label_keys
from pgrole_controller.api.server_databases import AllowedPrivileges
from pgrole_controller.api.validation import (
    LABEL_KEYS,
    LONGEST_LABEL,
    LONGEST_LABEL_KEY,
    label_keys_rule,
    list_schema,
    rule,
    rules,
)

_SELECTOR = "spec.allow.namespaces: set either matchNames, or matchLabels and matchExpressions, not both"
_REQUIREMENT = (
    "spec.allow.namespaces.matchExpressions: In and NotIn require values, Exists and DoesNotExist forbid them"
)

_LABELS = f"spec.allow.namespaces.matchLabels: {LABEL_KEYS}"

Attribute = Literal["superuser", "createrole", "createdb", "replication", "bypassrls"]


class LabelRequirement(Model):
    """One requirement of a label selector."""

    key: str = Field(description="Key of the label.", min_length=1, max_length=LONGEST_LABEL_KEY)
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"] = Field(
        description="Operator that relates the key to the values."
    )
    values: list[Annotated[str, Field(max_length=LONGEST_LABEL)]] = Field(
        default_factory=list,
        description="Values of the label. In and NotIn require at least one; Exists and DoesNotExist forbid values.",
        max_length=64,
        json_schema_extra=list_schema(64, "atomic"),
    )

    @model_validator(mode="after")
    def _check_values(self) -> Self:
        if (self.operator in ("In", "NotIn")) != bool(self.values):
            raise PydanticCustomError("values", _REQUIREMENT)
        return self


class NamespaceSelector(Model):
    """Namespaces whose PgRoles are admitted, by name or by label."""

    match_names: Annotated[list[Annotated[str, Field(min_length=1, max_length=LONGEST_LABEL)]], UNIQUE] = Field(
        default_factory=list,
        description='Patterns of namespace names, with * and ? as wildcards. "*" matches every namespace.',
        max_length=256,
        json_schema_extra=list_schema(256),
    )
    match_labels: Annotated[dict[str, Annotated[str, Field(max_length=LONGEST_LABEL)]], check_label_keys(_LABELS)] = (
        Field(
            default_factory=dict,
            description="Labels that the namespace must have. All must match.",
            max_length=16,
            json_schema_extra=rules(label_keys_rule(_LABELS)),
        )
    )
    match_expressions: list[LabelRequirement] = Field(
        default_factory=list,
        description="Label selector requirements. All must match.",
        max_length=16,
        json_schema_extra=list_schema(16, "atomic"),
    )

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        if self.match_names and (self.match_labels or self.match_expressions):
            raise PydanticCustomError("namespaces", _SELECTOR)
        return self


#: For the field that holds a NamespaceSelector.
NAMESPACE_RULES = rules(
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
)


class Allow(Model):
    """Policy for the PgRoles on this server."""

    namespaces: NamespaceSelector = Field(
        default=NamespaceSelector.model_construct(),
        description="Namespaces whose PgRoles are admitted, by name or by label. If omitted, no namespace is admitted.",
        json_schema_extra={"default": {}, **NAMESPACE_RULES},
    )
    role_names: Annotated[list[Pattern], UNIQUE] = Field(
        default_factory=list,
        description=(
            "Patterns of role names that are allowed, with * and ? as wildcards; {namespace} stands for the object's "
            "namespace. If omitted, no names are allowed."
        ),
        max_length=64,
        json_schema_extra=list_schema(64),
    )
    attributes: Annotated[list[Attribute], UNIQUE] = Field(
        default_factory=list,
        description="Privileged attributes that a PgRole can set. All other attributes are always allowed.",
        max_length=5,
        json_schema_extra=list_schema(5),
    )
    member_of: Annotated[list[Pattern], UNIQUE] = Field(
        default_factory=list,
        description=(
            "Patterns of roles that a PgRole can be a member of, in the format of roleNames. The controller also "
            "checks the roles reached through them. The following roles must be listed by their exact name, without "
            "{namespace}: superusers, the controller's role, roles that give access to the server's files and "
            "programs, pg_write_all_data, protected roles, and roles with an attribute that is not allowed."
        ),
        max_length=256,
        json_schema_extra=list_schema(256),
    )
    parameters: Annotated[list[Annotated[str, Field(min_length=1, max_length=NAME_BYTES)]], UNIQUE] = Field(
        default_factory=list,
        description="Names of superuser-only parameters that a PgRole can set.",
        max_length=64,
        json_schema_extra=list_schema(64),
    )
    reassign_to: Annotated[list[Pattern], UNIQUE] = Field(
        default_factory=list,
        description=(
            "Patterns of roles that can take over the objects of a dropped role, in addition to the roles of the same "
            "namespace."
        ),
        max_length=64,
        json_schema_extra=list_schema(64),
    )
    privileges: list[AllowedPrivileges] | None = Field(
        default=None,
        description=(
            "Privileges that PgRoles can declare in spec.privileges: those that any of these rules allows. If omitted: "
            "privileges on objects that are owned by roles of PgRoles in the same namespace. Privileges that can "
            "give more than access to data, such as CREATE on a database or TRIGGER on a table of others, also require "
            "exact names: of the object in spec.privileges, and, without {namespace}, of its schema or database in a "
            "rule."
        ),
        max_length=64,
        json_schema_extra=list_schema(64, "atomic"),
    )
    adopt: StrictBool = Field(default=False, description="Whether PgRoles can adopt existing roles.")
    drop: StrictBool = Field(default=True, description="Whether PgRoles can have their roles dropped.")
