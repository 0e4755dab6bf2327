"""Changes many objects, or many default privileges, in few transactions; one that fails does not delay the others.

What others have locked is set aside and comes last. A transaction that fails nevertheless is divided into halves, until
what fails is alone. That takes time, of which one call has little: what failed in an earlier call comes after all else.
Changes of a role whose object or policy has changed are left out from the next transaction on.
"""

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeAlias, TypeVar

import anyio
import anyio.lowlevel

from pgrole_controller.core.errors import PgRoleError, Reason
from pgrole_controller.core.privileges.acl import DefaultAclChange
from pgrole_controller.postgres.connection import Connection
from pgrole_controller.postgres.errors import FOREIGN_EVENT_TRIGGER, LOCK_NOT_FREE, is_without_language, sqlstate_of
from pgrole_controller.postgres.fence import Unconfirmed, is_another_leading
from pgrole_controller.postgres.privileges.acl_locks import (
    PATIENCE_SECONDS,
    PROBE_SECONDS,
    LockWaits,
    find_busy,
    find_locked_table,
    tell_locked_table,
)
from pgrole_controller.postgres.privileges.acl_refusal import tell_locked
from pgrole_controller.postgres.privileges.acl_repair import AclRepair, key_of
from pgrole_controller.postgres.privileges.failed_changes import failed_changes_of

log = logging.getLogger(__name__)

#: Maximum number of objects of one transaction, which then takes about 12 ms.
OBJECTS = 100
#: Maximum size of the changes of one transaction, unless one object has more: rendering that many takes about 15 ms.
#: PostgreSQL does not interrupt a REVOKE on columns of very many tables, however long it takes.
CHANGES = 5000
#: Time limit in seconds for dividing transactions that fail; what is left is postponed.
DIVIDING_SECONDS = 3.0

#: Awaited before each transaction: what must not wait for all of them runs there, on the same connection. Returns the
#: oids of the roles whose object or policy has changed meanwhile.
GiveWay: TypeAlias = Callable[[], Awaitable[Collection[int]]]


async def go_on() -> Collection[int]:
    await anyio.lowlevel.checkpoint()
    return ()


T = TypeVar("T", bound=AclRepair | DefaultAclChange)


@dataclass(slots=True)
class Deadlines:
    """When transactions that fail are no longer divided: `ends`, and `locks_end` if they fail because of locks.
    `locked`: why no transaction can succeed, if others have locked a table of schema pgrole.
    """

    ends: float = float("inf")
    locks_end: float = float("inf")
    locked: PgRoleError | None = None

    def begin(self) -> None:
        self.ends = min(self.ends, anyio.current_time() + DIVIDING_SECONDS)

    def note_lock(self) -> None:
        self.locks_end = min(self.locks_end, anyio.current_time() + PATIENCE_SECONDS)


class Steps(Protocol[T]):
    """How to change one kind of things. `last`: nothing follows. `seconds`: the longest wait for a lock."""

    async def change_all(self, some: Sequence[T], *, last: bool, seconds: float) -> None:
        """One transaction. Raises PgRoleError; nothing is changed then."""
        ...

    async def change_one(self, one: T, *, last: bool, seconds: float) -> PgRoleError | None:
        """Several attempts, each in its own way. Returns the error to report. Raises it as it is if a lock is not
        free, and errors that concern everything.
        """
        ...

    def report(self, one: T, error: PgRoleError) -> None: ...

    def leave_out(self, one: T, grantees: Collection[int]) -> T | None:
        """Drops the changes for these roles, and notes that. Returns the rest; None if nothing is left."""
        ...


class Batches(Generic[T]):
    """The changes of one kind in one call of `apply_acls`."""

    def __init__(
        self, connection: Connection, steps: Steps[T], waits: LockWaits, deadlines: Deadlines, give_way: GiveWay
    ) -> None:
        self._connection = connection
        self._steps = steps
        self._waits = waits
        self._failures = failed_changes_of(connection)
        self._deadlines = deadlines
        self._give_way = give_way
        self._busy: list[T] = []
        self._doubtful: list[T] = []  # failed lately, although no lock was found

    async def change(self, some: Sequence[T], *, last: bool) -> None:
        """`last`: nothing follows, except for what others have locked, which is left to `change_busy`."""
        if self._waits.met:
            some = await self._set_aside(some, doubt=True)
        while some := await self._begin(some):
            if self._deadlines.locked is not None:
                self._postpone(some)
                return
            try:
                await self._change_all(some, last=last and not self._left, seconds=self._waits.seconds)
            except PgRoleError as error:
                if sqlstate_of(error) == LOCK_NOT_FREE and self._deadlines.locked is None:
                    free = await self._set_aside(some)
                    if len(free) < len(some):
                        some = free
                        continue
                await self._divide(some, error, last=last and not self._left)
            return

    async def change_busy(self, *, last: bool) -> None:
        """Changes what others have or had locked, after everything else."""
        starts = range(0, len(self._doubtful), OBJECTS)
        pieces = split_large(self._doubtful[start : start + OBJECTS] for start in starts)
        for place, some in enumerate(pieces):
            await self._change_doubtful(some, last=last and not self._busy and place == len(pieces) - 1)
        in_turn = sorted(self._busy, key=lambda one: self._waits.failed_at(key_of(one)))
        for place, one in enumerate(in_turn):
            if self._deadlines.locked is None and self._waits.may_wait_for(key_of(one)):
                await self._try_one(one, last=last and place == len(in_turn) - 1, seconds=self._waits.seconds)
            else:
                self._report_locked(one)

    @property
    def _left(self) -> bool:
        return bool(self._busy or self._doubtful)

    async def _set_aside(self, some: Sequence[T], *, doubt: bool = False) -> Sequence[T]:
        """Returns what no one has locked. `doubt`: without what failed lately, either."""
        busy = await find_busy(self._connection, some)
        free: list[T] = []
        for one in some:
            key = key_of(one)
            if key in busy:
                self._busy.append(one)
            elif doubt and self._waits.failed_at(key) > float("-inf"):
                self._doubtful.append(one)
            else:
                free.append(one)
        return free

    async def _begin(self, some: Sequence[T]) -> Sequence[T]:
        """Gives way, and returns the changes that are still wanted."""
        outdated = await self._give_way()
        if not outdated:
            return some
        left = (self._steps.leave_out(one, outdated) for one in some)
        return [one for one in left if one is not None]

    async def _change_all(self, some: Sequence[T], *, last: bool, seconds: float) -> None:
        if not some:
            return
        try:
            await self._steps.change_all(some, last=last, seconds=seconds)
        except PgRoleError as error:
            await self._note(error, some)
            raise
        self._waits.forget(map(key_of, some))
        self._failures.forget(some)

    async def _note(self, error: PgRoleError, some: Sequence[T]) -> None:
        raise_if_common(self._connection, error)
        if table := find_locked_table(error):
            self._deadlines.locked = await tell_locked_table(self._connection, table)
        elif sqlstate_of(error) == LOCK_NOT_FREE:
            self._waits.note(map(key_of, some) if len(some) == 1 else ())
            self._deadlines.note_lock()

    async def _change_doubtful(self, some: Sequence[T], *, last: bool) -> None:
        some = await self._begin(some)
        if self._deadlines.locked is not None:
            self._postpone(some)
            return
        try:
            await self._change_all(some, last=last, seconds=PROBE_SECONDS)
        except PgRoleError as error:
            if sqlstate_of(error) == LOCK_NOT_FREE and self._waits.rests:
                for one in some:
                    self._report_locked(one)
            else:
                await self._divide(some, error, last=last)

    async def _divide(self, some: Sequence[T], error: PgRoleError, *, last: bool) -> None:
        """Changes the halves of what failed, and their halves."""
        log.debug("dividing a transaction that failed", extra={"changes": len(some), "error": error.message})
        self._deadlines.begin()
        pieces = _halves(some)
        while pieces:
            piece = pieces.pop()
            if self._deadlines.locked is not None or anyio.current_time() >= self._deadlines.ends:
                self._postpone(piece)
            elif len(piece) == 1:
                await self._try_one(piece[0], last=last and not pieces, seconds=PROBE_SECONDS)
            else:
                pieces += await self._try_piece(piece, last=last and not pieces)

    async def _try_piece(self, piece: Sequence[T], *, last: bool) -> list[Sequence[T]]:
        """Returns the pieces to try instead."""
        piece = await self._begin(piece)
        try:
            await self._change_all(piece, last=last, seconds=PROBE_SECONDS)
        except PgRoleError as error:
            if sqlstate_of(error) != LOCK_NOT_FREE or anyio.current_time() < self._deadlines.locks_end:
                return _halves(piece)
            self._postpone(piece)
        return []

    async def _try_one(self, one: T, *, last: bool, seconds: float) -> None:
        if not (left := await self._begin([one])):
            return
        (one,) = left
        try:
            error = await self._steps.change_one(one, last=last, seconds=seconds)
        except PgRoleError as raised:
            await self._note(raised, [one])
            self._report_locked(one)
            return
        if error is not None:
            self._failures.note(one, error)
            self._steps.report(one, error)
        else:
            self._waits.forget([key_of(one)])
            self._failures.forget([one])

    def _postpone(self, some: Iterable[T]) -> None:
        for one in some:
            self._steps.report(one, self._deadlines.locked or self._failures.postpone(one))

    def _report_locked(self, one: T) -> None:
        self._steps.report(one, self._deadlines.locked or tell_locked(one))


def raise_if_common(connection: Connection, error: PgRoleError) -> None:
    """Raises an error that concerns everything."""
    common = isinstance(error, Unconfirmed) or error.reason is Reason.SUSPENDED or is_another_leading(error)
    common = common or sqlstate_of(error) == FOREIGN_EVENT_TRIGGER or is_without_language(error)
    if common or connection.is_closed():
        raise error


def split_large(parts: Iterable[Sequence[T]]) -> list[Sequence[T]]:
    """Returns the same parts, but those whose changes are larger than CHANGES in several."""
    pieces: list[Sequence[T]] = []
    for part in parts:
        start, count = 0, 0
        for place, one in enumerate(part):
            number = sum(change.size for change in one.changes) if isinstance(one, AclRepair) else 1
            if count + number > CHANGES and place > start:
                pieces.append(part[start:place])
                start, count = place, 0
            count += number
        pieces.append(part[start:])
    return pieces


def _halves(some: Sequence[T]) -> list[Sequence[T]]:
    """The last one is the first half."""
    middle = (len(some) + 1) // 2
    return [half for half in (some[middle:], some[:middle]) if half]
