"""Whatever happens, and in whichever order, everything ends as declared.

A longer search: `HISTORIES=20 make test-all ARGS="tests/acceptance/test_random_histories.py"`. The seed decides what
happens, but not how it coincides with what the controller does.
"""

import os
import random
from collections.abc import AsyncIterator

import anyio
import pytest
import pytest_asyncio

from pgrole_controller.local.postgres import PostgresServer
from tests.acceptance.random_histories import RandomHistory
from tests.acceptance.waiting import Attempts
from tests.acceptance.world import PATIENCE, Stage
from tests.servers import Servers

pytestmark = pytest.mark.slow

HISTORIES = int(os.environ.get("HISTORIES", "1"))
ROUNDS = 3
STEPS = 50


@pytest_asyncio.fixture(loop_scope="session")
async def own_postgres(servers: Servers) -> AsyncIterator[PostgresServer]:
    """A server of its own for each history: it is killed."""
    async with servers.run() as server:
        yield server


@pytest.mark.parametrize("seed", range(1, HISTORIES + 1))
async def test_a_random_history_ends_as_declared(stage: Stage, seed: int) -> None:
    history = RandomHistory(stage, random.Random(seed))
    await history.begin()
    try:
        for _ in range(ROUNDS):
            for _ in range(STEPS):
                await history.step()
            await history.settle()
            await wait_as_declared(history)
    finally:
        await history.controllers[-1].stop()
    assert not [one.process.log for one in history.controllers if "Traceback" in one.log]


async def wait_as_declared(history: RandomHistory) -> None:
    problems: list[str] = []
    with anyio.move_on_after(PATIENCE):
        async for _ in Attempts():
            problems = await history.find_problems()
            if not problems:
                return
    done = "\n".join(history.log)
    raise AssertionError(f"{problems} after {PATIENCE} s; {history.controllers[-1].process.log}; history:\n{done}")
