"""Measures CPU and memory of the idle processes, from /proc."""

import re
import time
from dataclasses import dataclass
from pathlib import Path

import anyio

from bench.observe import cpu_seconds, ended_cpu_seconds, transactions
from bench.stand import BenchStand
from pgrole_controller.local.process import descendants

_SETTLE_SECONDS = 3.0
#: In seconds: after many objects were applied, their last Events are written this long.
_MOST_SETTLE_SECONDS = 60.0
_SETTLED = 1.0  # percent of a core


@dataclass(frozen=True, slots=True)
class Idle:
    """CPU in percent of one core: of the backend that runs `watch`, of all of PostgreSQL including it, of the
    controller.

    `commits`: of `watch`, per second.
    """

    watch: float
    database: float
    controller: float
    commits: float


@dataclass(frozen=True, slots=True)
class Memory:
    """In MiB. `own` counts only private pages: the kernel keeps or drops file pages at will."""

    resident: float
    own: float


async def measure_idle(stand: BenchStand, seconds: float) -> Idle:
    """Runs vacuum and waits until the controller rests first, so that work left from earlier load does not count."""
    async with stand.connect() as connection:
        await connection.execute("VACUUM ANALYZE")
        watch = await connection.fetchval(
            "SELECT pid FROM pg_stat_activity WHERE application_name = 'pgrole-controller watch'"
        )
        await settle(stand)
        begun, start, before = await transactions(connection, watch), time.monotonic(), _used(stand, watch)
        await anyio.sleep(seconds)
        elapsed, after = time.monotonic() - start, _used(stand, watch)
        commits = (await transactions(connection, watch) - begun) / elapsed
    watching, database, controller = (100 * (end - begin) / elapsed for begin, end in zip(before, after, strict=True))
    return Idle(watching, database, controller, commits)


async def settle(stand: BenchStand) -> None:
    """Waits until the controller rests, for a minute at most."""
    for _ in range(round(_MOST_SETTLE_SECONDS / _SETTLE_SECONDS)):
        before = cpu_seconds(stand.controller.pid)
        await anyio.sleep(_SETTLE_SECONDS)
        if 100 * (cpu_seconds(stand.controller.pid) - before) / _SETTLE_SECONDS <= _SETTLED:
            return


def read_memory(stand: BenchStand) -> Memory:
    """Memory of the controller now."""
    return read_memory_of(stand.controller.pid)


def read_memory_of(pid: int) -> Memory:
    path = Path(f"/proc/{pid}/status")
    kibibytes = dict(re.findall(r"^(\w+):\s+(\d+) kB$", path.read_text(encoding="ascii"), re.MULTILINE))
    own = int(kibibytes["RssAnon"]) + int(kibibytes["VmSwap"])
    return Memory(int(kibibytes["VmRSS"]) / 1024, own / 1024)


def _used(stand: BenchStand, watch: int) -> tuple[float, float, float]:
    """CPU seconds so far of the watch backend, PostgreSQL and the controller."""
    return cpu_seconds(watch), cpu_of_family(stand.server.process.pid), cpu_seconds(stand.controller.pid)


def cpu_of_family(pid: int) -> float:
    """CPU seconds so far of a process and its descendants."""
    return ended_cpu_seconds(pid) + sum(cpu_seconds(one) for one in (pid, *descendants(pid)))
