"""postgres/drift_history: drifts are recorded once, bounded, without statements of role DDL, and copied."""

import secrets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import anyio
import asyncpg
import pytest
import pytest_asyncio

from pgrole_controller.core.errors import PgRoleError
from pgrole_controller.core.listed_drift import ListedDrift
from pgrole_controller.core.privileges.privilege_result import DriftAuthor, Evidence
from pgrole_controller.core.server_options import HistoryConfig
from pgrole_controller.local.postgres import PostgresServer
from pgrole_controller.postgres import queries
from pgrole_controller.postgres.connection import Connection, Endpoint, connect
from pgrole_controller.postgres.drift_history import (
    RecordedDrift,
    build_record_statement,
)
from pgrole_controller.postgres.history_listing import list_drifts
from pgrole_controller.postgres.history_maintenance import copy_all, copy_history, prune, prune_history
from pgrole_controller.postgres.schema import install
from tests.servers import create_database

CONFIG = HistoryConfig()
BY = DriftAuthor(
    Evidence.TRANSACTION, "alice", "owner", "psql", "10.2.3.4", datetime(2026, 1, 1, tzinfo=UTC), "GRANT ALL ON t TO r"
)
NOW = datetime.now(UTC)


@pytest_asyncio.fixture(loop_scope="session")
async def home(postgres_server: PostgresServer, database: str) -> AsyncIterator[Connection]:
    async with connect(Endpoint(database), "work") as connection:
        await install(connection)
        yield connection


@pytest_asyncio.fixture(loop_scope="session")
async def other(postgres_server: PostgresServer) -> AsyncIterator[Connection]:
    """Another database with its part of schema pgrole."""
    name = f"other_{secrets.token_hex(4)}"
    async with AsyncExitStack() as stack:
        admin = await asyncpg.connect(postgres_server.dsn())
        stack.push_async_callback(admin.close)
        await create_database(admin, name)
        stack.push_async_callback(admin.execute, f"DROP DATABASE {name} WITH (FORCE)")
        connection = await stack.enter_async_context(connect(Endpoint(postgres_server.dsn(database=name)), "work"))
        await connection.execute(queries.install_database())
        yield connection


async def record(connection: Connection, *drifts: RecordedDrift, config: HistoryConfig = CONFIG) -> None:
    await connection.execute(f"SELECT pgrole.lock_changes(); {build_record_statement(drifts, config)}")


async def read(connection: Connection, role: str) -> list[ListedDrift]:
    """The last drifts of a role, at most 10, the latest first."""
    return await list_drifts(connection, datetime.min.replace(tzinfo=UTC), role, 10)


async def test_a_drift_reads_back_as_recorded(other: Connection) -> None:
    drift = RecordedDrift("reader", ("privileges",), True, "orders", NOW, 3, BY)
    await record(other, drift)
    (found,) = await read(other, "reader")
    assert (found.fields, found.corrected, found.database, found.count) == (("privileges",), True, "orders", 3)
    assert found.at == NOW
    assert (found.by.proof, found.by.login, found.by.role) == (Evidence.TRANSACTION, "alice", "owner")
    assert (found.by.address, found.by.statement) == ("10.2.3.4", "GRANT ALL ON t TO r")


async def test_statements_of_role_ddl_are_never_stored_and_addresses_only_if_configured(other: Connection) -> None:
    await record(other, RecordedDrift("reader", ("login",), True, by=BY), config=HistoryConfig(addresses=False))
    (found,) = await read(other, "reader")
    assert (found.database, found.by.statement, found.by.address, found.by.login) == ("", "", "", "alice")
    rows = await other.fetch("SELECT h::text AS row FROM pgrole.drift_history AS h")
    assert all("GRANT" not in row["row"] and "10.2.3.4" not in row["row"] for row in rows)


async def test_a_contest_adds_one_row_per_minute_and_a_report_one_row(other: Connection) -> None:
    for second in range(0, 180, 2):
        await record(other, RecordedDrift("contested", ("login",), True, at=NOW + timedelta(seconds=second)))
    contested = await read(other, "contested")
    assert 3 <= len(contested) <= 4
    assert sum(drift.count for drift in contested) == 90
    for _ in range(5):
        await record(other, RecordedDrift("reported", ("login",), False, at=NOW, key="sha256:1"))
    assert len(await read(other, "reported")) == 1
    await record(other, RecordedDrift("reported", ("login",), False, at=NOW + timedelta(hours=1), key="sha256:2"))
    assert len(await read(other, "reported")) == 2


async def test_a_report_has_one_row_in_whatever_month_it_is_found_again(other: Connection) -> None:
    times = [NOW + timedelta(days=31 * months) for months in range(3)]
    for at in times:
        await record(other, RecordedDrift("reported", ("privileges",), False, "orders", at=at, key="uid"))
    (found,) = await read(other, "reported")
    assert (found.at, found.last_at, found.count) == (NOW, times[-1], 1)


async def test_a_standing_report_has_the_row_that_an_earlier_process_recorded(other: Connection) -> None:
    drift = RecordedDrift("reported", ("privileges",), False, "orders", NOW, key="uid", occasion="unknown")
    hour = timedelta(hours=1)
    await record(other, drift)
    by_alice = replace(drift, by=BY, at=NOW - hour, occasion="alice", standing=True)
    for found in (replace(drift, occasion="", standing=True), by_alice, by_alice, replace(drift, standing=True)):
        await record(other, found)
    (row,) = await read(other, "reported")
    assert (row.at, row.count, row.by.login) == (NOW - hour, 1, "alice")
    later = replace(by_alice, at=NOW + hour, occasion="later")
    for found in (
        later,
        later,
        replace(drift, at=NOW + 2 * hour, occasion="unknown again"),
        replace(later, key="other"),
    ):
        await record(other, found)
    rows = [(one.at - NOW, one.by.login) for one in await read(other, "reported")]
    assert sorted(rows) == [(-hour, "alice"), (hour, "alice"), (hour, "alice"), (2 * hour, "")]


async def test_an_author_that_is_found_later_is_copied_as_one_and_no_other_is_mixed_with_it(
    home: Connection, other: Connection
) -> None:
    drift = RecordedDrift("reported", ("privileges",), False, "orders", at=NOW, key="uid")
    copied = []
    few = DriftAuthor(Evidence.SESSION, "bob")
    for by in (DriftAuthor(), few, BY):
        await record(other, replace(drift, by=by))
        copied.append(await copy_history(other, home))
    assert copied == [1, 1, 0]
    for connection in (other, home):
        (found,) = await read(connection, "reported")
        assert replace(found.by, time=None) == few


async def test_a_row_that_changes_while_it_is_copied_is_copied_again(home: Connection, other: Connection) -> None:
    drift = RecordedDrift("reported", ("privileges",), False, "orders", at=NOW, key="uid")
    await record(other, drift)
    unmarked = await other.fetchval("SELECT pgrole.read_drifts_to_copy(100)::text")
    for changed in (replace(drift, by=BY), replace(drift, at=NOW + timedelta(hours=1))):
        await record(other, changed)
        await other.execute("SELECT pgrole.mark_copied($1::text::jsonb)", unmarked)
        assert await copy_history(other, home) == 1
        assert await copy_history(other, home) == 0


async def test_drifts_by_different_logins_or_of_different_objects_have_separate_rows(other: Connection) -> None:
    table = "DELETE on table app.a_long_name"
    drifts = [
        RecordedDrift("reader", ("privileges",), True, "orders", at=NOW, by=by, words=(f"{table}{n} was granted",))
        for n in (1, 2, 1)
        for by in (BY, replace(BY, login="bob"), DriftAuthor())
    ]
    await record(other, *drifts)
    found = await other.fetch(
        "SELECT coalesce(login, ''), details ->> 'words', count FROM pgrole.history ORDER BY 1, 2"
    )
    words = [f'["{table}{n} was granted"]' for n in (1, 2)]
    assert [tuple(row) for row in found] == [
        (login, text, 2 - n) for login in ("", "alice", "bob") for n, text in enumerate(words)
    ]


@pytest.mark.parametrize("letter", ["x", "\U0001f418", "\udce9"])
async def test_privileges_shortened_to_the_same_words_have_separate_rows(other: Connection, letter: str) -> None:
    many = [f"DELETE on table app.{letter * 60}{n} was granted" for n in range(10)]
    for words in (many, [*many[:-1], "and 2 more"], many[:1], [f"{many[0]} by bob"], many):
        drift = RecordedDrift("reader", ("privileges",), True, "orders", at=NOW, by=BY, words=tuple(words))
        await record(other, drift)
    found = await other.fetch("SELECT count, details -> 'words' ->> 0 AS words FROM pgrole.history ORDER BY count DESC")
    assert [row["count"] for row in found] == [2, 1, 1, 1]
    assert all(row["words"].startswith("DELETE on table app.") for row in found)


async def test_only_the_latest_drifts_are_read(other: Connection) -> None:
    await record(
        other,
        *(RecordedDrift("busy", ("login",), True, at=NOW + timedelta(minutes=2 * n)) for n in range(15)),
    )
    found = await read(other, "busy")
    assert [drift.last_at for drift in found] == [NOW + timedelta(minutes=2 * n) for n in range(14, 4, -1)]


@pytest.mark.parametrize(
    "text", ["\0'; DROP TABLE pgrole.drift_history; --", "\udce9\udcff", "x" * 5000, "\U0001f418" * 400]
)
async def test_hostile_texts_are_shortened(other: Connection, text: str) -> None:
    by = DriftAuthor(Evidence.LOG, text, text, text, text, None, text)
    await record(other, RecordedDrift("hostile", (text,), True, "orders", by=by))
    (found,) = await read(other, "hostile")
    assert found.by.proof is Evidence.LOG
    assert len(found.by.application.encode()) <= 63
    assert len(found.by.statement) <= 120


async def test_rows_of_other_databases_are_copied_and_a_repeated_copy_adds_none(
    home: Connection, other: Connection
) -> None:
    await record(other, RecordedDrift("reader", ("privileges",), True, "orders", NOW, 1, BY))
    question = "SELECT pgrole.read_drifts_to_copy(100)::text"
    unmarked = await other.fetchval(question)
    assert await copy_history(other, home) == 1
    assert await copy_history(other, home) == 0
    (copied,) = await read(home, "reader")
    assert (copied.database, copied.by.login) == ("orders", "alice")
    # as after a crash between the copy and its mark
    await other.execute("UPDATE pgrole.drift_history SET copied = false")
    assert await other.fetchval(question) == unmarked
    assert await copy_history(other, home) == 1
    assert len(await read(home, "reader")) == 1


async def test_old_rows_and_rows_beyond_the_maximum_are_pruned(other: Connection) -> None:
    await record(
        other,
        RecordedDrift("old", ("login",), True, at=NOW - timedelta(days=200)),
        *(RecordedDrift(f"new{n}", ("login",), True, at=NOW) for n in range(5)),
    )
    await prune_history(other, CONFIG, "c1")
    assert await other.fetchval("SELECT count(*) FROM pgrole.drift_history") == 5
    await prune_history(other, HistoryConfig(max_rows=2), "c1")
    assert await other.fetchval("SELECT array_agg(role ORDER BY role) FROM pgrole.drift_history") == ["new3", "new4"]


async def test_each_cluster_prunes_what_it_recorded(other: Connection) -> None:
    """Of clusters that share a server, one may keep its history for longer than another."""
    old = NOW - timedelta(days=200)
    await record(
        other,
        *(RecordedDrift(f"{cluster}-old", ("login",), True, at=old, cluster=cluster) for cluster in ("c1", "c2")),
        *(RecordedDrift(f"c1-{n}", ("login",), True, at=NOW, cluster="c1") for n in range(3)),
        *(RecordedDrift(f"c2-{n}", ("login",), True, at=NOW, cluster="c2") for n in range(3)),
        RecordedDrift("c2-ancient", ("login",), True, at=NOW - timedelta(days=440), cluster="c2"),
    )
    kept = "SELECT array_agg(role ORDER BY role) FROM pgrole.drift_history"
    await prune_history(other, CONFIG, "c1")
    assert await other.fetchval(kept) == ["c1-0", "c1-1", "c1-2", "c2-0", "c2-1", "c2-2", "c2-old"]
    assert not await prune_history(other, HistoryConfig(max_rows=1), "c1")
    assert await other.fetchval(kept) == ["c1-2", "c2-0", "c2-1", "c2-2", "c2-old"]
    await prune_history(other, CONFIG, "c2")
    assert await other.fetchval(kept) == ["c1-2", "c2-0", "c2-1", "c2-2"]


async def test_old_rows_are_pruned_although_the_clock_was_a_year_ahead(other: Connection) -> None:
    old = NOW - timedelta(days=150)
    ahead = old.replace(year=old.year + 1 + (old.month > 8), month=(old.month + 3) % 12 + 1, day=1)  # 16 months later
    await record(
        other,
        RecordedDrift("old", ("login",), True, at=old),
        RecordedDrift("ahead", ("login",), True, at=ahead),
        RecordedDrift("new", ("login",), True, at=NOW),
    )
    same = "SELECT count(DISTINCT slot) FROM pgrole.drift_history WHERE role IN ('old', 'ahead')"
    assert await other.fetchval(same) == 1
    await prune_history(other, CONFIG, "c1")
    kept = "SELECT array_agg(role ORDER BY role) FROM pgrole.drift_history"
    assert await other.fetchval(kept) == ["ahead", "new"]


async def test_pruning_waits_for_no_reader(postgres_server: PostgresServer, other: Connection) -> None:
    """A request that waits would fail `LOCK TABLE … NOWAIT` of others, as in the processes of `pg_dump --jobs`."""
    await record(other, RecordedDrift("old", ("login",), True, at=NOW - timedelta(days=200)))
    await other.execute("ALTER FUNCTION pgrole.prune_history SET lock_timeout = '1min'")
    dump = await asyncpg.connect(postgres_server.dsn(database=await other.fetchval("SELECT current_database()::text")))
    await dump.execute("BEGIN; LOCK TABLE pgrole.drift_history IN ACCESS SHARE MODE")
    with anyio.fail_after(45):
        await prune_history(other, CONFIG, "c1")
    assert await other.fetchval("SELECT count(*) FROM pgrole.drift_history") == 1
    await dump.close()
    await prune_history(other, CONFIG, "c1")
    assert await other.fetchval("SELECT count(*) FROM pgrole.drift_history") == 0


async def test_maintenance_deletes_all_rows_beyond_the_maximum(other: Connection) -> None:
    await other.execute("""
        INSERT INTO pgrole.drift_history (slot, role, kind, corrected, copied)
        SELECT 0, 'reader', 'role', true, true FROM generate_series(1, 25000)
    """)
    await prune(other, HistoryConfig(max_rows=1000), "c1")
    assert await other.fetchval("SELECT count(*) FROM pgrole.drift_history") == 1000


async def test_maintenance_copies_everything_and_prunes_old_rows(home: Connection, other: Connection) -> None:
    await record(
        other,
        RecordedDrift("old", ("privileges",), True, "orders", at=NOW - timedelta(days=200)),
        *(RecordedDrift(f"new{n}", ("privileges",), True, "orders", at=NOW) for n in range(250)),
    )
    assert await copy_all(other, home, None) == 251
    await prune(other, CONFIG, "c1")
    assert await other.fetchval("SELECT count(*) FROM pgrole.drift_history") == 250
    assert await home.fetchval("SELECT count(*) FROM pgrole.drift_history WHERE role LIKE 'new%'") == 250


async def test_maintenance_assigns_no_transaction_id_when_there_is_nothing_to_do(
    home: Connection, other: Connection
) -> None:
    await record(other, RecordedDrift("reader", ("privileges",), True, "orders", NOW))
    assert await copy_all(other, home, None) == 1
    for connection in (home, other):
        async with connection.transaction():
            for statement in ("SELECT pgrole.prune_events()", "SELECT pgrole.prune_history()"):
                await connection.execute(statement)
            assert await connection.fetchval("SELECT pgrole.read_drifts_to_copy(100)") is None
            assert await connection.fetchval("SELECT pg_current_xact_id_if_assigned()") is None
    await prune(home, CONFIG, "c1")
    await prune(other, CONFIG, "c1")
    assert await copy_all(other, home, None) == 0


async def test_maintenance_calls_nothing_in_a_schema_that_another_role_may_change(
    home: Connection, other: Connection
) -> None:
    await other.execute("CREATE ROLE mallory_upkeep; GRANT CREATE ON SCHEMA pgrole TO mallory_upkeep")
    try:
        for attempt in (prune(other, CONFIG, "c1"), copy_all(other, home, None)):
            with pytest.raises(PgRoleError, match="not trusted"):
                await attempt
    finally:
        await other.execute("REVOKE ALL ON SCHEMA pgrole FROM mallory_upkeep; DROP ROLE mallory_upkeep")
