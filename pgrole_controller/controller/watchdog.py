"""Names what blocks the event loop: code that runs in it for longer than BLOCKED_SECONDS delays every server.

Expected flow: the selector that the loop waits in notes when a turn of the loop begins, and starts a timer of the
operating system; when the turn ends the timer is stopped. Where it expires, a thread that waits for nothing else wakes
up and logs the stack of the turn that still lasts.

Guarantees: the stack is taken while the loop is kept, and shows files, lines and functions, no values; at most one line
in LINE_SECONDS. A turn costs two system calls at most, and no switch to another thread.

Caveats: code that does not give other threads a turn is measured, but its stack is not seen. SIGALRM is the watchdog's:
it is blocked in every thread that is started later, and ignored once the loop has closed.
"""

import logging
import selectors
import signal
import sys
import threading
import time
import traceback
from asyncio import SelectorEventLoop
from types import FrameType

from pgrole_controller import metrics
from pgrole_controller.logs import RateLimit, describe_stack

log = logging.getLogger(__name__)

#: An iteration of the loop, with all the callbacks that were due, takes about a millisecond.
BLOCKED_SECONDS = 0.1

#: How long the start of the process may take, in seconds; there is no server yet that it could delay.
START_SECONDS = 2.0

#: Iterations that follow each other sooner than this, in seconds, count as busy.
BUSY_SECONDS = 0.005

#: Minimum time between two log lines, in seconds.
LINE_SECONDS = 10.0


class Watchdog:
    """The watchdog of one loop. `begin` and `end` are called in the loop's thread, `_watch` runs in its own."""

    def __init__(self) -> None:
        self._since: float | None = None  # when the turn began that is under way
        self._thread = threading.get_ident()  # that of the loop
        self._starts = time.monotonic() + START_SECONDS
        self._armed = False
        self._armed_at = self._armed_before = 0.0
        self._seen: float | None = None  # when the turn began whose stack was taken
        self._lines = RateLimit(1, LINE_SECONDS)

    def start(self) -> None:
        """Starts the watchdog. Call it in the main thread, before there are others."""
        signal.signal(signal.SIGALRM, _ignore)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def stop(self) -> None:
        """Stops the timer. Python gives up its handlers when it ends: SIGALRM would then end the process."""
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
        signal.setitimer(signal.ITIMER_REAL, 0.0)

    def begin(self) -> None:
        now = time.monotonic()
        if now < self._starts:
            return
        self._since = now
        if not self._armed:
            self._armed = True
            self._armed_before, self._armed_at = self._armed_at, now
            signal.setitimer(signal.ITIMER_REAL, BLOCKED_SECONDS)

    def end(self) -> None:
        since, self._since = self._since, None
        # While one turn follows another, it is cheaper to let the timer expire.
        if self._armed and self._armed_at - self._armed_before > BUSY_SECONDS:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            self._armed = False
        if since is not None and (lasted := time.monotonic() - since) >= BLOCKED_SECONDS:
            metrics.LOOP_BLOCKS.inc()
            if self._seen != since:
                self._tell(lasted, "")

    def _watch(self) -> None:
        while True:
            signal.sigwait({signal.SIGALRM})
            since = self._since
            left = 0.0 if since is None else since + BLOCKED_SECONDS - time.monotonic()
            if left > 0.0:
                signal.setitimer(signal.ITIMER_REAL, left)
                continue
            if since is not None:
                self._log_stack(since)
            self._armed = False

    def _log_stack(self, since: float) -> None:
        frame = sys._current_frames().get(self._thread)  # noqa: SLF001 -- there is no other way
        if self._since == since:  # else the frame is of another turn
            self._seen = since
            self._tell(time.monotonic() - since, _describe(frame))

    def _tell(self, lasted: float, stack: str) -> None:
        if self._lines.admit():
            log.warning("event loop blocked", extra={"milliseconds": round(lasted * 1000), "stack": stack})


class _Selector(selectors.DefaultSelector):
    """Reports to the watchdog when the loop waits in it, when it continues, and when it closes."""

    def __init__(self, watchdog: Watchdog) -> None:
        super().__init__()
        self._watchdog = watchdog

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._watchdog.end()
        ready = super().select(timeout)
        self._watchdog.begin()
        return ready

    def close(self) -> None:
        self._watchdog.stop()
        super().close()


def watched_loop() -> SelectorEventLoop:
    """Creates an event loop with a watchdog, for `anyio.run`."""
    watchdog = Watchdog()
    watchdog.start()
    return SelectorEventLoop(_Selector(watchdog))


def _ignore(_number: int, _frame: FrameType | None) -> None:
    """Ignores the signal; otherwise it would end the process in a thread that does not block it."""


def _describe(frame: FrameType | None) -> str:
    return describe_stack(reversed(list(traceback.walk_stack(frame)))) if frame is not None else ""
