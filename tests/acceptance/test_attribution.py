"""Who changed a role outside the controller: recorded in status and history, with the kind of proof."""

import json
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import asyncpg
import pytest

from pgrole_controller.local.apiserver import ApiServer
from pgrole_controller.local.postgres import PostgresServer
from pgrole_controller.postgres.connection import Connection
from tests.acceptance.servers import pgservers
from tests.acceptance.world import Controller, Database, Json, Kube, Stage, make_kube, open_database, remove, running
from tests.servers import Servers

JSONLOG = {"logging_collector": "on", "log_destination": "jsonlog", "log_statement": "ddl"}
LOOK = (
    "SELECT login, proof, fields::text[], corrected, count, statement FROM pgrole.history WHERE role = $1 ORDER BY at"
)


def name_role() -> str:
    return f"r{secrets.token_hex(4)}"


@asynccontextmanager
async def person(postgres: PostgresServer, name: str) -> AsyncIterator[Connection]:
    """A superuser's session."""
    async with open_database(postgres.dsn()) as database:
        await database.execute(f"CREATE ROLE {name} LOGIN SUPERUSER PASSWORD 'pw'")
    connection = await asyncpg.connect(postgres.dsn(name, password="pw"), server_settings={"application_name": "psql"})
    try:
        yield connection
    finally:
        await connection.close()


def append_line(path: Path, line: str) -> None:
    with path.open("ab") as file:
        file.write(line.encode() + b"\n")


def caused_by(login: str) -> Any:
    return lambda obj: obj.get("status", {}).get("lastDrift", {}).get("by", {}).get("login") == login


async def history(database: Database, role: str, login: str) -> list[dict[str, Any]]:
    """Returns the rows of a role, once one has this author."""
    await database.wait_value(
        f"SELECT count(*) > 0 FROM pgrole.history WHERE role = '{role}' AND login = '{login}'", value=True
    )
    return [dict(row) for row in await database.connection.fetch(LOOK, role)]


async def test_the_author_of_a_drift_is_in_status_and_history_even_after_a_restart(stage: Stage) -> None:
    """Alice's drift is corrected; Bob's is only reported, and found again by the second process."""
    kube, role, reported = stage.kube, name_role(), name_role()
    async with (
        stage.database() as database,
        person(stage.postgres, "alice") as alice,
        person(stage.postgres, "bob") as bob,
    ):
        async with running(stage.controller()) as controller:
            await kube.apply("app", name=role, connectionLimit=7)
            await kube.apply("reported", name=reported, drift={"policy": "Report"})
            await kube.wait_all_ready()
            await alice.execute(f"ALTER ROLE {role} CONNECTION LIMIT 99")
            entry = await check_corrected(kube, database, role)
            await bob.execute(f"ALTER ROLE {reported} CREATEDB")
            await check_reported_once(kube, database, reported)
            await controller.rest()
        # as after a kill before the row was written
        await database.execute(f"DELETE FROM pgrole.drift_history WHERE role = '{role}'")
        async with running(stage.controller()) as controller:
            await database.wait_value(f"SELECT count(*) FROM pgrole.history WHERE role = '{role}'", 1)
            await controller.rest()
            obj = await kube.wait_ready("app")
            assert obj["status"]["lastDrift"]["by"] == {"login": "alice", "proof": "Session"}
            assert obj["status"]["driftHistory"] == [entry]
            await check_reported_once(kube, database, reported)


async def check_corrected(kube: Kube, database: Database, role: str) -> Json:
    """Returns the drift's entry in the history in status."""
    obj = await kube.wait_for("app", caused_by("alice"), "alice caused it")
    assert obj["status"]["lastDrift"]["fields"] == ["connectionLimit"]
    assert obj["status"]["lastDrift"]["by"] == {"login": "alice", "proof": "Session"}
    (entry,) = obj["status"]["driftHistory"]
    assert entry["by"] == {"login": "alice", "proof": "Session"}
    (row,) = await history(database, role, "alice")
    assert (row["proof"], row["fields"], row["corrected"], row["count"]) == ("Session", ["connectionLimit"], True, 1)
    assert row["statement"] is None
    details = await database.fetchval("SELECT details::text FROM pgrole.history WHERE role = $1", role)
    assert json.loads(details) == {"connectionLimit": {"declared": "7", "observed": "99"}}
    return dict(entry)


async def check_reported_once(kube: Kube, database: Database, role: str) -> None:
    """It has one history row, however often it is found."""
    obj = await kube.wait_for("reported", caused_by("bob"), "bob caused it")
    assert obj["status"]["lastDrift"]["corrected"] is False
    (row,) = await history(database, role, "bob")
    assert (row["proof"], row["corrected"], row["count"]) == ("Session", False, 1)
    assert len(obj["status"]["driftHistory"]) == 1


async def test_a_drift_by_a_closed_session_has_no_author_and_each_reported_one_its_own(stage: Stage) -> None:
    async with running(stage.controller()), stage.database() as database:
        await drift_by_a_closed_session(stage.kube, database, name_role())
        await drift_by_two_persons(stage, database, name_role())


async def drift_by_a_closed_session(kube: Kube, database: Database, role: str) -> None:
    await kube.apply("closed", name=role)
    await kube.wait_ready("closed")
    statement = f"DO $$ BEGIN EXECUTE 'ALTER RO' || 'LE {role[:3]}' || '{role[3:]} CREATEDB'; END $$"
    await database.execute(statement)
    await database.wait_value(f"SELECT count(*) FROM pgrole.history WHERE role = '{role}' AND proof IS NULL", 1)
    obj = await kube.wait_for("closed", lambda one: "lastDrift" in one["status"], "it drifted")
    assert obj["status"]["lastDrift"]["by"] == {"proof": "None"}


async def drift_by_two_persons(stage: Stage, database: Database, role: str) -> None:
    await stage.kube.apply("app", name=role, connectionLimit=7, drift={"policy": "Report"})
    await stage.kube.wait_ready("app")
    times: list[str] = []
    rows: list[dict[str, Any]] = []
    obj: Json = {}
    for login, limit in (("mallory", 8), ("niaj", 9)):
        async with person(stage.postgres, login) as who:
            await anyio.sleep(1.1 if times else 0.0)  # times in status have whole seconds
            await who.execute(f"ALTER ROLE {role} CONNECTION LIMIT {limit}")
            obj = await stage.kube.wait_for("app", caused_by(login), f"{login} caused it")
            rows = await history(database, role, login)
        times.append(obj["status"]["lastDrift"]["time"])
    assert [row["login"] for row in rows] == ["mallory", "niaj"]
    assert times == sorted(set(times))
    assert [entry["by"]["login"] for entry in obj["status"]["driftHistory"]] == ["niaj", "mallory"]


@pytest.mark.since(15, "jsonlog")
@pytest.mark.slow
async def test_the_statement_log_names_the_author_and_no_statement_is_stored(
    api_server: ApiServer, servers: Servers, tmp_path: Path
) -> None:
    role, kube = name_role(), await make_kube(api_server)
    async with servers.run(settings=JSONLOG) as postgres, pgservers(api_server) as declared:
        controller = Controller(api_server, "", tmp_path, "--namespace", kube.namespace)
        attribution: Json = {"auditLog": "Statements", "expose": "Full"}
        async with running(controller, connected=False), open_database(postgres.dsn()) as database:
            await declared.apply("main", postgres, attribution=attribution)
            await kube.apply("app", name=role, serverRef={"name": "main"})
            await kube.wait_ready("app")
            async with person(postgres, "carol") as carol, person(postgres, "dave") as dave:
                await dave.execute(f"GRANT pg_monitor TO dave; COMMENT ON ROLE dave IS '{role}'")
                by: Json = {}
                for _ in range(4):  # on a busy machine, the server writes its log later than the controller looks
                    if by.get("proof") != "Log":
                        await anyio.sleep(2.0 if by else 0.0)
                        await carol.execute(f"ALTER ROLE {role} CREATEDB PASSWORD 'geheim-{role}'")
                        obj = await kube.wait_for("app", caused_by("carol"), "carol caused it")
                        by = obj["status"]["lastDrift"]["by"]
            assert (by["proof"], by["application"], by["address"]) == ("Log", "psql", "127.0.0.1")
            assert "statement" not in by
            row = (await history(database, role, "carol"))[-1]
            assert (row["proof"], row["statement"]) == ("Log", None)
            dump = await database.fetchval("SELECT string_agg(h::text, ' ') FROM pgrole.drift_history AS h")
            assert "geheim" not in dump
            assert "SCRAM" not in dump
        assert "geheim" not in controller.log
        await declared.apply("main", postgres, attribution={**attribution, "expose": "Minimal"})
        async with running(Controller(api_server, "", tmp_path, "--namespace", kube.namespace), connected=False):
            obj = await kube.wait_for("app", lambda one: "address" not in one["status"]["lastDrift"]["by"], "hidden")
        assert obj["status"]["lastDrift"]["by"].keys() == {"login", "time", "proof"}
    await remove(kube)


@pytest.mark.since(15, "jsonlog")
@pytest.mark.slow
async def test_a_pgaudit_line_is_matched_by_the_transaction_of_the_overwritten_row(
    api_server: ApiServer, servers: Servers, tmp_path: Path
) -> None:
    """The test writes the line itself, since few machines have pgaudit; the command in it does not name the role."""
    role, kube = name_role(), await make_kube(api_server)
    settings = {"logging_collector": "on", "log_destination": "jsonlog"}
    async with servers.run(settings=settings) as postgres, pgservers(api_server) as declared:
        controller = Controller(api_server, "", tmp_path, "--namespace", kube.namespace)
        async with running(controller, connected=False), open_database(postgres.dsn()) as database:
            await declared.apply("main", postgres, attribution={"auditLog": "Pgaudit"})
            await kube.apply("app", name=role, serverRef={"name": "main"})
            await kube.wait_ready("app")
            log = Path(postgres.data / str(await database.fetchval("SELECT pg_current_logfile('jsonlog')")))
            async with person(postgres, "erin") as erin, erin.transaction():
                await erin.execute(f"ALTER ROLE {role} CREATEDB")
                txid = await erin.fetchval("SELECT pg_current_xact_id()::text::bigint")
                entry = {
                    "timestamp": "2026-11-22 18:17:37.326 UTC",
                    "user": "erin",
                    "txid": txid,
                    "message": 'AUDIT: SESSION,1,1,ROLE,ALTER ROLE,,,"ALTER ROLE hidden",<not logged>',
                }
                append_line(log, json.dumps(entry, separators=(",", ":")))
            obj = await kube.wait_for("app", caused_by("erin"), "erin caused it")
            assert obj["status"]["lastDrift"]["by"]["proof"] == "Transaction"
            (row,) = await history(database, role, "erin")
            assert row["proof"] == "Transaction"
    await remove(kube)
