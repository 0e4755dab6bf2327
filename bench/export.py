"""Measures `export` of a whole server: `python -m bench.export`.

1,000 roles: 800 logins and 200 groups. 10,000 tables in 100 schemas: a group reads each schema, another one writes to
it, and each login also holds something itself.
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

import anyio
import anyio.to_thread
import asyncpg

from pgrole_controller.local.postgres import PostgresServer, postgres

SCHEMAS = 100
TABLES = 100
LOGINS = 800

#: Seconds for the whole command.
TARGET = 10.0

_SETTINGS = {"fsync": "off", "full_page_writes": "off", "max_locks_per_transaction": "2000"}


async def fill(server: PostgresServer) -> None:
    """Makes roles, schemas, tables and grants."""
    connection = await asyncpg.connect(server.dsn())
    try:
        await connection.execute("CREATE ROLE own")
        groups = (f"CREATE ROLE reader_{one}; CREATE ROLE writer_{one};" for one in range(SCHEMAS))
        await connection.execute("".join(groups))
        for one in range(SCHEMAS):
            await connection.execute(_schema(one))
        for one in range(LOGINS):
            await connection.execute(_login(one))
    finally:
        await connection.close()


def _schema(one: int) -> str:
    tables = "".join(f"CREATE TABLE s{one}.t{number} (id int);" for number in range(TABLES))
    default = f"ALTER DEFAULT PRIVILEGES IN SCHEMA s{one} GRANT SELECT ON"
    return f"""
        CREATE SCHEMA s{one} AUTHORIZATION own; SET ROLE own; {tables}
        GRANT USAGE ON SCHEMA s{one} TO reader_{one}, writer_{one};
        GRANT SELECT ON ALL TABLES IN SCHEMA s{one} TO reader_{one};
        GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA s{one} TO writer_{one};
        {default} TABLES TO reader_{one}; {default} SEQUENCES TO reader_{one};
        RESET ROLE;
    """


def _login(one: int) -> str:
    schema, table = one % SCHEMAS, one % (TABLES - 3)
    return f"""
        CREATE ROLE login_{one} LOGIN;
        GRANT reader_{one % SCHEMAS}, writer_{one * 7 % SCHEMAS} TO login_{one};
        GRANT USAGE ON SCHEMA s{schema} TO login_{one};
        GRANT SELECT ON s{schema}.t{table}, s{schema}.t{table + 3} TO login_{one};
        GRANT CONNECT ON DATABASE postgres TO login_{one};
    """


def export(server: PostgresServer, *arguments: str) -> float:
    """Runs the command as its users do; returns its seconds. Raises CalledProcessError."""
    command = [str(Path(sys.executable).with_name("pgrole-controller")), "export", *arguments]
    environment = {**os.environ, "PGROLE_DSN": server.dsn()}
    begin = time.perf_counter()
    subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - begin


async def measure(runs: int, arguments: tuple[str, ...]) -> list[float]:
    """Seconds of each run, on a server of its own."""
    async with postgres(settings=_SETTINGS) as server:
        await fill(server)
        return [await anyio.to_thread.run_sync(export, server, *arguments) for _ in range(runs)]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.export", allow_abbrev=False)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("arguments", nargs="*", help="of the command, after --")
    options = parser.parse_args()
    seconds = sorted(anyio.run(measure, options.runs, tuple(options.arguments)))
    roles, tables = 2 * SCHEMAS + LOGINS + 1, SCHEMAS * TABLES
    shown = ", ".join(f"{one:.2f}" for one in seconds)
    print(f"export of {roles:,} roles with {tables:,} tables: {shown} s (target: {TARGET:.0f} s)")
    return 0 if seconds[-1] <= TARGET else 1


if __name__ == "__main__":
    raise SystemExit(main())
