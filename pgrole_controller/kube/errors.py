"""What a request to the API server can end with.

::

    KubeError
     ├─ NotConfigured    no API server is named, or what names it cannot be used; the message lists the choices
     ├─ Unreachable      no (complete) answer: refused, reset, timed out, TLS, no credentials
     ├─ ApiError         an answer that is not a success: status, reason, message, retry_after
     └─ BadStream        a watch said something that is not an event
"""


class KubeError(Exception):
    pass


class NotConfigured(KubeError):
    pass


class Unreachable(KubeError):
    pass


class ApiError(KubeError):
    """`reason` is the CamelCase word of the Status (Conflict, NotFound, Expired), `causes` are those of its details;
    `retry_after` in seconds.
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
