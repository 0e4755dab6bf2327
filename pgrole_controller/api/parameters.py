"""Settings of a role's sessions: `spec.parameters` and `spec.databaseParameters`."""

import re
from typing import Annotated, Any

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from pgrole_controller.api.meta import NAME_BYTES, Model, check_name, name_schema
from pgrole_controller.api.validation import rule, rules

_PARAMETER_NAMES = (
    "a parameter name must consist of letters, digits, _ or $, with dots in custom names, at most 63 characters"
)
_PARAMETER_VALUES = "a parameter value must have at most 1024 characters and no NUL (U+0000)"
_TWICE = "parameter names are case-insensitive: remove one of the two names that differ only in case"
_PARAMETER_TWICE = "{first} and {second} are the same parameter, since names are case-insensitive: remove one of them"
_DATABASE_SIZE = "spec.databaseParameters: database must have 1 to 63 bytes (UTF-8), like every name in PostgreSQL"
_DATABASE_NUL = "spec.databaseParameters: database must not contain NUL (U+0000): remove it"
_VALUE_LENGTH = 1024
_MOST_PARAMETERS = 64
_PARAMETER_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_$]*([.][A-Za-z_][A-Za-z0-9_$]*)*")
PARAMETERS_SCHEMA: dict[str, Any] = {
    "additionalProperties": {"type": "string", "maxLength": _VALUE_LENGTH},
    "maxProperties": _MOST_PARAMETERS,
    **rules(
        rule(
            f"self.all(name, size(name) <= {NAME_BYTES} && name.matches('^{_PARAMETER_NAME.pattern}$'))",
            _PARAMETER_NAMES,
        ),
        rule("self.all(one, self.exists_one(name, name.lowerAscii() == one.lowerAscii()))", _TWICE),
        rule(r"self.all(name, !self[name].contains('\u0000'))", _PARAMETER_VALUES),
    ),
}


def _check_parameters(parameters: dict[str, str]) -> dict[str, str]:
    for name, value in parameters.items():
        if not _PARAMETER_NAME.fullmatch(name) or len(name) > NAME_BYTES:
            raise PydanticCustomError("parameter", _PARAMETER_NAMES)
        if "\x00" in value or len(value) > _VALUE_LENGTH:
            raise PydanticCustomError("parameter", _PARAMETER_VALUES)
    spelt: dict[str, str] = {}
    for name in parameters:
        first = spelt.setdefault(name.lower(), name)
        if first != name:
            raise PydanticCustomError("parameter", _PARAMETER_TWICE, {"first": first, "second": name})
    return parameters


ParameterMap = Annotated[dict[str, str], Field(max_length=_MOST_PARAMETERS), AfterValidator(_check_parameters)]


class DatabaseParameters(Model):
    """Settings for the role's sessions in one database."""

    database: Annotated[str, check_name(_DATABASE_SIZE, _DATABASE_NUL)] = Field(
        description="Name of the database. It does not have to exist yet.",
        json_schema_extra=name_schema(_DATABASE_SIZE, _DATABASE_NUL),
    )
    parameters: ParameterMap = Field(
        description="Settings, as in ALTER ROLE … IN DATABASE … SET. Settings you do not list are reset.",
        json_schema_extra=PARAMETERS_SCHEMA,
    )
