"""The PostgreSQL servers of the tests are copies of one, but each has its own identity."""

from pathlib import Path

import asyncpg
import pytest

from tests.initialised import identify
from tests.servers import Servers

IDENTIFIER = "SELECT system_identifier FROM pg_control_system()"


async def test_two_servers_share_neither_identifier_nor_password(servers: Servers) -> None:
    async with servers.run() as one, servers.run({"default_transaction_read_only": "on"}) as other:
        identifiers = set()
        for server in (one, other):
            connection = await asyncpg.connect(server.dsn())
            identifiers.add(await connection.fetchval(IDENTIFIER))
            await connection.close()
        assert len(identifiers) == 2
        with pytest.raises(asyncpg.InvalidPasswordError):
            await asyncpg.connect(one.dsn(password=other.password))


async def test_a_server_keeps_its_identifier_after_a_crash(servers: Servers) -> None:
    """PostgreSQL replays the WAL, and would refuse that of another server."""
    async with servers.run() as server:
        connection = await asyncpg.connect(server.dsn())
        before = await connection.fetchval(IDENTIFIER)
        await connection.execute("CREATE ROLE survivor")
        await connection.close()
        await server.kill()
        await server.start()
        connection = await asyncpg.connect(server.dsn())
        assert await connection.fetchval(IDENTIFIER) == before
        assert await connection.fetchval("SELECT count(*) FROM pg_roles WHERE rolname = 'survivor'") == 1
        await connection.close()


async def test_identify_refuses_the_wal_of_another_server(servers: Servers, tmp_path: Path) -> None:
    async with servers.run() as server:
        await server.stop()
        (segment,) = (server.data / "pg_wal").glob("[0-9A-F]" * 24)
        with segment.open("r+b") as file:
            file.seek(24)
            file.write(b"\1" * 8)
        with pytest.raises(ValueError, match="is not of the server"):
            identify(server.data, 7)
