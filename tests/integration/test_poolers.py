"""postgres/detection and postgres/watch behind a pooler that passes no notifications on, or a balancer of servers."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

import asyncpg
import pytest
import pytest_asyncio

from pgrole_controller.core.errors import Transient
from pgrole_controller.core.server_options import DatabaseMode, Mode
from pgrole_controller.local.postgres import PostgresServer
from pgrole_controller.postgres import watch
from pgrole_controller.postgres.connection import Endpoint
from pgrole_controller.postgres.framing import MessageType
from pgrole_controller.postgres.session import Session, run_session
from pgrole_controller.postgres.watch import ChangeCallbacks
from tests.integration.database_world import READ, DatabaseWorkerWorld
from tests.servers import Servers


@asynccontextmanager
async def pooler(*behind: PostgresServer, silent: bool = False) -> AsyncIterator[str]:
    """The address of a proxy: the n-th connection reaches the n-th server, and those after the last one the last.
    `silent`: it drops every notification.
    """
    servers = itertools.chain(behind, itertools.repeat(behind[-1]))

    async def connect(near: asyncio.StreamReader, to_near: asyncio.StreamWriter) -> None:
        server = next(servers)
        far, to_far = await asyncio.open_connection(server.host, server.port)
        with suppress(OSError, asyncio.IncompleteReadError):
            await asyncio.gather(pass_on(near, to_far), pass_messages(far, to_near))
        to_far.transport.abort()
        to_near.transport.abort()

    async def pass_on(one: asyncio.StreamReader, other: asyncio.StreamWriter) -> None:
        while data := await one.read(1 << 16):
            other.write(data)
        other.write_eof()

    async def pass_messages(far: asyncio.StreamReader, to_near: asyncio.StreamWriter) -> None:
        while True:
            head = await far.readexactly(5)
            body = await far.readexactly(int.from_bytes(head[1:]) - 4)
            if not (silent and head[0] == MessageType.NOTIFICATION_RESPONSE):
                to_near.write(head + body)

    proxy = await asyncio.start_server(connect, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{proxy.sockets[0].getsockname()[1]}"
    finally:
        proxy.close()
        await proxy.wait_closed()


async def create_login(server: PostgresServer) -> None:
    connection = await asyncpg.connect(server.dsn())
    await connection.execute("CREATE ROLE steward LOGIN SUPERUSER PASSWORD 'p'")
    await connection.close()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def steward(server: PostgresServer) -> str:
    """A superuser whom both servers know."""
    await create_login(server)
    return "steward:p"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def other(servers: Servers) -> AsyncIterator[PostgresServer]:
    async with servers.run() as made:
        await create_login(made)
        yield made


async def attend(login: str, address: str, detection: Mode) -> Session:
    """The session that begins at this address."""
    sessions: list[Session] = []

    async def work(session: Session) -> None:
        sessions.append(session)

    endpoint = Endpoint(f"postgresql://{login}@{address}/postgres?sslmode=disable")
    callbacks = ChangeCallbacks()
    await run_session(endpoint, "c1", detection=detection, may_install=True, callbacks=callbacks, work=work)
    return sessions[0]


@pytest.mark.parametrize("detection", list(Mode))
async def test_no_session_begins_where_the_connections_of_one_address_reach_different_servers(
    server: PostgresServer, other: PostgresServer, steward: str, detection: Mode
) -> None:
    async with pooler(server, other) as address:
        with pytest.raises(Transient, match="the connections of one address reach different servers"):
            await attend(steward, address, detection)
    async with pooler(server) as address:
        assert (await attend(steward, address, detection)).detection.mode in (Mode.WATCH, detection)


async def test_where_a_pooler_passes_no_notifications_on_roles_are_polled(
    server: PostgresServer, steward: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "_GREETING_SECONDS", 0.3)
    reason = "a notification sent on one connection does not arrive on another"
    async with pooler(server, silent=True) as address:
        session = await attend(steward, address, Mode.AUTO)
        assert session.detection.mode is Mode.POLL
        assert session.why.startswith(reason)
        with pytest.raises(Transient, match=reason):
            await attend(steward, address, Mode.WATCH)


@pytest.mark.usefixtures("steward")
async def test_where_a_pooler_passes_no_notifications_on_privileges_are_polled(
    world: DatabaseWorkerWorld, server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "_GREETING_SECONDS", 0.3)
    world.declare(READ)
    async with pooler(server, silent=True) as address:
        endpoint = Endpoint(f"postgresql://steward:p@{address}/postgres?sslmode=disable")
        world.config = replace(world.config, endpoint=endpoint)
        async with world.working() as worker:
            await world.wait_settled()
            assert worker.mode is DatabaseMode.POLL
            assert worker.why.startswith("notifications do not arrive")
            await world.hand.execute(f"GRANT UPDATE ON app.orders TO {world.role}")
            await world.wait_may("UPDATE", "app.orders", expected=False)
