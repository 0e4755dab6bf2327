"""How often DDL may cause a complete read of one database.

Some commands reach further than their events tell, e.g. ALTER TYPE, so that everything is read after them. Any role can
run some of them all the time, and a complete read takes long in a large database. So after the first one they get a
tenth of the time; until the next one, what was written recently is read at once.
"""

import math
from dataclasses import dataclass, field, replace

from pgrole_controller.postgres.privileges.ddl_events import Look, Scope

#: The pause after a complete read, as a multiple of the time it took, and at most this many seconds.
_REST_TIMES = 9.0
_LONGEST_REST = 10.0


@dataclass(slots=True)
class FullReads:
    """`due`: when one that was put off may begin, on the loop's clock."""

    _from: float = -math.inf
    _owed: Look = field(default_factory=Look)
    _counts: bool = False  # the last look is a complete read that an event caused

    @property
    def due(self) -> float:
        return self._from if self._owed.asks else math.inf

    def moderate(self, look: Look, now: float, *, forced: bool) -> Look:
        """Returns what to read now. `forced`: everything, in any case."""
        if not forced and now < self._from and look.scope is Scope.FULL and look.xid:
            self._owed |= look
            look = replace(look, scope=Scope.RECENT)
        elif forced or now >= self._from:
            look, self._owed = look | self._owed, Look()
        self._counts = look.scope is Scope.FULL and not forced
        return look

    def note(self, began: float, ended: float) -> None:
        """The last look was read."""
        if self._counts:
            self._from = ended + min(_REST_TIMES * (ended - began), _LONGEST_REST)
