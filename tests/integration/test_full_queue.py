"""Where no notification arrives, or the server's queue of them is full, the controller goes on without."""

from collections.abc import AsyncIterator

import anyio
import pytest
import pytest_asyncio

from pgrole_controller.core.errors import PgRoleError, Reason
from pgrole_controller.core.server_options import DatabaseMode, Mode
from pgrole_controller.local.postgres import PostgresServer
from pgrole_controller.local.process import reached
from pgrole_controller.postgres.connection import Endpoint
from pgrole_controller.postgres.privileges import database_session
from pgrole_controller.postgres.session import Session, run_session
from pgrole_controller.postgres.watch import ChangeCallbacks, NotDelivered, QueueFull
from tests.integration.database_world import READ, DatabaseWorkerWorld, full_queue, make_world
from tests.servers import Servers

since_17 = pytest.mark.since(17, "max_notify_queue_pages: before, the queue has 8 GB")


@pytest_asyncio.fixture(loop_scope="session")
async def server(servers: Servers) -> AsyncIterator[PostgresServer]:
    async with servers.run({"max_notify_queue_pages": "64"}) as own:
        yield own


async def attend(server: PostgresServer, asked: Mode, seconds: float) -> Session:
    """Returns the session that lasts this long, unless it ends by itself."""
    sessions: list[Session] = []

    async def work(session: Session) -> None:
        sessions.append(session)
        await anyio.sleep(seconds)

    await run_session(
        Endpoint(server.dsn()),
        "c1",
        detection=asked,
        interval=1.0,
        may_install=True,
        callbacks=ChangeCallbacks(),
        work=work,
    )
    return sessions[0]


@pytest.mark.slow
@since_17
async def test_roles_are_polled_until_the_queue_has_room(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(QueueFull, "seconds", 1.0)
    assert (await attend(server, Mode.AUTO, 0.0)).detection.mode is Mode.WATCH
    ended: list[Session] = []

    async def attend_for_long() -> None:
        ended.append(await attend(server, Mode.AUTO, 3600.0))

    with anyio.fail_after(45):
        async with anyio.create_task_group() as tasks, full_queue(server, 1.0):
            polled = await attend(server, Mode.AUTO, 0.0)
            assert polled.detection.mode is Mode.POLL
            assert "pg_stat_activity" in polled.why
            tasks.start_soon(attend_for_long)
            await anyio.sleep(5.0)
            assert not ended, "nothing is better yet"
    assert ended[0].detection.mode is Mode.POLL
    assert (await attend(server, Mode.AUTO, 0.0)).detection.mode is Mode.WATCH


@since_17
async def test_watch_that_is_asked_for_says_why_it_is_not_possible(server: PostgresServer) -> None:
    async with full_queue(server, 1.0):
        with pytest.raises(PgRoleError, match="find it in pg_stat_activity"):
            await attend(server, Mode.WATCH, 0.0)


@since_17
async def test_privileges_are_kept_by_events_that_no_notification_announces(server: PostgresServer) -> None:
    async with make_world(server) as world:
        world.declare(READ)
        async with full_queue(server, 1.0), world.working() as worker:
            await world.wait_settled()
            assert worker.mode is DatabaseMode.EVENTS
            await world.hand.execute(f"GRANT UPDATE ON app.orders TO {world.role}")
            await world.wait_may("UPDATE", "app.orders", expected=False)


@since_17
async def test_events_are_used_once_notifications_arrive(
    world: DatabaseWorkerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def listen_in_vain(*_arguments: object) -> None:
        raise NotDelivered(Reason.SERVER_NOT_READY, "a pooler")

    world.declare(READ)
    monkeypatch.setattr(database_session, "DELIVERY_SECONDS", 0.5)
    with monkeypatch.context() as pooler:
        pooler.setattr(database_session, "listen_in_database", listen_in_vain)
        async with world.working() as worker:
            await world.wait_settled()
            await anyio.sleep(2.0)
            assert (worker.mode, worker.why, worker.failures) == (DatabaseMode.POLL, "a pooler", 0)
            pooler.undo()

            async def uses_events() -> bool:
                return worker.mode is DatabaseMode.EVENTS

            assert await reached(uses_events, 30.0), worker.why
