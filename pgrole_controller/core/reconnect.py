"""When the controller reconnects to a server, and which failures are logged and reported.

A server that restarts is back within seconds and announces nothing. So during the first minute of an outage, the
controller retries as often as the server can cheaply bear. After that, and while the server answers with an error, the
back-off doubles. The caller passes times, in seconds of any one monotonic clock.
"""

from dataclasses import dataclass
from enum import Enum

from pgrole_controller.core.backoff import Backoff


class Cause(Enum):
    """Why there is no session.

    ENDED: one that had lasted ended. REFUSED: nothing listens there, which costs the server nothing. STARTING: SQLSTATE
    57P03. LOST: the connection broke, or the server is in recovery. OVERTAKEN: another process of ours came first.
    OTHER: among others a password that is wrong, a missing database, a server that hangs, and a session that the
    controller itself refuses or that fails.
    """

    ENDED = "ended"
    REFUSED = "refused"
    STARTING = "starting"
    LOST = "lost"
    OVERTAKEN = "overtaken"
    OTHER = "other"


#: How long after its beginning an outage is expected to be short, in seconds.
HOPEFUL_SECONDS = 60.0

#: Pause between two attempts during that time, in seconds.
_HOPEFUL = {Cause.ENDED: 0.2, Cause.REFUSED: 0.2, Cause.STARTING: 0.25, Cause.LOST: 1.0}

#: Back-off, in seconds: doubled from the first to the longest, and at least the third if the server has trouble.
FIRST_DELAY = 0.25
LONGEST_DELAY = 15.0
_BACKOFF = Backoff(FIRST_DELAY, LONGEST_DELAY)
TROUBLED_SECONDS = 1.0

#: Maximum number of attempts per second to all servers together during that time: each costs about 1 ms of CPU.
MOST_A_SECOND = 50.0

#: Interval at which a lasting outage is logged again, and minimum interval for a different error, in seconds.
REPEAT_SECONDS = 60.0
ANOTHER_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Outage:
    """Failures in a row, since `since`. `delay`: seconds until the next attempt; `told`: the last error reported.

    `is_news`: report the last failure.
    """

    since: float
    failures: int
    backed_off: int
    delay: float
    told: str
    told_at: float
    is_news: bool


def add_failure(before: Outage | None, cause: Cause, error: str, now: float, away: int = 1) -> Outage:
    """Returns the outage after one more failure. `away`: number of servers, this one included, without a session."""
    since, failures, backed_off = (before.since, before.failures, before.backed_off) if before else (now, 0, 0)
    if cause in _HOPEFUL and now - since < HOPEFUL_SECONDS:
        delay = max(_HOPEFUL[cause], away / MOST_A_SECOND)
    else:
        backed_off += 1
        delay = _BACKOFF.delay(backed_off)
        if cause is not Cause.OVERTAKEN:
            delay = max(delay, TROUBLED_SECONDS)
    is_news = before is None or now - before.told_at >= (REPEAT_SECONDS if error == before.told else ANOTHER_SECONDS)
    told, told_at = (error, now) if is_news or before is None else (before.told, before.told_at)
    return Outage(since, failures + 1, backed_off, delay, told, told_at, is_news)
