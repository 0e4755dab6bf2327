"""Parses every file under sql/ with PostgreSQL's own parser, including PL/pgSQL; exits with 1 and names files that
fail, or have characters that are not ASCII: a database in another encoding may lack those, and rejects the file.
"""

import sys
from pathlib import Path

from pglast import ast, parse_plpgsql, parse_sql
from pglast.parser import ParseError
from pglast.stream import RawStream
from pglast.visitors import Visitor

ROOT = Path(__file__).parent.parent / "sql"


class _Routines(Visitor):
    """Collects the bodies of CREATE FUNCTION and CREATE PROCEDURE in PL/pgSQL."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def visit_CreateFunctionStmt(self, _ancestors: object, node: ast.CreateFunctionStmt) -> None:  # noqa: N802
        language = next(option.arg.sval for option in node.options or () if option.defname == "language")
        if language == "plpgsql":
            self.texts.append(RawStream()(node))


def parse(text: str) -> None:
    """Raises ParseError for invalid SQL or PL/pgSQL."""
    routines = _Routines()
    routines(parse_sql(text))
    for routine in routines.texts:
        parse_plpgsql(routine)


def main() -> int:
    failed = 0
    for path in sorted(ROOT.rglob("*.sql")):
        try:
            parse(path.read_text(encoding="ascii"))
        except (ParseError, UnicodeDecodeError) as error:
            failed += 1
            sys.stderr.write(f"{path.relative_to(ROOT.parent)}: {error}\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
