"""Errors of requests to the API server.

::

    KubeError
     ├─ NotConfigured    no API server is configured, or the configuration is unusable; the message lists the choices
     │   └─ WrongKubeconfig   a kubeconfig is malformed, or lacks what is asked for: trying again does not help
     ├─ Unreachable      no (complete) answer: refused, reset, timed out, TLS, no credentials
     │   ├─ AnswerTooLong   more bytes than the request accepts
     │   └─ Silent          a watch began, and nothing more came for as long as it waits
     ├─ ApiError         an answer that is not a success: status, reason, message, retry_after
     └─ BadStream        a watch sent something that is not an event
         └─ TooManyFields  a Secret has more fields than are read; the message says so
"""

#: Cause given by the API server when it creates nothing more in a namespace.
NAMESPACE_GOES = "NamespaceTerminating"


class KubeError(Exception):
    pass


class NotConfigured(KubeError):
    pass


class WrongKubeconfig(NotConfigured):
    pass


class Unreachable(KubeError):
    pass


class AnswerTooLong(Unreachable):
    pass


class Silent(Unreachable):
    pass


class ApiError(KubeError):
    """An answer that is not a success. `reason` is the Status's CamelCase word (Conflict, NotFound, Expired), `causes`
    those of its details; `retry_after` is in seconds. `resume`: a token with which a list continues whose own
    token expired.
    """

    def __init__(
        self,
        status: int,
        reason: str,
        message: str,
        retry_after: float | None = None,
        causes: frozenset[str] = frozenset(),
        resume: str = "",
    ) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after = retry_after
        self.causes = causes
        self.resume = resume


class BadStream(KubeError):
    pass


class TooManyFields(BadStream):
    pass


#: What the API server answers where it serves no such resource.
_NOT_SERVED = "404 page not found"


def explain_error(error: KubeError) -> str:
    """Returns the message for whoever runs a command, with the remedy where the API server's answer tells none."""
    if isinstance(error, ApiError) and error.status == 401:
        return (
            f"{error}. The API server does not accept your credentials: log in again, or use others with --kubeconfig "
            "or --context"
        )
    if isinstance(error, ApiError) and error.status == 404 and not is_absent(error):
        return (
            "this API server has no PgRoles and PgServers: choose another one with --context, or install the CRDs "
            "with `pgrole-controller crds | kubectl apply --server-side -f -`"
        )
    return str(error)


def is_absent(error: ApiError) -> bool:
    """Tells whether the object does not exist, in an API server that has its resource."""
    return error.status == 404 and error.message != _NOT_SERVED


def is_away(error: Exception) -> bool:
    """Tells whether no API server answered, or only an overloaded one."""
    return not isinstance(error, ApiError) or error.status in (408, 429) or error.status >= 500
