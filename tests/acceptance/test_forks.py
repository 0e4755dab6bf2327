"""A forked controller behaves like one that was started as in production, apart from the time its imports take."""

import os
import signal
import tempfile
from pathlib import Path

import pytest

from pgrole_controller.local.process import Process
from tests.acceptance.world import Controller, ExecutedController, Stage

pytestmark = pytest.mark.slow

KINDS = (Controller, ExecutedController)


def controller(kind: type[Controller], stage: Stage, *arguments: str, **environment: str) -> Controller:
    folder = Path(tempfile.mkdtemp(dir=stage.folder))
    namespace = ("--namespace", stage.kube.namespace)
    return kind(stage.kube.server, stage.postgres.dsn(), folder, *namespace, *arguments, **environment)


def signals(pid: int) -> dict[str, str]:
    """Returns which signals the process blocks, ignores and handles."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    return dict(line.split(":\t", 1) for line in lines if line.startswith(("SigBlk", "SigIgn", "SigCgt")))


def files(process: Process) -> list[str]:
    """Returns what the process has open, in order, without numbers that differ each time."""
    opened = [path.readlink() for path in Path(f"/proc/{process.pid}/fd").iterdir()]
    return sorted("log" if path == process.log else str(path).partition(":[")[0] for path in opened)


def folder(pid: int) -> Path:
    return Path(f"/proc/{pid}/cwd").readlink()


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
async def test_a_forked_controller_has_the_signals_files_and_groups_of_an_executed_one(stage: Stage) -> None:
    found = []
    for kind in KINDS:
        one = controller(kind, stage)
        await one.start()
        await one.wait_log("session with PostgreSQL begins")
        await one.rest()
        pid = one.process.pid
        assert os.getpgid(pid) == os.getsid(pid) == pid
        found.append((signals(pid), files(one.process), folder(pid)))
        await one.kill()
        assert await one.process.wait() == -signal.SIGKILL
    forked, executed = found
    assert forked == executed


async def test_a_controller_of_either_kind_ends_with_success_and_reports_a_wrong_setting_in_the_same_way(
    stage: Stage,
) -> None:
    said = []
    for kind in KINDS:
        one = controller(kind, stage)
        await one.start()
        await one.wait_log("session with PostgreSQL begins")
        assert await one.stop() == 0, kind
        assert not one.process.running
        one = controller(kind, stage, PGROLE_RESYNC_INTERVAL="never")
        await one.start()
        said.append((await one.process.wait(), one.log))
    assert said[0] == said[1]
    assert said[0][0] == 2
    assert "PGROLE_RESYNC_INTERVAL" in said[0][1]
