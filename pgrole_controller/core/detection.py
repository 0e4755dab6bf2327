"""How changes inside a server are noticed, and where it is written whose a role is."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

#: Where claims live: in schema pgrole of the home database, or, where there is none, in the status of the objects.
Claims = Literal["Database", "Status"]


class Mode(StrEnum):
    """What is asked for, or (but for AUTO) what is done."""

    AUTO = "Auto"  # the best that the server lets us
    WATCH = "Watch"  # schema pgrole tells of every change
    POLL = "Poll"  # digests of all roles are read every interval
    RESYNC = "Resync"  # nothing but the look at every object once in a while


@dataclass(frozen=True, slots=True)
class Detection:
    """What one session has. `mode` is never AUTO; `passwords`: whether one that was changed is noticed."""

    mode: Mode = Mode.WATCH
    passwords: bool = False
    claims: Claims = "Database"
