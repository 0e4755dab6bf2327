"""Fields that a CRD does not define: kubectl rejects an object with them, the models ignore them."""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from pgrole_controller.api.crd import DEFINITIONS, crd

_MOST_NAMED = 5


def find_unknown_fields(obj: Mapping[str, Any], kind: str) -> tuple[str, ...]:
    """The first unknown fields in `spec` of an object, as `spec.memberOf[0].rol`; empty for a kind without a CRD."""
    schema = _spec_schema(kind)
    if schema is None:
        return ()
    found = _unknown("spec", obj.get("spec"), schema)
    return tuple(name for name, _ in zip(found, range(_MOST_NAMED), strict=False))


@cache
def _spec_schema(kind: str) -> Mapping[str, Any] | None:
    for definition in DEFINITIONS:
        if definition.kind == kind:
            root = crd(definition)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
            schema: Mapping[str, Any] = root["properties"]["spec"]
            return schema
    return None


def _unknown(place: str, value: object, schema: Mapping[str, Any]) -> Iterator[str]:
    known, others = schema.get("properties"), schema.get("additionalProperties")
    if isinstance(value, dict):
        for name, one in value.items():
            if known is not None and name in known:
                yield from _unknown(f"{place}.{name}", one, known[name])
            elif isinstance(others, dict):
                yield from _unknown(f"{place}.{name}", one, others)
            elif known is not None and not others and not schema.get("x-kubernetes-preserve-unknown-fields"):
                yield f"{place}.{name}"
    elif isinstance(value, list) and isinstance(schema.get("items"), dict):
        for number, one in enumerate(value):
            yield from _unknown(f"{place}[{number}]", one, schema["items"])
