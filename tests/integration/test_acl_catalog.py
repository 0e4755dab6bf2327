"""postgres/privileges/acl_catalog and sql/privileges: which privileges of a database are read, and which are not."""

from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import pairwise

import asyncpg
import pytest
import pytest_asyncio

from pgrole_controller.core.errors import PgRoleError, Transient
from pgrole_controller.core.privileges.acl import DECLARABLE, TABLE_KINDS, AclEntry, ObjectId, ObjectKind
from pgrole_controller.core.privileges.observed_database import ObservedDatabase
from pgrole_controller.core.privileges.routine_signature import normalize_arguments
from pgrole_controller.local.postgres import PostgresServer
from pgrole_controller.postgres import answer_pages, queries
from pgrole_controller.postgres.answer_pages import SingleRow
from pgrole_controller.postgres.connection import Connection, Endpoint, connect
from pgrole_controller.postgres.privileges import acl_catalog, acl_rows
from pgrole_controller.postgres.privileges.acl_catalog import (
    ask_facts,
    facts_of,
    read_columns,
    read_database,
    read_defaults,
    read_facts,
    read_named_acls_and,
    read_recent_acls,
)
from pgrole_controller.postgres.privileges.acl_rows import AclGroup, TooManyObjects
from pgrole_controller.postgres.rows import Row, fetch_row
from tests.integration.acl_support import (
    SYSTEM_COLUMNS,
    AclDatabase,
    acl_database,
    anywhere,
    held,
    labels,
    named,
    next_xid,
    nowhere,
    read_acls,
    read_named,
    read_recent,
)
from tests.integration.sql_support import count_pages_of
from tests.servers import Servers

#: More than a query reads again of PostgreSQL's own catalogs, and fewer than a setting of 20 MB has.
FEW_PAGES = 20

#: One object of each declarable kind, by name: its kind, and how GRANT names it.
OBJECTS = {
    "t": (ObjectKind.TABLE, "TABLE app.t"),
    "parts": (ObjectKind.TABLE, "TABLE app.parts"),
    "v": (ObjectKind.VIEW, "TABLE app.v"),
    "m": (ObjectKind.MATERIALIZED_VIEW, "TABLE app.m"),
    "f": (ObjectKind.FOREIGN_TABLE, "TABLE app.f"),
    "s": (ObjectKind.SEQUENCE, "SEQUENCE app.s"),
    "fn": (ObjectKind.ROUTINE, "FUNCTION app.fn(int)"),
    "app": (ObjectKind.SCHEMA, "SCHEMA app"),
}

CREATED = """
SET ROLE {owner};
CREATE TABLE app.t (id int, name text);
CREATE TABLE app.parts (id int) PARTITION BY RANGE (id);
CREATE TABLE app.part PARTITION OF app.parts FOR VALUES FROM (0) TO (10);
CREATE VIEW app.v AS SELECT * FROM app.t;
CREATE MATERIALIZED VIEW app.m AS SELECT 1 AS id;
CREATE SEQUENCE app.s;
CREATE FUNCTION app.fn(int) RETURNS int LANGUAGE sql AS 'SELECT 1';
RESET ROLE;
CREATE FOREIGN DATA WRAPPER lake;
CREATE SERVER lake FOREIGN DATA WRAPPER lake;
CREATE FOREIGN TABLE app.f (id int) SERVER lake;
ALTER FOREIGN TABLE app.f OWNER TO {owner};
"""


@pytest_asyncio.fixture(loop_scope="session")
async def db(postgres_server: PostgresServer) -> AsyncIterator[AclDatabase]:
    async with acl_database(postgres_server) as made:
        await made.run(CREATED)
        yield made


@pytest.mark.parametrize("name", OBJECTS)
async def test_every_privilege_of_every_kind_is_read_as_granted(db: AclDatabase, name: str, servers: Servers) -> None:
    kind, words = OBJECTS[name]
    declarable = {p for p in DECLARABLE[kind] if p != "MAINTAIN" or servers.version >= 17}
    for privilege in declarable:
        await db.run(f"GRANT {privilege} ON {words} TO {{reader}}")
    found = named(await read_acls(db.connection, db.grantees("reader"), nowhere), name)
    assert found.object.kind is kind
    assert (found.object.owner, found.object.owner_name) == (db.oids["owner"], db.name("owner"))
    assert held(found) == {("", privilege) for privilege in declarable}
    assert {entry.grantor_name for entry in found.entries} == {db.name("owner")}
    assert {entry.grantee for entry in found.entries} == {db.oids["reader"]}


async def test_privileges_on_the_database_are_read(db: AclDatabase) -> None:
    database = await db.beside.fetchval("SELECT current_database()")
    await db.run(f'GRANT CREATE, CONNECT ON DATABASE "{database}" TO {{reader}}')
    found = named(await read_acls(db.connection, db.grantees("reader"), nowhere), database)
    assert found.object.kind is ObjectKind.DATABASE
    assert held(found) == {("", "CREATE"), ("", "CONNECT")}


async def test_privileges_on_columns_belong_to_their_table(db: AclDatabase) -> None:
    since = await next_xid(db.connection)
    await db.run("GRANT SELECT (id, name), UPDATE (name) ON app.t TO {reader}; GRANT SELECT (id) ON app.t TO {writer}")
    reader = db.grantees("reader")
    reads = [
        named(await read_acls(db.connection, reader, nowhere), "t"),
        named(await read_named(db.connection, reader, ["t"]), "t"),
        named(await read_recent(db.connection, reader, since, nowhere), "t"),
    ]
    for found in reads:
        assert held(found) == {("id", "SELECT"), ("name", "SELECT"), ("name", "UPDATE")}
    rows = await db.beside.fetch(
        "SELECT attname, xmin::text::bigint FROM pg_attribute WHERE attrelid = 'app.t'::regclass AND attacl IS NOT NULL"
    )
    written = await db.beside.fetchval("SELECT xmin::text::bigint FROM pg_class WHERE oid = 'app.t'::regclass")
    columns = {row["attname"]: row["xmin"] for row in rows}
    assert all(found.column_xmins == columns for found in reads)
    assert {found.xmin for found in reads} == {written}


async def test_privileges_on_system_columns_are_read(db: AclDatabase) -> None:
    await db.run("CREATE TABLE app.system (id int); CREATE VIEW app.without AS SELECT 1 AS id")
    since = await next_xid(db.connection)
    await db.run("GRANT SELECT (xmin) ON app.system TO {reader}")
    roles = db.grantees("reader")
    expected = {("xmin", "SELECT")}
    complete = await read_acls(db.connection, roles, nowhere)
    by_name = await read_named(db.connection, roles, ["system"])
    by_age = await read_recent(db.connection, roles, since, nowhere)
    assert [held(named(found, "system")) for found in (complete, by_name, by_age)] == [expected] * 3
    found = await read_named(db.connection, roles, ["system", "without"])
    table, view = (named(found, name).object.id for name in ("system", "without"))
    columns = await read_columns(db.connection, [table.oid, view.oid])
    assert columns == {table: SYSTEM_COLUMNS | {"id"}, view: {"id"}}


async def test_each_grantor_has_an_entry_of_its_own(db: AclDatabase) -> None:
    await db.run("""
        GRANT SELECT ON app.t TO {delegate} WITH GRANT OPTION;
        GRANT SELECT ON app.t TO {reader};
        SET ROLE {delegate}; GRANT SELECT ON app.t TO {reader}; RESET ROLE
    """)
    found = named(await read_acls(db.connection, db.grantees("reader", "delegate"), nowhere), "t")
    owner, delegate, reader = db.oids["owner"], db.oids["delegate"], db.oids["reader"]
    assert set(found.entries) == {
        AclEntry(delegate, owner, db.name("owner"), "SELECT", grantable=True),
        AclEntry(reader, owner, db.name("owner"), "SELECT"),
        AclEntry(reader, delegate, db.name("delegate"), "SELECT"),
    }


async def test_only_held_privileges_are_read_where_no_declaration_reaches(db: AclDatabase) -> None:
    await db.run("""
        CREATE SCHEMA other;
        CREATE TABLE other.quiet (); CREATE TABLE other.held (); CREATE TABLE other.column_held (id int);
        CREATE TABLE other.own (); ALTER TABLE other.own OWNER TO {reader};
        CREATE FUNCTION other.fn() RETURNS int LANGUAGE sql AS 'SELECT 1';
        GRANT SELECT ON other.held TO {reader}; GRANT SELECT (id) ON other.column_held TO {reader};
        GRANT SELECT ON other.quiet TO {stranger}
    """)
    reader = db.grantees("reader")
    found = await read_acls(db.connection, reader, lambda schema, kind: (schema, kind) == ("app", ObjectKind.ROUTINE))
    assert {one for one in labels(found) if "." in one} == {
        "table other.held",
        "table other.column_held",
        "routine app.fn(integer)",
    }
    found = await read_acls(db.connection, reader, lambda schema, kind: (schema, kind) == ("other", ObjectKind.TABLE))
    assert {one for one in labels(found) if "." in one} == {
        "table other.held",
        "table other.column_held",
        "table other.quiet",
        "table other.own",
    }


async def test_an_owners_implicit_privileges_count_as_held(db: AclDatabase) -> None:
    found = named(await read_acls(db.connection, db.grantees("owner"), anywhere), "t")
    assert held(found) >= {("", "SELECT"), ("", "TRIGGER")}


async def test_a_read_on_a_connection_that_was_ended_says_that_it_is_lost(db: AclDatabase) -> None:
    db.connection.terminate()
    with pytest.raises(Transient):
        await read_acls(db.connection, db.grantees("reader"), nowhere)


async def test_system_and_temporary_objects_are_omitted(db: AclDatabase) -> None:
    await db.run("CREATE TEMP TABLE fleeting (); GRANT SELECT ON fleeting, pg_catalog.pg_authid TO {reader}")
    found = await read_acls(db.connection, db.grantees("reader"), anywhere)
    assert {one.object.schema for one in found} == {"", "app", "public"}
    assert "fleeting" not in {one.object.name for one in found}


async def test_schema_public_is_read_after_it_was_renamed(db: AclDatabase) -> None:
    reader, since = db.grantees("reader"), await next_xid(db.connection)
    await db.run("ALTER SCHEMA public RENAME TO shop; GRANT CREATE ON SCHEMA shop TO {reader}")
    for found in (
        await read_acls(db.connection, reader, nowhere),
        await read_named(db.connection, reader, ["shop"]),
        await read_recent(db.connection, reader, since, nowhere),
    ):
        assert held(named(found, "shop", "shop")) == {("", "CREATE")}


async def test_extension_members_and_elevated_routines_are_marked(db: AclDatabase) -> None:
    await db.run("""
        ALTER EXTENSION plpgsql ADD TABLE app.t; ALTER FUNCTION app.fn SECURITY DEFINER;
        CREATE LANGUAGE wild HANDLER plpgsql_call_handler; CREATE TYPE app.span AS RANGE (SUBTYPE = int);
        CREATE FUNCTION app.untrusted(int) RETURNS int LANGUAGE wild AS 'BEGIN RETURN 1; END';
        CREATE FUNCTION app.trusted(int, int) RETURNS int LANGUAGE sql AS 'SELECT 1';
        CREATE AGGREGATE app.total(int) (SFUNC = app.trusted, STYPE = int)
    """)
    found = await read_acls(db.connection, db.grantees("reader"), anywhere)
    assert {one.object.name for one in found if one.object.extension} == {"t"}
    assert {one.object.name for one in found if one.object.elevated} == {"fn", "untrusted"}
    oids = [one.object.id.oid for one in found if one.object.kind is ObjectKind.ROUTINE]
    again = await read_named(db.connection, db.grantees("reader"), (), oids)
    assert {one.object.name for one in again if one.object.elevated} == {"fn", "untrusted"}


async def test_undeclarable_kinds_are_read_where_a_grantee_holds_a_privilege(db: AclDatabase) -> None:
    await db.run("""
        CREATE TYPE app.color AS ENUM (); CREATE DOMAIN app.short AS text; CREATE TYPE app.quiet AS ENUM ();
        GRANT USAGE ON TYPE app.color TO {reader}; GRANT USAGE ON DOMAIN app.short TO {reader};
        GRANT USAGE ON TYPE text, information_schema.sql_identifier TO {reader};
        GRANT USAGE ON LANGUAGE sql TO {reader}; GRANT USAGE ON FOREIGN DATA WRAPPER lake TO {reader};
        GRANT USAGE ON FOREIGN SERVER lake TO {reader}; SELECT lo_create(123456);
        GRANT SELECT ON LARGE OBJECT 123456 TO {reader}
    """)
    found = await read_acls(db.connection, db.grantees("reader"), nowhere)
    others = {(one.object.kind, one.object.name) for one in found if one.object.kind not in DECLARABLE}
    assert others == {
        (ObjectKind.TYPE, "color"),
        (ObjectKind.TYPE, "short"),
        (ObjectKind.LANGUAGE, "sql"),
        (ObjectKind.FOREIGN_DATA_WRAPPER, "lake"),
        (ObjectKind.FOREIGN_SERVER, "lake"),
        (ObjectKind.LARGE_OBJECT, "123456"),
    }
    assert all(held(one) in ({("", "USAGE")}, {("", "SELECT")}) for one in found if one.object.kind not in DECLARABLE)


ARGUMENTS = {
    "plain(a int, b text DEFAULT 'x')": "integer, text",
    "none()": "",
    "out(a int, OUT b text, INOUT c bigint)": "integer, bigint",
    "many(VARIADIC a text[])": "text[]",
    'quoted(a app."Odd ""type", b app."Odd ""type"[])': 'app."Odd ""type", app."Odd ""type"[]',
    'short(a "char", b char(3), c bit varying, d timestamp)': (
        '"char", character, bit varying, timestamp without time zone'
    ),
    "table_of(a int) ": "integer",
}


async def test_arguments_of_routines_are_their_input_types(db: AclDatabase) -> None:
    await db.run('CREATE TYPE app."Odd ""type" AS ENUM ()')
    for signature in ARGUMENTS:
        returns = {"out": "record", "table_of": "TABLE (x int)"}.get(signature.split("(")[0], "int")
        body = "LANGUAGE plpgsql AS 'BEGIN END'"
        await db.run(f"CREATE FUNCTION app.{signature} RETURNS {returns} {body}")
    await db.run("""
        CREATE FUNCTION app.step(int, int, numeric) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT 1';
        CREATE AGGREGATE app.total(int, numeric) (SFUNC = app.step, STYPE = int);
        CREATE PROCEDURE app.proc(a int, INOUT b text) LANGUAGE plpgsql AS 'BEGIN END'
    """)
    found = await read_acls(db.connection, db.grantees("reader"), anywhere)
    arguments = {one.object.name: one.object.arguments for one in found if one.object.kind is ObjectKind.ROUTINE}
    expected = {signature.split("(")[0]: text for signature, text in ARGUMENTS.items()}
    assert arguments == {
        "fn": "integer",
        "step": "integer, integer, numeric",
        "total": "integer, numeric",
        "proc": "integer, text",
        **expected,
    }


ODD_NAMES = ['a "quoted" one', "line\nbreak", "tab\tand 'single'", "%s %I $1 \\", "ü" * 31, "x" * 63, ";--", "NULL"]


@pytest.mark.parametrize(
    "declared",
    [
        "int, int2, int4, int8, integer, smallint, bigint",
        "float, float4, float8, float(24), float(25), real, double precision",
        "bool, boolean, dec, decimal(3), numeric(10, 2)",
        'char, char(3), character, bpchar, nchar(2), national character, "char", pg_catalog."char", pg_catalog.char',
        "varchar, varchar(10), char varying(3), character varying, national char varying, nchar varying(2)",
        "time, timetz, timestamp, timestamptz, time(3), timestamp (3), time without time zone, time(3) with time zone",
        "timestamp with time zone, timestamp(0) without time zone, interval, interval(3), interval day to second(3)",
        "bit, bit(3), bit varying, bit varying(3), varbit, varbit(3), interval year, interval second(3)",
        "pg_catalog.int4, pg_catalog.varchar(3), pg_catalog.timestamptz[], pg_catalog.text, pg_catalog . bit",
        "int[], integer[3][], text array, float array[3], varchar(3)[], app.state[]",
        'App.State, app."State", app."odd,(3)", app."odd,(3)"[]',
        'app."state", "app"."odd,(3)", "int8", "varchar"(3), "text"[], "bit", "numeric", "timestamptz", "char"',
        "id bigint, in b text, inout c int, VARIADIC d INT[]",
        "id int, out b int",
    ],
)
async def test_argument_types_as_declared_and_as_postgresql_shows_them_are_equal(
    db: AclDatabase, declared: str
) -> None:
    types = "".join(f"CREATE TYPE app.{name} AS ENUM ();" for name in ("state", '"State"', '"odd,(3)"'))
    returned = "" if ", out " in declared else "RETURNS int"
    await db.run(f"{types} CREATE FUNCTION app.one({declared}) {returned} LANGUAGE sql AS 'SELECT 1'")
    found = named(await read_acls(db.connection, db.grantees("reader"), anywhere), "one")
    assert normalize_arguments(declared) == normalize_arguments(found.object.arguments)
    assert normalize_arguments(found.object.arguments) == found.object.arguments.replace(", ", ",")


async def test_odd_names_are_read_unchanged(db: AclDatabase) -> None:
    for name in ODD_NAMES:
        quoted = '"' + name.replace('"', '""') + '"'
        await db.beside.execute(f"CREATE SCHEMA {quoted}; CREATE TABLE {quoted}.{quoted} ({quoted} int)")
        await db.beside.execute(f"GRANT SELECT ({quoted}) ON {quoted}.{quoted} TO {db.name('reader')}")
    found = await read_acls(db.connection, db.grantees("reader"), nowhere)
    tables = [one for one in found if one.object.kind is ObjectKind.TABLE]
    assert {(one.object.schema, one.object.name, *held(one)) for one in tables} == {
        (name, name, (name, "SELECT")) for name in ODD_NAMES
    }
    columns = await read_columns(db.connection, [one.object.id.oid for one in tables])
    assert set(columns.values()) == {SYSTEM_COLUMNS | {name} for name in ODD_NAMES}
    by_name = await read_named(db.connection, db.grantees("reader"), ODD_NAMES)
    assert {one.object.name for one in by_name} == set(ODD_NAMES)


@pytest.mark.parametrize(("encoding", "shown"), [("SQL_ASCII", "caf\udce9"), ("LATIN1", "café")])
async def test_names_in_other_encodings_are_read(postgres_server: PostgresServer, encoding: str, shown: str) -> None:
    options = f"TEMPLATE template0 ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C'"
    async with acl_database(postgres_server, options) as db:
        raw = "DO $$ BEGIN EXECUTE format('CREATE TABLE app.%I (%I int)', 'caf' || {e}, 'c' || {e}); END $$"
        e = "convert_from('\\xe9'::bytea, 'SQL_ASCII')" if encoding == "SQL_ASCII" else "chr(233)"
        await db.beside.execute(raw.replace("{e}", e))
        await db.run("GRANT SELECT ON ALL TABLES IN SCHEMA app TO {reader}")
        found = named(await read_acls(db.connection, db.grantees("reader"), nowhere), shown)
        assert held(found) == {("", "SELECT")}
        assert await read_columns(db.connection, [found.object.id.oid]) == {
            found.object.id: SYSTEM_COLUMNS | {shown.replace("caf", "c")}
        }


async def test_a_recent_read_finds_the_objects_changed_since(db: AclDatabase) -> None:
    reader = db.grantees("reader")
    since = list[int]()
    for grant in ("SELECT ON app.t", "EXECUTE ON FUNCTION app.fn", "SELECT (id) ON app.v", "USAGE ON SCHEMA app"):
        since.append(await next_xid(db.connection))
        await db.run(f"GRANT {grant} TO {{reader}}")
    names = {"t", "fn", "v", "app"}

    async def recent(xid: int) -> set[str]:
        return {one.object.name for one in await read_recent(db.connection, reader, xid, nowhere)} & names

    assert await recent(since[3]) == {"app"}
    assert await recent(since[2]) == {"app", "v"}
    assert await recent(since[0]) == names
    tables = [await db.beside.fetchval("SELECT 'app.m'::regclass::oid")]
    found = await read_recent(db.connection, reader, since[0], nowhere, tables)
    assert "m" not in {one.object.name for one in found}
    begin = await next_xid(db.connection)
    await db.run("GRANT SELECT (id) ON app.m TO {reader}")
    await db.run("REVOKE SELECT (id) ON app.m FROM {reader}")
    found = await read_recent(db.connection, reader, begin, nowhere, tables)
    assert "m" in {one.object.name for one in found}


async def test_objects_are_read_by_oid_and_by_name_in_every_schema(db: AclDatabase) -> None:
    await db.run("CREATE SCHEMA other; CREATE TABLE other.t ()")
    await db.run("CREATE FUNCTION app.t() RETURNS int LANGUAGE sql AS 'SELECT 1'")
    reader = db.grantees("reader")
    sequence = await db.beside.fetchval("SELECT 'app.s'::regclass::oid")
    found = await read_named(db.connection, reader, ["t", "absent", "caf\udce9"], [sequence])
    assert labels(found) == {"table app.t", "table other.t", "routine app.t()", "sequence app.s"}


async def test_a_read_by_name_returns_only_objects_that_the_transaction_wrote(db: AclDatabase) -> None:
    await db.run("CREATE SCHEMA other; CREATE TABLE other.t (id int); CREATE TABLE other.v (id int)")
    await db.run("CREATE FUNCTION other.fn() RETURNS int LANGUAGE sql AS 'SELECT 1'")
    reader, nothing = db.grantees("reader"), SingleRow("SELECT 1 AS one")

    async def read_since(script: str, *, columns: bool = False) -> set[str]:
        async with db.beside.transaction():
            xid = int(await db.beside.fetchval("SELECT pg_current_xact_id()::text"))
            await db.run(f"SAVEPOINT one; {script}; RELEASE one")
        names = ("t", "v", "fn", "other")
        return labels((await read_named_acls_and(nothing, db.connection, reader, (), names, xid, columns=columns))[0])

    assert await read_since("GRANT SELECT ON other.t TO {reader}") == {"table other.t"}
    assert await read_since("GRANT SELECT (id) ON other.v TO {reader}", columns=True) == {"table other.v"}
    assert await read_since("REVOKE SELECT (id) ON other.v FROM {reader}", columns=True) == {"table other.v"}
    assert await read_since("GRANT SELECT (id) ON other.v TO {reader}") == set()
    assert await read_since("GRANT EXECUTE ON FUNCTION other.fn TO {reader}") == {"routine other.fn()"}
    assert await read_since("GRANT USAGE ON SCHEMA other TO {reader}") == {"schema other"}
    assert await read_since("SELECT 1") == set()


async def test_reading_one_object_takes_no_more_pages_with_more_objects(db: AclDatabase) -> None:
    """With a generic plan, as the controller's connections use, and statistics older than the objects."""

    async def count_pages() -> int:
        oid = await db.beside.fetchval("SELECT 'app.t'::regclass::oid")
        query = queries.privileges("objects", objects="named_objects")
        return await count_pages_of(
            db.beside, query, f"('{{}}', NULL, NULL, '{{}}', '{{{oid}}}', '{{t,fn}}', '1', true)"
        )

    before = await count_pages()
    await db.run(
        """
        DO $$ BEGIN FOR n IN 1..1500 LOOP
            EXECUTE format('CREATE TABLE app.many_%s (id int)', n);
            EXECUTE format('GRANT SELECT (id) ON app.many_%s TO {reader}', n);
            EXECUTE format('CREATE FUNCTION app.many_%s() RETURNS int LANGUAGE sql AS $f$ SELECT 1 $f$', n);
        END LOOP; END $$
        """
    )
    assert await count_pages() < before + 20


async def test_the_digest_changes_with_owner_and_acl_only(db: AclDatabase) -> None:
    seen = []
    for change in (
        "SELECT",
        "ALTER TABLE app.t OWNER TO {heir}",
        "GRANT SELECT ON app.t TO {stranger}",
        "GRANT SELECT ON app.t TO {stranger} WITH GRANT OPTION",
        "REVOKE ALL ON app.t FROM {stranger}",
        "REVOKE ALL ON app.t FROM {heir}",
    ):
        await db.run(change)
        found = named(await read_acls(db.connection, [], anywhere), "t")
        seen.append(found.seen)
        assert found.seen == named(await read_named(db.connection, db.grantees("reader"), ["t"]), "t").seen
    assert all(one != other for one, other in pairwise(seen))
    await db.run("ALTER TABLE app.t ADD COLUMN other int")
    assert named(await read_acls(db.connection, [], anywhere), "t").seen == seen[-1]


async def test_default_privileges_are_read_by_creator_schema_and_type(db: AclDatabase) -> None:
    await db.run("""
        ALTER DEFAULT PRIVILEGES FOR ROLE {owner} IN SCHEMA app GRANT SELECT, INSERT ON TABLES TO {reader};
        ALTER DEFAULT PRIVILEGES FOR ROLE {heir} GRANT EXECUTE ON FUNCTIONS TO {reader};
        ALTER DEFAULT PRIVILEGES FOR ROLE {heir} GRANT USAGE ON SEQUENCES TO {stranger};
    """)
    found = await read_defaults(db.connection, db.grantees("reader", "heir"))
    assert {
        (one.creator_name, one.schema, one.object_type, tuple(sorted(entry.privilege for entry in one.entries)))
        for one in found
    } == {
        (db.name("owner"), "app", "r", ("INSERT", "SELECT")),
        (db.name("heir"), "", "f", ("EXECUTE",)),
    }
    assert {one.creator for one in found} == {db.oids["owner"], db.oids["heir"]}


async def test_the_facts_of_a_database_are_read(db: AclDatabase, servers: Servers) -> None:
    database = await db.beside.fetchval("SELECT current_database()")
    await db.run(f"""
        ALTER ROLE {{owner}} SET search_path = app, "Odd, one";
        ALTER DATABASE "{database}" SET search_path = "$user", shared;
        ALTER ROLE {{heir}} IN DATABASE postgres SET search_path = elsewhere;
        CREATE SCHEMA {{heir}}
    """)
    facts, roles = await read_facts(db.connection, [db.name("owner"), "absent"])
    assert roles == {db.name("owner"): db.oids["owner"]}
    assert facts.database == database
    assert facts.version // 10_000 == servers.version
    assert facts.search_path_schemas == {"app", "Odd, one", "$user", "shared", db.name("heir")}
    superuser = await db.beside.fetchval("SELECT oid FROM pg_roles WHERE rolname = current_user")
    assert superuser in facts.superusers
    assert facts.own_roles == {superuser}
    assert not facts.superusers & set(db.oids.values())


async def test_the_search_path_of_the_servers_configuration_is_a_fact_for_superusers(db: AclDatabase) -> None:
    await db.run("ALTER ROLE {delegate} LOGIN PASSWORD 'p'")
    await db.beside.execute("ALTER SYSTEM SET search_path = 'tools', 'Odd, one', public")
    try:
        facts, _ = await read_facts(db.connection, ())
        tenant = await asyncpg.connect(db.dsn, user=db.name("delegate"), password="p")
        try:
            assert not (await read_facts(tenant, ()))[0].search_path_schemas
        finally:
            await tenant.close()
    finally:
        await db.beside.execute("ALTER SYSTEM RESET search_path")
    assert facts.search_path_schemas == {"tools", "Odd, one", "public"}
    assert not facts.search_paths_cut
    assert not (await read_facts(db.connection, ()))[0].search_path_schemas


#: How any role stores long settings: `tenant` may log in, and create functions in schema app.
LONG_SETTINGS = {
    "of a role": "ALTER ROLE CURRENT_USER SET search_path FROM CURRENT",
    "of a role in this database": "ALTER ROLE CURRENT_USER IN DATABASE {database} SET search_path FROM CURRENT",
    "of a function": "CREATE FUNCTION app.long() RETURNS int LANGUAGE sql SET search_path FROM CURRENT AS 'SELECT 1'",
}
TEMPORARY = """
    DO $$ BEGIN FOR n IN 1 .. 3 LOOP EXECUTE format(
        'CREATE FUNCTION pg_temp.f%s() RETURNS int LANGUAGE sql SET search_path FROM CURRENT AS $f$ SELECT 1 $f$', n
    ); END LOOP; END $$
"""


#: 260 KB that do not compress, and 20 MB that do. Either takes more pages than FEW_PAGES.
UNCOMPRESSED = "(SELECT string_agg(md5(n::text), '') FROM generate_series(1, 8000) AS n)"
COMPRESSED = "repeat('a', 20000000)"


@asynccontextmanager
async def tenant_with_a_long_search_path(db: AclDatabase, text: str = UNCOMPRESSED) -> AsyncIterator[Connection]:
    await db.run("ALTER ROLE {delegate} LOGIN PASSWORD 'p'; GRANT CREATE ON SCHEMA app TO {delegate}")
    tenant = await asyncpg.connect(db.dsn, user=db.name("delegate"), password="p")
    try:
        await tenant.execute(f"SELECT set_config('search_path', {text}, false)")
        yield tenant
    finally:
        await tenant.close()


async def count_pages_of_facts(db: AclDatabase) -> int:
    return await count_pages_of(db.beside, queries.privileges("facts"), "('{}', true)")


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        *((kind, UNCOMPRESSED) for kind in LONG_SETTINGS),
        pytest.param("of a function", COMPRESSED, marks=pytest.mark.slow),
    ],
)
async def test_a_long_setting_is_not_read_and_may_name_any_schema(db: AclDatabase, kind: str, text: str) -> None:
    before = await count_pages_of_facts(db)
    assert not (await read_facts(db.connection, ()))[0].search_paths_cut
    async with tenant_with_a_long_search_path(db, text) as tenant:
        database = await db.beside.fetchval("SELECT quote_ident(current_database())")
        await tenant.execute(LONG_SETTINGS[kind].replace("{database}", database))
    facts, _ = await read_facts(db.connection, ())
    assert facts.search_paths_cut
    assert facts.search_path_schemas == set()
    assert await count_pages_of_facts(db) <= before + FEW_PAGES


@pytest.mark.slow
async def test_functions_in_temporary_schemas_of_other_sessions_do_not_count(db: AclDatabase) -> None:
    before = await count_pages_of_facts(db)
    async with tenant_with_a_long_search_path(db) as tenant:
        await tenant.execute(TEMPORARY)
        facts, _ = await read_facts(db.connection, ())
        assert not facts.search_paths_cut
        assert facts.search_path_schemas == set()
        assert await count_pages_of_facts(db) <= before + FEW_PAGES


async def test_as_many_search_paths_as_are_read_at_most_may_name_any_schema(db: AclDatabase) -> None:
    await db.run("""
        SELECT set_config('search_path', string_agg(md5(n::text), ', '), false) FROM generate_series(1, 55) AS n;
        DO $do$ BEGIN FOR n IN 1 .. 1200 LOOP EXECUTE format(
            'CREATE FUNCTION app.f%s() RETURNS int LANGUAGE sql SET search_path FROM CURRENT AS $f$ SELECT 1 $f$', n
        ); END LOOP; END $do$;
        RESET search_path
    """)
    assert (await read_facts(db.connection, ()))[0].search_paths_cut


async def test_search_paths_that_are_not_asked_for_may_name_any_schema(db: AclDatabase) -> None:
    await db.run("ALTER ROLE {owner} SET search_path = app")
    asked = ask_facts(db.connection, (), search_paths=False)
    facts, _ = facts_of(await fetch_row(db.connection, asked.question, *asked.arguments))
    assert facts.search_paths_cut
    assert facts.search_path_schemas == set()


async def test_a_full_read_has_everything_in_one_snapshot(db: AclDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    await db.run("GRANT SELECT ON app.t TO {reader}")
    read_schemas = acl_catalog.read_schemas

    async def read_before_a_change(connection: Connection) -> dict[int, str]:
        found = await read_schemas(connection)
        await db.beside.execute("CREATE SCHEMA later; ALTER TABLE app.t ADD later int")
        return found

    monkeypatch.setattr(acl_catalog, "read_schemas", read_before_a_change)
    observed = await read_database(
        db.connection, db.grantees("reader"), [db.name("owner")], anywhere, lambda found: found.name == "t"
    )
    assert observed.complete
    assert "later" not in {one.object.name for one in observed.acls}
    assert observed.schemas == {"app", "public", "pg_catalog", "information_schema"}
    assert observed.roles == {db.name("owner"): db.oids["owner"]}
    table = named(observed.acls, "t").object.id
    assert observed.columns == {table: SYSTEM_COLUMNS | {"id", "name"}}
    assert {one.object.kind for one in observed.acls} >= {*TABLE_KINDS, ObjectKind.DATABASE, ObjectKind.SCHEMA}
    assert len({one.object.id for one in observed.acls}) == len(observed.acls)
    assert isinstance(table, ObjectId)
    assert observed.largest_acl == 2  # the owner's entry, and the reader's


async def test_several_portions_return_the_same_as_one(db: AclDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    await db.run(
        "CREATE TYPE app.mood AS ENUM ('glad'); GRANT USAGE ON TYPE app.mood TO {reader};"
        "CREATE TABLE app.more (id int, name text); GRANT SELECT (id), UPDATE (name) ON app.more TO {reader};"
        "CREATE SCHEMA late; CREATE TABLE late.last (id int); GRANT SELECT (id) ON late.last TO {reader};"
        "CREATE FUNCTION late.fn(int) RETURNS int LANGUAGE sql AS 'SELECT 1';"
        "GRANT USAGE ON LANGUAGE plpgsql TO {reader}"
    )
    queries: list[str] = []

    crowded = False

    def read_group(row: Row) -> AclGroup:
        nonlocal crowded
        if crowded:
            crowded = False
            raise TooManyObjects
        return acl_rows.read_group(row)

    monkeypatch.setattr(acl_catalog, "read_group", read_group)

    async def read() -> ObservedDatabase:
        queries.clear()
        with db.connection.query_logger(lambda one: queries.append(one.query)):
            found = await read_database(db.connection, db.grantees("reader"), (), anywhere, lambda _: True)
        return replace(found, acls=sorted(found.acls, key=lambda one: one.object.id))

    whole = await read()
    assert _count_answers(queries) == 1
    labels = {one.object.label for one in whole.acls if one.entries}
    assert {"type app.mood", "table app.more", "table late.last", "language plpgsql"} <= labels
    objects = sum(one.object.id.catalog in ("pg_class", "pg_proc") for one in whole.acls)
    for portion in (1, 2, 3, objects - 1, objects, objects + 1):
        crowded = True
        monkeypatch.setattr(acl_catalog, "PORTION_OBJECTS", portion)
        assert await read() == whole, portion
        assert _count_answers(queries) == 1 + objects // portion + 1


def _count_answers(queries: Collection[str]) -> int:
    return sum("WITH object" in one for one in queries)


async def test_several_pages_return_the_same_as_one(db: AclDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    await db.run("""
        CREATE SCHEMA late; CREATE TABLE late.last (id int, name text, more text);
        GRANT SELECT (id, name), UPDATE (name) ON late.last TO {reader}; GRANT INSERT (more) ON late.last TO {writer};
        GRANT SELECT (id) ON app.t TO {reader} WITH GRANT OPTION;
        CREATE FUNCTION late.fn(int, app.t) RETURNS int LANGUAGE sql AS 'SELECT 1';
        ALTER DEFAULT PRIVILEGES FOR ROLE {owner} IN SCHEMA app GRANT SELECT, INSERT ON TABLES TO {reader};
        ALTER DEFAULT PRIVILEGES FOR ROLE {heir} GRANT EXECUTE ON FUNCTIONS TO {reader}
    """)
    grantees, asked = db.grantees("reader", "writer"), SingleRow("SELECT $1::int AS one", (7,))

    async def read() -> list[object]:
        whole = await read_database(db.connection, grantees, (), anywhere, lambda _: True)
        names = ("t", "last", "fn", "late")
        by_name, answer = await read_named_acls_and(asked, db.connection, grantees, (), names, 0, columns=True)
        recent, same = await read_recent_acls(asked, db.connection, grantees, 3, anywhere, (), database=True)
        assert answer.get("one", int) == same.get("one", int) == 7
        lists = [sorted(acls, key=lambda one: one.object.id) for acls in (whole.acls, by_name, recent)]
        return [*lists, whole.columns, whole.schemas, sorted(whole.defaults or (), key=str)]

    one_page = await read()
    assert all(one_page)
    for size in (1, 2500, 5000):
        monkeypatch.setattr(answer_pages, "PAGE_BYTES", size)
        assert await read() == one_page, size


async def test_a_database_of_ordinary_size_takes_one_answer_per_query(db: AclDatabase) -> None:
    await db.run("""
        DO $$ BEGIN FOR n IN 1..1000 LOOP
            EXECUTE format('CREATE TABLE app.many_%s (id int, name text)', n);
            EXECUTE format('GRANT SELECT, INSERT ON app.many_%s TO {reader}', n);
        END LOOP; END $$
    """)
    asked: list[str] = []
    for _ in range(2):  # asyncpg looks up types before the first
        asked.clear()
        with db.connection.query_logger(lambda one: asked.append(one.query)):
            await read_database(db.connection, db.grantees("reader", "writer"), (), anywhere, lambda _: True)
    assert len([query for query in asked if not query.startswith(("BEGIN", "COMMIT"))]) == 8, (
        "schemas, privileges on columns, objects, arguments, members of extensions, facts, defaults, names of columns"
    )


LONG = '"' + '""' * 63 + '"'
WIDE = ", ".join(f"c{n:04}{'x' * 58}" for n in range(1600))

#: Content larger than `framing.VOLUME` or than one answer may list, and the number of objects read in schema m.
LARGE = {
    "different ACLs": (
        """
        SET allow_system_table_mods = on;
        DO $do$ BEGIN FOR n IN 1..20000 LOOP
            EXECUTE format('CREATE FUNCTION m.f%s() RETURNS int LANGUAGE sql AS $$ SELECT 1 $$', n);
        END LOOP; END $do$;
        UPDATE pg_proc AS p SET proacl = ARRAY[
            makeaclitem(to_regrole('{reader}')::oid, p.proowner, 'EXECUTE', false),
            makeaclitem((3000000000 + p.oid::bigint)::oid, p.proowner, 'EXECUTE', false)
        ] WHERE pronamespace = 'm'::regnamespace
        """,
        20000,
    ),
    "names of columns": (
        f"""
        DO $$ BEGIN FOR n IN 1..170 LOOP
            EXECUTE format('CREATE TABLE m.t%s ({WIDE.replace(",", " bool,")} bool)', n);
        END LOOP; END $$
        """,
        170,
    ),
    "default privileges": (
        """
        SET allow_system_table_mods = on;
        INSERT INTO pg_default_acl (oid, defaclrole, defaclnamespace, defaclobjtype, defaclacl)
        SELECT 3000000000 + n, 3000000000 + n, 0, 'r', '{{reader}=arwdDxt/{owner}}'::aclitem[]
        FROM generate_series(1, 20000) AS n
        """,
        0,
    ),
    "lists of arguments": (
        """
        DO $do$ BEGIN FOR n IN 1..16000 LOOP
            EXECUTE format('CREATE FUNCTION m.f%s(%s) RETURNS int LANGUAGE sql AS $$ SELECT 1 $$', n, (
                SELECT string_agg(CASE WHEN n & (1 << bit) > 0 THEN 'int' ELSE 'text' END, ',')
                FROM generate_series(0, 14) AS bit
            ));
        END LOOP; END $do$
        """,
        16000,
    ),
    "types of arguments": (
        """
        SET allow_system_table_mods = on;
        CREATE FUNCTION m.f() RETURNS int LANGUAGE sql AS 'SELECT 1';
        INSERT INTO pg_proc SELECT (p.r).* FROM (
            SELECT jsonb_populate_record(f, jsonb_build_object(
                'oid', 4000000000 + n, 'proname', 'f' || n, 'pronargs', 100,
                'proargtypes', (SELECT string_agg((3e9 + 100 * n + i)::text, ' ') FROM generate_series(1, 100) AS i)
            )) AS r
            FROM pg_proc AS f, generate_series(1, 200) AS n
            WHERE f.proname = 'f' AND f.pronamespace = 'm'::regnamespace
        ) AS p
        """,
        201,
    ),
}

#: Content as large, of which objects have most in common, or of which an answer has only a part. As LARGE.
COMMON = {
    "arguments": (
        f"""
        CREATE TYPE m.{LONG} AS ENUM ();
        DO $do$ BEGIN FOR n IN 1..1300 LOOP
            EXECUTE format(
                'CREATE FUNCTION m.f%s(%s) RETURNS int LANGUAGE sql AS $$ SELECT 1 $$', n,
                '{", ".join([f"m.{LONG}"] * 100)}'
            );
        END LOOP; END $do$;
        GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA m TO {{reader}}
        """,
        1300,
    ),
    "privileges on columns": (
        f"""
        DO $$ BEGIN FOR n IN 1..5 LOOP
            EXECUTE format('CREATE TABLE m.t%s ({WIDE.replace(",", " bool,")} bool)', n);
            EXECUTE format(
                'GRANT SELECT ({WIDE}), INSERT ({WIDE}), UPDATE ({WIDE}), REFERENCES ({WIDE}) ON m.t%s TO {{reader}}', n
            );
        END LOOP; END $$
        """,
        5,
    ),
    "privileges on the columns of one table": (
        f"""
        CREATE TABLE m.t ({WIDE.replace(",", " bool,")} bool);
        GRANT SELECT ({WIDE}), INSERT ({WIDE}), UPDATE ({WIDE}), REFERENCES ({WIDE}) ON m.t
        TO {{reader}}, {{writer}}, {{heir}}, {{delegate}}
        """,
        1,
    ),
    "an ACL with many entries": (
        """
        SET allow_system_table_mods = on;
        CREATE FUNCTION m.f() RETURNS int LANGUAGE sql AS 'SELECT 1';
        UPDATE pg_proc AS p SET proacl = (
            SELECT array_agg(makeaclitem(to_regrole('{reader}')::oid, (3000000000 + n)::oid, 'EXECUTE', false))
            FROM generate_series(1, 25000) AS n
        ) WHERE pronamespace = 'm'::regnamespace
        """,
        1,
    ),
}


#: These are enough before a commit; pages: test_privilege_payloads.py.
_FEW = ("lists of arguments", "privileges on the columns of one table")


def mark_slow(shapes: Iterable[str]) -> list[object]:
    return [one if one in _FEW else pytest.param(one, marks=pytest.mark.slow) for one in shapes]


@pytest.mark.parametrize("shape", mark_slow(LARGE))
async def test_content_larger_than_one_answer_is_read_in_several(db: AclDatabase, shape: str) -> None:
    observed, repeated = await _read_large(db, *LARGE[shape])
    assert repeated, "it fits into one answer"
    match shape:
        case "lists of arguments":
            assert len({one.object.arguments for one in observed.acls if one.object.schema == "m"}) == 16000 + 1
        case "names of columns":
            assert len(observed.columns[named(observed.acls, "t170", "m").object.id] - SYSTEM_COLUMNS) == 1600
        case "default privileges":
            assert observed.defaults is not None
            assert len(observed.defaults) == 20_000


@pytest.mark.parametrize("shape", mark_slow(COMMON))
async def test_what_objects_have_in_common_takes_one_answer(db: AclDatabase, shape: str) -> None:
    observed, repeated = await _read_large(db, *COMMON[shape])
    assert not repeated
    match shape:
        case "arguments":
            assert {len(one.object.arguments) for one in observed.acls if one.object.name == "f7"} == {13_198}
        case "privileges on columns":
            assert len(held(named(observed.acls, "t5", "m"))) == 4 * 1600
        case "privileges on the columns of one table":
            assert len(named(observed.acls, "t", "m").entries) == 4 * 4 * 1600
        case "an ACL with many entries":
            assert len(named(observed.acls, "f", "m").entries) == 10_000


async def _read_large(db: AclDatabase, script: str, objects: int) -> tuple[ObservedDatabase, list[str]]:
    """Returns what was read, and the queries that took several answers."""
    await db.run("CREATE SCHEMA m; GRANT SELECT ON app.t TO {reader}")
    await db.run(script)
    grantees, asked = db.grantees("reader", "writer", "heir", "delegate"), Counter[str]()
    with db.connection.query_logger(lambda one: asked.update([one.query])):
        observed = await read_database(db.connection, grantees, (), anywhere, lambda _: True)
    assert held(named(observed.acls, "t"), db.oids["reader"]) == {("", "SELECT")}
    assert sum(one.object.schema == "m" and one.object.name != "m" for one in observed.acls) == objects
    return observed, [query for query, times in asked.items() if times > 1 and "typeinfo" not in query]


async def test_every_entry_of_very_many_grantees_is_read(db: AclDatabase) -> None:
    """What is not read looks as if it had been revoked, and would be granted again at each read."""
    entries = """
        SELECT array_agg(makeaclitem((3000000000 + n)::oid, {owner}, {privilege}, false))
        FROM generate_series(1, 11000) AS n
    """
    schema = entries.format(owner="n.nspowner", privilege="'USAGE'").replace("AS n", "AS n (n)")
    await db.run(
        "SET allow_system_table_mods = on; CREATE SCHEMA m;"
        f"UPDATE pg_namespace AS o SET nspacl = ({schema.replace('n.nspowner', 'o.nspowner')}) WHERE nspname = 'm';"
        "ALTER DEFAULT PRIVILEGES FOR ROLE {owner} IN SCHEMA app GRANT SELECT ON TABLES TO {reader};"
        "UPDATE pg_default_acl AS d SET defaclacl = "
        f"({entries.format(owner='d.defaclrole', privilege=chr(39) + 'SELECT' + chr(39))})"
    )
    grantees = [3_000_000_000 + number for number in range(1, 11_001)]
    complete = named(await read_acls(db.connection, grantees, nowhere), "m", "m")
    by_name = named(await read_named(db.connection, grantees, ["m"]), "m", "m")
    assert [entry.grantee for entry in complete.entries] == grantees
    assert [entry.grantee for entry in by_name.entries] == grantees
    defaults = [entry.grantee for one in await read_defaults(db.connection, grantees) for entry in one.entries]
    assert sorted(defaults) == grantees


async def test_the_error_reports_an_answer_above_the_limit(db: AclDatabase) -> None:
    await db.run("DO $$ BEGIN FOR n IN 1..400 LOOP EXECUTE format('CREATE SCHEMA other_%s', n); END LOOP; END $$")
    async with connect(replace(Endpoint(dsn=db.dsn), volume=60_000), "test") as connection:
        with pytest.raises(PgRoleError, match="the answer to one statement is larger than"):
            await read_database(connection, db.grantees("reader"), (), anywhere, lambda _: True)
