"""The work queue: the rules of `core.workqueue` with the event loop's clock, sizes of batches, and ends of reconciles.

Not thread-safe: call everything in the event loop. Only `take` waits.

A drift that is noticed during a batch waits for its end. So a batch holds as many keys as fit into `BATCH_SECONDS` at
the pace of the previous batches: on a slow server or machine, a drift waits for fewer other keys.

Every reconcile ends in `Endings`, exactly once: by the reporter when status is handed over, by the background when the
prerequisite of the next reconcile is done or the finalizer removed, or by the worker or `decline` if it cannot be
finished. Until then the queue does not start another one for the key.
"""

import logging
import math
import random
from collections.abc import Callable
from dataclasses import replace

import anyio
import anyio.lowlevel

from pgrole_controller.controller.result import Result
from pgrole_controller.core.contest import Contests
from pgrole_controller.core.next_attempt import (
    FAILED,
    INTERRUPTED,
    Ending,
    FailedWrite,
    NextAttempt,
    Retry,
    RetryAfter,
    confirmation_due,
    next_attempt,
)
from pgrole_controller.core.request import Key, Rank, Request
from pgrole_controller.core.workqueue import Backlog, Schedule, WorkItem

log = logging.getLogger(__name__)


class Queue:
    """`draw` gives numbers in [0, 1), for the jitter of back-off. `held`: no reconcile begins before `release`."""

    def __init__(self, draw: Callable[[], float] = random.random, *, held: bool = False) -> None:
        self._released = anyio.Event()
        if not held:
            self._released.set()
        self._schedule = Schedule(draw)
        self._waiting: dict[str, anyio.Event] = {}
        self._calm: set[str] = set()  # servers that wait only for a drift, or until a time
        self._closed = False

    @property
    def closed(self) -> bool:
        return self._closed

    def put(self, server: str, request: Request) -> None:
        """Requests a reconcile; may be called in a callback of the event loop."""
        self._schedule.add(server, request, anyio.current_time())
        if server not in self._calm or request.rank is Rank.DRIFT:
            self._wake(server)

    async def take(self, server: str, limit: int, calm_until: float = -math.inf) -> tuple[WorkItem, ...]:
        """Waits until a key of the server is due, and begins the reconciles of the due keys, at most `limit`.

        Before `calm_until`, on the loop's clock, nothing begins unless a drift is due. Each reconcile must be ended
        with `done`, also by a cancelled caller: until then its key is not reconciled again. Returns nothing when the
        queue is closed. If `take` itself is cancelled, no reconcile has begun. Raises RuntimeError while another caller
        waits for the same server.
        """
        await anyio.lowlevel.checkpoint()
        while not self._closed:
            # A wait can return although its caller was cancelled: what would be taken now would never be ended.
            await anyio.lowlevel.checkpoint_if_cancelled()
            now = anyio.current_time()
            calm = now < calm_until and not self._schedule.has_drift(server, now)
            items = self._schedule.take(server, now, limit) if self._released.is_set() and not calm else ()
            if items:
                return items
            await self._wait(server, calm_until)
        return ()

    def done(self, key: Key, result: NextAttempt) -> None:
        """Ends a reconcile. Raises LookupError when none of the key is in progress."""
        now = anyio.current_time()
        server = self._schedule.done(key, now, result)
        if server is not None and (server not in self._calm or self._schedule.has_drift(server, now)):
            self._wake(server)

    def reset_failures(self, server: str) -> None:
        """Forgets how often keys of the server failed."""
        self._schedule.reset_failures(server)

    def remove(self, server: str) -> None:
        """Forgets the server and its keys: it is no longer declared."""
        self._schedule.remove_server(server)

    def backlog(self, server: str) -> Backlog:
        return self._schedule.backlog(server, anyio.current_time())

    def release(self) -> None:
        """Lets reconciles begin. Keys that were enqueued before count as waiting from now on."""
        self._released.set()
        self._schedule.restart(anyio.current_time())
        for server in self._waiting:
            self._wake(server)

    @property
    def is_released(self) -> bool:
        return self._released.is_set()

    async def released(self) -> None:
        """Waits until reconciles may begin."""
        await self._released.wait()

    def close(self) -> None:
        """No further reconcile begins; those in progress can be ended."""
        self._closed = True
        for server in self._waiting:
            self._wake(server)

    async def _wait(self, server: str, calm_until: float) -> None:
        """Waits until something changes for the server, or its next delayed key is due. Keys that are already due wait
        for a drift or for `calm_until`.
        """
        if server in self._waiting:
            message = f"another waits for server {server!r}"
            raise RuntimeError(message)
        changed = self._waiting[server] = anyio.Event()
        due = self._schedule.next_at(server) if self._released.is_set() else None
        if due is not None and due < calm_until:
            due = calm_until
            self._calm.add(server)
        try:
            with anyio.CancelScope(deadline=math.inf if due is None else due):
                await changed.wait()
        finally:
            del self._waiting[server]
            self._calm.discard(server)

    def _wake(self, server: str) -> None:
        if server in self._waiting:
            self._waiting[server].set()


#: Limits of a batch, which is one query and one transaction: at most this many keys, however fast they are. The bounds
#: on what one query reads (sql/inspect/roles.sql) are per role, so this also bounds the total.
MOST = 100
LEAST = 8

#: Target duration of a batch, in seconds.
BATCH_SECONDS = 0.1

#: Minimum interval between batches without a drift, in seconds, and how many of them may follow each other at once.
INTERVAL = 0.05
BURST = 5


class Pace:
    def __init__(self) -> None:
        self.limit = MOST // 4
        self._budget = -math.inf  # when the last batch would have begun if all were an interval apart

    @property
    def calm_until(self) -> float:
        """When the next batch without a drift may begin, on the clock of `begin`."""
        return self._budget - (BURST - 1) * INTERVAL

    def begin(self, now: float) -> None:
        """Notes that a batch without a drift begins."""
        self._budget = max(self._budget, now) + INTERVAL

    def note(self, keys: int, seconds: float) -> None:
        """Notes how long a batch of this many keys took. Only a full batch can raise the limit."""
        fits = int(keys * BATCH_SECONDS / max(seconds, 0.001))
        if seconds > BATCH_SECONDS:
            self.limit = max(min(self.limit, fits), LEAST)
        elif keys >= self.limit:
            self.limit = min(2 * self.limit, max(self.limit, fits), MOST)


class Endings:
    """Says when the key is reconciled next without a request, and logs it."""

    def __init__(self, queue: Queue, contests: Contests) -> None:
        self._queue = queue
        self._contests = contests
        self._confirm_at: dict[Key, float] = {}  # when a role that was changed is to be read once more

    def end(self, result: Result, failed: FailedWrite | None = None) -> None:
        """`failed`: what the result asked for could not be written."""
        stored = result.target.stored
        ending = result.ending if failed is None else replace(result.ending, failed=failed)
        self._end(result.key, ending, "" if stored is None else stored.uid)

    def interrupt(self, key: Key) -> None:
        """The reconcile was cancelled."""
        self._end(key, INTERRUPTED)

    def fail(self, key: Key) -> None:
        """The reconcile met an unexpected error, which is reported elsewhere."""
        self._end(key, FAILED)

    def _end(self, key: Key, ending: Ending, uid: str = "") -> None:
        now = anyio.current_time()
        confirm_at = confirmation_due(ending, self._confirm_at.pop(key, None), now)
        if confirm_at is not None:
            self._confirm_at[key] = confirm_at
        attempt = next_attempt(ending, self._contests.get(uid), confirm_at, now)
        log.debug("reconcile ends", extra={"object": str(key), **_describe(attempt)})
        self._queue.done(key, attempt)


def _describe(attempt: NextAttempt) -> dict[str, str | float]:
    match attempt:
        case RetryAfter(seconds):
            return {"result": "again", "in_seconds": round(seconds, 3)}
        case Retry():
            return {"result": "back-off"}
        case _:
            return {"result": "done"}
