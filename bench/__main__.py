"""`python -m bench`: measures the whole controller on this machine, and prints the table of the README."""

import argparse
import os
import platform
import re
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import anyio

from bench.drifts import DRIFTS, Spread
from bench.idle import Memory, measure_idle, read_memory
from bench.objects import load
from bench.password import measure_passwords
from bench.poll import measure_poll
from bench.repair import measure_floor, measure_repairs
from bench.restart import drift_meanwhile, measure_restart
from bench.stand import Stand, role_name, stand
from bench.start import Start, measure_start
from bench.table import Figures, render
from pgrole_controller.controller.reporter import CONFIRM_AGAIN
from pgrole_controller.local.display import Display

PARTS = ("quiet", "busy", "password", "poll", "idle")

#: Between two rounds of the floor, in seconds, as between two drifts: all processes have slept.
_FLOOR_PAUSE = 0.1

#: After a restart, in seconds: what was repaired in it is looked at once more.
_REST = CONFIRM_AGAIN + 3.0


@dataclass(frozen=True, slots=True)
class Options:
    sizes: tuple[int, ...]
    drifts: int
    idle_seconds: float
    parts: frozenset[str]


async def measure(options: Options) -> str:
    """The report, in Markdown."""
    display = Display(sys.stderr)
    began = time.monotonic()
    async with stand(display) as made:
        started = await measure_start(made)
        await made.start_controller()
        await anyio.sleep(1)
        empty = read_memory(made)
        figures: list[Figures] = []
        present = 0
        for size in options.sizes:
            start = time.monotonic()
            figures.append(await _measure_size(made, options, present, size))
            present = size
            display.done(f"{size:,} roles", start)
        head = await _head(made, started, empty, time.monotonic() - began)
    return f"{head}\n\n{render(figures, empty)}"


async def _measure_size(made: Stand, options: Options, present: int, size: int) -> Figures:
    loading = await load(made, present, size)
    memory_loaded = read_memory(made)
    await made.controller.stop()
    floor, hot_floor = await measure_floor(made, _FLOOR_PAUSE), await measure_floor(made, 0)
    restart = await measure_restart(made, await drift_meanwhile(made, size))
    figures = Figures(size, loading, memory_loaded, restart, read_memory(made), floor, hot_floor)
    spread, drifts = Spread(role_name, DRIFTS), options.drifts
    if "idle" in options.parts:
        idle = await measure_idle(made, options.idle_seconds)
        figures = replace(figures, idle=idle, memory_restarted=read_memory(made))
    await anyio.sleep(_REST)
    if "quiet" in options.parts:
        figures = replace(figures, quiet=await measure_repairs(made, spread, size, drifts, busy=False))
    if "busy" in options.parts:
        figures = replace(figures, busy=await measure_repairs(made, spread, size, drifts, busy=True))
    if "password" in options.parts:
        figures = replace(figures, password=await measure_passwords(made, size, drifts))
    if "poll" in options.parts:
        figures = replace(figures, poll=await measure_poll(made))
    return figures


async def _head(made: Stand, started: Start, empty: Memory, seconds: float) -> str:
    async with made.connect() as connection:
        version = await connection.fetchval("SHOW server_version")
    command = shlex.join(["python", "-m", "bench", *sys.argv[1:]])
    return (
        f"`{command}` on {datetime.now(UTC):%Y-%m-%d}, {seconds / 60:.0f} min: {os.cpu_count()} cores {_processor()}, "
        f"PostgreSQL {version}, Kubernetes {made.api.version.removeprefix('v')}, Python {platform.python_version()}; "
        f"the controller without objects has {empty.resident:.0f} MiB resident, {empty.own:.0f} of them its own; "
        f"a start takes {started.cpu_seconds:.2f} s of CPU until the first request, and {started.resident:.0f} MiB."
    )


def _processor() -> str:
    path = Path("/proc/cpuinfo")
    found = re.search(r"^model name\s*:\s*(.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return found[1] if found else platform.processor()


def _sizes(text: str) -> tuple[int, ...]:
    sizes = tuple(sorted({int(part) for part in text.split(",")}))
    if sizes[0] < 1:
        raise ValueError
    return sizes


def _parts(text: str) -> frozenset[str]:
    parts = frozenset(part for part in text.split(",") if part)
    if not parts <= frozenset(PARTS):
        raise ValueError
    return parts


def _options(arguments: Sequence[str]) -> Options:
    parser = argparse.ArgumentParser("python -m bench", description="Measures the controller on this machine.")
    parser.add_argument("--sizes", type=_sizes, default="10,1000,10000", help="how many roles are declared")
    parser.add_argument("--drifts", type=int, default=200, help="how many drifts at each size, quiet and busy")
    parser.add_argument("--idle-seconds", type=float, default=30.0, help="how long idling is looked at")
    parser.add_argument("--parts", type=_parts, default=",".join(PARTS), help=f"of {', '.join(PARTS)}")
    given = parser.parse_args(arguments)
    return Options(given.sizes, given.drifts, given.idle_seconds, given.parts)


def main() -> None:
    print(anyio.run(measure, _options(sys.argv[1:])))


if __name__ == "__main__":
    main()
