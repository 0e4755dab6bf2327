"""What docs/architecture.md forbids a package, as far as import-linter cannot see it."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

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
