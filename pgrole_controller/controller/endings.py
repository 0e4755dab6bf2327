"""Ends reconciles: says when the key is reconciled next without a request, and logs it.

Every reconcile ends here exactly once: by the reporter when status is handed over or written, or by the background when
the prerequisite of the next reconcile is done. Until then the queue does not start another one for the key.
"""

import logging
from dataclasses import replace

import anyio

from pgrole_controller.controller.queue import Queue
from pgrole_controller.controller.result import Result
from pgrole_controller.core.contest import Contests
from pgrole_controller.core.next_attempt import FAILED, INTERRUPTED, Ending, FailedWrite, confirmation_due, next_attempt
from pgrole_controller.core.request import Key
from pgrole_controller.core.workqueue import NextAttempt, Retry, RetryAfter

log = logging.getLogger(__name__)


class Endings:
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
