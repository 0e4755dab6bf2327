"""Which namespace an object is in: a namespace that was deleted and created again is another one.

Only the task that requests namespaces waits for the API server (invariant 14).
"""

import json
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from pgrole_controller.controller import namespaces as module
from pgrole_controller.controller.namespaces import REFRESH_SECONDS, Namespaces, NamespaceUnknown
from pgrole_controller.core.request import Key
from pgrole_controller.kube.client import Client
from pgrole_controller.kube.errors import ApiError, KubeError, Unreachable
from pgrole_controller.kube.store import Store
from pgrole_controller.kube.stored_object import pack
from pgrole_controller.kube.transport import Reachability
from tests.timelapse import in_timelapse

OLD, NEW, OTHER = Key("shop", "old"), Key("shop", "new"), Key("shop", "other")
PATIENCE = 600.0


class NamespaceApi(Client):
    """Answers with the current namespace once `answers` is set."""

    def __init__(self, uid: str) -> None:
        self.uid = uid
        self.labels = {"team": "a"}
        self.asked = 0
        self.answers = anyio.Event()
        self.failure: KubeError | None = None
        self.failing: set[str] = set()
        self.reachability = Reachability()
        self.answers.set()

    async def request(self, method: str, path: str, *_: Any, **__: Any) -> bytes:  # noqa: ARG002
        self.asked += 1
        await self.answers.wait()
        if self.failure is not None:
            raise self.failure
        if (name := path.rpartition("/")[2]) in self.failing:
            raise ApiError(404, "NotFound", "gone")
        return json.dumps(made(self.uid, name=name, labels=self.labels)).encode()


class NamespaceWorld:
    def __init__(self, uid: str = "n1", *, watched: bool = True) -> None:
        self.api, self.store = NamespaceApi(uid), Store()
        self.namespaces = Namespaces(self.api, self.store)
        self.known: list[Key] = []
        self.relabelled: list[str] = []
        self.in_use = {"shop"}
        self.told = anyio.Event()
        self.store.answered.set()
        if watched:
            self.watch(uid)

    def watch(self, uid: str, version: int = 1) -> None:
        self.store.replace([pack(made(uid, version))])

    def know(self, keys: Collection[Key]) -> None:
        self.known.extend(keys)
        self._tell()

    def relabel(self, name: str) -> None:
        self.relabelled.append(name)
        self._tell()

    def _tell(self) -> None:
        told, self.told = self.told, anyio.Event()
        told.set()

    def uid(self, key: Key, uid: str = "") -> str | None:
        try:
            return self.namespaces.get(key, uid or key.name).uid
        except NamespaceUnknown:
            return None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.namespaces.run, self.know, self.relabel, lambda: self.in_use)
            with anyio.fail_after(PATIENCE):
                yield
            tasks.cancel_scope.cancel()


def made(uid: str, version: int = 1, *, name: str = "shop", **more: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "uid": uid, "resourceVersion": str(version), **more}}


async def test_a_watched_namespace_is_not_requested() -> None:
    world = NamespaceWorld()
    async with world.running():
        assert world.uid(OLD) == "n1"
        await anyio.wait_all_tasks_blocked()
    assert world.api.asked == 0


class TestAWorkerAwaitsOnlyItsOwnServer:
    async def test_after_a_deletion_objects_read_before_it_continue_without_an_answer(self) -> None:
        world = NamespaceWorld()
        assert world.uid(OLD) == "n1"
        world.api.answers = anyio.Event()  # it hangs
        async with world.running():
            world.namespaces.forget("shop", "gone")
            assert world.uid(OLD) == "n1"
            await anyio.wait_all_tasks_blocked()
        assert world.api.asked == 1  # in the background, for later objects

    async def test_only_new_objects_wait_and_are_announced_once_the_namespace_is_known(self) -> None:
        world = NamespaceWorld()
        assert world.uid(OLD) == "n1"
        world.api.answers = anyio.Event()
        async with world.running():
            world.namespaces.forget("shop", "gone")
            assert world.uid(NEW) is None
            assert world.uid(OTHER) is None
            assert world.uid(OLD) == "n1"
            await anyio.wait_all_tasks_blocked()
            assert (world.api.asked, world.known) == (1, [])
            told = world.told
            world.api.answers.set()
            await told.wait()
        assert set(world.known) == {NEW, OTHER}
        assert world.uid(NEW) == world.uid(OLD) == "n1"
        assert world.api.asked == 1


async def test_a_recreated_namespace_is_known_before_the_watch_reports_it() -> None:
    world = NamespaceWorld()
    assert world.uid(OLD) == "n1"
    world.api.uid = "n2"
    async with world.running():
        world.namespaces.forget("shop", "old")
        assert world.uid(NEW) is None
        await world.told.wait()
        assert world.uid(NEW) == "n2"
        world.watch("n2", 2)
        assert world.uid(NEW) == world.uid(OTHER) == "n2"


async def test_a_watch_event_that_precedes_the_answer_is_used() -> None:
    world = NamespaceWorld()
    world.api.answers = anyio.Event()
    async with world.running():
        world.namespaces.forget("shop", "gone")
        assert world.uid(NEW) is None
        world.watch("n2", 2)
        assert world.namespaces.waiting("shop") == {NEW}
        assert world.uid(NEW) == "n2"


async def test_an_answer_requested_before_another_deletion_is_not_used() -> None:
    world = NamespaceWorld()
    world.api.answers = anyio.Event()
    async with world.running():
        world.namespaces.forget("shop", "gone")
        assert world.uid(NEW) is None
        await anyio.wait_all_tasks_blocked()
        world.namespaces.forget("shop", "gone too")
        told = world.told
        world.api.answers.set()
        await told.wait()
    assert world.api.asked == 2
    assert world.uid(NEW) == "n1"


async def test_a_namespace_is_requested_again_after_each_deletion_of_an_object() -> None:
    world = NamespaceWorld(watched=False)
    async with world.running():
        for asked in (1, 2):
            assert world.uid(Key("shop", f"o{asked}")) is None
            await world.told.wait()
            assert world.uid(Key("shop", f"o{asked}")) == "n1"
            assert world.api.asked == asked
            world.namespaces.forget("shop", "gone")


@pytest.mark.parametrize("failure", [Unreachable("no route"), ApiError(503, "Unavailable", "later")])
@in_timelapse
async def test_an_unreadable_namespace_is_requested_again_and_the_failure_is_reported(failure: KubeError) -> None:
    world = NamespaceWorld(watched=False)
    world.api.failure = failure
    async with world.running():
        with pytest.raises(NamespaceUnknown) as first:
            world.namespaces.get(NEW, "new")
        assert first.value.quiet
        await anyio.sleep(module.QUIET_SECONDS)
        with pytest.raises(NamespaceUnknown, match=str(failure)) as second:
            world.namespaces.get(NEW, "new")
        assert not second.value.quiet
        told, world.api.failure = world.told, None
        await told.wait()
    assert world.known == [NEW]
    assert world.api.asked < 10


@in_timelapse
async def test_a_namespace_without_objects_is_not_requested_forever() -> None:
    world = NamespaceWorld(watched=False)
    world.api.failure = ApiError(404, "NotFound", "gone")
    world.in_use = set()
    async with world.running():
        assert world.uid(NEW) is None
        await anyio.sleep(PATIENCE / 2)
    assert world.api.asked == 1


@in_timelapse
async def test_labels_of_an_unwatched_namespace_are_refreshed() -> None:
    world = NamespaceWorld(watched=False)
    async with world.running():
        assert world.uid(NEW) is None
        await world.told.wait()
        told = world.told
        world.api.labels = {"team": "b"}
        with anyio.fail_after(2 * REFRESH_SECONDS):
            await told.wait()
        assert world.relabelled == ["shop"]
        assert world.namespaces.get(NEW, "new").labels == {"team": "b"}
        asked = world.api.asked
        await anyio.sleep(3 * REFRESH_SECONDS)
        assert world.relabelled == ["shop"]
        assert world.api.asked <= asked + 4


async def test_an_older_rival_is_not_skipped_while_its_namespace_is_unknown() -> None:
    world = NamespaceWorld(watched=False)
    world.api.answers = anyio.Event()
    rival = Key("other", "rival")
    async with world.running():
        with pytest.raises(NamespaceUnknown):
            world.namespaces.of_rival(rival, NEW)
        world.api.failure = ApiError(404, "NotFound", "gone")
        world.in_use = {"other"}
        world.api.answers.set()
        await anyio.wait_all_tasks_blocked()
        assert world.namespaces.of_rival(rival, NEW) is None, "a rival without a namespace delays no one"


async def test_the_only_namespace_is_known_before_it_has_objects() -> None:
    world = NamespaceWorld(watched=False)
    world.namespaces = Namespaces(world.api, world.store, "shop")
    world.in_use = set()
    async with world.running():
        await anyio.wait_all_tasks_blocked()
        assert world.uid(NEW) == "n1"


@in_timelapse
async def test_the_only_namespace_is_known_once_the_api_server_is_back_before_it_has_objects() -> None:
    world = NamespaceWorld(watched=False)
    world.namespaces = Namespaces(world.api, world.store, "shop")
    world.api.failure, world.in_use = Unreachable("no route"), set()
    async with world.running():
        await anyio.sleep(PATIENCE / 4)
        told, world.api.failure = world.told, None
        await told.wait()
        world.api.failure = Unreachable("no route")
        assert world.uid(NEW) == "n1", "a standby takes over without the API server"
    assert world.api.asked < 30


@in_timelapse
async def test_the_only_namespace_stays_known_while_it_has_no_objects() -> None:
    world = NamespaceWorld(watched=False)
    world.namespaces = Namespaces(world.api, world.store, "shop")
    world.in_use = set()
    async with world.running():
        await anyio.sleep(3 * REFRESH_SECONDS)
        assert world.uid(NEW) == "n1"


@in_timelapse
async def test_namespaces_that_cannot_be_read_keep_no_other_from_being_read() -> None:
    world = NamespaceWorld(watched=False)
    failing = [Key(f"gone-{number}", "app") for number in range(3 * module.ASKING)]
    world.api.failing = {key.namespace for key in failing}
    world.in_use |= world.api.failing
    async with world.running():
        for key in failing:
            assert world.uid(key) is None
        await anyio.sleep(PATIENCE / 4)
        assert world.uid(NEW) is None
        with anyio.fail_after(module.FIRST_DELAY):
            await world.told.wait()
        assert world.known == [NEW]
        asked = world.api.asked
        await anyio.sleep(PATIENCE / 4)
        assert world.api.asked - asked <= module.ASKING * PATIENCE / 4 / (module.LONGEST_DELAY / 2) + module.ASKING
        world.api.failing = set()
        await anyio.sleep(PATIENCE / 4)
        assert set(world.known) == {NEW, *failing}
