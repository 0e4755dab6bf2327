"""An object as YAML. Its author chooses its size, so it is cut first: writing YAML is what takes time."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from pgrole_controller.console.json_reading import read_map
from pgrole_controller.core.errors import make_legible

#: Of one object: keys and values, characters of all texts together, and levels of nesting.
MOST_VALUES = 6_000
MOST_CHARACTERS = 150_000
DEEPEST = 32
LONGEST_YAML = 200_000  # characters; indentation and escapes count

_ORDER = {"apiVersion": 0, "kind": 1, "metadata": 2, "spec": 3, "status": 4}
_Dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)  # ten times as fast, in every wheel of PyYAML


def write_yaml(found: Mapping[str, Any]) -> str:
    """Returns the object as YAML without managedFields, cut if it is very long."""
    metadata = {name: value for name, value in read_map(found, "metadata").items() if name != "managedFields"}
    shown = {**found, "metadata": metadata} if metadata else dict(found)
    room = _YamlRoom(MOST_VALUES, MOST_CHARACTERS)
    kept = room.take(dict(sorted(shown.items(), key=lambda item: (_ORDER.get(str(item[0]), 5), str(item[0])))))
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
