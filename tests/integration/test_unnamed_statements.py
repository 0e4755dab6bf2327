"""postgres.backend_memory: PostgreSQL keeps prepared what is asked often, and nothing else."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from pgrole_controller import resources
from pgrole_controller.controller.privileges.database_worker import DatabaseWorker
from pgrole_controller.core.errors import PgRoleError
from pgrole_controller.core.server_options import DatabaseMode, DatabasesConfig
from pgrole_controller.local.postgres import PostgresServer
from pgrole_controller.postgres.backend_memory import forgetting
from pgrole_controller.postgres.connection import Connection, Endpoint, connect
from pgrole_controller.postgres.privileges.database_session import DatabaseSession
from pgrole_controller.postgres.rows import fetch, fetch_row
from tests.integration.database_world import READ, DatabaseWorkerWorld, note_sessions

#: Files of queries: those of the session's beginning and of complete reads, and those of events.
RARE = (
    ("inspect", "connection"),
    ("inspect", "server"),
    ("inspect", "installation"),
    ("inspect", "database_installation"),
    ("events", "database"),
    ("privileges", "sources", "every_object"),
    ("privileges", "portions"),
    ("privileges", "extension_members"),
    ("events", "applied"),
)
OFTEN = (
    ("events", "new"),
    ("events", "short_applied"),
    ("privileges", "facts"),
    ("privileges", "sources", "named_objects"),
)
FINGERPRINT = ("events", "fingerprint")


async def prepared(connection: Connection) -> list[str]:
    """The texts of the statements that the session keeps."""
    rows = await connection.fetch("SELECT statement FROM pg_catalog.pg_prepared_statements WHERE NOT from_sql")
    return [row["statement"] for row in rows if "pg_prepared_statements" not in row["statement"]]


async def kept(connection: Connection) -> set[tuple[str, ...]]:
    """Which files of `sql` those are."""
    texts = await prepared(connection)
    beginnings = {file: resources.text("sql", *file[:-1], f"{file[-1]}.sql") for file in (*RARE, *OFTEN, FINGERPRINT)}
    return {file for file, text in beginnings.items() if any(text[:50] in one for one in texts)}


@asynccontextmanager
async def session_of(
    world: DatabaseWorkerWorld, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[DatabaseWorker, DatabaseSession]]:
    """The session of a worker that has read everything."""
    sessions = note_sessions(monkeypatch)
    world.declare(READ)
    async with world.working() as worker:
        await world.wait_settled()
        await world.hand.execute(f"GRANT DELETE ON app.orders TO {world.role}")
        await world.wait_may("DELETE", "app.orders", expected=False)
        yield worker, sessions[0]


async def test_a_session_with_events_keeps_only_what_events_need(
    world: DatabaseWorkerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with session_of(world, monkeypatch) as (_, session), session.lock:
        assert session.mode is DatabaseMode.EVENTS
        assert await kept(session.connection) == set(OFTEN)


async def test_a_session_that_polls_keeps_the_fingerprint_too(
    world: DatabaseWorkerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.config = replace(world.config, interval=0.05, databases=DatabasesConfig(("*",), detection=DatabaseMode.POLL))
    async with session_of(world, monkeypatch) as (_, session), session.lock:
        found = await kept(session.connection)
    assert FINGERPRINT in found
    assert not found & set(RARE)


async def test_a_forgotten_query_has_the_same_answer(server: PostgresServer) -> None:
    query = "SELECT n, n::text::bytea AS t FROM generate_series(1, $1::int) AS n"
    async with connect(Endpoint(server.dsn()), "test") as connection:
        with forgetting():
            rows = await fetch(connection, query, 3)
            row = await fetch_row(connection, query, 3)
        assert [one.get("n", int) for one in rows] == [1, 2, 3]
        assert row.text("t") == "1"
        assert await prepared(connection) == []
        await fetch(connection, query, 3)
        assert await prepared(connection) == [query]


async def test_a_forgotten_query_can_fail_and_time_out(server: PostgresServer) -> None:
    async with connect(Endpoint(server.dsn()), "test") as connection:
        for query in ("SELECT 1 / ($1::int - 1)", "SELECT nothing FROM nowhere WHERE $1::int = 1"):
            with forgetting(), pytest.raises(PgRoleError):
                await fetch(connection, query, 1)
        with forgetting(), pytest.raises(PgRoleError, match=re.compile("time", re.IGNORECASE)):
            await fetch(connection, "SELECT pg_catalog.pg_sleep($1)", 20.0, seconds=0.1)
        with forgetting():
            assert (await fetch_row(connection, "SELECT 5 AS five")).get("five", int) == 5
