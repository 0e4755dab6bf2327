"""A request says which object to reconcile, and why. It is never data: the reconcile reads everything again."""

from enum import IntEnum, StrEnum
from typing import NamedTuple


class Key(NamedTuple):
    """Identifies a PgRole object."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class Rank(IntEnum):
    """Order of requests; lower ranks go first."""

    DRIFT = 0  # someone else changed a role, as far as one can tell
    CHANGE = 1  # an object changed, or the controller changed its role
    DEPENDENCY = 2  # something the object uses or waits for changed
    RESYNC = 3  # no known change


class RequestReason(StrEnum):
    """Why an object is reconciled, for logs and metrics."""

    NOTIFY = "notify"
    NOTIFY_OF_GROUP = "notify of a role to join"
    OBJECT = "object"
    OTHER_OBJECT = "another object changed"
    SECRET = "secret"  # noqa: S105 -- a reason
    NAMESPACE = "namespace"
    SERVER = "server"
    POLICY = "policy"
    SERVER_NOT_READY = "server not ready"
    CONNECTED = "connected"
    CLAIM_RELEASED = "claim released"
    PRIVILEGES = "privileges"
    ATTRIBUTED = "cause found"
    SUSPENSION = "suspension"
    KUBERNETES_BACK = "kubernetes answers again"
    RESYNC = "resync"
    RETRY = "retry"

    @property
    def label(self) -> str:
        """The value of the metrics' label `source`."""
        return self.value.replace(" ", "_")


class Request(NamedTuple):
    key: Key
    reason: RequestReason
    rank: Rank = Rank.CHANGE
