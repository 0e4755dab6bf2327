"""The error that ends the controller, and errors of one object: unexpected ones, and writes that failed.

An unexpected error of one object is logged, counted, reported on that object and retried.

Guarantees: the text of an unexpected error, which may quote a secret, is never shown; a flood of such errors logs few
tracebacks. Errors that PostgreSQL and the API server answer with are expected, and handled elsewhere.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import anyio

from pgrole_controller import metrics
from pgrole_controller.core.errors import Transient, internal_error
from pgrole_controller.core.next_attempt import FailedWrite, WriteError
from pgrole_controller.core.request import Key
from pgrole_controller.kube.errors import ApiError, KubeError, is_away
from pgrole_controller.logs import describe_error

if TYPE_CHECKING:
    from pgrole_controller.kube.client import Client


log = logging.getLogger(__name__)


class CannotStart(Exception):
    """Something required at the start is missing; the message says what to do."""


class Misconfigured(CannotStart):
    """The value of a setting is wrong; the message names it."""


def contain(error: Exception, key: Key) -> Transient:
    """The error to report on the object, a PgRole or a PgServer (whose namespace is empty)."""
    metrics.INTERNAL_ERRORS.labels("object").inc()
    log.error("unexpected error in one object", extra={"object": str(key), **describe_error(error)})
    return internal_error(error)


async def attempt_write(
    client: "Client", key: Key, seconds: float, write: Callable[[], Awaitable[None]]
) -> FailedWrite | None:
    """Runs `write`, which the next reconcile of the object depends on, with a deadline in seconds; None: it is done.

    While the client may not write, nothing is tried: a write that hangs would keep the key from being reconciled.
    """
    if not client.may_write:
        return FailedWrite(WriteError.UNREACHABLE)
    try:
        with anyio.fail_after(seconds):
            await write()
    except (KubeError, TimeoutError) as error:
        return _explain(error, key)
    return None


def is_unanswered(failed: FailedWrite | None) -> bool:
    """Whether a write of `attempt_write` was not answered, or not in time."""
    return failed is not None and failed.error is WriteError.UNREACHABLE


def _explain(error: KubeError | TimeoutError, key: Key) -> FailedWrite:
    """Logs the error, unless the watch reports its cause too."""
    match error:
        case TimeoutError():
            log.warning("write not answered by the API server", extra={"object": str(key)})
        case ApiError(status=404):
            return FailedWrite(WriteError.GONE)
        case ApiError(status=409):
            return FailedWrite(WriteError.CONFLICT)
        case ApiError():
            log.warning("write refused by the API server", extra={"object": str(key), "error": str(error)})
            passes = is_away(error) and error.status != 500  # 500: among others, a webhook that cannot be called
            return FailedWrite(WriteError.REFUSED, error.retry_after or 0.0, "" if passes else str(error))
        case _:
            log.warning("write did not reach the API server", extra={"object": str(key), "error": str(error)})
    return FailedWrite(WriteError.UNREACHABLE)
