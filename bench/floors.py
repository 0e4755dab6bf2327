"""Floors: a Python process, a reconnect, PostgreSQL without a controller, and what every repair consists of."""

import re
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from itertools import pairwise

import anyio
import anyio.to_thread

from bench.processes import cpu_of_family
from bench.stand import BenchStand, Connection
from bench.start import StartMeasure

_ROUNDS = 20
_STARTS = 5
_SETTLE_SECONDS = 3.0
_ROLE = "bench_return"
_CHANNEL = "bench_floor"

#: Reads one role, as the controller does after a notification.
READ_ROLE = "SELECT r.*, shobj_description(r.oid, 'pg_authid') FROM pg_roles AS r WHERE r.rolname = $1"

#: Imports what any asyncio program with TLS and JSON has.
_PROGRAM = """
import asyncio, json, ssl, time
asyncio.run(asyncio.sleep(0))
print(open("/proc/self/status").read(), "cpu:", time.process_time())
"""


async def measure_python() -> StartMeasure:
    """Median of several processes that start an event loop and end, without the first one."""
    seen = [await anyio.to_thread.run_sync(_start) for _ in range(_STARTS + 1)][1:]
    return StartMeasure(
        statistics.median(one.cpu_seconds for one in seen), statistics.median(one.resident for one in seen)
    )


def _start() -> StartMeasure:
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True)
    figures = dict(re.findall(r"(VmRSS|cpu):\s+([\d.]+)", done.stdout))
    return StartMeasure(float(figures["cpu"]), int(figures["VmRSS"]) / 1024)


async def time_rounds(
    client: Connection,
    listener: Connection,
    read: Callable[[], Awaitable[object]],
    change: Callable[[int], Awaitable[object]],
    *,
    rounds: int,
    pause: Callable[[], float],
) -> list[tuple[float, ...]]:
    """Returns the seconds of a NOTIFY from `client` until `listener` receives it, of a read, and of a change, for each
    round. `pause`: seconds before a round.
    """
    took: list[tuple[float, ...]] = []
    heard = anyio.Event()
    await listener.add_listener(_CHANNEL, lambda *_: heard.set())
    for turn in range(rounds):
        heard = anyio.Event()
        await anyio.sleep(pause())
        moments = [time.perf_counter()]
        await client.execute(f"NOTIFY {_CHANNEL}, '{turn}'")
        await heard.wait()
        moments.append(time.perf_counter())
        await read()
        moments.append(time.perf_counter())
        await change(turn)
        moments.append(time.perf_counter())
        took.append(tuple(end - start for start, end in pairwise(moments)))
    return took


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
