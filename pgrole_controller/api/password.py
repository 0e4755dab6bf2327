"""Where the password of a role comes from: `spec.password`."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from pgrole_controller.api.cel import rule, rules
from pgrole_controller.api.duration import between, duration_schema
from pgrole_controller.api.meta import Model
from pgrole_controller.api.names import LONGEST_NAME, OBJECT_KEY, OBJECT_NAME

_ONE_SOURCE = "spec.password must have exactly one of secretRef, generate and disabled: true"
_ROTATION = (
    "1s",
    "87600h",
    "spec.password.generate.rotateEvery must be a duration of 1s to 87600h, such as 720h or 1h30m",
)


class SecretRef(Model):
    """A key of a Secret in the object's own namespace."""

    name: str = Field(description="Name of the Secret.", min_length=1, max_length=LONGEST_NAME, pattern=OBJECT_NAME)
    key: str = Field(
        default="password",
        description=(
            "Key of the Secret that holds the password in clear text, or a SCRAM-SHA-256 verifier with 4,096 to "
            "100,000 iterations as PostgreSQL stores it."
        ),
        min_length=1,
        max_length=LONGEST_NAME,
        pattern=OBJECT_KEY,
    )


class Generate(Model):
    """A password that is made by the controller and is in the connection Secret only."""

    length: int = Field(
        default=32,
        ge=16,
        le=256,
        description="Of how many letters and digits it is made.",
        json_schema_extra={"format": "int32"},
    )
    rotate_every: Annotated[str, between(*_ROTATION)] | None = Field(
        default=None,
        description=(
            "After what time another one is made, such as 720h; never when absent. The annotation pgrole.dev/rotate "
            "asks for another one at once, each time that its value changes."
        ),
        json_schema_extra=duration_schema(*_ROTATION),
    )


class Password(Model):
    """Where the password comes from."""

    secret_ref: SecretRef | None = Field(
        default=None, description="It is in a Secret, and follows it. Changed in the database, it is set back."
    )
    generate: Generate | None = Field(
        default=None, description="It is made by the controller, and delivered in spec.connectionSecret."
    )
    disabled: Literal[True] | None = Field(
        default=None,
        description="The role has no password (PASSWORD NULL), and is kept so.",
        json_schema_extra={"type": "boolean", "enum": [True]},
    )

    @model_validator(mode="after")
    def _check_source(self) -> Self:
        if sum(source is not None for source in (self.secret_ref, self.generate, self.disabled)) != 1:
            raise PydanticCustomError("password", _ONE_SOURCE)
        return self


#: For the field that holds a Password.
PASSWORD_RULES = rules(
    rule("[has(self.secretRef), has(self.generate), has(self.disabled)].filter(given, given).size() == 1", _ONE_SOURCE)
)
