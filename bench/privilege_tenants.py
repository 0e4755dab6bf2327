"""Many roles in one database, each with a schema of its own whose tables have the same names: what drift costs then."""

import random
import time
from dataclasses import dataclass

import anyio

from bench.idle import settle
from bench.objects import Spec, make
from bench.privilege_repairs import repaired
from bench.privilege_stand import DATABASE, OWNER, PrivilegeStand
from bench.processes import read_status
from bench.quantities import Quantiles

TENANTS = 1_000
TABLES = 5
#: Between two drifts, in seconds.
_PAUSE = (0.05, 0.25)
_AT_ONCE = 100


@dataclass(frozen=True, slots=True)
class TenantCosts:
    """`ready`: seconds until all were Ready, `repairs` in seconds, `peak`: of the controller's memory, in MiB."""

    ready: float
    repairs: Quantiles
    peak: float


async def measure_tenants(stand: PrivilegeStand, drifts: int) -> TenantCosts:
    """Declares the tenants' roles, and has random ones drift."""
    async with stand.connect() as client:
        for first in range(0, TENANTS, _AT_ONCE):
            await client.execute("".join(map(_schema, range(first, first + _AT_ONCE))))
        await stand.stand.start_controller()
        made = await make(stand.stand, {f"tenant-{number}": _spec(number) for number in range(TENANTS)})
        await settle(stand.stand)
        took = []
        for _ in range(drifts):
            await anyio.sleep(random.uniform(*_PAUSE))
            number = random.randrange(TENANTS)
            await client.execute(f"GRANT TRUNCATE ON tenant_{number}.t_1 TO bench_tenant_{number}")
            began = time.time()
            ended = await repaired(client, f"bench_tenant_{number}", f"tenant_{number}.t_1", "TRUNCATE")
            took.append(ended - began)
    return TenantCosts(made.seconds, Quantiles.of(took), read_status(stand.stand.controller.pid, "VmHWM") / 2**20)


def _schema(number: int) -> str:
    name = f"tenant_{number}"
    tables = "".join(f"CREATE TABLE {name}.t_{table} (id int, name text);" for table in range(TABLES))
    return f"CREATE SCHEMA {name} AUTHORIZATION {OWNER}; SET ROLE {OWNER}; {tables} RESET ROLE;"


def _spec(number: int) -> Spec:
    schemas = [{"name": f"tenant_{number}", "access": ["Read", "Write"]}]
    privileges = [{"database": DATABASE, "onDatabase": ["CONNECT"], "schemas": schemas}]
    return {"name": f"bench_tenant_{number}", "login": True, "privileges": privileges}
