"""Objects of any shape and size: what the console keeps of one, how pages read it, and how they show it as YAML.

The API server validates objects, but an older CRD, or another version of the controller, can have written them. What
has another type than expected counts as absent, and texts are cut.

Authors choose labels, annotations and long lists, up to 1.5 MiB in each object. So the fields that pages show are kept,
up to a size. Pages show neither labels nor annotations, except as YAML, for which the object is read once more. It is
cut first: writing YAML is what takes time.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import yaml

from pgrole_controller.core.drift_record import read_moment
from pgrole_controller.core.errors import make_legible

#: Characters of one text on a page, and entries of one list. No field of a CRD allows more, except spec.privileges.
LONGEST_TEXT = 4096
MOST_ENTRIES = 512

#: Bytes of JSON kept of spec and status, in bytes: of one object, and of one when the viewer's room is used up.
LARGEST = 32 * 1024
BRIEF = 2 * 1024
#: Where `keep_fields` names what it left out, and when anything but the status last changed. No API object has these.
LEFT_OUT = "leftOut"
CHANGED = "changedAt"

_METADATA = ("namespace", "name", "uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp")
_LONGEST_METADATA = 512  # characters; names have at most 253
_MOST_CONDITIONS = 8
_LONGEST_MESSAGE = 1024
_MOST_NAMES = 16
_LONGEST_NAME = 64

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode

#: Of one object: keys and values, characters of all texts together, and levels of nesting.
MOST_VALUES = 6_000
MOST_CHARACTERS = 150_000
DEEPEST = 32
LONGEST_YAML = 200_000  # characters; indentation and escapes count

_YAML_ORDER = {"apiVersion": 0, "kind": 1, "metadata": 2, "spec": 3, "status": 4}
_Dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)  # ten times as fast, in every wheel of PyYAML


def read_map(value: object, *path: str) -> Mapping[str, Any]:
    """Returns the map at `path`, or an empty one."""
    for name in path:
        if not isinstance(value, Mapping):
            return {}
        value = value.get(name)
    return value if isinstance(value, Mapping) else {}


def read_text(value: object, *path: str, most: int = LONGEST_TEXT) -> str:
    """Returns the text at `path`, cut to `most` characters, or an empty one."""
    found = read_map(value, *path[:-1]).get(path[-1]) if path else value
    return found[:most] if isinstance(found, str) else ""


def read_number(value: object, *path: str) -> int | None:
    """Returns the whole number at `path`. None if there is none, or if it exceeds 64 bits."""
    found = read_map(value, *path[:-1]).get(path[-1])
    if isinstance(found, bool) or not isinstance(found, int):
        return None
    return found if abs(found) < 2**63 else None


def read_flag(value: object, *path: str) -> bool | None:
    """Returns the boolean at `path`, or None."""
    found = read_map(value, *path[:-1]).get(path[-1])
    return found if isinstance(found, bool) else None


def read_maps(value: object, *path: str, most: int = MOST_ENTRIES) -> Iterator[Mapping[str, Any]]:
    """Yields the maps in the list at `path`, at most `most`."""
    found = read_map(value, *path[:-1]).get(path[-1])
    if isinstance(found, list):
        yield from (each for each in found[:most] if isinstance(each, Mapping))


def read_texts(value: object, *path: str, most: int = MOST_ENTRIES) -> tuple[str, ...]:
    """Returns the texts in the list at `path`, at most `most`."""
    found = read_map(value, *path[:-1]).get(path[-1])
    if not isinstance(found, list):
        return ()
    return tuple(each[:LONGEST_TEXT] for each in found[:most] if isinstance(each, str))


def read_time(value: object, *path: str) -> datetime | None:
    """Returns the RFC 3339 time at `path` in UTC, or None."""
    return read_moment(read_text(value, *path, most=64))


def keep_fields(obj: Mapping[str, Any], most: int = LARGEST) -> dict[str, Any]:
    """Returns a new object with as many fields of spec and status as fit into `most` bytes, the small ones first.

    Conditions are always kept, with their messages cut. LEFT_OUT lists the others, as `spec.privileges`.
    """
    metadata = obj.get("metadata")
    kept: dict[str, Any] = {name: obj[name] for name in ("apiVersion", "kind") if isinstance(obj.get(name), str)}
    kept["metadata"] = _keep_metadata(metadata) if isinstance(metadata, dict) else metadata
    if changed := _find_change(metadata):
        kept[CHANGED] = changed
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


def _find_change(metadata: object) -> str:
    """Returns when a manager last changed anything but the status, in RFC 3339; empty if that is unknown."""
    entries = read_maps(metadata, "managedFields")
    return max((read_text(each, "time", most=64) for each in entries if not read_text(each, "subresource")), default="")


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


def write_yaml(found: Mapping[str, Any]) -> str:
    """Returns the object as YAML without managedFields, cut if it is very long."""
    metadata = {name: value for name, value in read_map(found, "metadata").items() if name != "managedFields"}
    shown = {**found, "metadata": metadata} if metadata else dict(found)
    room = _YamlRoom(MOST_VALUES, MOST_CHARACTERS)
    kept = room.take(dict(sorted(shown.items(), key=lambda item: (_YAML_ORDER.get(str(item[0]), 5), str(item[0])))))
    text = _dump(kept, readable=True)
    signs = text.replace("\n", "")
    if make_legible(signs) != signs:
        text = _dump(kept, readable=False)
    if room.is_full or len(text) > LONGEST_YAML:
        return f"{text[:LONGEST_YAML]}\n# cut: the object is longer\n"
    return text


def _dump(value: object, *, readable: bool) -> str:
    """`readable`: writes characters outside ASCII as they are, also those that cannot be seen."""
    return str(yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=readable, width=110))


@dataclass(slots=True)
class _YamlRoom:
    """The remaining budget of one document."""

    values: int
    characters: int
    is_full: bool = False

    def take(self, value: object, depth: int = 0) -> object:
        """Returns a copy of what fits: JSON's types only."""
        self.values -= 1
        if isinstance(value, str):
            return self._take_text(value)
        if isinstance(value, dict | list) and value and depth >= DEEPEST:
            self.is_full = True
            return None
        if isinstance(value, dict):
            kept = {}
            for name, each in value.items():
                if self._is_spent():
                    break
                kept[self._take_text(str(name))] = self.take(each, depth + 1)
            return kept
        if isinstance(value, list):
            listed = []
            for each in value:
                if self._is_spent():
                    break
                listed.append(self.take(each, depth + 1))
            return listed
        return value

    def _is_spent(self) -> bool:
        self.is_full = self.is_full or self.values <= 0 or self.characters <= 0
        return self.values <= 0 or self.characters <= 0

    def _take_text(self, text: str) -> str:
        kept = text[: max(self.characters, 0)]
        self.characters -= len(text)
        self.is_full = self.is_full or len(kept) < len(text)
        return kept.encode(errors="replace").decode()
