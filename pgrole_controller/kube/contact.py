"""Whether the API server answers, whoever asks: when it is back after a while, who waits to try again need not wait on.

What fails for one alone, while others are answered, is no reason for that one to ask sooner.
"""

import time
from collections.abc import Callable

from pgrole_controller.signals import Signal

#: Without any answer for so long, in seconds, a request that fails means that it is away.
SILENT_SECONDS = 5.0


class Contact:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._answered_at = clock()
        self._away = False
        self._back = Signal()

    def note_answer(self, status: int) -> None:
        """One came; those of an overloaded server, or of a proxy before none, do not count."""
        if status == 429 or status >= 500:
            return
        self._answered_at = self._clock()
        if self._away:
            self._away = False
            self._back.pulse()

    def note_failure(self) -> None:
        """None came."""
        self._away = self._away or self._clock() - self._answered_at >= SILENT_SECONDS

    async def back(self) -> None:
        """Until it answers again after it was away."""
        await self._back.wait()
