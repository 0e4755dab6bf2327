"""docs/upgrade.md: a restore from a backup brings everything back, with every oid and every password."""

from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from pgrole_controller.local.apiserver import ApiServer
from tests.acceptance.shell import CommandShell, blocks, make_shell
from tests.acceptance.team_objects import SERVER, TeamObjects, open_team_objects
from tests.acceptance.world import Json, Kube, running
from tests.servers import Servers

pytestmark = pytest.mark.slow

CREATION, REPLACEMENT, SECRETS = blocks("upgrade.md", "Restore")[1:4]
#: The PgServer still exists, so the first command fails.
OBJECTS = f"if {{ {CREATION}}}; then false; fi\n{REPLACEMENT}"
SCHEMA = blocks("upgrade.md", "Restore")[-1]
ROLES = "SELECT a.oid, a.rolname, a.rolpassword FROM pg_authid AS a WHERE a.oid >= 16384 ORDER BY a.oid"


@pytest_asyncio.fixture(loop_scope="session")
async def team_objects(own_api_server: ApiServer, servers: Servers, tmp_path: Path) -> AsyncIterator[TeamObjects]:
    async with open_team_objects(own_api_server, servers, tmp_path) as opened:
        yield opened


@pytest_asyncio.fixture(loop_scope="session")
async def shell(team_objects: TeamObjects, tmp_path: Path) -> CommandShell:
    return await make_shell(team_objects.kube.server, team_objects.postgres, tmp_path / "shell")


async def back_up(shell: CommandShell) -> None:
    (script,) = blocks("upgrade.md", "Backup")
    await shell.run(script)


async def delete_as_kubernetes_does(team_objects: TeamObjects) -> None:
    """Deletes every object, without dropping a role, and the Secrets that they own."""
    await team_objects.kube.delete_all()
    await team_objects.kube.wait_number(0)
    for secret in (await team_objects.kube.server.request("GET", team_objects.kube.secret_path()))["items"]:
        if "ownerReferences" in secret["metadata"]:
            await team_objects.kube.delete_secret(secret["metadata"]["name"])


async def passwords(team_objects: TeamObjects) -> Mapping[str, Any]:
    return {
        name: (await team_objects.kube.wait_secret(name))["text"] for name in ("app-connection", "chosen-connection")
    }


async def test_restored_objects_have_their_roles_and_with_the_secrets_their_passwords(
    team_objects: TeamObjects, shell: CommandShell
) -> None:
    held = "SELECT count(*) FROM pgrole.claim WHERE released_at IS NULL"
    async with running(team_objects.controller()):
        await team_objects.make()
        await back_up(shell)
        roles, texts = await team_objects.database.connection.fetch(ROLES), await passwords(team_objects)
        await delete_as_kubernetes_does(team_objects)
        await team_objects.database.wait_value(held, 0)
    for script in (OBJECTS, SECRETS):
        await shell.run(script)
    async with running(team_objects.controller()):
        await team_objects.kube.wait_all_ready()
        assert await team_objects.database.connection.fetch(ROLES) == roles
        assert await passwords(team_objects) == texts
        await team_objects.prove("first")
        await delete_as_kubernetes_does(team_objects)
        await team_objects.database.wait_value(held, 0)
    await shell.run(OBJECTS)
    async with running(team_objects.controller()):
        await team_objects.kube.wait_all_ready()
        await team_objects.check()
        assert (await passwords(team_objects))["app-connection"] != texts["app-connection"]
        await team_objects.kube.delete("passing")
        await team_objects.kube.wait_gone("passing")


async def test_after_a_restore_whoever_applied_a_field_can_remove_it(
    team_objects: TeamObjects, shell: CommandShell
) -> None:
    """As a GitOps tool does that applies on the server."""
    kube, database = team_objects.kube, team_objects.database
    labels, spec = {"exposed": "yes", "team": "a"}, {"serverRef": {"name": SERVER}, "login": True}
    declared = {
        **spec,
        "memberOf": [{"role": "pg_monitor"}, {"role": "readers"}],
        "password": {"generate": {}},
        "connectionSecret": {"name": "synced", "template": {"metadata": {"labels": labels}}},
    }
    async with running(team_objects.controller()):
        await kube.apply("readers", serverRef={"name": SERVER})
        await synchronize(kube, declared)
        await kube.wait_all_ready()
        await kube.patch_secret("synced", {"metadata": {"labels": {"of-another": "kept"}}})
        await back_up(shell)
        await delete_as_kubernetes_does(team_objects)
    await team_objects.servers.patch(SERVER, {"spec": {"resyncInterval": "2h"}})  # it still exists
    for script in (OBJECTS, SECRETS):
        await shell.run(script)
    async with running(team_objects.controller()):
        await kube.wait_all_ready()
        del labels["exposed"]
        await synchronize(kube, {**declared, "memberOf": [{"role": "readers"}]})
        await kube.wait_secret("synced", lambda secret: "exposed" not in secret["metadata"]["labels"], "without label")
        held = "SELECT array_agg(roleid::regrole::text) FROM pg_auth_members WHERE member = 'synced'::regrole"
        await database.wait_value(held, ["readers"])
        assert (await kube.wait_secret("synced"))["metadata"]["labels"] == {"of-another": "kept", "team": "a"}
    server = await team_objects.servers.get(SERVER)
    assert server is not None
    assert server["spec"]["resyncInterval"] == "1h"


async def synchronize(kube: Kube, spec: Json) -> None:
    body = {"apiVersion": "pgrole.dev/v1alpha1", "kind": "PgRole", "metadata": {"name": "synced"}, "spec": spec}
    query = {"fieldManager": "gitops", "force": "true"}
    await kube.server.request(
        "PATCH", kube.path("synced"), body, content_type="application/apply-patch+yaml", query=query
    )


@pytest.mark.since(17, "the dump that the tests' pg_dump writes requires 17 or later")
async def test_a_restored_schema_has_every_claim(team_objects: TeamObjects, shell: CommandShell) -> None:
    async with running(team_objects.controller()):
        await team_objects.make()
        await team_objects.prove("first")
    await back_up(shell)
    claims = "SELECT to_jsonb(c)::text FROM pgrole.claim AS c ORDER BY c.role_name"
    before = await team_objects.database.connection.fetch(claims)
    await team_objects.database.execute("DROP SCHEMA pgrole CASCADE")
    await shell.run(SCHEMA)
    assert await team_objects.database.connection.fetch(claims) == before
    left, canary = await team_objects.snapshot(), await team_objects.drift_canary()
    async with running(team_objects.controller()) as controller:
        await team_objects.wait_canary(canary)
        assert await team_objects.snapshot() == left
        assert "schema=present" in controller.log
        await team_objects.prove("second")
