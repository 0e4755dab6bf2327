"""Measures from the commit of a GRANT to the commit that revokes it, and from a new table to the grant on it.

All times are of one clock, this machine's CLOCK_REALTIME. A drift begins when its COMMIT has returned to the client. It
is repaired when the transaction that wrote the object's ACL last committed (track_commit_timestamp).
"""

import random
import time
from collections.abc import Awaitable, Callable

import anyio
import asyncpg

from bench.floors import time_rounds
from bench.privilege_stand import CREATOR, OWNER, READERS, SCHEMA, PrivilegeStand, reader, table
from bench.quantities import Quantiles
from bench.stand import Connection
from pgrole_controller.local.process import reached

_FLOOR_ROUNDS = 60
_REPAIR_SECONDS = 60.0
_LOOK_SECONDS = 0.002

#: Between two drifts, in seconds, so that every phase of a timer occurs.
_PAUSE = (0.05, 0.25)

#: The same, so that no repair is held back: a role that drifts more often than 5 times a minute is contested.
_UNCONTESTED = 60.0 / 5 / READERS * 1.2

#: Whether the role holds the privilege, and when the row with the ACL was last written.
_HOLDS = """
SELECT has_table_privilege($1, c.oid, $3) AS holds,
       extract(epoch FROM pg_xact_commit_timestamp(c.xmin))::float8 AS written
FROM pg_class AS c WHERE c.oid = to_regclass($2)
"""

Drift = Callable[[Connection, str, str], Awaitable[object]]


async def grant(client: Connection, role: str, name: str) -> None:
    await client.execute(f'GRANT DELETE ON {SCHEMA}."{name}" TO "{role}"')


async def grant_hidden(client: Connection, role: str, name: str) -> None:
    """The statement that PostgreSQL reports names neither the table nor the role."""
    number = name.removeprefix("t_")
    await client.execute(
        f"""
        DO $$ BEGIN
            EXECUTE format('GRANT DELETE ON {SCHEMA}.%I TO %I', chr(116) || '_' || {number}, '{role}');
        END $$
        """
    )


async def measure_floor(stand: PrivilegeStand) -> Quantiles:
    """A NOTIFY received on another connection, one ACL read, and one GRANT committed, through bare connections, in
    another database, where no one restores it.
    """

    def alter(turn: int) -> Awaitable[object]:
        what = "REVOKE SELECT ON bench_floor FROM" if turn % 2 else "GRANT SELECT ON bench_floor TO"
        return client.execute(f"{what} {OWNER}")

    async with stand.stand.connect() as client, stand.stand.connect() as listener:
        await client.execute("DROP TABLE IF EXISTS bench_floor; CREATE TABLE bench_floor (id int)")
        took = await time_rounds(
            client,
            listener,
            lambda: client.fetch("SELECT relacl FROM pg_class WHERE relname = 'bench_floor'"),
            alter,
            rounds=_FLOOR_ROUNDS,
            pause=lambda: random.uniform(*_PAUSE),
        )
        await client.execute("DROP TABLE bench_floor")
    return Quantiles.of([sum(one) for one in took])


async def measure_repairs(stand: PrivilegeStand, drift: Drift, drifts: int) -> Quantiles:
    """Drifts of random tables, one at a time, each of another role than the last."""
    took = []
    async with stand.connect() as client:
        for turn in range(drifts):
            role, name = reader(turn), table(random.randrange(stand.tables))
            await drift(client, role, name)
            began = time.time()
            took.append(await repaired(client, role, f"{SCHEMA}.{name}", "DELETE") - began)
            stand.stand.display.advance(f"{turn + 1} of {drifts} drifts")
            await anyio.sleep(random.uniform(*_PAUSE))
    return Quantiles.of(took)


async def measure_repairs_beside_declaration(stand: PrivilegeStand) -> Quantiles:
    """Drifts one at a time, while everything is read and granted for another role."""
    took: list[float] = []
    ready = anyio.Event()

    async def declare() -> None:
        await stand.declare_another()
        ready.set()

    async with stand.connect() as client, anyio.create_task_group() as tasks:
        tasks.start_soon(declare)
        while not ready.is_set():
            role, name = reader(len(took)), table(random.randrange(stand.tables))
            try:
                await grant(client, role, name)
            except asyncpg.InternalServerError:  # tuple concurrently updated: the table was granted at that moment
                continue
            began = time.time()
            took.append(await repaired(client, role, f"{SCHEMA}.{name}", "DELETE") - began)
            await anyio.sleep(random.uniform(*_PAUSE))
    return Quantiles.of(took)


async def repaired(client: Connection, role: str, name: str, privilege: str) -> float:
    """When the privilege was revoked."""
    return await _written(client, role, name, privilege, held=False)


async def _written(client: Connection, role: str, name: str, privilege: str, *, held: bool) -> float:
    with anyio.fail_after(_REPAIR_SECONDS):
        while True:
            row = await client.fetchrow(_HOLDS, role, name, privilege)
            if row is not None and row["holds"] == held:
                return float(row["written"])
            await anyio.sleep(_LOOK_SECONDS)


async def measure_new_tables(stand: PrivilegeStand, tables: int, schema: str = SCHEMA) -> Quantiles:
    """From the commit of CREATE TABLE, by a role that is not the schema's owner, until every reader may read it: 60 of
    `SCHEMA`, one of `PRIVATE`.
    """
    took = []
    async with stand.connect() as client:
        await client.execute(f"SET ROLE {CREATOR}")
        for turn in range(tables):
            name = f"{schema}.new_{turn}"
            await client.execute(f"CREATE TABLE {name} (id int)")
            began = time.time()
            took.append(await _written(client, reader(0), name, "SELECT", held=True) - began)
            await anyio.sleep(random.uniform(*_PAUSE))
        await client.execute(f"DROP TABLE {', '.join(f'{schema}.new_{turn}' for turn in range(tables))}")
    return Quantiles.of(took)


#: Drifts of many kinds; {} stands for the table, then the role.
MIXED = (
    "GRANT INSERT ON {0} TO {1}",
    "REVOKE SELECT ON {0} FROM {1}",
    "GRANT UPDATE (name) ON {0} TO {1}",
    "GRANT SELECT ON {0} TO {1} WITH GRANT OPTION",
    "DO $$ BEGIN GRANT TRUNCATE ON {0} TO {1}; END $$",
    "BEGIN; SAVEPOINT one; GRANT DELETE ON {0} TO {1}; RELEASE one; COMMIT",
    "BEGIN; SAVEPOINT one; GRANT DELETE ON {0} TO {1}; ROLLBACK TO one; GRANT REFERENCES ON {0} TO {1}; COMMIT",
)
_EXACT = """
SELECT coalesce(sum(h.count) FILTER (WHERE h.proof = 'Transaction' AND h.application = $1), 0)::bigint AS exact,
       sum(h.count)::bigint AS all
FROM pgrole.drift_history AS h
"""


async def measure_attribution(stand: PrivilegeStand, drifts: int) -> tuple[int, int]:
    """How many of so many mixed drifts the history attributes to the transaction that made them."""
    application = "bench attribution"
    async with stand.connect(application) as client:
        await client.execute("DELETE FROM pgrole.drift_history")
        for turn in range(drifts):
            role, name = reader(turn), table(random.randrange(stand.tables))
            await client.execute(MIXED[turn % len(MIXED)].format(f"{SCHEMA}.{name}", role))
            await _recorded(client, turn + 1)
            stand.stand.display.advance(f"{turn + 1} of {drifts} drifts attributed")
            await anyio.sleep(_UNCONTESTED)
        row = await client.fetchrow(_EXACT, application)
    if row is None:
        raise AssertionError("no history")
    return row["exact"], row["all"]


async def _recorded(client: Connection, rows: int) -> None:
    async def are_recorded() -> bool:
        return bool(await client.fetchval("SELECT sum(count) >= $1 FROM pgrole.drift_history", rows))

    if not await reached(are_recorded, _REPAIR_SECONDS):
        raise AssertionError(f"the history has fewer than {rows} drifts")
