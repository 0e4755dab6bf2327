"""What is done about one object, in one transaction, and what it is called afterwards."""

from dataclasses import dataclass
from enum import Enum

from pgrole_controller.core.claim import Claim, Generations, Owner
from pgrole_controller.core.credential import Errand, Record
from pgrole_controller.core.diff import Change
from pgrole_controller.core.disown import Disown
from pgrole_controller.core.errors import PgRoleError


class Deed(Enum):
    """What happened when the plan was carried out, for the Event."""

    NOTHING = "nothing"
    CREATED = "created"
    ADOPTED = "adopted"
    CHANGED = "changed"
    CORRECTED = "corrected"
    ROTATED = "rotated"
    DROPPED = "dropped"
    RECLAIMED = "reclaimed"


@dataclass(frozen=True, slots=True)
class Plan:
    """What is done in one transaction.

    The transaction first makes sure that the role it is about still is `oid` (None: is absent) under `seen_as`, and
    that the claim still is the one that was seen. `owner` is written into the claim, with `applied`; None writes none.
    `acted_on` is noted in the claim when it is not what the claim says; None notes none.
    `drift` are the fields that somebody else changed: set back, or, without changes, left as they are; `pending` is
    what waits for something that is not there yet.
    """

    role_name: str
    changes: tuple[Change, ...] = ()
    oid: int | None = None
    seen_as: str = ""
    claim: Claim | None = None
    owner: Owner | None = None
    applied: str = ""
    record: Record | None = None
    drift: tuple[str, ...] = ()
    reported: tuple[str, ...] = ()
    pending: tuple[PgRoleError, ...] = ()
    errand: Errand | None = None
    disown: Disown | None = None
    releases: tuple[tuple[str, str], ...] = ()
    forget: bool = False
    deed: Deed = Deed.NOTHING
    acted_on: Generations | None = None

    @property
    def released(self) -> tuple[str, ...]:
        """The names of roles that nobody claims any more when it is carried out."""
        return tuple(name for name, _ in self.releases) + ((self.role_name,) if self.forget else ())

    @property
    def writes(self) -> bool:
        """Whether there is anything to carry out."""
        return bool(self.changes or self.owner or self.acted_on or self.record or self.releases or self.forget)
