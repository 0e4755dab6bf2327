"""A viewer's copy of one resource, and how copies with the same content share their memory.

Each viewer lists and watches with their own token, and stores only what the API server sent to them. Two viewers that
were sent the same bytes refer to the same bytes: who receives an object is decided by the API server alone.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from weakref import ref as weakref

from pgrole_controller.console.object_fields import BRIEF, keep_fields
from pgrole_controller.core.request import Key
from pgrole_controller.event_loop import Signal
from pgrole_controller.kube.store import Store, StoreChange
from pgrole_controller.kube.stored_object import Stored, pack
from pgrole_controller.kube.unvalidated import limit_depth

#: Objects of a list after which open pages show how many arrived.
PROGRESS = 1000

Name = TypeVar("Name")


#: Bytes of compressed objects after which more are kept in brief: of one viewer, and of all together.
MOST_OF_VIEWER = 24 * 2**20
MOST_IN_ALL = 96 * 2**20

SharedKey = tuple[str, str, int]


class SharedObjects:
    """Holds no object by itself: what no viewer's store has any more is freed. `size`: bytes of all objects."""

    def __init__(self) -> None:
        self._known: dict[SharedKey, weakref[Stored]] = {}
        self.size = 0

    def __len__(self) -> int:
        return len(self._known)

    def share(self, new: Stored) -> Stored:
        """Returns an equal object that another store has, else the argument."""
        shared_key = (new.uid, new.resource_version, len(new.body))
        reference = self._known.get(shared_key)
        known = None if reference is None else reference()
        if known is not None:
            return known if known == new else new
        self._known[shared_key] = weakref(new, lambda gone: self._forget(shared_key, gone))
        self.size += shared_key[2]
        return new

    def _forget(self, shared_key: SharedKey, gone: "weakref[Stored]") -> None:
        self.size -= shared_key[2]
        if self._known.get(shared_key) is gone:
            del self._known[shared_key]


@dataclass(slots=True)
class ViewerRoom:
    """Bytes that the stores of one viewer hold."""

    used: int = 0


class ViewedStore(Store):
    """Forgets everything when the API server refuses to list or watch: the viewer may no longer see it.

    `begun`: set with the first object, or when there is none.
    """

    def __init__(
        self, shared: SharedObjects, room: ViewerRoom, refused: Callable[[], None], progressed: Callable[[], None]
    ) -> None:
        """`progressed` is called for every PROGRESS objects of the first list, and at its end."""
        super().__init__()
        self._room = room
        self._used = 0  # bytes of the room, also those of a first list that has not ended
        self.begun = Signal()
        self._shared = shared
        self._refused = refused
        self._progressed = progressed
        self._arrived: dict[Key, Stored] = {}

    @property
    def reading(self) -> bool:
        """Whether the first list is incomplete."""
        return not self.answered.is_set()

    def seen(self) -> Mapping[Key, Stored]:
        """Everything, or what arrived so far of the first list. Copy it before awaiting."""
        return self._arrived or dict(self.items())

    def pack(self, obj: dict[str, Any], api_version: str, kind: str) -> Stored:
        obj = limit_depth(obj)
        packed = pack(keep_fields(obj), api_version=api_version, kind=kind)
        size = len(packed.body)
        if size > BRIEF // 4 and (self._room.used + size > MOST_OF_VIEWER or self._shared.size + size > MOST_IN_ALL):
            return pack(keep_fields(obj, BRIEF), api_version=api_version, kind=kind)
        return packed

    def share(self, new: Stored) -> Stored:
        shared = self._shared.share(new)
        if self.reading:
            before = self._arrived.get(shared.key)
            self._count(len(shared.body) - (len(before.body) if before is not None else 0))
            self._arrived[shared.key] = shared
            self.begun.set()
            if len(self._arrived) % PROGRESS == 0:
                self._progressed()
        return shared

    def replacing(self, everything: Iterable[Stored]) -> Iterator[StoreChange | None]:
        yield from super().replacing(everything)
        self._arrived = {}
        self._count(sum(len(stored.body) for _, stored in self.items()) - self._used)
        self.begun.set()
        self._progressed()

    def put(self, new: Stored, by: Key | None = None) -> StoreChange | None:
        change = super().put(new, by)
        if change is not None:
            self._count(len(new.body) - (len(change.old.body) if change.old is not None else 0))
        return change

    def remove(self, key: Key, uid: str, by: Key | None = None) -> StoreChange | None:
        change = super().remove(key, uid, by)
        if change is not None and change.old is not None:
            self._count(-len(change.old.body))
        return change

    def _count(self, size: int) -> None:
        self._used += size
        self._room.used += size

    def refuse(self, why: str) -> None:
        super().refuse(why)
        self.replace([])
        self._refused()


class ViewedObjects(Mapping[Name, Mapping[str, Any]], Generic[Name]):
    """Objects at one moment, each parsed when it is asked for. Any thread may read it."""

    def __init__(self, stored: Mapping[Name, Stored]) -> None:
        """Takes the mapping over: the caller must not change it."""
        self._stored = stored

    def __getitem__(self, name: Name) -> Mapping[str, Any]:
        return self._stored[name].parse()

    def __iter__(self) -> Iterator[Name]:
        return iter(self._stored)

    def __len__(self) -> int:
        return len(self._stored)

    def __contains__(self, name: object) -> bool:
        return name in self._stored

    def stored(self, name: Name) -> Stored:
        """Returns the object as it is stored: its identity tells whether it changed. Raises KeyError."""
        return self._stored[name]
