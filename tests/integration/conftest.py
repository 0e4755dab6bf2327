"""Shared fixtures: a PostgreSQL server for each module, and a database with its worker for each test."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import asyncpg
import pytest
import pytest_asyncio

from pgrole_controller.local.postgres import PostgresServer
from pgrole_controller.postgres.protocol import CheckedProtocol
from tests.integration.database_world import DatabaseWorkerWorld, make_world
from tests.servers import Servers


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def server(servers: Servers) -> AsyncIterator[PostgresServer]:
    """The module's own server: its tests may change roles, settings and databases."""
    async with servers.run() as own:
        yield own


@pytest_asyncio.fixture(loop_scope="session")
async def world(server: PostgresServer) -> AsyncIterator[DatabaseWorkerWorld]:
    async with make_world(server) as made:
        yield made


@pytest.fixture(autouse=True)
def unknown_types(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """OIDs of the types that asyncpg asks a server about, for a connection of the controller: none, since that costs
    the server more than most queries (postgres.backend_memory). A test that causes it clears the list.
    """
    asked: list[int] = []
    ask = asyncpg.Connection._introspect_types  # type: ignore[attr-defined]

    async def note(connection: Any, oids: set[int], timeout: float) -> Any:  # noqa: ASYNC109 -- asyncpg's
        if isinstance(connection._protocol, CheckedProtocol):
            asked.extend(oids)
        return await ask(connection, oids, timeout)

    monkeypatch.setattr(asyncpg.Connection, "_introspect_types", note)
    yield asked
    assert not asked, f"asyncpg asked PostgreSQL about types {sorted(set(asked))}: add them to postgres.backend_memory"
