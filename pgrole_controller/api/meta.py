"""Common parts of Kubernetes objects: the metadata and conditions that the controller uses."""

from datetime import datetime
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

#: NAMEDATALEN - 1. PostgreSQL silently truncates longer names, so that two names become one.
NAME_BYTES = 63


def _check_unique(names: list[str]) -> list[str]:
    seen = set[str]()
    for name in names:
        if name in seen:
            raise PydanticCustomError("twice", '"{name}" is listed twice: remove one of them', {"name": name})
        seen.add(name)
    return names


#: For a list whose items differ. The API server enforces it through x-kubernetes-list-type: set.
UNIQUE = AfterValidator(_check_unique)

#: A pattern of names with * and ?; {namespace} is replaced.
Pattern = Annotated[str, Field(min_length=1, max_length=NAME_BYTES + len("{namespace}"))]


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
