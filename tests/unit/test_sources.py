"""controller/sources with their stores: which objects a change wakes, including changes by the controller itself."""

from typing import Any, cast

import anyio
import anyio.lowlevel
import pytest

from pgrole_controller.controller.namespaces import QUIET_SECONDS, Namespaces
from pgrole_controller.controller.objects import Objects, index_by_owner, index_pgrole
from pgrole_controller.controller.queue import Queue
from pgrole_controller.controller.sources import NamespaceSource, PgRoleSource, SecretSource
from pgrole_controller.core.next_attempt import Done
from pgrole_controller.core.policy import ServerPolicy
from pgrole_controller.core.privileges.grantee import DatabasePrivileges, Grantee
from pgrole_controller.core.request import Key, Rank, RequestReason
from pgrole_controller.kube.client import Client
from pgrole_controller.kube.server_side_apply import FINALIZER
from pgrole_controller.kube.store import Store
from pgrole_controller.kube.stored_object import Stored, pack, pack_metadata
from tests.cpu_time import within_a_callback
from tests.timelapse import in_timelapse
from tests.worker_context import make_context

APP, OTHER = Key("shop", "app"), Key("shop", "other")


class SourcesWorld:
    """Stores with their sources, as app.py wires them, and the queue that they fill."""

    def __init__(self) -> None:
        self.queue = Queue()
        namespaces, secrets = Store(), Store(index_by_owner)
        self.objects = Objects(Store(index_pgrole), secrets, Namespaces(cast("Client", None), namespaces), "c1")
        context = make_context(self.queue, self.objects)
        self.background, self.grantees = context.background, context.grantees
        source = PgRoleSource(self.objects, self.queue, self.background, {"default"}, self.grantees)
        self.objects.store.subscribe(source.changed)
        self.secret_source = SecretSource(source, secrets)
        secrets.subscribe(self.secret_source.changed)
        self.namespace_source = NamespaceSource(source)
        namespaces.subscribe(self.namespace_source.changed)
        self.store, self.secrets, self.namespaces = self.objects.store, secrets, namespaces
        secrets.synced.set()
        namespaces.put(pack({"metadata": {"name": "shop", "uid": "n1", "resourceVersion": "1"}}))

    def put(self, name: str, version: int, *, by: Key | None = None, **more: Any) -> None:
        self.store.put(made(name, version, **more), by)

    async def requested(self) -> dict[Key, tuple[RequestReason, Rank]]:
        """Begins the reconciles of all keys that are due."""
        if not self.queue.backlog("default").depth:
            return {}
        items = await self.queue.take("default", 100)
        return {item.key: (item.reason, item.rank) for item in items}


def made(name: str, version: int, *, generation: int = 1, spec: Any = None, status: Any = None, **meta: Any) -> Stored:
    metadata = {
        "namespace": "shop",
        "name": name,
        "uid": f"uid-{name}",
        "resourceVersion": str(version),
        "generation": generation,
        "creationTimestamp": "2027-01-01T00:00:00Z",
    }
    obj = {"apiVersion": "pgrole.dev/v1alpha1", "kind": "PgRole", "metadata": metadata | meta, "spec": spec or {}}
    return pack(obj | ({"status": status} if status else {}))


def secret(version: int) -> Stored:
    return pack_metadata(
        {"metadata": {"namespace": "shop", "name": "app-pw", "uid": "s", "resourceVersion": str(version)}}
    )


READS_SECRET = {"password": {"secretRef": {"name": "app-pw"}}}
WRITES_SECRET = {"connectionSecret": {"name": "app-pw"}}


@pytest.fixture
def world() -> SourcesWorld:
    return SourcesWorld()


async def test_a_secret_that_the_controller_writes_for_one_object_wakes_the_others_that_read_it(
    world: SourcesWorld,
) -> None:
    world.put("app", 1, spec=WRITES_SECRET)
    world.put("other", 2, spec=READS_SECRET)
    assert set(await world.requested()) == {APP, OTHER}
    for key in (APP, OTHER):
        world.queue.done(key, Done())
    world.secrets.put(secret(3), by=APP)
    assert await world.requested() == {OTHER: (RequestReason.SECRET, Rank.CHANGE)}


async def test_others_have_a_turn_while_thousands_of_objects_are_asked_for_their_secrets(world: SourcesWorld) -> None:
    """Once Secrets were listed, 10,000 objects kept the event loop for 0.15 s."""
    for number in range(1_000):
        world.put(f"r{number}", number + 1, spec=READS_SECRET if number % 2 else {})
    while items := await world.requested():
        for key in items:
            world.queue.done(key, Done())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(world.secret_source.keys.run)
        tasks.start_soon(world.secret_source.announce_all)
        turns = 0
        while world.queue.backlog("default").depth < 500:
            await anyio.lowlevel.checkpoint()
            turns += 1
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    assert turns >= 5
    assert world.queue.backlog("default").depth == 500
    assert set((await world.requested()).values()) == {(RequestReason.SECRET, Rank.CHANGE)}


async def test_a_secret_that_thousands_of_objects_name_is_announced_in_parts(world: SourcesWorld) -> None:
    """Each change of such a Secret, which a tenant may repeat, kept the event loop for more than 0.1 s."""
    for number in range(5_000):
        world.put(f"r{number}", number + 1, spec=READS_SECRET)
    while items := await world.requested():
        for key in items:
            world.queue.done(key, Done())
    with within_a_callback():
        for version in range(100):
            world.secrets.put(secret(version + 1))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(world.secret_source.keys.run)
        turns = 0
        while world.queue.backlog("default").depth < 5_000:
            await anyio.lowlevel.checkpoint()
            turns += 1
        tasks.cancel_scope.cancel()
    assert turns >= 40
    found = await world.requested()
    assert set(found.values()) == {(RequestReason.SECRET, Rank.CHANGE)}


async def test_new_labels_of_a_namespace_with_thousands_of_objects_are_announced_in_parts(world: SourcesWorld) -> None:
    for number in range(5_000):
        world.put(f"r{number}", number + 1, spec=READS_SECRET)
    while items := await world.requested():
        for key in items:
            world.queue.done(key, Done())
    about = {"name": "shop", "uid": "n1"}
    with within_a_callback():
        for version in range(2, 100):
            labels = {"team": str(version)}
            world.namespaces.put(pack({"metadata": about | {"resourceVersion": str(version), "labels": labels}}))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(world.namespace_source.keys.run)
        turns = 0
        while world.queue.backlog("default").depth < 5_000:
            await anyio.lowlevel.checkpoint()
            turns += 1
        tasks.cancel_scope.cancel()
    assert turns >= 40
    assert set((await world.requested()).values()) == {(RequestReason.NAMESPACE, Rank.DEPENDENCY)}


async def test_a_secret_that_the_controller_deletes_for_one_object_wakes_the_others_that_read_it(
    world: SourcesWorld,
) -> None:
    world.secrets.put(secret(1))
    world.put("other", 2, spec=READS_SECRET)
    await world.requested()
    world.queue.done(OTHER, Done())
    world.secrets.remove(Key("shop", "app-pw"), "s", by=APP)
    assert await world.requested() == {OTHER: (RequestReason.SECRET, Rank.CHANGE)}


@pytest.mark.parametrize(
    "written",
    [{"status": {"conditions": [{"type": "Ready", "status": "True"}]}}, {"finalizers": [FINALIZER]}],
    ids=["status", "finalizer"],
)
async def test_the_controllers_own_write_to_an_object_causes_no_reconcile_of_it(
    world: SourcesWorld, written: dict[str, Any]
) -> None:
    world.put("app", 1)
    await world.requested()
    world.queue.done(APP, Done())
    world.put("app", 2, by=APP, **written)
    assert await world.requested() == {}


async def test_a_spec_that_changed_just_before_its_finalizer_was_set_is_reconciled(world: SourcesWorld) -> None:
    world.put("app", 1)
    await world.requested()
    world.put("app", 3, by=APP, generation=2, spec={"login": True}, finalizers=[FINALIZER])
    world.queue.done(APP, Done())
    assert await world.requested() == {APP: (RequestReason.OBJECT, Rank.CHANGE)}


@pytest.mark.parametrize(("deleted", "requests"), [(False, {APP: (RequestReason.OBJECT, Rank.CHANGE)}), (True, {})])
async def test_an_object_that_lost_its_finalizer_just_before_its_status_was_written_is_reconciled(
    world: SourcesWorld, deleted: bool, requests: dict[Key, tuple[RequestReason, Rank]]
) -> None:
    """Unless it is being deleted: then the controller itself removed the finalizer."""
    going: dict[str, Any] = {"deletionTimestamp": "2027-01-01T00:00:00Z"} if deleted else {}
    world.put("app", 1, finalizers=[FINALIZER], **going)
    await world.requested()
    world.put("app", 3, by=APP, status={"conditions": []}, **going)
    world.queue.done(APP, Done())
    assert await world.requested() == requests


async def test_privileges_of_an_object_that_is_recreated_for_another_server_are_no_longer_kept_on_the_first_one(
    world: SourcesWorld,
) -> None:
    world.put("app", 1)
    world.grantees.publish(
        "default", Grantee(APP, "uid-app", 1, "app", 20_000, {"orders": DatabasePrivileges("orders")})
    )
    world.put("app", 2, generation=2)
    assert world.grantees.get("default", APP) is not None
    world.put("app", 3, uid="uid-2", spec={"serverRef": {"name": "second"}})
    assert world.grantees.get("default", APP) is None
    assert await world.requested() == {}, "its reconcile is the other server's"


async def test_a_status_written_by_another_client_is_reconciled_with_low_priority(world: SourcesWorld) -> None:
    world.put("app", 1)
    await world.requested()
    world.queue.done(APP, Done())
    world.put("app", 2, status={"role": {}})
    assert await world.requested() == {APP: (RequestReason.OBJECT, Rank.RESYNC)}


async def test_a_namespace_that_appears_wakes_the_objects_that_waited_for_it(world: SourcesWorld) -> None:
    world.store.put(made("app", 1, namespace="new"))
    key = Key("new", "app")
    await world.requested()
    request = world.objects.read(key, "default", ServerPolicy())
    assert request.quiet
    world.queue.done(key, Done())
    world.namespaces.put(pack({"metadata": {"name": "new", "uid": "n2", "resourceVersion": "2"}}))
    assert await world.requested() == {key: (RequestReason.NAMESPACE, Rank.DEPENDENCY)}
    assert world.objects.read(key, "default", ServerPolicy()).error is None


@in_timelapse
async def test_an_object_to_be_dropped_waits_for_its_namespace_like_any_other() -> None:
    world, key = SourcesWorld(), Key("new", "app")
    going: dict[str, Any] = {"deletionTimestamp": "2027-01-01T00:00:00Z", "finalizers": [FINALIZER]}
    world.store.put(made("app", 1, namespace="new", spec={"deletionPolicy": "Drop"}, **going))
    request = world.objects.read(key, "default", ServerPolicy())
    assert (request.quiet, request.finalizer) == (True, None)
    await anyio.sleep(QUIET_SECONDS)
    request = world.objects.read(key, "default", ServerPolicy())
    assert (request.quiet, request.finalizer) == (False, None)
    assert request.error is not None
    assert "namespace new" in request.error.message
    assert "set spec.deletionPolicy: Retain" in request.error.message
    world.namespaces.put(pack({"metadata": {"name": "new", "uid": "n2", "resourceVersion": "2"}}))
    request = world.objects.read(key, "default", ServerPolicy())
    assert request.desired is not None
    assert request.desired.terminating
