"""No text from a server, an object or a log makes a regular expression take more than proportional time."""

import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterator

import pytest

import pgrole_controller
from pgrole_controller.core.audit_line import read_lines
from pgrole_controller.core.privileges import attribution
from pgrole_controller.core.privileges.grant_ddl import render_types
from pgrole_controller.core.privileges.routine_signature import normalize_arguments
from pgrole_controller.kube.unvalidated import read_json
from tests.cpu_time import within_a_callback

#: What a hostile text consists of. Nothing ends it, so that every way to match it is tried.
PARTS = (
    *('"', '""', '"a', "'", "a", "A", "_", "0", " ", "\\", '\\"', ".", ",", "-", "+", ":", "/", "$", "=", "@", "::"),
    *("(", "()", "(1,", "[", "[1]", "[ 1 ] ", " array", "{", "a.", "a ", "1.", "a.a ", '"".', "$a", "$a$", "/*", "--"),
    *("E'", "E''", "on ", "all ", "on all ", "grant ", "comment on ", "in out ", "x(1", "1m", "---\n", "[Errno 1"),
    *("statement: ", '"message":"statement: ', '"message":"execute ', "execute a", "textsend(", "SCRAM-SHA-256$1:a"),
)
END = "\0"

#: Short ones tell exponential from linear time, the long one quadratic from linear.
LENGTHS = (*range(16, 104, 8), 16_384)

#: Expressions that are applied to texts of at most so many characters.
BOUNDED = {"pgrole_controller.core.privileges.attribution._QUALIFIER": attribution._LONGEST_QUALIFIER}


def find_expressions() -> Iterator[tuple[str, Callable[[str | bytes], object], bool]]:
    """Yields name, function and whether it takes bytes, for each expression of each module, in the way it is used."""
    seen: set[tuple[int, bool]] = set()
    for found in pkgutil.walk_packages(pgrole_controller.__path__, "pgrole_controller."):
        if found.name.endswith("__main__"):
            continue
        module = importlib.import_module(found.name)
        for name, value in vars(module).items():
            if not isinstance(value, re.Pattern):
                continue
            used = re.search(rf"\b{name}\.(?:search|finditer|findall|sub|split)\(", inspect.getsource(module))
            searches = used is not None or not name.startswith("_")
            if (id(value), searches) not in seen:
                seen.add((id(value), searches))
                apply = value.search if searches else value.fullmatch
                yield f"{found.name}.{name}", apply, isinstance(value.pattern, bytes)


def test_every_expression_takes_time_in_proportion_to_the_text() -> None:
    count = 0
    for name, apply, takes_bytes in find_expressions():
        count += 1
        for part in PARTS:
            for length in LENGTHS:
                text = ((part * length)[:length] + END)[-BOUNDED.get(name, length + 1) :]
                with within_a_callback(f"{name}: {part!r}, {length} characters"):
                    apply(text.encode() if takes_bytes else text)
    assert count > 50, "those of the package"


def refuse_types(types: str) -> None:
    with pytest.raises(ValueError, match="type"):
        render_types(types)


def refuse_json(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        read_json(text.encode())


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (refuse_types, '"' * 64 + "-"),
        (refuse_types, '"a' * 10_000 + "-"),
        (normalize_arguments, "[1]" * 20_000 + "x"),
        (normalize_arguments, "int " + "[ 1 ] " * 10_000 + "x"),
        (lambda text: [*read_lines([text.encode()])], '"message":"statement: ' * 3_000),
        (refuse_json, "[" * 100_000 + '"' + '\\"' * 50_000),
    ],
    ids=["quotes", "names", "arrays", "spaced arrays", "log line", "string"],
)
def test_hostile_texts_are_read_within_a_callback(read: Callable[[str], object], text: str) -> None:
    with within_a_callback():
        read(text)
