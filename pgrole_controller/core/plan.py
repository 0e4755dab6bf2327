"""What the controller does about one object in one transaction, or before it: empty a role that is to be dropped."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from pgrole_controller.core.claim import Claim, Generations, Owner
from pgrole_controller.core.diff import Change
from pgrole_controller.core.errors import PgRoleError, Reason, Waiting
from pgrole_controller.core.password import PasswordRecord, PasswordTask

#: A condition is read by people: what is blocked in more places is counted.
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class ReassignOwned:
    """A role, by oid and the name it has to have, and who gets what it owns.

    `new_owner` None: only its sessions are taken care of. `terminate`: they are ended, else they stand in the way.
    `new_owner_oid` is of the role that was found to be allowed, None where nobody looked.
    """

    role: str
    oid: int
    new_owner: str | None
    terminate: bool
    new_owner_oid: int | None = None


@dataclass(frozen=True, slots=True)
class Blocker:
    """What stands in the way. `database` is empty for what the server shares."""

    database: str
    words: str


@dataclass(frozen=True, slots=True)
class ReassignResult:
    """What came of it; `problem` is what stood in the way."""

    problem: PgRoleError | None = None


@dataclass(frozen=True, slots=True)
class NewOwner:
    """A role that is there to be given what another one owns. `place` is whose it is, where an object has it:
    cluster, namespace, uid of the namespace.
    """

    oid: int
    place: tuple[str, str, str] | None = None


def blocked(role: str, blockers: Sequence[Blocker]) -> Waiting:
    """What to say on the object; `blockers` is not empty."""
    shown = [f'in database "{some.database}": {some.words}' if some.database else some.words for some in blockers]
    more = len(shown) - _SHOWN
    end = f"; and {more} more" if more > 0 else ""
    return Waiting(Reason.DROP_BLOCKED, f'role "{role}" cannot be dropped yet: {"; ".join(shown[:_SHOWN])}{end}')


def check_new_owner(task: ReassignOwned) -> None:
    """Raises Waiting for a name that nothing is handed to. Whether the object may name it is for policy."""
    if task.new_owner is None:
        return
    if task.new_owner.startswith("pg_"):
        raise blocked(
            task.role, [Blocker("", f'spec.reassignOwnedTo: "{task.new_owner}" is a role of PostgreSQL itself')]
        )
    if task.new_owner == task.role:
        raise blocked(task.role, [Blocker("", "spec.reassignOwnedTo must not be the role itself: name another role")])


class Action(Enum):
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
    record: PasswordRecord | None = None
    drift: tuple[str, ...] = ()
    reported: tuple[str, ...] = ()
    pending: tuple[PgRoleError, ...] = ()
    password_task: PasswordTask | None = None
    reassign: ReassignOwned | None = None
    releases: tuple[tuple[str, str], ...] = ()
    forget: bool = False
    action: Action = Action.NOTHING
    acted_on: Generations | None = None

    @property
    def released(self) -> tuple[str, ...]:
        """The names of roles that nobody claims any more when it is carried out."""
        return tuple(name for name, _ in self.releases) + ((self.role_name,) if self.forget else ())

    @property
    def writes(self) -> bool:
        """Whether there is anything to carry out."""
        return bool(self.changes or self.owner or self.acted_on or self.record or self.releases or self.forget)
