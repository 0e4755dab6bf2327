"""When a key is reconciled next without a request: one answer for every way in which a reconcile can end.

A request that arrives sooner is not delayed by it, except that a resync never shortens a back-off (`core.workqueue`).
The caller passes times, in seconds of any one monotonic clock.
"""

from dataclasses import dataclass
from enum import Enum

from pgrole_controller.core.contest import Contest
from pgrole_controller.core.outcome import Outcome

#: After the controller changed a role, in seconds: longer than `observe` needs to read it again. If someone restores,
#: before that, what `observe` saw last, `observe` finds no change and sends no NOTIFY.
CONFIRM_SECONDS = 2.0

#: After the API server did not answer, or this process may not write, in seconds; the client backs off by itself.
UNREACHABLE_SECONDS = 3.0

#: While an object that is being deleted waits for the workers of databases, in seconds: they request a reconcile with
#: each answer. Were that a failure, a role would be dropped minutes after the last of many databases.
DATABASES_SECONDS = 30.0

#: After another write to the same object came first, in seconds.
CONFLICT_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Done:
    """Nothing is left to do until something changes."""


@dataclass(frozen=True, slots=True)
class Retry:
    """The reconcile failed: repeat it with the back-off of `core.workqueue`."""


@dataclass(frozen=True, slots=True)
class RetryAfter:
    """Repeat after this many seconds. Neither a failure nor a success: the count of failures stays."""

    seconds: float


NextAttempt = Done | Retry | RetryAfter


class WriteError(Enum):
    """GONE: the object does not exist. CONFLICT: another write came first. UNREACHABLE: no answer, or this process
    does not lead. REFUSED: the API server refused.
    """

    GONE = "gone"
    CONFLICT = "conflict"
    UNREACHABLE = "unreachable"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class FailedWrite:
    """Why something that the next reconcile needs could not be written. `retry_after`: seconds, as the API server
    demands. `message`: the API server's, if it refuses for a reason that may last.
    """

    error: WriteError
    retry_after: float = 0.0
    message: str = ""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a reconcile ended.

    `outcome`: what status reports; None: nothing yet. `again_at_once`: the prerequisite of the next reconcile is done,
    or the reconcile was interrupted. `decided`: the role was read, and no error prevented a decision. `gone`: the
    object does not exist, or may be deleted. `unconfirmed`: the role was changed, or compared with a password that was
    read some time ago. `rotation_in`: seconds until the password is replaced, None: never.
    """

    outcome: Outcome | None = None
    again_at_once: bool = False
    decided: bool = False
    gone: bool = False
    unconfirmed: bool = False
    rotation_in: float | None = None
    failed: FailedWrite | None = None


#: A reconcile without a result: INTERRUPTED by a cancellation, FAILED with an unexpected error.
INTERRUPTED = Ending(again_at_once=True)
FAILED = Ending()


def next_attempt(ending: Ending, contest: Contest | None, confirm_at: float | None, now: float) -> NextAttempt:
    """Returns when the key is reconciled next. `contest`: what is known of repairs of this object. `confirm_at`: from
    `confirmation_due`.
    """
    attempt = _next_attempt(ending, contest, now)
    if confirm_at is None or isinstance(attempt, Retry):
        return attempt
    seconds = max(confirm_at - now, 0.0)
    return RetryAfter(min(attempt.seconds, seconds) if isinstance(attempt, RetryAfter) else seconds)


def _next_attempt(ending: Ending, contest: Contest | None, now: float) -> NextAttempt:
    outcome = ending.outcome
    if ending.failed is not None:
        return _after_failed_write(ending.failed)
    if ending.again_at_once:
        return RetryAfter(0.0)
    if outcome is not None and outcome.by_databases and not ending.decided:
        return RetryAfter(DATABASES_SECONDS)
    if ending.gone:  # the object's claims must be released, however often that fails
        return Retry() if outcome is not None and outcome.retried else Done()
    if outcome is None:
        return Retry()
    if ending.unconfirmed:
        return RetryAfter(CONFIRM_SECONDS)
    if outcome.retried:
        return Retry()
    if not ending.decided:
        return Done()
    check = None if contest is None else contest.next_check(now)
    # A rotation that is due but did not happen waits for something else.
    due = [seconds for seconds in (ending.rotation_in, check) if seconds is not None and seconds > 0.0]
    return RetryAfter(min(due)) if due else Done()


def _after_failed_write(failed: FailedWrite) -> NextAttempt:
    match failed.error:
        case WriteError.GONE:
            return Done()
        case WriteError.CONFLICT:
            return RetryAfter(CONFLICT_SECONDS)
        case WriteError.UNREACHABLE:
            return RetryAfter(UNREACHABLE_SECONDS)
        case WriteError.REFUSED if failed.retry_after > 0.0:
            return RetryAfter(failed.retry_after)
        case _:
            return Retry()


def confirmation_due(ending: Ending, before: float | None, now: float) -> float | None:
    """Returns when the role must be read once more after this reconcile; None if it need not be.

    `before`: the result for the previous reconcile of the key. A reconcile that comes sooner does not replace that
    read.
    """
    if ending.gone:
        return None
    if ending.unconfirmed:
        return now + CONFIRM_SECONDS
    return before if before is not None and before > now else None
