"""Serves the databases of one server that have no connection of their own, one after the other.

Guarantees: one connection at a time, and no turn in a database where another worker may still be at work; a database
that hangs or refuses takes a bounded time from the others, and is tried again with back-off.
"""

import math
import random
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import NoReturn

import anyio

from pgrole_controller.controller.privileges.database_worker import DatabaseWorker, turn_mode
from pgrole_controller.controller.server_config import ServerConfig
from pgrole_controller.core.backoff import Backoff
from pgrole_controller.core.privileges.database_places import (
    DatabaseTurn,
    PolledDatabase,
    TurnKind,
    TurnPace,
    choose_turn,
)
from pgrole_controller.core.server_options import DatabaseMode
from pgrole_controller.event_loop import Signal
from pgrole_controller.postgres.privileges.searches import pause_after

#: Maximum pause before a turn that was asked for, in seconds.
LONGEST_WAIT = 1.0
#: While a database waits for its first turn, maximum pause as a multiple of the time that the last turn took.
_FIRST_TIMES = 4.0
#: Pause of one database after a turn that failed, in seconds, and at least this multiple of the time it took.
_RETRY = Backoff(1.0, 60.0)
_REST_TIMES = 4.0


@dataclass(slots=True)
class _Polled:
    """`busy`: whoever works in the database holds it. `failed`, `due`, `served_at`, `takes`: as in PolledDatabase.
    `retry`: was asked for since its turn began. `rests_until`: no turn begins earlier, whatever is asked for.
    """

    worker: DatabaseWorker
    busy: anyio.Lock
    served_at: float = -math.inf
    due: float = -math.inf
    failed: bool = False
    retry: bool = False
    rests_until: float = -math.inf
    takes: float = 0.0
    scope: anyio.CancelScope | None = None  # of its turn


class DatabaseRotation:
    """`after_turn` is called with the database's name."""

    def __init__(self, config: Callable[[], ServerConfig], after_turn: Callable[[str], None]) -> None:
        self._config = config
        self._after_turn = after_turn
        self._polled: dict[str, _Polled] = {}
        self._changed = Signal()
        self._asked_from = self._retries_from = self._routine_from = -math.inf
        self._last: dict[TurnKind, float] = {}

    def add(self, worker: DatabaseWorker, busy: anyio.Lock) -> None:
        """Does nothing if the database is served already."""
        if worker.database not in self._polled:
            self._polled[worker.database] = _Polled(worker, busy)
            self._changed.set()

    def remove(self, database: str) -> None:
        """Its turn ends, if it has one. Does nothing if the database is not served."""
        polled = self._polled.pop(database, None)
        if polled is not None and polled.scope is not None:
            polled.scope.cancel()

    def wake(self, databases: Collection[str]) -> None:
        """Something may be asked for in these, or another worker of theirs ended."""
        if not self._polled.keys().isdisjoint(databases):
            self._changed.set()

    def retry(self, database: str) -> None:
        """The cause of a failed turn may be gone, as any role can announce: the database still rests for as long as the
        others need. Does nothing if it is not served.
        """
        if database in self._polled:
            self._polled[database].failed, self._polled[database].retry = False, True
            self._changed.set()

    async def run(self) -> NoReturn:
        """Until cancelled."""
        while True:
            await anyio.sleep(max(self._asked_from - anyio.current_time(), 0.0))
            self._changed.clear()
            turn, now = self._choose(), anyio.current_time()
            if turn is not None and turn.at <= now:
                await self._serve(turn)
                continue
            with anyio.move_on_after(math.inf if turn is None else turn.at - now):
                await self._changed.wait()

    def _choose(self) -> DatabaseTurn | None:
        databases = [
            PolledDatabase(
                name, one.served_at, one.due, max(one.worker.asked_at, one.rests_until), one.failed, one.takes
            )
            for name, one in self._polled.items()
            if not one.busy.locked()
        ]
        pace = TurnPace(self._asked_from, self._retries_from, self._routine_from, self._last)
        return choose_turn(databases, pace, anyio.current_time())

    async def _serve(self, turn: DatabaseTurn) -> None:
        polled = self._polled[turn.name]
        began, polled.retry = anyio.current_time(), False
        with anyio.CancelScope() as polled.scope:
            async with polled.busy:
                await polled.worker.serve_turn()
        self._note(polled, turn.kind, anyio.current_time() - began)
        self._after_turn(turn.name)

    def _note(self, polled: _Polled, kind: TurnKind, took: float) -> None:
        now, config = anyio.current_time(), self._config()
        self._last[kind] = polled.served_at = now
        self._asked_from = now + min(config.interval, LONGEST_WAIT, self._first_pause(took))
        shortest = pause_after(took, min(config.interval, LONGEST_WAIT))
        pause = shortest if kind is TurnKind.RETRY else self._routine_pause(took, shortest)
        if kind is not TurnKind.ASKED:
            self._retries_from = now + shortest
            self._routine_from = max(self._routine_from, now + pause)
        self._retries_from = max(self._retries_from, self._asked_from)
        self._routine_from = max(self._routine_from, self._asked_from)
        failures = polled.worker.failures
        polled.takes = took + pause if failures == 0 else 0.0
        polled.failed = failures > 0 and not polled.retry
        polled.rests_until = now + _REST_TIMES * took if failures > 0 else -math.inf
        if failures > 0:
            delay = _RETRY.delay(failures, random.random())  # noqa: S311 -- no secret
            polled.due = max(now + delay, polled.rests_until)
        else:
            polled.due = now + config.resync_seconds if self._is_resync else now

    @property
    def _is_resync(self) -> bool:
        return turn_mode(self._config()) is DatabaseMode.RESYNC

    def _routine_pause(self, took: float, shortest: float) -> float:
        """Under Resync, all have their turns within the period, whatever the interval of Poll is."""
        config = self._config()
        if not self._is_resync:
            return pause_after(took, config.interval)
        share = config.resync_seconds / max(len(self._polled), 1)
        return min(shortest, max(share - took, 0.0))

    def _first_pause(self, took: float) -> float:
        waiting = any(one.served_at == -math.inf for one in self._polled.values())
        return _FIRST_TIMES * took if waiting else math.inf
