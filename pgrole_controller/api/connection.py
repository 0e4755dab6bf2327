"""The Secret by which applications connect as the role: `spec.connectionSecret`."""

from typing import Any

from pydantic import Field

from pgrole_controller.api.cel import rule, rules
from pgrole_controller.api.meta import Model
from pgrole_controller.api.names import LONGEST_LABEL, LONGEST_NAME, OBJECT_KEY, OBJECT_NAME

_KEYS = "spec.connectionSecret.template.data: keys are letters, digits, -, _ and ., and have at most 253 characters"
_LONGEST_TEXT = 4096


def _texts(most: int, longest: int, *more: dict[str, Any]) -> dict[str, Any]:
    schema = {"additionalProperties": {"type": "string", "maxLength": longest}, "maxProperties": most}
    return {**schema, **rules(*more)} if more else schema


class TemplateMetadata(Model):
    """Labels and annotations of the Secret. Those of Kubernetes itself and of pgrole.dev are refused."""

    labels: dict[str, str] = Field(
        default_factory=dict, description="Labels of the Secret.", json_schema_extra=_texts(32, LONGEST_LABEL)
    )
    annotations: dict[str, str] = Field(
        default_factory=dict, description="Annotations of the Secret.", json_schema_extra=_texts(32, _LONGEST_TEXT)
    )


class Template(Model):
    """What the Secret holds."""

    metadata: TemplateMetadata = Field(
        default=TemplateMetadata.model_construct(),
        description="Labels and annotations.",
        json_schema_extra={"default": {}},
    )
    data: dict[str, str] = Field(
        default_factory=dict,
        description=(
            "Keys of the Secret and their texts, with fields in braces: {username}, {password}, {host}, {port}, "
            "{database}, {sslmode}; {username_url}, {password_url}, {host_url} and {database_url} for use in a URL, "
            "{username_pgpass} and so on in a pgpass file; {{ and }} are braces. When absent: username, password, "
            "host, port, database, sslmode, uri, jdbc-uri, pgpass."
        ),
        json_schema_extra=_texts(
            32,
            _LONGEST_TEXT,
            rule(f"self.all(key, size(key) <= {LONGEST_NAME} && key.matches('{OBJECT_KEY}'))", _KEYS),
        ),
    )


class ConnectionSecret(Model):
    """A Secret with what an application needs to connect; written, watched and repaired by the controller."""

    name: str = Field(
        description="Name of the Secret, in the object's own namespace. One that is not this object's is not touched.",
        min_length=1,
        max_length=LONGEST_NAME,
        pattern=OBJECT_NAME,
    )
    template: Template = Field(
        default=Template.model_construct(), description="What the Secret holds.", json_schema_extra={"default": {}}
    )
