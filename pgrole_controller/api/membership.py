"""spec.memberOf of a PgRole: the roles it is a member of."""

from typing import Annotated

from pydantic import AfterValidator, Field, StrictBool
from pydantic_core import PydanticCustomError

from pgrole_controller.api.meta import NAME_BYTES, Model
from pgrole_controller.api.validation import rule, rules

_GROUP_SIZE = "spec.memberOf: role must have 1 to 63 bytes (UTF-8), like every name in PostgreSQL"
_GROUP_NUL = "spec.memberOf: role must not contain NUL (U+0000): remove it"


def _check_group(name: str) -> str:
    if not 1 <= len(name.encode()) <= NAME_BYTES:
        raise PydanticCustomError("group", _GROUP_SIZE)
    if "\x00" in name:
        raise PydanticCustomError("group", _GROUP_NUL)
    return name


GroupName = Annotated[str, AfterValidator(_check_group)]


class MembershipSpec(Model):
    """A role to be a member of, with the options of GRANT."""

    role: GroupName = Field(
        description="Name of the role in PostgreSQL. It does not have to exist yet.",
        json_schema_extra={
            "minLength": 1,
            "maxLength": NAME_BYTES,
            **rules(
                rule(f"size(bytes(self)) <= {NAME_BYTES}", _GROUP_SIZE), rule(r"!self.contains('\u0000')", _GROUP_NUL)
            ),
        },
    )
    admin: StrictBool = Field(default=False, description="Whether the member can grant the membership to others.")
    inherit: StrictBool = Field(
        default=True,
        description="Whether the member inherits the privileges of that role. False requires PostgreSQL 16 or later.",
    )
    set_: StrictBool = Field(
        default=True,
        alias="set",
        description="Whether the member can SET ROLE to that role. False requires PostgreSQL 16 or later.",
    )
