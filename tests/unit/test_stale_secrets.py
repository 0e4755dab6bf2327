"""controller/passwords: a connection Secret that spec no longer names is deleted only while it is the object's."""

import json
from typing import Any, cast

from pgrole_controller.controller.objects import index_by_owner
from pgrole_controller.controller.passwords import PasswordTasks
from pgrole_controller.core.password import ObservedSecrets, PasswordRecord
from pgrole_controller.kube.client import Client
from pgrole_controller.kube.errors import ApiError
from pgrole_controller.kube.events import Recorder
from pgrole_controller.kube.store import Store
from pgrole_controller.kube.stored_object import pack, pack_metadata
from tests.unit.test_password_rules import ask_generated, password_task_of, there

OWNER = {"apiVersion": "pgrole.dev/v1alpha1", "kind": "PgRole", "name": "app", "uid": "uid-1"}


class SecretApi:
    """Has no Secret until one is created; then someone replaces `old`, if `replaces`."""

    may_write = True

    def __init__(self, store: Store, *, replaces: bool) -> None:
        self._store = store
        self._replaces = replaces
        self.deleted: list[str] = []

    async def request(self, method: str, path: str, *, body: Any = None, **_: object) -> bytes:
        if method == "GET":
            raise ApiError(404, "NotFound", "")
        if method == "DELETE":
            self.deleted.append(path.rpartition("/")[2])
            return b"{}"
        if self._replaces:
            theirs = {"metadata": {"namespace": "shop", "name": "old", "uid": "theirs", "resourceVersion": "42"}}
            self._store.remove(pack_metadata(theirs).key, "ours")
            self._store.put(pack_metadata(theirs))
        metadata = {**body["metadata"], "uid": "new", "resourceVersion": "50"}
        return json.dumps({"type": "Opaque", **body, "metadata": metadata}).encode()


async def deleted_by(*, replaces: bool) -> list[str]:
    store = Store(index_by_owner)
    metadata: dict[str, Any] = {"namespace": "shop", "name": "old", "uid": "ours", "resourceVersion": "10"}
    metadata |= {"annotations": {"pgrole.dev/hash": "v1:x"}, "ownerReferences": [{**OWNER, "controller": True}]}
    store.put(pack_metadata({"metadata": metadata}))
    owner = {"apiVersion": OWNER["apiVersion"], "kind": "PgRole"}
    owner |= {"metadata": {"name": "app", "namespace": "shop", "uid": "uid-1", "resourceVersion": "1"}}  # type: ignore[dict-item]
    api = SecretApi(store, replaces=replaces)
    client = cast("Client", api)
    task = password_task_of(ask_generated(secrets=ObservedSecrets(stale=("old",))), PasswordRecord(), there())
    assert task is not None
    await PasswordTasks(client, store, Recorder(client)).run(task, pack(owner))
    return api.deleted


async def test_the_former_connection_secret_is_deleted() -> None:
    assert await deleted_by(replaces=False) == ["old"]


async def test_a_secret_that_someone_put_in_its_place_meanwhile_stays() -> None:
    assert await deleted_by(replaces=True) == []
