"""doctor: servers are checked at the same time, and their findings are in the order of the servers and complete."""

import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import Mock

import anyio
import anyio.lowlevel
import pytest
from rich.console import Console

from pgrole_controller.commands import doctor
from pgrole_controller.commands.server_reading import SERVERS_AT_ONCE
from pgrole_controller.core.findings.finding import Finding, FindingState


async def test_servers_are_checked_at_once_within_a_limit_and_listed_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"server-{number:02}" for number in range(20)]
    running, most = 0, 0

    @asynccontextmanager
    async def open_cluster(_: object) -> AsyncIterator[None]:
        yield None

    async def find_servers(*_: object) -> tuple[list[Any], list[Finding]]:
        found = [Mock() for _ in names]
        for server, name in zip(found, names, strict=True):
            server.name = name
        return found, []

    async def check_server(server: Any, *_: object) -> list[Finding]:
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _step in range(1 + 3 * (len(names) - names.index(server.name))):  # the first ones take longest
            await anyio.lowlevel.checkpoint()
        running -= 1
        return [Finding(server.name, "connection", FindingState.OK, "reached")]

    class NoChecks:
        cluster, servers, databases = None, (), dict[str, tuple[str, ...]]()

        def __init__(self, *_: object) -> None: ...

        async def run(self) -> list[Finding]:
            return []

    monkeypatch.setattr(doctor, "open_cluster", open_cluster)
    monkeypatch.setattr(doctor, "ClusterChecks", NoChecks)
    monkeypatch.setattr(doctor, "_find_servers", find_servers)
    monkeypatch.setattr(doctor, "check_server", check_server)
    findings = await doctor.examine(Mock(dsn=None, server=None), None)
    assert [finding.area for finding in findings] == names
    assert most == SERVERS_AT_ONCE == 8


def test_a_narrow_terminal_folds_long_words_instead_of_cutting_them() -> None:
    """The end of an address, a path or an account is what tells it from others."""
    account = "system:serviceaccount:pgrole-system:pgrole-controller"
    stream = io.StringIO()
    finding = Finding("cluster", "the controller's permissions", FindingState.UNKNOWN, f"{account} has none")
    doctor.print_findings(Console(file=stream, width=40), [finding])
    assert "…" not in stream.getvalue()
    assert account in "".join(stream.getvalue().split())
