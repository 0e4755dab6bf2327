"""`history` on a real database: its rows, its source for each login, and its errors."""

import json
import secrets
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import asyncpg
import pytest_asyncio

from pgrole_controller.core.privileges.privilege_result import DriftAuthor, Evidence
from pgrole_controller.core.server_options import HistoryConfig
from pgrole_controller.local.postgres import PostgresServer
from pgrole_controller.postgres.connection import Connection, Endpoint, connect
from pgrole_controller.postgres.drift_history import RecordedDrift, build_record_statement
from pgrole_controller.postgres.schema import install
from tests.commands import run_command

NOW = datetime.now(UTC)
BY = DriftAuthor(
    Evidence.TRANSACTION, "alice", "owner", "psql", "10.2.3.4", NOW, "GRANT DELETE ON app.orders TO reader"
)
VALUES = {"createdb": {"declared": "false", "observed": "true"}}
DRIFTS = (
    RecordedDrift("app", ("createdb", "login"), True, at=NOW - timedelta(days=2), by=BY, values=VALUES),
    RecordedDrift(
        "reader", ("privileges",), False, "orders", NOW - timedelta(hours=1), 3, BY, words=("DELETE granted",)
    ),
    RecordedDrift("old", ("login",), True, at=NOW - timedelta(days=20)),
    RecordedDrift("e\x1b[31mvil", ("login",), True, at=NOW - timedelta(minutes=1)),
)


@pytest_asyncio.fixture(loop_scope="session")
async def home(database: str) -> AsyncIterator[Connection]:
    async with connect(Endpoint(database), "work") as connection:
        await install(connection)
        yield connection
        await connection.execute(
            f"ALTER DATABASE {await connection.fetchval('SELECT current_database()')} RESET pgrole.home"
        )


async def record(connection: Connection) -> None:
    for drift in DRIFTS:
        await connection.execute(f"SELECT pgrole.lock_changes(); {build_record_statement([drift], HistoryConfig())}")


async def test_drifts_are_listed_latest_first_with_their_author(home: Connection, database: str) -> None:
    await record(home)
    answer = await run_command("history", "-o", "json", PGROLE_DSN=database)
    drifts = answer.json()["drifts"]
    assert [one["role"] for one in drifts] == ["e\x1b[31mvil", "reader", "app"]
    reader, app = drifts[1:]
    assert (reader["database"], reader["corrected"], reader["count"]) == ("orders", False, 3)
    assert (reader["fields"], reader["details"]) == (["privileges"], ["DELETE granted"])
    assert reader["by"] == {
        "login": "alice",
        "role": "owner",
        "application": "psql",
        "address": "10.2.3.4",
        "statement": "GRANT DELETE ON app.orders TO reader",
        "proof": "Transaction",
    }
    assert app["values"] == VALUES
    assert app["by"]["statement"] is None  # statements of role DDL may hold passwords
    assert datetime.fromisoformat(app["time"]).tzinfo is not None


async def test_the_table_shows_observed_before_declared_and_escapes_control_characters(
    home: Connection, database: str
) -> None:
    await record(home)
    answer = await run_command("history", "--since", "30d", PGROLE_DSN=database)
    assert answer.code == 0
    heading, *rows = answer.out.splitlines()
    assert heading.startswith("TIME (UTC)")
    assert len(rows) == 4
    assert "createdb: true → false, login" in rows[2]
    assert "alice as owner (psql, 10.2.3.4)" in rows[2]
    assert "\x1b" not in answer.out
    assert "e\\x1b[31mvil" in rows[0]


async def test_role_period_and_limit_filter_the_drifts(home: Connection, database: str) -> None:
    await record(home)
    one = await run_command("history", "app", "-o", "json", PGROLE_DSN=database)
    assert [drift["role"] for drift in one.json()["drifts"]] == ["app"]
    recent = await run_command("history", "--since", "1440m", "-o", "json", PGROLE_DSN=database)
    assert len(recent.json()["drifts"]) == 2
    cut = await run_command("history", "--limit", "1", PGROLE_DSN=database)
    assert (len(cut.out.splitlines()), "Only the latest 1 are shown" in cut.err) == (2, True)
    none = await run_command("history", "x'; DROP TABLE pgrole.claim; --", PGROLE_DSN=database)
    assert none.out.startswith("No drift since ")
    assert "A drift in another database appears here within a minute" in none.err
    assert "A drift in another database" not in recent.err


async def test_a_namespace_that_a_database_does_not_record_is_said_to_be_ignored(
    home: Connection, database: str
) -> None:
    await record(home)
    answer = await run_command("history", "-n", "shop", PGROLE_DSN=database)
    assert "reader" in answer.out
    assert "It lacks: namespaces of PgRoles, so -n is ignored." in answer.err
    assert "It lacks" not in (await run_command("history", PGROLE_DSN=database)).err


async def test_a_member_of_pg_monitor_reads_the_history_and_another_login_gets_a_remedy(
    home: Connection, database: str, postgres_server: PostgresServer
) -> None:
    await record(home)
    name, place = f"look_{secrets.token_hex(4)}", str(await home.fetchval("SELECT current_database()"))
    admin = await asyncpg.connect(postgres_server.dsn())
    try:
        await admin.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'x'")
        dsn = postgres_server.dsn(name, place, password="x")
        answer = await run_command("history", PGROLE_DSN=dsn)
        assert (answer.code, "this login may not read it" in answer.err) == (1, True)
        assert "member of pg_monitor" in answer.err
        await admin.execute(f"GRANT pg_monitor TO {name}")
        answer = await run_command("history", "-o", "json", PGROLE_DSN=dsn)
        assert len(answer.json()["drifts"]) == 3
    finally:
        await admin.execute(f"DROP ROLE {name}")
        await admin.close()


async def test_without_schema_pgrole_the_error_names_the_remedy(database: str) -> None:
    answer = await run_command("history", PGROLE_DSN=database)
    assert (answer.code, "schema pgrole does not exist" in answer.err) == (1, True)
    assert "Connect to the home database, where an administrator can install" in answer.err
    assert "`pgrole-controller sql`" in answer.err
    name = database.rpartition("/")[2]
    answer = await run_command("history", "--database", name, PGROLE_DSN=database)
    assert answer.code == 1
    assert "`pgrole-controller sql --database`" in answer.err
    plugin = await run_command("history", program="kubectl-pgrole", PGROLE_DSN=database)
    assert plugin.err.startswith("kubectl pgrole: ")
    assert "`kubectl pgrole sql`" in plugin.err
    alone = await run_command("history", "--database", "postgres")
    assert alone.code == 2


async def test_rows_stored_by_hand_break_nothing(home: Connection, database: str) -> None:
    await home.execute(
        "INSERT INTO pgrole.drift_history (slot, role, kind, fields, details, corrected, proof, statement)"
        " VALUES (1, 'a', 'role', '{x}', '[1]', true, 'Later', 'ALTER ROLE a PASSWORD ''s3cret'''),"
        " (1, 'b', 'role', '{x}', $1, true, NULL, NULL),"
        " (1, 'c', 'privileges', '{DELETE on table app.orde}', '{\"words\": [\"DELETE\"]}', true, NULL, NULL)",
        json.dumps({"x": {"declared": 1}, "y": 2, "words": "no list"}),
    )
    answer = await run_command("history", "b", "-o", "json", PGROLE_DSN=database)
    assert [one["role"] for one in answer.json()["drifts"]] == ["b"]
    everything = await run_command("history", "-o", "json", PGROLE_DSN=database)
    assert "s3cret" not in everything.out
    assert len(everything.json()["drifts"]) == 3
    older = await run_command("history", "c", "-o", "json", PGROLE_DSN=database)
    assert [(one["fields"], one["details"]) for one in older.json()["drifts"]] == [(["privileges"], ["DELETE"])]
