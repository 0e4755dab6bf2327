"""Settings as roles store them: read as PostgreSQL reads them, whatever they are, and set back."""

import os
from collections.abc import AsyncIterator

import asyncpg
import pytest_asyncio
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from pgrole_controller.core.ddl import NAME_BYTES, quote_identifier, statements
from pgrole_controller.core.diff import SetParameter
from pgrole_controller.core.parameters import elements, read_settings
from pgrole_controller.local.postgres import PostgresServer
from pgrole_controller.postgres.connection import Connection
from tests.servers import Servers

# One connection serves all examples: each leaves nothing behind. A longer hunt: EXAMPLES=20000.
EXAMPLES = settings(
    max_examples=int(os.environ.get("EXAMPLES", "300")),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)

LISTS = st.lists(
    st.sampled_from(
        [*"aBäÄ\",\\';_1", '""', ", ", '"$user"', "$user", '"A b"']
        + [*" \t\n\r\f\x1f\x85", "\N{NO-BREAK SPACE}", "\N{KELVIN SIGN}", "\N{LATIN CAPITAL LETTER I WITH DOT ABOVE}"]
    ),
    max_size=12,
).map("".join)

#: What current_schemas leaves out, or adds to.
SPECIAL = {"", "$user"}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def server(servers: Servers) -> AsyncIterator[PostgresServer]:
    async with servers.run() as own:
        yield own


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def hand(server: PostgresServer) -> AsyncIterator[Connection]:
    connection = await asyncpg.connect(server.dsn())
    await connection.execute("CREATE ROLE subject")
    yield connection
    await connection.close()


async def stored(hand: Connection) -> list[str]:
    setting = "SELECT setconfig FROM pg_db_role_setting WHERE setrole = 'subject'::regrole AND setdatabase = 0"
    return list(await hand.fetchval(setting))


async def effective(hand: Connection, value: str) -> list[str]:
    """The schemas that are searched with it, in order."""
    await hand.execute("SELECT set_config('search_path', $1, true)", value)
    return list(await hand.fetchval("SELECT current_schemas(false)"))


class Undone(Exception):
    pass


@EXAMPLES
@given(value=LISTS)
async def test_a_list_is_read_as_postgresql_reads_it(hand: Connection, value: str) -> None:
    try:
        ours: tuple[str, ...] | None = elements(value, folding=True)
    except ValueError:
        ours = None
    assume(ours is None or all(len(name.encode()) <= NAME_BYTES for name in ours))
    try:
        async with hand.transaction():
            try:
                async with hand.transaction():
                    await hand.execute("SELECT set_config('search_path', $1, true)", value)
            except asyncpg.InvalidParameterValueError:
                assert ours is None
                return
            assert ours is not None
            await hand.execute("RESET search_path")
            for name in set(ours) - SPECIAL:
                await hand.execute(f"CREATE SCHEMA {quote_identifier(name)}")
            searched = [name for name in dict.fromkeys(ours) if name not in SPECIAL]
            assert [name for name in await effective(hand, value) if name not in SPECIAL] == searched
            await check_set_back(hand, value, searched)
            raise Undone
    except Undone:
        pass


async def check_set_back(hand: Connection, value: str, searched: list[str]) -> None:
    """What is stored of it reads as a value that, written by us, is stored to read the same and to do the same."""
    await hand.execute("ALTER ROLE subject SET search_path FROM CURRENT")
    ((name, read),) = read_settings(await stored(hand))
    assert name == "search_path"
    await hand.execute("ALTER ROLE subject RESET ALL")
    for statement in statements([SetParameter("subject", None, name, read)]):
        await hand.execute(statement)
    (written,) = await stored(hand)
    assert read_settings([written]) == ((name, read),)
    assert [one for one in await effective(hand, written.partition("=")[2]) if one not in SPECIAL] == searched


@EXAMPLES
@given(value=LISTS)
async def test_names_of_files_are_read_as_postgresql_prints_them(hand: Connection, value: str) -> None:
    """In the definition of a function PostgreSQL takes the stored list apart itself (SplitGUCList)."""
    try:
        ours: tuple[str, ...] | None = elements(value)
    except ValueError:
        ours = None
    try:
        async with hand.transaction():
            await hand.execute("SELECT set_config('local_preload_libraries', $1, true)", value)
            await hand.execute(
                "CREATE FUNCTION pg_temp.f() RETURNS int LANGUAGE sql "
                "SET local_preload_libraries FROM CURRENT AS 'SELECT 1'"
            )
            try:
                async with hand.transaction():
                    definition = await hand.fetchval("SELECT pg_get_functiondef('pg_temp.f'::regproc)")
            except asyncpg.InternalServerError:
                assert ours is None
            else:
                assert ours is not None
                names = ours if value.strip(" \t\n\r\f") else ()
                printed = ", ".join("'" + name.replace("'", "''") + "'" for name in names)
                assert f" SET local_preload_libraries TO {printed}\n" in definition
            raise Undone
    except Undone:
        pass
