"""A queue that serves namespaces in turn with a few tasks, so that a namespace whose requests are not answered delays
no other.

Expected flow: each task runs `serve`, which takes items of the namespaces in turn until the queue is closed and empty.

Guarantees: items of one namespace are taken in the order in which they were put; while a namespace is not answered in
time, because of an admission webhook for example, it occupies one task, and the others serve the rest. What the work
logs has the reconcile id with which its item was put.
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import anyio

from pgrole_controller import logs
from pgrole_controller.event_loop import Signal

Item = TypeVar("Item")


class FairQueue(Generic[Item]):
    """Not thread-safe. `put` may be called in a callback of the event loop.

    `idle`: set while there is no work for namespaces that are answered.
    """

    def __init__(self, idle: Signal | None = None) -> None:
        self.idle = idle or Signal()
        self.idle.set()
        # by namespace, the one that is next first: items with the ids of the reconciles that put them
        self._waiting: OrderedDict[str, deque[tuple[Item, str]]] = OrderedDict()
        self._busy: Counter[str] = Counter()  # tasks of each namespace
        self._unanswered: set[str] = set()  # namespaces whose last item was not answered in time
        self._idle: OrderedDict[anyio.Event, None] = OrderedDict()  # tasks that wait, each with its own event
        self._closed = False

    def put(self, namespace: str, item: Item) -> None:
        self._waiting.setdefault(namespace, deque()).append((item, logs.current_reconcile_id()))
        if namespace not in self._unanswered:
            self.idle.clear()
        self._wake(1)

    def close(self) -> None:
        """Lets `serve` return when nothing waits any more."""
        self._closed = True
        self._wake(len(self._idle))

    async def serve(self, work: Callable[[Item], Awaitable[bool]]) -> None:
        """Awaits `work` with one item after the other. It returns whether it was answered in time."""
        while True:
            namespace = self._choose()
            if namespace is None:
                if self._closed:  # what still waits is left to the task that its namespace occupies
                    return
                await self._wait()
                continue
            item, reconcile_id = self._take(namespace)
            self._busy[namespace] += 1
            try:
                with logs.tracing(reconcile_id):
                    answered = await work(item)
                if not answered:
                    self._unanswered.add(namespace)
                elif namespace in self._unanswered:
                    self._unanswered.remove(namespace)
                    self._wake(len(self._idle))
            finally:
                self._busy[namespace] -= 1
                if not self._busy[namespace]:
                    del self._busy[namespace]
                self._note_idle()

    def _note_idle(self) -> None:
        if any(namespace not in self._unanswered for some in (self._busy, self._waiting) for namespace in some):
            self.idle.clear()
        else:
            self.idle.set()

    async def _wait(self) -> None:
        event = anyio.Event()
        self._idle[event] = None
        try:
            await event.wait()
        finally:
            self._idle.pop(event, None)

    def _wake(self, most: int) -> None:
        for _ in range(min(most, len(self._idle))):
            event, _none = self._idle.popitem(last=False)
            event.set()

    def _choose(self) -> str | None:
        """Returns the namespace whose turn it is; None if all that wait have their share."""
        for namespace in self._waiting:
            if namespace not in self._unanswered or namespace not in self._busy:
                return namespace
        return None

    def _take(self, namespace: str) -> tuple[Item, str]:
        waiting = self._waiting[namespace]
        taken = waiting.popleft()
        if waiting:
            self._waiting.move_to_end(namespace)
        else:
            del self._waiting[namespace]
        return taken
