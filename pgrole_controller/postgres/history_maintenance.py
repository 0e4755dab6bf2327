"""What is done once an hour in each database with schema pgrole: old drifts and events are deleted, and new drifts
copied to the home database. Where there is nothing to do, nothing is written. A database's session prunes its events
more often.

Guarantees: every transaction first verifies that schema pgrole can be trusted (sql/inspect/guard.sql), and in the home
database that this process still leads.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

from pgrole_controller import resources
from pgrole_controller.core.server_options import HistoryConfig
from pgrole_controller.postgres.connection import Connection
from pgrole_controller.postgres.fence import Fence
from pgrole_controller.postgres.privileges.ddl_events import PRUNED_AT_ONCE
from pgrole_controller.postgres.rows import fetch, first
from pgrole_controller.postgres.trusted_schema import trusting

#: How often one round copies drifts from a database, and how often it deletes drifts and events there.
_ROUNDS = 20
_PRUNING_ROUNDS = 100

#: Drifts that one round copies.
MOST_COPIED = 100

_SECONDS = 5.0


async def prune(connection: Connection, config: HistoryConfig, cluster: str, fence: Fence | None = None) -> None:
    """Deletes old drifts of this cluster and events, and what is stored about roles that no longer exist. `fence`: of
    the home database; None elsewhere. Raises PgRoleError.
    """
    for _ in range(_PRUNING_ROUNDS):
        async with _trusting(connection, fence):
            more = await prune_history(connection, config, cluster)
        if not more:
            break
    async with _trusting(connection, fence):
        await connection.execute("SELECT pgrole.prune_applied()")
    for _ in range(_PRUNING_ROUNDS):
        async with _trusting(connection, fence):
            pruned: int = await connection.fetchval("SELECT pgrole.prune_events()")
        if pruned < PRUNED_AT_ONCE:
            break


async def copy_all(database: Connection, home: Connection, fence: Fence | None) -> int:
    """Copies the drifts that the home database lacks; returns their number. Raises PgRoleError."""
    copied = 0
    for _ in range(_ROUNDS):
        # the home database commits first: what is marked as copied is there
        async with _trusting(database, None), _trusting(home, fence):
            found = await copy_history(database, home)
        copied += found
        if found == 0:
            break
    return copied


@asynccontextmanager
async def _trusting(connection: Connection, fence: Fence | None) -> AsyncIterator[None]:
    async with trusting(connection, guarded=True):
        if fence is not None:
            fence.check_clock()
            if fence.statement is not None:
                await connection.execute(fence.statement)
        yield


async def prune_history(connection: Connection, config: HistoryConfig, cluster: str) -> bool:
    """Empties partitions that are older than the retention, and deletes rows beyond the maximum, at most 10,000 of
    them; call it once an hour. What other clusters recorded stays. Returns whether more are left. Raises PgRoleError.
    """
    query = resources.text("sql", "attribution", "prune_history.sql")
    keep = timedelta(seconds=config.retention_seconds)
    await fetch(connection, query, keep, config.max_rows, cluster, label="prune_history", seconds=_SECONDS)
    question = resources.text("sql", "attribution", "more_history.sql")
    found = first(await fetch(connection, question, config.max_rows, cluster, label="prune_history", seconds=_SECONDS))
    return found.get("more", bool)


async def copy_history(database: Connection, home: Connection) -> int:
    """Copies drifts that the home database lacks, at most MOST_COPIED; returns their number. Raises PgRoleError.

    A copy that was committed at home and not marked in the database is repeated, and changes nothing then.
    """
    question = resources.text("sql", "attribution", "history_to_copy.sql")
    found = first(await fetch(database, question, MOST_COPIED, label="copy_history", seconds=_SECONDS))
    drifts = found.find_text("drifts")
    if drifts is None:
        return 0
    record = resources.text("sql", "attribution", "record_copies.sql")
    await fetch(home, record, drifts.encode(), label="copy_history", seconds=_SECONDS)
    mark = resources.text("sql", "attribution", "mark_copied.sql")
    await fetch(database, mark, drifts.encode(), label="copy_history", seconds=_SECONDS)
    return found.get("count", int)
