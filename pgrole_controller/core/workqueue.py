"""The queue's rules: which key is reconciled when, by rank, without ever reconciling one twice at once.

Guarantees: one reconcile of a key at a time, whatever its server; requests that arrive before a reconcile share it, and
those that arrive during it cause exactly one more; no request is lost; a waiting key is reconciled however many of
better rank arrive; drifts and changes take turns, so that neither waits for all of the other. Each operation costs
O(log n) of the waiting keys, `remove_server` and `reset_failures` O(n); keys at rest cost nothing.

Assumptions: the caller passes times, in seconds of any one monotonic clock.
"""

import heapq
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from pgrole_controller.core.backoff import Backoff
from pgrole_controller.core.next_attempt import Done, NextAttempt, Retry, RetryAfter
from pgrole_controller.core.request import Key, Rank, Request, RequestReason

#: Back-off after failures of one key, in seconds: doubled from the first to the longest.
FIRST_BACKOFF = 2.0
LONGEST_BACKOFF = 300.0
_BACKOFF = Backoff(FIRST_BACKOFF, LONGEST_BACKOFF)

#: A key that has waited longer than this, in seconds, is taken out of turn; one of this many places is for such keys.
PATIENCE = 5.0
PLACES_PER_TURN = 8


class WorkItem(NamedTuple):
    """One key taken from the queue. `waited`: seconds since it was due; `failures`: how often in a row it failed
    before.
    """

    key: Key
    reason: RequestReason
    rank: Rank
    waited: float
    failures: int


class Backlog(NamedTuple):
    """A server's queue at one moment. `depth`: keys that are due and wait; `oldest`: seconds that the first has
    waited.
    """

    depth: int
    oldest: float


class _Entry:
    """A key that waits or is reconciled. It waits while `request` is set: from `due` on, in `server`.

    `ticket` names its place among the delayed of the server; None when it is ready, or held until its reconcile ends.
    """

    __slots__ = ("backing_off", "due", "failures", "item", "ready", "request", "server", "ticket")

    def __init__(self, server: str) -> None:
        self.server: str | None = server  # None: the server was removed during the reconcile
        self.request: Request | None = None
        self.due = 0.0
        self.ticket: int | None = None
        self.ready = False
        self.item: WorkItem | None = None
        self.failures = 0
        self.backing_off = False


def _no_ranks() -> dict[Rank, OrderedDict[Key, None]]:
    return {rank: OrderedDict() for rank in Rank}


@dataclass(slots=True)
class _ServerQueue:
    delayed: list[tuple[float, int, Key]] = field(default_factory=list)  # a heap; some have been superseded
    delayed_count: int = 0  # of those that count
    by_age: OrderedDict[Key, float] = field(default_factory=OrderedDict)  # key → waiting since, the oldest first
    by_rank: dict[Rank, OrderedDict[Key, None]] = field(default_factory=_no_ranks)
    seen: float = float("-inf")  # when delayed keys were last checked
    turn: int = 0  # keys taken by rank while another has waited too long
    drift_was_last: bool = False  # of the drifts and changes that wait


class Schedule:
    """`draw` gives numbers in [0, 1), for the jitter."""

    def __init__(self, draw: Callable[[], float]) -> None:
        self._draw = draw
        self._entries: dict[Key, _Entry] = {}
        self._queues: dict[str, _ServerQueue] = {}
        self._tickets = 0

    def add(self, server: str, request: Request, at: float) -> None:
        """A request that is due at `at`: of several for one key the earliest time and the best rank count.

        A key belongs to one server, the one that it was last added to: what waits in another comes along, and how often
        it failed there is forgotten. A RESYNC does not cut a back-off short; everything else does.
        """
        entry = self._entries.get(request.key)
        if entry is None:
            entry = self._entries[request.key] = _Entry(server)
        elif entry.server != server:
            self._leave(request.key, entry)
            entry.server, entry.failures, entry.backing_off = server, 0, False
        self._merge(request.key, entry, request, at)
        if entry.item is None:
            self._enter(request.key, entry)

    def take(self, server: str, now: float, limit: int) -> tuple[WorkItem, ...]:
        """Begins a reconcile of each key that is due, at most `limit`: by rank, except keys that have waited too
        long.
        """
        queue = self._queues.get(server)
        if queue is None:
            return ()
        self._let_in(queue, now)
        items: list[WorkItem] = []
        while queue.by_age and len(items) < limit:
            key = _choose(queue, now)
            items.append(self._begin(queue, key, now))
        return tuple(items)

    def has_drift(self, server: str, now: float) -> bool:
        """Whether a drift is due."""
        queue = self._queues.get(server)
        if queue is None:
            return False
        self._let_in(queue, now)
        return bool(queue.by_rank[Rank.DRIFT])

    def done(self, key: Key, now: float, result: NextAttempt) -> str | None:
        """Ends the reconcile of a key. Returns the server for which the key waits again; None when it is at rest.
        Raises LookupError if no reconcile of the key is in progress.
        """
        entry = self._entries.get(key)
        if entry is None or entry.item is None:
            raise LookupError(f"no reconcile of {key} is in progress")
        item, entry.item = entry.item, None
        if entry.server is not None:
            self._conclude(key, entry, item, now, result)
        if entry.server is None or entry.request is None:
            del self._entries[key]
            return None
        self._enter(key, entry)
        return entry.server

    def next_at(self, server: str) -> float | None:
        """When `take` next gives something: in the past when it does so now; None when nothing waits."""
        queue = self._queues.get(server)
        if queue is None:
            return None
        if queue.by_age:
            return next(iter(queue.by_age.values()))
        self._drop_superseded(queue)
        return queue.delayed[0][0] if queue.delayed else None

    def remove_server(self, server: str) -> None:
        """Forgets every key of the server; a reconcile in progress ends without another."""
        for key, entry in [(key, entry) for key, entry in self._entries.items() if entry.server == server]:
            self._leave(key, entry)
            entry.request = None
            if entry.item is None:
                del self._entries[key]
            else:
                entry.server = None
        self._queues.pop(server, None)

    def reset_failures(self, server: str) -> None:
        """Resets the failures of the server's keys: the server was the cause, and it is back."""
        for entry in self._entries.values():
            if entry.server == server:
                entry.failures = 0

    def restart(self, now: float) -> None:
        """Counts every due key as waiting from now on: no one could take it before."""
        for queue in self._queues.values():
            queue.seen = max(queue.seen, now)
            queue.by_age = OrderedDict.fromkeys(queue.by_age, now)

    def backlog(self, server: str, now: float) -> Backlog:
        queue = self._queues.get(server)
        if queue is None:
            return Backlog(0, 0.0)
        self._let_in(queue, now)
        if not queue.by_age:
            return Backlog(0, 0.0)
        return Backlog(len(queue.by_age), now - next(iter(queue.by_age.values())))

    def _conclude(self, key: Key, entry: _Entry, item: WorkItem, now: float, result: NextAttempt) -> None:
        """Notes what follows from the result itself, besides requests that arrived during the reconcile."""
        match result:
            case Done():
                entry.failures = 0
            case Retry():
                entry.failures += 1
                if entry.request is not None and entry.request.rank is Rank.RESYNC:
                    entry.request = None  # the retry reads as well
                at = now + _BACKOFF.delay(entry.failures, self._draw())
                self._merge(key, entry, Request(key, RequestReason.RETRY, Rank.DEPENDENCY), at)
                entry.backing_off = entry.due == at
            case RetryAfter(seconds):
                self._merge(key, entry, Request(key, item.reason, item.rank), now + seconds)

    def _merge(self, key: Key, entry: _Entry, request: Request, at: float) -> None:
        """Joins a request with what waits; `_enter` then updates the entry's place."""
        if entry.request is None:
            entry.request, entry.due = request, at
            return
        if entry.backing_off and request.rank is Rank.RESYNC:
            return
        if request.rank < entry.request.rank:
            if entry.ready and entry.server is not None:
                ranks = self._queues[entry.server].by_rank
                del ranks[entry.request.rank][key]
                ranks[request.rank][key] = None
            entry.request = request
        if at < entry.due and not entry.ready:
            self._leave(key, entry)
            entry.due, entry.backing_off = at, False

    def _enter(self, key: Key, entry: _Entry) -> None:
        """Gives a waiting key its place in its server's queue, unless it has one."""
        if entry.ready or entry.ticket is not None or entry.server is None:
            return
        queue = self._queues.get(entry.server)
        if queue is None:
            queue = self._queues[entry.server] = _ServerQueue()
        self._tickets += 1
        entry.ticket = self._tickets
        heapq.heappush(queue.delayed, (entry.due, entry.ticket, key))
        queue.delayed_count += 1

    def _leave(self, key: Key, entry: _Entry) -> None:
        """Removes a key from its place, if it has one."""
        if entry.server is None or entry.request is None:
            return
        if entry.ready:
            queue = self._queues[entry.server]
            del queue.by_age[key], queue.by_rank[entry.request.rank][key]
            entry.ready = False
        elif entry.ticket is not None:
            queue = self._queues[entry.server]
            entry.ticket = None
            queue.delayed_count -= 1
            if len(queue.delayed) > 2 * queue.delayed_count + 64:
                queue.delayed = [place for place in queue.delayed if self._counts(place)]
                heapq.heapify(queue.delayed)

    def _counts(self, place: tuple[float, int, Key]) -> bool:
        entry = self._entries.get(place[2])
        return entry is not None and entry.ticket == place[1]

    def _drop_superseded(self, queue: _ServerQueue) -> None:
        while queue.delayed and not self._counts(queue.delayed[0]):
            heapq.heappop(queue.delayed)

    def _let_in(self, queue: _ServerQueue, now: float) -> None:
        """Makes due keys ready. Keys added since the last call have waited since then at most."""
        while queue.delayed and queue.delayed[0][0] <= now:
            place = heapq.heappop(queue.delayed)
            if not self._counts(place):
                continue
            due, _, key = place
            entry = self._entries[key]
            if entry.request is None:
                raise AssertionError(f"{key} has a place and no request")
            entry.ticket, entry.ready, entry.backing_off = None, True, False
            queue.delayed_count -= 1
            queue.by_age[key] = max(due, queue.seen)
            queue.by_rank[entry.request.rank][key] = None
        queue.seen = max(queue.seen, now)

    def _begin(self, queue: _ServerQueue, key: Key, now: float) -> WorkItem:
        entry = self._entries[key]
        request = entry.request
        if request is None:
            raise AssertionError(f"{key} is ready and has no request")
        since = queue.by_age[key]
        self._leave(key, entry)
        entry.request = None
        entry.item = WorkItem(key, request.reason, request.rank, now - since, entry.failures)
        return entry.item


def _choose(queue: _ServerQueue, now: float) -> Key:
    """Returns the first key of the best rank, or, in one of several turns, the one that has waited longest if that is
    too long.
    """
    oldest, since = next(iter(queue.by_age.items()))
    best = next(iter(_best(queue)))
    if oldest == best or now - since <= PATIENCE:
        return best
    queue.turn += 1
    if queue.turn < PLACES_PER_TURN:
        return best
    queue.turn = 0
    return oldest


def _best(queue: _ServerQueue) -> OrderedDict[Key, None]:
    """Returns the keys of the best rank; drifts and changes take turns."""
    drifts, changes = queue.by_rank[Rank.DRIFT], queue.by_rank[Rank.CHANGE]
    if drifts and changes:
        queue.drift_was_last = not queue.drift_was_last
        return drifts if queue.drift_was_last else changes
    queue.drift_was_last = False
    return next(keys for keys in queue.by_rank.values() if keys)
