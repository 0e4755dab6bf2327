"""A viewer's copy of one resource, and how copies with the same content share their memory.

Each viewer lists and watches with their own token, and stores only what the API server sent to them. Two viewers that
were sent the same bytes refer to the same bytes: who receives an object is decided by the API server alone.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, TypeVar
from weakref import WeakValueDictionary

from pgrole_controller.core.request import Key
from pgrole_controller.kube.store import Change, Store, Stored
from pgrole_controller.signals import Signal

#: Objects of a list after which open pages show how many arrived.
PROGRESS = 1000

Name = TypeVar("Name")


class SharedObjects:
    """Holds no object by itself: what no viewer's store has any more is freed."""

    def __init__(self) -> None:
        self._known: WeakValueDictionary[tuple[str, str], Stored] = WeakValueDictionary()

    def __len__(self) -> int:
        return len(self._known)

    def share(self, new: Stored) -> Stored:
        """Returns an equal object that another store has, else the argument."""
        identity = (new.uid, new.resource_version)
        known = self._known.get(identity)
        if known == new and known is not None:
            return known
        self._known[identity] = new
        return new


class ViewedStore(Store):
    """Forgets everything when the API server refuses to list or watch: the viewer may no longer see it.

    `begun`: set with the first object, or when there is none.
    """

    def __init__(self, shared: SharedObjects, refused: Callable[[], None], progressed: Callable[[], None]) -> None:
        """`progressed` is called for every PROGRESS objects of the first list, and at its end."""
        super().__init__()
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

    def share(self, new: Stored) -> Stored:
        shared = self._shared.share(new)
        if self.reading:
            self._arrived[shared.key] = shared
            self.begun.set()
            if len(self._arrived) % PROGRESS == 0:
                self._progressed()
        return shared

    def replace(self, everything: Iterable[Stored]) -> list[Change]:
        self._arrived = {}
        changes = super().replace(everything)
        self.begun.set()
        self._progressed()
        return changes

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
