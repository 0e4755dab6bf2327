"""controller/objects: which rivals are read together with an object."""

import copy
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pgrole_controller.controller.background import Background
from pgrole_controller.controller.namespaces import Namespaces
from pgrole_controller.controller.objects import RIVALS, STALE, Objects, Target, index_by_owner, index_pgrole
from pgrole_controller.controller.privileges.grantees import Grantees
from pgrole_controller.controller.queue import Queue
from pgrole_controller.controller.server_config import ServerConfig
from pgrole_controller.controller.sources import PgRoleSource
from pgrole_controller.controller.worker import ServerWorker
from pgrole_controller.core.connection_secret import HASH, Address
from pgrole_controller.core.policy import ServerPolicy
from pgrole_controller.core.privileges.privilege_result import DriftAuthor, Evidence
from pgrole_controller.core.request import Key, Request, RequestReason
from pgrole_controller.core.role_drift import RoleDrift
from pgrole_controller.core.state import Desired
from pgrole_controller.kube.client import Client
from pgrole_controller.kube.store import Store
from pgrole_controller.kube.stored_object import Stored, pack
from tests.cpu_time import within_a_callback
from tests.worker_context import make_context

HAD: dict[str, Any] = {
    "observedGeneration": 1,
    "role": {"name": "app", "oid": 20_000, "applied": "sha256:1"},
    "server": {"name": "default", "systemIdentifier": "7421"},
}


@pytest.fixture
def objects() -> Objects:
    namespaces = Store()
    namespaces.put(pack({"metadata": {"name": "shop", "uid": "n1", "resourceVersion": "1"}}))
    return Objects(Store(index_pgrole), Store(index_by_owner), Namespaces(cast("Client", None), namespaces), "c1")


def put(objects: Objects, name: str, *, second: int = 0, uid: str = "", version: int = 1, **rest: Any) -> Stored:
    metadata = {
        "namespace": "shop",
        "name": name,
        "uid": uid or f"uid-{name}",
        "resourceVersion": str(version),
        "generation": version,
        "creationTimestamp": f"2027-01-01T{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}Z",
    }
    stored = pack(
        {
            "apiVersion": "pgrole.dev/v1alpha1",
            "kind": "PgRole",
            "metadata": metadata,
            "spec": {"name": "app", "serverRef": {"name": "default"}},
            **rest,
        }
    )
    objects.store.put(stored)
    return stored


async def read(objects: Objects, name: str) -> Target:
    return objects.read(Key("shop", name), "default", ServerPolicy())


async def desired(objects: Objects, name: str) -> Desired:
    request = await read(objects, name)
    assert request.desired is not None, request.error
    return request.desired


async def test_only_the_oldest_few_rivals_for_a_role_are_read(objects: Objects) -> None:
    for number in range(300):
        put(objects, f"o{number}", second=number)
    rivals = (await desired(objects, "o200")).older_rivals
    assert [rival.name for rival in rivals] == [f"shop/o{number}" for number in range(RIVALS)]
    assert [rival.name for rival in (await desired(objects, "o2")).older_rivals] == ["shop/o0", "shop/o1"]
    assert (await desired(objects, "o0")).older_rivals == ()


@pytest.mark.parametrize("part", ["suspended", "deleted"])
async def test_a_rival_that_applies_nothing_is_none(objects: Objects, part: str) -> None:
    older = copy.deepcopy(put(objects, "older").object())
    put(objects, "younger", second=1)
    assert [rival.name for rival in (await desired(objects, "younger")).older_rivals] == ["shop/older"]
    if part == "suspended":
        older["spec"]["suspend"] = True
    else:
        older["metadata"] |= {"deletionTimestamp": "2027-01-02T00:00:00Z", "finalizers": ["pgrole.dev/role"]}
    older["metadata"]["resourceVersion"] = "2"
    objects.store.put(pack(older))
    assert (await desired(objects, "younger")).older_rivals == ()


async def test_a_rival_whose_status_shows_that_it_had_the_role_is_read_however_young_it_is(objects: Objects) -> None:
    for number in range(50):
        put(objects, f"o{number}", second=number)
    put(objects, "o299", second=299, status=HAD)
    assert [name for name, _ in (await desired(objects, "o20")).proven_rivals] == ["shop/o299"]


class TestThousandsThatNameOneRole:
    """Whoever may create PgRoles can have any number of them name one role."""

    @pytest.fixture
    def crowd(self, objects: Objects) -> Objects:
        for number in range(8_000):
            put(objects, f"o{number}", second=number)
        return objects

    async def test_a_batch_of_them_is_read_within_a_callback(self, crowd: Objects) -> None:
        await read(crowd, "o1")  # imports the models
        with within_a_callback():
            for number in range(100):
                await read(crowd, f"o{number + 1_000}")

    async def test_a_change_wakes_them_only_if_their_right_depends_on_it(self, crowd: Objects) -> None:
        queue = Queue()
        background = cast("Background", SimpleNamespace(interrupt=lambda _: None, forget=lambda _: None))
        source = PgRoleSource(crowd, queue, background, {"default"}, Grantees())
        crowd.store.subscribe(source.changed)
        put(crowd, "o2000", second=2000, version=2, spec={"name": "app", "suspend": True})
        assert queue.backlog("default").depth == 1
        put(crowd, "o3", second=3, version=2, spec={"name": "app", "suspend": True})
        assert queue.backlog("default").depth == 8_000
        assert len(crowd.depending(put(crowd, "had", second=8_100, status=HAD))) == 8_000
        first = crowd.store.get(Key("shop", "o0"))
        assert first is not None
        crowd.store.remove(first.key, first.uid)
        assert len(crowd.depending(first)) == 8_000

    async def test_a_drift_goes_first_only_for_those_that_had_the_role(self, crowd: Objects) -> None:
        put(crowd, "had", second=8_100, status=HAD)
        put(crowd, "alone", spec={"name": "alone", "serverRef": {"name": "default"}})
        queue = Queue()
        address = Address("db", 5432, "app", "require")
        worker = ServerWorker(ServerConfig("default", None, ServerPolicy(), address), make_context(queue, crowd))
        worker._note_notification(("app", "alone"))
        assert {item.key.name for item in await queue.take("default", 2)} == {"had", "alone"}


async def test_a_late_cause_of_drift_does_not_take_an_object_from_the_server_that_it_moved_to(objects: Objects) -> None:
    key, drift = put(objects, "app").key, RoleDrift("app", 20_000, "uid-app", ("login",), True, datetime.now(UTC))
    queue = Queue()
    address = Address("db", 5432, "app", "require")
    worker = ServerWorker(ServerConfig("default", None, ServerPolicy(), address), make_context(queue, objects))
    objects.store.remove(key, "uid-app")
    put(objects, "app", uid="again", spec={"name": "app", "serverRef": {"name": "other"}})
    queue.put("other", Request(key, RequestReason.OBJECT))
    worker.attributor._keep_cause(key, drift, DriftAuthor(Evidence.LOG, "alice"))
    assert (queue.backlog("default").depth, queue.backlog("other").depth) == (0, 1)


async def test_of_the_secrets_that_claim_to_be_an_objects_former_ones_only_a_few_are_seen(objects: Objects) -> None:
    put(objects, "app")
    for number in range(300):
        metadata = {
            "namespace": "shop",
            "name": f"s{number:03}",
            "uid": f"s{number}",
            "resourceVersion": "1",
            "annotations": {HASH: "x"},
            "ownerReferences": [{"uid": "uid-app"}],
        }
        objects._secrets.put(pack({"metadata": metadata}))
    objects._secrets.synced.set()
    assert (await desired(objects, "app")).secrets.stale == tuple(f"s{number:03}" for number in range(STALE))


def said(reason: str, status: str = "False") -> dict[str, Any]:
    return {
        "conditions": [
            {"type": "Stalled", "reason": "Contested"},
            {"type": "Ready", "status": status, "reason": reason},
        ]
    }


async def test_objects_are_counted_as_contested_until_their_status_has_another_reason_or_they_are_gone(
    objects: Objects,
) -> None:
    for name in ("of-a-field", "of-privileges", "suspended"):
        put(objects, name, status=said("Contested"))
    put(objects, "ready", status=said("Reconciled", "True"))
    put(objects, "odd", status={"conditions": "none"})
    assert objects.count_contested() == 3
    put(objects, "suspended", version=2, status=said("Suspended"))
    objects.store.remove(Key("shop", "of-a-field"), "uid-of-a-field")
    assert objects.count_contested() == 1
