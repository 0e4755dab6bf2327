"""Errors of requests to the API server.

::

    KubeError
     ├─ NotConfigured    no API server is configured, or the configuration is unusable; the message lists the choices
     ├─ Unreachable      no (complete) answer: refused, reset, timed out, TLS, no credentials
     │   └─ AnswerTooLong   more bytes than the request accepts
     ├─ ApiError         an answer that is not a success: status, reason, message, retry_after
     └─ BadStream        a watch sent something that is not an event
"""


class KubeError(Exception):
    pass


class NotConfigured(KubeError):
    pass


class Unreachable(KubeError):
    pass


class AnswerTooLong(Unreachable):
    pass


class ApiError(KubeError):
    """An answer that is not a success. `reason` is the Status's CamelCase word (Conflict, NotFound, Expired), `causes`
    those of its details; `retry_after` is in seconds.
    """

    def __init__(
        self,
        status: int,
        reason: str,
        message: str,
        retry_after: float | None = None,
        causes: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after = retry_after
        self.causes = causes


class BadStream(KubeError):
    pass


def is_away(error: Exception) -> bool:
    """Tells whether no API server answered, or only an overloaded one."""
    return not isinstance(error, ApiError) or error.status in (408, 429) or error.status >= 500
