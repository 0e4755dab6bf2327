"""Namespaces: which one an object is in, by uid, and the labels that a server's policy may choose by."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pgrole_controller.core.errors import Reason, Transient
from pgrole_controller.core.hint import Key
from pgrole_controller.kube.client import NAMESPACES, Client
from pgrole_controller.kube.errors import ApiError, Unreachable
from pgrole_controller.kube.store import Store


@dataclass(frozen=True, slots=True)
class Namespace:
    """`labels` are known where namespaces are watched."""

    name: str
    uid: str
    labels: Mapping[str, str]


class Namespaces:
    def __init__(self, client: Client, store: Store) -> None:
        """`store` is followed by a reflector where namespaces may be listed; elsewhere each is asked for by name."""
        self.store = store
        self._client = client
        self._asked: dict[str, Namespace] = {}
        self._forgotten = 0  # how often one was forgotten

    async def get(self, name: str) -> Namespace:
        """Raises Transient."""
        stored = self.store.get(Key("", name))
        if stored is not None:
            return _read(stored.object())
        known = self._asked.get(name)
        if known is not None:
            return known
        forgotten = self._forgotten
        try:
            answer = await self._client.request("GET", NAMESPACES.path(name=name), timeout=10.0)
        except (ApiError, Unreachable) as error:
            raise Transient(Reason.PROGRESSING, f"namespace {name} cannot be read: {error}") from error
        found = _read(json.loads(answer))
        if forgotten == self._forgotten:  # else it may be the namespace before
            self._asked[name] = found
        return found

    def forget(self, name: str) -> None:
        """An object of it went: it may be another namespace of that name next time."""
        self._forgotten += 1
        self._asked.pop(name, None)


def _read(obj: dict[str, Any]) -> Namespace:
    metadata = obj["metadata"]
    return Namespace(metadata["name"], metadata["uid"], metadata.get("labels") or {})
