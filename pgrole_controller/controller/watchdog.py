"""Names what keeps the event loop: code that runs in it for longer than BLOCKED_SECONDS holds up every server.

Expected flow: the selector that the loop waits in notes when a turn of the loop begins and ends. A thread sleeps while
the loop waits, and for BLOCKED_SECONDS when it turns; where the same turn still lasts then, it logs the stack.

Guarantees: the stack is taken while the loop is kept, and shows files, lines and functions, no values; at most one line
in LINE_SECONDS. While the loop waits, the thread does not run; while it is busy, about ten times a second.

Caveats: code that does not give other threads a turn is measured, but its stack is not seen.
"""

import logging
import selectors
import sys
import threading
import time
import traceback
from asyncio import SelectorEventLoop
from collections.abc import Callable
from types import FrameType

from pgrole_controller import metrics
from pgrole_controller.logs import Allowing, describe_stack

log = logging.getLogger(__name__)

#: A turn of the loop, with all the callbacks that were due, takes about a millisecond.
BLOCKED_SECONDS = 0.1

#: Between two lines of the log.
LINE_SECONDS = 10.0


class Watchdog:
    """Of one loop. `begin` and `end` are called in the loop's thread, everything else in that of the watchdog."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: float | None = None  # when the turn began that is under way
        self._thread: int | None = None  # that of the loop
        self._asleep = False
        self._wake = threading.Event()
        self._seen = 0.0  # when the turn began whose stack was taken
        self._lines = Allowing(1, LINE_SECONDS, clock)

    def start(self) -> None:
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def begin(self) -> None:
        self._thread = threading.get_ident()
        self._since = self._clock()
        if self._asleep:
            self._wake.set()

    def end(self) -> None:
        since, self._since = self._since, None
        if since is None:
            return
        lasted = self._clock() - since
        if lasted >= BLOCKED_SECONDS:
            metrics.LOOP_BLOCKS.inc()
            if self._seen != since:
                self._tell(lasted, "")

    def _watch(self) -> None:
        while True:
            since = self._since
            if since is None:
                self._sleep()
            elif self._seen == since:
                time.sleep(BLOCKED_SECONDS)
            elif (left := since + BLOCKED_SECONDS - self._clock()) > 0:
                time.sleep(left)
            else:
                self._look(since)

    def _sleep(self) -> None:
        """Until a turn begins."""
        self._wake.clear()
        self._asleep = True
        if self._since is None:  # else it began in between
            self._wake.wait()
        self._asleep = False

    def _look(self, since: float) -> None:
        frame = sys._current_frames().get(self._thread or 0)  # noqa: SLF001 -- there is no other way
        if self._since != since:
            return  # the turn ended, and the frame is of another one
        self._seen = since
        self._tell(self._clock() - since, _describe(frame))

    def _tell(self, lasted: float, stack: str) -> None:
        if self._lines.admit():
            extra = {"milliseconds": round(lasted * 1000), "stack": stack}
            log.warning("event loop blocked", extra=extra)


class _Selector(selectors.DefaultSelector):
    """Tells the watchdog when the loop waits in it, and when it goes on."""

    def __init__(self, watchdog: Watchdog) -> None:
        super().__init__()
        self._watchdog = watchdog

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._watchdog.end()
        ready = super().select(timeout)
        self._watchdog.begin()
        return ready


def watched_loop() -> SelectorEventLoop:
    """An event loop with a watchdog, for `anyio.run`."""
    watchdog = Watchdog()
    watchdog.start()
    return SelectorEventLoop(_Selector(watchdog))


def _describe(frame: FrameType | None) -> str:
    return describe_stack(traceback.extract_stack(frame)) if frame is not None else ""
