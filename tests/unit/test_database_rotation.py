"""controller/privileges/database_rotation: how often databases without a connection of their own have their turn."""

import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import pairwise
from typing import cast

import anyio
import pytest

from pgrole_controller.controller.privileges.database_rotation import DatabaseRotation
from pgrole_controller.controller.privileges.database_worker import DatabaseWorker
from pgrole_controller.controller.server_config import ServerConfig
from pgrole_controller.core.connection_secret import Address
from pgrole_controller.core.policy import ServerPolicy
from pgrole_controller.core.server_options import DatabaseMode, DatabasesConfig
from tests.timelapse import in_timelapse

CONFIG = ServerConfig("main", None, ServerPolicy(), Address("", 5432, "", ""))


class TimedWorker:
    """Each turn takes `takes` seconds. `fails`: whether it fails. `asked_at`: as in DatabaseWorker, until a turn."""

    def __init__(self, database: str, takes: float, *, fails: bool = False) -> None:
        self.database, self.takes, self.fails = database, takes, fails
        self.failures = 0
        self.asked_at = -math.inf
        self.turns: list[float] = []

    async def serve_turn(self) -> None:
        self.turns.append(anyio.current_time())
        self.asked_at = math.inf
        await anyio.sleep(self.takes)
        self.failures = self.failures + 1 if self.fails else 0

    def longest_gap(self, since: float) -> float:
        """Between two turns, and from the last one until now."""
        times = [one for one in self.turns if one >= since] + [anyio.current_time()]
        return max(after - before for before, after in pairwise(times))


@asynccontextmanager
async def rotating(config: Callable[[], ServerConfig], *workers: TimedWorker) -> AsyncIterator[DatabaseRotation]:
    rotation = DatabaseRotation(config, lambda _name: None)
    async with anyio.create_task_group() as tasks:
        for one in workers:
            rotation.add(cast("DatabaseWorker", one), anyio.Lock())
        tasks.start_soon(rotation.run)
        yield rotation
        tasks.cancel_scope.cancel()


@in_timelapse
async def test_whatever_is_announced_a_database_that_hangs_leaves_most_of_the_time_to_others() -> None:
    hanging, other = TimedWorker("hanging", 20.0, fails=True), TimedWorker("other", 0.1)
    async with rotating(lambda: CONFIG, hanging, other) as rotation:
        for _ in range(1000):
            await anyio.sleep(1.0)
            hanging.asked_at = -math.inf
            rotation.retry("hanging")
        assert 5 <= len(hanging.turns) <= 11
        assert len(other.turns) > 100


@in_timelapse
async def test_what_failed_is_tried_again_when_its_cause_may_be_gone() -> None:
    refused = TimedWorker("refused", 0.01, fails=True)
    async with rotating(lambda: CONFIG, refused) as rotation:
        await anyio.sleep(600.0)
        refused.asked_at, refused.fails, turns = -math.inf, False, len(refused.turns)
        rotation.retry("refused")
        await anyio.sleep(1.1)
        assert len(refused.turns) > turns


def resync(interval: float) -> ServerConfig:
    databases = DatabasesConfig(("*",), detection=DatabaseMode.RESYNC)
    return replace(CONFIG, interval=interval, resync_seconds=3600.0, databases=databases)


@pytest.mark.parametrize(
    ("number", "takes", "interval"), [(100, 0.3, 1.0), (10, 0.1, 600.0), (60, 50.0, 1.0)], ids=["many", "slow", "large"]
)
@in_timelapse
async def test_resync_sees_each_database_once_in_each_period(number: int, takes: float, interval: float) -> None:
    workers = [TimedWorker(f"n{one:03}", takes) for one in range(number)]
    began = anyio.current_time()
    async with rotating(lambda: resync(interval), *workers):
        await anyio.sleep(4 * 3600.0)
    assert max(one.longest_gap(began) for one in workers) < 3600.0 + 2.0 * takes + 1.0
    assert max(len(one.turns) for one in workers) <= 5


@in_timelapse
async def test_a_database_that_comes_back_has_a_turn_within_a_minute_whatever_the_interval() -> None:
    refused, other = TimedWorker("refused", 0.1, fails=True), TimedWorker("other", 0.1)
    async with rotating(lambda: replace(CONFIG, interval=3600.0), refused, other):
        await anyio.sleep(2000.0)
        assert refused.longest_gap(0.0) < 65.0
        assert len(other.turns) == 2
        refused.fails, turns = False, len(refused.turns)
        await anyio.sleep(65.0)
        assert (len(refused.turns), len(other.turns)) == (turns + 1, 2)
