"""Measures a start: CPU and memory of the controller until its first request to the API server."""

import asyncio
import os
import socket
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio

from bench.processes import Memory, cpu_seconds, read_memory_of
from bench.stand import BenchStand
from pgrole_controller.local.process import Process

_STARTS = 5
_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class StartMeasure:
    """CPU in seconds and resident memory in MiB of a process that has just started."""

    cpu_seconds: float
    resident: float


async def measure_start(stand: BenchStand) -> StartMeasure:
    """Starts the controller with a port as API server where nothing answers. Median of several starts without the first
    one, which reads files from disk.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener, TemporaryDirectory(prefix="pgrole-bench-") as folder:
        listener.setblocking(False)
        kubeconfig = Path(folder) / "kubeconfig"
        text = stand.api.kubeconfig.read_text(encoding="utf-8")
        address = f"https://127.0.0.1:{listener.getsockname()[1]}"
        kubeconfig.write_text(text.replace(stand.api.url, address), encoding="utf-8")
        seen = [await _start(listener, kubeconfig) for _ in range(_STARTS + 1)][1:]
    return StartMeasure(statistics.median(cpu for cpu, _ in seen), statistics.median(used.resident for _, used in seen))


async def _start(listener: socket.socket, kubeconfig: Path) -> tuple[float, Memory]:
    process = Process(
        "controller",
        [sys.executable, "-m", "pgrole_controller", "run", "--kubeconfig", str(kubeconfig), "--health-port", "0"],
        kubeconfig.with_name("log"),
        os.environ,
    )
    await process.start()
    try:
        with anyio.fail_after(_SECONDS):
            connection, _ = await asyncio.get_running_loop().sock_accept(listener)
            with connection:
                return cpu_seconds(process.pid), read_memory_of(process.pid)
    finally:
        with anyio.CancelScope(shield=True):
            await process.stop()
