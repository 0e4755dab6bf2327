"""Floors for everything except repairs: a Python process, a reconnect, and PostgreSQL without a controller."""

import re
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass

import anyio
import anyio.to_thread

from bench.processes import cpu_of_family
from bench.stand import BenchStand

_ROUNDS = 20
_STARTS = 5
_SETTLE_SECONDS = 3.0
_ROLE = "bench_return"

#: Imports what any asyncio program with TLS and JSON has.
_PROGRAM = """
import asyncio, json, ssl, time
asyncio.run(asyncio.sleep(0))
print(open("/proc/self/status").read(), "cpu:", time.process_time())
"""


@dataclass(frozen=True, slots=True)
class Python:
    """CPU in seconds and resident memory in MiB."""

    cpu_seconds: float
    resident: float


async def measure_python() -> Python:
    """Median of several processes that start an event loop and end, without the first one."""
    seen = [await anyio.to_thread.run_sync(_start) for _ in range(_STARTS + 1)][1:]
    return Python(statistics.median(one.cpu_seconds for one in seen), statistics.median(one.resident for one in seen))


def _start() -> Python:
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True)
    figures = dict(re.findall(r"(VmRSS|cpu):\s+([\d.]+)", done.stdout))
    return Python(float(figures["cpu"]), int(figures["VmRSS"]) / 1024)


async def measure_return(stand: BenchStand) -> float:
    """Median seconds in which a client connects, reads one role and alters it."""
    took = []
    async with stand.connect() as admin:
        await admin.execute(f"DROP ROLE IF EXISTS {_ROLE}; CREATE ROLE {_ROLE}")
        for turn in range(_ROUNDS):
            start = time.perf_counter()
            async with stand.connect() as client:
                await client.fetch("SELECT * FROM pg_roles WHERE rolname = $1", _ROLE)
                await client.execute(f"ALTER ROLE {_ROLE} {'NOCREATEDB' if turn % 2 else 'CREATEDB'}")
                took.append(time.perf_counter() - start)
        await admin.execute(f"DROP ROLE {_ROLE}")
    return statistics.median(took)


async def measure_alone(stand: BenchStand, seconds: float) -> float:
    """CPU of PostgreSQL in percent of one core, without a controller."""
    async with stand.connect() as connection:
        await connection.execute("VACUUM ANALYZE")
    await anyio.sleep(_SETTLE_SECONDS)
    pid = stand.server.process.pid
    start, used = time.monotonic(), cpu_of_family(pid)
    await anyio.sleep(seconds)
    return 100 * (cpu_of_family(pid) - used) / (time.monotonic() - start)
