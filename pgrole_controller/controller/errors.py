"""What ends the controller as a whole, and what one object's unexpected error does: it is logged, counted, said on
that object and retried.

Guarantees: the text of an unexpected error, which may quote a secret, is written nowhere; a flood of such errors
logs few tracebacks. What PostgreSQL and the API server answer is expected, and is handled elsewhere.
"""

import logging

from pgrole_controller import metrics
from pgrole_controller.core.errors import Transient, internal_error
from pgrole_controller.core.request import Key
from pgrole_controller.logs import describe_error


class CannotStart(Exception):
    """What must be there at the start is not; the message says what to do."""


log = logging.getLogger(__name__)


def contain(error: Exception, key: Key) -> Transient:
    """The error to say on the object; for a PgServer, whose namespace is empty, too."""
    metrics.INTERNAL_ERRORS.labels("object").inc()
    log.error("unexpected error in one object", extra={"object": str(key), **describe_error(error)})
    return internal_error(error)
