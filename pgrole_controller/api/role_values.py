"""Values in the spec of a role that need more than a type: comment, time at which the password expires, settings of
sessions, memberships.
"""

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

from pydantic import AfterValidator, AwareDatetime, Field, StrictBool, ValidationError, WrapValidator
from pydantic_core import PydanticCustomError

from pgrole_controller.api.meta import NAME_BYTES, Model, check_name, name_schema
from pgrole_controller.api.validation import rule, rules

_COMMENT_LENGTH = 1024
_FIRST_MOMENT = datetime.min.replace(tzinfo=UTC)
_LAST_MOMENT = datetime.max.replace(tzinfo=UTC)
_RFC_3339 = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:[.,][0-9]+)?(?:Z|[+-][0-9]{2}:[0-9]{2})"
)
_FAR_OFFSET = re.compile(r"(.+)([+-])(?:(24):([0-5][0-9]|60)|([01][0-9]|2[0-3]):(60))")
_COMMENT_NUL = "spec.comment must not contain NUL (U+0000), which PostgreSQL cannot store: remove it"
_COMMENT_SIZE = f"spec.comment must have at most {_COMMENT_LENGTH} characters: shorten it"
_MOMENT_LENGTH = 64
_VALID_UNTIL_SIZE = f"spec.validUntil must have at most {_MOMENT_LENGTH} characters: shorten it"
_VALID_UNTIL = "spec.validUntil must be an RFC 3339 date-time with a time zone, in the years 1 to 9999"

_PARAMETER_NAMES = (
    "parameters: a name must begin with a letter or _, continue with letters, digits, _ or $, and have at most 63 "
    "characters; in custom names, dots separate such parts"
)
_PARAMETER_VALUES = "parameters: a value must have at most 1024 characters and no NUL (U+0000)"
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

#: As the models check them, for the API server.
COMMENT_SCHEMA: dict[str, Any] = {
    "maxLength": _COMMENT_LENGTH,
    **rules(rule(r"!self.contains('\u0000')", _COMMENT_NUL)),
}
MOMENT_SCHEMA: dict[str, Any] = {
    "maxLength": _MOMENT_LENGTH,
    **rules(
        rule(
            "self >= timestamp('0001-01-01T00:00:00Z') && self <= timestamp('9999-12-31T23:59:59.999999999Z')",
            _VALID_UNTIL,
        )
    ),
}

_GROUP_SIZE = "spec.memberOf: role must have 1 to 63 bytes (UTF-8), like every name in PostgreSQL"
_GROUP_NUL = "spec.memberOf: role must not contain NUL (U+0000): remove it"


def _check_comment(comment: str) -> str:
    if "\x00" in comment:
        raise PydanticCustomError("comment", _COMMENT_NUL)
    if len(comment) > _COMMENT_LENGTH:
        raise PydanticCustomError("comment", _COMMENT_SIZE)
    return comment


def _read_moment(value: object, read: Callable[[object], datetime]) -> datetime:
    """Of texts, reads those that the API server reads, also with an offset that Python does not: 24 hours or 60
    minutes.
    """
    if not isinstance(value, datetime) and not (isinstance(value, str) and _RFC_3339.fullmatch(value)):
        raise PydanticCustomError("moment", _VALID_UNTIL)
    if isinstance(value, str) and len(value) > _MOMENT_LENGTH:
        raise PydanticCustomError("moment", _VALID_UNTIL_SIZE)
    far = _FAR_OFFSET.fullmatch(value) if isinstance(value, str) else None
    try:
        if far is None:
            return read(value)
        offset = timedelta(hours=int(far[3] or far[5]), minutes=int(far[4] or far[6]))
        return read(f"{far[1]}Z") + (offset if far[2] == "-" else -offset)
    except (OverflowError, ValidationError) as error:
        raise PydanticCustomError("moment", _VALID_UNTIL) from error


def _check_moment(moment: datetime) -> datetime:
    if not _FIRST_MOMENT <= moment <= _LAST_MOMENT:
        raise PydanticCustomError("moment", _VALID_UNTIL)
    return moment


Comment = Annotated[str, AfterValidator(_check_comment)]
Timestamp = Annotated[AwareDatetime, WrapValidator(_read_moment), AfterValidator(_check_moment)]


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


class MembershipSpec(Model):
    """A role to be a member of, with the options of GRANT."""

    role: Annotated[str, check_name(_GROUP_SIZE, _GROUP_NUL)] = Field(
        description="Name of the role in PostgreSQL. It does not have to exist yet.",
        json_schema_extra=name_schema(_GROUP_SIZE, _GROUP_NUL),
    )
    admin: StrictBool = Field(default=False, description="Whether the member can grant the membership to others.")
    inherit: StrictBool = Field(
        default=True,
        description=(
            "Whether the member inherits the privileges of that role. False requires PostgreSQL 16 or later; before, "
            "spec.inherit decides."
        ),
    )
    set_: StrictBool = Field(
        default=True,
        alias="set",
        description="Whether the member can SET ROLE to that role. False requires PostgreSQL 16 or later.",
    )
