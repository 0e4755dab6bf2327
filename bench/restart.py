"""Measures how soon a starting controller has reconciled everything that existed before."""

import random
import time

import anyio

from bench.stand import BenchStand, role_name

_MOST_DRIFTS = 100
_SECONDS = 300.0

_REPAIRED_AT = """
SELECT extract(epoch FROM max(pg_xact_commit_timestamp(a.xmin)))::float8
FROM pg_authid AS a WHERE a.rolname = ANY ($1) HAVING NOT bool_or(a.rolbypassrls)
"""


async def drift_meanwhile(stand: BenchStand, roles: int) -> list[str]:
    """Changes random roles without a controller; returns their names."""
    names = [role_name(number) for number in random.sample(range(roles), min(roles, _MOST_DRIFTS))]
    async with stand.connect() as connection:
        await connection.execute("; ".join(f"ALTER ROLE {name} BYPASSRLS" for name in names))
    return names


async def measure_restart(stand: BenchStand, names: list[str]) -> float:
    """Starts the controller, and waits until these roles are as declared again. Returns the seconds from the start of
    the process to the repair of the last one.
    """
    async with stand.connect() as connection:
        start = time.time()
        await stand.start_controller()
        with anyio.fail_after(_SECONDS):
            while True:
                repaired_at = await connection.fetchval(_REPAIRED_AT, names)
                if repaired_at is not None:
                    return float(repaired_at) - start
                await anyio.sleep(0.02)
