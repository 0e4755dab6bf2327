"""Ids of visits, by which one can be followed through the log from its request to the status that it wrote."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pgrole_controller.core.request import Key
from pgrole_controller.core.workqueue import WorkItem
from pgrole_controller.logs import name_visit, new_visit, tracing

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Trace:
    """Of the visits that are made at once: `batch` is what the id of each begins with, `of` the ids."""

    batch: str
    of: Mapping[Key, str]


def begin_visits(server: str, visits: Sequence[WorkItem]) -> Trace:
    """Names them, and says why they are made."""
    batch = new_visit()
    trace = Trace(batch, {visit.key: name_visit(batch, n, len(visits)) for n, visit in enumerate(visits, 1)})
    if log.isEnabledFor(logging.DEBUG):
        for visit in visits:
            with tracing(trace.of[visit.key]):
                log.debug("reconcile begins", extra={"object": str(visit.key), "server": server, **_describe(visit)})
    return trace


def _describe(visit: WorkItem) -> dict[str, str | int | float]:
    """Its request, how long ago that was due, in milliseconds, and how often it failed before."""
    return {"reason": visit.reason, "waited_ms": round(visit.waited * 1000, 3), "failures": visit.failures}
