"""Measures the command `plan`, from its start to its end: a new process, a local PostgreSQL, many objects in a file.

`python -m bench.plans --objects 1000`: a third of the roles is as declared, a third differs, a third does not exist.
With --privileges, each object declares what it may read in one database with 100 tables, too.
"""

import argparse
import asyncio
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import asyncpg
import yaml

from pgrole_controller.local.postgres import PostgresServer, postgres
from pgrole_controller.postgres.schema import install

_GOAL_SECONDS = 5.0
_TABLES = 100
_DATABASE = "bench_plan"


def _documents(objects: int, *, privileges: bool) -> Iterator[dict[str, Any]]:
    for number in range(objects):
        spec: dict[str, Any] = {
            "name": f"bench_{number}",
            "login": True,
            "connectionLimit": 10,
            "comment": f"service {number}",
            "memberOf": [{"role": "bench_readers"}],
            "parameters": {"statement_timeout": "30s", "search_path": "app, public"},
        }
        if privileges:
            spec["privileges"] = [{"database": _DATABASE, "schemas": [{"name": "app", "access": ["Read"]}]}]
        yield {
            "apiVersion": "pgrole.dev/v1alpha1",
            "kind": "PgRole",
            "metadata": {"name": f"bench-{number}", "namespace": "bench"},
            "spec": spec,
        }


async def _fill(server: PostgresServer, objects: int) -> None:
    connection = await asyncpg.connect(server.dsn())
    await install(connection)
    await connection.execute(f"CREATE DATABASE {_DATABASE}")
    lines = ["CREATE ROLE bench_readers;"]
    for number in range(2 * objects // 3):
        name = f"bench_{number}"
        lines += [
            f"CREATE ROLE {name} LOGIN CONNECTION LIMIT {10 + number % 2};",
            f"COMMENT ON ROLE {name} IS 'service {number}'; GRANT bench_readers TO {name};",
            f"ALTER ROLE {name} SET statement_timeout = '30s'; ALTER ROLE {name} SET search_path = app, public;",
            f"SELECT pgrole.take_claim('{name}', '{name}'::regrole::oid, 'c', 'bench', 'n', 'bench-{number}', "
            f"'uid-{number}', '', '{{}}');",
        ]
    await connection.execute("\n".join(lines))
    await connection.close()
    inside = await asyncpg.connect(server.dsn(database=_DATABASE))
    tables = "".join(f"CREATE TABLE app.t{number} (id int);" for number in range(_TABLES))
    await inside.execute(f"CREATE SCHEMA app; {tables}")
    await inside.close()


class PlanRun(NamedTuple):
    """Seconds of the whole command: elapsed, and of its processor."""

    elapsed: float
    cpu: float


def _run(dsn: str, file: Path) -> PlanRun:
    """Raises RuntimeError if the command fails."""
    begun, before = time.monotonic(), _cpu_seconds()
    command = [sys.executable, "-m", "pgrole_controller", "plan", "-f", str(file)]
    ended = subprocess.run(command, env={**os.environ, "PGROLE_DSN": dsn}, capture_output=True, text=True, check=False)
    elapsed, cpu = time.monotonic() - begun, _cpu_seconds() - before
    if ended.returncode != 3:
        message = f"plan ended with {ended.returncode}: {ended.stderr[-500:]}"
        raise RuntimeError(message)
    return PlanRun(elapsed, cpu)


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


async def measure(objects: int, repetitions: int, *, privileges: bool) -> list[PlanRun]:
    with TemporaryDirectory(prefix="pgrole-bench-") as folder:
        file = Path(folder) / "roles.yaml"
        file.write_text(yaml.safe_dump_all(_documents(objects, privileges=privileges)), encoding="utf-8")
        async with postgres() as server:
            await _fill(server, objects)
            return [await asyncio.to_thread(_run, server.dsn(), file) for _ in range(repetitions)]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser("python -m bench.plans", description="Measures `pgrole-controller plan`.")
    parser.add_argument("--objects", type=int, default=1000)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--privileges", action="store_true", help="with privileges in one database")
    options = parser.parse_args(arguments)
    runs = asyncio.run(measure(options.objects, options.repetitions, privileges=options.privileges))
    kind = " with privileges" if options.privileges else ""
    seconds, cpu = [one.elapsed for one in runs], statistics.median(one.cpu for one in runs)
    shown = f"{statistics.median(seconds):.2f} s (of {len(runs)}: {min(seconds):.2f} to {max(seconds):.2f})"
    print(f"plan of {options.objects:,} objects{kind}: {shown}, CPU {cpu:.2f} s; goal {_GOAL_SECONDS:.0f} s")


if __name__ == "__main__":
    main()
