"""A process that begins to lead knows the current state, whatever it missed as a standby."""

import pytest

from tests.acceptance.relay import relay
from tests.acceptance.servers import EVERYTHING, pgservers
from tests.acceptance.service_account import ServiceAccount, find_namespace, installation_for
from tests.acceptance.world import Controller, Json, Stage, open_database

pytestmark = pytest.mark.slow

ELECTION = ("--leader-election", "true")


def says_drift(obj: Json, field: str) -> bool:
    return bool(obj["status"].get("lastDrift", {}).get("fields") == [field])


async def test_a_new_leader_whose_watch_was_silent_applies_no_outdated_spec(stage: Stage) -> None:
    """While the standby's watch of PgRoles is silent, one object is changed and another is deleted."""
    kube, server, namespace = stage.kube, stage.kube.server, ("--namespace", stage.kube.namespace)
    installation = installation_for(find_namespace(namespace))
    folder = stage.folder / "second"
    folder.mkdir()
    async with relay(server) as between, open_database(stage.postgres.dsn()) as database:
        first = stage.controller(None, *ELECTION)
        account = ServiceAccount(server, installation, folder, between.url)
        second = Controller(account, stage.postgres.dsn(), folder, *namespace, *ELECTION)
        await first.start()
        await first.wait_log("session with PostgreSQL begins")
        await kube.apply("app", login=True, connectionLimit=5)
        await kube.apply("gone", login=True, deletionPolicy="Drop")
        await kube.wait_all_ready()
        await second.start()
        await second.wait_log("ready to lead")
        async with between.holding(lambda resource, _: resource == "pgroles"):
            await kube.apply("app", login=True, connectionLimit=7)
            await kube.delete("gone")
            await kube.wait_gone("gone")
            await kube.wait_ready("app")
            assert await first.stop() == 0
            await second.wait_log("session with PostgreSQL begins")
            await database.execute("ALTER ROLE app CREATEDB")
            await database.wait_role("app", lambda role: not role["rolcreatedb"], "NOCREATEDB")
            assert await database.role("gone") is None
        await kube.wait_for("app", lambda app: says_drift(app, "createdb"), "the drift is reported")
        assert "action=created" not in second.log
        assert "action=changed" not in second.log
        assert await second.stop() == 0


@pytest.mark.parametrize("silent", ["pgservers", "namespaces"])
async def test_a_new_leader_whose_watch_was_silent_acts_under_no_outdated_policy(stage: Stage, silent: str) -> None:
    """While the standby's watch is silent, the policy or the namespace's labels change: an object is not allowed."""
    kube, server, main = stage.kube, stage.kube.server, {"name": "main"}
    namespace = f"/api/v1/namespaces/{kube.namespace}"
    allow = {**EVERYTHING, "namespaces": {"matchLabels": {"pg": "yes"}}}
    held = 0

    def holds(resource: str, _: Json) -> bool:
        nonlocal held
        held += resource == silent
        return resource == silent

    async def label(value: str | None) -> None:
        labels = {"metadata": {"labels": {"pg": value}}}
        await server.request("PATCH", namespace, labels, content_type="application/merge-patch+json")

    folder = stage.folder / "second"
    folder.mkdir()
    async with relay(server) as between, pgservers(server) as declared, stage.database() as database:
        await label("yes")
        await declared.apply("main", stage.postgres, allow=allow)
        first = Controller(server, "", stage.folder, *ELECTION)
        second = Controller(ServiceAccount(server, installation_for(), folder, between.url), "", folder, *ELECTION)
        await first.start()
        await kube.apply("kept", serverRef=main)
        await kube.wait_all_ready()
        await second.start()
        await second.wait_log("ready to lead")
        async with between.holding(holds):
            if silent == "pgservers":
                await declared.apply("main", stage.postgres, allow={**allow, "attributes": []})
            else:
                await label(None)
            await kube.apply("app", serverRef=main, createdb=True)
            await kube.wait_reason("app", "NotAllowed")
            assert await first.stop() == 0
            await second.wait_log("session with PostgreSQL begins")
            await second.rest()
            assert await database.role("app") is None
        assert held > 0
        assert await second.stop() == 0
