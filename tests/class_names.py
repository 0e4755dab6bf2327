"""Lint: a class name is used once in the package, its tests and bench, so a reader who searches for it finds one class.

`python -m tests.class_names` prints each name that stands for several classes, with its places, and then exits with 1.
"""

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path(__file__).parent.parent
_FOLDERS = tuple(_ROOT / name for name in ("pgrole_controller", "tests", "bench"))


def find_duplicates(*folders: Path) -> dict[str, list[str]]:
    """Returns class names defined more than once below `folders`, with `path:line` of each definition.

    Private names count too, except if both are private, since those are visible only in their own modules.
    """
    places: dict[str, list[str]] = defaultdict(list)
    for folder in folders:
        for path in sorted(folder.rglob("*.py")):
            for name, line in _classes(ast.parse(path.read_text())):
                place = f"{path.relative_to(folder.parent)}:{line}"
                places[name.lstrip("_")].append(f"{place}{' (private)' * name.startswith('_')}")
    return {
        name: found
        for name, found in sorted(places.items())
        if len(found) > 1 and not all(place.endswith("(private)") for place in found)
    }


def _classes(tree: ast.Module) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield node.name, node.lineno


def main() -> int:
    duplicates = find_duplicates(*_FOLDERS)
    for name, places in duplicates.items():
        sys.stderr.write(f"class {name} is defined more than once: {', '.join(places)}\n")
    return 1 if duplicates else 0


if __name__ == "__main__":
    sys.exit(main())
