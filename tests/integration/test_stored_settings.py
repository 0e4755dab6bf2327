"""Settings as roles store them: read as PostgreSQL reads them, whatever they are, and repaired."""

import os
import tracemalloc
from collections.abc import AsyncIterator
from typing import NamedTuple

import asyncpg
import pytest
import pytest_asyncio
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from pgrole_controller.core.ddl import NAME_BYTES, quote_identifier, statements
from pgrole_controller.core.decision import ROUNDS
from pgrole_controller.core.diff import SetParameter, diff
from pgrole_controller.core.parameters import elements, read_settings
from pgrole_controller.core.plan import Plan
from pgrole_controller.core.request import Key
from pgrole_controller.core.role import ObservedRole
from pgrole_controller.local.postgres import PostgresServer
from pgrole_controller.postgres import queries
from pgrole_controller.postgres.capabilities import identify
from pgrole_controller.postgres.connection import Connection, Endpoint, connect
from pgrole_controller.postgres.database_claims import DatabaseClaims
from pgrole_controller.postgres.schema import SchemaState, install
from pgrole_controller.postgres.session import Session
from tests.cpu_time import within_a_callback
from tests.integration.sql_support import count_pages_of, seen

#: Of a comment that is read whole.
MOST_BYTES = 8192
#: The pod's memory that one read may take, in bytes.
MOST_MEMORY = 40_000_000

GIANT = "'ALTER ROLE tenant SET search_path = ''' || repeat(chr(92), 40000000) || '''';"

# One connection serves all examples: each leaves nothing behind. A longer hunt: EXAMPLES=20000.
EXAMPLES = settings(
    max_examples=int(os.environ.get("EXAMPLES", "60")),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)

LISTS = st.lists(
    st.sampled_from(
        [
            *"aBäÄ,;_1 \t\n\r\f\x1f\x85",
            *('"', "'", "\\", '""', ", ", '"$user"', "$user", '"A b"'),
            *("\N{NO-BREAK SPACE}", "\N{KELVIN SIGN}", "\N{LATIN CAPITAL LETTER I WITH DOT ABOVE}"),
        ]
    ),
    max_size=12,
).map("".join)

#: Elements that current_schemas omits or replaces.
SPECIAL = {"", "$user"}


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
    """Returns the schemas that are searched with this value, in order."""
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
    """Asserts that the stored value, read and written again by us, reads the same and has the same effect."""
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
async def test_a_list_of_file_names_is_read_as_postgresql_prints_it(hand: Connection, value: str) -> None:
    """For the definition of a function, PostgreSQL splits the stored list itself (SplitGUCList)."""
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


#: SQL that stores settings of a role, one item per session.
ATTACKS = {
    # as JSON a control character takes six bytes
    "control-characters": [
        "SELECT set_config('search_path', '\"' || repeat(E'\\x01', 590000) || '\"', false);"
        "ALTER ROLE CURRENT_USER SET search_path FROM CURRENT;"
        "ALTER ROLE CURRENT_USER IN DATABASE postgres SET search_path FROM CURRENT;"
        "ALTER ROLE CURRENT_USER IN DATABASE template1 SET search_path FROM CURRENT"
    ],
    "a long value": [f"DO $$ BEGIN EXECUTE {GIANT.replace('40000000', '400000')} END $$"],
    "a giant value": [f"DO $$ BEGIN EXECUTE {GIANT} END $$"],
    "a list of 1.5 million names": [
        "SELECT set_config('search_path', repeat('a,', 1500000) || 'a', false);"
        "ALTER ROLE tenant SET search_path FROM CURRENT"
    ],
    "a name with a quote": [
        """SELECT set_config('search_path', 'a"b', false); ALTER ROLE tenant SET search_path FROM CURRENT"""
    ],
    "a list that is none": [
        """SELECT set_config('local_preload_libraries', '"open', false);"""
        "ALTER ROLE tenant SET local_preload_libraries FROM CURRENT"
    ],
    "a name in two spellings": [
        """ALTER ROLE tenant SET "app.X" = 'evil'""",
        """ALTER ROLE tenant SET "app.x" = 'good'""",
    ],
    "1100 names": [
        "DO $$ BEGIN FOR n IN 1..1100 LOOP EXECUTE format('ALTER ROLE tenant SET app.n%s = 1', n); END LOOP; END $$"
    ],
    "a long name": [f"ALTER ROLE tenant SET {'.'.join(['app', *['x' * 60] * 300])} = 'x'"],
}

#: Those that require a superuser, or a grant by one.
BY_SUPERUSERS = {"a name in two spellings", "1100 names", "a long name"}


class SettingsEstate(NamedTuple):
    session: Session
    dsn: str  # of the tenant
    asked: list[tuple[Key, str]]


@pytest_asyncio.fixture(loop_scope="session")
async def estate(server: PostgresServer, hand: Connection) -> AsyncIterator[SettingsEstate]:
    names = ("tenant", "first", "second")
    for name in names:
        await hand.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'p'; COMMENT ON ROLE {name} IS 'of {name}'")
        await hand.execute(f"ALTER ROLE {name} SET work_mem = '64MB'")
    async with connect(Endpoint(server.dsn()), "test") as made:
        await install(made)
        session = Session(await identify(made), SchemaState.PRESENT, "cluster", DatabaseClaims(), made)
        yield SettingsEstate(session, server.dsn("tenant", password="p"), [(Key("shop", name), name) for name in names])
    await hand.execute(f"DROP ROLE {', '.join(names)}")


async def see(estate: SettingsEstate) -> dict[str, ObservedRole]:
    return {
        observed.named.role.name: observed.named
        for observed in seen(await estate.session.read_roles(estate.asked))
        if observed.named
    }


async def check_drift_of_one(estate: SettingsEstate, before: dict[str, ObservedRole]) -> None:
    """Asserts that only the tenant drifted, that reading takes little memory and time, and that it is corrected."""
    tracemalloc.start()
    try:
        with within_a_callback():
            drifted = await see(estate)
        assert tracemalloc.get_traced_memory()[1] < MOST_MEMORY
    finally:
        tracemalloc.stop()
    assert drifted["tenant"].role != before["tenant"].role
    assert len(drifted["tenant"].role.comment or "") <= MOST_BYTES
    assert {name: found for name, found in drifted.items() if name != "tenant"} == {
        name: found for name, found in before.items() if name != "tenant"
    }
    for _ in range(ROUNDS):
        there = (await see(estate))["tenant"]
        changes = diff(before["tenant"].role, there.role)
        assert await estate.session.apply_plans([Plan("tenant", changes, oid=there.oid, seen_as="tenant")]) == [None]
    assert await see(estate) == before


@pytest.mark.parametrize(
    "attack", [pytest.param(one, marks=[pytest.mark.slow] * (one == "a giant value")) for one in ATTACKS]
)
async def test_settings_that_a_role_stores_are_drift_of_that_role_only_and_are_corrected(
    server: PostgresServer, estate: SettingsEstate, attack: str
) -> None:
    before = await see(estate)
    for sql in ATTACKS[attack]:
        connection = await asyncpg.connect(server.dsn() if attack in BY_SUPERUSERS else estate.dsn)
        try:
            await connection.execute(sql, timeout=300)
        finally:
            await connection.close()
    await check_drift_of_one(estate, before)


async def test_settings_that_compress_well_are_read_and_corrected_like_others(
    estate: SettingsEstate, hand: Connection
) -> None:
    before = await see(estate)
    declared = {f"app.n{number}": str(number) * 1000 for number in range(10)}
    for name, value in declared.items():
        await hand.execute(f"ALTER ROLE tenant SET {name} = '{value}'")
        await hand.execute(f"ALTER ROLE tenant IN DATABASE postgres SET {name} = '{value}'")
    compressed = "SELECT count(*) FROM pg_db_role_setting WHERE pg_column_compression(setconfig) IS NOT NULL"
    assert await hand.fetchval(compressed) == 2
    found = (await see(estate))["tenant"].role
    assert dict(found.parameters) == {**declared, "work_mem": "64MB"}
    assert {name: dict(some) for name, some in found.database_parameters} == {"postgres": declared}
    await check_drift_of_one(estate, before)


@pytest.mark.slow
async def test_giant_settings_in_many_databases_are_read_within_bounds_and_removed(
    server: PostgresServer, estate: SettingsEstate, hand: Connection
) -> None:
    """As many pages of what compresses well as one second decompresses: a single value has 40."""
    before = await see(estate)
    databases = [f"many_{number}" for number in range(12)]
    for name in databases:
        await hand.execute(f"CREATE DATABASE {name}")
    try:
        tenant = await asyncpg.connect(estate.dsn)
        try:
            await tenant.execute("DO $$ BEGIN PERFORM set_config('search_path', repeat('a', 25000000), false); END $$")
            for name in databases:
                await tenant.execute(f"ALTER ROLE CURRENT_USER IN DATABASE {name} SET search_path FROM CURRENT")
        finally:
            await tenant.close()
        roles = queries.inspect_from("roles", claims="claims_in_database", verifiers="verifiers_by_schema")
        assert await count_pages_of(hand, roles, "('{tenant}', '{shop}', '{tenant}', 'cluster', 0)") < 400
        await check_drift_of_one(estate, before)
    finally:
        for name in databases:
            await hand.execute(f"DROP DATABASE {name}")


@pytest.mark.parametrize("length", [200_000, pytest.param(20_000_000, marks=pytest.mark.slow)])
async def test_a_giant_comment_is_drift_of_its_role_only_and_is_corrected(
    estate: SettingsEstate, hand: Connection, length: int
) -> None:
    before = await see(estate)
    await hand.execute(f"DO $$ BEGIN EXECUTE 'COMMENT ON ROLE tenant IS ''' || repeat('x', {length}) || ''''; END $$")
    await check_drift_of_one(estate, before)


@pytest.mark.slow
async def test_thousands_of_memberships_are_drift_of_their_role_only_and_are_revoked(
    estate: SettingsEstate, hand: Connection
) -> None:
    before = await see(estate)
    await hand.execute(
        "DO $$ BEGIN FOR n IN 1..2500 LOOP EXECUTE format('CREATE ROLE g%s ROLE tenant', n); END LOOP; END $$",
        timeout=300,
    )
    try:
        await check_drift_of_one(estate, before)
    finally:
        await hand.execute("DO $$ BEGIN FOR n IN 1..2500 LOOP EXECUTE format('DROP ROLE g%s', n); END LOOP; END $$")
