"""The measured setup: a real API server, a real PostgreSQL, and the controller as a separate process."""

import json
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import anyio
import asyncpg

from pgrole_controller.local.apiserver import ApiServer, OwnApiServer, api_server
from pgrole_controller.local.binaries import find
from pgrole_controller.local.display import Display
from pgrole_controller.local.manifests import apply_crds, create_namespace
from pgrole_controller.local.postgres import PostgresServer, postgres
from pgrole_controller.local.process import Process, tied_to_parent

if TYPE_CHECKING:
    Connection = asyncpg.Connection[Any]
else:
    Connection = asyncpg.Connection

NAMESPACE = "bench"

_START_SECONDS = 60.0

#: PostgreSQL itself tells when it committed, so nothing has to poll it during a measurement.
_SETTINGS = {"track_commit_timestamp": "on"}


def role_name(number: int) -> str:
    """The role of the object `bench-NUMBER`."""
    return f"bench_{number}"


@dataclass(frozen=True, slots=True)
class BenchStand:
    api: OwnApiServer
    server: PostgresServer
    controller: Process
    display: Display

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Connection]:
        """A superuser's connection with asyncpg's defaults."""
        connection = await asyncpg.connect(self.server.dsn())
        try:
            yield connection
        finally:
            with anyio.CancelScope(shield=True):
                await connection.close(timeout=5)

    def log_records(self, message: str) -> list[dict[str, Any]]:
        """Returns the controller's log records with this message."""
        lines = self.controller.log.read_text(encoding="utf-8").splitlines()
        logged = [json.loads(line) for line in lines if message in line and line.startswith("{")]
        return [line for line in logged if line["message"] == message]

    async def start_controller(self) -> None:
        """Starts the controller, and waits until it works. Raises LocalError with the end of its log."""
        log = self.controller.log
        before = log.stat().st_size if log.exists() else 0
        await self.controller.start()
        with anyio.move_on_after(_START_SECONDS):
            while b"session with PostgreSQL begins" not in log.read_bytes()[before:]:
                if not self.controller.running:
                    raise self.controller.failure("ended")
                await anyio.sleep(0.05)
            return
        raise self.controller.failure(f"had no session with PostgreSQL after {_START_SECONDS:.0f} s")


@asynccontextmanager
async def stand(
    display: Display, profile: Path | None = None, settings: Mapping[str, str] | None = None
) -> AsyncIterator[BenchStand]:
    """Yields all of it, with a namespace and no objects; the controller is not started yet. Leaves nothing except
    `profile`, where cProfile writes what the controller did. `settings`: of the controller, as environment variables.
    """
    binaries = await find(display)
    with TemporaryDirectory(prefix="pgrole-bench-") as folder:
        async with postgres(settings=_SETTINGS) as server, api_server(binaries=binaries) as api:
            await apply_crds(api)
            await create_namespace(api, NAMESPACE)
            controller = _controller(api, server, Path(folder), profile, settings or {})
            try:
                yield BenchStand(api, server, controller, display)
            finally:
                with anyio.CancelScope(shield=True):
                    await controller.stop()


def _controller(
    api: ApiServer, server: PostgresServer, folder: Path, profile: Path | None, settings: Mapping[str, str]
) -> Process:
    profiled: list[str | Path] = ["-m", "cProfile", "-o", profile] if profile else []
    command: list[str | Path] = [
        *(sys.executable, *profiled, "-m", "pgrole_controller", "run", "--kubeconfig", api.kubeconfig),
        *("--health-port", "0", "--log-format", "json"),
    ]
    environment = {**os.environ, "PGROLE_DSN": server.dsn(), **settings}
    return Process("controller", tied_to_parent(command), folder / "controller.log", environment)
