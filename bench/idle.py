"""Measures CPU and memory of the idle processes, from /proc."""

import time
from dataclasses import dataclass

import anyio

from bench.observe import transactions
from bench.processes import Memory, cpu_of_family, cpu_seconds, read_memory_of
from bench.stand import BenchStand

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


def _used(stand: BenchStand, watch: int) -> tuple[float, float, float]:
    """CPU seconds so far of the watch backend, PostgreSQL and the controller."""
    return cpu_seconds(watch), cpu_of_family(stand.server.process.pid), cpu_seconds(stand.controller.pid)
