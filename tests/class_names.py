"""Lint: a class name is used once in the package, its tests and bench, so a reader who searches for it finds one class.

So is the name of a type alias, among classes too. Exempt are TypeVars, which mean something only where they stand, and
an alias that tests repeat word for word. `python -m tests.class_names` prints each name that stands for several things,
with its places, and then exits with 1.
"""

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path(__file__).parent.parent
_PACKAGE = "pgrole_controller"
_FOLDERS = tuple(_ROOT / name for name in (_PACKAGE, "tests", "bench"))

#: At least one lower-case letter, and no underscore: constants have none or one.
_CAMEL_CASE = re.compile("_?[A-Z](?=.*[a-z])[A-Za-z0-9]*")


@dataclass(frozen=True, slots=True)
class _NamedThing:
    """`alias`: what an alias stands for; empty for a class."""

    folder: str
    place: str
    private: bool
    alias: str = ""


def find_duplicates(*folders: Path) -> dict[str, list[str]]:
    """Returns names of classes and aliases defined more than once below `folders`, with `path:line` of each definition.

    Private names count too, except if all are private, since those are visible only in their own modules.
    """
    defined: dict[str, list[_NamedThing]] = defaultdict(list)
    for folder in folders:
        for path in sorted(folder.rglob("*.py")):
            for name, line, alias in _definitions(ast.parse(path.read_text())):
                place = f"{path.relative_to(folder.parent)}:{line}"
                defined[name.lstrip("_")].append(_NamedThing(folder.name, place, name.startswith("_"), alias))
    return {
        name: [f"{one.place}{' (private)' * one.private}" for one in found]
        for name, found in sorted(defined.items())
        if len(found) > 1 and not all(one.private for one in found) and not _is_repeated_alias(found)
    }


def _is_repeated_alias(found: list[_NamedThing]) -> bool:
    return (
        found[0].alias != ""
        and len({one.alias for one in found}) == 1
        and sum(one.folder == _PACKAGE for one in found) <= 1
    )


def _definitions(tree: ast.Module) -> Iterator[tuple[str, int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield node.name, node.lineno, ""
    for statement in tree.body:
        target = statement.targets[0] if isinstance(statement, ast.Assign) else getattr(statement, "target", None)
        value = getattr(statement, "value", None)
        if isinstance(target, ast.Name) and _CAMEL_CASE.fullmatch(target.id) and value is not None:
            text = ast.unparse(value)
            if not text.startswith("TypeVar("):
                yield target.id, statement.lineno, text


def main() -> int:
    duplicates = find_duplicates(*_FOLDERS)
    for name, places in duplicates.items():
        sys.stderr.write(f"{name} is defined more than once: {', '.join(places)}\n")
    return 1 if duplicates else 0


if __name__ == "__main__":
    sys.exit(main())
