"""Runs small rounds between the steps of a large one: a drift does not wait until everything is read and applied.

Guarantees: a role whose declaration has still to be applied takes no part, and neither do adoptees: the same events are
read again for them afterwards. What a small round changed is stale for the large one, which reads it again before it
changes it. The large round goes on between any two small ones.
"""

import math
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import TypeVar

import anyio

from pgrole_controller.controller.privileges.privilege_reconcile import PrivilegeReconcile, RoundContext
from pgrole_controller.controller.privileges.read_pace import Rest
from pgrole_controller.core.privileges.acl import ObjectId
from pgrole_controller.core.privileges.grantee import Grantee, find_outdated
from pgrole_controller.core.privileges.privilege_result import PrivilegeResult
from pgrole_controller.core.request import Key
from pgrole_controller.event_loop import Signal, Turns
from pgrole_controller.postgres.errors import unwrap_group
from pgrole_controller.postgres.privileges.ddl_events import PrivilegeRead, Scope


class Notice:
    """What the session announced and no one has read yet. `since`: from when on, on the loop's clock; inf: nothing."""

    def __init__(self) -> None:
        self.since = math.inf
        self._signal = Signal()

    def give(self) -> None:
        self.since = min(self.since, anyio.current_time())
        self._signal.pulse()

    def take(self) -> float:
        """Returns `since`. There is nothing to read until the next notice."""
        since, self.since = self.since, math.inf
        return since

    async def wait(self) -> None:
        """Waits until there is something to read, or for `wake`."""
        if self.since == math.inf:
            await self._signal.wait()

    def wake(self) -> None:
        self._signal.pulse()


_T = TypeVar("_T")

#: A round that takes less, in seconds, is not interrupted: what is noticed meanwhile is read together.
_SHORT_SECONDS = 0.01

#: The pause after a read of recent rows, as a multiple of the time it took. Recent rows may be many, in a large round
#: also those that it wrote itself: such reads get half of the time.
_REST_TIMES = 1.0

#: Reports results.
Report = Callable[[Sequence[PrivilegeResult]], None]
#: The same for many results, in turns with other tasks.
ReportMany = Callable[[Sequence[PrivilegeResult]], Awaitable[None]]


class SmallRounds:
    """The small rounds within one large round of these grantees. `busy`: those whose declaration is not applied yet.
    A role whose object or policy has changed since takes no part either.
    """

    def __init__(
        self,
        context: RoundContext,
        grantees: Sequence[Grantee],
        busy: Collection[Key],
        notice: Notice,
        report: ReportMany,
    ) -> None:
        self._context = context
        self._grantees = grantees
        self._busy = set(busy)
        self._notice = notice
        self._report = report
        self._rest = Rest(times=_REST_TIMES)  # between reads of recent rows
        self._put_off = PrivilegeRead()  # recent rows, until the rest ends
        self._put_off_since = math.inf
        self._turns = Turns()
        self._begins = anyio.current_time() + _SHORT_SECONDS
        self._looked_at = anyio.current_time()
        self._unread = PrivilegeRead()
        self._skipped: set[Key] = set()
        self._unclear: set[Key] = set()
        self._new: set[ObjectId] = set()
        self._counts: dict[Key, int] = {}

    def note_applied(self, key: Key) -> None:
        """The role's declaration is applied, so that a later difference is drift."""
        self._busy.discard(key)

    def drift_count(self, key: Key) -> int:
        """Returns the role's number of drifts after its last small round; 0: there was none."""
        return self._counts.get(key, 0)

    async def give_way(self) -> None:
        """Runs a small round if an event asks for one. Raises PgRoleError if the session fails."""
        await self._turns.share()
        now, session = anyio.current_time(), self._context.session
        unannounced = self._notice.since == math.inf
        due = self._put_off.is_needed and self._rest.is_over(now)
        if now < self._begins or not (due or not unannounced or now >= self._looked_at + session.unannounced_seconds):
            return
        since = min(self._notice.take(), now)
        to_read = await session.read_events(gated=unannounced)
        self._looked_at = anyio.current_time()
        if to_read.defaults or to_read.scope not in (Scope.NAMED, Scope.RECENT):
            self._unread |= to_read
            to_read = PrivilegeRead()
        if due:
            to_read, since = to_read | self._put_off, min(since, self._put_off_since)
            self._put_off, self._put_off_since = PrivilegeRead(), math.inf
        published = self._context.grantees()
        self._busy |= {one.key for one in find_outdated(self._grantees, published)}
        some = [one for one in self._grantees if one.key not in self._busy]
        if not some:
            self._unread |= to_read
        elif to_read.scope is Scope.RECENT and not self._rest.is_over(now):
            self._put_off |= to_read
            self._put_off_since = min(self._put_off_since, since)
        elif to_read.is_needed:
            if self._busy or to_read.dropped or any(one.adoptee is not None for one in published.values()):
                self._unread |= to_read
                self._skipped |= self._busy
            await self._run(some, to_read, since)

    async def run_beside(self, call: Callable[[], Awaitable[_T]], key: Key | None = None) -> _T:
        """Runs small rounds until `call` returns. Raises its errors, and those of `give_way`."""
        answer: list[_T] = []
        own = {key} - self._busy if key is not None else set[Key]()
        self._busy |= own
        try:
            with unwrap_group():
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._call, call, answer)
                    while not answer:
                        with anyio.move_on_after(self._longest_wait):
                            await self._notice.wait()
                        await anyio.sleep(max(self._begins - anyio.current_time(), 0.0))
                        await self.give_way()
        finally:
            self._busy -= own
        return answer[0]

    @property
    def _longest_wait(self) -> float:
        """Seconds until the next small round, if nothing is announced."""
        rest = self._rest.ends - anyio.current_time() if self._put_off.is_needed else math.inf
        return max(min(self._context.session.unannounced_seconds, rest), 0.0)

    async def _call(self, call: Callable[[], Awaitable[_T]], answer: list[_T]) -> None:
        answer.append(await call())
        self._notice.wake()

    async def _run(self, some: Sequence[Grantee], to_read: PrivilegeRead, since: float) -> None:
        began, memory = anyio.current_time(), self._context.memory
        # Of the others, the same is read again.
        reconcile = PrivilegeReconcile(self._context, everyone=len(some), since=since)
        reconciled = await reconcile.reconcile_roles(some, to_read)
        read = reconciled.read or frozenset()
        undecided = {one.key for one in reconciled.undecided}
        if undecided:
            self._unread |= to_read
            self._skipped |= undecided
        self._unclear |= reconciled.unclear | (memory.needing_complete_read() & {one.key for one in some})
        new = memory.select_new(read)
        memory.end_round(read)
        memory.add_missed(self._busy | undecided, new)
        self._new |= new
        self._counts |= {result.key: result.drift_count for result in reconciled.results}
        if to_read.scope is Scope.RECENT:
            self._rest.begin(began, anyio.current_time())
        await self._report(reconciled.results)

    def finish(self) -> None:
        """At the end of the large round: has the next one do what the small ones left, and what searches found."""
        memory = self._context.memory
        memory.end_reading()
        memory.add_missed(self._skipped, self._new)
        if self._unclear:
            memory.further.put_off(frozenset(self._unclear))
        self._context.session.read_again(self._unread | self._put_off)
