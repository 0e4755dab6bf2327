"""postgres/privileges/acl_attribution: names whoever changes a privilege, with the transaction as proof."""

import random
from collections.abc import AsyncIterator

import asyncpg
import pytest
import pytest_asyncio

from pgrole_controller.core.privileges.attribution import DEFAULTS, GRANTED, REVOKED, ChangedRow
from pgrole_controller.core.privileges.privilege_result import DriftAuthor, Evidence
from pgrole_controller.core.privileges.recorded_statement import ChangedPrivilege
from pgrole_controller.local.postgres import PostgresServer
from pgrole_controller.postgres.privileges import acl_attribution
from pgrole_controller.postgres.privileges.acl_attribution import MOST_ROWS, read_authors
from tests.integration.event_support import PEOPLE, EventDatabase, event_database
from tests.servers import Servers

#: Ways in which alice changes table `a`, hiding the statement more or less. `%s`: GRANT … or REVOKE ….
WAYS = {
    "alone": "%s",
    "in DO": "DO $do$ BEGIN %s; END $do$",
    "in DO with a handler": "DO $do$ BEGIN BEGIN %s; EXCEPTION WHEN others THEN NULL; END; END $do$",
    "in a function": "CREATE OR REPLACE FUNCTION pg_temp.f() RETURNS void LANGUAGE plpgsql AS $f$ BEGIN %s; END $f$;"
    " SELECT pg_temp.f()",
    "in a transaction": "BEGIN; CREATE TABLE t1 (); %s; DROP TABLE t1; COMMIT",
    "between others": "BEGIN; GRANT SELECT ON b TO reader; %s; REVOKE SELECT ON b FROM reader; COMMIT",
    "in a savepoint": "BEGIN; SAVEPOINT s; %s; RELEASE s; COMMIT",
    "in the second savepoint": "BEGIN; SAVEPOINT s; GRANT SELECT ON b TO reader; SAVEPOINT r; %s; COMMIT",
    "after a rolled back savepoint": "BEGIN; SAVEPOINT s; GRANT SELECT ON b TO reader; ROLLBACK TO s; %s; COMMIT",
    "before a rolled back savepoint": "BEGIN; SAVEPOINT r; %s; SAVEPOINT s; GRANT ALL ON b TO reader; ROLLBACK TO s;"
    " COMMIT",
}
CHANGES = {
    "granted": ("GRANT INSERT ON a TO reader", GRANTED),
    "revoked": ("REVOKE DELETE ON a FROM reader", REVOKED),
}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def server(servers: Servers) -> AsyncIterator[PostgresServer]:
    """Without autovacuum, whose transactions between a change in a savepoint and its event make the proof weaker."""
    async with servers.run({"autovacuum": "off"}) as own:
        yield own


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def database(server: PostgresServer) -> AsyncIterator[EventDatabase]:
    async with event_database(server) as made:
        yield made


async def author_of(database: EventDatabase, changed: ChangedRow) -> DriftAuthor:
    return (await read_authors(database.reading, [changed]))[changed]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("change", CHANGES)
async def test_the_login_that_changes_a_table_is_named(database: EventDatabase, way: str, change: str) -> None:
    statement, tags = CHANGES[change]
    alice, bob = await database.person("alice"), await database.person("bob")
    await bob.execute("GRANT DELETE ON a TO reader; REVOKE INSERT ON a FROM reader; REVOKE ALL ON b FROM reader")
    await alice.execute(WAYS[way] % statement)
    xmin = await database.xmin_of_table("a")
    found = await author_of(database, ChangedRow(xmin, tags, ("a", "reader")))
    assert (found.proof, found.login, found.role) == (Evidence.TRANSACTION, "alice", "alice")
    assert found.application == "app of alice"
    assert found.address == "127.0.0.1"
    assert found.time is not None
    assert found.statement == (statement if way == "alone" else "")
    assert (await author_of(database, ChangedRow(xmin))).login == "alice"


async def test_the_matching_command_is_chosen_in_a_transaction_with_several(database: EventDatabase) -> None:
    """The statements are sent one by one, so that each one is recorded."""
    alice = await database.person("alice")
    async with alice.transaction():
        await alice.execute("GRANT INSERT ON c TO reader")
        await alice.execute("REVOKE SELECT ON d FROM reader")
        await alice.execute("GRANT UPDATE ON d TO reader")
        await alice.execute("CREATE TABLE c2 ()")
    xmin = await database.xmin_of_table("c")
    assert await database.xmin_of_table("d") == xmin
    assert (await author_of(database, ChangedRow(xmin, GRANTED, ("c", "reader")))).statement.endswith("ON c TO reader")
    revoked = await author_of(database, ChangedRow(xmin, REVOKED, ("d", "reader")))
    assert revoked.statement == "REVOKE SELECT ON d FROM reader"
    assert (await author_of(database, ChangedRow(xmin))).proof is Evidence.TRANSACTION


@pytest.mark.parametrize(
    ("statements", "catalog", "condition", "tags"),
    [
        (
            "GRANT SELECT (note) ON {table} TO reader",
            "pg_attribute",
            "attacl IS NOT NULL AND attname = 'note'",
            GRANTED,
        ),
        ("REVOKE USAGE ON SCHEMA s1 FROM reader", "pg_namespace", "nspname = 's1'", REVOKED),
        ("GRANT EXECUTE ON FUNCTION f1() TO reader", "pg_proc", "proname = 'f1'", GRANTED),
        ("GRANT UPDATE ON SEQUENCE q1 TO reader", "pg_class", "relname = 'q1'", GRANTED),
        ("GRANT USAGE ON TYPE t9 TO reader", "pg_type", "typname = 't9'", GRANTED),
        ("GRANT USAGE ON LANGUAGE plpgsql TO reader", "pg_language", "lanname = 'plpgsql'", GRANTED),
        ("GRANT SELECT ON LARGE OBJECT 99999 TO reader", "pg_largeobject_metadata", "oid = 99999", GRANTED),
        ("ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO reader", "pg_default_acl", "true", DEFAULTS),
        ("GRANT TRIGGER ON ALL TABLES IN SCHEMA public TO reader", "pg_class", "relname = 'h'", GRANTED),
        ("ALTER TABLE e OWNER TO bob", "pg_class", "relname = 'e'", ("ALTER TABLE",)),
    ],
)
async def test_a_change_of_every_kind_of_object_is_attributed(
    database: EventDatabase, statements: str, catalog: str, condition: str, tags: tuple[str, ...]
) -> None:
    carol = await database.person("carol")
    if not await database.reading.fetchval("SELECT true FROM pg_namespace WHERE nspname = 's1'"):
        await database.reading.execute(
            "CREATE SCHEMA s1; GRANT USAGE ON SCHEMA s1 TO reader; CREATE SEQUENCE public.q1;"
            "CREATE TYPE public.t9 AS ENUM (); SELECT lo_create(99999);"
            "CREATE FUNCTION public.f1() RETURNS int LANGUAGE sql AS 'SELECT 1'"
        )
    await carol.execute(statements.format(table="f"))
    xmin = await database.xmin(catalog, condition)
    found = await author_of(database, ChangedRow(xmin, tags, ("reader",)))
    assert (found.proof, found.login) == (Evidence.TRANSACTION, "carol")


@pytest.mark.parametrize(
    ("setup", "login", "role"),
    [
        ("SET ROLE bob", "alice", "bob"),
        ("SET SESSION AUTHORIZATION bob", "alice", "bob"),
        ("SET SESSION AUTHORIZATION bob; SET ROLE carol", "alice", "carol"),
    ],
)
async def test_the_login_is_named_whatever_role_the_session_acts_as(
    database: EventDatabase, setup: str, login: str, role: str
) -> None:
    alice = await database.person("alice")
    try:
        await alice.execute(setup)
        await alice.execute("GRANT REFERENCES ON g TO reader")
    finally:
        await alice.execute("RESET ROLE; RESET SESSION AUTHORIZATION; REVOKE REFERENCES ON h FROM reader")
    xmin = await database.xmin_of_table("g")
    found = await author_of(database, ChangedRow(xmin, GRANTED, ("g", "reader")))
    assert (found.proof, found.login, found.role) == (Evidence.TRANSACTION, login, role)
    await database.reading.execute("REVOKE REFERENCES ON public.g FROM reader")


@pytest.mark.parametrize("seed", range(8))
async def test_concurrent_transactions_are_attributed_correctly(database: EventDatabase, seed: int) -> None:
    """Each person changes their own tables; the steps of all, with savepoints, are interleaved at random."""
    chance = random.Random(seed)
    people = [await database.person(name) for name in PEOPLE]
    for person in people:
        await person.execute("REVOKE ALL ON a, b, c, d, e, f FROM reader")
    owned = dict(zip(PEOPLE, ("ab", "cd", "ef"), strict=True))
    steps: list[list[str]] = []
    for tables in owned.values():
        mine = ["BEGIN"]
        for table in tables:
            grant = f"GRANT SELECT ON {table} TO reader"
            hidden = f"DO $do$ BEGIN {grant}; END $do$"
            mine += chance.choice(
                (
                    [grant],
                    [hidden],
                    [f"SAVEPOINT s{table}", grant],
                    [f"SAVEPOINT s{table}", "GRANT INSERT ON h TO PUBLIC", f"ROLLBACK TO s{table}", grant]
                    if table == "a"  # h is locked until the end
                    else [f"SAVEPOINT s{table}", hidden, f"RELEASE s{table}"],
                )
            )
        steps.append([*mine, "COMMIT"])
    while any(steps):
        which = chance.choice([number for number, mine in enumerate(steps) if mine])
        await people[which].execute(steps[which].pop(0))
    rows = {
        ChangedRow(await database.xmin_of_table(table), GRANTED, (table, "reader")): name
        for name, tables in owned.items()
        for table in tables
    }
    found = await read_authors(database.reading, list(rows))
    assert {row: (found[row].login, found[row].proof) for row in rows} == {
        row: (name, Evidence.TRANSACTION) for row, name in rows.items()
    }


async def test_a_grant_by_an_event_trigger_within_another_grant_is_attributed(database: EventDatabase) -> None:
    """Its event has the text of the outer one, which does not make the change."""
    alice, bob = await database.person("alice"), await database.person("bob")
    await bob.execute(
        """
        CREATE FUNCTION public.more() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN
            IF NOT has_table_privilege('reader', 'public.h', 'TRUNCATE') THEN
                GRANT TRUNCATE ON public.h TO reader;
            END IF;
        END $$;
        CREATE EVENT TRIGGER more ON ddl_command_end WHEN TAG IN ('GRANT') EXECUTE FUNCTION public.more();
        """
    )
    try:
        await alice.execute("GRANT INSERT ON h TO reader")
    finally:
        await bob.execute("DROP EVENT TRIGGER more; DROP FUNCTION public.more()")
    oid = await database.reading.fetchval("SELECT 'public.h'::regclass::oid")
    for privilege in ("TRUNCATE", "INSERT"):
        change = ChangedPrivilege(privilege, granted=True)
        row = ChangedRow(await database.xmin_of_table("h"), GRANTED, ("h", "reader"), oid, "public", change)
        found = await author_of(database, row)
        assert (found.proof, found.login) == (Evidence.TRANSACTION, "alice")
    await bob.execute("REVOKE TRUNCATE, INSERT ON h FROM reader")


@pytest.mark.parametrize("way", ["alone", "in a transaction", "in a savepoint"])
async def test_the_controllers_own_event_is_no_author_of_what_another_granted_before(
    database: EventDatabase, way: str
) -> None:
    """Event triggers fire in its sessions where it may not turn them off."""
    await (await database.person("bob")).execute("REVOKE ALL ON a FROM reader")
    await (await database.person("alice")).execute("DO $$ BEGIN GRANT INSERT ON a TO reader; END $$")
    dsn, application = database.server.dsn(database=database.name), "pgrole-controller database"
    own = await asyncpg.connect(dsn, server_settings={"application_name": application})
    try:
        await own.execute(WAYS[way] % "GRANT UPDATE ON a TO reader; GRANT TRIGGER ON a TO reader")
    finally:
        await own.close()
    oid = await database.reading.fetchval("SELECT 'public.a'::regclass::oid")
    change = ChangedPrivilege("INSERT", granted=True)
    changed = ChangedRow(await database.xmin_of_table("a"), GRANTED, ("a", "reader"), oid, "public", change)
    assert await read_authors(database.reading, [changed]) == {}


async def test_no_one_is_named_without_an_event(database: EventDatabase) -> None:
    unknown = await database.xmin("pg_database", "datname = 'template1'")
    rows = [ChangedRow(xmin) for xmin in (unknown, 0, 1, 2, 2**32 - 1)]
    assert await read_authors(database.reading, rows) == {}
    assert await read_authors(database.reading, []) == {}


async def test_a_role_name_in_another_encoding_keeps_no_other_drift_from_having_an_author(
    database: EventDatabase,
) -> None:
    bob = await database.person("bob")
    await bob.execute("GRANT DELETE ON a TO reader")
    oid = await database.reading.fetchval("SELECT 'public.a'::regclass::oid")
    change = ChangedPrivilege("DELETE", granted=True)
    rows = [ChangedRow(0, GRANTED, ("a", name), oid, "public", change) for name in ("reader", "ren\udce9", "\0")]
    assert (await read_authors(database.reading, rows))[rows[0]].login == "bob"
    await bob.execute("REVOKE DELETE ON a FROM reader")


async def test_the_answer_is_bounded_for_any_number_of_rows_and_events(database: EventDatabase) -> None:
    bob = await database.person("bob")
    await bob.execute("BEGIN;" + "GRANT SELECT ON a TO reader; REVOKE SELECT ON a FROM reader;" * 200 + "COMMIT")
    xmin = await database.xmin_of_table("a")
    rows = [ChangedRow(one) for one in range(xmin + 5 * MOST_ROWS - 1, xmin - 1, -1)]
    found = await read_authors(database.reading, rows)
    assert found.keys() <= set(rows[:MOST_ROWS]), "the first are asked about"
    assert (await author_of(database, ChangedRow(xmin))).login == "bob"


@pytest.mark.parametrize(
    ("reached", "named"), [((True, True), {"alice"}), ((True, False), set()), ((False, True), set())]
)
async def test_a_row_that_is_not_compared_in_time_has_no_author(
    database: EventDatabase, monkeypatch: pytest.MonkeyPatch, reached: tuple[bool, bool], named: set[str]
) -> None:
    """An earlier statement might explain it better than the DO block that wrote it last."""
    alice = await database.person("alice")
    await alice.execute("REVOKE ALL ON c FROM reader; DO $$ BEGIN GRANT SELECT ON c TO reader; END $$")
    change = ChangedPrivilege("SELECT", True)
    xmin, oid = (
        await database.xmin_of_table("c"),
        await database.reading.fetchval("SELECT 'public.c'::regclass::oid::int8"),
    )
    changed = ChangedRow(xmin, GRANTED, ("c", "reader"), oid, "public", change)
    compared = iter(reached)
    monkeypatch.setattr(acl_attribution, "in_time", lambda rows: list(rows) if next(compared) else [])
    found = await read_authors(database.reading, [changed])
    assert {author.login for author in found.values()} == named


def test_rows_are_compared_for_a_limited_time(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [ChangedRow(1), ChangedRow(2)]
    assert list(acl_attribution.in_time(rows)) == rows
    monkeypatch.setattr(acl_attribution, "ATTRIBUTION_SECONDS", -1.0)
    assert list(acl_attribution.in_time(rows)) == []


HOSTILE = {
    "controls": "x\x1b[31m\r\ny\u202e\u2066z",
    "quotes": "'; DROP ROLE x; -- \\000 \\x00 $$ %s {0}",
    "long": "\u00e4" * 400,
}


@pytest.mark.parametrize("what", HOSTILE)
async def test_tenants_texts_are_made_printable_and_shortened(database: EventDatabase, what: str) -> None:
    alice = await database.person("alice")
    await alice.execute("SELECT set_config('application_name', $1, false)", HOSTILE[what])
    comment = (HOSTILE[what] * 300)[:2000]  # beyond 8,192 bytes, the trigger records no statement
    await alice.execute(f"GRANT SELECT ON d TO reader /* {comment.replace(';', '')} */")
    found = await author_of(database, ChangedRow(await database.xmin_of_table("d"), GRANTED, ("d", "reader")))
    await alice.execute("SET application_name = 'app of alice'; REVOKE SELECT ON d FROM reader")
    assert found.login == "alice"
    assert len(found.application.encode()) <= 4 * 63
    assert len(found.statement) <= 1000
    assert found.statement.startswith("GRANT SELECT ON d TO reader /*")
    assert all(character.isprintable() for character in found.application + found.statement)


async def test_who_acts_as_a_role_whose_name_is_not_utf8_is_named(
    database: EventDatabase, server: PostgresServer
) -> None:
    """Another database created the role in its encoding. Its last byte begins a character of UTF-8."""
    latin = f"latin_{database.name}"
    await database.reading.execute(f"CREATE DATABASE {latin} ENCODING 'LATIN1' TEMPLATE template0 LOCALE 'C'")
    there = await asyncpg.connect(server.dsn(database=latin))
    await there.execute('CREATE ROLE "caf\xe9"; GRANT "caf\xe9" TO alice')
    await there.close()
    await database.reading.execute(f"DROP DATABASE {latin}")
    cafe = "(SELECT rolname FROM pg_roles WHERE textsend(rolname::text) = 'caf\\351')"
    await database.reading.execute(f"DO $$ BEGIN EXECUTE format('GRANT ALL ON SCHEMA public TO %I', {cafe}); END $$")
    alice = await database.person("alice")
    await alice.execute(f"""
        DO $$ BEGIN
            EXECUTE format('SET LOCAL ROLE %I', {cafe});
            CREATE TABLE cafes (); GRANT SELECT ON cafes TO reader; REVOKE SELECT ON cafes FROM reader;
        END $$
    """)
    named = await author_of(database, ChangedRow(await database.xmin_of_table("cafes"), GRANTED, ("cafes", "reader")))
    gone = await author_of(database, ChangedRow(0, GRANTED, ("nothing", "reader")))
    await database.reading.execute(f"DO $$ BEGIN EXECUTE format('DROP OWNED BY %I; DROP ROLE %1$I', {cafe}); END $$")
    assert (named.login, named.role) == ("alice", "caf\\xe9")
    assert gone.login in ("", "alice")


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
async def test_a_change_in_a_database_with_another_encoding_is_attributed(
    server: PostgresServer, encoding: str
) -> None:
    options = f"ENCODING '{encoding}' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'"
    async with event_database(server, options=options) as database:
        dsn = server.dsn("alice", database.name, password="pw")
        alice = await asyncpg.connect(dsn, server_settings={"client_encoding": encoding})
        try:
            async with alice.transaction():  # a raw byte that is not UTF-8, in the statement
                await alice.execute("SELECT 1")
            await alice.execute("CREATE TABLE a2 (); GRANT SELECT ON a2 TO reader")
            await database.reading.execute(
                "UPDATE pgrole.ddl_event SET said = convert_from('\\x4752414e5420e9', getdatabaseencoding())"
                " WHERE tag = 'GRANT'"
            )
        finally:
            await alice.close()
        author = await author_of(database, ChangedRow(await database.xmin_of_table("a2")))
    assert author.login == "alice"
    assert author.statement == ("GRANT \u00e9" if encoding == "LATIN1" else "GRANT \\xe9")
