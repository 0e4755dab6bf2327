"""Measures one round of mode Poll: the query to the server and the comparison in memory."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import anyio

from bench.stand import BenchStand
from pgrole_controller.postgres.capabilities import identify
from pgrole_controller.postgres.connection import Endpoint, connect
from pgrole_controller.postgres.poll import Poller

_ROUNDS = 15

#: Seconds between two rounds, so that all processes have slept.
_PAUSE = 0.1

_ROLE = "bench_poll"


@dataclass(frozen=True, slots=True)
class Poll:
    """Medians in milliseconds: after no commit, after an unrelated commit, after a change of one role."""

    nothing: float
    commit: float
    change: float


async def measure_poll(stand: BenchStand) -> Poll:
    """Polls in this process, as the controller would in each interval."""
    async with stand.connect() as client, connect(Endpoint(stand.server.dsn()), "poll") as connection:
        await client.execute(f"DROP ROLE IF EXISTS {_ROLE}; CREATE ROLE {_ROLE}")
        poller = Poller(connection, anyio.Lock(), await identify(connection))
        await poller.compare()
        statements = ("SELECT 1", "SELECT pg_current_xact_id()", f"ALTER ROLE {_ROLE} LOGIN")
        took: dict[str, list[float]] = {statement: [] for statement in statements}
        for _ in range(_ROUNDS):
            for statement, seconds in took.items():
                await _settle(poller)
                await anyio.sleep(_PAUSE)
                await client.execute(statement)
                start = time.perf_counter()
                names = await poller.compare()
                seconds.append(time.perf_counter() - start)
                if (_ROLE in names) != ("ALTER" in statement):
                    raise AssertionError(f"after {statement!r} Poll has seen {names}")
            await client.execute(f"ALTER ROLE {_ROLE} NOLOGIN")
        await client.execute(f"DROP ROLE {_ROLE}")
    return Poll(*_medians(list(took.values())))


async def _settle(poller: Poller) -> None:
    """Polls until every past change has been reported twice."""
    while await poller.compare():
        pass


def _medians(took: Sequence[Sequence[float]]) -> list[float]:
    return [1000 * median(seconds) for seconds in took]
