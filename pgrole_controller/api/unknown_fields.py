"""Fields that a CRD does not define: kubectl rejects an object with them, the models ignore them."""

from collections.abc import Iterator, Mapping
from functools import cache
from itertools import islice
from typing import Any

from pgrole_controller.api.crd import DEFINITIONS, crd

_MOST_NAMED = 5


def find_unknown_fields(obj: Mapping[str, Any], kind: str) -> tuple[str, ...]:
    """The first unknown fields in `spec` of a PgRole or PgServer, as `spec.memberOf[0].rol`."""
    return tuple(islice(_unknown("spec", obj.get("spec"), _spec_schema(kind)), _MOST_NAMED))


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
