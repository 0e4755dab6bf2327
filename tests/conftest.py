"""The real things that tests run against: started once for a session, and only when a test asks for one."""

import secrets
import sys
from collections.abc import AsyncIterator
from contextlib import nullcontext

import asyncpg
import pytest
import pytest_asyncio

from pgrole_controller.local.apiserver import ApiServer
from pgrole_controller.local.apiserver import api_server as run_api_server
from pgrole_controller.local.binaries import Binaries, find, find_present
from pgrole_controller.local.display import Display
from pgrole_controller.local.manifests import apply_crds, create_namespace
from pgrole_controller.local.postgres import PostgresServer, postgres


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def binaries(request: pytest.FixtureRequest) -> Binaries:
    """kube-apiserver and etcd. When they must be built first, pytest shows how far that is."""
    capture = request.config.pluginmanager.getplugin("capturemanager")
    shown = nullcontext() if find_present() or capture is None else capture.global_and_fixture_disabled()
    with shown:
        return await find(Display(sys.stderr))


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def api_server(binaries: Binaries) -> AsyncIterator[ApiServer]:
    """One API server with the CRDs for all tests: never stop, freeze or kill this one."""
    async with run_api_server(binaries=binaries) as server:
        await apply_crds(server)
        yield server


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def postgres_server() -> AsyncIterator[PostgresServer]:
    """One PostgreSQL for all tests: never stop, freeze or kill this one. Roles are common to all its databases."""
    async with postgres() as server:
        yield server


@pytest_asyncio.fixture(loop_scope="session")
async def own_postgres() -> AsyncIterator[PostgresServer]:
    """A PostgreSQL for one test alone (0.6 s), which may do with it what it likes."""
    async with postgres() as server:
        yield server


@pytest_asyncio.fixture(loop_scope="session")
async def namespace(api_server: ApiServer) -> str:
    """The name of a namespace that no other test has."""
    name = f"test-{secrets.token_hex(4)}"
    await create_namespace(api_server, name)
    return name


@pytest_asyncio.fixture(loop_scope="session")
async def database(postgres_server: PostgresServer) -> AsyncIterator[str]:
    """The DSN, as superuser, of an empty database that no other test has."""
    name = f"test_{secrets.token_hex(4)}"
    connection = await asyncpg.connect(postgres_server.dsn())
    try:
        await connection.execute(f'CREATE DATABASE "{name}"')
        yield postgres_server.dsn(database=name)
        await connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')
    finally:
        await connection.close()
