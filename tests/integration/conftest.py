"""Shared fixtures: a PostgreSQL server for each module, and a database with its worker for each test."""

from collections.abc import AsyncIterator

import pytest_asyncio

from pgrole_controller.local.postgres import PostgresServer
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
