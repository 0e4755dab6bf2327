"""An unexpected error while one object is processed is that object's: it is logged, counted, said there and retried.

Guarantees: its text, which may quote a secret, is written nowhere; a flood of such errors logs few tracebacks. What
PostgreSQL and the API server answer is expected, and is handled elsewhere.
"""

import logging

from pgrole_controller import metrics
from pgrole_controller.core.errors import Transient, internal_error
from pgrole_controller.core.request import Key
from pgrole_controller.logs import describe_error

log = logging.getLogger(__name__)


def contain(error: Exception, key: Key) -> Transient:
    """The error to say on the object; for a PgServer, whose namespace is empty, too."""
    metrics.INTERNAL_ERRORS.labels("object").inc()
    log.error("unexpected error in one object", extra={"object": str(key), **describe_error(error)})
    return internal_error(error)
