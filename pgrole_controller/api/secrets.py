"""The Secrets of a PgRole: `spec.password` and `spec.connectionSecret`."""

import re
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from pgrole_controller.api.meta import Integer, Model, check_label_keys
from pgrole_controller.api.validation import (
    LABEL_KEYS,
    LONGEST_LABEL,
    LONGEST_NAME,
    OBJECT_KEY,
    OBJECT_NAME,
    between,
    duration_schema,
    label_keys_rule,
    rule,
    rules,
)

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

    length: Integer = Field(
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


def _check_true(value: object) -> object:
    if value is not True:  # Literal takes 1 for it
        raise PydanticCustomError("disabled", "Input should be true")
    return value


class PasswordSpec(Model):
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
    disabled: Annotated[Literal[True], BeforeValidator(_check_true)] | None = Field(
        default=None,
        description="Keeps the role without a password (PASSWORD NULL).",
        json_schema_extra={"type": "boolean", "enum": [True]},
    )

    @model_validator(mode="after")
    def _check_source(self) -> Self:
        if sum(source is not None for source in (self.secret_ref, self.generate, self.disabled)) != 1:
            raise PydanticCustomError("password", _ONE_SOURCE)
        return self


#: For the field that holds a PasswordSpec.
PASSWORD_RULES = rules(
    rule("[has(self.secretRef), has(self.generate), has(self.disabled)].filter(given, given).size() == 1", _ONE_SOURCE)
)


_KEYS = "spec.connectionSecret.template.data: a key must consist of letters, digits, -, _ or ., at most 253 characters"
_LONGEST_TEXT = 4096


def _check_keys(data: dict[str, str]) -> dict[str, str]:
    if not all(len(key) <= LONGEST_NAME and re.fullmatch(OBJECT_KEY, key) for key in data):
        raise PydanticCustomError("keys", _KEYS)
    return data


_Label = Annotated[str, Field(max_length=LONGEST_LABEL)]
_Text = Annotated[str, Field(max_length=_LONGEST_TEXT)]
_KEYS_RULE = rule(f"self.all(key, size(key) <= {LONGEST_NAME} && key.matches('{OBJECT_KEY}'))", _KEYS)


_LABELS = f"spec.connectionSecret.template.metadata.labels: {LABEL_KEYS}"
_ANNOTATIONS = f"spec.connectionSecret.template.metadata.annotations: {LABEL_KEYS}"


class TemplateMetadata(Model):
    """Labels and annotations of the Secret. The prefixes of Kubernetes and of pgrole.dev are reserved."""

    labels: Annotated[dict[str, _Label], check_label_keys(_LABELS)] = Field(
        default_factory=dict,
        max_length=32,
        description="Labels of the Secret.",
        json_schema_extra=rules(label_keys_rule(_LABELS)),
    )
    annotations: Annotated[dict[str, _Text], check_label_keys(_ANNOTATIONS)] = Field(
        default_factory=dict,
        max_length=32,
        description="Annotations of the Secret.",
        json_schema_extra=rules(label_keys_rule(_ANNOTATIONS)),
    )


class SecretTemplate(Model):
    """Contents of the Secret."""

    metadata: TemplateMetadata = Field(
        default=TemplateMetadata.model_construct(),
        description="Labels and annotations.",
        json_schema_extra={"default": {}},
    )
    data: Annotated[dict[str, _Text], AfterValidator(_check_keys)] = Field(
        default_factory=dict,
        max_length=32,
        description=(
            "Keys of the Secret and their values. A value can contain the fields {username}, {password}, {host}, "
            "{port}, {database} and {sslmode}. Append _url for use in a URL ({username_url}, {password_url}, "
            "{host_url}, {database_url}) or _pgpass for use in a pgpass file ({username_pgpass} and so on). Write {{ "
            "and }} for literal braces. If omitted, the Secret has the keys username, password, host, port, database, "
            "sslmode, uri, jdbc-uri and pgpass."
        ),
        json_schema_extra=rules(_KEYS_RULE),
    )


class ConnectionSecret(Model):
    """A Secret with everything an application needs to connect. The controller writes, watches and repairs it."""

    name: str = Field(
        description=(
            "Name of the Secret, in the object's namespace. The controller never changes a Secret that this object "
            "does not own."
        ),
        min_length=1,
        max_length=LONGEST_NAME,
        pattern=OBJECT_NAME,
    )
    template: SecretTemplate = Field(
        default=SecretTemplate.model_construct(),
        description="Contents of the Secret.",
        json_schema_extra={"default": {}},
    )
