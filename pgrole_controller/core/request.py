"""A request says where to look and why. It is never data: whoever acts on it reads everything anew."""

from enum import IntEnum, StrEnum
from typing import NamedTuple


class Key(NamedTuple):
    """Names one PgRole object."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class Rank(IntEnum):
    """Which requests go first: the lower, the sooner."""

    DRIFT = 0  # somebody else changed a role, as far as one can tell
    CHANGE = 1  # an object changed, or a role by what was done here
    DEPENDENCY = 2  # something that the object waits for or uses changed
    RESYNC = 3  # nothing is known to have changed


class RequestReason(StrEnum):
    """What led to a reconcile, for the log and for metrics."""

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
    SUSPENSION = "suspension"
    KUBERNETES_BACK = "kubernetes answers again"
    RESYNC = "resync"
    RETRY = "retry"

    @property
    def label(self) -> str:
        """As the label `source` of metrics has it."""
        return self.value.replace(" ", "_")


class Request(NamedTuple):
    key: Key
    reason: RequestReason
    rank: Rank = Rank.CHANGE
