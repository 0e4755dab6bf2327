"""What is counted of visits when they have found something."""

from collections.abc import Sequence

import anyio

from pgrole_controller import metrics
from pgrole_controller.controller.echo import Echoes
from pgrole_controller.controller.reconcile import Finding
from pgrole_controller.core.request import Key
from pgrole_controller.core.status import Outcome
from pgrole_controller.core.workqueue import WorkItem


class Tally:
    """Of one batch of visits, from its beginning on."""

    def __init__(self, server: str, visits: Sequence[WorkItem]) -> None:
        self._server = server
        self._visits: dict[Key, WorkItem] = {visit.key: visit for visit in visits}
        self._began = anyio.current_time()

    def count(self, finding: Finding) -> None:
        """How one of the visits went."""
        count_ending(self._server, finding)
        for field in finding.corrected:
            metrics.DRIFTS.labels(self._server, field, "corrected").inc()
        if finding.changed_at is None:
            return
        visit = self._visits[finding.key]
        seconds = max(finding.changed_at - self._began + visit.waited, 0.0)
        taken = metrics.REPAIR_SECONDS if finding.corrected else metrics.APPLICATION_SECONDS
        taken.labels(visit.reason.label).observe(seconds)

    def end(self) -> None:
        """All that can be done in the database is done."""
        metrics.RECONCILE_SECONDS.observe(anyio.current_time() - self._began)


def count_ending(server: str, finding: Finding) -> None:
    """By the phase of the outcome, or what the visit leads to where nothing is said on the object yet."""
    outcome: Outcome | None = finding.outcome
    if finding.errand is not None:
        ending = "errand"
    elif finding.reassign is not None:
        ending = "emptying"
    elif finding.request.finalizer is not None:
        ending = "finalizer"
    elif finding.done_with or finding.request.stored is None:
        ending = "gone"
    else:
        ending = outcome.phase.value if outcome else "again"
    said = outcome is not None and ending == outcome.phase.value
    reason = outcome.reason.value if outcome and said else ""
    metrics.RECONCILES.labels(server or metrics.UNDECLARED, ending, reason).inc()


def hear(server: str, names: tuple[str, ...] | None, echoes: Echoes) -> None:
    """Changes of these roles were noticed; None: of all."""
    metrics.notice(server)
    for seconds in echoes.hear(names, anyio.current_time()):
        metrics.ECHO_SECONDS.labels(server).observe(seconds)
