"""Generates the CustomResourceDefinitions from the models, and reads objects that no API server has read: finds the
fields that they do not define, which kubectl rejects and the models ignore, and removes nulls.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import Any, Literal

import yaml

from pgrole_controller.api.meta import Model
from pgrole_controller.api.pgrole import GROUP, ROOT_RULES, VERSION, PgRole
from pgrole_controller.api.pgserver import PgServer

Schema = dict[str, Any]

_HEADER = "# generated from pgrole_controller/api by `make crds`\n"

#: JSON Schema keywords that have no meaning in Kubernetes, or that it rejects.
_DROPPED = frozenset({"title", "$defs", "additionalProperties", "const"})

_API_VERSION = "Version of the schema of this object: pgrole.dev/v1alpha1."

_READY = '.status.conditions[?(@.type=="Ready")]'
_AGE = ("Age", "date", ".metadata.creationTimestamp", "Time since the object was created")

_MOST_NAMED = 5


@dataclass(frozen=True, slots=True)
class Definition:
    """A CustomResourceDefinition without its schema. `columns`: name, type, JSONPath, description."""

    model: type[Model]
    plural: str
    short: str
    scope: Literal["Namespaced", "Cluster"]
    columns: tuple[tuple[str, str, str, str], ...]
    rules: Mapping[str, Any]

    @property
    def kind(self) -> str:
        return self.model.__name__

    @property
    def file(self) -> str:
        return f"{GROUP}_{self.plural}.yaml"


PGROLE = Definition(
    model=PgRole,
    plural="pgroles",
    short="pgr",
    scope="Namespaced",
    columns=(
        ("Role", "string", ".status.role.name", "Name of the role in PostgreSQL"),
        ("Server", "string", ".spec.serverRef.name", "Name of the PgServer"),
        ("Ready", "string", f"{_READY}.status", "Whether the role matches the spec"),
        ("Reason", "string", f"{_READY}.reason", "Reason of the Ready condition"),
        ("Drifts", "integer", ".status.driftCount", "Number of times drift was corrected"),
        _AGE,
    ),
    rules=ROOT_RULES,
)

PGSERVER = Definition(
    model=PgServer,
    plural="pgservers",
    short="pgs",
    scope="Cluster",
    columns=(
        ("Ready", "string", f"{_READY}.status", "Whether the controller is connected as declared"),
        ("Reason", "string", f"{_READY}.reason", "Reason of the Ready condition"),
        ("Version", "string", ".status.version", "Version of PostgreSQL"),
        ("Mode", "string", ".status.detection.mode", "How the controller detects changes in the database"),
        ("Roles", "integer", ".status.roles.declared", "Number of PgRoles that reference the server"),
        ("Roles Ready", "integer", ".status.roles.ready", "Number of those PgRoles that are Ready"),
        _AGE,
    ),
    rules={},
)

DEFINITIONS = (PGROLE, PGSERVER)


def crd(definition: Definition = PGROLE) -> Schema:
    """Returns the CustomResourceDefinition in the form that the API server accepts."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{definition.plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "names": {
                "kind": definition.kind,
                "listKind": f"{definition.kind}List",
                "plural": definition.plural,
                "shortNames": [definition.short],
                "singular": definition.kind.lower(),
            },
            "scope": definition.scope,
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": [
                        {"name": name, "type": kind, "jsonPath": path, "description": description}
                        for name, kind, path, description in definition.columns
                    ],
                    "schema": {"openAPIV3Schema": _root_schema(definition)},
                }
            ],
        },
    }


def render(definition: Definition = PGROLE) -> str:
    """Renders the CustomResourceDefinition as YAML."""
    return _HEADER + yaml.dump(crd(definition), Dumper=_CrdDumper, sort_keys=False, allow_unicode=True, width=120)


def files() -> dict[str, str]:
    """Renders all files of `crds/`, as text by file name."""
    return {definition.file: render(definition) for definition in DEFINITIONS}


def _root_schema(definition: Definition) -> Schema:
    made = definition.model.model_json_schema(by_alias=True, mode="validation")
    properties = made["properties"]
    return {
        "type": "object",
        "description": made["description"],
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string", "description": _API_VERSION},
            "kind": {"type": "string", "description": f"Kind of the object: {definition.kind}."},
            "metadata": {"type": "object"},
            "spec": _structural(properties["spec"], made["$defs"]),
            "status": _structural(properties["status"], made["$defs"]),
        },
        **definition.rules,
    }


def _structural(schema: Mapping[str, Any], definitions: Mapping[str, Schema]) -> Schema:
    """Converts to a structural schema: without references, null (optional fields are absent) and titles."""
    schema = _without_null(_inlined(schema, definitions), definitions)
    result: Schema = {}
    for keyword, value in schema.items():
        match keyword:
            case "properties":
                result[keyword] = {name: _structural(field, definitions) for name, field in value.items()}
            case "items":
                result[keyword] = _structural(value, definitions)
            case "additionalProperties" if isinstance(value, dict):  # of a map; a flag means nothing in Kubernetes
                result[keyword] = value
            case _ if keyword not in _DROPPED:
                result[keyword] = value
    return result


def _inlined(schema: Mapping[str, Any], definitions: Mapping[str, Schema]) -> Schema:
    """Resolves a reference. Keywords beside it (a field's own description) take precedence over the referenced
    schema's.
    """
    if "$ref" not in schema:
        return dict(schema)
    own = {keyword: value for keyword, value in schema.items() if keyword != "$ref"}
    referred = definitions[schema["$ref"].rpartition("/")[2]]
    return {**_inlined(referred, definitions), **own}


def _without_null(schema: Schema, definitions: Mapping[str, Schema]) -> Schema:
    """Turns `X | None = None` into X without a default. Raises ValueError for any other union."""
    if "anyOf" not in schema:
        return schema
    own = {keyword: value for keyword, value in schema.items() if keyword != "anyOf" and value is not None}
    [choice] = [choice for choice in schema["anyOf"] if choice != {"type": "null"}]
    return {**_inlined(choice, definitions), **own}


class _CrdDumper(yaml.SafeDumper):
    """Indents lists below their key, and never writes aliases."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002
        super().increase_indent(flow, indentless=False)

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002
        return True


def find_unknown_fields(obj: Mapping[str, Any], kind: str) -> tuple[str, ...]:
    """The first unknown fields in `spec` of a PgRole or PgServer, as `spec.memberOf[0].rol`."""
    return tuple(islice(_unknown("spec", obj.get("spec"), _spec_schema(kind)), _MOST_NAMED))


def remove_nulls(obj: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Returns a PgRole or PgServer without the fields of `spec` that are null, as the API server stores it. Unknown
    fields stay.
    """
    return {name: _without_nulls(one, _spec_schema(kind)) if name == "spec" else one for name, one in obj.items()}


def _without_nulls(value: object, schema: Mapping[str, Any]) -> object:
    if isinstance(value, list) and "items" in schema:
        return [_without_nulls(one, schema["items"]) for one in value]
    if not isinstance(value, dict):
        return value
    known, others = schema.get("properties", {}), schema.get("additionalProperties")
    fields = ((name, one, known.get(name, others)) for name, one in value.items())
    return {
        name: one if field is None else _without_nulls(one, field)
        for name, one, field in fields
        if one is not None or field is None
    }


@cache
def _spec_schema(kind: str) -> Mapping[str, Any]:
    definition = next(one for one in DEFINITIONS if one.kind == kind)
    root = crd(definition)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    schema: Mapping[str, Any] = root["properties"]["spec"]
    return schema


def _unknown(place: str, value: object, schema: Mapping[str, Any]) -> Iterator[str]:
    known, others = schema.get("properties"), schema.get("additionalProperties")
    if isinstance(value, dict):
        for name, one in value.items():
            if known is not None and name in known:
                yield from _unknown(f"{place}.{name}", one, known[name])
            elif others is not None:
                yield from _unknown(f"{place}.{name}", one, others)
            elif known is not None:
                yield f"{place}.{name}"
    elif isinstance(value, list) and "items" in schema:
        for number, one in enumerate(value):
            yield from _unknown(f"{place}[{number}]", one, schema["items"])
