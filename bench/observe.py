"""Measures detection inside PostgreSQL: `observe()` for one change, and the running procedure `watch`.

`python -m bench.observe --dsn DSN [--sizes 10,1000,10000]` fills a server with roles and afterwards removes everything
except schema pgrole. It reads CPU from /proc, so the server must be on this machine.
"""

import argparse
import asyncio
import os
import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

import anyio
import asyncpg

from bench.processes import cpu_seconds
from bench.quantities import Quantiles
from pgrole_controller.postgres import queries
from pgrole_controller.postgres.watch import TICK

T = TypeVar("T")

#: The first query of observe(), and the only one if nothing changed.
GATE = """
SELECT pg_current_snapshot()::text,
       array_agg(n.catalog) FILTER (WHERE f.recent IS DISTINCT FROM n.recent),
       array_agg(pg_stat_get_xact_tuples_returned(n.catalog))
FROM pgrole.fingerprint_now AS n LEFT JOIN pgrole.fingerprint AS f ON f.catalog = n.catalog
"""

#: A fingerprint without stored state, for comparison: hashes every row's identity and xmin.
HASHED = """
SELECT
    (SELECT bit_xor(hashint8extended((oid::bigint << 32) | xmin::text::bigint, 0)) FROM pg_authid),
    (SELECT bit_xor(hashint8extended((roleid::bigint << 32) | member::bigint,
                                     (grantor::bigint << 32) | xmin::text::bigint)) FROM pg_auth_members),
    (SELECT bit_xor(hashint8extended((setrole::bigint << 32) | setdatabase::bigint, xmin::text::bigint))
     FROM pg_db_role_setting),
    (SELECT bit_xor(hashint8extended((objoid::bigint << 32) | xmin::text::bigint, 0)) FROM pg_shdescription)
"""

#: Changes to one role among many: name, statement, and the statement that undoes it.
CHANGES = (
    ("create", "CREATE ROLE bench_one", "DROP ROLE bench_one"),
    ("alter", "ALTER ROLE bench_5 CREATEDB", "ALTER ROLE bench_5 NOCREATEDB"),
    ("grant", "GRANT pg_monitor TO bench_5", "REVOKE pg_monitor FROM bench_5"),
    ("set", "ALTER ROLE bench_5 SET lock_timeout = '3s'", "ALTER ROLE bench_5 RESET lock_timeout"),
    ("set first", "ALTER ROLE bench_9 SET lock_timeout = '3s'", "ALTER ROLE bench_9 RESET ALL"),
    ("comment", "COMMENT ON ROLE bench_9 IS 'b'", "COMMENT ON ROLE bench_9 IS NULL"),
)
UNDONE = {
    "create": "drop",
    "alter": "alter back",
    "grant": "revoke",
    "set": "reset",
    "set first": "reset all",
    "comment": "no comment",
}

ROUNDS = 40


async def fill(connection: "asyncpg.Connection[Any]", size: int) -> None:
    """Creates `size` roles bench_1…, as many memberships, and half as many settings and comments each."""
    await connection.execute(f"""
        DO $$ BEGIN
            CREATE ROLE bench_group;
            FOR i IN 1..{size} LOOP
                EXECUTE format('CREATE ROLE bench_%s', i);
                EXECUTE format('GRANT bench_group TO bench_%s', i);
                IF i % 2 = 0 THEN
                    EXECUTE format('ALTER ROLE bench_%s SET work_mem = %L', i, '8MB');
                    EXECUTE format('COMMENT ON ROLE bench_%s IS %L', i, 'made to measure');
                END IF;
            END LOOP;
        END $$
    """)
    await connection.execute("VACUUM ANALYZE")


async def clear(connection: "asyncpg.Connection[Any]") -> None:
    await connection.execute(r"""
        DO $$ DECLARE name text; BEGIN
            FOR name IN SELECT rolname FROM pg_roles WHERE rolname LIKE 'bench\_%' LOOP
                EXECUTE format('DROP ROLE %I', name);
            END LOOP;
        END $$
    """)
    await connection.execute("VACUUM ANALYZE")


async def _took(connection: "asyncpg.Connection[Any]", statement: str) -> float:
    start = time.perf_counter()
    await connection.fetch(statement)
    return time.perf_counter() - start


async def measure_observe(connection: "asyncpg.Connection[Any]") -> dict[str, float]:
    """Medians in milliseconds: the two fingerprints, and `observe()` after no change and after each kind of change."""
    took: dict[str, list[float]] = {}

    async def note(what: str, statement: str) -> None:
        took.setdefault(what, []).append(await _took(connection, statement))

    observe = "SELECT pgrole.observe()"
    await connection.fetch("SELECT pgrole.observe(true)")
    for turn in range(ROUNDS + 5):
        if turn == 5:
            took.clear()
        await note("round trip", "SELECT 1")
        await note("gate", GATE)
        await note("hashed fingerprint", HASHED)
        await note("observe: nothing", observe)
        for what, change, undo in CHANGES:
            await connection.execute(change)
            await note(f"observe: {what}", observe)
            await connection.execute(undo)
            await note(f"observe: {UNDONE[what]}", observe)
    return {what: 1000 * statistics.median(seconds) for what, seconds in took.items()}


async def transactions(connection: "asyncpg.Connection[Any]", pid: int) -> int:
    """Transactions that a backend has begun: PostgreSQL counts a procedure's commits only when it ends."""
    return int(
        await connection.fetchval(
            "SELECT split_part(virtualtransaction, '/', 2) FROM pg_locks WHERE pid = $1 AND locktype = 'virtualxid'",
            pid,
        )
    )


async def _watch(connection: "asyncpg.Connection[Any]") -> NoReturn:
    while True:
        await connection.execute(f"CALL pgrole.watch(tick => '{TICK}')")


async def _commit(connection: "asyncpg.Connection[Any]", rate: float | None, count: list[int]) -> None:
    """Makes and counts unrelated commits, `rate` per second, or as many as possible."""
    due = time.monotonic()
    while rate != 0:
        await connection.execute("SELECT pg_current_xact_id()")
        count[0] += 1
        due += 1 / rate if rate else 0
        await anyio.sleep(max(0.0, due - time.monotonic()))


async def watched(dsn: str, rate: float | None, work: Callable[[int, list[int]], Awaitable[T]]) -> T:
    """Runs `work` with the process id of the backend that runs `watch` and the count of unrelated commits."""
    count = [0]
    watcher, *others = [await asyncpg.connect(dsn) for _ in range(3)]
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_watch, watcher)
            for other in others[: 1 if rate else 2]:
                tasks.start_soon(_commit, other, rate, count)
            await anyio.sleep(1)
            result = await work(watcher.get_server_pid(), count)
            tasks.cancel_scope.cancel()
    finally:
        for connection in (watcher, *others):
            connection.terminate()
    return result


@dataclass(frozen=True, slots=True)
class Share:
    """CPU of the watch backend in percent of one core, and its commits per second. `unrelated`: those of other
    sessions.
    """

    cpu: float
    commits: float
    unrelated: float


async def measure_share(dsn: str, rate: float | None, seconds: float) -> Share:
    connection = await asyncpg.connect(dsn)

    async def work(pid: int, count: list[int]) -> Share:
        begun = await transactions(connection, pid)
        start, used, before = time.monotonic(), cpu_seconds(pid), count[0]
        await anyio.sleep(seconds)
        elapsed = time.monotonic() - start
        return Share(
            100 * (cpu_seconds(pid) - used) / elapsed,
            (await transactions(connection, pid) - begun) / elapsed,
            (count[0] - before) / elapsed,
        )

    try:
        return await watched(dsn, rate, work)
    finally:
        connection.terminate()


async def measure_detection(dsn: str, rate: float | None, changes: int) -> Quantiles:
    """Measures from the commit of ALTER ROLE to the notification in a client."""
    client, listener = await asyncpg.connect(dsn), await asyncpg.connect(dsn)
    heard = asyncio.Event()
    await listener.add_listener("pgrole", lambda *_: heard.set())

    async def work(_pid: int, _count: list[int]) -> Quantiles:
        took: list[float] = []
        for turn in range(changes):
            heard.clear()
            await client.execute(f"ALTER ROLE bench_5 CONNECTION LIMIT {turn + 1}")
            start = time.perf_counter()
            with anyio.fail_after(30):
                await heard.wait()
            took.append(time.perf_counter() - start)
            # at any phase of the tick, and after the pause that follows a read
            await anyio.sleep(0.15 + (turn * 7.3 % 10) / 1000)
        return Quantiles.of(took)

    try:
        return await watched(dsn, rate, work)
    finally:
        client.terminate()
        listener.terminate()


async def measure(dsn: str, size: int, seconds: float, changes: int) -> None:
    connection = await asyncpg.connect(dsn)
    await connection.execute("SET client_min_messages = warning")
    await clear(connection)
    async with connection.transaction():
        await connection.execute(queries.install())
    await fill(connection, size)
    print(f"\n{size} roles\n  observe(), ms, median of {ROUNDS}")
    medians = await measure_observe(connection)
    for what, took in medians.items():
        print(f"    {what:24} {took:7.2f}   {took / medians['gate']:5.2f} x gate")
    print(f"  watch over {seconds:g} s: % of a core, commits (others'); commit to NOTIFY, ms: p50 p90 p99 of {changes}")
    for what, rate in (("quiet", 0.0), ("200 commits/s", 200.0), ("commits at full speed", None)):
        share = await measure_share(dsn, rate, seconds)
        latency = await measure_detection(dsn, rate, changes)
        print(f"    {what:24} {share.cpu:5.2f} % {share.commits:6.1f} /s  ({share.unrelated:5.0f} /s)   {latency}")
    await clear(connection)
    await connection.close()


async def main() -> None:
    parser = argparse.ArgumentParser(description="What noticing costs inside PostgreSQL.")
    parser.add_argument("--dsn", default=os.environ.get("PGROLE_DSN", ""))
    parser.add_argument("--sizes", default="10,1000,10000")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--changes", type=int, default=100)
    given = parser.parse_args()
    for size in given.sizes.split(","):
        await measure(given.dsn, int(size), given.seconds, given.changes)


if __name__ == "__main__":
    asyncio.run(main())
