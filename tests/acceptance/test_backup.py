"""docs/upgrade.md: what is restored from a backup is as it was, with every oid and every password."""

from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from pgrole_controller.local.apiserver import ApiServer
from tests.acceptance.estate import Estate, open_estate
from tests.acceptance.shell import Shell, blocks, make_shell
from tests.acceptance.world import running
from tests.servers import Servers

pytestmark = pytest.mark.slow

OBJECTS, SECRETS = blocks("upgrade.md", "Restore")[1:3]
SCHEMA = blocks("upgrade.md", "Restore")[-1]
ROLES = "SELECT a.oid, a.rolname, a.rolpassword FROM pg_authid AS a WHERE a.oid >= 16384 ORDER BY a.oid"


@pytest_asyncio.fixture(loop_scope="session")
async def estate(own_api_server: ApiServer, servers: Servers, tmp_path: Path) -> AsyncIterator[Estate]:
    async with open_estate(own_api_server, servers, tmp_path) as opened:
        yield opened


@pytest_asyncio.fixture(loop_scope="session")
async def shell(estate: Estate, tmp_path: Path) -> Shell:
    return await make_shell(estate.kube.server, estate.postgres, tmp_path / "shell")


async def back_up(shell: Shell) -> None:
    (script,) = blocks("upgrade.md", "Backup")
    await shell.run(script)


async def delete_as_kubernetes_does(estate: Estate) -> None:
    """Every object, without dropping a role; and the Secrets that belong to them."""
    await estate.kube.delete_all()
    await estate.kube.wait_number(0)
    for secret in (await estate.kube.server.request("GET", estate.kube.secret_path()))["items"]:
        if "ownerReferences" in secret["metadata"]:
            await estate.kube.delete_secret(secret["metadata"]["name"])


async def passwords(estate: Estate) -> Mapping[str, Any]:
    return {name: (await estate.kube.wait_secret(name))["text"] for name in ("app-connection", "chosen-connection")}


async def test_objects_that_were_deleted_and_restored_have_their_roles_and_passwords(
    estate: Estate, shell: Shell
) -> None:
    async with running(estate.controller()):
        await estate.make()
        await back_up(shell)
        roles, texts = await estate.database.connection.fetch(ROLES), await passwords(estate)
        await delete_as_kubernetes_does(estate)
        await estate.database.wait_value("SELECT count(*) FROM pgrole.claim WHERE released_at IS NULL", 0)
    for script in (OBJECTS, SECRETS):
        await shell.run(script)
    async with running(estate.controller()):
        await estate.kube.wait_all_ready()
        assert await estate.database.connection.fetch(ROLES) == roles
        assert await passwords(estate) == texts
        await estate.prove("first")
        await estate.kube.delete("passing")
        await estate.kube.wait_gone("passing")


async def test_without_the_secrets_of_the_backup_another_password_is_made(estate: Estate, shell: Shell) -> None:
    async with running(estate.controller()):
        await estate.make()
        await back_up(shell)
        texts = await passwords(estate)
        await delete_as_kubernetes_does(estate)
    await shell.run(OBJECTS)
    async with running(estate.controller()):
        await estate.kube.wait_all_ready()
        await estate.check()
        assert (await passwords(estate))["app-connection"] != texts["app-connection"]


@pytest.mark.since(17, "what the pg_dump of the tests writes is for 17 and later")
async def test_a_schema_that_was_dropped_and_restored_has_every_claim(estate: Estate, shell: Shell) -> None:
    async with running(estate.controller()):
        await estate.make()
        await estate.prove("first")
    await back_up(shell)
    claims = "SELECT to_jsonb(c)::text FROM pgrole.claim AS c ORDER BY c.role_name"
    before = await estate.database.connection.fetch(claims)
    await estate.database.execute("DROP SCHEMA pgrole CASCADE")
    await shell.run(SCHEMA)
    assert await estate.database.connection.fetch(claims) == before
    left, canary = await estate.picture(), await estate.drift_canary()
    async with running(estate.controller()) as controller:
        await estate.wait_canary(canary)
        assert await estate.picture() == left
        assert "schema=present" in controller.log
        await estate.prove("second")
