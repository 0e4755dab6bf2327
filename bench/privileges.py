"""Measures privileges at several numbers of tables: how soon a drift is repaired, what that costs others, and how many
drifts are attributed. Each number of tables has a server of its own; the floor is of the same run.
"""

import argparse
import json
import platform
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import anyio

from bench.idle import settle
from bench.privilege_costs import (
    measure_complete_read,
    measure_ddl,
    measure_first_grant,
    measure_idle,
    measure_readers,
    measure_start,
)
from bench.privilege_repairs import (
    grant,
    grant_hidden,
    measure_attribution,
    measure_floor,
    measure_new_tables,
    measure_repairs,
    measure_repairs_beside_declaration,
)
from bench.privilege_stand import PRIVATE, PrivilegeStand
from bench.privilege_tenants import TABLES, TENANTS, TenantCosts, measure_tenants
from bench.quantities import Quantiles
from bench.stand import stand
from pgrole_controller.local.display import Display

_DETECTION = "PGROLE_DATABASES_DETECTION"
_IDLE_SECONDS = 15.0
_POLLED_TABLES = 1_000
#: Besides those of the tenants, whose figures are in the column of 1,000: of roles.
_TENANT_TABLES = 10


class PrivilegeLine(NamedTuple):
    """One figure as text; `goal` empty: none."""

    tables: int
    what: str
    value: str
    goal: str = ""


class Sizes(NamedTuple):
    tables: tuple[int, ...]
    drifts: int
    attributed: int


async def measure(sizes: Sizes, display: Display) -> list[PrivilegeLine]:
    lines = []
    for tables in sizes.tables:
        async with _filled(tables, "Auto", display) as of:
            lines += await _measure(of, sizes)
    async with _filled(_TENANT_TABLES, "Auto", display) as of:
        lines += _describe(await measure_tenants(of, sizes.drifts))
    async with _filled(_POLLED_TABLES, "Poll", display) as of:
        await of.stand.start_controller()
        await of.declare()
        repairs = await measure_repairs(of, grant, sizes.drifts)
        lines.append(
            PrivilegeLine(of.tables, "Poll: GRANT committed → revoked, ms", _three(repairs), "noticed ≤ 1,000")
        )
        idle = await measure_idle(of, _IDLE_SECONDS)
        lines.append(
            PrivilegeLine(of.tables, "Poll, idle: CPU of the connection, % of a core", f"{idle.cpu:.2f}", "≤ 2")
        )
    return lines


@asynccontextmanager
async def _filled(tables: int, detection: str, display: Display) -> AsyncIterator[PrivilegeStand]:
    async with stand(display, settings={_DETECTION: detection}) as of:
        filled = PrivilegeStand(of, tables)
        await filled.fill()
        yield filled


async def _measure(of: PrivilegeStand, sizes: Sizes) -> list[PrivilegeLine]:
    lines: list[PrivilegeLine] = []

    def note(what: str, value: str, goal: str = "") -> None:
        lines.append(PrivilegeLine(of.tables, what, value, goal))
        of.stand.display.say(f"{of.tables:,} tables: {what}: {value}")

    note("floor: NOTIFY + ACL read + GRANT, ms", _three(await measure_floor(of)))
    alone = await measure_ddl(of)
    await of.stand.start_controller()
    first = await measure_first_grant(of)
    note("first grant on every table, s until Ready", f"{first.seconds:.2f}", "≤ 5 at 10,000")
    note("the longest transaction that locks tables meanwhile, ms", f"{first.longest:.0f}", "≤ 50")
    note("others' ALTER TABLE that failed meanwhile", f"{first.failed} of {first.tried}", "0")
    await of.declare(1)
    await settle(of.stand)
    note("**GRANT committed → revoked**, ms", _three(await measure_repairs(of, grant, sizes.drifts)), "≤ 8 / 12 / 40")
    beside_declaration = await measure_repairs_beside_declaration(of)
    note("the same while another role is declared, ms", _three(beside_declaration))
    await settle(of.stand)
    hidden = await measure_repairs(of, grant_hidden, sizes.drifts)
    note("GRANT hidden in DO → revoked, ms", _three(hidden), "≤ 10, 25, 150")
    await settle(of.stand)
    one = await measure_new_tables(of, sizes.drifts, PRIVATE)
    note("**new table → readable** for one reader, ms", _three(one), "≤ 10")
    note("**new table → readable** for 60 readers, ms", _three(await measure_new_tables(of, sizes.drifts)), "≤ 10")
    beside = await measure_ddl(of)
    note("CPU of others' DDL, ms: without → with", f"{alone:.3f} → {beside:.3f}", "≤ 0.2 more")
    readers, readers_beside = await measure_readers(of)
    note(
        "16 readers beside 10,000 DDL in one transaction, p99 in ms: without → with",
        f"{readers:.2f} → {readers_beside:.2f}",
        "≤ a tenth more",
    )
    idle = await measure_idle(of, _IDLE_SECONDS)
    connection = f"{idle.connections} / {idle.cpu:.2f} / {idle.private:.1f}"
    note("idle: connections / their CPU, % / private memory, MiB", connection, "1 / 0 / 1.5")
    note("idle: WAL in bytes / rows written", f"{idle.wal} / {idle.rows}", "0 / 0")
    await settle(of.stand)
    exact, drifts = await measure_attribution(of, sizes.attributed)
    note("attributed to their transaction", f"{exact:,} of {drifts:,}", "all")
    note("complete read: CPU of PostgreSQL, ms", f"{await measure_complete_read(of):.0f}", "≤ 50 at 10,000")
    note("start: CPU of PostgreSQL in the database, ms", f"{await measure_start(of):.0f}")
    return lines


def _describe(costs: TenantCosts) -> list[PrivilegeLine]:
    what = f"{TENANTS:,} roles, each with a schema of {TABLES} tables"
    return [
        PrivilegeLine(TENANTS, f"{what}: all Ready, s", f"{costs.ready:.1f}"),
        PrivilegeLine(TENANTS, f"{what}: GRANT committed → revoked, ms", _three(costs.repairs)),
        PrivilegeLine(TENANTS, f"{what}: controller's peak memory, MiB", f"{costs.peak:.0f}"),
    ]


def _three(of: Quantiles) -> str:
    return f"{of.p50:.1f} / {of.p90:.1f} / {of.p99:.1f}"


def render(lines: Sequence[PrivilegeLine]) -> str:
    """A table in Markdown: a row for each figure, a column for each number of tables."""
    columns = sorted({line.tables for line in lines})
    rows: dict[tuple[str, str], dict[int, str]] = {}
    for line in lines:
        rows.setdefault((line.what, line.goal), {})[line.tables] = line.value
    head = f"| tables | goal | {' | '.join(f'{number:,}' for number in columns)} |"
    body = [
        f"| {what} | {goal} | {' | '.join(values.get(number, '') for number in columns)} |"
        for (what, goal), values in rows.items()
    ]
    return "\n".join([head, f"| --- | --- |{' --- |' * len(columns)}", *body])


def main(arguments: Sequence[str]) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser("python -m bench.privileges", description=__doc__)
    parser.add_argument("--tables", default="1000,10000,50000", help="how many tables, separated by commas")
    parser.add_argument("--drifts", type=int, default=60, help="of each kind, at each number of tables")
    parser.add_argument("--attributed", type=int, default=1000, help="mixed drifts to attribute")
    parser.add_argument("--save", type=Path, help="store the figures there, as JSON")
    given = parser.parse_args(arguments)
    tables = tuple(sorted({int(part) for part in given.tables.split(",")}))
    lines = anyio.run(measure, Sizes(tables, given.drifts, given.attributed), Display(sys.stderr))
    if given.save is not None:
        origin = {"arguments": list(arguments), "machine": platform.processor() or platform.machine()}
        stored = {"origin": origin, "lines": [line._asdict() for line in lines]}
        given.save.write_text(json.dumps(stored, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(render(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
