"""Which namespace an object is in: a namespace that was deleted and made again is another one."""

import json
from typing import Any

from pgrole_controller.controller.namespaces import Namespaces
from pgrole_controller.kube.client import Client
from pgrole_controller.kube.store import Store, pack


class Answering(Client):
    """Answers every request with the namespace as it is now."""

    def __init__(self, uid: str) -> None:
        self.uid = uid
        self.asked = 0

    async def request(self, *_: Any, **__: Any) -> bytes:
        self.asked += 1
        return json.dumps(made(self.uid)).encode()


def made(uid: str) -> dict[str, Any]:
    return {"metadata": {"name": "shop", "uid": uid, "resourceVersion": "1", "labels": {"team": "a"}}}


async def test_one_that_is_watched_is_not_asked_for() -> None:
    client, store = Answering("old"), Store()
    store.put(pack(made("old")))
    assert (await Namespaces(client, store).get("shop")).uid == "old"
    assert client.asked == 0


async def test_one_whose_object_went_is_asked_for_until_the_watch_agrees() -> None:
    client, store = Answering("new"), Store()
    store.put(pack(made("old")))
    namespaces = Namespaces(client, store)
    namespaces.forget("shop")
    assert (await namespaces.get("shop")).uid == "new", "the watch does not know yet"
    assert (await namespaces.get("shop")).uid == "new"
    assert client.asked == 1
    store.replace([pack({"metadata": {**made("new")["metadata"], "resourceVersion": "2"}})])
    assert (await namespaces.get("shop")).uid == "new"


async def test_one_that_is_still_the_same_is_trusted_again() -> None:
    client, store = Answering("old"), Store()
    store.put(pack(made("old")))
    namespaces = Namespaces(client, store)
    namespaces.forget("shop")
    assert (await namespaces.get("shop")).uid == "old"
    assert (await namespaces.get("shop")).uid == "old"
    assert client.asked == 1
