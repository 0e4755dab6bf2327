"""A hint says where to look and why. It is never data: whoever acts on it reads everything anew."""

from enum import IntEnum
from typing import NamedTuple


class Key(NamedTuple):
    """Names one PgRole object."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class Rank(IntEnum):
    """Which hints go first: the lower, the sooner."""

    DRIFT = 0  # somebody else changed a role, as far as one can tell
    CHANGE = 1  # an object changed, or a role by what was done here
    DEPENDENCY = 2  # something that the object waits for or uses changed
    RESYNC = 3  # nothing is known to have changed


class Hint(NamedTuple):
    key: Key
    reason: str  # for the log only, e.g. "notify"
    rank: Rank = Rank.CHANGE
