"""Lint: a class name is used once in the package, so a reader who searches for it finds one class.

`python -m tests.class_names` prints each name that stands for several classes, with its places, and then exits with 1.
"""

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

_PACKAGE = Path(__file__).parent.parent / "pgrole_controller"


def find_duplicates(package: Path) -> dict[str, list[str]]:
    """Returns class names defined more than once below `package`, with `path:line` of each definition.

    Private names count too, except if both are private, since those are visible only in their own modules.
    """
    places: dict[str, list[str]] = defaultdict(list)
    for path in sorted(package.rglob("*.py")):
        for name, line in _classes(ast.parse(path.read_text())):
            places[name.lstrip("_")].append(
                f"{path.relative_to(package.parent)}:{line}{' (private)' * name.startswith('_')}"
            )
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
    duplicates = find_duplicates(_PACKAGE)
    for name, places in duplicates.items():
        sys.stderr.write(f"class {name} is defined more than once: {', '.join(places)}\n")
    return 1 if duplicates else 0


if __name__ == "__main__":
    sys.exit(main())
