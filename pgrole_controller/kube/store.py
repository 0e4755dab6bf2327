"""In-memory copy of one resource: compressed bytes and a few strings for each object, with change notifications."""

import heapq
import logging
from collections import OrderedDict
from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView
from dataclasses import dataclass
from typing import Any

import anyio

from pgrole_controller import metrics
from pgrole_controller.core.request import Key
from pgrole_controller.event_loop import Signal
from pgrole_controller.kube.stored_object import Stored, identify, pack
from pgrole_controller.logs import describe_error

log = logging.getLogger(__name__)

#: Number of removed objects whose uids are remembered.
_REMOVED_KEPT = 4_096
#: Maximum number of keys of one index entry that are kept as a tuple.
_FEW = 8


@dataclass(frozen=True, slots=True)
class StoreChange:
    """A created (no `old`), deleted (no `new`) or changed object. If it was deleted and created again unseen, the uids
    differ.

    `by` is the object for which this process wrote the new state; None if it comes from a list or a watch.
    """

    key: Key
    old: Stored | None
    new: Stored | None
    by: Key | None = None


Listener = Callable[[StoreChange], None]


class _LargeGroup(dict[Key, None]):
    """The keys of one index entry. `oldest`: the last answer of `Store.oldest`; None once the keys have changed."""

    __slots__ = ("oldest",)

    def __init__(self, keys: Iterable[Key]) -> None:
        super().__init__(dict.fromkeys(keys))
        self.oldest: tuple[int, list[Key]] | None = None


def is_older(version: str, than: str) -> bool:
    """Compares resourceVersions as integers of any length."""
    return (len(version), version) < (len(than), than)


class Store:
    """Objects by key, with an optional index. Notifies its listeners of every change, whoever makes it.

    `index` returns, for a parsed object, the values under which `by_index` finds its key. The reflector sets the rest.
    `synced`: set after the first complete list. `listed`: whether there was one, even if it is in doubt now. `refused`:
    its message while it refuses to list or watch (Forbidden, …), else None. `answered`: set once it has listed or
    refused. `allowed`: set when it no longer refuses; whoever waits for it clears it.
    """

    def __init__(self, index: Callable[[dict[str, Any]], Iterable[str]] | None = None) -> None:
        self.synced = Signal()
        self.listed = False
        self.refused: str | None = None
        self.answered = anyio.Event()
        self.allowed = Signal()
        self._index = index
        self._objects: dict[Key, Stored] = {}
        # Tuples, nearly always of one key: 10,000 sets would take 2 MB more. Large groups are separate.
        self._indexed: dict[str, tuple[Key, ...] | _LargeGroup] = {}
        self._removed: OrderedDict[str, bool] = OrderedDict()  # by uid: whether only a list showed it, by lacking it
        self._listeners: list[Listener] = []

    def subscribe(self, listener: Listener) -> None:
        """Calls `listener` with every change from now on, only once even if subscribed twice. It must do no more than
        enqueue.

        If it raises, the error is logged and counted, and affects neither the store nor other listeners.
        """
        if listener not in self._listeners:
            self._listeners.append(listener)

    def pack(self, obj: dict[str, Any], api_version: str, kind: str) -> Stored:
        """Packs an object that was read, as `pack` does: a subclass may keep less of it."""
        return pack(obj, api_version=api_version, kind=kind)

    def share(self, new: Stored) -> Stored:
        """Returns what to store for an object that was just read: a subclass may return an equal one that it has."""
        return new

    def doubt(self) -> None:
        """Marks the content as possibly outdated; `synced` is set again after the next complete list."""
        self.synced.clear()

    def note_listed(self) -> None:
        """Notes that the content is a complete list."""
        self.listed = True
        self.synced.set()
        self.answered.set()

    def refuse(self, why: str) -> None:
        self.refused = why
        self.answered.set()

    def allow(self) -> None:
        if self.refused is not None:
            self.refused = None
            self.allowed.set()

    def __len__(self) -> int:
        return len(self._objects)

    def get(self, key: Key) -> Stored | None:
        return self._objects.get(key)

    def items(self) -> ItemsView[Key, Stored]:
        """Returns a live view: copy it before awaiting."""
        return self._objects.items()

    def keys(self) -> KeysView[Key]:
        """Returns a live view: copy it before awaiting."""
        return self._objects.keys()

    def by_index(self, value: str) -> set[Key]:
        return set(self._indexed.get(value, ()))

    def has_index(self, value: str, key: Key) -> bool:
        """Whether `by_index` finds this key."""
        return key in self._indexed.get(value, ())

    def count_index(self, value: str) -> int:
        return len(self._indexed.get(value, ()))

    def oldest(self, value: str, most: int) -> list[Stored]:
        """Returns the oldest objects that `by_index` finds, by creation and uid, `most` at most. Of thousands, it looks
        for them only after a change of the keys.
        """
        held = self._indexed.get(value, ())
        if isinstance(held, _LargeGroup) and held.oldest is not None and held.oldest[0] == most:
            return [self._objects[key] for key in held.oldest[1]]
        found = heapq.nsmallest(most, (self._objects[key] for key in held), key=lambda one: (one.created, one.uid))
        if isinstance(held, _LargeGroup):
            held.oldest = most, [one.key for one in found]
        return found

    def knows(self, obj: dict[str, Any]) -> bool:
        """Tells whether `put` would ignore this object from the API server, so that it need not be packed.

        Raises ValueError if it is not an object.
        """
        key, uid, version = identify(obj)
        known = self._objects.get(key)
        return self._is_gone(uid, None) or (known is not None and not is_older(known.resource_version, than=version))

    def put(self, new: Stored, by: Key | None = None) -> StoreChange | None:
        """Stores an object from a watch or from the answer to a write, whichever comes first. `by` as in StoreChange.

        Returns None if it is nothing new: the version is known or older, or the object was seen deleted.
        """
        old = self._objects.get(new.key)
        if self._is_gone(new.uid, by):
            return None
        if old is not None and not is_older(old.resource_version, than=new.resource_version):
            return None
        self._removed.pop(new.uid, None)
        return self._announce(self._set(new.key, old, new, by))

    def remove(self, key: Key, uid: str, by: Key | None = None) -> StoreChange | None:
        """Removes that object, by uid; a late answer to a write does not bring it back. None if it was not stored."""
        self._remember_removed(uid)
        old = self._objects.get(key)
        if old is None or old.uid != uid:
            return None
        return self._announce(self._set(key, old, None, by))

    def put_answer(self, seen: Stored, written: Stored | None) -> StoreChange | None:
        """Stores what the API server answered to a write to `seen`; None: that object is gone, though the watch may not
        say so yet.
        """
        if written is not None:
            return self.put(written, by=seen.key)
        return self.remove(seen.key, seen.uid)

    def replace(self, everything: Iterable[Stored]) -> list[StoreChange]:
        """Replaces everything by a complete list, whatever its versions; objects not listed are removed.

        Listeners are notified after all of it is stored, of deletions first.
        """
        return [change for change in self.replacing(everything) if change is not None]

    def replacing(self, everything: Iterable[Stored]) -> Iterator[StoreChange | None]:
        """Does what `replace` does, an object at a time, so that others can have a turn: with thousands, it takes
        seconds. Yields None, and each change that was announced. Run it to its end.
        """
        listed = {new.key: new for new in everything}
        changes: list[StoreChange] = []
        for key in [key for key in self._objects if key not in listed]:
            if (old := self._objects.get(key)) is not None:
                changes.append(self._set(key, old, None, listed=True))
                yield None
        for key, new in listed.items():
            old = self._objects.get(key)
            if old is None or not old.is_same(new):
                self._removed.pop(new.uid, None)
                changes.append(self._set(key, old, new, listed=True))
                yield None
        for change in changes:
            yield self._announce(change)

    def _announce(self, change: StoreChange) -> StoreChange:
        for listener in self._listeners:
            try:
                listener(change)
            except Exception as error:  # noqa: BLE001 -- one object's error, whatever the object holds
                self._contain("change of an object not readable", change.key, error)
        return change

    def _contain(self, message: str, key: Key, error: Exception) -> None:
        metrics.INTERNAL_ERRORS.labels("object").inc()
        log.error(message, extra={"object": str(key), **describe_error(error)})

    def _set(
        self, key: Key, old: Stored | None, new: Stored | None, by: Key | None = None, *, listed: bool = False
    ) -> StoreChange:
        if old is not None and (new is None or new.uid != old.uid):
            self._remember_removed(old.uid, lacked=listed)
        if self._index is not None:
            before, after = self._entries_of(key, old), self._entries_of(key, new)
            replaced = before & after if old is not None and new is not None and old.uid != new.uid else set[str]()
            for value in before - after | replaced:
                self._unlink(value, key)
            for value in after - before | replaced:
                self._link(value, key)
        if new is None:
            self._objects.pop(key, None)
        else:
            self._objects[key] = new
        return StoreChange(key, old, new, by)

    def _entries_of(self, key: Key, stored: Stored | None) -> set[str]:
        """Returns the index values of an object; none if the index function fails."""
        if stored is None or self._index is None:
            return set()
        try:
            return set(self._index(stored.object()))
        except Exception as error:  # noqa: BLE001 -- one object's error, whatever the object holds
            self._contain("object not indexed", key, error)
            return set()

    def _link(self, value: str, key: Key) -> None:
        held = self._indexed.get(value, ())
        if isinstance(held, tuple) and len(held) < _FEW:
            self._indexed[value] = (*held, key)
        elif isinstance(held, tuple):
            self._indexed[value] = _LargeGroup((*held, key))
        else:
            held[key] = None
            held.oldest = None

    def _unlink(self, value: str, key: Key) -> None:
        held = self._indexed.get(value, ())
        if isinstance(held, _LargeGroup):
            held.pop(key, None)
            held.oldest = None
        else:
            held = self._indexed[value] = tuple(one for one in held if one != key)
        if not held:
            self._indexed.pop(value, None)

    def _is_gone(self, uid: str, by: Key | None) -> bool:
        """Whether the object was seen deleted. One that a list lacks may be newer than the list: the watch tells."""
        lacked = self._removed.get(uid)
        return lacked is not None and not (lacked and by is None)

    def _remember_removed(self, uid: str, *, lacked: bool = False) -> None:
        self._removed[uid] = lacked
        self._removed.move_to_end(uid)
        while len(self._removed) > _REMOVED_KEPT:
            self._removed.popitem(last=False)
