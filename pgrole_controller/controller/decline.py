"""Reconciles without a server: reports on each object why nothing can be done for it now.

For the objects of a server that cannot be reached, and for those whose PgServer does not exist.
"""

from collections.abc import Callable

import anyio

from pgrole_controller import logs
from pgrole_controller.controller.context import WorkerContext
from pgrole_controller.controller.errors import contain
from pgrole_controller.controller.objects import Target
from pgrole_controller.controller.result import Result, refuse
from pgrole_controller.controller.telemetry import begin_reconciles, count_ending
from pgrole_controller.core.deletion import add_way_out
from pgrole_controller.core.errors import PgRoleError
from pgrole_controller.core.policy import ServerPolicy
from pgrole_controller.core.request import Key, Rank

#: Between two unchanged objects on which an outage is reported, in seconds: when the server is back, each of these
#: statuses has to be written again.
OUTAGE_REPORT_PAUSE = 0.01


async def decline(
    context: WorkerContext, server: str, find_error: Callable[[Key], PgRoleError], changed: set[Key] | None = None
) -> None:
    """Reports an error on the objects of `server` that are due, until cancelled or the queue is closed.

    `find_error` is called for each object. `changed`: during an outage, collects the keys of objects that changed; the
    others are reported with pauses.
    """
    while items := await context.queue.take(server, 1):
        (item,) = items
        if changed is not None and item.rank is Rank.CHANGE:
            changed.add(item.key)
        try:
            with logs.tracing(begin_reconciles(server, items).batch):
                context.background.take(item.key)  # what was prepared is old when the server is back
                result = _declined(context.objects.read(item.key, None, ServerPolicy()), find_error(item.key))
                count_ending(server, result)
                context.reporter.report(result)
        except Exception as unexpected:  # noqa: BLE001 -- this object's error
            contain(unexpected, item.key)
            context.endings.fail(item.key)
        if changed is not None and item.rank > Rank.CHANGE and not item.failures:
            await anyio.sleep(OUTAGE_REPORT_PAUSE)


def _declined(target: Target, error: PgRoleError) -> Result:
    desired = target.desired
    if target.finalizer is False or (desired and desired.terminating and not desired.drop):
        return Result(target, done_with=True)  # it can be deleted without the server
    if target.stored is None or target.quiet:
        return Result(target)
    problem = target.error or error
    return refuse(target, add_way_out(problem) if desired and desired.terminating else problem)
