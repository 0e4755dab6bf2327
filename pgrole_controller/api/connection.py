"""The Secret by which applications connect as the role: `spec.connectionSecret`."""

from typing import Any

from pydantic import Field

from pgrole_controller.api.cel import rule, rules
from pgrole_controller.api.meta import Model
from pgrole_controller.api.names import LONGEST_LABEL, LONGEST_NAME, OBJECT_KEY, OBJECT_NAME

_KEYS = "spec.connectionSecret.template.data: a key must consist of letters, digits, -, _ or ., at most 253 characters"
_LONGEST_TEXT = 4096


def _texts(most: int, longest: int, *more: dict[str, Any]) -> dict[str, Any]:
    schema = {"additionalProperties": {"type": "string", "maxLength": longest}, "maxProperties": most}
    return {**schema, **rules(*more)} if more else schema


class TemplateMetadata(Model):
    """Labels and annotations of the Secret. The prefixes of Kubernetes and of pgrole.dev are reserved."""

    labels: dict[str, str] = Field(
        default_factory=dict, description="Labels of the Secret.", json_schema_extra=_texts(32, LONGEST_LABEL)
    )
    annotations: dict[str, str] = Field(
        default_factory=dict, description="Annotations of the Secret.", json_schema_extra=_texts(32, _LONGEST_TEXT)
    )


class Template(Model):
    """Contents of the Secret."""

    metadata: TemplateMetadata = Field(
        default=TemplateMetadata.model_construct(),
        description="Labels and annotations.",
        json_schema_extra={"default": {}},
    )
    data: dict[str, str] = Field(
        default_factory=dict,
        description=(
            "Keys of the Secret and their values. A value can contain the fields {username}, {password}, {host}, "
            "{port}, {database} and {sslmode}. Append _url for use in a URL ({username_url}, {password_url}, "
            "{host_url}, {database_url}) or _pgpass for use in a pgpass file ({username_pgpass} and so on). Write {{ "
            "and }} for literal braces. If omitted, the Secret has the keys username, password, host, port, database, "
            "sslmode, uri, jdbc-uri and pgpass."
        ),
        json_schema_extra=_texts(
            32,
            _LONGEST_TEXT,
            rule(f"self.all(key, size(key) <= {LONGEST_NAME} && key.matches('{OBJECT_KEY}'))", _KEYS),
        ),
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
    template: Template = Field(
        default=Template.model_construct(), description="Contents of the Secret.", json_schema_extra={"default": {}}
    )
