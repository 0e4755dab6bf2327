"""What docs/architecture.md forbids, as far as import-linter cannot see it."""

import ast
import re
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import grimp
import pytest

import pgrole_controller

_ROOT = Path(pgrole_controller.__file__).parent
_SQL = re.compile(r"\s*(SELECT|INSERT|UPDATE|DELETE|WITH|CALL|SET|RESET|ALTER|GRANT|REVOKE|CREATE|DROP|LOCK|LISTEN)\s")


def _texts(path: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


@pytest.mark.parametrize("package", ["controller", "claims", "console", "kube"])
def test_it_contains_no_sql(package: str) -> None:
    found = [
        f"{path.relative_to(_ROOT)}:{line}"
        for path in sorted((_ROOT / package).rglob("*.py"))
        for line, text in _texts(path)
        if _SQL.match(text)
    ]
    assert found == []


def test_no_module_imports_itself_through_others() -> None:
    """Also not within a package, nor by an import in a function or for types alone."""
    graph = grimp.build_graph("pgrole_controller", cache_dir=None)
    TopologicalSorter({each: graph.find_modules_directly_imported_by(each) for each in graph.modules}).prepare()
