"""Who leads, as the server knows it: a number that every transaction of a leader brings along.

A process that was paused while it led goes on, when it is woken, with what it had in mind, whoever leads by then. What
it sends then is refused by `pgrole.check_lead`, under the lock that whoever came after it had to take as well.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from pgrole_controller.core.ddl import literal
from pgrole_controller.core.sqlstate import NOT_LEADING
from pgrole_controller.postgres import queries
from pgrole_controller.postgres.connection import Connection, speaking


@dataclass(frozen=True, slots=True)
class Candidacy:
    """What a session needs to know where several processes could lead. `holder` names this process's lead and no other.

    `stand_by` returns when this process leads; `confirm` when that was found to be so after it was called, and raises
    PgRoleError otherwise.
    """

    installation: str
    holder: str
    is_leading: Callable[[], bool]
    stand_by: Callable[[], Awaitable[None]]
    confirm: Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Fence:
    """This process's lead of an installation. `guarded` as in `Session`."""

    installation: str
    number: int
    guarded: bool

    @property
    def statement(self) -> str:
        """Fails with SQLSTATE PGR04 when another process leads."""
        return f"SELECT pgrole.check_lead({literal(self.installation)}, {self.number})"

    async def check(self, connection: Connection) -> None:
        """Raises PgRoleError unless this process still leads. `connection` is with the home database."""
        guard = f"{queries.inspect('guard').strip()};\n" if self.guarded else ""
        with speaking():
            await connection.execute(guard + self.statement)


async def take_lead(connection: Connection, candidacy: Candidacy, *, guarded: bool) -> Fence:
    """From its return on no transaction of whoever led before is carried out.

    The number is drawn first, and whether this process leads is asked after that: so whoever leads later has a later
    one. Raises PgRoleError when another process leads.
    """
    installation, holder = literal(candidacy.installation), literal(candidacy.holder)
    drawn: int = await _ask(connection, f"SELECT pgrole.draw_number({installation})", guarded=guarded)
    await candidacy.confirm()
    statement = f"SELECT pgrole.lead({installation}, {drawn}, {holder})"
    number: int = await _ask(connection, statement, guarded=guarded)
    return Fence(candidacy.installation, number, guarded)


def is_another_leading(error: BaseException) -> bool:
    """Whether the server refused since another process leads."""
    return getattr(error.__cause__, "sqlstate", None) == NOT_LEADING


async def _ask(connection: Connection, statement: str, *, guarded: bool) -> Any:  # noqa: ANN401 -- PostgreSQL's
    with speaking():
        async with connection.transaction():
            if guarded:
                await connection.execute(queries.inspect("guard"))
            return await connection.fetchval(statement)
