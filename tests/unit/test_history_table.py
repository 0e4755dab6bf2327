"""commands/history: the table on a terminal, and a cluster that refuses the list."""

import argparse
import io
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import pytest

from pgrole_controller.commands.history import _read, as_table
from pgrole_controller.commands.output import NARROWEST, make_console
from pgrole_controller.core.errors import Refused
from pgrole_controller.core.listed_drift import ListedDrift
from pgrole_controller.core.privileges.privilege_result import DriftAuthor, Evidence
from pgrole_controller.kube.errors import ApiError
from tests.commands import choose

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


class RefusingCluster:
    def __init__(self, status: int) -> None:
        self._status = status

    async def request(self, *_: object, **__: object) -> bytes:
        raise ApiError(self._status, "Refused", "no")


@pytest.mark.parametrize(("status", "namespace", "asks"), [(403, None, True), (403, "shop", False), (500, None, False)])
async def test_someone_who_may_not_list_all_namespaces_is_asked_to_name_one(
    monkeypatch: pytest.MonkeyPatch, status: int, namespace: str | None, asks: bool
) -> None:
    @asynccontextmanager
    async def connect(_: object) -> AsyncIterator[RefusingCluster]:
        yield RefusingCluster(status)

    monkeypatch.setattr("pgrole_controller.commands.history.open_cluster", connect)
    options = argparse.Namespace(since=60.0, database=None, role=None, limit=10)
    choice = choose(namespace=namespace)
    with pytest.raises(Refused if asks else ApiError, match="name one with -n" if asks else "no"):
        await _read(options, choice)
