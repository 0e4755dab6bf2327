"""Whatever others write into the status of an object, it says what the controller found, and nothing else."""

import secrets
from pathlib import Path
from typing import Any

import pytest

from pgrole_controller.local.apiserver import ApiServer
from pgrole_controller.local.manifests import apply_crds
from tests.acceptance.servers import pgservers
from tests.acceptance.team_objects import SERVER, drifts, open_team_objects
from tests.acceptance.world import Controller, Database, Json, Kube, Stage, condition, is_ready, running
from tests.releases import BEFORE
from tests.servers import Servers

pytestmark = pytest.mark.slow

LONG_AGO = "2020-01-01T00:00:00Z"
DRIFT: Json = {
    "time": LONG_AGO,
    "fields": ["privileges"],
    "corrected": True,
    "database": "orders",
    "details": ["DELETE on table app.orders was granted"],
    "by": {"login": "alice", "role": "alice", "time": LONG_AGO, "proof": "Transaction"},
}


@pytest.fixture
def role() -> str:
    return f"f{secrets.token_hex(3)}"


def foreign(kind: str, status: str) -> Json:
    common = {"reason": "NotAllowed", "message": "old", "lastTransitionTime": LONG_AGO, "observedGeneration": 1}
    return {"type": kind, "status": status, **common}


async def restore(kube: Kube, path: str, **more: Any) -> None:
    """Writes the status of a backup, in which the object was refused."""
    conditions = [foreign("Ready", "False"), foreign("Stalled", "True")]
    body, content_type = {"status": {"conditions": conditions, **more}}, "application/merge-patch+json"
    query = {"fieldManager": "velero-server"}
    await kube.server.request("PATCH", f"{path}/status", body, content_type=content_type, query=query)


async def clear_managers(kube: Kube, name: str) -> None:
    operations = [{"op": "replace", "path": "/metadata/managedFields", "value": [{}]}]
    path, content_type = kube.path(name), "application/json-patch+json"
    await kube.server.request("PATCH", path, operations, content_type=content_type)  # type: ignore[arg-type]


def types(obj: Json) -> set[str]:
    return {one["type"] for one in obj["status"]["conditions"]}


def is_plain(obj: Json) -> bool:
    return is_ready(obj) and types(obj) == {"Ready"}


async def test_nothing_of_a_restored_status_stays(kube: Kube, database: Database, role: str) -> None:
    """Neither a condition, nor the author of another drift."""
    await kube.apply("app", name=role)
    await kube.wait_ready("app")
    await restore(kube, kube.path("app"), lastDrift=DRIFT, nextRotation=LONG_AGO, approval={"digest": "0" * 12})
    found = await kube.wait_for("app", is_plain, "only Ready")
    assert found["status"].keys().isdisjoint({"nextRotation", "approval"})
    await database.execute(f"ALTER ROLE {role} CREATEDB")
    await kube.wait_for("app", tells_only_the_new_drift, "the drift")


def tells_only_the_new_drift(obj: Json) -> bool:
    last = obj["status"]["lastDrift"]
    return (
        last["fields"] == ["createdb"] and last.keys().isdisjoint({"database", "details"}) and "alice" not in str(last)
    )


@pytest.mark.parametrize("way", ["restored", "cleared"])
async def test_a_refusal_that_ends_is_not_in_the_way_of_every_further_status(
    kube: Kube, database: Database, role: str, way: str
) -> None:
    """Someone else owns a part of the condition Stalled, which is invalid without the rest."""
    if way == "restored":
        await kube.apply("app", name=role)
        await kube.wait_ready("app")
        await restore(kube, kube.path("app"))
    else:
        await kube.apply("app", name=role, parameters={"log_statement": "all"})
        await kube.wait_reason("app", "NotAllowed")
        await clear_managers(kube, "app")
    for comment in ("first", "second"):
        await kube.patch("app", {"spec": {"comment": comment, "parameters": None}})
        await kube.wait_for("app", is_plain, "only Ready")
        await kube.patch("app", {"spec": {"parameters": {"log_statement": "ddl"}}})
        await kube.wait_reason("app", "NotAllowed")
    await kube.patch("app", {"spec": {"comment": "third", "parameters": None}})
    await kube.wait_for("app", is_plain, "only Ready")
    await database.wait_role(role, lambda row: row["comment"] == "third", "the comment")


async def test_a_reported_drift_that_was_undone_offers_no_approval(kube: Kube, database: Database, role: str) -> None:
    await kube.apply("app", name=role, drift={"policy": "Report"})
    await kube.wait_ready("app")
    await database.execute(f"ALTER ROLE {role} CREATEDB")
    await kube.wait_for("app", lambda obj: "approval" in obj["status"], "an approval")
    await clear_managers(kube, "app")
    await database.execute(f"ALTER ROLE {role} NOCREATEDB")
    found = await kube.wait_for("app", is_plain, "only Ready")
    assert "approval" not in found["status"]


async def test_nothing_of_the_restored_status_of_a_pgserver_stays(stage: Stage) -> None:
    async with pgservers(stage.kube.server) as declared:
        await declared.apply("main", stage.postgres)
        async with running(Controller(stage.kube.server, "", stage.folder), connected=False):
            await declared.wait_ready("main")
            databases = [{"name": "theirs", "ready": True, "message": ""}]
            await restore(stage.kube, declared.path("main"), databases=databases)
            found = await declared.wait_for("main", is_plain, "only Ready")
            assert "databases" not in found["status"]
            assert condition(found, "Ready")["reason"] == "Reconciled"


async def test_with_the_crds_of_the_previous_release_an_unchanged_status_is_not_written_again(
    own_api_server: ApiServer, servers: Servers, tmp_path: Path
) -> None:
    """They lack fields of this release, so what is stored says less than the controller knows."""
    await apply_crds(own_api_server, BEFORE.crds)
    async with open_team_objects(own_api_server, servers, tmp_path) as team_objects:
        kube, audit = team_objects.kube, own_api_server.audit
        async with running(team_objects.controller()) as controller:
            await kube.apply("app", serverRef={"name": SERVER})
            await kube.wait_ready("app")
            await restore(kube, kube.path("app"), lastDrift={**DRIFT, "by": None, "details": None, "database": None})
            await kube.wait_for("app", is_plain, "only Ready")
            await team_objects.database.execute("ALTER ROLE app CREATEDB")
            await kube.wait_for("app", lambda obj: drifts(obj) > 0 and is_plain(obj), "the drift")
            await controller.rest()
            since = audit.size
            for text in ("first", "second", "third"):
                await kube.patch("app", {"metadata": {"annotations": {"example.com/note": text}}})
                await controller.rest()
            assert [entry for entry in audit.read(since) if entry.resource == "pgroles/status"] == []
