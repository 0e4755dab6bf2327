"""postgres/trusted_schema: nothing in schema pgrole runs until the schema is verified, however often it was before."""

import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial

import anyio
import asyncpg
import pytest
import pytest_asyncio

from pgrole_controller.core.errors import PgRoleError, Transient
from pgrole_controller.core.server_options import Mode
from pgrole_controller.postgres import connection as postgres_connection
from pgrole_controller.postgres import queries, session, trusted_schema
from pgrole_controller.postgres.connection import Connection, Endpoint, connect
from pgrole_controller.postgres.detection import Detector
from pgrole_controller.postgres.schema import SchemaState, install
from pgrole_controller.postgres.trusted_schema import guard_of, trusting
from tests.servers import Servers

DEADLINE = 60.0

INTRUSIONS = {
    "ALTER SCHEMA pgrole OWNER TO {tenant}": "schema pgrole is not trusted",
    "GRANT CREATE ON SCHEMA pgrole TO {tenant}": "schema pgrole is not trusted",
    "GRANT CREATE ON SCHEMA pgrole TO PUBLIC": "schema pgrole is not trusted",
    "DROP SCHEMA pgrole CASCADE": "schema pgrole is missing",
    "DROP SCHEMA pgrole CASCADE; CREATE SCHEMA pgrole AUTHORIZATION {tenant}": "schema pgrole is incomplete",
    "DROP SCHEMA pgrole CASCADE; CREATE SCHEMA pgrole AUTHORIZATION {tenant}; "
    "CREATE VIEW pgrole.turn_to_look AS SELECT true AS turn": "schema pgrole is not trusted",
}


@pytest_asyncio.fixture(loop_scope="session")
async def connection(database: str) -> AsyncIterator[Connection]:
    async with connect(Endpoint(database), "test") as made:
        await install(made)
        yield made


@pytest_asyncio.fixture(loop_scope="session")
async def other(database: str, connection: Connection) -> AsyncIterator[Connection]:
    """Another administrator's session; role trusting_tenant exists."""
    async with connect(Endpoint(database), "test") as made:
        await made.execute("CREATE ROLE trusting_tenant")
        yield made
        await connection.execute("DROP OWNED BY trusting_tenant CASCADE; DROP ROLE trusting_tenant")


async def enter(connection: Connection) -> bool:
    """Whether the schema was read."""
    async with trusting(connection, guarded=True):
        return await connection.fetchval("SELECT turn FROM pgrole.turn_to_look") is True


@pytest.mark.parametrize("before", [0, 1, 2], ids="{} before".format)
@pytest.mark.parametrize("intrusion", INTRUSIONS)
async def test_a_replaced_schema_is_refused_however_often_it_was_verified(
    connection: Connection, other: Connection, intrusion: str, before: int
) -> None:
    for _ in range(before):
        assert await enter(connection)
    await other.execute(intrusion.format(tenant="trusting_tenant"))
    for _ in range(2):
        with pytest.raises(Transient, match=INTRUSIONS[intrusion]):
            await enter(connection)
        assert not connection.is_in_transaction()


async def test_the_usual_case_is_verified_by_a_prepared_statement(connection: Connection) -> None:
    monitoring = "SELECT pg_catalog.has_schema_privilege('pg_monitor', 'pgrole', 'USAGE')"
    assert await connection.fetchval(monitoring)
    assert guard_of(connection) == queries.guard()
    for _ in range(2):
        assert await enter(connection)
        assert guard_of(connection) != queries.guard()
    assert await connection.fetch("SELECT FROM pg_prepared_statements WHERE name = 'pgrole_guard'")


@pytest.mark.parametrize("at_first", [True, False])
@pytest.mark.parametrize(
    "change",
    [
        "GRANT USAGE ON SCHEMA pgrole TO trusting_tenant",
        "CREATE ROLE trusting_other SUPERUSER; ALTER SCHEMA pgrole OWNER TO trusting_other",
    ],
)
async def test_a_schema_with_an_unusual_owner_or_privilege_can_be_trusted_too(
    connection: Connection, other: Connection, change: str, at_first: bool
) -> None:
    try:
        if not at_first:
            assert await enter(connection)
        await other.execute(change)
        for _ in range(2):
            assert await enter(connection)
            assert guard_of(connection) == queries.guard()
    finally:
        await other.execute("ALTER SCHEMA pgrole OWNER TO postgres; DROP ROLE IF EXISTS trusting_other")


async def test_a_transaction_that_follows_calls_nothing_in_a_replaced_schema(
    connection: Connection, other: Connection
) -> None:
    assert await enter(connection)
    guard = guard_of(connection)
    await other.execute("ALTER SCHEMA pgrole OWNER TO trusting_tenant")
    with pytest.raises(asyncpg.InvalidSchemaNameError, match="its usual owner and privileges"):
        await connection.execute(f"{guard};\nSELECT 1 / 0")


async def test_a_session_that_acts_as_another_role_is_refused(connection: Connection, other: Connection) -> None:
    assert await enter(connection)
    await connection.execute("GRANT trusting_tenant TO postgres")
    await connection.execute(
        "GRANT USAGE ON SCHEMA pgrole TO trusting_tenant; GRANT SELECT ON pgrole.turn_to_look TO trusting_tenant"
    )
    await connection.execute("SET ROLE trusting_tenant")
    with pytest.raises(Transient, match="is not trusted"):
        await enter(connection)
    await connection.execute("RESET ROLE")


@pytest.fixture
def frozen(servers: Servers, connection: Connection) -> Iterator[Connection]:
    """The server's process for this connection is frozen."""
    if servers.docker:
        pytest.skip("this test freezes a PostgreSQL process on this machine")
    process = connection.get_server_pid()
    os.kill(process, signal.SIGSTOP)
    yield connection
    os.kill(process, signal.SIGCONT)


async def test_a_connection_to_a_frozen_server_is_ended_soon_after_a_read_had_no_answer(
    frozen: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then neither its session could end nor the process."""
    monkeypatch.setattr(trusted_schema, "GUARDED_SECONDS", 0.1)
    monkeypatch.setattr(postgres_connection, "_ROLLBACK_SECONDS", 0.1)
    with pytest.raises(PgRoleError):
        await enter(frozen)
    assert frozen.is_closed()


@pytest.mark.parametrize("check", [session._watch_schema, partial(session._await_upgrade, state=SchemaState.OLDER)])
async def test_a_check_of_the_schema_without_an_answer_ends_the_session(
    frozen: Connection, monkeypatch: pytest.MonkeyPatch, check: Callable[..., Awaitable[None]]
) -> None:
    """The check may have left the connection in a transaction, in which it gets no notifications."""
    monkeypatch.setattr(session, "GUARDED_SECONDS", 0.1)
    detector = Detector(Mode.POLL, (frozen,))
    with pytest.raises(PgRoleError), anyio.fail_after(DEADLINE):
        await check(detector, seconds=0.0, session=anyio.CancelScope())
