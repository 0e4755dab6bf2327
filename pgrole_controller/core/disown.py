"""Emptying a role before it is dropped: what is asked for, and what to say where something stands in the way."""

from collections.abc import Sequence
from dataclasses import dataclass

from pgrole_controller.core.errors import PgRoleError, Reason, Waiting

#: A condition is read by people: what is blocked in more places is counted.
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Disown:
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
class Obstacle:
    """What stands in the way. `database` is empty for what the server shares."""

    database: str
    words: str


@dataclass(frozen=True, slots=True)
class Emptied:
    """What came of it; `problem` is what stood in the way."""

    problem: PgRoleError | None = None


@dataclass(frozen=True, slots=True)
class Heir:
    """A role that is there to be given what another one owns. `place` is whose it is, where an object has it:
    cluster, namespace, uid of the namespace.
    """

    oid: int
    place: tuple[str, str, str] | None = None


def blocked(role: str, obstacles: Sequence[Obstacle]) -> Waiting:
    """What to say on the object; `obstacles` is not empty."""
    shown = [f'in database "{some.database}": {some.words}' if some.database else some.words for some in obstacles]
    more = len(shown) - _SHOWN
    end = f"; and {more} more" if more > 0 else ""
    return Waiting(Reason.DROP_BLOCKED, f'role "{role}" cannot be dropped yet: {"; ".join(shown[:_SHOWN])}{end}')


def check_new_owner(task: Disown) -> None:
    """Raises Waiting for a name that nothing is handed to. Whether the object may name it is for policy."""
    if task.new_owner is None:
        return
    if task.new_owner.startswith("pg_"):
        raise blocked(
            task.role, [Obstacle("", f'spec.reassignOwnedTo: "{task.new_owner}" is a role of PostgreSQL itself')]
        )
    if task.new_owner == task.role:
        raise blocked(task.role, [Obstacle("", "spec.reassignOwnedTo must not be the role itself: name another role")])
