"""Namespaces: which one an object is in, by uid, and the labels that a server's policy may choose by."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pgrole_controller.core.errors import Reason, Transient
from pgrole_controller.core.hint import Key
from pgrole_controller.kube.client import NAMESPACES, Client
from pgrole_controller.kube.errors import ApiError, BadStream, Unreachable
from pgrole_controller.kube.store import Store, parse


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
        self._doubted: dict[str, str] = {}  # the uid by which it was known when an object of it went
        self._forgotten = 0  # how often one was forgotten

    async def get(self, name: str) -> Namespace:
        """Raises Transient."""
        stored = self.store.get(Key("", name))
        if stored is not None and stored.uid != self._doubted.get(name):
            self._doubted.pop(name, None)
            return _read(stored.object())
        known = self._asked.get(name)
        if known is not None:
            return known
        forgotten = self._forgotten
        try:
            found = _read(parse(await self._client.request("GET", NAMESPACES.path(name=name), timeout=10.0)))
        except (ApiError, Unreachable, BadStream) as error:
            raise Transient(Reason.PROGRESSING, f"namespace {name} cannot be read: {error}") from error
        if stored is not None and found.uid == stored.uid:
            self._doubted.pop(name, None)
        if forgotten == self._forgotten:  # else it may be the namespace before
            self._asked[name] = found
        return found

    def forget(self, name: str) -> None:
        """An object of it went: it may be another namespace of that name next time, before the watch says so."""
        self._forgotten += 1
        self._asked.pop(name, None)
        stored = self.store.get(Key("", name))
        if stored is not None:
            self._doubted[name] = stored.uid


def _read(obj: dict[str, Any]) -> Namespace:
    metadata = obj["metadata"]
    return Namespace(metadata["name"], metadata["uid"], metadata.get("labels") or {})
