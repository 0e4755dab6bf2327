"""postgres/apply: which roles are changed outside the batch since another session locked them."""

import anyio
import asyncpg

from pgrole_controller.core.errors import Reason, Transient
from pgrole_controller.postgres.apply import APART_SECONDS, LockedRoles
from tests.timelapse import in_timelapse


@in_timelapse
async def test_a_role_is_apart_for_a_while_and_nothing_is_remembered_afterwards() -> None:
    error = Transient(Reason.DATABASE_ERROR, "a lock was not available in time")
    error.__cause__ = asyncpg.LockNotAvailableError("canceling statement due to lock timeout")
    locked = LockedRoles()
    locked.note("dropped", error)
    assert locked.holds("dropped")
    await anyio.sleep(APART_SECONDS + 1.0)
    assert not locked.holds("dropped")
    locked.note("another", error)
    assert set(locked._until) == {"another"}
