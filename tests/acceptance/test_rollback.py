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
FIRST, SECOND = "reader", "another"


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


async def declare(team_objects: TeamObjects, name: str) -> None:
    privileges = [{"database": DATABASE, "schemas": [{"name": "public", "access": ["Read"]}]}]
    await team_objects.kube.apply(name, serverRef={"name": SERVER}, privileges=privileges)
    await team_objects.kube.wait_ready(name)


async def reconcile(team_objects: TeamObjects, name: str) -> None:
    """Makes a drift, which is counted in status once it is corrected."""
    before = drifts(await team_objects.kube.get(name) or {})
    await team_objects.database.execute(f"ALTER ROLE {name} CREATEDB")
    await team_objects.kube.wait_for(name, lambda obj: drifts(obj) > before, "a drift")
    await team_objects.kube.wait_ready(name)


async def is_declared(team_objects: TeamObjects, name: str) -> bool:
    obj = await team_objects.kube.get(name)
    assert obj is not None
    return "privileges" in obj["spec"]


async def test_privileges_survive_a_rollback_and_older_crds_drop_them_until_the_backup_restores_them(
    team_objects: TeamObjects, orders: asyncpg.Connection, tmp_path: Path
) -> None:
    async with running(team_objects.controller()):
        for name in (FIRST, SECOND):
            await declare(team_objects, name)
    await roll_back_with_the_crds_kept(team_objects, orders)
    await roll_back_with_older_crds(team_objects, orders, tmp_path)


async def roll_back_with_the_crds_kept(team_objects: TeamObjects, orders: asyncpg.Connection) -> None:
    async with running(team_objects.controller(BEFORE)):
        await reconcile(team_objects, FIRST)
        assert await is_declared(team_objects, FIRST)
    await orders.execute(f"REVOKE SELECT ON invoices FROM {FIRST}")
    async with running(team_objects.controller()):
        await team_objects.kube.wait_for(FIRST, lambda obj: drifts(obj) > 1, "the drift of the time between")
        await team_objects.kube.wait_ready(FIRST)
        assert await orders.fetchval(f"SELECT has_table_privilege('{FIRST}', 'invoices', 'SELECT')")


async def roll_back_with_older_crds(team_objects: TeamObjects, orders: asyncpg.Connection, tmp_path: Path) -> None:
    """The backup restores the privileges before any is revoked."""
    server = team_objects.kube.server
    shell = await make_shell(server, team_objects.postgres, tmp_path / "shell")
    (shell.folder / "crds").symlink_to(resources.path("crds"))
    [back_up], [_, bring_back] = blocks("upgrade.md", "Backup"), blocks("upgrade.md", "Rollback")
    await shell.run(back_up)
    grants = await orders.fetchval("SELECT relacl::text FROM pg_class WHERE relname = 'invoices'")
    async with running(team_objects.controller(BEFORE)):
        await apply_crds(server, BEFORE.crds)
        await reconcile(team_objects, SECOND)
    await apply_crds(server)
    assert not await is_declared(team_objects, SECOND)
    await shell.run(bring_back)
    assert await is_declared(team_objects, SECOND)
    restored = await team_objects.kube.get(SECOND) or {}
    managers = {one["manager"] for one in restored["metadata"]["managedFields"] if "f:spec" in one["fieldsV1"]}
    assert managers == {"test"}, "whoever applied the fields can remove them"
    async with running(team_objects.controller()) as controller:
        await reconcile(team_objects, SECOND)
        await controller.rest()
        assert await orders.fetchval("SELECT relacl::text FROM pg_class WHERE relname = 'invoices'") == grants
        assert "privileges reconciled" not in controller.log
