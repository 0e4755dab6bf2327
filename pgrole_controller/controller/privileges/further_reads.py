"""When the roles for which the read after an event does not suffice get a complete read."""

import math
from dataclasses import dataclass

from pgrole_controller.core.request import Key

#: The pause after a further read, as a multiple of the time it took, and at most this many seconds.
_REST_TIMES = 9.0
_LONGEST_REST = 10.0


@dataclass(slots=True)
class FurtherReads:
    """Complete reads for roles for which the read after an event does not suffice.

    They take at most a tenth of the time, and wait their turn beyond that: whoever keeps one role from being as
    declared would otherwise make every change in the database expensive.
    """

    _due: float = -math.inf  # on the loop's clock
    _put_off: frozenset[Key] = frozenset()

    def may_begin(self, now: float) -> bool:
        return now >= self._due

    def admit(self, keys: frozenset[Key], now: float) -> frozenset[Key]:
        """Returns these roles if a read may begin; otherwise none, and they wait for the next one."""
        if self.may_begin(now):
            return keys
        self._put_off |= keys
        return frozenset()

    def note(self, began: float, ended: float) -> None:
        """There was one."""
        self._due = ended + min(_REST_TIMES * (ended - began), _LONGEST_REST)

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
        return self._due if self._put_off else math.inf

    def due(self, now: float) -> frozenset[Key]:
        return self._put_off if now >= self.next else frozenset()
