"""How often DDL may cause a complete read of one database.

Some commands reach further than their events tell, e.g. ALTER TYPE, so that everything is read after them. Any role can
run some of them all the time, and a complete read takes long in a large database. So after the first one they get a
tenth of the time; until the next one, what was written recently is read at once.
"""

import math
from dataclasses import dataclass, field, replace

from pgrole_controller.postgres.privileges.ddl_events import PrivilegeRead, Scope

#: The pause after a complete read, as a multiple of the time it took, and at most this many seconds.
_REST_TIMES = 9.0
_LONGEST_REST = 10.0


@dataclass(slots=True)
class FullReads:
    """`due`: when one that was put off may begin, on the loop's clock."""

    _from: float = -math.inf
    _owed: PrivilegeRead = field(default_factory=PrivilegeRead)
    _counts: bool = False  # the last one is a complete read that an event caused

    @property
    def due(self) -> float:
        return self._from if self._owed.is_needed else math.inf

    def moderate(self, to_read: PrivilegeRead, now: float, *, forced: bool) -> PrivilegeRead:
        """Returns what to read now. `forced`: everything, in any case."""
        if not forced and now < self._from and to_read.scope is Scope.FULL and to_read.xid:
            self._owed |= to_read
            to_read = replace(to_read, scope=Scope.RECENT)
        elif forced or now >= self._from:
            to_read, self._owed = to_read | self._owed, PrivilegeRead()
        self._counts = to_read.scope is Scope.FULL and not forced
        return to_read

    def note(self, began: float, ended: float) -> None:
        """What `moderate` returned last was read."""
        if self._counts:
            self._from = ended + min(_REST_TIMES * (ended - began), _LONGEST_REST)
