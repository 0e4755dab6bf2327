"""commands/history: the table on a terminal."""

import io
import re
from datetime import UTC, datetime

import pytest

from pgrole_controller.commands.history import as_table
from pgrole_controller.commands.output import NARROWEST, make_console
from pgrole_controller.core.listed_drift import ListedDrift
from pgrole_controller.core.privileges.privilege_result import DriftAuthor, Evidence

MOMENT = datetime(2026, 11, 26, 5, 43, 3, tzinfo=UTC)
BY = DriftAuthor(Evidence.TRANSACTION, "postgres", "", "psql", "127.0.0.1", MOMENT, "GRANT DELETE ON orders TO readers")
DRIFT = ListedDrift(
    "readers", MOMENT, MOMENT, ("privileges",), True, 1, "postgres", {}, ("DELETE on table public.orders granted",), BY
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("columns", "lines"), [("80", 2), ("109", 2), ("110", 6), ("250", 2)])
def test_times_proofs_and_results_are_never_folded(columns: str, lines: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal that is too narrow wraps whole rows."""
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    make_console(stream, least=NARROWEST).print(as_table([DRIFT]))
    said = re.sub(r"\x1b\[[\d;]*m", "", stream.getvalue()).splitlines()
    assert len(said) == lines
    for text in ("2026-11-26 05:43:03", "Transaction", "corrected"):
        assert text in said[1]
