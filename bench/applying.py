"""Measures what applying many objects at once costs: `python -m bench.applying [--objects 1000] [--clients 8]
[--drifts]`.

Several clients post without pause. With `--drifts`, existing roles drift meanwhile, to measure repairs under this load.
`--profile FILE` runs the controller under cProfile, which worsens every figure.
"""

import argparse
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import anyio

from bench.drifts import DRIFTS, Spread
from bench.idle import read_memory
from bench.objects import load
from bench.posting import Posting, measure_posting
from bench.processes import Memory, cpu_of_family, cpu_seconds
from bench.quantities import Quantiles
from bench.repair import note_repairs
from bench.stand import BenchStand, role_name, stand
from pgrole_controller.core.next_attempt import CONFIRM_SECONDS
from pgrole_controller.local.display import Display

#: Existing roles that drift.
_BEFORE = 200

#: In seconds: what was changed is looked at once more, and the last Events are written.
_REST = CONFIRM_SECONDS + 3.0


@dataclass(frozen=True, slots=True)
class Applying:
    """Figures for a number of objects: seconds from the first and the last post until all are Ready, and CPU in ms per
    object until then (`until_ready`) and until everything is idle, for controller, PostgreSQL, and API server with
    etcd.

    `repairs`: of drifts meanwhile.
    """

    objects: int
    posting: float
    after_first: float
    after_last: float
    until_ready: float
    controller: float
    postgres: float
    api_server: float
    before: Memory
    after: Memory
    repairs: Quantiles | None = None

    def __str__(self) -> str:
        lines = [
            f"{self.objects:,} objects posted in {self.posting:.2f} s, all Ready {self.after_first:.2f} s after the "
            f"first post, {self.after_last:.2f} s after the last",
            f"CPU per object, ms: controller {self.controller:.2f} ({self.until_ready:.2f} until all are Ready), "
            f"PostgreSQL {self.postgres:.2f}, API server {self.api_server:.2f}",
            f"controller's own memory, MiB: {self.before.own:.1f} before, {self.after.own:.1f} after; "
            f"resident {self.before.resident:.1f}, {self.after.resident:.1f}",
        ]
        if self.repairs:
            lines.append(f"drifts meanwhile: committed → repaired, ms, p50 p90 p99: {self.repairs}")
        return "\n".join(lines)


async def measure_anew(
    display: Display, objects: int, clients: int, *, drifting: bool = False, profile: Path | None = None
) -> tuple[Posting, Applying]:
    """Measures in a setup of its own: without a controller, and with one that has reconciled some objects before."""
    async with stand(display, profile) as made:
        floor = await measure_posting(made, objects, clients)
        await made.start_controller()
        await load(made, 0, _BEFORE)
        await anyio.sleep(_REST)
        return floor, await measure_applying(made, _BEFORE, objects, clients, drifting=drifting)


async def measure_applying(
    made: BenchStand, present: int, objects: int, clients: int, *, drifting: bool = False
) -> Applying:
    """Posts objects besides the `present` ones, which are idle, or drift if `drifting`."""
    before, used = read_memory(made), _used(made)
    repairs: list[float] = []
    async with _drifting(made, present if drifting else 0, repairs):
        loading = await load(made, present, present + objects, writers=clients)
        ready = _used(made)
    await anyio.sleep(_REST)
    controller, postgres, api_server = (
        1000 * (now - then) / objects for now, then in zip(_used(made), used, strict=True)
    )
    return Applying(
        objects,
        loading.posting,
        loading.seconds,
        loading.seconds - loading.posting,
        1000 * (ready[0] - used[0]) / objects,
        controller,
        postgres,
        api_server,
        before=before,
        after=read_memory(made),
        repairs=Quantiles.of(repairs) if repairs else None,
    )


@asynccontextmanager
async def _drifting(made: BenchStand, roles: int, took: list[float]) -> AsyncIterator[None]:
    async with anyio.create_task_group() as tasks:
        if roles:
            tasks.start_soon(note_repairs, made, Spread(role_name, DRIFTS), roles, took)
        yield
        tasks.cancel_scope.cancel()


def _used(made: BenchStand) -> tuple[float, float, float]:
    """CPU seconds so far of the controller, PostgreSQL, and the API server with etcd."""
    api = (made.api.process.pid, made.api.etcd.pid)
    return (
        cpu_seconds(made.controller.pid),
        cpu_of_family(made.server.process.pid),
        sum(cpu_of_family(pid) for pid in api),
    )


async def measure(objects: int, clients: int, *, drifting: bool, profile: Path | None) -> str:
    """Returns the report."""
    floor, found = await measure_anew(Display(sys.stderr), objects, clients, drifting=drifting, profile=profile)
    return f"{floor}\n{found}"


def main() -> None:
    parser = argparse.ArgumentParser("python -m bench.applying", description="What applying many objects costs.")
    parser.add_argument("--objects", type=int, default=1000)
    parser.add_argument("--clients", type=int, default=8, help="how many post at once")
    parser.add_argument("--drifts", action="store_true", help="roles drift meanwhile")
    parser.add_argument("--profile", type=Path, help="where cProfile writes what the controller did")
    given = parser.parse_args()
    print(anyio.run(partial(measure, drifting=given.drifts, profile=given.profile), given.objects, given.clients))


if __name__ == "__main__":
    main()
