"""Common parts of Kubernetes objects: the metadata and conditions that the controller uses."""

from datetime import datetime
from typing import Annotated, Any, LiteralString

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from pgrole_controller.api.validation import LONGEST_LABEL_KEY, rule, rules

#: NAMEDATALEN - 1. PostgreSQL silently truncates longer names, so that two names become one.
NAME_BYTES = 63

#: A pattern of names with * and ?; {namespace} is replaced.
Pattern = Annotated[str, Field(min_length=1, max_length=NAME_BYTES + len("{namespace}"))]


def check_name(size: LiteralString, nul: LiteralString) -> AfterValidator:
    """Returns the validator of a name in PostgreSQL, with the messages for a wrong size and for NUL."""

    def check(name: str) -> str:
        if not 1 <= len(name.encode()) <= NAME_BYTES:
            raise PydanticCustomError("name", size)
        if "\x00" in name:
            raise PydanticCustomError("name", nul)
        return name

    return AfterValidator(check)


def name_schema(size: str, nul: str) -> dict[str, Any]:
    """Returns the same check for the API server."""
    checks = rules(rule(f"size(bytes(self)) <= {NAME_BYTES}", size), rule(r"!self.contains('\u0000')", nul))
    return {"minLength": 1, "maxLength": NAME_BYTES, **checks}


def check_label_keys(told: LiteralString) -> AfterValidator:
    """Returns the validator of keys of labels or annotations, with the message for one that is too long."""

    def check(labels: dict[str, str]) -> dict[str, str]:
        if max(map(len, labels), default=0) > LONGEST_LABEL_KEY:
            raise PydanticCustomError("keys", told)
        return labels

    return AfterValidator(check)


def check_once(names: list[str], problem: LiteralString) -> None:
    """The API server enforces this through the list's type and key; objects built in Python have only this check."""
    seen = set[str]()
    for name in names:
        if name in seen:
            raise PydanticCustomError("twice", problem, {"name": name})
        seen.add(name)


def _check_unique(names: list[str]) -> list[str]:
    check_once(names, '"{name}" is listed twice: remove one of them')
    return names


#: For a list whose items differ.
UNIQUE = AfterValidator(_check_unique)


def _check_integer(value: object) -> object:
    if isinstance(value, (bool, str, bytes)):
        raise PydanticCustomError("int_type", "Input should be a valid integer")
    return value


#: As the API server reads one: 20.0 is an integer, "20" and true are none.
Integer = Annotated[int, BeforeValidator(_check_integer)]


class Model(BaseModel):
    """Uses camelCase in YAML and snake_case in Python. Unknown fields are ignored: a newer CRD may define more."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        validate_by_alias=True,
        validate_by_name=True,
        extra="ignore",
        frozen=True,
        defer_build=True,  # each model is built on first use, nested ones with it
    )


class ObjectMeta(Model):
    """Metadata. Objects built here set `name`, `namespace`, labels and annotations; the API server adds the rest."""

    name: str = Field(min_length=1)
    namespace: str | None = None
    uid: str | None = None
    resource_version: str | None = None
    generation: int | None = None
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    finalizers: list[str] | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class Condition(Model):
    """One aspect of the state of the object."""

    type: str = Field(
        description="Type of the condition, in CamelCase.",
        json_schema_extra={"minLength": 1, "maxLength": 316, "pattern": "^[A-Za-z][A-Za-z0-9]*$"},
    )
    status: str = Field(
        description="Status of the condition: True, False or Unknown.",
        json_schema_extra={"enum": ["True", "False", "Unknown"]},
    )
    reason: str = Field(
        description="Machine-readable reason, in CamelCase.",
        json_schema_extra={"minLength": 1, "maxLength": 1024, "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"},
    )
    message: str = Field(
        description="Human-readable explanation and remedy.",
        json_schema_extra={"maxLength": 32768},
    )
    last_transition_time: datetime = Field(description="Time of the last change of the condition's status.")
    observed_generation: int | None = Field(
        default=None,
        description="The metadata.generation that the condition was set for.",
        json_schema_extra={"format": "int64", "minimum": 0},
    )
