"""Whatever happens, and in whichever order, everything ends as declared.

`HISTORIES=20` runs that many, and `SEED=7` begins with that seed. It decides what happens, but not how it coincides
with what the controller does.
"""

import os
from collections.abc import AsyncIterator

import anyio
import pytest
import pytest_asyncio

from pgrole_controller.local.postgres import PostgresServer
from tests.acceptance.random_histories import RandomHistory, random_history
from tests.acceptance.waiting import Attempts
from tests.acceptance.world import PATIENCE, Stage
from tests.servers import Servers

pytestmark = pytest.mark.slow

HISTORIES = int(os.environ.get("HISTORIES", "1"))
#: The first one has two replicas, a PgServer, and an API server that fails.
FIRST_SEED = int(os.environ.get("SEED", "27"))
ROUNDS = 3
STEPS = 30


@pytest_asyncio.fixture(loop_scope="session")
async def own_postgres(servers: Servers) -> AsyncIterator[PostgresServer]:
    """A server of its own for each history: it is killed."""
    async with servers.run() as server:
        yield server


@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + HISTORIES))
async def test_a_random_history_ends_as_declared(stage: Stage, servers: Servers, seed: int) -> None:
    async with random_history(stage, seed, servers.version) as history:
        for _ in range(ROUNDS):
            for _ in range(STEPS):
                await history.step()
            await history.settle()
            await wait_as_declared(history)
        if history.circumstances.restarts:
            drifts = await history.restart()
            await wait_as_declared(history)
            assert not drifts, history.tell(drifts)
    assert not history.controllers.find_tracebacks()


async def wait_as_declared(history: RandomHistory) -> None:
    problems: list[str] = []
    with anyio.move_on_after(PATIENCE):
        async for _ in Attempts():
            problems = await history.find_problems()
            if not problems:
                return
    raise AssertionError(history.tell(problems))
