"""The queue: the rules of `core.schedule`, with the event loop's clock and a way to wait.

Not thread-safe: everything is called in the event loop. Only `take` waits.
"""

import math
import random
from collections.abc import Callable

import anyio
import anyio.lowlevel

from pgrole_controller.core.request import Key, Rank, Request
from pgrole_controller.core.workqueue import Backlog, NextAttempt, Schedule, WorkItem


class Queue:
    """`draw` gives numbers in [0, 1), for the jitter of back-off. `held`: no visit begins before `release`."""

    def __init__(self, draw: Callable[[], float] = random.random, *, held: bool = False) -> None:
        self._released = anyio.Event()
        if not held:
            self._released.set()
        self._schedule = Schedule(draw)
        self._waiting: dict[str, anyio.Event] = {}
        self._calm: set[str] = set()  # lanes that wait only for a drift, or for time to pass
        self._closed = False

    @property
    def closed(self) -> bool:
        return self._closed

    def put(self, lane: str, request: Request) -> None:
        """Asks for a visit; may be called in a callback of the event loop."""
        self._schedule.add(lane, request, anyio.current_time())
        if lane not in self._calm or request.rank is Rank.DRIFT:
            self._wake(lane)

    async def take(self, lane: str, limit: int, calm_until: float = -math.inf) -> tuple[WorkItem, ...]:
        """Waits until a key of the lane is due, and begins the visits to those that are, at most `limit`.

        Before `calm_until`, on the loop's clock, nothing begins unless a drift is due.

        Each must be ended with `done`, also by a caller that is cancelled: until then its key is not visited again.
        Empty when the queue is closed. When `take` itself is cancelled no visit has begun. Raises RuntimeError while
        another waits for the same lane.
        """
        await anyio.lowlevel.checkpoint()
        while not self._closed:
            # A wait that ended as the caller was cancelled returns: what is taken now would never be ended.
            await anyio.lowlevel.checkpoint_if_cancelled()
            now = anyio.current_time()
            calm = now < calm_until and not self._schedule.has_drift(lane, now)
            visits = self._schedule.take(lane, now, limit) if self._released.is_set() and not calm else ()
            if visits:
                return visits
            await self._wait(lane, calm_until)
        return ()

    def done(self, key: Key, result: NextAttempt) -> None:
        """Ends a visit. Raises LookupError when none to the key is under way."""
        lane = self._schedule.done(key, anyio.current_time(), result)
        if lane is not None and lane not in self._calm:
            self._wake(lane)

    def forgive(self, lane: str) -> None:
        """How often keys of the lane failed counts no more."""
        self._schedule.forgive(lane)

    def remove(self, lane: str) -> None:
        """Forgets the lane and what waits in it: its server is not declared any more."""
        self._schedule.remove_lane(lane)

    def figures(self, lane: str) -> Backlog:
        return self._schedule.figures(lane, anyio.current_time())

    def release(self) -> None:
        """Visits begin. What was enqueued while they were held waits since now."""
        self._released.set()
        self._schedule.restart(anyio.current_time())
        for lane in self._waiting:
            self._wake(lane)

    @property
    def is_released(self) -> bool:
        return self._released.is_set()

    async def released(self) -> None:
        """Until visits may begin."""
        await self._released.wait()

    def close(self) -> None:
        """No further visit begins; those under way can be ended."""
        self._closed = True
        for lane in self._waiting:
            self._wake(lane)

    async def _wait(self, lane: str, calm_until: float) -> None:
        """Until something changes in the lane, or its next delayed key is due; what is due already waits for a drift
        or for `calm_until`.
        """
        if lane in self._waiting:
            message = f"another waits for lane {lane!r}"
            raise RuntimeError(message)
        changed = self._waiting[lane] = anyio.Event()
        due = self._schedule.next_at(lane) if self._released.is_set() else None
        if due is not None and due < calm_until:
            due = calm_until
            self._calm.add(lane)
        try:
            with anyio.CancelScope(deadline=math.inf if due is None else due):
                await changed.wait()
        finally:
            del self._waiting[lane]
            self._calm.discard(lane)

    def _wake(self, lane: str) -> None:
        if lane in self._waiting:
            self._waiting[lane].set()
