"""Measures `pgrole-controller access` as a user runs it, process start included, in a database with many tables.

`python -m bench.access --tables 10000 --roles 1000`
"""

import argparse
import os
import statistics
import sys
import time
from collections.abc import Sequence

import anyio
import asyncpg

from pgrole_controller.local.postgres import PostgresServer, postgres

_AT_ONCE = 500


async def measure(tables: int, roles: int, repetitions: int) -> list[str]:
    """Lines of text, one for each figure."""
    async with postgres() as server:
        await _fill(server, tables, roles)
        return [
            f"{what}: median {statistics.median(seconds):.2f} s, slowest {max(seconds):.2f} s"
            for what, arguments in (
                (f"access --on at {tables:,} tables and {roles:,} roles (goal: 1 s)", ("--on", "app.t_1")),
                (f"access --on -o svg at {tables:,} tables and {roles:,} roles", ("--on", "app.t_1", "-o", "svg")),
                (f"access ROLE at {tables:,} tables and {roles:,} roles", ("reader_1",)),
                ("pgrole-controller --version, the floor", ()),
            )
            if (seconds := [await _run(server, arguments) for _ in range(repetitions)])
        ]


async def _fill(server: PostgresServer, tables: int, roles: int) -> None:
    connection = await asyncpg.connect(server.dsn())
    try:
        await connection.execute("CREATE ROLE owner; CREATE ROLE readers; CREATE SCHEMA app AUTHORIZATION owner")
        for first in range(0, tables, _AT_ONCE):
            await connection.execute(
                f"""
                DO $$ BEGIN
                    FOR i IN {first}..{min(first + _AT_ONCE, tables) - 1} LOOP
                        EXECUTE format('CREATE TABLE app.t_%s (id int, name text)', i);
                        EXECUTE format('ALTER TABLE app.t_%s OWNER TO owner', i);
                        EXECUTE format('GRANT SELECT ON app.t_%s TO readers', i);
                    END LOOP;
                END $$
                """
            )
        await connection.execute(
            f"""
            DO $$ BEGIN
                FOR i IN 1..{roles} LOOP
                    EXECUTE format('CREATE ROLE reader_%s LOGIN; GRANT readers TO reader_%s', i, i);
                END LOOP;
            END $$;
            GRANT USAGE ON SCHEMA app TO readers
            """
        )
    finally:
        await connection.close()


async def _run(server: PostgresServer, arguments: Sequence[str]) -> float:
    command = [sys.executable, "-m", "pgrole_controller", *(("access", *arguments) if arguments else ("--version",))]
    began = time.perf_counter()
    await anyio.run_process(command, env={**os.environ, "PGROLE_DSN": server.dsn()})
    return time.perf_counter() - began


def main(arguments: Sequence[str]) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser("python -m bench.access", description=__doc__)
    parser.add_argument("--tables", type=int, default=10_000)
    parser.add_argument("--roles", type=int, default=1_000)
    parser.add_argument("--repetitions", type=int, default=5)
    given = parser.parse_args(arguments)
    for line in anyio.run(measure, given.tables, given.roles, given.repetitions):
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
