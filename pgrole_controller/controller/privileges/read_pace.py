"""When the worker of a database reads again: how often events may cause complete reads, and when roles are retried.

Some commands reach further than their events tell, e.g. ALTER TYPE, and whoever keeps one role from being as declared
makes the reads after events insufficient for it. Any role can do one or the other all the time, and a complete read
takes long in a large database. So each kind of them gets a tenth of the time, and waits its turn beyond that; so do
checks of the database, since any role can announce that it changed.
"""

import math
import random
from collections.abc import Collection
from dataclasses import dataclass, field, replace

import anyio

from pgrole_controller.core.backoff import Backoff
from pgrole_controller.core.errors import Reason
from pgrole_controller.core.privileges.privilege_result import PrivilegeResult
from pgrole_controller.core.request import Key
from pgrole_controller.postgres.privileges.ddl_events import PrivilegeRead, Scope

#: Pause after a failure to apply a role's privileges, in seconds.
RETRY = Backoff(1.0, 300.0)
#: The same while another session holds a lock, and while a setting of the database suspends changes, since nothing
#: announces the end.
LOCK_RETRY = Backoff(1.0, 15.0)
SUSPENDED_RETRY = Backoff(5.0, 60.0)

#: The pause after a read, as a multiple of the time it took, and at most this many seconds.
_REST_TIMES = 9.0
_LONGEST_REST = 10.0


@dataclass(slots=True)
class Rest:
    """The pause between two reads of one kind. `ends`: on the loop's clock. `times`: as a multiple of the last read."""

    ends: float = -math.inf
    times: float = field(default_factory=lambda: _REST_TIMES)

    def is_over(self, now: float) -> bool:
        return now >= self.ends

    def begin(self, began: float, ended: float) -> None:
        """Call it after a read, with the times at which that began and ended."""
        self.ends = ended + min(self.times * (ended - began), _LONGEST_REST)


@dataclass(slots=True)
class CompleteReads:
    """Complete reads for all roles. While they pause, what was written recently is read at once instead.

    `due_at`: when one that was put off may begin, on the loop's clock.
    """

    _rest: Rest = field(default_factory=Rest)
    _owed: PrivilegeRead = field(default_factory=PrivilegeRead)
    _counts: bool = False  # the last one is a complete read that an event caused

    @property
    def due_at(self) -> float:
        return self._rest.ends if self._owed.is_needed else math.inf

    def moderate(self, to_read: PrivilegeRead, now: float, *, forced: bool) -> PrivilegeRead:
        """Returns what to read now. `forced`: everything, in any case."""
        rested = forced or self._rest.is_over(now)
        if not rested and to_read.scope is Scope.FULL and to_read.xid:
            self._owed |= to_read
            to_read = replace(to_read, scope=Scope.RECENT)
        elif rested:
            to_read, self._owed = to_read | self._owed, PrivilegeRead()
        self._counts = to_read.scope is Scope.FULL and not forced
        return to_read

    def note(self, began: float, ended: float) -> None:
        """What `moderate` returned last was read."""
        if self._counts:
            self._rest.begin(began, ended)


@dataclass(slots=True)
class DatabaseChecks:
    """Checks whether the session may stay as it is, after the database changed its name, owner or ACL."""

    requested: bool = False
    _rest: Rest = field(default_factory=Rest)
    _taken: bool = False

    def request(self) -> None:
        self.requested = True

    @property
    def due_at(self) -> float:
        """When the requested one may begin, on the loop's clock."""
        return self._rest.ends if self.requested else math.inf

    def take(self, now: float) -> bool:
        """Whether to check now. Call `note` afterwards."""
        self._taken = now >= self.due_at
        if self._taken:
            self.requested = False
        return self._taken

    def note(self, began: float, ended: float) -> None:
        """What `take` returned last was done."""
        if self._taken:
            self._rest.begin(began, ended)


@dataclass(slots=True)
class FurtherReads:
    """Complete reads for roles for which the read after an event does not suffice, or that wait for another role."""

    _rest: Rest = field(default_factory=Rest)
    _put_off: frozenset[Key] = frozenset()

    def admit(self, keys: frozenset[Key], now: float) -> frozenset[Key]:
        """Returns these roles if a read may begin; otherwise none, and they wait for the next one."""
        if self._rest.is_over(now):
            return keys
        self._put_off |= keys
        return frozenset()

    def note(self, began: float, ended: float) -> None:
        """There was one."""
        self._rest.begin(began, ended)

    def begin(self, keys: frozenset[Key]) -> None:
        """Everything is about to be read for these."""
        self._put_off -= keys

    def put_off(self, keys: frozenset[Key]) -> None:
        """These wait for the next one."""
        self._put_off |= keys

    def keep_only(self, keys: frozenset[Key]) -> None:
        """Everything was read for the others, or they are no longer published."""
        self._put_off &= keys

    @property
    def is_asked(self) -> bool:
        """Whether one was put off."""
        return bool(self._put_off)

    @property
    def next(self) -> float:
        """When one that was put off is due, on the loop's clock."""
        return self._rest.ends if self.is_asked else math.inf

    def due(self, now: float) -> frozenset[Key]:
        return self._put_off if now >= self.next else frozenset()


class RoleRetries:
    """When to try again for roles whose last result has an error. Times are on the loop's clock."""

    def __init__(self) -> None:
        self._failed: dict[Key, tuple[int, float]] = {}  # failures in a row, and the time of the next attempt

    def note(self, result: PrivilegeResult) -> None:
        if result.error is None or result.error.reason is Reason.CONTESTED:
            self.end({result.key})
            return
        failures = self._failed.get(result.key, (0, 0.0))[0] + 1
        retries = {Reason.PROGRESSING: LOCK_RETRY, Reason.SUSPENDED: SUSPENDED_RETRY}
        delay = retries.get(result.error.reason, RETRY).delay(failures, random.random())  # noqa: S311 -- no secret
        self._failed[result.key] = failures, anyio.current_time() + delay

    def end(self, keys: Collection[Key]) -> None:
        """There is nothing to retry for these."""
        for key in keys:
            self._failed.pop(key, None)

    def due(self, now: float) -> set[Key]:
        return {key for key, (_, at) in self._failed.items() if at <= now}

    @property
    def next(self) -> float:
        return min((at for _, at in self._failed.values()), default=math.inf)
