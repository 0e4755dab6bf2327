"""Rules that the API server evaluates at admission (CEL, `x-kubernetes-validations`)."""

from typing import Any


def rule(expression: str, message: str, *, reason: str = "FieldValueInvalid", field_path: str = "") -> dict[str, Any]:
    """One rule. `field_path` (as `.serverRef.name`) tells which field is meant when the rule stands above it."""
    made = {"rule": expression, "message": message, "reason": reason}
    if field_path:
        made["fieldPath"] = field_path
    return made


def rules(*every: dict[str, Any]) -> dict[str, Any]:
    """The extras of a schema that holds these rules."""
    return {"x-kubernetes-validations": list(every)}


def immutable_optional(name: str, message: str) -> dict[str, Any]:
    """A rule for the object around an optional field: it can be neither changed, nor added later, nor removed.

    `self == oldSelf` at the field itself is not evaluated when either side is absent.
    """
    expression = f"has(self.{name}) == has(oldSelf.{name}) && (!has(self.{name}) || self.{name} == oldSelf.{name})"
    return rule(expression, message, field_path=f".{name}")
