"""Keeps a round with very many objects or roles from delaying everything else of this process, and from filling memory.

60 roles in a database of 50,000 tables are 3 million comparisons, and at the first declaration as many changes.
Others run between its steps and beside a long read: see Interruptions.
"""

from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol, TypeVar

from pgrole_controller.controller.privileges.privilege_progress import PrivilegeProgress
from pgrole_controller.core.privileges.acl import AclChange, ObjectId
from pgrole_controller.core.privileges.observed_database import ObservedDatabase
from pgrole_controller.core.request import Key
from pgrole_controller.event_loop import Turns
from pgrole_controller.postgres.privileges.acl_repair import AclRepair
from pgrole_controller.postgres.privileges.database_session import DatabaseSession
from pgrole_controller.postgres.privileges.stored_state import StoredState

#: Size of changes from which on no further role is decided about before they are applied. One of size 1 takes about 180
#: bytes.
MOST_CHANGES = 300_000
#: Number of comparisons of a role with an object from which on a thread makes them: each takes up to 10 µs.
MANY_COMPARISONS = 2_000

_T = TypeVar("_T")


class Interruptions(Protocol):
    """What may run between the steps of a reconcile."""

    async def give_way(self) -> None:
        """Awaited between two steps."""
        ...

    async def run_beside(self, call: Callable[[], Awaitable[_T]], key: Key | None = None) -> _T:
        """Calls it, and lets others run until it returns. It must not use the session's connection. `key`: of the
        role whose memory it uses.
        """
        ...

    def note_applied(self, key: Key) -> None:
        """The role's declaration is applied, so that a later difference is drift."""
        ...

    def drift_count(self, key: Key) -> int:
        """Returns the role's number of drifts after its last interruption; 0: there was none."""
        ...


class Uninterrupted:
    """Lets only other tasks run."""

    def __init__(self) -> None:
        self._turns = Turns()

    async def give_way(self) -> None:
        await self._turns.share()

    async def run_beside(self, call: Callable[[], Awaitable[_T]], key: Key | None = None) -> _T:  # noqa: ARG002
        return await call()

    def note_applied(self, key: Key) -> None:
        pass

    def drift_count(self, key: Key) -> int:  # noqa: ARG002 -- of the protocol
        return 0


async def read_beside(
    interruptions: Interruptions,
    session: DatabaseSession,
    read: Callable[..., Awaitable[tuple[ObservedDatabase, StoredState]]],
) -> tuple[ObservedDatabase, StoredState]:
    """Awaits `read`: in a large database that accepts a second connection, on that one, while others run. Raises
    PgRoleError. `read`: `session.read` with all arguments but `connection`.
    """

    async def read_on_another() -> tuple[ObservedDatabase, StoredState] | None:
        async with session.reading.open() as another:
            return None if another is None else await read(connection=another)

    found = await interruptions.run_beside(read_on_another) if await session.is_large() else None
    return found or await read()


def group_changes(some: Iterable[PrivilegeProgress], observed: ObservedDatabase) -> list[AclRepair]:
    """Returns the changes of all these roles, by object."""
    acls = {one.object.id: one for one in observed.acls}
    by_object: dict[ObjectId, list[AclChange]] = {}
    for one in some:
        for change in one.changes:
            by_object.setdefault(change.object.id, []).append(change)
    return [AclRepair(acls[identity], tuple(changes)) for identity, changes in by_object.items()]
