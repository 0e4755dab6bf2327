"""What the controller does about one object: in one transaction, or before it, to empty a role before its drop."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from pgrole_controller.core.approval import Approval, RoleOffer
from pgrole_controller.core.claim import Claim, ClaimKey, Generations, Owner
from pgrole_controller.core.diff import Change
from pgrole_controller.core.errors import PgRoleError, Reason, Waiting
from pgrole_controller.core.password import PasswordRecord, PasswordTask

#: Conditions are read by people: blockers beyond this number are only counted.
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class ReassignOwned:
    """A background task: reassigns what a role owns and drops its privileges. The role must have this oid and this
    name.

    If `new_owner` is None, it only checks or ends the role's sessions. `terminate`: end them, otherwise they block the
    drop. `new_owner_oid` is the role that the policy check found; None if not checked.
    """

    role: str
    oid: int
    new_owner: str | None
    terminate: bool
    new_owner_oid: int | None = None


@dataclass(frozen=True, slots=True)
class Blocker:
    """What blocks a drop, in one database; `database` is empty for shared objects."""

    database: str
    words: str


@dataclass(frozen=True, slots=True)
class ReassignResult:
    """Result of emptying a role; `problem` is what blocked it. It says nothing about another task."""

    task: ReassignOwned
    problem: PgRoleError | None = None


@dataclass(frozen=True, slots=True)
class NewOwner:
    """An existing role that may receive what another one owns. `place` identifies the object that claims it, if any:
    cluster, namespace, uid of the namespace.
    """

    oid: int
    place: tuple[str, str, str] | None = None


def blocked(role: str, blockers: Sequence[Blocker]) -> Waiting:
    """The error to report on the object. `blockers` must not be empty."""
    shown = [f'in database "{some.database}": {some.words}' if some.database else some.words for some in blockers]
    more = len(shown) - _SHOWN
    end = f"; and {more} more" if more > 0 else ""
    return Waiting(Reason.DROP_BLOCKED, f'role "{role}" cannot be dropped yet: {"; ".join(shown[:_SHOWN])}{end}')


def check_new_owner(task: ReassignOwned) -> None:
    """Raises Waiting for a name that cannot be a new owner. Whether the object may name it is up to the policy."""
    if task.new_owner is None:
        return
    if task.new_owner.startswith("pg_"):
        raise blocked(
            task.role, [Blocker("", f'spec.reassignOwnedTo: "{task.new_owner}" is a role of PostgreSQL itself')]
        )
    if task.new_owner == task.role:
        raise blocked(task.role, [Blocker("", "spec.reassignOwnedTo must not be the role itself: name another role")])


class Action(Enum):
    """What applying the plan did, for the Event."""

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
    """What to do in one transaction.

    The transaction first verifies that the role under the name `seen_as` still has `oid` (None: does not exist), and
    that the claim is still `claim`. It writes `owner` and `applied` into the claim, unless `owner` is None, and records
    `acted_on` and `privileges` there, unless these are None. `drift` names the fields that someone else changed; they
    are corrected, or left as they are if there are no changes. `pending` lists what waits for missing dependencies.
    `offer` is the part of what is `reported` that can be approved; `unfit`: an annotation approves something else.
    `approval` is what these changes are made for; the claim records it as handled. `rotated`: the password that these
    changes set was generated in place of another. `refused`: the object is refused, and these changes only take away.
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
    releases: tuple[ClaimKey, ...] = ()
    forget: bool = False
    action: Action = Action.NOTHING
    acted_on: Generations | None = None
    privileges: str | None = None
    approval: Approval | None = None
    offer: RoleOffer | None = None
    unfit: bool = False
    rotated: bool = False
    refused: bool = False

    @property
    def released(self) -> tuple[str, ...]:
        """Names of the roles that no object claims any more once the plan is applied."""
        return tuple(one.role_name for one in self.releases) + ((self.role_name,) if self.forget else ())

    @property
    def writes(self) -> bool:
        """Tells whether there is anything to apply."""
        noted = self.acted_on or self.record or self.privileges is not None
        return bool(self.changes or self.owner or noted or self.releases or self.forget)
