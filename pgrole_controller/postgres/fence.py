"""The fencing token of the leader: a number that every transaction of the leader verifies on the server.

A process that is paused while it leads continues its work when it resumes, even if another process leads by then.
`pgrole.check_lead` refuses its transactions, under the lock that the new leader also had to take. Without schema
pgrole, the process checks its own clock right before it sends a transaction.

The session of a process that does not lead keeps its connections open until it does.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn

import anyio

from pgrole_controller.core.ddl import literal
from pgrole_controller.core.errors import Reason, Transient
from pgrole_controller.postgres import queries
from pgrole_controller.postgres.capabilities import Capabilities
from pgrole_controller.postgres.connection import Connection, await_end
from pgrole_controller.postgres.detection import Detector
from pgrole_controller.postgres.errors import NOT_LEADING, sqlstate_of, translate_errors, unwrap_group
from pgrole_controller.postgres.rows import fetch_row
from pgrole_controller.postgres.schema import is_current

#: Time limit of one heartbeat, in seconds.
BEAT_SECONDS = 5.0

_LOCAL = "SET LOCAL synchronous_commit = local"

log = logging.getLogger(__name__)

#: Seconds between two keepalive queries on each connection, and the deadline of each.
KEEPALIVE_SECONDS = 5.0
_KEEPALIVE_DEADLINE = 3.0

#: Seconds between two checks whether the leader is alive, by a process that cannot reach Kubernetes.
AWAY_SECONDS = 1.0


class NotLeading(Transient):
    def __init__(self) -> None:
        super().__init__(Reason.PROGRESSING, "another process leads")


class Unconfirmed(Transient):
    """The plan was decided while this process held the Lease, and now it can no longer verify that it does."""

    def __init__(self) -> None:
        super().__init__(Reason.PROGRESSING, "the controller can no longer reach Kubernetes and decides again")


@dataclass(frozen=True, slots=True)
class Candidate:
    """This process as a candidate to lead an installation. `holder` is unique to this process's term.

    `stand_by` returns when this process leads. `confirm` returns if this process leads after the call, and raises
    PgRoleError otherwise. `away`: for how many seconds Kubernetes has been unreachable, if this process may lead a
    database that no other process leads (0.0: it may not); `enforce` is called when it does.
    """

    installation: str
    holder: str
    is_leading: Callable[[], bool]
    stand_by: Callable[[], Awaitable[None]]
    confirm: Callable[[], Awaitable[None]]
    away: Callable[[], float] = lambda: 0.0
    enforce: Callable[[], None] = lambda: None


@dataclass(frozen=True, slots=True)
class Fence:
    """This process's leadership of an installation. `guarded` as in `DatabaseClaims`; `is_leading` by its own clock.

    `number` None: no schema pgrole, or an older one. `is_enforcing`: the Lease cannot be read, so the database alone
    decides who leads; only with a number.
    """

    installation: str
    number: int | None
    guarded: bool
    is_leading: Callable[[], bool]
    is_enforcing: Callable[[], bool] = lambda: False

    @property
    def enforcing(self) -> bool:
        """Whether this process leads only according to the database."""
        return self.number is not None and not self.is_leading() and self.is_enforcing()

    @property
    def acting(self) -> bool:
        """Whether this process may change something: it leads, or is enforcing."""
        return self.is_leading() or self.enforcing

    @property
    def statement(self) -> str | None:
        """Fails with SQLSTATE PGR04 if another process leads. None without a number."""
        if self.number is None:
            return None
        return f"SELECT pgrole.check_lead({literal(self.installation)}, {self.number})"

    def check_clock(self, *, enforcing: bool = False) -> None:
        """Raises NotLeading if this process knows by its own clock that it no longer leads.

        `enforcing`: the plans were decided while enforcing; otherwise a process that is enforcing raises Unconfirmed.
        """
        if self.is_leading() or (enforcing and self.enforcing):
            return
        raise Unconfirmed if self.enforcing else NotLeading

    async def beat(self, connection: Connection) -> None:
        """Sends a heartbeat for the processes on standby. Raises NotLeading if another process leads."""
        if self.number is None:
            return
        call = f"SELECT pgrole.beat({literal(self.installation)}, {self.number})"
        with translate_errors("beat"), anyio.fail_after(BEAT_SECONDS, shield=True):
            async with connection.transaction():
                if self.guarded:
                    await connection.execute(queries.guard())
                alive = await connection.fetchval(call)
        if not alive:
            raise NotLeading

    async def check(self, connection: Connection) -> None:
        """Raises PgRoleError unless this process still leads. `connection` is to the home database."""
        self.check_clock()
        if self.statement is not None:
            with translate_errors("lead"):
                await connection.execute(_guard(self.statement, guarded=self.guarded))


async def take_lead(connection: Connection, candidate: Candidate, *, guarded: bool, fencing: bool = True) -> Fence:
    """Becomes leader. After it returns, PostgreSQL refuses all transactions of previous leaders (only if `fencing`).

    It draws the number first and then confirms that this process holds the Lease, so a later holder has a higher
    number. Raises PgRoleError if another process leads.
    """
    installation, holder = literal(candidate.installation), literal(candidate.holder)
    number = None
    if fencing:
        number = await _call(connection, f"pgrole.draw_number({installation})", guarded=guarded)
    await candidate.confirm()
    if fencing:
        number = await _call(connection, f"pgrole.lead({installation}, {number}, {holder})", guarded=guarded)
    return _fence(candidate, number, guarded)


async def lead_while_away(connection: Connection, candidate: Candidate, *, guarded: bool) -> Fence | None:
    """Becomes leader of a database whose leader sends no heartbeat, while Kubernetes is unreachable. None: not yet.

    Raises PgRoleError.
    """
    away = candidate.away()
    if away <= 0.0:
        return None
    installation, holder = literal(candidate.installation), literal(candidate.holder)
    call = f"coalesce(pgrole.lead_while_away({installation}, {holder}, interval '{away:.3f} s'), 0)"
    number = await _call(connection, call, guarded=guarded)
    if number == 0:
        return None
    candidate.enforce()
    return _fence(candidate, number, guarded)


def _fence(candidate: Candidate, number: int | None, guarded: bool) -> Fence:
    return Fence(candidate.installation, number, guarded, candidate.is_leading, lambda: candidate.away() > 0.0)


def is_another_leading(error: BaseException) -> bool:
    """Whether the server refused because another process leads."""
    return isinstance(error, NotLeading) or sqlstate_of(error) == NOT_LEADING


async def _call(connection: Connection, call: str, *, guarded: bool) -> int:
    """Calls a function in one message, which is one transaction: a paused process leaves no transaction open.

    It does not wait for a standby of this server: after a failover, every process has to become leader again.
    """
    statement = f"SELECT pg_catalog.set_config('pgrole.number', {call}::text, false)"
    with translate_errors("lead"):
        await connection.execute(f"{_LOCAL};\n{_guard(statement, guarded=guarded)}")
        row = await fetch_row(connection, "SELECT pg_catalog.current_setting('pgrole.number')::bigint AS number")
        return row.get("number", int)


def _guard(statement: str, *, guarded: bool) -> str:
    return f"{queries.guard()};\n{statement}" if guarded else statement


async def stand_by(
    candidate: Candidate, writer: Connection, found: Capabilities | None, detector: Detector | None
) -> Fence | None:
    """Waits until this process leads or, without a `detector`, until the leader has installed schema pgrole.

    Returns the fence if this process leads the database without the Lease. None: it holds the Lease, or the schema was
    installed. Raises PgRoleError if a connection fails.
    """
    waiting = _Standby(candidate, (writer, *(detector.connections if detector else ())), found if detector else None)
    with unwrap_group():
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(await_end, waiting.connections)
            tasks.start_soon(waiting.keep_alive, tasks.cancel_scope)
            await candidate.stand_by()
            tasks.cancel_scope.cancel()
    return waiting.fence


@dataclass(slots=True)
class _Standby:
    """Waits to lead with all connections open. `found` None: schema pgrole does not exist yet."""

    candidate: Candidate
    connections: Sequence[Connection]
    found: Capabilities | None
    fence: Fence | None = None

    async def keep_alive(self, everything: anyio.CancelScope) -> NoReturn:
        """Queries every connection regularly, so that a lost one is noticed and none is closed as idle.

        Cancels `everything` when this process leads or schema pgrole exists. Queries are not interrupted: the session
        continues to use the first connection.
        """
        last = anyio.current_time()
        while True:
            if self.found is not None and self.candidate.away() > 0.0:
                with translate_errors(), anyio.fail_after(KEEPALIVE_SECONDS, shield=True):
                    self.fence = await lead_while_away(self.connections[0], self.candidate, guarded=self.found.guarded)
            elif anyio.current_time() - last >= KEEPALIVE_SECONDS:
                last = anyio.current_time()
                await self._query(everything)
            if self.fence is not None:
                log.warning("enforcing the state last applied: Kubernetes is or was unreachable")
                everything.cancel()
            await anyio.sleep(AWAY_SECONDS)

    async def _query(self, everything: anyio.CancelScope) -> None:
        with translate_errors(), anyio.fail_after(KEEPALIVE_SECONDS, shield=True):
            for connection in self.connections:
                await connection.fetchval("SELECT 1", timeout=_KEEPALIVE_DEADLINE)
            if self.found is None and await is_current(self.connections[0]):
                everything.cancel()
