"""What a process knows when it begins to lead, whatever it missed while it stood by."""

import pytest

from tests.acceptance.relay import relay
from tests.acceptance.service_account import ServiceAccount, find_namespace, installation_for
from tests.acceptance.world import Controller, Json, Stage, open_database

pytestmark = pytest.mark.slow

ELECTION = ("--leader-election", "true")


def says_drift(obj: Json, field: str) -> bool:
    return bool(obj["status"].get("lastDrift", {}).get("fields") == [field])


async def test_one_whose_watch_was_silent_brings_in_no_spec_of_yesterday(stage: Stage) -> None:
    """A watch that is cut off stays silent for a minute, in which one object is changed and another deleted."""
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
        await kube.wait_for("app", lambda app: says_drift(app, "createdb"), "the drift is told")
        assert "action=created" not in second.log
        assert "action=changed" not in second.log
        assert await second.stop() == 0
