"""Telemetry of reconciles: results and durations, ids in the log, and the delay of detection.

The id of a reconcile leads through the log from its request to the status that it wrote. The delay of detection is the
time that the controller's own changes take to come back as notifications: see OwnChanges.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import anyio

from pgrole_controller import metrics
from pgrole_controller.controller.result import Result
from pgrole_controller.controller.worker_memory import OwnChanges
from pgrole_controller.core.drift_record import HourlyDrifts
from pgrole_controller.core.privileges.privilege_result import News, PrivilegeNews
from pgrole_controller.core.request import Key
from pgrole_controller.core.workqueue import WorkItem
from pgrole_controller.logs import batch_member_id, new_reconcile_id, tracing

log = logging.getLogger(__name__)


class BatchMetrics:
    """Measures one batch of reconciles from its construction on."""

    def __init__(self, server: str, items: Sequence[WorkItem]) -> None:
        self._server = server
        self._items: dict[Key, WorkItem] = {item.key: item for item in items}
        self._began = anyio.current_time()

    def count(self, result: Result) -> None:
        """Counts the result of one of the reconciles."""
        count_ending(self._server, result)
        for field in result.corrected:
            metrics.DRIFTS.labels(self._server, field, "corrected").inc()
        count_news(self._server, result.news)
        if result.changed_at is None:
            return
        item = self._items[result.key]
        seconds = max(result.changed_at - self._began + item.waited, 0.0)
        taken = metrics.REPAIR_SECONDS if result.corrected else metrics.APPLICATION_SECONDS
        taken.labels(item.reason.label).observe(seconds)

    def end(self) -> None:
        """Notes that everything in the database is done."""
        metrics.RECONCILE_SECONDS.observe(anyio.current_time() - self._began)


class DriftCounts:
    """Drifts on one server since the process began, by hour. A drift that is only reported counts once."""

    def __init__(self) -> None:
        self.counted = HourlyDrifts()
        self._reported: dict[Key, tuple[str, ...]] = {}  # fields of the drift that is reported now

    def count(self, result: Result) -> None:
        """Counts the drifts in the result of one reconcile."""
        corrected = sum(news.reason is News.DRIFT_CORRECTED for news in result.news)
        reported = sum(news.reason is News.DRIFT_REPORTED for news in result.news)
        corrected += bool(result.corrected)
        if result.drift is not None and not result.drift.corrected:
            # One that an earlier process reported has the time that is in the status: that process counted it.
            new = self._reported.get(result.key) != result.drift.fields and result.drift.at == result.observed_at
            reported += new
            self._reported[result.key] = result.drift.fields
        elif result.decided or result.done_with or result.target.stored is None:
            self._reported.pop(result.key, None)
        if corrected or reported:
            now = datetime.now(UTC)
            self.counted = self.counted.add(now, corrected=corrected, reported=reported).since(now)


def count_news(server: str, some: Iterable[PrivilegeNews]) -> None:
    """Counts announced news."""
    for news in some:
        if news.reason is News.PRIVILEGES_EXTENDED:
            metrics.PRIVILEGES_EXTENDED.labels(server).inc()
        else:
            action = "corrected" if news.reason is News.DRIFT_CORRECTED else "reported"
            metrics.DRIFTS.labels(server, "privileges", action).inc()


def count_ending(server: str, result: Result) -> None:
    """Counts by the phase of the outcome, or by the prerequisite of the next reconcile while no outcome is reported."""
    reason = ""
    if result.password_task is not None:
        ending = "password"
    elif result.reassign is not None:
        ending = "emptying"
    elif result.target.finalizer is not None:
        ending = "finalizer"
    elif result.done_with or result.target.stored is None:
        ending = "gone"
    elif result.outcome is not None:
        ending, reason = result.outcome.phase.value, result.outcome.reason.value
    else:
        ending = "again"
    metrics.RECONCILES.labels(server or metrics.UNDECLARED, ending, reason).inc()


def count_notification(server: str, names: tuple[str, ...] | None, own_changes: OwnChanges) -> None:
    """Counts a notification of these roles; None: any role."""
    metrics.notice(server)
    for seconds in own_changes.notice(names, anyio.current_time()):
        metrics.DETECTION_DELAY_SECONDS.labels(server).observe(seconds)


@dataclass(frozen=True, slots=True)
class BatchIds:
    """The ids of the reconciles in one batch: each id in `of` begins with `batch`."""

    batch: str
    of: Mapping[Key, str]


def begin_reconciles(server: str, items: Sequence[WorkItem]) -> BatchIds:
    """Gives the reconciles ids, and logs their reasons."""
    batch = new_reconcile_id()
    ids = BatchIds(batch, {item.key: batch_member_id(batch, n, len(items)) for n, item in enumerate(items, 1)})
    if log.isEnabledFor(logging.DEBUG):
        for item in items:
            with tracing(ids.of[item.key]):
                log.debug("reconcile begins", extra={"object": str(item.key), "server": server, **_describe(item)})
    return ids


def _describe(item: WorkItem) -> dict[str, str | int | float]:
    """Returns its reason, how many milliseconds it was due, and its number of consecutive failures."""
    return {"reason": item.reason, "waited_ms": round(item.waited * 1000, 3), "failures": item.failures}
