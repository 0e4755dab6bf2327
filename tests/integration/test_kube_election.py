"""Leader election against the real API server."""

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

import anyio
import pytest

from pgrole_controller.core.request import Key
from pgrole_controller.kube.client import Client
from pgrole_controller.kube.election import Elector
from pgrole_controller.kube.errors import Unreachable
from pgrole_controller.kube.lease import LeaseTiming, Term
from pgrole_controller.kube.resource import LEASES, MERGE_PATCH
from pgrole_controller.local.apiserver import ApiServer
from pgrole_controller.local.manifests import apply
from pgrole_controller.local.process import reached

RBAC = "rbac.authorization.k8s.io/v1"
USER = "pgrole-controller"  # has no permissions here unless they are granted
DEADLINE = 60.0
#: Shorter than a controller's; the order of the three is the same.
SHORT = LeaseTiming(duration=3, deadline=2.0, period=0.4)
#: Renewed as often, but with a long duration, so that no process loses it on a busy machine.
HELD = LeaseTiming(duration=60, deadline=40.0, period=0.4)
MICRO_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")


@pytest.fixture
async def client(api_server: ApiServer) -> AsyncIterator[Client]:
    async with Client.connect(str(api_server.kubeconfig)) as connected:
        yield connected


@pytest.fixture
def lease(namespace: str) -> Key:
    return Key(namespace, "leader")


async def read(client: Client, lease: Key) -> dict[str, Any]:
    spec: dict[str, Any] = json.loads(await client.request("GET", LEASES.path(lease.namespace, lease.name)))["spec"]
    return spec


async def edit(client: Client, lease: Key, **spec: Any) -> None:
    body = {"spec": spec}
    await client.request("PATCH", LEASES.path(lease.namespace, lease.name), body=body, content_type=MERGE_PATCH)


@asynccontextmanager
async def running(elector: Elector) -> AsyncIterator[Term]:
    """Runs one term of the elector."""
    term = Term()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(elector.run, term)
        yield term
        tasks.cancel_scope.cancel()


async def led(term: Term) -> None:
    with anyio.fail_after(DEADLINE):
        await term.led.wait()


async def wait_renewal(client: Client, lease: Key, after: str) -> dict[str, Any]:
    found: dict[str, Any] = {}

    async def is_renewed() -> bool:
        found.update(await read(client, lease))
        return bool(found["renewTime"] > after)

    assert await reached(is_renewed, DEADLINE, every=0.1)
    return found


def seconds_between(earlier: str, later: str) -> float:
    return (datetime.fromisoformat(later) - datetime.fromisoformat(earlier)).total_seconds()


async def test_the_lease_shows_who_leads_since_when_and_until_when(client: Client, lease: Key) -> None:
    async with running(Elector(client, lease, "one")) as term:
        await led(term)
        spec = await read(client, lease)
        assert (spec["holderIdentity"], spec["leaseDurationSeconds"], spec["leaseTransitions"]) == ("one", 15, 0)
        assert MICRO_TIME.fullmatch(spec["acquireTime"])
        renewed = await wait_renewal(client, lease, spec["acquireTime"])
        assert seconds_between(spec["acquireTime"], renewed["renewTime"]) > 1.9
        assert MICRO_TIME.fullmatch(renewed["renewTime"])
        assert renewed["acquireTime"] == spec["acquireTime"]
        assert renewed["leaseTransitions"] == 0


async def test_a_leader_that_resigns_is_followed_at_once_and_the_transition_is_counted(
    client: Client, lease: Key
) -> None:
    one, two = Elector(client, lease, "one"), Elector(client, lease, "two")
    async with anyio.create_task_group() as tasks:
        async with running(one) as first:
            await led(first)
            second = Term()
            tasks.start_soon(two.run, second)
            with anyio.fail_after(DEADLINE):
                await two.answered.wait()
        assert not second.led.is_set()
        began = anyio.current_time()
        await one.resign()
        await led(second)
        assert anyio.current_time() - began < 10.0  # less than the Lease's 15 s
        spec = await read(client, lease)
        assert (spec["holderIdentity"], spec["leaseTransitions"]) == ("two", 1)
        tasks.cancel_scope.cancel()


async def test_an_expired_lease_is_taken_by_the_local_clock(client: Client, lease: Key) -> None:
    async with running(Elector(client, lease, "one", SHORT)) as term:
        await led(term)
    await edit(client, lease, renewTime="2999-01-01T00:00:00.000000Z")
    began = anyio.current_time()
    async with running(Elector(client, lease, "two", SHORT)) as term:
        await led(term)
        assert SHORT.duration <= anyio.current_time() - began


async def test_a_lease_that_another_process_took_is_lost_at_once(client: Client, lease: Key) -> None:
    async with running(Elector(client, lease, "one", LeaseTiming(period=9.0))) as term:
        await led(term)
        with anyio.fail_after(5.0 + DEADLINE / 2):
            while not term.lost.is_set():
                await edit(client, lease, holderIdentity="other")
                with anyio.move_on_after(1.0):
                    await term.lost.wait()
        assert not term.leading
    assert (await read(client, lease))["holderIdentity"] == "other"


async def test_labels_and_annotations_that_others_set_on_the_lease_are_kept(client: Client, lease: Key) -> None:
    """Each renewal removed them, for example a label that keeps it out of backups."""
    others: dict[str, Any] = {
        "labels": {"velero.io/exclude-from-backup": "true"},
        "annotations": {"example.dev/owner": "platform"},
        "ownerReferences": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "y"}],
        "finalizers": ["example.dev/kept"],
    }
    path = LEASES.path(lease.namespace, lease.name)

    async def see_others() -> dict[str, Any]:
        metadata = json.loads(await client.request("GET", path))["metadata"]
        return {name: metadata.get(name) for name in others}

    elector = Elector(client, lease, "one", HELD)
    async with running(elector) as term:
        await led(term)
        answer = await client.request("PATCH", path, body={"metadata": others}, content_type=MERGE_PATCH)
        renewed = json.loads(answer)["spec"]["renewTime"]
        for _ in range(3):
            renewed = (await wait_renewal(client, lease, after=renewed))["renewTime"]
        assert await see_others() == others
    await elector.resign()
    assert await see_others() == others
    await client.request("PATCH", path, body={"metadata": {"finalizers": None}}, content_type=MERGE_PATCH)


async def test_a_deleted_lease_is_created_again_and_the_term_continues(client: Client, lease: Key) -> None:
    async with running(Elector(client, lease, "one", HELD)) as term:
        await led(term)
        await client.request("DELETE", LEASES.path(lease.namespace, lease.name))
        with anyio.fail_after(DEADLINE):
            await term.confirm()
        assert (await read(client, lease))["holderIdentity"] == "one"
        assert term.leading


async def test_confirm_renews_the_lease_at_once(client: Client, lease: Key) -> None:
    async with running(Elector(client, lease, "one", LeaseTiming(90, deadline=60.0, period=50.0))) as term:
        await led(term)
        before = (await read(client, lease))["renewTime"]
        with anyio.fail_after(45.0):
            await term.confirm()
        assert (await read(client, lease))["renewTime"] > before


async def test_an_empty_lease_is_taken(client: Client, lease: Key) -> None:
    body = {"apiVersion": LEASES.api_version, "kind": "Lease", "metadata": {"name": lease.name}}
    await client.request("POST", LEASES.path(lease.namespace), body=body)
    async with running(Elector(client, lease, "one", HELD)) as term:
        await led(term)
        spec = await wait_renewal(client, lease, (await read(client, lease))["renewTime"])
        assert (spec["holderIdentity"], spec["leaseTransitions"]) == ("one", 1)


async def test_a_lease_with_the_maximum_of_transitions_can_be_taken(client: Client, lease: Key) -> None:
    spec = {"leaseTransitions": 2**31 - 1}
    body = {"apiVersion": LEASES.api_version, "kind": "Lease", "metadata": {"name": lease.name}, "spec": spec}
    await client.request("POST", LEASES.path(lease.namespace), body=body)
    async with running(Elector(client, lease, "one", SHORT)) as term:
        await led(term)


async def test_two_candidates_that_start_together_do_not_both_lead(client: Client, lease: Key) -> None:
    async with running(Elector(client, lease, "one")) as one, running(Elector(client, lease, "two")) as two:
        with anyio.fail_after(DEADLINE):
            while not (one.leading or two.leading):  # noqa: ASYNC110 -- whichever it is
                await anyio.sleep(0.01)
            await (one if one.leading else two).confirm()
        assert not (one.leading and two.leading)


async def test_a_client_of_a_process_that_does_not_lead_can_only_read(client: Client, lease: Key) -> None:
    leading = False
    limited = client.limited(lambda: leading)
    body = {"apiVersion": LEASES.api_version, "kind": "Lease", "metadata": {"name": lease.name}}
    with pytest.raises(Unreachable, match="not sent, the Lease does not confirm that this process leads"):
        await limited.request("POST", LEASES.path(lease.namespace), body=body)
    assert json.loads(await limited.request("GET", LEASES.path(lease.namespace)))["items"] == []
    leading = True
    await limited.request("POST", LEASES.path(lease.namespace), body=body)
    leading = False
    for method in ("PUT", "PATCH", "DELETE"):
        with pytest.raises(Unreachable, match="not sent, the Lease does not confirm that this process leads"):
            await limited.request(method, LEASES.path(lease.namespace, lease.name), body=body)
    assert json.loads(await client.request("GET", LEASES.path(lease.namespace, lease.name)))["kind"] == "Lease"


async def test_a_process_without_permissions_logs_it_and_leads_once_it_has_them(
    api_server: ApiServer, lease: Key, caplog: pytest.LogCaptureFixture
) -> None:
    body = {"apiVersion": LEASES.api_version, "kind": "Lease", "metadata": {"name": lease.name}}
    await api_server.request("POST", LEASES.path(lease.namespace), body)

    def said() -> list[str]:
        return [
            record.__dict__["error"] for record in caplog.records if record.msg == "lease not acquired, trying again"
        ]

    async def says_so() -> bool:
        return bool(said())

    kubeconfig = str(api_server.kubeconfig_of(USER))
    async with Client.connect(kubeconfig) as client, running(Elector(client, lease, "one", HELD)) as term:
        assert await reached(says_so, DEADLINE)
        assert not term.led.is_set()
        await grant(api_server, lease)
        await led(term)
    (error,) = said()  # logged once, however often it failed
    assert "403" in error


async def grant(server: ApiServer, lease: Key) -> None:
    metadata = {"name": lease.name, "namespace": lease.namespace}
    rule = {"apiGroups": [LEASES.group], "resources": [LEASES.plural], "verbs": ["get", "list", "watch", "update"]}
    await apply(server, {"apiVersion": RBAC, "kind": "Role", "metadata": metadata, "rules": [rule]})
    binding = {
        "apiVersion": RBAC,
        "kind": "RoleBinding",
        "metadata": metadata,
        "subjects": [{"kind": "User", "name": USER}],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": lease.name},
    }
    await apply(server, binding)
