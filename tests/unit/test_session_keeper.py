"""controller/session_keeper: its states, when it reconnects, and when it reports an outage."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest

from pgrole_controller.controller import session_keeper as keeper_module
from pgrole_controller.controller.leadership import Leadership
from pgrole_controller.controller.namespaces import Namespaces
from pgrole_controller.controller.objects import Objects, index_by_owner, index_pgrole
from pgrole_controller.controller.queue import Queue
from pgrole_controller.controller.server_config import ServerConfig
from pgrole_controller.controller.session_keeper import (
    HEALTHY_SECONDS,
    REPORT_OUTAGE_SECONDS,
    SessionKeeper,
    SessionState,
)
from pgrole_controller.core.connection_secret import Address
from pgrole_controller.core.errors import PgRoleError, Reason, Transient
from pgrole_controller.core.policy import ServerPolicy
from pgrole_controller.core.request import Rank, RequestReason
from pgrole_controller.core.state import Detection
from pgrole_controller.kube.client import Client
from pgrole_controller.kube.store import Store
from pgrole_controller.postgres.connection import Endpoint
from pgrole_controller.postgres.schema import SchemaState
from pgrole_controller.postgres.session import Session
from pgrole_controller.postgres.watch import ChangeCallbacks
from tests.timelapse import in_timelapse
from tests.worker_context import make_context

SERVER = ServerConfig("main", Endpoint("postgresql://pg/"), ServerPolicy(), Address("pg", 5432, "o", "require"))
LOST = Transient(Reason.SERVER_NOT_READY, "connection lost")
Seconds = float | None


class FakeServer:
    """Replaces `run_session`: each attempt takes the seconds it lasts from `sessions`; None means it fails."""

    def __init__(self, *sessions: Seconds) -> None:
        self.sessions = list(sessions)
        self.attempts: list[float] = []
        self.candidate = False

    async def run_session(
        self, *_: object, work: Callable[[Session], Awaitable[None]], candidate: Any, **__: object
    ) -> None:
        self.attempts.append(anyio.current_time())
        lasts = self.sessions.pop(0) if self.sessions else None
        if lasts is None:
            raise LOST
        if candidate is not None:
            await candidate.stand_by()
        identity = SimpleNamespace(version="17", system_identifier=7, started_at=str(len(self.attempts)))
        session = SimpleNamespace(
            identity=identity, detection=Detection(), schema_state=SchemaState.PRESENT, why="", fence=None
        )
        with anyio.move_on_after(lasts):
            await work(cast("Session", session))
        raise LOST


class KeeperWorld:
    def __init__(self, server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(keeper_module, "run_session", server.run_session)
        self.queue, self.requested = Queue(), list[RequestReason]()
        namespaces = Namespaces(cast("Client", None), Store())
        objects = Objects(Store(index_pgrole), Store(index_by_owner), namespaces, "c1")
        self.context = make_context(self.queue, objects)
        self.states: list[SessionState] = []
        self.keeper = SessionKeeper(SERVER, self.context, self._work, ChangeCallbacks(), self._enqueue_all)

    def state(self) -> SessionState:
        return self.keeper.state

    def trouble(self) -> PgRoleError | None:
        return self.keeper.trouble

    async def _work(self, _: Session) -> None:
        self.states.append(self.keeper.state)
        await anyio.sleep_forever()

    def _enqueue_all(self, reason: RequestReason, rank: Rank) -> None:
        assert rank in (Rank.DEPENDENCY, Rank.RESYNC)
        self.requested.append(reason)


@in_timelapse
async def test_a_long_session_that_ends_is_followed_by_another_without_a_report(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = FakeServer(2 * HEALTHY_SECONDS, 1000.0)
    world = KeeperWorld(server, monkeypatch)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(world.keeper.run)
        await anyio.sleep(1.0)
        assert world.state() is SessionState.ACTIVE
        await anyio.sleep(2 * HEALTHY_SECONDS)
        assert world.state() is SessionState.ACTIVE
        assert world.trouble() is None
        tasks.cancel_scope.cancel()
    first, second = server.attempts
    assert second - first < 2 * HEALTHY_SECONDS + 0.5
    assert world.requested == []


@in_timelapse
async def test_an_outage_is_the_servers_trouble_at_once_and_reported_on_every_object_if_it_lasts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = FakeServer()
    world = KeeperWorld(server, monkeypatch)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(world.keeper.run)
        await anyio.sleep(REPORT_OUTAGE_SECONDS - 1.0)
        assert world.state() is SessionState.UNAVAILABLE
        assert world.trouble() is LOST
        assert world.requested == []
        await anyio.sleep(20.0)
        assert world.requested == [RequestReason.SERVER_NOT_READY]
        server.sessions = [1000.0]
        await anyio.sleep(60.0)
        assert world.state() is SessionState.ACTIVE
        assert world.trouble() is None
        tasks.cancel_scope.cancel()
    assert world.state() is SessionState.CONNECTING
    assert world.keeper.session is None


@in_timelapse
async def test_what_a_declared_server_without_a_session_names_is_unknown_until_it_is_deleted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = KeeperWorld(FakeServer(10.0, None), monkeypatch)
    live = world.context.live_servers
    assert live.unknown() == frozenset()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(world.keeper.run)
        await anyio.sleep(1.0)
        assert live.unknown() == frozenset()
        await anyio.sleep(60.0)
        assert live.unknown() == {"main"}
        tasks.cancel_scope.cancel()
    assert live.unknown() == frozenset()
    another = SessionKeeper(SERVER, world.context, world.keeper._work, ChangeCallbacks(), world.keeper._enqueue_all)
    assert live.mark_disconnected(another) == 1  # the deleted one does not count


@in_timelapse
async def test_a_changed_declaration_reconnects_at_once_even_during_a_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = FakeServer()
    world = KeeperWorld(server, monkeypatch)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(world.keeper.run)
        await anyio.sleep(200.0)
        server.sessions = [1000.0]
        world.keeper.reconnect("server changed")
        began = anyio.current_time()
        await anyio.wait_all_tasks_blocked()
        assert world.state() is SessionState.ACTIVE
        assert server.attempts[-1] == began
        tasks.cancel_scope.cancel()


@in_timelapse
async def test_suspension_counts_only_while_active_and_each_change_of_it_reconciles_every_object(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = KeeperWorld(FakeServer(1000.0), monkeypatch)
    world.keeper.note_suspended(True)
    assert world.state() is SessionState.CONNECTING
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(world.keeper.run)
        await anyio.wait_all_tasks_blocked()
        for suspended, state in ((True, SessionState.SUSPENDED), (False, SessionState.ACTIVE)):
            world.keeper.note_suspended(suspended)
            world.keeper.note_suspended(suspended)
            assert world.state() is state
            assert state.is_active
        tasks.cancel_scope.cancel()
    assert world.requested == [RequestReason.SUSPENSION] * 2


@in_timelapse
async def test_a_standby_has_a_session_but_does_not_reconcile(monkeypatch: pytest.MonkeyPatch) -> None:
    world = KeeperWorld(FakeServer(1000.0), monkeypatch)
    leads = anyio.Event()
    leadership = SimpleNamespace(candidate=lambda stand_by: SimpleNamespace(stand_by=stand_by), stand_by=leads.wait)
    monkeypatch.setattr(world.keeper, "_context", _leading_by(world, cast("Leadership", leadership)))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(world.keeper.run)
        await anyio.wait_all_tasks_blocked()
        assert world.state() is SessionState.STANDBY
        assert world.keeper.state.has_session
        assert not world.keeper.state.is_active
        assert world.states == []
        leads.set()
        await anyio.wait_all_tasks_blocked()
        assert world.states == [SessionState.ACTIVE]
        tasks.cancel_scope.cancel()


def _leading_by(world: KeeperWorld, leadership: Leadership) -> Any:
    return replace(world.context, leadership=leadership)


@in_timelapse
async def test_a_session_outlasts_its_missing_credentials_but_no_other_session_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = FakeServer(50.0, 1000.0)
    world = KeeperWorld(server, monkeypatch)
    problem: PgRoleError = Transient(Reason.SERVER_NOT_READY, "Secret missing")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(world.keeper.run)
        await anyio.sleep(1.0)
        world.keeper.server = ServerConfig(
            "main", SERVER.endpoint, ServerPolicy(), SERVER.address, lapsed=True, problem=problem
        )
        await anyio.sleep(40.0)
        assert world.state() is SessionState.ACTIVE
        await anyio.sleep(60.0)
        assert world.state() is SessionState.UNAVAILABLE
        assert world.trouble() is problem
        tasks.cancel_scope.cancel()
    assert len(server.attempts) == 1
