"""CRDs for ServiceMonitor and PrometheusRule, so that the API server can validate ours.

They define those fields of monitoring.coreos.com/v1 that we use and nothing else, so a misspelt field is rejected.
"""

from typing import Any

Json = dict[str, Any]

_TEXT: Json = {"type": "string"}
_DURATION: Json = {
    "type": "string",
    "pattern": r"^(0|(([0-9]+)y)?(([0-9]+)w)?(([0-9]+)d)?(([0-9]+)h)?(([0-9]+)m)?(([0-9]+)s)?(([0-9]+)ms)?)$",
}
_TEXTS: Json = {"type": "object", "additionalProperties": _TEXT}


def _object(required: tuple[str, ...], **properties: Json) -> Json:
    return {"type": "object", "required": list(required), "properties": properties}


def _list(items: Json) -> Json:
    return {"type": "array", "items": items}


_RULE = _object(
    ("expr",),
    alert=_TEXT,
    record=_TEXT,
    expr={"x-kubernetes-int-or-string": True, "anyOf": [{"type": "integer"}, {"type": "string"}]},
    labels=_TEXTS,
    annotations=_TEXTS,
    **{"for": _DURATION, "keep_firing_for": _DURATION},
)
_SPECS = {
    "ServiceMonitor": _object(
        ("endpoints", "selector"),
        selector=_object((), matchLabels=_TEXTS),
        endpoints=_list(_object((), port=_TEXT, path=_TEXT, interval=_DURATION)),
    ),
    "PrometheusRule": _object(
        (),
        groups=_list(
            _object(("name",), name={"type": "string", "minLength": 1}, interval=_DURATION, rules=_list(_RULE))
        ),
    ),
}


def definitions() -> list[Json]:
    """Returns the CRDs."""
    return [
        {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{kind.lower()}s.monitoring.coreos.com"},
            "spec": {
                "group": "monitoring.coreos.com",
                "names": {"kind": kind, "plural": f"{kind.lower()}s", "singular": kind.lower()},
                "scope": "Namespaced",
                "versions": [
                    {
                        "name": "v1",
                        "served": True,
                        "storage": True,
                        "schema": {"openAPIV3Schema": _object(("spec",), spec=spec)},
                    }
                ],
            },
        }
        for kind, spec in _SPECS.items()
    ]
