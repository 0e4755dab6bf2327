"""A controller measured under attack, and the limits that no attack may exceed."""

import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from bench.processes import read_status
from pgrole_controller.local.apiserver import ApiServer
from tests.acceptance.service_account import ServiceAccount
from tests.acceptance.world import ExecutedController, running
from tests.cpu_time import LONGEST_CALLBACK

MEMORY_BYTES = 200 << 20
LOG_BYTES_A_MINUTE = 5_000_000


class TimedController(ExecutedController):
    """Started as in production (`--log-level info`), but through `tests.stopwatch`."""

    def __init__(
        self, access: ApiServer | ServiceAccount | Path, dsn: str, folder: Path, *arguments: str, **environment: str
    ) -> None:
        super().__init__(access, dsn, folder, "--log-level", "info", "--log-format", "json", *arguments, **environment)
        self._file = folder / "callbacks.json"
        command = self.process.command
        place = command.index("pgrole_controller")
        command[place : place + 1] = ["tests.stopwatch", str(self._file)]

    @property
    def callbacks(self) -> list[dict[str, Any]]:
        """Callbacks as in `tests.stopwatch.Callback`, longest first."""
        found: list[dict[str, Any]] = json.loads(self._file.read_text(encoding="utf-8"))
        return found

    @property
    def memory(self) -> int:
        """Its peak memory in bytes."""
        return read_status(self.process.pid, "VmHWM")


@asynccontextmanager
async def staying_responsive(controller: TimedController) -> AsyncIterator[TimedController]:
    """Runs the controller, and verifies that nothing ends it or makes it exceed its limits."""
    async with running(controller, connected=False):
        began = time.monotonic()
        yield controller
        check_calm(controller, time.monotonic() - began)


def check_calm(controller: TimedController, seconds: float) -> None:
    """`seconds`: how long it has run; for the limit on its log, at least a minute."""
    assert controller.process.running, controller.process.failure("ended")
    longest = controller.callbacks[0]
    assert longest["cpu"] < LONGEST_CALLBACK, f"{longest['name']}: {longest['cpu']:.3f} s\n{longest['stack']}"
    assert controller.memory < MEMORY_BYTES, f"{controller.memory >> 20} MiB"
    logged = controller.process.log.stat().st_size
    assert logged < LOG_BYTES_A_MINUTE * max(1.0, seconds / 60), f"{logged} bytes of log in {seconds:.0f} s"
