"""controller/privileges/databases: which databases have a connection while sessions of their own cannot begin."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest

from pgrole_controller.controller.context import WorkerContext
from pgrole_controller.controller.leadership import Leadership
from pgrole_controller.controller.privileges import database_worker
from pgrole_controller.controller.privileges.databases import LEFT_SECONDS, Databases
from pgrole_controller.controller.privileges.grantees import Grantees
from pgrole_controller.controller.server_config import ServerConfig
from pgrole_controller.core.connection_secret import Address
from pgrole_controller.core.errors import Reason, Transient
from pgrole_controller.core.policy import ServerPolicy
from pgrole_controller.core.privileges.grantee import (
    DatabasePrivileges,
    Grantee,
    PrivilegePolicy,
    PrivilegeRule,
)
from pgrole_controller.core.request import Key
from pgrole_controller.core.server_options import DatabaseMode, DatabasesConfig
from pgrole_controller.postgres.connection import Endpoint
from pgrole_controller.postgres.privileges.ddl_events import PrivilegeRead
from pgrole_controller.postgres.session import Session
from tests.timelapse import in_timelapse

NAMES = ("a", "b", "c")
CONFIG = ServerConfig(
    "main",
    Endpoint("postgresql://pg"),
    ServerPolicy(),
    Address("pg", 5432, "", ""),
    databases=DatabasesConfig(("*",), max=1, detection=DatabaseMode.EVENTS),
)


class IdleSession:
    """A turn in a database in which nothing happens."""

    oid, stores, fence, own_acl = 16_384, False, None, PrivilegeRead()

    def __init__(self) -> None:
        self.lock = anyio.Lock()

    async def next_read(self) -> PrivilegeRead:
        return PrivilegeRead()

    def may_tell_of_database(self, _: PrivilegeRead) -> bool:
        return False


class TurnsOnly:
    """Opens sessions for turns. One that is to be kept is refused; `refused`: when, and in which database."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.refused: list[tuple[float, str]] = []
        self.turns: list[str] = []
        monkeypatch.setattr(database_worker, "open_database", self._open)
        monkeypatch.setattr(database_worker, "run_round", self._run_round)

    @property
    def placed(self) -> list[str]:
        """The databases that had the connection, in order."""
        names = [name for _, name in self.refused]
        return [name for name, before in zip(names, ["", *names], strict=False) if name != before]

    @asynccontextmanager
    async def _open(
        self, _endpoint: Endpoint, database: str, *_: object, in_turn: bool, **_options: object
    ) -> AsyncIterator[IdleSession]:
        await anyio.sleep(0.01)
        if not in_turn:
            self.refused.append((anyio.current_time(), database))
            raise Transient(Reason.DATABASE_ERROR, "no session of its own")
        self.turns.append(database)
        yield IdleSession()

    async def _run_round(self, *_: object) -> list[Any]:
        return []


@asynccontextmanager
async def serving() -> AsyncIterator[Databases]:
    grantees = Grantees()
    policy = PrivilegePolicy(rules=(PrivilegeRule(),), databases=("*",))
    declared = {name: DatabasePrivileges(name) for name in NAMES}
    grantees.publish("main", Grantee(Key("shop", "app"), "uid-1", 1, "app", 20_000, declared, policy=policy))
    context = SimpleNamespace(grantees=grantees, leadership=Leadership(), objects=SimpleNamespace(cluster="c1"))
    databases = Databases(lambda: CONFIG, cast("WorkerContext", context), lambda: False)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(databases.run, cast("Session", SimpleNamespace(identity=None)), "home")
        yield databases
        tasks.cancel_scope.cancel()


@in_timelapse
async def test_a_database_that_can_have_no_session_of_its_own_leaves_its_connection_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise all of them take it from each other for ever, and their roles become Ready and not Ready each time."""
    opens = TurnsOnly(monkeypatch)
    async with serving() as databases:
        await anyio.sleep(LEFT_SECONDS - 10.0)
        first = opens.placed
        assert sorted(first) == list(NAMES), "each is tried once"
        assert {one.name for one in databases.states() if one.mode is DatabaseMode.POLL} == {*first[:2]}
        await anyio.sleep(60.0)
        assert len(opens.placed) > len(first), "another attempt"
        before = len(opens.placed)
        databases.note_config()
        await anyio.sleep(60.0)
        assert len(opens.placed) > before, "the declaration may have changed what kept them from it"
