"""Fixtures of the tests."""

import ast
from pathlib import Path

TESTS = Path(__file__).parent.parent


def test_no_async_fixture_looks_up_another_fixture() -> None:
    """pytest-asyncio can set up none while one runs: whether it fails depends on which tests ran before."""
    found = [
        f"{path.relative_to(TESTS)}:{call.lineno}"
        for path in TESTS.rglob("*.py")
        if "getfixturevalue" in (text := path.read_text(encoding="utf-8"))
        for function in ast.walk(ast.parse(text))
        if isinstance(function, ast.AsyncFunctionDef)
        for call in ast.walk(function)
        if isinstance(call, ast.Attribute) and call.attr == "getfixturevalue"
    ]
    assert found == []
