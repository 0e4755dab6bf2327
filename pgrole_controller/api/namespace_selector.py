"""spec.allow.namespaces of a PgServer: whose PgRoles are admitted."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from pgrole_controller.api.meta import UNIQUE, Model
from pgrole_controller.api.validation import list_schema, rule, rules

_SELECTOR = "spec.allow.namespaces: set either matchNames, or matchLabels and matchExpressions, not both"
_REQUIREMENT = (
    "spec.allow.namespaces.matchExpressions: In and NotIn require values, Exists and DoesNotExist forbid them"
)


class LabelRequirement(Model):
    """One requirement of a label selector."""

    key: str = Field(description="Key of the label.", min_length=1, max_length=317)
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"] = Field(
        description="Operator that relates the key to the values."
    )
    values: list[Annotated[str, Field(max_length=63)]] = Field(
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

    match_names: Annotated[list[Annotated[str, Field(min_length=1, max_length=63)]], UNIQUE] = Field(
        default_factory=list,
        description='Patterns of namespace names, with * and ? as wildcards. "*" matches every namespace.',
        max_length=256,
        json_schema_extra=list_schema(256),
    )
    match_labels: dict[str, Annotated[str, Field(max_length=63)]] = Field(
        default_factory=dict,
        description="Labels that the namespace must have. All must match.",
        max_length=16,
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
