"""One contract for the Lease of the real API server and of the fake: answers to requests, and the watch."""

import json
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

from pgrole_controller.core.request import Key
from pgrole_controller.kube.client import Client
from pgrole_controller.kube.errors import ApiError
from pgrole_controller.kube.resource import LEASES
from pgrole_controller.local.apiserver import ApiServer
from tests.fake_leases import LeaseApi

DEADLINE = 60.0


class LeaseClient:
    """One Lease, read and written as an elector does."""

    def __init__(self, client: Client | LeaseApi, lease: Key) -> None:
        self.client = client
        self.lease = lease
        self.path = LEASES.path(lease.namespace, lease.name)

    async def read(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(await self.client.request("GET", self.path))
        return found

    async def write(self, holder: str, version: str | None = None, **metadata: object) -> dict[str, Any]:
        """Creates the Lease, or replaces that version."""
        metadata |= {"namespace": self.lease.namespace, "name": self.lease.name}
        if version is not None:
            metadata["resourceVersion"] = version
        spec = {"holderIdentity": holder, "leaseDurationSeconds": 15, "leaseTransitions": 0}
        body = {"apiVersion": LEASES.api_version, "kind": "Lease", "metadata": metadata, "spec": spec}
        method, path = ("POST", LEASES.path(self.lease.namespace)) if version is None else ("PUT", self.path)
        written: dict[str, Any] = json.loads(await self.client.request(method, path, body=body))
        return written

    async def delete(self) -> None:
        if isinstance(self.client, LeaseApi):
            self.client.delete()
        else:
            await self.client.request("DELETE", self.path)

    async def read_list(self) -> dict[str, Any]:
        query = {"fieldSelector": f"metadata.name={self.lease.name}"}
        listed: dict[str, Any] = json.loads(
            await self.client.request("GET", LEASES.path(self.lease.namespace), query=query)
        )
        return listed

    async def watch(self, version: str, count: int) -> list[tuple[str, str, str]]:
        """Returns type, holder and version of the first `count` events since that version."""
        query = {"watch": "true", "resourceVersion": version, "fieldSelector": f"metadata.name={self.lease.name}"}
        seen = []
        with anyio.fail_after(DEADLINE):
            async with self.client.stream(LEASES.path(self.lease.namespace), query=query) as lines:
                async for line in lines:
                    event = json.loads(line)
                    found = event["object"]
                    seen.append((event["type"], found["spec"]["holderIdentity"], found["metadata"]["resourceVersion"]))
                    if len(seen) == count:
                        break
        return seen


@pytest.fixture(params=["real", "fake"])
async def lease(request: pytest.FixtureRequest, api_server: ApiServer, namespace: str) -> AsyncIterator[LeaseClient]:
    key = Key(namespace, "leader")
    if request.param == "fake":
        yield LeaseClient(LeaseApi(), key)
        return
    async with Client.connect(str(api_server.kubeconfig)) as client:
        yield LeaseClient(client, key)


async def refused(
    lease: LeaseClient, holder: str | None, version: str | None = None, **metadata: object
) -> tuple[int, str]:
    """Returns status and reason with which a write is refused; a read, without a holder."""
    with pytest.raises(ApiError) as error:
        await (lease.read() if holder is None else lease.write(holder, version, **metadata))
    return error.value.status, error.value.reason


async def test_a_lease_is_created_once(lease: LeaseClient) -> None:
    assert await refused(lease, None) == (404, "NotFound")
    made = await lease.write("one")
    assert made["spec"]["holderIdentity"] == "one"
    assert await lease.read() == made
    assert await refused(lease, "two") == (409, "AlreadyExists")
    assert await lease.read() == made


async def test_only_the_version_that_was_read_is_replaced(lease: LeaseClient) -> None:
    made = await lease.write("one")
    first = made["metadata"]["resourceVersion"]
    replaced = await lease.write("two", first)
    assert int(replaced["metadata"]["resourceVersion"]) > int(first)
    assert replaced["metadata"]["uid"] == made["metadata"]["uid"]
    assert await refused(lease, "three", first) == (409, "Conflict")
    assert await lease.read() == replaced


@pytest.mark.parametrize("verb", ["POST", "PUT"])
async def test_a_deleted_lease_is_created_again_but_not_replaced(lease: LeaseClient, verb: str) -> None:
    made = (await lease.write("one"))["metadata"]
    await lease.delete()
    assert await refused(lease, None) == (404, "NotFound")
    assert await refused(lease, "one", made["resourceVersion"], uid=made["uid"]) == (409, "Conflict")
    again = (await lease.write("two", made["resourceVersion"] if verb == "PUT" else None))["metadata"]
    assert again["uid"] != made["uid"]
    assert int(again["resourceVersion"]) > int(made["resourceVersion"])


async def test_what_others_wrote_in_the_metadata_stays_only_if_it_is_written_again(lease: LeaseClient) -> None:
    made = await lease.write("one", labels={"team": "platform"})
    assert made["metadata"]["labels"] == {"team": "platform"}
    kept = await lease.write("one", made["metadata"]["resourceVersion"], labels={"team": "platform"})
    assert kept["metadata"]["labels"] == {"team": "platform"}
    dropped = await lease.write("one", kept["metadata"]["resourceVersion"])
    assert "labels" not in dropped["metadata"]


async def test_a_watch_from_a_list_reports_each_later_write_once_and_in_order(lease: LeaseClient) -> None:
    empty = await lease.read_list()
    assert empty["items"] == []
    made = await lease.write("one")
    listed = await lease.read_list()
    assert [item["spec"]["holderIdentity"] for item in listed["items"]] == ["one"]
    assert listed["items"][0]["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]
    replaced = await lease.write("two", made["metadata"]["resourceVersion"])
    await lease.delete()
    seen = await lease.watch(listed["metadata"]["resourceVersion"], 2)
    assert [(kind, holder) for kind, holder, _ in seen] == [("MODIFIED", "two"), ("DELETED", "two")]
    assert seen[0][2] == replaced["metadata"]["resourceVersion"]
    assert int(seen[1][2]) > int(seen[0][2])
    assert [kind for kind, *_ in await lease.watch(empty["metadata"]["resourceVersion"], 3)] == [
        "ADDED",
        "MODIFIED",
        "DELETED",
    ]
