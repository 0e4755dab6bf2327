"""Telemetry of reconciles: how many end how and how long they take, their ids in the log, and echoes.

The id of a reconcile leads through the log from its request to the status that it wrote.

Our own changes come back as notifications, as everybody's do: how long that takes is the delay of detection. It
is counted from the answer to the transaction, which comes a little after the commit. A change that no
notification tells of is overdue.

Caveats: a drift of the same role that comes in between is taken for the echo. What is heard before the answer
cannot be told from what caused the change, and is left out.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import anyio

from pgrole_controller import metrics
from pgrole_controller.controller.result import Result
from pgrole_controller.core.request import Key
from pgrole_controller.core.status import Outcome
from pgrole_controller.core.workqueue import WorkItem
from pgrole_controller.logs import batch_member_id, new_reconcile_id, tracing

#: When an echo is overdue, and when it is not waited for any more, in seconds.
OVERDUE = 30.0
KEPT = 300.0

#: So many are waited for at most: after a change of thousands of roles the first of them will do.
MOST = 1000


class Echoes:
    """Of one session with a server. Times are in seconds of one clock."""

    def __init__(self) -> None:
        self._sending: set[str] = set()
        self._early: set[str] = set()
        self._sent: dict[str, float] = {}  # role name → when the first change was answered; the oldest first

    def send(self, role_names: Iterable[str]) -> None:
        """A transaction that changes these begins; `answer` ends it."""
        self._sending = set(role_names)

    def answer(self, changed: Iterable[str], now: float) -> None:
        """It is over, and these were changed."""
        for name in changed:
            if name in self._sending and name not in self._early and len(self._sent) < MOST:
                self._sent.setdefault(name, now)
        self._sending, self._early = set(), set()

    def hear(self, role_names: Iterable[str] | None, now: float) -> list[float]:
        """Something was noticed of these; None: of all. The seconds since each that we changed."""
        names = set(self._sent) | self._sending if role_names is None else set(role_names)
        self._early |= self._sending & names
        return [max(now - self._sent.pop(name), 0.0) for name in names if name in self._sent]

    def expects(self, role_name: str) -> bool:
        """Whether what is noticed of it now is likely to be our own change."""
        return role_name in self._sent or role_name in self._sending

    def forget(self, role_name: str) -> None:
        """What was sent had no effect: nothing tells of it."""
        self._sent.pop(role_name, None)

    def overdue(self, now: float) -> int:
        for name, since in list(self._sent.items()):
            if now - since > KEPT:
                del self._sent[name]
        return sum(now - since > OVERDUE for since in self._sent.values())


class BatchMetrics:
    """Of one batch of reconciles, from its beginning on."""

    def __init__(self, server: str, items: Sequence[WorkItem]) -> None:
        self._server = server
        self._items: dict[Key, WorkItem] = {item.key: item for item in items}
        self._began = anyio.current_time()

    def count(self, result: Result) -> None:
        """Counts how one of the reconciles ended."""
        count_ending(self._server, result)
        for field in result.corrected:
            metrics.DRIFTS.labels(self._server, field, "corrected").inc()
        if result.changed_at is None:
            return
        item = self._items[result.key]
        seconds = max(result.changed_at - self._began + item.waited, 0.0)
        taken = metrics.REPAIR_SECONDS if result.corrected else metrics.APPLICATION_SECONDS
        taken.labels(item.reason.label).observe(seconds)

    def end(self) -> None:
        """All that can be done in the database is done."""
        metrics.RECONCILE_SECONDS.observe(anyio.current_time() - self._began)


def count_ending(server: str, result: Result) -> None:
    """By the phase of the outcome, or what the reconcile leads to where nothing is said on the object yet."""
    outcome: Outcome | None = result.outcome
    if result.password_task is not None:
        ending = "errand"
    elif result.reassign is not None:
        ending = "emptying"
    elif result.target.finalizer is not None:
        ending = "finalizer"
    elif result.done_with or result.target.stored is None:
        ending = "gone"
    else:
        ending = outcome.phase.value if outcome else "again"
    said = outcome is not None and ending == outcome.phase.value
    reason = outcome.reason.value if outcome and said else ""
    metrics.RECONCILES.labels(server or metrics.UNDECLARED, ending, reason).inc()


def count_notification(server: str, names: tuple[str, ...] | None, echoes: Echoes) -> None:
    """Changes of these roles were noticed; None: of all."""
    metrics.notice(server)
    for seconds in echoes.hear(names, anyio.current_time()):
        metrics.ECHO_SECONDS.labels(server).observe(seconds)


log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BatchIds:
    """Of the reconciles that are made at once: `batch` is what the id of each begins with, `of` the ids."""

    batch: str
    of: Mapping[Key, str]


def begin_reconciles(server: str, items: Sequence[WorkItem]) -> BatchIds:
    """Names them, and says why they are made."""
    batch = new_reconcile_id()
    ids = BatchIds(batch, {item.key: batch_member_id(batch, n, len(items)) for n, item in enumerate(items, 1)})
    if log.isEnabledFor(logging.DEBUG):
        for item in items:
            with tracing(ids.of[item.key]):
                log.debug("reconcile begins", extra={"object": str(item.key), "server": server, **_describe(item)})
    return ids


def _describe(item: WorkItem) -> dict[str, str | int | float]:
    """Its request, how long ago that was due, in milliseconds, and how often it failed before."""
    return {"reason": item.reason, "waited_ms": round(item.waited * 1000, 3), "failures": item.failures}
