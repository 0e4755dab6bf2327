"""postgres.backend_memory: no query of ours makes asyncpg ask PostgreSQL about a type. The fixture `unknown_types`
proves that for the queries of every other test.
"""

import asyncpg
import pytest

from pgrole_controller.local.postgres import PostgresServer
from pgrole_controller.postgres import backend_memory
from pgrole_controller.postgres.backend_memory import ARRAY_TYPES, register_array_types
from pgrole_controller.postgres.connection import Endpoint, connect

SAMPLES = {"bool": "{t,NULL}", "timestamptz": "{2026-01-02,NULL}"}


async def test_the_types_are_those_of_the_server(server: PostgresServer) -> None:
    connection = await asyncpg.connect(server.dsn())
    rows = await connection.fetch(
        """
        SELECT a.oid, e.oid AS element, e.typname AS name
        FROM pg_type AS a JOIN pg_type AS e ON e.typarray = a.oid
        WHERE a.oid = ANY ($1) AND a.typnamespace = 'pg_catalog'::regnamespace AND a.typdelim = ',' AND e.typdelim = ','
        ORDER BY 1
        """,
        [oid for oid, _, _ in ARRAY_TYPES],
    )
    await connection.close()
    assert [tuple(row) for row in rows] == list(ARRAY_TYPES)


@pytest.mark.parametrize("name", [name for _, _, name in ARRAY_TYPES])
async def test_arrays_are_read_and_sent_as_if_asyncpg_had_asked(server: PostgresServer, name: str) -> None:
    quoted = f'pg_catalog."{name}"[]'
    plain = await asyncpg.connect(server.dsn())
    sample = SAMPLES.get(name, "{1,NULL}")
    value = await plain.fetchval(f"SELECT '{sample}'::{quoted}")
    await plain.close()
    async with connect(Endpoint(server.dsn()), "test") as connection:
        assert await connection.fetchval(f"SELECT $1::{quoted}", value) == value


async def test_an_unknown_type_is_asked_for(server: PostgresServer, unknown_types: list[int]) -> None:
    async with connect(Endpoint(server.dsn()), "test") as connection:
        assert await connection.fetchval("SELECT '{1.5}'::numeric[]::text[] = '{1.5}'")
        assert not unknown_types
        assert await connection.fetchval("SELECT $1::int4range[] IS NULL", None)
    assert unknown_types
    unknown_types.clear()


async def test_another_version_of_asyncpg_may_refuse_the_types(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch, unknown_types: list[int]
) -> None:
    def refuse(_oid: int) -> None:
        raise TypeError

    monkeypatch.setattr(backend_memory, "_records", lambda: map(refuse, [0]))
    async with connect(Endpoint(server.dsn()), "test") as connection:
        assert not register_array_types(connection)
        assert await connection.fetchval("SELECT '{2}'::int8[]") == [2]
    assert unknown_types
    unknown_types.clear()
