"""The status of a PgRole in the real API server is what the controller wrote, whoever else writes there."""

import json
from collections.abc import AsyncIterator
from typing import Any, cast

import anyio
import pytest

from pgrole_controller.controller.status_writer import _without_later_fields
from pgrole_controller.kube.client import Client
from pgrole_controller.kube.errors import ApiError
from pgrole_controller.kube.resource import APPLY, JSON_PATCH, MERGE_PATCH, PGROLES, Resource
from pgrole_controller.kube.server_side_apply import FINALIZER, MANAGER, apply_finalizer, apply_status
from pgrole_controller.kube.stored_object import Stored, pack
from pgrole_controller.local.apiserver import ApiServer
from pgrole_controller.local.manifests import apply_crds, create_namespace
from tests.api_server_pool import ApiServerPool
from tests.releases import BEFORE

Json = dict[str, Any]
SPEC = {"name": "app", "login": True}
DEFINITIONS = Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions")


class WatchedClient:
    """Sends requests with a client, and remembers their formats. `before`: sent ahead of a request in that format."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.formats: list[str] = []
        self.before: dict[str, Json] = {}

    async def request(self, method: str, path: str, **how: Any) -> bytes:
        content_type = str(how.get("content_type"))
        if (body := self.before.pop(content_type, None)) is not None:
            await self.client.request("PATCH", path.removesuffix("/status"), body=body, content_type=MERGE_PATCH)
        self.formats.append(content_type)
        return await self.client.request(method, path, **how)

    async def apply(self, stored: Stored, status: Json) -> Stored:
        return await apply_status(cast("Client", self), PGROLES, stored, status)


@pytest.fixture
async def watched(api_server: ApiServer) -> AsyncIterator[WatchedClient]:
    async with Client.connect(str(api_server.kubeconfig)) as client:
        yield WatchedClient(client)


@pytest.fixture
async def watched_before(api_servers: ApiServerPool) -> AsyncIterator[WatchedClient]:
    """With the CRDs of the previous release."""
    async with api_servers.lend() as server, Client.connect(str(server.kubeconfig)) as client:
        await apply_crds(server, BEFORE.crds)
        await create_namespace(server, "shop")
        yield WatchedClient(client)


async def make(watched: WatchedClient, namespace: str) -> Stored:
    body = {"apiVersion": PGROLES.api_version, "kind": "PgRole", "metadata": {"name": "app"}, "spec": SPEC}
    return pack(json.loads(await watched.client.request("POST", PGROLES.path(namespace), body=body)))


async def read(watched: WatchedClient, stored: Stored) -> Json:
    found: Json = json.loads(await watched.client.request("GET", PGROLES.path(stored.key.namespace, "app")))
    return found


async def overwrite(watched: WatchedClient, stored: Stored, status: Json) -> Stored:
    """Replaces the status, as the restore of a backup does."""
    path = PGROLES.path(stored.key.namespace, "app", "status")
    body = {**await read(watched, stored), "status": status}
    return pack(json.loads(await watched.client.request("PUT", path, query={"fieldManager": "velero"}, body=body)))


async def clear_managers(watched: WatchedClient, stored: Stored) -> Stored:
    path = PGROLES.path(stored.key.namespace, "app")
    body = [{"op": "replace", "path": "/metadata/managedFields", "value": [{}]}]
    return pack(json.loads(await watched.client.request("PATCH", path, body=body, content_type=JSON_PATCH)))


def conditions(*types: str, message: str = "as it is") -> list[Json]:
    common = {"status": "True", "reason": "NotAllowed", "message": message, "observedGeneration": 1}
    return [{"type": one, **common, "lastTransitionTime": "2026-01-01T00:00:00Z"} for one in types]


def full(**more: Any) -> Json:
    """Returns a status with every field."""
    by = {"login": "alice", "role": "alice", "time": "2026-01-01T00:00:00Z", "proof": "Transaction"}
    drift = {"time": "2026-01-01T00:00:00Z", "fields": ["privileges"], "corrected": True, "database": "orders"}
    return {
        "observedGeneration": 1,
        "conditions": conditions("Ready", "Stalled", "DriftDetected"),
        "role": {"name": "app", "oid": 7, "applied": "sha256:" + "0" * 64},
        "server": {"name": "default", "systemIdentifier": "1"},
        "lastDrift": {**drift, "details": ["DELETE on table app.orders was granted"], "by": by},
        "driftCount": 3,
        "driftHistory": [{**drift, "count": 1, "by": {"login": "alice", "proof": "Transaction"}}],
        "privileges": [
            {"database": "orders", "ready": False, "reason": "NotAllowed", "message": "no"},
            {"database": "archive", "ready": True, "reason": "Reconciled", "message": ""},
        ],
        "approval": {"digest": "0" * 12, "fields": [{"name": "createdb", "declared": "false", "observed": "true"}]},
        "passwordSecretVersion": "9",
        "nextRotation": "2026-02-01T00:00:00Z",
        **more,
    }


#: A status of few words, but with another lastDrift.
SHORT: Json = {
    "observedGeneration": 1,
    "conditions": conditions("Ready", message="the role matches the spec"),
    "privileges": [{"database": "archive", "ready": True, "reason": "Reconciled", "message": ""}],
    "lastDrift": {
        "time": "2026-01-01T00:00:01Z",
        "fields": ["createdb"],
        "corrected": True,
        "by": {"login": "alice", "proof": "None"},
    },
}


async def test_nothing_of_a_restored_status_stays(watched: WatchedClient, namespace: str) -> None:
    stored = await watched.apply(await make(watched, namespace), SHORT)
    stored = await overwrite(watched, stored, full())
    written = await watched.apply(stored, SHORT)
    assert written.object()["status"] == SHORT == (await read(watched, written))["status"]
    assert watched.formats == [APPLY, APPLY, JSON_PATCH]
    again = await watched.apply(written, {**SHORT, "driftCount": 4})
    assert again.object()["status"] == {**SHORT, "driftCount": 4}
    assert watched.formats[3:] == [APPLY]


async def test_a_status_whose_managed_fields_were_cleared_is_replaced(watched: WatchedClient, namespace: str) -> None:
    stored = await clear_managers(watched, await watched.apply(await make(watched, namespace), full()))
    written = await watched.apply(stored, SHORT)
    assert written.object()["status"] == SHORT == (await read(watched, written))["status"]


async def test_a_condition_that_someone_else_owns_a_part_of_does_not_freeze_the_status(
    watched: WatchedClient, namespace: str
) -> None:
    stored = await overwrite(watched, await make(watched, namespace), full())
    changed = full(conditions=conditions("Ready", "Stalled", message="another"))
    stored = await watched.apply(stored, changed)
    stored = await overwrite(watched, stored, full(conditions=conditions("Ready", "Stalled")))
    stored = await watched.apply(stored, changed)
    with pytest.raises(ApiError) as frozen:
        await apply_alone(watched, stored, SHORT)
    assert frozen.value.status == 422
    written = await watched.apply(stored, SHORT)
    assert written.object()["status"] == SHORT
    assert watched.formats[-2:] == [APPLY, JSON_PATCH]
    for status in (full(), SHORT, full(), SHORT):
        written = await watched.apply(written, status)
        assert written.object()["status"] == status
    assert watched.formats[-2:] == [APPLY] * 2


async def apply_alone(watched: WatchedClient, stored: Stored, status: Json) -> None:
    metadata = {"name": "app", "namespace": stored.key.namespace, "resourceVersion": stored.resource_version}
    await watched.client.request(
        "PATCH",
        PGROLES.path(stored.key.namespace, "app", "status"),
        query={"fieldManager": MANAGER, "force": "true"},
        body={"apiVersion": PGROLES.api_version, "kind": "PgRole", "metadata": metadata, "status": status},
        content_type=APPLY,
    )


async def test_a_status_that_no_one_else_writes_costs_one_request_each(watched: WatchedClient, namespace: str) -> None:
    stored, turned = await make(watched, namespace), full()
    turned["privileges"].reverse()
    turned["conditions"].reverse()
    statuses = [SHORT, full(), turned, SHORT, full(driftHistory=[]), full()]
    for status in statuses:
        stored = await watched.apply(stored, status)
        assert (await watched.apply(stored, status)).is_same(stored)
    assert watched.formats == [APPLY] * 2 * len(statuses)


async def test_an_object_that_changes_between_the_two_requests_is_a_conflict(
    watched: WatchedClient, namespace: str
) -> None:
    stored = await overwrite(watched, await make(watched, namespace), full())
    watched.before[JSON_PATCH] = {"metadata": {"annotations": {"a": "b"}}}
    with pytest.raises(ApiError) as refused:
        await watched.apply(stored, SHORT)
    assert (refused.value.status, refused.value.reason) == (409, "Conflict")
    assert (await watched.apply(pack(await read(watched, stored)), SHORT)).object()["status"] == SHORT


async def test_so_is_one_that_changes_before_a_finalizer_that_others_wrote_is_removed(
    watched: WatchedClient, namespace: str
) -> None:
    stored = await make(watched, namespace)
    path, body = PGROLES.path(namespace, "app"), {"metadata": {"finalizers": [FINALIZER]}}
    await watched.client.request("PATCH", path, body=body, content_type=MERGE_PATCH)
    watched.before[JSON_PATCH] = {"metadata": {"annotations": {"a": "b"}}}
    with pytest.raises(ApiError) as refused:
        await apply_finalizer(cast("Client", watched), PGROLES, stored, False)
    assert (refused.value.status, refused.value.reason) == (409, "Conflict")
    released = await apply_finalizer(cast("Client", watched), PGROLES, stored, False)
    assert released is not None
    assert "finalizers" not in released.object()["metadata"]


async def test_a_status_that_is_invalid_whoever_wrote_it_is_refused_after_one_request(
    watched: WatchedClient, namespace: str
) -> None:
    stored = await watched.apply(await make(watched, namespace), SHORT)
    with pytest.raises(ApiError) as refused:
        await watched.apply(stored, {**SHORT, "conditions": conditions("Ready", message="x" * 40_000)})
    assert refused.value.status == 422
    assert watched.formats == [APPLY, APPLY]


async def test_under_older_crds_a_status_costs_one_request_and_leaves_no_version_behind(
    watched_before: WatchedClient,
) -> None:
    """Those of 0.2.0 lack fields. Without these the status is the same, and one that others wrote is replaced once."""
    watched, known = watched_before, _without_later_fields(full())
    stored = await make(watched, "shop")
    with pytest.raises(ApiError, match="not declared in schema"):
        await watched.apply(stored, full())
    stored = await watched.apply(stored, known)
    assert (await watched.apply(stored, known)).is_same(stored)
    assert watched.formats == [APPLY] * 3
    stored = await overwrite(watched, stored, full(driftCount=9))
    short = _without_later_fields(SHORT)
    stored = await watched.apply(stored, short)
    assert stored.object()["status"] == short
    assert watched.formats[3:] == [APPLY, JSON_PATCH]
    assert (await watched.apply(stored, short)).is_same(stored)
    assert watched.formats[5:] == [APPLY]


async def test_a_status_that_the_crd_gives_defaults_is_not_written_again_and_again(
    watched_before: WatchedClient,
) -> None:
    watched = watched_before
    definition = json.loads(await watched.client.request("GET", DEFINITIONS.path(None, "pgroles.pgrole.dev")))
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]
    schema["properties"]["grade"] = {"type": "string", "default": "A"}
    await watched.client.request("PUT", DEFINITIONS.path(None, "pgroles.pgrole.dev"), body=definition)
    short = _without_later_fields(SHORT)
    with anyio.fail_after(30):
        stored = await watched.apply(await make_at_last(watched), short)
        while "grade" not in stored.object()["status"]:
            stored = await watched.apply(stored, short)
    begun = len(watched.formats)
    assert (await watched.apply(stored, short)).is_same(stored)
    assert watched.formats[begun:] == [APPLY, JSON_PATCH]


async def make_at_last(watched: WatchedClient) -> Stored:
    """Creates the object while the API server replaces the definition, and answers that it is shutting down."""
    while True:
        try:
            return await make(watched, "shop")
        except ApiError as error:
            if error.status != 503:
                raise
        await anyio.sleep(0.05)
