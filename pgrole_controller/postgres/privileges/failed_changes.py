"""Remembers which changes of privileges failed: they come last in the next attempt, since finding what fails in a
transaction takes time, of which each attempt has little.
"""

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar
from weakref import WeakKeyDictionary

from pgrole_controller.core.errors import PgRoleError, Reason
from pgrole_controller.core.privileges.acl import DefaultAclChange
from pgrole_controller.postgres.connection import Connection
from pgrole_controller.postgres.privileges.acl_refusal import Postponed, tell_postponed
from pgrole_controller.postgres.privileges.acl_repair import AclPart, AclRepair, key_of

#: Maximum number of failed changes remembered.
_MOST_FAILED = 100_000

T = TypeVar("T", bound=AclRepair | DefaultAclChange)


@dataclass(slots=True)
class FailedChanges:
    """What could not be changed in one database, for other reasons than locks: it probably fails again. Keys: `key_of`.

    Whoever owns it matters, too: the controller may not be allowed to change anything of that owner. An object with
    changes of several parts (see `divide`) may fail because of some.
    """

    # By key. The values: the owner, or the turn in which it failed last, and whether PostgreSQL refused it.
    _owners: dict[Hashable, tuple[int, bool]] = field(default_factory=dict)
    _parts: dict[tuple[Hashable, AclPart], tuple[int, bool]] = field(default_factory=dict)
    _turn: int = 0

    def note(self, one: AclRepair | DefaultAclChange, error: PgRoleError) -> None:
        if len(self._owners) >= _MOST_FAILED:
            self._owners.clear()
        key = key_of(one)
        self._owners.pop(key, None)  # so that the last that failed comes last
        self._owners[key] = _owner_of(one), _is_refusal(error)

    def postpone(self, one: AclRepair | DefaultAclChange) -> PgRoleError:
        """Returns the error of a change for which there is no time: if it was refused before, it is not in progress."""
        return _postpone(self._owners.get(key_of(one)))

    def postpone_part(self, one: AclRepair, part: AclPart) -> PgRoleError:
        """Likewise, of a part of the changes of one object."""
        return _postpone(self._parts.get((key_of(one), part)))

    def forget(self, some: Iterable[AclRepair | DefaultAclChange]) -> None:
        """These were changed."""
        for one in some if self._owners else ():
            self._owners.pop(key_of(one), None)

    def separate(self, some: Sequence[T], size: int) -> list[Sequence[T]]:
        """Returns parts of at most this size, each in the same order: first of what belongs to owners of whom nothing
        failed, then of what else did not fail, and then of the rest, beginning with what was not tried for longest. No
        part mixes these groups.
        """
        owners = frozenset(owner for owner, _ in self._owners.values())
        turns = {key: turn for turn, key in enumerate(self._owners)}
        parts: tuple[list[int], list[int], list[int]] = [], [], []
        for place, one in enumerate(some):
            parts[2 if key_of(one) in turns else 1 if _owner_of(one) in owners else 0].append(place)
        parts[2].sort(key=lambda place: turns[key_of(some[place])])
        slices = (part[start : start + size] for part in parts for start in range(0, len(part), size))
        return [[some[place] for place in sorted(places)] for places in slices]

    def note_parts(self, one: AclRepair, failed: Mapping[AclPart, PgRoleError], changed: Collection[AclPart]) -> None:
        """Of the parts of one object, these failed and these were changed. Others were not tried."""
        self._turn += 1
        if len(self._parts) + len(failed) > _MOST_FAILED:
            self._parts.clear()
        for part in changed:
            self._parts.pop((key_of(one), part), None)
        for part, error in failed.items():
            self._parts[key_of(one), part] = self._turn, _is_refusal(error)

    def separate_parts(self, one: AclRepair, parts: Sequence[AclPart]) -> list[list[int]]:
        """Returns the places of these parts of one object, first of those that did not fail, in the same order; then of
        those that did, beginning with the ones that were not tried for longest.
        """
        turns = [self._parts.get((key_of(one), part), (0, False))[0] for part in parts]
        fresh = [place for place, turn in enumerate(turns) if not turn]
        failed = sorted((place for place, turn in enumerate(turns) if turn), key=turns.__getitem__)
        return [some for some in (fresh, failed) if some]


def _owner_of(one: AclRepair | DefaultAclChange) -> int:
    return one.observed.object.owner if isinstance(one, AclRepair) else one.creator


def _is_refusal(error: PgRoleError) -> bool:
    return error.reason is Reason.DATABASE_ERROR


def _postpone(known: tuple[int, bool] | None) -> PgRoleError:
    """`known`: of the last attempt, if it failed, with whether it was refused."""
    if known is None or not known[1]:
        return tell_postponed()
    return Postponed(Reason.DATABASE_ERROR, "postponed: it failed before, and there was no time to try it again")


_failed: WeakKeyDictionary[Connection, FailedChanges] = WeakKeyDictionary()


def failed_changes_of(connection: Connection) -> FailedChanges:
    """The same for all calls with one connection."""
    return _failed.setdefault(connection, FailedChanges())


def remember_failed(connection: Connection, failed: FailedChanges) -> None:
    """Goes on with what failed on earlier connections to the same database."""
    _failed[connection] = failed
