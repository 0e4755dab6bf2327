"""Runs commands that look at roles in this process, and mends what `doctor` finds as its reader would."""

import io
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import Any
from unittest.mock import patch

import anyio.to_thread
import asyncpg
import pytest

from pgrole_controller.cli import main
from pgrole_controller.commands.arguments import ServerChoice
from pgrole_controller.commands.doctor import examine
from pgrole_controller.core.finding import Finding, FindingState, RemedyKind
from pgrole_controller.local.postgres import PostgresServer

NO_CLUSTER = "/nonexistent/kubeconfig"

#: Held while a command has this process's environment and standard files.
_ALONE = Lock()


@dataclass(frozen=True, slots=True)
class CommandAnswer:
    code: int
    out: str
    err: str

    def json(self) -> Any:
        assert self.code in (0, 1), self.err
        return json.loads(self.out)


async def run_command(*arguments: str, **environment: str) -> CommandAnswer:
    """Starting Python for each would cost more than the command does."""
    return await anyio.to_thread.run_sync(partial(_run, arguments, environment))


def _run(arguments: Sequence[str], environment: Mapping[str, str]) -> CommandAnswer:
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace")
    given = {"KUBECONFIG": NO_CLUSTER, **environment}
    with (
        _ALONE,
        patch.dict(os.environ, given),
        patch.multiple(sys, stdout=out, stderr=err),
        pytest.raises(SystemExit) as ended,
    ):
        main(arguments)
    for file in (out, err):
        file.seek(0)
    assert isinstance(ended.value.code, int)
    return CommandAnswer(ended.value.code, out.read(), err.read())


def choose(**chosen: str) -> ServerChoice:
    fields: dict[str, str | None] = {"dsn": None, "server": None, "kubeconfig": NO_CLUSTER, "context": None, **chosen}
    return ServerChoice(
        dsn=fields["dsn"],
        server=fields["server"],
        kubeconfig=fields["kubeconfig"],
        context=fields["context"],
        namespace=chosen.get("namespace"),
        own_namespace=chosen.get("own_namespace", "pgrole-system"),
    )


async def examined(dsn: str, login: str | None = None) -> dict[str, list[Finding]]:
    """The findings on the server of a DSN, by check."""
    return by_check(await examine(choose(dsn=dsn), login))


def by_check(findings: Sequence[Finding]) -> dict[str, list[Finding]]:
    return {check: [one for one in findings if one.check == check] for check in {one.check for one in findings}}


def states(findings: Sequence[Finding]) -> set[FindingState]:
    return {finding.state for finding in findings}


async def follow(server: PostgresServer, findings: Sequence[Finding]) -> None:
    """Runs, as a superuser, every statement that the findings print, in its database."""
    for finding in findings:
        for remedy in finding.remedies:
            assert remedy.kind is RemedyKind.SQL, remedy
            connection = await asyncpg.connect(server.dsn(database=remedy.database or "postgres"))
            try:
                await connection.execute(remedy.command)
            finally:
                await connection.close()
