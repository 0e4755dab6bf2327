"""controller/passwords: a connection Secret that spec no longer names is deleted only while it is the object's, and the
object has not changed since.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

from pgrole_controller.controller.objects import index_by_owner
from pgrole_controller.controller.passwords import PasswordTasks
from pgrole_controller.core.password import (
    DesiredPassword,
    ObservedSecrets,
    PasswordOrigin,
    PasswordRecord,
    PasswordResult,
)
from pgrole_controller.kube.client import Client
from pgrole_controller.kube.errors import ApiError
from pgrole_controller.kube.events import Recorder
from pgrole_controller.kube.store import Store
from pgrole_controller.kube.stored_object import pack, pack_metadata
from tests.unit.test_password_rules import ask_generated, password_task_of, there

OWNER = {"apiVersion": "pgrole.dev/v1alpha1", "kind": "PgRole", "name": "app", "uid": "uid-1"}


class SecretApi:
    """Has no Secret but `given` until one is created; then someone replaces `old`, if `replaces`. Calls `read` with
    each request that reads.
    """

    may_write = True

    def __init__(self, store: Store, *, replaces: bool = False) -> None:
        self._store = store
        self._replaces = replaces
        self.read: Callable[[], None] = lambda: None
        self.written: list[str] = []
        self.deleted: list[str] = []

    async def request(self, method: str, path: str, *, body: Any = None, **_: object) -> bytes:
        if method == "GET":
            self.read()
            if path.endswith("/given"):
                metadata = {"namespace": "shop", "name": "given", "uid": "given", "resourceVersion": "7"}
                data = {"password": "aHVudGVyMg=="}
                return json.dumps({"type": "Opaque", "metadata": metadata, "data": data}).encode()
            raise ApiError(404, "NotFound", "")
        if method == "DELETE":
            self.deleted.append(path.rpartition("/")[2])
            return b"{}"
        if self._replaces:
            theirs = {"metadata": {"namespace": "shop", "name": "old", "uid": "theirs", "resourceVersion": "42"}}
            self._store.remove(pack_metadata(theirs).key, "ours")
            self._store.put(pack_metadata(theirs))
        self.written.append(body["metadata"]["name"])
        metadata = {**body["metadata"], "uid": "new", "resourceVersion": "50"}
        return json.dumps({"type": "Opaque", **body, "metadata": metadata}).encode()


class StaleWorld:
    """The object owns Secret `old`, and names it no more."""

    def __init__(self, *, replaces: bool = False) -> None:
        self.store = Store(index_by_owner)
        metadata: dict[str, Any] = {"namespace": "shop", "name": "old", "uid": "ours", "resourceVersion": "10"}
        metadata |= {"annotations": {"pgrole.dev/hash": "v1:x"}, "ownerReferences": [{**OWNER, "controller": True}]}
        self.store.put(pack_metadata({"metadata": metadata}))
        self.api = SecretApi(self.store, replaces=replaces)
        self.is_current = True

    async def run(self, **task: Any) -> PasswordResult | None:
        """Runs the task of an object with a generated password, with these other values."""
        metadata = {"name": "app", "namespace": "shop", "uid": "uid-1", "resourceVersion": "1"}
        owner = pack({"apiVersion": OWNER["apiVersion"], "kind": "PgRole", "metadata": metadata})
        client = cast("Client", self.api)
        asked = ask_generated(secrets=ObservedSecrets(stale=("old",)))
        asked_task = replace(password_task_of(asked, PasswordRecord(), there()), **task)
        tasks = PasswordTasks(client, self.store, Recorder(client), lambda _: False)
        return await tasks.run(asked_task, owner, lambda: self.is_current)

    def change(self) -> None:
        self.is_current = False


async def test_the_former_connection_secret_is_deleted() -> None:
    world = StaleWorld()
    assert await world.run() is not None
    assert world.api.deleted == ["old"]


async def test_a_secret_that_someone_put_in_its_place_meanwhile_stays() -> None:
    world = StaleWorld(replaces=True)
    await world.run()
    assert world.api.deleted == []


async def test_a_secret_stays_if_its_object_changes_while_the_password_is_read_and_may_name_it_again() -> None:
    world = StaleWorld()
    world.api.read = world.change
    given = DesiredPassword(PasswordOrigin.SECRET, secret="given", key="password")
    assert await world.run(password=given, connection=None) is None
    assert world.api.deleted == []
    world.api.read, world.is_current = lambda: None, True
    assert await world.run(password=given, connection=None) is not None
    assert world.api.deleted == ["old"]


async def test_no_connection_secret_is_written_for_an_object_that_changed_while_the_present_one_was_read() -> None:
    world = StaleWorld()
    world.api.read = world.change
    assert await world.run() is None
    assert (world.api.written, world.api.deleted) == ([], [])
