"""Where the password of a role comes from: `spec.password`."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from pgrole_controller.api.cel import rule, rules
from pgrole_controller.api.duration import between, duration_schema
from pgrole_controller.api.meta import Model
from pgrole_controller.api.names import LONGEST_NAME, OBJECT_KEY, OBJECT_NAME

_ONE_SOURCE = "spec.password must set exactly one of secretRef, generate and disabled: true"
_ROTATION = (
    "1s",
    "87600h",
    "spec.password.generate.rotateEvery must be a duration from 1s to 87600h, such as 720h or 1h30m",
)


class SecretRef(Model):
    """A key of a Secret in the object's namespace."""

    name: str = Field(description="Name of the Secret.", min_length=1, max_length=LONGEST_NAME, pattern=OBJECT_NAME)
    key: str = Field(
        default="password",
        description=(
            "Key of the Secret. Its value is the password in clear text, or a SCRAM-SHA-256 verifier in PostgreSQL's "
            "format with 4,096 to 100,000 iterations."
        ),
        min_length=1,
        max_length=LONGEST_NAME,
        pattern=OBJECT_KEY,
    )


class Generate(Model):
    """A password that the controller generates and stores only in the connection Secret."""

    length: int = Field(
        default=32,
        ge=16,
        le=256,
        description="Length of the generated password (16–256 letters and digits).",
        json_schema_extra={"format": "int32"},
    )
    rotate_every: Annotated[str, between(*_ROTATION)] | None = Field(
        default=None,
        description=(
            "Interval after which the controller generates a new password, such as 720h. If omitted, the password is "
            "not rotated on a schedule. To rotate at once, change the value of the annotation pgrole.dev/rotate."
        ),
        json_schema_extra=duration_schema(*_ROTATION),
    )


class Password(Model):
    """Source of the password. Set exactly one of secretRef, generate and disabled."""

    secret_ref: SecretRef | None = Field(
        default=None,
        description=(
            "Takes the password from a Secret. The controller applies every change of the Secret, and restores the "
            "password if someone changes it in the database."
        ),
    )
    generate: Generate | None = Field(
        default=None,
        description="Generates the password. The controller delivers it in the Secret of spec.connectionSecret.",
    )
    disabled: Literal[True] | None = Field(
        default=None,
        description="Keeps the role without a password (PASSWORD NULL).",
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
