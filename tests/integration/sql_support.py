"""Shared by the tests of sql/install and of queries: a listener for notifications, the expected content
of role_state, and the number of pages that a query reads.
"""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import asyncpg

from pgrole_controller.core.errors import PgRoleError
from pgrole_controller.core.state import Observed
from pgrole_controller.postgres.connection import Connection
from pgrole_controller.postgres.schema import SchemaState, install

CHANNEL = "pgrole"
DEADLINE = 60.0

#: Rows of role_state that a full pass would write differently, in both directions.
MISMATCHES = """
WITH there AS (
    SELECT d.oid, d.name, d.digest FROM pgrole.digest(ARRAY(SELECT oid FROM pg_catalog.pg_roles)) AS d
)
SELECT s.name AS kept, t.name AS there
FROM pgrole.role_state AS s FULL JOIN there AS t USING (oid)
WHERE (s.name, s.digest) IS DISTINCT FROM (t.name, t.digest)
"""

_EMPTY = """
DO $$
DECLARE
    filled regclass;
BEGIN
    FOR filled IN
        SELECT c.oid FROM pg_class AS c
        WHERE c.relnamespace = 'pgrole'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
          AND c.relname <> 'installation'
    LOOP
        EXECUTE format('DELETE FROM %s', filled);
    END LOOP;
END
$$
"""


class NotificationListener:
    """Collects notifications on one connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._heard: list[dict[str, Any]] = []
        self._changed = anyio.Event()
        self._marks = 0

    def receive(self, _connection: object, _pid: int, _channel: str, payload: object) -> None:
        self._heard.append(json.loads(str(payload)))
        self._changed.set()
        self._changed = anyio.Event()

    async def first(self, **desired: object) -> dict[str, Any]:
        """Waits for a message with these items, discards all up to it, and returns it."""
        with anyio.fail_after(DEADLINE):
            while True:
                for place, message in enumerate(self._heard):
                    if desired.items() <= message.items():
                        del self._heard[: place + 1]
                        return message
                await self._changed.wait()

    async def so_far(self) -> list[dict[str, Any]]:
        """Returns and discards all messages committed before this call."""
        self._marks += 1
        await self._connection.execute("SELECT pg_notify($1, $2)", CHANNEL, json.dumps({"mark": self._marks}))
        with anyio.fail_after(DEADLINE):
            while not any(message.get("mark") == self._marks for message in self._heard):
                await self._changed.wait()
        heard = [message for message in self._heard if "mark" not in message]
        self._heard.clear()
        return heard


@asynccontextmanager
async def listening(dsn: str) -> AsyncIterator[NotificationListener]:
    connection = await asyncpg.connect(dsn)
    try:
        listener = NotificationListener(connection)
        await connection.add_listener(CHANNEL, listener.receive)
        yield listener
        await connection.remove_listener(CHANNEL, listener.receive)
    finally:
        await connection.close()


def seen(observations: Sequence[Observed | PgRoleError]) -> list[Observed]:
    """Returns the observations; fails if one of them is an error."""
    found = [observed for observed in observations if isinstance(observed, Observed)]
    assert len(found) == len(observations), observations
    return found


async def role_oid(connection: Connection, name: str) -> int:
    return int(await connection.fetchval("SELECT oid FROM pg_roles WHERE rolname = $1", name))


async def renew_home(connection: Connection) -> None:
    """Makes schema pgrole as newly installed. If only its rows differ, deletes just the rows."""
    if await connection.fetchval("SELECT to_regclass('pgrole.installation') IS NOT NULL"):
        await connection.execute(_EMPTY)
        if await install(connection) is SchemaState.PRESENT:
            return
    await connection.execute("DROP SCHEMA IF EXISTS pgrole CASCADE")
    await install(connection)


@asynccontextmanager
async def seen_home(dsn: str, *, before: str = "", after: str) -> AsyncIterator[Connection]:
    """A superuser's session in the home database, with a new schema pgrole.

    Runs `before` and observes everything first. Runs `after` at the end.
    """
    connection = await asyncpg.connect(dsn)
    try:
        await renew_home(connection)
        if before:
            await connection.execute(before)
        await connection.execute("SELECT pgrole.observe()")
        yield connection
        await connection.execute(after)
    finally:
        await connection.close()


async def count_pages_of(connection: "asyncpg.Connection[asyncpg.Record]", query: str, arguments: str) -> int:
    """Counts the pages that a query reads with a generic plan, once the session's caches are filled."""
    async with connection.transaction():
        await connection.execute("SET LOCAL plan_cache_mode = force_generic_plan; SET LOCAL jit = off")
        await connection.execute(f"PREPARE reads AS {query}")
        explain = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE reads {arguments}"
        await connection.fetchval(explain)
        explained = await connection.fetchval(explain)
        await connection.execute("DEALLOCATE reads")
    (one,) = json.loads(explained)
    return int(one["Plan"]["Shared Hit Blocks"] + one["Plan"]["Shared Read Blocks"])
