"""postgres/privileges/reading_connection: the second connection to a large database, and how long it is kept."""

from collections.abc import AsyncIterator
from typing import Any

import anyio
import asyncpg
import pytest
import pytest_asyncio

from pgrole_controller.core.errors import Reason, Transient
from pgrole_controller.local.postgres import PostgresServer
from pgrole_controller.local.process import reached
from pgrole_controller.postgres.capabilities import identify
from pgrole_controller.postgres.connection import Connection, Endpoint, connect
from pgrole_controller.postgres.privileges import reading_connection, searches
from pgrole_controller.postgres.privileges.reading_connection import ReadingConnections
from tests.integration.database_world import DEADLINE, READ, DatabaseWorkerWorld


@pytest_asyncio.fixture(loop_scope="session")
async def connections(server: PostgresServer) -> AsyncIterator[ReadingConnections]:
    endpoint = Endpoint(server.dsn())
    async with connect(endpoint, "test") as connection:
        made = ReadingConnections(endpoint, "postgres", await identify(connection))
    yield made
    await made.close()


async def use(connections: ReadingConnections) -> Connection | None:
    """Opens one, uses it, and returns it."""
    async with connections.open() as connection:
        if connection is not None:
            assert await connection.fetchval("SHOW transaction_read_only") == "on"
        return connection


async def wait_closed(connection: Connection) -> None:
    async def is_closed() -> bool:
        return connection.is_closed()

    assert await reached(is_closed, DEADLINE)


async def test_one_connection_is_kept_and_used_again(connections: ReadingConnections) -> None:
    first = await use(connections)
    assert first is not None
    assert await use(connections) is first
    async with connections.open() as one, connections.open() as other:
        assert one is first
        assert other is not None
        assert other is not first
    assert first.is_closed()
    assert await use(connections) is other
    await connections.close()
    assert other.is_closed()


async def test_an_old_connection_is_not_kept(connections: ReadingConnections, monkeypatch: pytest.MonkeyPatch) -> None:
    first = await use(connections)
    assert first is not None
    monkeypatch.setattr(reading_connection, "_OLD_SECONDS", 0.0)
    assert await use(connections) is first
    assert first.is_closed()
    assert await use(connections) is not first


async def test_a_kept_connection_can_be_used_any_number_of_times(connections: ReadingConnections) -> None:
    first = await use(connections)
    for _ in range(5_000):
        async with connections.open() as connection:
            assert connection is first
    await connections.close()
    assert first is not None
    assert first.is_closed()


async def test_an_error_ends_the_connection(connections: ReadingConnections) -> None:
    first = await use(connections)
    assert first is not None

    async def fail() -> None:
        async with connections.open() as connection:
            assert connection is first
            await connection.execute("SELECT FROM absent")

    with pytest.raises(asyncpg.UndefinedTableError):
        await fail()
    assert first.is_closed()
    assert await use(connections) is not first


async def test_a_terminated_connection_is_replaced(connections: ReadingConnections, server: PostgresServer) -> None:
    first = await use(connections)
    assert first is not None
    async with connect(Endpoint(server.dsn()), "test") as administrator:
        await administrator.execute("SELECT pg_terminate_backend($1)", first.get_server_pid())
    await wait_closed(first)
    assert await use(connections) is not None


async def test_an_unused_connection_ends(connections: ReadingConnections, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading_connection, "UNUSED_SECONDS", 0.05)
    first = await use(connections)
    assert first is not None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(connections.close_unused)
        await wait_closed(first)
        tasks.cancel_scope.cancel()


async def test_a_server_that_accepts_no_second_connection_is_asked_once_a_minute(
    connections: ReadingConnections, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[None] = []

    def refuse(_connections: ReadingConnections) -> None:
        tried.append(None)
        raise Transient(Reason.SERVER_NOT_READY, "sorry, too many clients already")

    with monkeypatch.context() as patched:
        patched.setattr(ReadingConnections, "_connect", refuse)
        assert [await use(connections) for _ in range(3)] == [None] * 3
    assert len(tried) == 1
    monkeypatch.setattr(reading_connection, "_REFUSED_SECONDS", 0.0)
    assert await use(connections) is not None


async def test_the_kept_connection_ends_with_the_session(
    world: DatabaseWorkerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Connection] = []
    take = ReadingConnections._take

    async def note(connections: ReadingConnections) -> Any:
        taken = await take(connections)
        assert taken is not None
        opened.append(taken.connection)
        return taken

    monkeypatch.setattr(ReadingConnections, "_take", note)
    monkeypatch.setattr(reading_connection, "LARGE_CATALOGS", 0)
    monkeypatch.setattr(searches, "UNEXPLAINED_SECONDS", 0.02)
    world.declare(READ)
    async with world.working():
        await world.wait_settled()
        for turn in range(3):
            seen = len(opened)
            await world.hand.execute(f"CREATE TABLE app.t_{turn} (id int)")

            async def was_searched(seen: int = seen) -> bool:
                return len(opened) > seen

            assert await reached(was_searched, DEADLINE)
        assert any(not one.is_closed() for one in opened)
        assert len({id(one) for one in opened}) < len(opened)
    assert all(one.is_closed() for one in opened)
