"""How often events may cause complete reads of one database, of all roles or of some.

Some commands reach further than their events tell, e.g. ALTER TYPE, and whoever keeps one role from being as declared
makes the reads after events insufficient for it. Any role can do one or the other all the time, and a complete read
takes long in a large database. So each kind of them gets a tenth of the time, and waits its turn beyond that.
"""

import math
from dataclasses import dataclass, field, replace

from pgrole_controller.core.request import Key
from pgrole_controller.postgres.privileges.ddl_events import PrivilegeRead, Scope

#: The pause after a read, as a multiple of the time it took, and at most this many seconds.
_REST_TIMES = 9.0
_LONGEST_REST = 10.0


@dataclass(slots=True)
class Rest:
    """The pause between two reads of one kind. `ends`: on the loop's clock."""

    ends: float = -math.inf

    def is_over(self, now: float) -> bool:
        return now >= self.ends

    def begin(self, began: float, ended: float) -> None:
        """Call it after a read, with the times at which that began and ended."""
        self.ends = ended + min(_REST_TIMES * (ended - began), _LONGEST_REST)


@dataclass(slots=True)
class CompleteReads:
    """Complete reads for all roles. While they pause, what was written recently is read at once instead.

    `due`: when one that was put off may begin, on the loop's clock.
    """

    _rest: Rest = field(default_factory=Rest)
    _owed: PrivilegeRead = field(default_factory=PrivilegeRead)
    _counts: bool = False  # the last one is a complete read that an event caused

    @property
    def due(self) -> float:
        return self._rest.ends if self._owed.is_needed else math.inf

    def moderate(self, to_read: PrivilegeRead, now: float, *, forced: bool) -> PrivilegeRead:
        """Returns what to read now. `forced`: everything, in any case."""
        rested = forced or self._rest.is_over(now)
        if not rested and to_read.scope is Scope.FULL and to_read.xid:
            self._owed |= to_read
            to_read = replace(to_read, scope=Scope.RECENT)
        elif rested:
            to_read, self._owed = to_read | self._owed, PrivilegeRead()
        self._counts = to_read.scope is Scope.FULL and not forced
        return to_read

    def note(self, began: float, ended: float) -> None:
        """What `moderate` returned last was read."""
        if self._counts:
            self._rest.begin(began, ended)


@dataclass(slots=True)
class FurtherReads:
    """Complete reads for roles for which the read after an event does not suffice."""

    _rest: Rest = field(default_factory=Rest)
    _put_off: frozenset[Key] = frozenset()

    def admit(self, keys: frozenset[Key], now: float) -> frozenset[Key]:
        """Returns these roles if a read may begin; otherwise none, and they wait for the next one."""
        if self._rest.is_over(now):
            return keys
        self._put_off |= keys
        return frozenset()

    def note(self, began: float, ended: float) -> None:
        """There was one."""
        self._rest.begin(began, ended)

    def finish(self, keys: frozenset[Key]) -> None:
        """Everything was read for these."""
        self._put_off -= keys

    def put_off(self, keys: frozenset[Key]) -> None:
        """These wait for the next one."""
        self._put_off |= keys

    def keep_only(self, keys: frozenset[Key]) -> None:
        """Everything was read for the others, or they are no longer published."""
        self._put_off &= keys

    @property
    def next(self) -> float:
        """When one that was put off is due, on the loop's clock."""
        return self._rest.ends if self._put_off else math.inf

    def due(self, now: float) -> frozenset[Key]:
        return self._put_off if now >= self.next else frozenset()
