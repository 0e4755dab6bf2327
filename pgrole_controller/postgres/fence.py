"""Who leads, as the server knows it: a number that every transaction of a leader brings along.

A process that was paused while it led goes on, when it is woken, with what it had in mind, whoever leads by then. What
it sends then is refused by `pgrole.check_lead`, under the lock that whoever came after it had to take as well. Where
the schema cannot tell, its own clock does, right before it sends anything.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import anyio

from pgrole_controller.core.ddl import literal
from pgrole_controller.core.errors import Reason, Transient
from pgrole_controller.postgres import queries
from pgrole_controller.postgres.connection import Connection
from pgrole_controller.postgres.errors import NOT_LEADING, translate_errors
from pgrole_controller.postgres.rows import fetch_row

#: For one sign of life, in seconds.
BEAT_SECONDS = 5.0


class NotLeading(Transient):
    def __init__(self) -> None:
        super().__init__(Reason.PROGRESSING, "another process leads")


class Unconfirmed(Transient):
    """What was decided while this process held the Lease is not carried out when it does not know that any more."""

    def __init__(self) -> None:
        super().__init__(Reason.PROGRESSING, "the controller can no longer reach Kubernetes and decides again")


@dataclass(frozen=True, slots=True)
class Candidate:
    """What a session needs to know where several processes could lead. `holder` names this process's lead and no other.

    `stand_by` returns when this process leads; `confirm` when that was found to be so after it was called, and raises
    PgRoleError otherwise. `away` gives for how many seconds Kubernetes could not be reached, when this process may lead
    a database nevertheless that nobody else leads (0.0: it may not); `enforce` notes that it does.
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
    """This process's lead of an installation. `guarded` as in `Session`; `is_leading` by its own clock.

    `number` None: there is no schema pgrole that could tell. `is_enforcing`: the Lease cannot be asked for, and the
    database alone decides; only where there is a number.
    """

    installation: str
    number: int | None
    guarded: bool
    is_leading: Callable[[], bool]
    is_enforcing: Callable[[], bool] = lambda: False

    @property
    def enforcing(self) -> bool:
        """Whether the database alone says that this process leads."""
        return self.number is not None and not self.is_leading() and self.is_enforcing()

    @property
    def statement(self) -> str | None:
        """Fails with SQLSTATE PGR04 when another process leads."""
        if self.number is None:
            return None
        return f"SELECT pgrole.check_lead({literal(self.installation)}, {self.number})"

    def check_clock(self, *, enforcing: bool = False) -> None:
        """Raises NotLeading when this process knows by itself that it does not lead any more.

        `enforcing`: what is to be sent was decided for a process that enforces. Else Unconfirmed is raised in one.
        """
        if self.is_leading() or (enforcing and self.enforcing):
            return
        raise Unconfirmed if self.enforcing else NotLeading

    async def beat(self, connection: Connection) -> None:
        """Shows those who stand by that this process is alive. Raises NotLeading when another leads."""
        if self.number is None:
            return
        call = f"SELECT pgrole.beat({literal(self.installation)}, {self.number})"
        with translate_errors("beat"), anyio.fail_after(BEAT_SECONDS, shield=True):
            async with connection.transaction():
                if self.guarded:
                    await connection.execute(queries.inspect("guard"))
                alive = await connection.fetchval(call)
        if not alive:
            raise NotLeading

    async def check(self, connection: Connection) -> None:
        """Raises PgRoleError unless this process still leads. `connection` is with the home database."""
        self.check_clock()
        if self.statement is not None:
            with translate_errors("lead"):
                await connection.execute(_guard(self.statement, guarded=self.guarded))


async def take_lead(connection: Connection, candidate: Candidate, *, guarded: bool, fencing: bool = True) -> Fence:
    """From its return on no transaction of whoever led before is carried out, unless the schema is not `fencing`.

    The number is drawn first, and whether this process leads is asked after that: so whoever leads later has a later
    one. Raises PgRoleError when another process leads.
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
    """The lead of a database whose leader shows no life, for a process that cannot reach Kubernetes. None: not yet."""
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
    """Whether the server refused since another process leads."""
    return isinstance(error, NotLeading) or getattr(error.__cause__, "sqlstate", None) == NOT_LEADING


async def _call(connection: Connection, call: str, *, guarded: bool) -> int:
    """As one message, which is one transaction: a process that is paused leaves none open, with its locks."""
    statement = f"SELECT pg_catalog.set_config('pgrole.number', {call}::text, false)"
    with translate_errors("lead"):
        await connection.execute(_guard(statement, guarded=guarded))
        row = await fetch_row(connection, "", "SELECT pg_catalog.current_setting('pgrole.number')::bigint AS number")
        return row.get("number", int)


def _guard(statement: str, *, guarded: bool) -> str:
    return f"{queries.inspect('guard').strip()};\n{statement}" if guarded else statement
