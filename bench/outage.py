"""Measures how soon roles are right, and objects Ready, after an outage: `python -m bench.outage [--sizes 100,1000]`.

PostgreSQL is stopped in mode fast. During the outage some roles drift, in single-user mode, and as many objects change.
The clock starts when, after the restart, a client that connects every 20 ms first succeeds. PostgreSQL tells when a
role was repaired (track_commit_timestamp), on the same machine's clock.
"""

import argparse
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import aiohttp
import anyio
import anyio.to_thread
import asyncpg

from bench.objects import PATH, connect_api, get, is_ready, load, watch
from bench.processes import cpu_seconds
from bench.stand import BenchStand, role_name, stand
from pgrole_controller.controller.session_keeper import HEALTHY_SECONDS
from pgrole_controller.local.display import Display
from pgrole_controller.local.postgres import Stop

#: Number of roles that drift during the outage, and of other objects that change.
CHANGED = 10
#: Seconds PostgreSQL is down, and between two connection attempts.
AWAY_SECONDS = 3.0
CLIENT_SECONDS = 0.02
#: Seconds between two outages: a shorter session would make the controller count them as one.
_REST = HEALTHY_SECONDS + 2.0

_SECONDS = 120.0
_LIMIT = 30

#: The last commit of these roles, once all of them are as declared again.
_REPAIRED_AT = """
SELECT extract(epoch FROM max(pg_xact_commit_timestamp(a.xmin)))::float8
FROM pg_authid AS a
WHERE a.rolname = ANY ($1::text[] || $2::text[])
HAVING NOT bool_or(a.rolbypassrls) AND bool_and(a.rolconnlimit = $3 OR NOT a.rolname = ANY ($2::text[]))
"""


@dataclass(frozen=True, slots=True)
class OutageFigures:
    """Seconds from the client's first success until the last drift is repaired, the last changed object's role altered,
    and every object Ready for its generation.

    `reported`: number of objects that reported the outage. `cpu_seconds`: the controller's, from the stop of PostgreSQL
    until all were Ready.
    """

    objects: int
    away: float
    drifted: float
    changed: float
    ready: float
    reported: int
    cpu_seconds: float


@dataclass(slots=True)
class _OutageObjects:
    """Tracks which objects are not Ready, as the API server reports it."""

    unready: set[str] = field(default_factory=set)
    reported: set[str] = field(default_factory=set)
    all_ready: anyio.Event = field(default_factory=anyio.Event)
    ready_at: float = 0.0

    def note(self, name: str, *, ready: bool) -> None:
        if not ready:
            self.unready.add(name)
            self.reported.add(name)
            return
        self.unready.discard(name)
        if not self.unready:
            self.ready_at = time.time()
            self.all_ready.set()

    def await_ready(self) -> None:
        self.all_ready = anyio.Event()
        if not self.unready:
            self.ready_at = time.time()
            self.all_ready.set()


async def measure_outage(made: BenchStand, objects: int, away: float = AWAY_SECONDS) -> OutageFigures:
    """Requires a running controller and `objects` Ready objects, bench-0 and so on. Restores everything afterwards."""
    numbers = random.sample(range(objects), min(objects, 2 * CHANGED))
    drifting, changing = numbers[::2], numbers[1::2]
    limit = _LIMIT + random.randrange(1000)
    seen = _OutageObjects()
    pid = made.controller.pid
    async with connect_api(made) as requests, anyio.create_task_group() as tasks:
        listed = await get(requests, {})
        for obj in listed["items"]:
            if not is_ready(obj):
                raise AssertionError(f"object {obj['metadata']['name']} is not Ready before the outage")
        tasks.start_soon(_follow, requests, listed["metadata"]["resourceVersion"], seen)
        used = cpu_seconds(pid)
        await made.server.stop(Stop.FAST)
        stopped = anyio.current_time()
        await anyio.to_thread.run_sync(_drift, made, [role_name(number) for number in drifting])
        for number in changing:
            await _change(requests, number, limit)
        await anyio.sleep_until(stopped + away)
        async with anyio.create_task_group() as starting:
            starting.start_soon(made.server.start)
            client, began = await _connect(made)
        try:
            drifted = await _repaired(client, drifting, (), limit)
            changed = await _repaired(client, (), changing, limit)
        finally:
            client.terminate()
        seen.await_ready()
        with anyio.fail_after(_SECONDS):
            await seen.all_ready.wait()
        used = cpu_seconds(pid) - used
        tasks.cancel_scope.cancel()
    return OutageFigures(
        objects, away, drifted - began, changed - began, max(seen.ready_at - began, 0.0), len(seen.reported), used
    )


def _drift(made: BenchStand, names: Sequence[str]) -> None:
    """Uses single-user mode, because the server itself is stopped."""
    statements = "".join(f"ALTER ROLE {name} BYPASSRLS\n" for name in names)
    command = made.server.single_user("track_commit_timestamp=on")
    done = subprocess.run(command, input=statements, text=True, capture_output=True, check=False)
    if done.returncode != 0 or "ERROR" in done.stderr:
        raise AssertionError(f"roles could not be changed in single-user mode:\n{done.stdout}{done.stderr}")


async def _change(requests: aiohttp.ClientSession, number: int, limit: int) -> None:
    body = {"spec": {"connectionLimit": limit}}
    headers = {"Content-Type": "application/merge-patch+json"}
    async with requests.patch(f"{PATH}/bench-{number}", json=body, headers=headers) as response:
        response.raise_for_status()


async def _connect(made: BenchStand) -> tuple[asyncpg.Connection, float]:
    """Tries to connect every 20 ms; returns the connection and its time."""
    with anyio.fail_after(_SECONDS):
        while True:
            due = anyio.current_time() + CLIENT_SECONDS
            try:
                return await asyncpg.connect(made.server.dsn()), time.time()
            except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
                await anyio.sleep_until(due)


async def _repaired(
    client: asyncpg.Connection, drifting: Collection[int], changing: Collection[int], limit: int
) -> float:
    """Returns when the last of these roles was restored, or altered as its object declares."""
    names = [[role_name(number) for number in some] for some in (drifting, changing)]
    with anyio.fail_after(_SECONDS):
        while True:
            repaired_at = await client.fetchval(_REPAIRED_AT, *names, limit)
            if repaired_at is not None:
                return float(repaired_at)
            await anyio.sleep(0.02)


async def _follow(requests: aiohttp.ClientSession, version: str, seen: _OutageObjects) -> None:
    async for obj in watch(requests, version):
        seen.note(obj["metadata"]["name"], ready=is_ready(obj))


async def measure(sizes: Sequence[int], rounds: int, away: float) -> None:
    display = Display(sys.stderr)
    present = 0
    print("objects  away/s  drift repaired/s  spec applied/s  all Ready/s  reported down  controller CPU/s")
    async with stand(display) as made:
        await made.start_controller()
        for size in sizes:
            await load(made, present, size)
            present = size
            found = []
            for _ in range(rounds):
                await anyio.sleep(_REST)
                one = await measure_outage(made, size, away)
                found.append(one)
                print(_line(one), flush=True)
            names = ("drifted", "changed", "ready")
            medians = [f"{statistics.median(getattr(one, name) for one in found):.2f}" for name in names]
            print(f"{size:7}  medians: {', '.join(medians)}", flush=True)


def _line(one: OutageFigures) -> str:
    return (
        f"{one.objects:7} {one.away:7.1f} {one.drifted:17.2f} {one.changed:15.2f} {one.ready:12.2f} {one.reported:15}"
        f" {one.cpu_seconds:17.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser("python -m bench.outage", description="How soon all is well after an outage.")
    parser.add_argument("--sizes", default="100,1000")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--away", type=float, default=AWAY_SECONDS, help="how long PostgreSQL is away, in seconds")
    given = parser.parse_args()
    anyio.run(measure, [int(size) for size in given.sizes.split(",")], given.rounds, given.away)


if __name__ == "__main__":
    main()
