"""spec.memberOf of a PgRole: the roles it is a member of."""

from typing import Annotated

from pydantic import Field, StrictBool

from pgrole_controller.api.meta import Model, check_name, name_schema

_GROUP_SIZE = "spec.memberOf: role must have 1 to 63 bytes (UTF-8), like every name in PostgreSQL"
_GROUP_NUL = "spec.memberOf: role must not contain NUL (U+0000): remove it"


class MembershipSpec(Model):
    """A role to be a member of, with the options of GRANT."""

    role: Annotated[str, check_name(_GROUP_SIZE, _GROUP_NUL)] = Field(
        description="Name of the role in PostgreSQL. It does not have to exist yet.",
        json_schema_extra=name_schema(_GROUP_SIZE, _GROUP_NUL),
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
