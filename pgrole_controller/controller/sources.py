"""Turns changes in the stores into requests: changes from the API server, and what this process wrote there.

A write causes no request for the object that it was made for, whose reconcile is in progress, but for all others.
"""

from collections.abc import Callable, Collection, Container
from itertools import islice
from typing import Any

import anyio.lowlevel

from pgrole_controller.controller.background import Background
from pgrole_controller.controller.objects import Objects, declared_version, is_own_write, names_secret, server_of
from pgrole_controller.controller.privileges.grantees import Grantees
from pgrole_controller.controller.queue import Queue
from pgrole_controller.core.request import Key, Rank, Request, RequestReason
from pgrole_controller.event_loop import Signal
from pgrole_controller.kube.store import Store, StoreChange
from pgrole_controller.kube.stored_object import Stored

#: Name of the queue for objects whose PgServer does not exist.
NO_SERVER = ""

#: How many objects are parsed in one turn of the event loop where many are.
PARSED_AT_ONCE = 100


class PgRoleSource:
    """Enqueues a changed object, and those that share a role with it. `servers`: the names that have a worker."""

    def __init__(
        self, objects: Objects, queue: Queue, background: Background, servers: Container[object], grantees: Grantees
    ) -> None:
        self.objects = objects
        self._grantees = grantees
        self._background = background
        self._queue = queue
        self._servers = servers

    def changed(self, change: StoreChange) -> None:
        if is_own_write(change):
            return
        seen = change.new or change.old
        if seen is not None:
            # A change of only the status is mostly our own write. One by others causes a reconcile too, but at low
            # rank.
            rank = Rank.RESYNC if _is_status_only(change) else Rank.CHANGE
            self.enqueue(server_of(seen.object()), Request(change.key, RequestReason.OBJECT, rank))
        if change.old is None or _is_status_only(change):
            return
        self._background.interrupt(change.key)
        # Whether another object may have the role can depend on this one: suspended, refused, deleted.
        self._enqueue_depending(change.old)
        if change.new is None or change.new.uid != change.old.uid:
            self._background.forget(change.old.uid)
            # If it was recreated for another server, no reconcile of it follows on this one.
            self._grantees.withdraw(server_of(change.old.object()), change.key)
            self.objects.namespaces.forget(change.key.namespace, change.old.uid)

    def enqueue_server(self, server: str) -> None:
        """Enqueues every object of a server that got or lost its worker."""
        for key in self.objects.of_server(server):
            self.enqueue(server, Request(key, RequestReason.SERVER, Rank.DEPENDENCY))

    def enqueue(self, server: str, request: Request) -> None:
        self._queue.put(server if server in self._servers else NO_SERVER, request)

    def _enqueue_depending(self, old: Stored) -> None:
        server = server_of(old.object())
        for key in self.objects.depending(old):
            self.enqueue(server, Request(key, RequestReason.OTHER_OBJECT, Rank.DEPENDENCY))


class KeysInTurns:
    """Enqueues the keys of objects: few at once, many in turns of the event loop, the first one first."""

    def __init__(self, enqueue: Callable[[Key], None]) -> None:
        self._enqueue = enqueue
        self._waiting: dict[Key, None] = {}
        self._added = Signal()

    def add(self, keys: Collection[Key]) -> None:
        if len(keys) > PARSED_AT_ONCE:
            self._waiting |= dict.fromkeys(keys)
            self._added.set()
            return
        for key in keys:
            self._enqueue(key)

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            await self._added.wait()
            self._added.clear()
            while self._waiting:
                for key in list(islice(self._waiting, PARSED_AT_ONCE)):
                    del self._waiting[key]
                    self._enqueue(key)
                await anyio.lowlevel.checkpoint()


class SecretSource:
    """Enqueues the objects that name a changed Secret; all that name any, when Secrets become readable. Thousands may
    name one: then others have a turn meanwhile.
    """

    def __init__(self, pgroles: PgRoleSource, secrets: Store) -> None:
        self._pgroles = pgroles
        self._secrets = secrets
        self.keys = KeysInTurns(self._enqueue)

    def changed(self, change: StoreChange) -> None:
        if not self._secrets.synced.is_set():
            return  # the first list: all at once when it is complete
        self.keys.add(self._pgroles.objects.naming(change.key) - {change.by})

    async def announce_all(self) -> None:
        """Enqueues when Secrets are listed, and each time that the API server permits it again."""
        await self._secrets.synced.wait()
        while True:
            self.keys.add(self._pgroles.objects.store.keys())
            await self._secrets.allowed.wait()
            self._secrets.allowed.clear()

    def _enqueue(self, key: Key) -> None:
        stored = self._pgroles.objects.store.get(key)
        if stored is not None and names_secret(obj := stored.object()):
            self._pgroles.enqueue(server_of(obj), Request(key, RequestReason.SECRET, Rank.CHANGE))


class NamespaceSource:
    """Enqueues the objects that waited for their namespace, and all objects of one whose labels changed: a server's
    policy may select by labels. Thousands may be in one: then others have a turn meanwhile.
    """

    def __init__(self, pgroles: PgRoleSource) -> None:
        self._pgroles = pgroles
        self._objects = pgroles.objects
        self.keys = KeysInTurns(self._enqueue)

    def changed(self, change: StoreChange) -> None:
        """Handles a change from the watch."""
        if change.new is not None:
            self.known(self._objects.namespaces.waiting(change.key.name))
        if change.old is not None and change.new is not None and _labels(change.old) != _labels(change.new):
            self.relabelled(change.key.name)

    def known(self, waited: Collection[Key]) -> None:
        """Handles that the namespace of these objects is now known."""
        self.keys.add(waited)

    def _enqueue(self, key: Key) -> None:
        server = self._objects.server_name(key)
        if server is not None:
            self._pgroles.enqueue(server, Request(key, RequestReason.NAMESPACE, Rank.DEPENDENCY))

    def relabelled(self, namespace: str) -> None:
        self.known(self._objects.in_namespace(namespace))


def _labels(stored: Stored) -> tuple[str, Any]:
    return stored.uid, stored.object()["metadata"].get("labels")


def _is_status_only(change: StoreChange) -> bool:
    return (
        change.old is not None
        and change.new is not None
        and declared_version(change.old) == declared_version(change.new)
    )
