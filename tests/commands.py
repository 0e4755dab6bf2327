"""Runs the program's commands in this process: starting Python for each would cost more than the command does."""

import io
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any
from unittest.mock import patch

import anyio
import anyio.to_thread
import pytest

from pgrole_controller.cli import main
from pgrole_controller.commands.server_reading import ClusterChoice, ServerChoice

NO_CLUSTER = "/nonexistent/kubeconfig"

_SECONDS = 240.0

#: Held while a command has this process's environment, arguments and standard files.
_ALONE = Lock()


@dataclass(frozen=True, slots=True)
class CommandAnswer:
    code: int
    out: str
    err: str

    def json(self) -> Any:
        assert self.code != 2, self.err
        return json.loads(self.out)


async def run_command(*arguments: str, program: str = "pgrole-controller", **environment: str | None) -> CommandAnswer:
    """Runs a command without a terminal, and without a cluster unless the environment names one. None unsets a
    variable.
    """
    with anyio.fail_after(_SECONDS):
        return await anyio.to_thread.run_sync(partial(_run, program, arguments, environment), abandon_on_cancel=True)


def _run(program: str, arguments: Sequence[str], environment: Mapping[str, str | None]) -> CommandAnswer:
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace")
    with (
        _ALONE,
        Path(os.devnull).open(encoding="utf-8") as nothing,
        patch.dict(os.environ, make_environment(**{"KUBECONFIG": NO_CLUSTER, **environment}), clear=True),
        patch.multiple(sys, argv=[program, *arguments], stdin=nothing, stdout=out, stderr=err),
        pytest.raises(SystemExit) as ended,
    ):
        main(arguments)
    for file in (out, err):
        file.seek(0)
    assert isinstance(ended.value.code, int)
    return CommandAnswer(ended.value.code, out.read(), err.read())


def make_environment(**environment: str | None) -> dict[str, str]:
    """Returns this process's environment with these variables; None unsets one."""
    given = {**os.environ, **environment}
    return {name: value for name, value in given.items() if value is not None}


def choose(
    *,
    dsn: str | None = None,
    server: str | None = None,
    own_namespace: str = "pgrole-system",
    kubeconfig: str | None = None,
    context: str | None = None,
    namespace: str | None = None,
) -> ServerChoice:
    """Returns what `server_choice` returns for these arguments."""
    cluster = ClusterChoice(kubeconfig=kubeconfig, context=context, namespace=namespace)
    return ServerChoice(dsn=dsn, server=server, own_namespace=own_namespace, cluster=cluster)
