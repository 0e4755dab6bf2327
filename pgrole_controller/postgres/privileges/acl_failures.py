"""Changes of privileges that failed in one database: they come last in the next attempt, since finding what fails in a
transaction takes time, of which each attempt has little.
"""

from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar
from weakref import WeakKeyDictionary

from pgrole_controller.core.privileges.acl import DefaultAclChange
from pgrole_controller.postgres.connection import Connection
from pgrole_controller.postgres.privileges.acl_locks import key_of
from pgrole_controller.postgres.privileges.acl_refusal import Part
from pgrole_controller.postgres.privileges.acl_verification import AclRepair

#: Maximum number of failed changes remembered.
_MOST_FAILED = 100_000

T = TypeVar("T", bound=AclRepair | DefaultAclChange)


@dataclass(slots=True)
class FailedChanges:
    """What could not be changed in one database, for other reasons than locks: it probably fails again. Keys: `key_of`.

    Whoever owns it matters, too: the controller may not be allowed to change anything of that owner. An object with
    changes of several parts (`acl_refusal.divide`) may fail because of some.
    """

    _owners: dict[Hashable, int] = field(default_factory=dict)
    _parts: dict[tuple[Hashable, Part], int] = field(default_factory=dict)  # by the turn in which each failed last
    _turn: int = 0

    def note(self, one: AclRepair | DefaultAclChange) -> None:
        if len(self._owners) >= _MOST_FAILED:
            self._owners.clear()
        self._owners[key_of(one)] = _owner_of(one)

    def forget(self, some: Iterable[AclRepair | DefaultAclChange]) -> None:
        """These were changed."""
        for one in some if self._owners else ():
            self._owners.pop(key_of(one), None)

    def separate(self, some: Sequence[T], size: int) -> list[Sequence[T]]:
        """Returns parts of at most this size, in the same order: first of what belongs to owners of whom nothing
        failed, then of what else did not fail, and then of the rest. No part has of both.
        """
        owners = frozenset(self._owners.values())
        parts: tuple[list[T], list[T], list[T]] = [], [], []
        for one in some:
            parts[2 if key_of(one) in self._owners else 1 if _owner_of(one) in owners else 0].append(one)
        return [part[start : start + size] for part in parts for start in range(0, len(part), size)]

    def note_parts(self, one: AclRepair, failed: Collection[Part], changed: Collection[Part]) -> None:
        """Of the parts of one object, these failed and these were changed. Others were not tried."""
        self._turn += 1
        if len(self._parts) + len(failed) > _MOST_FAILED:
            self._parts.clear()
        for part in changed:
            self._parts.pop((key_of(one), part), None)
        self._parts.update({(key_of(one), part): self._turn for part in failed})

    def separate_parts(self, one: AclRepair, parts: Sequence[Part]) -> list[list[int]]:
        """Returns the places of these parts of one object, first of those that did not fail, in the same order; then of
        those that did, beginning with the ones that were not tried for longest.
        """
        turns = [self._parts.get((key_of(one), part), 0) for part in parts]
        fresh = [place for place, turn in enumerate(turns) if not turn]
        failed = sorted((place for place, turn in enumerate(turns) if turn), key=turns.__getitem__)
        return [some for some in (fresh, failed) if some]


def _owner_of(one: AclRepair | DefaultAclChange) -> int:
    return one.observed.object.owner if isinstance(one, AclRepair) else one.creator


_failed: WeakKeyDictionary[Connection, FailedChanges] = WeakKeyDictionary()


def failed_changes_of(connection: Connection) -> FailedChanges:
    """The same for all calls with one connection."""
    return _failed.setdefault(connection, FailedChanges())
