"""controller/privileges/database_rotation: how often databases without a connection of their own have their turn."""

import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import cast

import anyio

from pgrole_controller.controller.privileges.database_rotation import DatabaseRotation
from pgrole_controller.controller.privileges.database_worker import DatabaseWorker
from pgrole_controller.controller.server_config import ServerConfig
from pgrole_controller.core.connection_secret import Address
from pgrole_controller.core.policy import ServerPolicy
from tests.timelapse import in_timelapse

CONFIG = ServerConfig("main", None, ServerPolicy(), Address("", 5432, "", ""))


class TimedWorker:
    """Each turn takes `takes` seconds. `fails`: whether it fails. `asked_at`: as in DatabaseWorker, until a turn."""

    def __init__(self, database: str, takes: float, *, fails: bool = False) -> None:
        self.database, self.takes, self.fails = database, takes, fails
        self.failures = 0
        self.asked_at = -math.inf
        self.turns: list[float] = []

    async def take_turn(self) -> None:
        self.turns.append(anyio.current_time())
        self.asked_at = math.inf
        await anyio.sleep(self.takes)
        self.failures = self.failures + 1 if self.fails else 0


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
