"""What privileges cost others: DDL, readers beside long transactions, WAL, an idle connection, polls, first grants."""

import random
import statistics
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import anyio
import anyio.to_process
import asyncpg

from bench.idle import settle
from bench.privilege_stand import DATABASE, SCHEMA, PrivilegeStand, table
from bench.processes import cpu_seconds, ended_cpu_seconds, read_status, stat_fields
from bench.quantities import Quantiles
from bench.stand import Connection
from pgrole_controller.local.process import reached
from pgrole_controller.postgres.privileges.database_session import PRUNE_SECONDS

_DDL_ROUNDS = 300
_READERS = 16
_LONG_DDL = 10_000
_READER_ROUNDS = 9
_READ_PAUSE = 0.02
_SETTLE_SECONDS = 3.0
_CONNECT_SECONDS = 60.0
_COMPLETE_READS = 7
_SAMPLE_PAUSE = 0.002

#: The connections of the controller to the measured database, at most one.
_OURS = f"""
SELECT pid FROM pg_stat_activity WHERE datname = '{DATABASE}' AND application_name LIKE 'pgrole-controller%'
"""

#: The age in milliseconds of the controller's transaction, if it has locked tables of others.
_LOCKING = f"""
SELECT 1000 * extract(epoch FROM clock_timestamp() - xact_start)::float8 AS age FROM pg_stat_activity AS a
WHERE datname = '{DATABASE}' AND application_name LIKE 'pgrole-controller%' AND EXISTS (
    SELECT FROM pg_locks AS l JOIN pg_class AS c ON c.oid = l.relation
    WHERE l.pid = a.pid AND l.mode = 'ShareUpdateExclusiveLock' AND c.relnamespace = '{SCHEMA}'::regnamespace
)
"""

#: Whether the event triggers run; {} stands for ENABLE ALWAYS or DISABLE.
_SWITCH = """
DO $$ BEGIN
    EXECUTE (SELECT string_agg(format('ALTER EVENT TRIGGER %I {}', evtname), ';') FROM pg_event_trigger);
END $$
"""

_WAL = """
SELECT coalesce(sum(w.wal_bytes), 0)::bigint FROM unnest($1::int[]) AS p (pid), pg_stat_get_backend_wal(p.pid) AS w
"""


@dataclass(frozen=True, slots=True)
class ConnectionIdle:
    """Of one database's connection: CPU in percent of a core, private memory in MiB, WAL and row versions written."""

    connections: int
    cpu: float
    private: float
    wal: int
    rows: int


async def measure_ddl(stand: PrivilegeStand) -> float:
    """Median milliseconds of PostgreSQL's CPU for one DDL statement of another client."""
    async with stand.connect() as client:
        pid = await client.fetchval("SELECT pg_backend_pid()")
        await client.execute("CREATE TABLE IF NOT EXISTS bench_ddl (id int)")
        took = []
        for _ in range(5):
            before = cpu_seconds(pid)
            for turn in range(_DDL_ROUNDS):
                await client.execute(f"ALTER TABLE bench_ddl ALTER id SET STATISTICS {turn % 100}")
            took.append(1000 * (cpu_seconds(pid) - before) / _DDL_ROUNDS)
        await client.execute("DROP TABLE bench_ddl")
    return statistics.median(took)


async def measure_readers(stand: PrivilegeStand) -> tuple[float, float]:
    """The 99th percentile, in milliseconds, of point reads of 16 clients while another one runs 10,000 DDL statements
    in one transaction: without the event triggers and the controller, and with them.

    Medians of rounds that take turns, since one round differs from the next by more than a tenth.
    """
    without, beside = [], []
    async with stand.connect() as client:
        await client.execute("CREATE TABLE bench_long (id int PRIMARY KEY)")
        await client.execute("INSERT INTO bench_long SELECT generate_series(1, 1000)")
        for _ in range(_READER_ROUNDS):
            await settle(stand.stand)
            stand.stand.controller.pause()
            await client.execute(_SWITCH.format("DISABLE"))
            try:
                without.append(await _read_beside_ddl(stand))
            finally:
                await client.execute(_SWITCH.format("ENABLE ALWAYS"))
                stand.stand.controller.resume()
            await settle(stand.stand)
            beside.append(await _read_beside_ddl(stand))
        await client.execute("DROP TABLE bench_long")
    return statistics.median(without), statistics.median(beside)


async def _read_beside_ddl(stand: PrivilegeStand) -> float:
    dsn = stand.stand.server.dsn(database=DATABASE)
    took: list[float] = []
    async with anyio.create_task_group() as tasks:
        for _ in range(_READERS):
            tasks.start_soon(_read, stand, took)
        await anyio.to_process.run_sync(_run_ddl, dsn, 1)
        await anyio.sleep(_SETTLE_SECONDS)
        took.clear()
        await anyio.to_process.run_sync(_run_ddl, dsn, _LONG_DDL)
        tasks.cancel_scope.cancel()
    return Quantiles.of(took).p99


def _run_ddl(dsn: str, statements: int) -> None:
    """Runs so many DDL statements in one transaction, in a process of its own: in this one, they would delay readers
    the more, the faster PostgreSQL answers.
    """

    async def run() -> None:
        client = await asyncpg.connect(dsn)
        async with client.transaction():
            await client.execute("CREATE TABLE bench_many (id int)")
            for turn in range(statements):
                await client.execute(f"ALTER TABLE bench_many ALTER id SET STATISTICS {turn % 100}")
        await client.execute("DROP TABLE bench_many")
        await client.close()

    anyio.run(run)


async def _read(stand: PrivilegeStand, took: list[float]) -> None:
    async with stand.connect() as client:
        while True:
            start = time.perf_counter()
            await client.fetchval("SELECT id FROM bench_long WHERE id = $1", random.randint(1, 1000))
            took.append(time.perf_counter() - start)
            await anyio.sleep(_READ_PAUSE)


async def measure_idle(stand: PrivilegeStand, seconds: float) -> ConnectionIdle:
    """While nothing happens and everything is as declared: a second connection has ended, and old events are gone."""
    async with stand.connect() as client:

        async def is_quiet() -> bool:
            return len(await client.fetch(_OURS)) <= 1

        await anyio.sleep(PRUNE_SECONDS)
        if not await reached(is_quiet, _CONNECT_SECONDS):
            raise AssertionError("the controller keeps a second connection to the database")
        await client.execute("CHECKPOINT")
        await anyio.sleep(_SETTLE_SECONDS)
        pids = [row["pid"] for row in await client.fetch(_OURS)]
        start, used, wal, rows = time.monotonic(), _cpu(pids), await _wal(client, pids), await _rows(client)
        await anyio.sleep(seconds)
        share = 100 * (_cpu(pids) - used) / (time.monotonic() - start)
        private = sum(map(_private, pids)) / max(1, len(pids))
        return ConnectionIdle(len(pids), share, private, await _wal(client, pids) - wal, await _rows(client) - rows)


def _cpu(pids: Iterable[int]) -> float:
    return sum(map(cpu_seconds, pids))


def _private(pid: int) -> float:
    """Memory of a backend in MiB. Pages of shared_buffers do not count, even if no other process has mapped them."""
    return read_status(pid, "RssAnon") / 2**20


async def _wal(client: Connection, pids: Sequence[int]) -> int:
    """Bytes of WAL that these backends have written."""
    return int(await client.fetchval(_WAL, list(pids)))


async def _rows(client: Connection) -> int:
    """Changes whenever a row with an ACL is written: the sum of the transactions that wrote them."""
    return int(await client.fetchval("SELECT sum(xmin::text::bigint) FROM pg_class"))


async def measure_start(stand: PrivilegeStand) -> float:
    """Milliseconds of CPU of the database's connections from the controller's start until everything is Ready."""
    async with stand.connect() as client:
        await stand.stand.controller.stop()
        await anyio.sleep(_SETTLE_SECONDS)
        server = _parent(await client.fetchval("SELECT pg_backend_pid()"))
        ended = ended_cpu_seconds(server)
        await stand.stand.start_controller()

        async def is_connected() -> bool:
            return bool(await client.fetch(_OURS))

        if not await reached(is_connected, _CONNECT_SECONDS):
            raise AssertionError("the controller does not connect to the database")
        await anyio.sleep(_SETTLE_SECONDS)
        return 1000 * (await _total(client, server) - ended)


async def measure_complete_read(stand: PrivilegeStand) -> float:
    """Median milliseconds of CPU of the database's connections, of the one that ends with a read included, for reading
    everything once: a new schema asks for that.
    """
    took = []
    async with stand.connect() as client:
        server = _parent(await client.fetchval("SELECT pg_backend_pid()"))
        await anyio.sleep(_SETTLE_SECONDS)
        for turn in range(_COMPLETE_READS):
            before = await _total(client, server)
            await client.execute(f"CREATE SCHEMA bench_read_{turn}")
            await anyio.sleep(_SETTLE_SECONDS)
            took.append(1000 * (await _total(client, server) - before))
            await client.execute(f"DROP SCHEMA bench_read_{turn}")
            await anyio.sleep(_SETTLE_SECONDS)
    return statistics.median(took)


async def _total(client: Connection, server: int) -> float:
    """Seconds of CPU of the controller's connections to the database, and of all that have ended."""
    used = 0.0
    for row in await client.fetch(_OURS):
        with suppress(FileNotFoundError):  # it has ended since
            used += cpu_seconds(row["pid"])
    return ended_cpu_seconds(server) + used


def _parent(pid: int) -> int:
    """The server's first process."""
    return int(stat_fields(pid)[1])


@dataclass(frozen=True, slots=True)
class FirstGrant:
    """`seconds` until all is Ready, `failed`: statements of others that failed meanwhile, of `tried`.

    `longest`: of the controller's transactions that lock tables of others, in milliseconds.
    """

    seconds: float
    tried: int
    failed: int
    longest: float


async def measure_first_grant(stand: PrivilegeStand) -> FirstGrant:
    """Declares the first reader, of every table, while another client alters the tables."""
    counts, ages = {"tried": 0, "failed": 0}, [0.0]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_alter, stand, counts)
        tasks.start_soon(_sample_transactions, stand, ages)
        seconds = await stand.declare(0, 1)
        tasks.cancel_scope.cancel()
    return FirstGrant(seconds, counts["tried"], counts["failed"], max(ages))


async def _sample_transactions(stand: PrivilegeStand, ages: list[float]) -> None:
    async with stand.connect() as client:
        while True:
            ages += [row["age"] for row in await client.fetch(_LOCKING)]
            await anyio.sleep(_SAMPLE_PAUSE)


async def _alter(stand: PrivilegeStand, counts: dict[str, int]) -> None:
    async with stand.connect() as client:
        while True:
            counts["tried"] += 1
            try:
                name = table(random.randrange(stand.tables))
                await client.execute(f"ALTER TABLE {SCHEMA}.{name} ALTER id SET STATISTICS {random.randrange(100)}")
            except asyncpg.PostgresError:
                counts["failed"] += 1
            await anyio.sleep(0.002)
