"""`access` shows which PgRole declares a privilege and since when a role has it, and names what it cannot see."""

import re
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import asyncpg
import pytest
import pytest_asyncio

from pgrole_controller.core.drift_record import rfc3339
from pgrole_controller.core.privileges.acl import ObjectKind
from pgrole_controller.core.privileges.grantee import Access, DatabasePrivileges, ObjectPrivileges, SchemaAccess
from pgrole_controller.core.privileges.kept_privileges import write_kept
from pgrole_controller.local.postgres import PostgresServer
from pgrole_controller.postgres.catalog import MEMBERSHIP_OPTIONS_VERSION
from pgrole_controller.postgres.connection import Connection, Endpoint, connect
from pgrole_controller.postgres.schema import install
from tests.commands import CommandAnswer, run_command
from tests.integration.event_support import event_database
from tests.servers import Servers

CLAIM = """
    INSERT INTO pgrole.claim (role_name, role_oid, system_identifier, cluster, namespace, namespace_uid, object,
                              object_uid, privileges, released_at)
    SELECT r.rolname, r.oid, s.system_identifier, 'test', 'shop', 'uid', $2, $2, $3, CASE WHEN $4 THEN now() END
    FROM pg_roles AS r, pg_control_system() AS s WHERE r.rolname = $1
"""


def privileges_of(answer: CommandAnswer, role: str) -> dict[tuple[str, str], dict[str, Any]]:
    """By privilege and column."""
    (found,) = [one for one in answer.json()["roles"] if one["role"] == role]
    return {(one["privilege"], one.get("column", "")): one for one in found["privileges"]}


@dataclass(frozen=True, slots=True)
class ClaimedDatabase:
    """A database with schema pgrole, tables of schema app, and roles `{prefix}_…`."""

    admin: Connection
    dsn: str
    name: str
    prefix: str
    watching: str

    async def claim(self, role: str, privileges: str, *, released: bool = False) -> None:
        await self.admin.execute(CLAIM, f"{self.prefix}_{role}", f"{role}-object", privileges, released)

    def declaration(self) -> str:
        """SELECT in schema app except on odd and items, UPDATE of one column of orders, EXECUTE on one of two fn."""
        declared = DatabasePrivileges(
            self.name,
            schemas=(SchemaAccess("app", frozenset({Access.READ}), exceptions=("odd", "items", "fn")),),
            objects=(
                ObjectPrivileges(ObjectKind.TABLE, "app", ("orders",), frozenset({"UPDATE"}), ("name",)),
                ObjectPrivileges(ObjectKind.ROUTINE, "app", ("fn(integer)",), frozenset({"EXECUTE"})),
            ),
        )
        return write_kept({self.name: (declared,)})


@pytest_asyncio.fixture(loop_scope="session")
async def claimed(database: str, postgres_server: PostgresServer) -> AsyncIterator[ClaimedDatabase]:
    prefix = f"origin_{secrets.token_hex(4)}"
    async with connect(Endpoint(database), "work") as admin:
        await install(admin)
        name = str(await admin.fetchval("SELECT current_database()"))
        roles = [f"{prefix}_{role}" for role in ("reader", "member", "other", "root", "watcher")]
        reader, member, other, root, watcher = roles
        await admin.execute(
            f"""
            CREATE ROLE {reader}; CREATE ROLE {member} LOGIN; CREATE ROLE {other}; CREATE ROLE {root} SUPERUSER;
            CREATE ROLE {watcher} LOGIN PASSWORD 'watching'; GRANT pg_monitor TO {watcher}; GRANT {reader} TO {member};
            CREATE SCHEMA app; CREATE TABLE app.orders (id int, name text); CREATE TABLE app.odd (id int);
            CREATE TABLE app.items (id int);
            CREATE FUNCTION app.fn(int) RETURNS int LANGUAGE sql AS 'SELECT 1';
            CREATE FUNCTION app.fn(text) RETURNS int LANGUAGE sql AS 'SELECT 1';
            REVOKE ALL ON FUNCTION app.fn(int), app.fn(text) FROM PUBLIC;
            GRANT SELECT, DELETE, UPDATE (id, name) ON app.orders TO {reader}; GRANT USAGE ON SCHEMA app TO {reader};
            GRANT SELECT ON app.orders TO {other}; GRANT SELECT ON app.odd, app.items TO {reader};
            GRANT EXECUTE ON FUNCTION app.fn(int), app.fn(text) TO {reader}; GRANT TRUNCATE ON app.items TO {root}
            """
        )
        watching = postgres_server.dsn(watcher, name, password="watching")
        yield ClaimedDatabase(admin, database, name, prefix, watching)
        await admin.execute(f"ALTER DATABASE {name} RESET pgrole.home")
        for role in roles:
            await admin.execute(f"DROP OWNED BY {role} CASCADE; DROP ROLE {role}")


async def test_access_names_the_pgrole_that_declares_a_privilege(claimed: ClaimedDatabase) -> None:
    await claimed.claim("reader", claimed.declaration())
    await claimed.claim("other", claimed.declaration(), released=True)
    answer = await run_command("access", "--on", "app.orders", "-o", "json", PGROLE_DSN=claimed.dsn)
    found = privileges_of(answer, f"{claimed.prefix}_reader")
    assert {key: one["declaredBy"] for key, one in found.items()} == {
        ("SELECT", ""): "shop/reader-object",
        ("DELETE", ""): None,
        ("UPDATE", "id"): None,
        ("UPDATE", "name"): "shop/reader-object",
    }
    assert privileges_of(answer, f"{claimed.prefix}_member")["SELECT", ""]["declaredBy"] == "shop/reader-object"
    assert privileges_of(answer, f"{claimed.prefix}_other")["SELECT", ""]["declaredBy"] is None
    managers = {one["role"]: one["managedBy"] for one in answer.json()["roles"]}
    assert managers[f"{claimed.prefix}_reader"] == "shop/reader-object"
    assert managers[f"{claimed.prefix}_member"] is None
    text = (await run_command("access", "--on", "app.orders", PGROLE_DSN=claimed.dsn)).out
    rows = [line.split() for line in text.splitlines() if line.startswith(f"{claimed.prefix}_reader")]
    assert ["SELECT,", "UPDATE", "(name)", "direct", "shop/reader-object", "unknown"] in [row[1:] for row in rows]
    assert ["DELETE,", "UPDATE", "(id)", "direct", "-", "unknown"] in [row[1:] for row in rows]


async def test_objects_with_equal_privileges_are_listed_apart_if_only_some_are_declared(
    claimed: ClaimedDatabase,
) -> None:
    await claimed.claim("reader", claimed.declaration())
    reader = f"{claimed.prefix}_reader"
    answer = await run_command("access", reader, "--database", claimed.name, "-o", "json", PGROLE_DSN=claimed.dsn)
    assert answer.json()["managedBy"] == "shop/reader-object"
    (database,) = answer.json()["databases"]
    declared = {
        (name, one["privilege"], one.get("column", "")): one["declaredBy"]
        for line in database["objects"]
        if line.get("schema") == "app"
        for name in line["names"]
        for one in line["privileges"]
    }
    assert declared["fn(integer)", "EXECUTE", ""] == "shop/reader-object"
    assert declared["fn(text)", "EXECUTE", ""] is None
    assert declared["odd", "SELECT", ""] is None
    assert declared["orders", "SELECT", ""] == "shop/reader-object"
    text = (await run_command("access", reader, "--database", claimed.name, PGROLE_DSN=claimed.dsn)).out
    assert "managed by PgRole shop/reader-object" in text


@pytest.mark.parametrize("declared", ["fn", "fn(integer)", "f*(int)"])
async def test_a_routine_that_no_other_has_the_privileges_of_has_its_declarer(
    claimed: ClaimedDatabase, declared: str
) -> None:
    reader = f"{claimed.prefix}_reader"
    await claimed.admin.execute(f"REVOKE EXECUTE ON FUNCTION app.fn(text) FROM {reader}")
    routine = ObjectPrivileges(ObjectKind.ROUTINE, "app", (declared,), frozenset({"EXECUTE"}))
    await claimed.claim("reader", write_kept({claimed.name: (DatabasePrivileges(claimed.name, objects=(routine,)),)}))
    answer = await run_command("access", reader, "--database", claimed.name, PGROLE_DSN=claimed.dsn)
    (line,) = [line.split() for line in answer.out.splitlines() if line.startswith("routine app.")]
    assert line == ["routine", "app.fn(integer)", "EXECUTE", "direct", "shop/reader-object"]


@pytest.mark.parametrize("stored", ["{", '{"x": 1}', "x" * 1_100_000], ids=["broken", "wrong", "long"])
async def test_an_unreadable_claim_shows_no_declaration_and_hides_no_other_claim(
    claimed: ClaimedDatabase, stored: str
) -> None:
    await claimed.claim("other", stored)
    await claimed.claim("reader", claimed.declaration())
    answer = await run_command("access", "--on", "app.orders", "-o", "json", PGROLE_DSN=claimed.dsn)
    assert "declaredBy" not in privileges_of(answer, f"{claimed.prefix}_other")["SELECT", ""]
    assert privileges_of(answer, f"{claimed.prefix}_reader")["SELECT", ""]["declaredBy"] == "shop/reader-object"


async def test_a_login_that_cannot_read_claims_is_shown_the_missing_grants(claimed: ClaimedDatabase) -> None:
    await claimed.claim("reader", claimed.declaration())
    answer = await run_command("access", "--on", "app.orders", PGROLE_DSN=claimed.watching)
    assert "DECLARED BY  " not in answer.out
    notes = [line for line in answer.out.splitlines() if "run GRANT" in line]
    assert [note.split()[0] for note in notes] == ["DECLARED", "SINCE:"]
    stored = await run_command("access", "--on", "app.orders", "-o", "json", PGROLE_DSN=claimed.watching)
    assert "declaredBy" not in privileges_of(stored, f"{claimed.prefix}_reader")["SELECT", ""]
    for note in notes:
        await claimed.admin.execute(note.partition("run ")[2])
    answer = await run_command("access", "--on", "app.orders", PGROLE_DSN=claimed.watching)
    assert ("run GRANT" in answer.out, "shop/reader-object" in answer.out) == (False, True)


async def test_access_reports_a_database_without_claims(database: str) -> None:
    answer = await run_command("access", "--on", "public", PGROLE_DSN=database)
    assert "has no table pgrole.claim: connect to the database that the controller uses" in answer.out


async def test_access_does_not_read_a_view_in_place_of_its_tables(database: str) -> None:
    connection = await asyncpg.connect(database)
    await connection.execute(
        """
        CREATE SCHEMA pgrole; CREATE TABLE public.calls (id int);
        CREATE FUNCTION public.strike() RETURNS int LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''struck''; END';
        CREATE VIEW pgrole.claim AS SELECT public.strike() AS role_oid;
        CREATE VIEW pgrole.ddl_event AS SELECT public.strike() AS xid
        """
    )
    await connection.close()
    answer = await run_command("access", "--on", "public.calls", PGROLE_DSN=database)
    assert (answer.code, "struck" in answer.out + answer.err) == (0, False)
    assert "DECLARED BY is unknown: pgrole.claim" in answer.out
    assert "could run code" in answer.out


async def test_a_superusers_own_grants_are_in_the_json(claimed: ClaimedDatabase) -> None:
    root = f"{claimed.prefix}_root"
    answer = await run_command("access", root, "--database", claimed.name, "-o", "json", PGROLE_DSN=claimed.dsn)
    (database,) = answer.json()["databases"]
    granted = [(line["names"], [one["privilege"] for one in line["privileges"]]) for line in database["directGrants"]]
    assert granted == [(["items"], ["TRUNCATE"])]
    text = (await run_command("access", root, "--database", claimed.name, PGROLE_DSN=claimed.dsn)).out
    assert "Superuser: ACLs" in text


async def test_connect_after_set_role_is_not_usable_at_login(claimed: ClaimedDatabase) -> None:
    reader, member = f"{claimed.prefix}_reader", f"{claimed.prefix}_member"
    await claimed.admin.execute(
        f"REVOKE CONNECT ON DATABASE {claimed.name} FROM PUBLIC; GRANT CONNECT ON DATABASE {claimed.name} TO {reader}; "
        f"REVOKE {reader} FROM {member}; ALTER ROLE {member} NOINHERIT; GRANT {reader} TO {member}"
    )
    answer = await run_command("access", member, "--database", claimed.name, PGROLE_DSN=claimed.dsn)
    (line,) = [line for line in answer.out.splitlines() if re.match(r"database \S+ +CONNECT ", line)]
    assert f"SET ROLE {reader}" in line
    assert line.endswith("not usable at login: SET ROLE comes after CONNECT is checked")


async def test_the_event_of_the_last_grant_names_its_login(postgres_server: PostgresServer) -> None:
    async with event_database(postgres_server) as events:
        alice, dsn = await events.person("alice"), postgres_server.dsn(database=events.name)
        await alice.execute("GRANT SELECT ON a TO reader")
        at = await events.reading.fetchval("SELECT max(at) FROM pgrole.ddl_event WHERE command = 'GRANT'")
        assert await _since(dsn, "a", "reader") == {"time": rfc3339(at), "by": "alice", "source": "DdlEvent"}
        bob = await events.person("bob")
        await bob.execute("GRANT UPDATE (note) ON a TO reader")
        answer = await run_command("access", "--on", "public.a", "-o", "json", PGROLE_DSN=dsn)
        found = privileges_of(answer, "reader")
        assert found["UPDATE", "note"]["since"]["by"] == "bob"
        assert found["SELECT", ""]["since"]["by"] == "alice"
        text = (await run_command("access", "--on", "public.a", PGROLE_DSN=dsn)).out
        assert f"{at:%Y-%m-%dT%H:%M}Z by alice" in text


@pytest.mark.parametrize(
    "statements",
    [
        ("BEGIN; SAVEPOINT s; GRANT SELECT ON b TO reader; RELEASE s; COMMIT",),
        ("GRANT SELECT ON b TO reader", "ALTER TABLE b ADD other int"),
        ("GRANT SELECT ON b TO reader", "DELETE FROM pgrole.ddl_event"),
    ],
    ids=["in a subtransaction", "before another change of the row", "after its event was pruned"],
)
async def test_the_time_of_a_grant_is_unknown_if_no_event_proves_it(
    postgres_server: PostgresServer, statements: tuple[str, ...]
) -> None:
    async with event_database(postgres_server) as events:
        carol = await events.person("carol")
        for one in statements:
            await carol.execute(one)
        assert await _since(postgres_server.dsn(database=events.name), "b", "reader") is None


async def _since(dsn: str, table: str, role: str) -> dict[str, Any] | None:
    answer = await run_command("access", "--on", f"public.{table}", "-o", "json", PGROLE_DSN=dsn)
    found: dict[str, Any] | None = privileges_of(answer, role)["SELECT", ""]["since"]
    return found


async def test_commit_timestamps_show_since_when_grants_and_memberships_are_unchanged(servers: Servers) -> None:
    async with servers.run({"track_commit_timestamp": "on"}) as server:
        admin = await asyncpg.connect(server.dsn())
        try:
            await admin.execute("CREATE TABLE public.t (id int); CREATE ROLE direct; CREATE ROLE member")
            await admin.execute("GRANT SELECT ON public.t TO direct")
            granted = await _committed(admin, "pg_class WHERE relname = 't'")
            await admin.execute("SELECT pg_sleep(1.1)")
            await admin.execute("GRANT direct TO member")
            joined = await _committed(admin, "pg_auth_members WHERE member = 'member'::regrole")
            assert joined > granted
            at = {"time": rfc3339(granted), "by": None, "source": "CommitTimestamp"}
            assert await _since(server.dsn(), "t", "direct") == at
            through = await _since(server.dsn(), "t", "member")
            if await admin.fetchval("SELECT current_setting('server_version_num')::int") < MEMBERSHIP_OPTIONS_VERSION:
                assert through is None  # ALTER ROLE … INHERIT leaves the membership's row as it was
            else:
                assert through == {**at, "time": rfc3339(joined)}
            text = (await run_command("access", "--on", "public.t", PGROLE_DSN=server.dsn())).out
            assert f"its own grants unchanged since {granted:%Y-%m-%dT%H:%MZ}" in text
        finally:
            await admin.close()


async def _committed(admin: "asyncpg.Connection[asyncpg.Record]", rows: str) -> datetime:
    at: datetime = await admin.fetchval(f"SELECT pg_xact_commit_timestamp(xmin) FROM {rows}")
    return at


async def test_names_in_a_database_without_encoding_are_shown(postgres_server: PostgresServer) -> None:
    name = f"origin_ascii_{secrets.token_hex(4)}"
    admin = await asyncpg.connect(postgres_server.dsn())
    try:
        await admin.execute(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'SQL_ASCII' LOCALE 'C'")
        inside = await asyncpg.connect(postgres_server.dsn(database=name))
        await inside.execute(
            "DO $$ BEGIN EXECUTE format('CREATE SCHEMA app; CREATE TABLE app.%1$I (id int, %1$I int); "
            "GRANT SELECT ON app.%1$I TO PUBLIC', 'caf' || convert_from('\\xe9'::bytea, 'SQL_ASCII')); END $$;"
            "CREATE TABLE app.plain (id int); GRANT SELECT ON app.plain TO PUBLIC"
        )
        await install(inside)
        await inside.close()
        dsn = postgres_server.dsn(database=name)
        seen = await run_command("access", "--on", "app.plain", PGROLE_DSN=dsn)
        assert (seen.code, "PUBLIC" in seen.out) == (0, True), seen.err
        listed = await run_command("access", "pg_monitor", "--database", name, "-o", "json", PGROLE_DSN=dsn)
        (database,) = listed.json()["databases"]
        names = [one for line in database["objects"] if line.get("schema") == "app" for one in line["names"]]
        assert names == ["caf\\xe9", "plain"]
    finally:
        await admin.execute(f"ALTER DATABASE {name} RESET pgrole.home")
        await admin.execute(f"DROP DATABASE {name} WITH (FORCE)")
        await admin.close()
