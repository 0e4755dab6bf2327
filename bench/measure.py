"""A whole run: all requested parts, each with its repetitions."""

import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import anyio

from bench.drifts import DRIFTS, Spread
from bench.floors import measure_alone, measure_python
from bench.idle import measure_idle, read_memory
from bench.incidents import measure_objects, measure_outages
from bench.objects import load
from bench.password import measure_passwords
from bench.poll import measure_poll
from bench.repair import measure_floor, measure_repairs
from bench.requests import measure_bare_request, measure_request
from bench.restart import drift_meanwhile, measure_restart
from bench.runs import BenchRun, originate, processors_time
from bench.sheet import Sheet
from bench.stand import BenchStand, role_name, stand
from bench.start import measure_start
from pgrole_controller.core.next_attempt import CONFIRM_SECONDS
from pgrole_controller.local.display import Display

#: Measured at each size, besides `load`: objects applied, restarts, memory.
SIZED = ("load", "request", "idle", "quiet", "busy", "password", "poll")
PARTS = ("start", *SIZED, "objects", "outage")

#: Seconds between two rounds of the floor, as between two drifts, so that all processes have slept.
_FLOOR_PAUSE = 0.1

#: After a restart, in seconds: what was repaired in it is looked at once more.
_REST = CONFIRM_SECONDS + 3.0


@dataclass(frozen=True, slots=True)
class Options:
    """`drifts` in each repetition, quiet and busy; `idle_seconds` of each window."""

    sizes: tuple[int, ...]
    drifts: int
    idle_seconds: float
    repetitions: int
    parts: frozenset[str]

    @property
    def sized(self) -> frozenset[str]:
        return self.parts & frozenset(SIZED)


async def measure(
    options: Options, display: Display, arguments: Sequence[str], keep: Callable[[BenchRun], None] = lambda _: None
) -> BenchRun:
    """`arguments` are the command's, to show beside the figures. `keep` is called after each part with all figures so
    far, which a run that is interrupted would otherwise lose.
    """
    sheet, began, before = Sheet(), time.monotonic(), processors_time()
    async with stand(display) as made:
        async with made.connect() as connection:
            postgresql = await connection.fetchval("SHOW server_version")
        kubernetes = made.api.version

        def describe() -> BenchRun:
            after = processors_time()
            origin = originate(
                command=shlex.join(["python", "-m", "bench", *arguments]),
                seconds=time.monotonic() - began,
                postgresql=postgresql,
                kubernetes=kubernetes,
                repetitions=options.repetitions,
                stolen=100 * (after[1] - before[1]) / max(after[0] - before[0], 1),
            )
            return BenchRun(origin, sheet.figures())

        await _Measurement(made, sheet, options, lambda: keep(describe())).run()
    if "objects" in options.parts:
        await measure_objects(display, sheet, options.repetitions)
        keep(describe())
    if "outage" in options.parts:
        await measure_outages(display, sheet, options.repetitions)
    return describe()


@dataclass(slots=True)
class _Measurement:
    """Measurements in one setup, whose number of objects grows from size to size."""

    made: BenchStand
    sheet: Sheet
    options: Options
    keep: Callable[[], None]
    present: int = 0
    empty: float = 0.0  # the controller's own memory without objects, in MiB

    async def run(self) -> None:
        start = time.monotonic()
        if "start" in self.options.parts:
            await self._measure_start()
        if self.options.sized or "start" in self.options.parts:
            await self._measure_empty()
            self.keep()
            self.made.display.done("no roles", start)
        for size in self.options.sizes if self.options.sized else ():
            start = time.monotonic()
            await self._measure_size(size)
            self.made.display.done(f"{size:,} roles", start)

    async def _measure_start(self) -> None:
        for _ in range(self.options.repetitions):
            python, started = await measure_python(), await measure_start(self.made)
            self.sheet.note("floor.python.cpu", python.cpu_seconds)
            self.sheet.note("floor.python.memory", python.resident)
            self.sheet.note("start.cpu", started.cpu_seconds)
            self.sheet.note("start.memory", started.resident)

    async def _measure_empty(self) -> None:
        for _ in range(self.options.repetitions):
            await self.made.controller.stop()
            await self.made.start_controller()
            await anyio.sleep(_REST)
            memory = read_memory(self.made)
            self.sheet.note("empty.memory", memory.resident)
            self.sheet.note("empty.memory.own", memory.own)
            self.empty = memory.own

    async def _measure_size(self, size: int) -> None:
        loading = await load(self.made, self.present, size)
        self.sheet.note("load.ready", loading.seconds, size)
        self._note_memory("loaded.memory", size)
        await self.made.controller.stop()
        if not self.present:
            await self._measure_once()
        self.present = size
        spread = Spread(role_name, DRIFTS)
        for _ in range(self.options.repetitions if self.options.sized - {"request"} else 0):
            await self._repeat(size, spread)
            self.keep()

    async def _measure_once(self) -> None:
        """Measures what does not depend on the size: with the first size's objects, and without a controller."""
        if "idle" in self.options.parts:
            self.sheet.note("floor.idle", await measure_alone(self.made, self.options.idle_seconds))
        for _ in range(self.options.repetitions if "request" in self.options.parts else 0):
            self.sheet.note("floor.request", await measure_bare_request(self.made))
            self.sheet.note("request.cpu", await measure_request(self.made))

    async def _repeat(self, size: int, spread: Spread) -> None:
        made, sheet, parts, drifts = self.made, self.sheet, self.options.parts, self.options.drifts
        await made.controller.stop()
        floor, hot = await measure_floor(made, _FLOOR_PAUSE), await measure_floor(made, 0)
        sheet.note_floor(floor, hot, size)
        sheet.note("restart.repaired", await measure_restart(made, await drift_meanwhile(made, size)), size)
        if "idle" in parts:
            sheet.note_idle(await measure_idle(made, self.options.idle_seconds), size)
        await anyio.sleep(_REST)
        self._note_memory("restarted.memory", size)
        if "quiet" in parts:
            sheet.note_repairs("quiet", await measure_repairs(made, spread, size, drifts, busy=False), size, floor)
        if "busy" in parts:
            sheet.note_repairs("busy", await measure_repairs(made, spread, size, drifts, busy=True), size, floor)
        if "password" in parts:
            sheet.note_repairs("password", await measure_passwords(made, size, drifts // 2), size)
        if "poll" in parts:
            poll = await measure_poll(made)
            sheet.note("poll.nothing", poll.nothing, size)
            sheet.note("poll.commit", poll.commit, size)
            sheet.note("poll.change", poll.change, size)

    def _note_memory(self, name: str, size: int) -> None:
        memory = read_memory(self.made)
        self.sheet.note(name, memory.resident, size)
        self.sheet.note(f"{name}.above", memory.own - self.empty, size)
