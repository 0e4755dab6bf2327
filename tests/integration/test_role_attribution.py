"""postgres/role_attribution: finds who changed a role in PostgreSQL's real jsonlog.

Where pgaudit is installed (PostgreSQL 15, Debian's package postgresql-15-pgaudit, or the library that PGAUDIT_LIBRARY
names), it writes the lines. Elsewhere a stand-in appends lines in its format to the same file.
"""

import json
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio
import asyncpg
import pytest
import pytest_asyncio

from pgrole_controller.core.audit_line import ChangedRole
from pgrole_controller.core.privileges.privilege_result import Evidence
from pgrole_controller.core.server_options import AuditSource
from pgrole_controller.local.postgres import PostgresServer
from pgrole_controller.postgres import role_attribution
from pgrole_controller.postgres.connection import Connection, Endpoint, connect
from pgrole_controller.postgres.role_attribution import JsonLog, RoleAttribution, read_role_xmins
from pgrole_controller.postgres.rows import Row
from tests.servers import Servers

LIBRARY = Path(os.environ.get("PGAUDIT_LIBRARY", "/usr/lib/postgresql/15/lib/pgaudit.so"))
JSONLOG = {"logging_collector": "on", "log_destination": "jsonlog"}

#: Versions whose programs come from a wheel (local/postgres.py), which has no extensions.
WITHOUT_EXTENSIONS = frozenset({16, 18})

needs_jsonlog = pytest.mark.since(15, "jsonlog")


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine, the server writes its log late."""
    monkeypatch.setattr(role_attribution, "_WAITS", (*role_attribution._WAITS, 1.0, 5.0, 15.0))


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def server(servers: Servers) -> AsyncIterator[PostgresServer]:
    settings = {"log_statement": "ddl"}
    if servers.docker or servers.version not in WITHOUT_EXTENSIONS:
        settings["shared_preload_libraries"] = "pg_stat_statements"
    if servers.version >= 15:
        settings |= JSONLOG
    async with servers.run(settings=settings) as own:
        yield own


@pytest_asyncio.fixture(loop_scope="session")
async def reading(server: PostgresServer) -> AsyncIterator[Connection]:
    async with connect(Endpoint(server.dsn()), "attribution") as connection:
        yield connection


async def new_person(server: PostgresServer, stack: AsyncExitStack, name: str) -> Connection:
    """A superuser's session, whose application is psql."""
    admin = await asyncpg.connect(server.dsn())
    try:
        await admin.execute(f"CREATE ROLE {name} LOGIN SUPERUSER PASSWORD 'pw'")
    finally:
        await admin.close()
    dsn = server.dsn(name, password="pw")
    connection = await asyncpg.connect(dsn, server_settings={"application_name": "psql"})
    stack.push_async_callback(connection.close)
    return connection


async def log_file(server: PostgresServer, reading: Connection) -> Path:
    return Path(server.data / str(await reading.fetchval("SELECT pg_current_logfile('jsonlog')")))


def audit_line(statement: str, user: str, txid: int, command: str = "ALTER ROLE") -> bytes:
    entry: dict[str, Any] = {
        "timestamp": "2026-11-22 18:17:37.326 UTC",
        "user": user,
        "remote_host": "10.2.3.4",
        "txid": txid,
        "error_severity": "LOG",
        "message": f'AUDIT: SESSION,1,1,ROLE,{command},,,"{statement}",<not logged>',
        "application_name": "psql",
    }
    return json.dumps(entry, separators=(",", ":")).encode() + b"\n"


class TestStatements:
    @needs_jsonlog
    async def test_a_statement_names_its_login(self, server: PostgresServer, reading: Connection) -> None:
        async with AsyncExitStack() as stack:
            alice = await new_person(server, stack, "alice_s")
            await alice.execute("CREATE ROLE told; ALTER ROLE told PASSWORD 'geheim'")
            attribution = RoleAttribution(AuditSource.STATEMENTS)
            found = await attribution.find_author(reading, ChangedRole("told"))
            assert (found.proof, found.login, found.application) == (Evidence.LOG, "alice_s", "psql")
            assert found.address == "127.0.0.1"
            assert found.time is not None
            assert found.statement == ""
            assert "geheim" not in repr(attribution)

    @needs_jsonlog
    async def test_the_controllers_own_statements_are_skipped(
        self, server: PostgresServer, reading: Connection
    ) -> None:
        async with AsyncExitStack() as stack:
            alice = await new_person(server, stack, "alice_o")
            await alice.execute("CREATE ROLE mended")
            await reading.execute("ALTER ROLE mended LOGIN")
            found = await RoleAttribution(AuditSource.STATEMENTS).find_author(reading, ChangedRole("mended"))
            assert (found.proof, found.login) == (Evidence.LOG, "alice_o")

    async def test_no_log_is_read_unless_it_is_allowed(self, server: PostgresServer, reading: Connection) -> None:
        async with AsyncExitStack() as stack:
            alice = await new_person(server, stack, "alice_n")
            await alice.execute("CREATE ROLE private")
            found = await RoleAttribution().find_author(reading, ChangedRole("private"))
            assert (found.proof, found.login) == (Evidence.SESSION, "alice_n")

    async def test_the_controllers_other_sessions_are_no_authors(
        self, server: PostgresServer, reading: Connection
    ) -> None:
        async with AsyncExitStack() as stack:
            writer = await stack.enter_async_context(connect(Endpoint(server.dsn()), "database"))
            await writer.execute("CREATE ROLE granted")
            found = await RoleAttribution().find_author(reading, ChangedRole("granted"))
            assert found.proof is Evidence.NONE
            alice = await new_person(server, stack, "alice_g")
            await alice.execute("SET application_name = 'pgrole-controller database'; ALTER ROLE granted LOGIN")
            found = await RoleAttribution().find_author(reading, ChangedRole("granted"))
            assert (found.proof, found.login) == (Evidence.SESSION, "alice_g")

    @pytest.mark.before(15, "csvlog is not read")
    async def test_before_postgresql_15_only_sessions_are_searched(
        self, server: PostgresServer, reading: Connection
    ) -> None:
        async with AsyncExitStack() as stack:
            alice = await new_person(server, stack, "alice_14")
            await alice.execute("CREATE ROLE private14")
            attribution = RoleAttribution(AuditSource.STATEMENTS)
            assert (await attribution.find_author(reading, ChangedRole("private14"))).proof is Evidence.SESSION


class TestStandIn:
    """Lines in pgaudit's format, appended to the server's own log."""

    @needs_jsonlog
    async def test_the_transaction_id_of_the_row_proves_the_author(
        self, server: PostgresServer, reading: Connection
    ) -> None:
        await reading.execute("CREATE ROLE audited; ALTER ROLE audited SET work_mem = '1MB'")
        oid = int(await reading.fetchval("SELECT oid FROM pg_roles WHERE rolname = 'audited'"))
        xmins = await read_role_xmins(reading, oid, ["parameters"])
        assert len(xmins) == len(set(xmins)) >= 1
        with (await log_file(server, reading)).open("ab") as file:
            for txid, user in ((xmins[0] - 1, "before"), (xmins[0], "author"), (xmins[0] + 1, "after")):
                file.write(audit_line("ALTER ROLE audited LOGIN", user, txid))
        found = await RoleAttribution(AuditSource.PGAUDIT).find_author(reading, ChangedRole("audited", xmins))
        assert (found.proof, found.login, found.address) == (Evidence.TRANSACTION, "author", "10.2.3.4")

    @pytest.mark.parametrize("grant", ["", "GRANT SELECT (oid, xmin) ON pg_authid TO {}"])
    async def test_the_latest_row_of_the_role_tells_the_author_as_far_as_it_can_be_read(
        self, server: PostgresServer, reading: Connection, grant: str
    ) -> None:
        login, role = ("seer", "seen_fully") if grant else ("half_blind", "seen_partly")
        await reading.execute(f"CREATE ROLE {login} LOGIN PASSWORD 'pw'; {grant.format(login)}")
        await reading.execute(f"CREATE ROLE {role}")
        oid = int(await reading.fetchval("SELECT oid FROM pg_roles WHERE rolname = $1", role))
        own = "SELECT xmin::text::bigint FROM pg_authid WHERE oid = $1"
        await reading.execute(f"GRANT pg_monitor TO {role}")
        joined = "SELECT max(xmin::text::bigint) FROM pg_auth_members WHERE member = $1"
        async with connect(Endpoint(server.dsn(login, password="pw")), "attribution") as limited:
            latest = (await read_role_xmins(limited, oid, ["memberOf"]))[0]
            assert latest == await reading.fetchval(joined, oid)
            await reading.execute(f"ALTER ROLE {role} CREATEDB")
            found = await read_role_xmins(limited, oid, ["createdb", "memberOf"])
            assert found[:1] == ((await reading.fetchval(own, oid),) if grant else ())

    @needs_jsonlog
    async def test_a_dropped_role_is_found_by_its_name(self, server: PostgresServer, reading: Connection) -> None:
        with (await log_file(server, reading)).open("ab") as file:
            file.write(audit_line("DROP ROLE gone", "author", 99, "DROP ROLE"))
        found = await RoleAttribution(AuditSource.PGAUDIT).find_author(reading, ChangedRole("gone"))
        assert (found.proof, found.login) == (Evidence.LOG, "author")

    @needs_jsonlog
    async def test_a_read_of_the_log_is_bounded_and_continues_where_the_last_one_ended(
        self, server: PostgresServer, reading: Connection, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(role_attribution, "MOST_BYTES", 5000)
        path, log = await log_file(server, reading), JsonLog()

        async def read() -> list[str]:
            log.commands.clear()
            assert await log.read_new(reading)
            return [one.login for one in log.commands if one.login != "postgres"]

        with path.open("ab") as file:
            file.write(audit_line("DROP ROLE x", "long ago", 1) + b"x" * 6000 + b"\n")
            file.write(audit_line("DROP ROLE x", "first", 2))
        assert await read() == ["first"]
        assert await read() == []
        whole = audit_line("DROP ROLE x", "second", 3)
        with path.open("ab") as file:
            file.write(whole[:100])
            file.flush()
            assert await read() == []
            file.write(whole[100:])
            file.flush()
            assert await read() == ["second"]
            file.write(b"y" * 20_000)  # longer than one read
            file.flush()
            assert await read() == []
            file.write(b"\n" + audit_line("DROP ROLE x", "third", 4))
            file.flush()
            assert await read() == ["third"]
            file.write(audit_line("DROP ROLE x", "at the end", 5))
        await reading.execute("SELECT pg_rotate_logfile()")
        with anyio.fail_after(45):
            while await log_file(server, reading) == path:
                await anyio.sleep(0.2)
                await reading.execute("SELECT pg_rotate_logfile()")
        with (await log_file(server, reading)).open("ab") as file:
            file.write(audit_line("DROP ROLE x", "in the next file", 6))
        assert await read() == ["at the end", "in the next file"]

    @needs_jsonlog
    async def test_a_read_of_the_log_that_is_interrupted_loses_no_line(
        self, server: PostgresServer, reading: Connection, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path, log = await log_file(server, reading), JsonLog()
        assert await log.read_new(reading)
        log.commands.clear()
        with path.open("ab") as file:
            file.write(audit_line("DROP ROLE x", "author", 1))
        ask = role_attribution._ask

        async def read_at_last(connection: Connection, statement: str, name: str, *arguments: object) -> list[Row]:
            rows = await ask(connection, statement, name, *arguments)
            if name == "log_part":
                scope.cancel()
            return rows

        with anyio.CancelScope() as scope, monkeypatch.context() as patch:
            patch.setattr(role_attribution, "_ask", read_at_last)
            await log.read_new(reading)
        assert scope.cancelled_caught
        assert await log.read_new(reading)
        assert "author" in {one.login for one in log.commands}

    @needs_jsonlog
    async def test_of_a_log_that_was_rotated_the_newest_part_is_read(
        self, server: PostgresServer, reading: Connection, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(role_attribution, "MOST_BYTES", 5000)
        path, log = await log_file(server, reading), JsonLog()
        assert await log.read_new(reading)
        log.commands.clear()
        with path.open("ab") as file:
            file.write(audit_line("DROP ROLE x", "long ago", 1) + b"x" * 20_000 + b"\n")
            file.write(audit_line("DROP ROLE x", "at the end", 2))
        with anyio.fail_after(45):
            while (new := await log_file(server, reading)) == path:
                await reading.execute("SELECT pg_rotate_logfile()")
                await anyio.sleep(0.2)
        with new.open("ab") as file:
            file.write(audit_line("DROP ROLE x", "in the next file", 3))
        assert await log.read_new(reading)
        assert [one.login for one in log.commands if one.login != "postgres"] == ["at the end", "in the next file"]

    @needs_jsonlog
    async def test_a_login_that_may_not_read_the_log_finds_no_author(
        self, server: PostgresServer, reading: Connection
    ) -> None:
        await reading.execute("CREATE ROLE poor LOGIN CREATEROLE PASSWORD 'pw'")
        async with connect(Endpoint(server.dsn("poor", password="pw")), "attribution") as poor:
            found = await RoleAttribution(AuditSource.PGAUDIT).find_author(poor, ChangedRole("nothing_of_that"))
        assert found.proof is Evidence.NONE


async def test_statistics_name_the_only_user(server: PostgresServer, reading: Connection) -> None:
    if not await reading.fetchval("SELECT current_setting('shared_preload_libraries') <> ''"):
        pytest.skip("this PostgreSQL has no pg_stat_statements")
    await reading.execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements SCHEMA public")
    async with AsyncExitStack() as stack:
        alice = await new_person(server, stack, "alice_p")
        await alice.execute("CREATE ROLE counted")
    await reading.execute("ALTER ROLE counted LOGIN")
    found = await RoleAttribution().find_author(reading, ChangedRole("counted"))
    assert (found.proof, found.login, found.statement) == (Evidence.STATISTICS, "alice_p", "")


WAYS = {
    "alone": "ALTER ROLE {role} CREATEDB",
    "in DO": "DO $$ BEGIN ALTER ROLE {role} CREATEDB; END $$",
    "in a savepoint": "BEGIN; SAVEPOINT a; GRANT pg_monitor TO {role}; SAVEPOINT b; ALTER ROLE {role} CREATEDB; COMMIT",
    "a membership": "GRANT pg_monitor TO {role}",
    "a password": "ALTER ROLE {role} PASSWORD 'geheim'",
    "in a function": "CREATE OR REPLACE FUNCTION pg_temp.f() RETURNS void LANGUAGE plpgsql"
    " AS $f$ BEGIN ALTER ROLE {role} CREATEDB; END $f$; SELECT pg_temp.f()",
    "a setting": "ALTER ROLE {role} SET work_mem = '3MB'",
}


@pytest.mark.skipif(not LIBRARY.is_file(), reason="install postgresql-15-pgaudit, or set PGAUDIT_LIBRARY")
@pytest.mark.since(15, "jsonlog")
@pytest.mark.before(16, "Debian's pgaudit is for 15")
async def test_lines_of_a_real_pgaudit_prove_the_author(servers: Servers) -> None:
    settings = {**JSONLOG, "shared_preload_libraries": str(LIBRARY), "pgaudit.log": "role"}
    async with servers.run(settings=settings) as server, AsyncExitStack() as stack:
        reading = await stack.enter_async_context(connect(Endpoint(server.dsn()), "attribution"))
        people = [await new_person(server, stack, f"person{number}") for number in range(3)]
        attribution = RoleAttribution(AuditSource.PGAUDIT)
        for number, statement in enumerate(WAYS.values()):
            role, which = f"target{number}", number % len(people)
            await reading.execute(f"CREATE ROLE {role}")
            await people[which].execute(statement.format(role=role))
            await people[which - 1].execute(f"CREATE ROLE other{number}")
            oid = int(await reading.fetchval("SELECT oid FROM pg_roles WHERE rolname = $1", role))
            xmins = (await read_role_xmins(reading, oid, ["createdb"]))[:1]
            found = await attribution.find_author(reading, ChangedRole(role, xmins))
            assert (found.proof, found.login) == (Evidence.TRANSACTION, f"person{which}"), statement
        for command in ("GRANT USAGE ON SCHEMA public TO", "REVOKE USAGE ON SCHEMA public FROM"):
            await people[2].execute(f"{command} target0")
        await people[2].execute("ALTER DEFAULT PRIVILEGES REVOKE USAGE ON SCHEMAS FROM target0")
        last = await attribution.find_author(reading, ChangedRole("target0"))
        assert (last.proof, last.login) == (Evidence.LOG, "person0"), "privileges are no part of a role"
        await people[0].execute("DROP ROLE target1")
        gone = await attribution.find_author(reading, ChangedRole("target1"))
        assert (gone.proof, gone.login) == (Evidence.LOG, "person0")
        assert "geheim" not in repr(attribution)
