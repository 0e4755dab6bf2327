"""What the console keeps of an object: the fields that pages show, up to a size. The rest is read when it is asked for.

Authors choose labels, annotations and long lists, up to 1.5 MiB in each object. Pages show neither labels nor
annotations, except as YAML, for which the object is read once more.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

#: Bytes of JSON kept of spec and status, in bytes: of one object, and of one when the viewer's room is used up.
LARGEST = 32 * 1024
BRIEF = 2 * 1024
#: Where `keep_fields` names what it left out. No API object has such a field.
LEFT_OUT = "leftOut"

_METADATA = ("namespace", "name", "uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp")
_LONGEST_METADATA = 512  # characters; names have at most 253
_MOST_CONDITIONS = 8
_LONGEST_MESSAGE = 1024
_MOST_NAMES = 16
_LONGEST_NAME = 64

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def keep_fields(obj: Mapping[str, Any], most: int = LARGEST) -> dict[str, Any]:
    """Returns a new object with as many fields of spec and status as fit into `most` bytes, the small ones first.

    Conditions are always kept, with their messages cut. LEFT_OUT lists the others, as `spec.privileges`.
    """
    metadata = obj.get("metadata")
    kept: dict[str, Any] = {name: obj[name] for name in ("apiVersion", "kind") if isinstance(obj.get(name), str)}
    kept["metadata"] = _keep_metadata(metadata) if isinstance(metadata, dict) else metadata
    parts = sorted(_measure(obj), key=lambda part: (part[0] != "status.conditions", part[1]))
    left, room = [], most
    for path, size, value in parts:
        section, _, name = path.partition(".")
        if path == "status.conditions" and size > most // 2:
            value, size = _cut_conditions(value, most // 2), most // 2
        if size > room:
            left.append(path)
            continue
        room -= size
        kept.setdefault(section, {})[name] = value
    if left:
        kept[LEFT_OUT] = [path[:_LONGEST_NAME] for path in sorted(left)[:_MOST_NAMES]]
    return kept


def _keep_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _cut_text(metadata[name]) for name in _METADATA if name in metadata}


def _cut_text(value: object) -> object:
    return value[:_LONGEST_METADATA] if isinstance(value, str) else value if isinstance(value, int) else None


def _measure(obj: Mapping[str, Any]) -> Iterator[tuple[str, int, Any]]:
    """Yields path, bytes of JSON, and value of each field of spec and status."""
    for section in ("spec", "status"):
        fields = obj.get(section)
        if isinstance(fields, dict):
            for name, value in fields.items():
                yield f"{section}.{name}", len(_encode({name: value}).encode(errors="replace")), value


def _cut_conditions(conditions: object, most: int) -> list[dict[str, Any]]:
    found = [each for each in conditions if isinstance(each, dict)] if isinstance(conditions, list) else []
    found = sorted(found, key=lambda each: each.get("type") != "Ready")[:_MOST_CONDITIONS]
    longest = min(_LONGEST_MESSAGE, most // (4 * max(len(found), 1)))
    return [
        {
            name: value[:longest] if name == "message" else value[:_LONGEST_NAME]
            for name, value in each.items()
            if isinstance(value, str) and name in ("type", "status", "reason", "message", "lastTransitionTime")
        }
        for each in found
    ]
