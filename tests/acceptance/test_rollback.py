"""Declared privileges and a rollback: the previous release does not know them, nor do its CRDs."""

from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest
import pytest_asyncio

from pgrole_controller import resources
from pgrole_controller.local.apiserver import ApiServer
from pgrole_controller.local.manifests import apply_crds
from tests.acceptance.servers import EVERYTHING
from tests.acceptance.shell import blocks, make_shell
from tests.acceptance.team_objects import SERVER, TeamObjects, drifts, open_team_objects
from tests.acceptance.world import running
from tests.releases import BEFORE
from tests.servers import Servers

pytestmark = pytest.mark.slow

DATABASE = "orders"
OBJECT = "reader"
MAY_READ = f"SELECT has_table_privilege('{OBJECT}', 'invoices', 'SELECT')"


@pytest_asyncio.fixture(loop_scope="session")
async def team_objects(own_api_server: ApiServer, servers: Servers, tmp_path: Path) -> AsyncIterator[TeamObjects]:
    databases, allow = {"matchNames": [DATABASE]}, {**EVERYTHING, "privileges": [{}]}
    async with open_team_objects(own_api_server, servers, tmp_path, databases=databases, allow=allow) as opened:
        await opened.database.execute(f"CREATE DATABASE {DATABASE}")
        yield opened


@pytest_asyncio.fixture(loop_scope="session")
async def orders(team_objects: TeamObjects) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(team_objects.postgres.dsn(database=DATABASE))
    await connection.execute("CREATE TABLE invoices ()")
    yield connection
    await connection.close()


async def declare(team_objects: TeamObjects) -> None:
    privileges = [{"database": DATABASE, "schemas": [{"name": "public", "access": ["Read"]}]}]
    await team_objects.kube.apply(OBJECT, serverRef={"name": SERVER}, privileges=privileges)
    await team_objects.kube.wait_ready(OBJECT)


async def reconcile(team_objects: TeamObjects) -> None:
    """Makes a drift, which is counted in status once it is corrected."""
    before = drifts(await team_objects.kube.get(OBJECT) or {})
    await team_objects.database.execute(f"ALTER ROLE {OBJECT} CREATEDB")
    await team_objects.kube.wait_for(OBJECT, lambda obj: drifts(obj) > before, "a drift")
    await team_objects.kube.wait_ready(OBJECT)


async def is_declared(team_objects: TeamObjects) -> bool:
    obj = await team_objects.kube.get(OBJECT)
    assert obj is not None
    return "privileges" in obj["spec"]


async def test_privileges_survive_a_rollback_that_keeps_the_crds(
    team_objects: TeamObjects, orders: asyncpg.Connection
) -> None:
    async with running(team_objects.controller()):
        await declare(team_objects)
    async with running(team_objects.controller(BEFORE)):
        await reconcile(team_objects)
        assert await is_declared(team_objects)
    await orders.execute(f"REVOKE SELECT ON invoices FROM {OBJECT}")
    async with running(team_objects.controller()):
        await team_objects.kube.wait_for(OBJECT, lambda obj: drifts(obj) > 1, "the drift of the time between")
        await team_objects.kube.wait_ready(OBJECT)
        assert await orders.fetchval(MAY_READ)


async def test_older_crds_drop_privileges_and_the_backup_restores_them_before_any_is_revoked(
    team_objects: TeamObjects, orders: asyncpg.Connection, tmp_path: Path
) -> None:
    server = team_objects.kube.server
    shell = await make_shell(server, team_objects.postgres, tmp_path / "shell")
    (shell.folder / "crds").symlink_to(resources.path("crds"))
    [back_up], [_, bring_back] = blocks("upgrade.md", "Backup"), blocks("upgrade.md", "Rollback")
    async with running(team_objects.controller()):
        await declare(team_objects)
    await shell.run(back_up)
    grants = await orders.fetchval("SELECT relacl::text FROM pg_class WHERE relname = 'invoices'")
    async with running(team_objects.controller(BEFORE)):
        await apply_crds(server, BEFORE.crds)
        await reconcile(team_objects)
    await apply_crds(server)
    assert not await is_declared(team_objects)
    await shell.run(bring_back)
    assert await is_declared(team_objects)
    async with running(team_objects.controller()) as controller:
        await reconcile(team_objects)
        await controller.rest()
        assert await orders.fetchval("SELECT relacl::text FROM pg_class WHERE relname = 'invoices'") == grants
        assert "privileges reconciled" not in controller.log
