"""postgres/privileges/acl_apply: decisions take effect whoever granted what, and never break other sessions' DDL."""

import re
from collections.abc import AsyncIterator, Hashable, Sequence
from dataclasses import replace

import anyio
import asyncpg
import pytest
import pytest_asyncio

from pgrole_controller.core.errors import PgRoleError, Reason
from pgrole_controller.core.privileges.acl import DECLARABLE, AclChange, AclEntry, DefaultAclChange, ObservedAcl
from pgrole_controller.local.postgres import PostgresServer
from pgrole_controller.postgres import claim_store
from pgrole_controller.postgres.fence import Fence
from pgrole_controller.postgres.privileges import acl_apply, acl_batches, acl_transaction
from pgrole_controller.postgres.privileges.acl_apply import apply_acls
from pgrole_controller.postgres.privileges.acl_catalog import read_columns, read_defaults
from pgrole_controller.postgres.privileges.acl_checks import NOT_AS_EXPECTED, prepare_checks
from pgrole_controller.postgres.privileges.acl_locks import PATIENCE_SECONDS, REST_SECONDS
from pgrole_controller.postgres.privileges.acl_repair import AclPart, AclRepair, divide
from pgrole_controller.postgres.privileges.acl_script import render_repairs
from pgrole_controller.postgres.privileges.acl_transaction import AclDialect, AppliedAcls
from pgrole_controller.postgres.privileges.failed_changes import FailedChanges, failed_changes_of
from tests.integration.acl_support import ROLES, AclDatabase, acl_database, anywhere, held, named, read_acls
from tests.integration.test_acl_catalog import CREATED, OBJECTS, ODD_NAMES
from tests.integration.test_reassign import reached
from tests.servers import Servers


@pytest_asyncio.fixture(loop_scope="session")
async def db(postgres_server: PostgresServer) -> AsyncIterator[AclDatabase]:
    async with acl_database(postgres_server) as made:
        await made.run(CREATED)
        yield made


async def read(db: AclDatabase, *roles: str) -> list[ObservedAcl]:
    return await read_acls(db.connection, db.grantees(*(roles or ROLES)), anywhere)


def change(
    db: AclDatabase,
    found: ObservedAcl,
    role: str,
    *privileges: str,
    revoke: bool = False,
    columns: tuple[str, ...] = (),
    grantor: str = "",
) -> AclChange:
    return AclChange(found.object, db.oids[role], db.name(role), privileges, revoke, columns, grantor)


async def apply(
    db: AclDatabase,
    repairs: Sequence[AclRepair],
    defaults: Sequence[DefaultAclChange] = (),
    *,
    extra: str = "",
    fence: Fence | None = None,
) -> AppliedAcls:
    version = int(await db.connection.fetchval("SELECT current_setting('server_version_num')::int"))
    dialect = AclDialect(version, fence)
    return await apply_acls(db.connection, repairs, defaults, db.grantees(*ROLES), dialect, extra)


async def apply_one(db: AclDatabase, found: ObservedAcl, *changes: AclChange) -> PgRoleError | None:
    applied = await apply(db, [AclRepair(found, changes)])
    return applied.errors.get(found.object.id)


@pytest.mark.parametrize("name", OBJECTS)
async def test_every_privilege_of_every_kind_is_granted_and_revoked(
    db: AclDatabase, name: str, servers: Servers
) -> None:
    kind, _ = OBJECTS[name]
    for privilege in DECLARABLE[kind]:
        if privilege == "MAINTAIN" and servers.version < 17:
            continue
        before = named(await read(db), name)
        assert await apply_one(db, before, change(db, before, "reader", privilege)) is None
        after = named(await read(db), name)
        assert held(after, db.oids["reader"]) == {("", privilege)}
        assert await apply_one(db, after, change(db, after, "reader", privilege, revoke=True)) is None
        assert not held(named(await read(db), name), db.oids["reader"])


async def test_privileges_on_the_database_are_granted_and_revoked(db: AclDatabase) -> None:
    database = await db.beside.fetchval("SELECT current_database()")
    before = named(await read(db), database)
    assert await apply_one(db, before, change(db, before, "reader", "CREATE", "TEMPORARY")) is None
    after = named(await read(db), database)
    assert held(after, db.oids["reader"]) == {("", "CREATE"), ("", "TEMPORARY")}
    assert await apply_one(db, after, change(db, after, "reader", "CREATE", revoke=True)) is None
    assert held(named(await read(db), database), db.oids["reader"]) == {("", "TEMPORARY")}


@pytest.mark.parametrize("name", ["t", "parts", "v", "m", "f"])
async def test_column_privileges_are_granted_and_revoked(db: AclDatabase, name: str) -> None:
    before = named(await read(db), name)
    assert await apply_one(db, before, change(db, before, "reader", "SELECT", columns=("id",))) is None
    after = named(await read(db), name)
    assert held(after, db.oids["reader"]) == {("id", "SELECT")}
    assert await apply_one(db, after, change(db, after, "reader", "SELECT", columns=("id",), revoke=True)) is None
    assert not held(named(await read(db), name), db.oids["reader"])


async def test_revoking_a_table_privilege_revokes_it_on_columns_that_are_not_granted_again(
    db: AclDatabase,
) -> None:
    await db.run("GRANT SELECT, SELECT (id, name) ON app.t TO {reader}")
    before = named(await read(db), "t")
    revoke = change(db, before, "reader", "SELECT", revoke=True)
    assert await apply_one(db, before, revoke, change(db, before, "reader", "SELECT", columns=("id",))) is None
    assert held(named(await read(db), "t"), db.oids["reader"]) == {("id", "SELECT")}


async def test_a_delegates_grant_is_revoked_with_the_delegate_as_grantor(db: AclDatabase) -> None:
    await db.run("""
        GRANT SELECT ON app.t TO {delegate} WITH GRANT OPTION;
        SET ROLE {delegate}; GRANT SELECT ON app.t TO {reader}; RESET ROLE
    """)
    before = named(await read(db), "t")
    wrong = await apply_one(db, before, change(db, before, "reader", "SELECT", revoke=True))
    assert wrong is None  # the owner granted nothing: nothing to revoke
    revoke = change(db, before, "reader", "SELECT", revoke=True, grantor=db.name("delegate"))
    assert await apply_one(db, before, revoke) is None
    after = named(await read(db), "t")
    assert not held(after, db.oids["reader"])
    assert held(after, db.oids["delegate"]) == {("", "SELECT")}
    assert await db.connection.fetchval("SELECT current_user") == await db.beside.fetchval("SELECT current_user")


async def test_a_delegates_grant_is_revoked_after_the_delegate_lost_the_schema(db: AclDatabase) -> None:
    await db.run("""
        GRANT SELECT ON app.t TO {delegate} WITH GRANT OPTION; GRANT EXECUTE ON FUNCTION app.fn TO {delegate}
        WITH GRANT OPTION; SET ROLE {delegate}; GRANT SELECT ON app.t TO {reader};
        GRANT EXECUTE ON FUNCTION app.fn TO {reader}; RESET ROLE; REVOKE USAGE ON SCHEMA app FROM {delegate}
    """)
    acls = await read(db)
    privileges = {"t": "SELECT", "fn": "EXECUTE"}
    found = [named(acls, name) for name in privileges]
    repairs = [
        AclRepair(one, (change(db, one, "reader", words, revoke=True, grantor=db.name("delegate")),))
        for one, words in zip(found, privileges.values(), strict=True)
    ]
    assert not (await apply(db, repairs)).errors
    after = await read(db)
    assert not any(held(named(after, name), db.oids["reader"]) for name in privileges)
    assert named(after, "app").entries == named(acls, "app").entries


async def test_a_delegate_that_is_renamed_while_it_may_use_the_schema_does_not_keep_that(db: AclDatabase) -> None:
    """Nor does the role that gets its name lose what it had."""
    await db.run("""
        GRANT SELECT ON app.t TO {delegate} WITH GRANT OPTION; SET ROLE {delegate}; GRANT SELECT ON app.t TO {reader};
        RESET ROLE; REVOKE USAGE ON SCHEMA app FROM {delegate}; GRANT USAGE ON SCHEMA app TO {heir}
    """)
    acls = await read(db)
    table, schema = named(acls, "t"), named(acls, "app")
    revoke = change(db, table, "reader", "SELECT", revoke=True, grantor=db.name("delegate"))
    swap = db.fill(
        "BEGIN; ALTER ROLE {delegate} RENAME TO swapping; ALTER ROLE {heir} RENAME TO {delegate};"
        "ALTER ROLE swapping RENAME TO {heir}; COMMIT"
    )
    waits = "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = $1"
    attacker = await asyncpg.connect(db.dsn)
    try:
        await db.run("BEGIN; GRANT SELECT ON app.t TO {stranger}")  # the revocation waits for its end
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(apply_one, db, table, revoke)
            await reached(attacker, waits, db.connection.get_server_pid())
            await attacker.execute(swap)
            await db.run("ROLLBACK")
        await attacker.execute(swap)
    finally:
        await attacker.close()
    assert set(named(await read(db), "app").entries) == set(schema.entries)
    assert await apply_one(db, table, revoke) is None
    assert not held(named(await read(db), "t"), db.oids["reader"])
    assert set(named(await read(db), "app").entries) == set(schema.entries)


async def test_a_delegates_grant_is_revoked_although_it_cannot_name_the_types_of_the_arguments(db: AclDatabase) -> None:
    await db.run("""
        CREATE SCHEMA types; CREATE TYPE types.state AS ENUM ();
        CREATE FUNCTION app.typed(types.state[]) RETURNS int LANGUAGE sql AS 'SELECT 1';
        GRANT EXECUTE ON FUNCTION app.typed TO {delegate} WITH GRANT OPTION; SET ROLE {delegate};
        GRANT EXECUTE ON FUNCTION app.typed TO {reader}; RESET ROLE
    """)
    found = named(await read(db), "typed")
    revoked = change(db, found, "reader", "EXECUTE", revoke=True, grantor=db.name("delegate"))
    assert await apply_one(db, found, revoked) is None
    assert not held(named(await read(db), "typed"), db.oids["reader"])
    assert not await db.beside.fetchval(f"SELECT has_schema_privilege('{db.name('delegate')}', 'types', 'USAGE')")


async def test_revoking_a_grant_option_revokes_dependents_and_regrants_to_managed_roles(db: AclDatabase) -> None:
    await db.run("""
        GRANT SELECT ON app.t TO {delegate} WITH GRANT OPTION;
        SET ROLE {delegate}; GRANT SELECT ON app.t TO {reader}; GRANT SELECT ON app.t TO {writer}; RESET ROLE
    """)
    before = named(await read(db, "delegate", "reader"), "t")
    repair = AclRepair(before, (change(db, before, "delegate", "SELECT", revoke=True),))
    dialect = AclDialect(int(await db.connection.fetchval("SELECT current_setting('server_version_num')::int")))
    applied = await apply_acls(db.connection, [repair], (), db.grantees("delegate", "reader"), dialect)
    assert not applied.errors
    after = named(await read(db), "t")
    assert held(after, db.oids["delegate"], db.oids["writer"]) == set()
    assert {entry.grantor for entry in after.entries if entry.grantee == db.oids["reader"]} == {db.oids["owner"]}


#: A grant on a column whose grantor then loses the grant option, which it had on the whole table.
ORPHANED = """
    GRANT SELECT ON app.t TO {delegate} WITH GRANT OPTION; SET ROLE {delegate};
    GRANT SELECT (id, name) ON app.t TO {reader}; RESET ROLE;
"""


@pytest.mark.parametrize("lost", ["SELECT", "GRANT OPTION FOR SELECT"])
@pytest.mark.parametrize("kept", ["", "GRANT SELECT (id) ON app.t TO {delegate};"])
async def test_a_grant_on_columns_is_revoked_after_its_grantor_lost_the_grant_option(
    db: AclDatabase, lost: str, kept: str
) -> None:
    await db.run(f"{ORPHANED} REVOKE {lost} ON app.t FROM {{delegate}}; {kept}")
    before = named(await read(db), "t")
    revoke = change(db, before, "reader", "SELECT", columns=("id", "name"), revoke=True, grantor=db.name("delegate"))
    assert await apply_one(db, before, revoke) is None
    after = named(await read(db), "t")
    revoked = {one for one in before.entries if one.grantee == db.oids["reader"]}
    assert set(before.entries) - set(after.entries) == revoked
    assert not set(after.entries) - set(before.entries)


#: Very many columns of a table, and what roles grant each other on them.
MANY_COLUMNS = tuple(f"c{n}" for n in range(200))
ON_MANY = ", ".join(f"{one} ({', '.join(MANY_COLUMNS)})" for one in ("SELECT", "UPDATE"))


async def _change_counted(db: AclDatabase, found: ObservedAcl, *changes: AclChange) -> int:
    """Returns how many statements were run."""
    texts: list[str] = []
    with db.connection.query_logger(lambda one: texts.append(one.query)):
        assert await apply_one(db, found, *changes) is None
    return sum(len(text.split(";\n")) for text in texts)


async def test_privileges_on_very_many_columns_take_few_statements(db: AclDatabase) -> None:
    """Those of a grantor that lost its grant option, and those that are granted again after a CASCADE."""
    await db.run(f"""
        GRANT USAGE ON SCHEMA app TO {{heir}};
        CREATE TABLE app.wide ({", ".join(f"{one} int" for one in MANY_COLUMNS)});
        GRANT SELECT, UPDATE ON app.wide TO {{delegate}} WITH GRANT OPTION; SET ROLE {{delegate}};
        GRANT {ON_MANY} ON app.wide TO {{reader}}; RESET ROLE; REVOKE SELECT, UPDATE ON app.wide FROM {{delegate}};
        GRANT {ON_MANY} ON app.wide TO {{heir}} WITH GRANT OPTION; SET ROLE {{heir}};
        GRANT {ON_MANY} ON app.wide TO {{writer}}; RESET ROLE
    """)
    before = named(await read(db), "wide")
    revokes = [
        change(db, before, role, "SELECT", "UPDATE", columns=MANY_COLUMNS, revoke=True, grantor=grantor)
        for role, grantor in (("reader", db.name("delegate")), ("heir", ""))
    ]
    assert await _change_counted(db, before, revokes[0]) < 50
    before = named(await read(db), "wide")
    assert not held(before, db.oids["reader"])
    assert await _change_counted(db, before, revokes[1]) < 100
    after = named(await read(db), "wide")
    assert not held(after, db.oids["heir"])
    assert len(held(after, db.oids["writer"])) == 2 * len(MANY_COLUMNS)


async def test_a_grantor_without_grant_option_from_whom_others_hold_a_column_is_left_to_people(db: AclDatabase) -> None:
    await db.run(
        ORPHANED + "SET ROLE {delegate}; GRANT SELECT (id) ON app.t TO {stranger}; RESET ROLE;"
        "REVOKE SELECT ON app.t FROM {delegate}"
    )
    before = named(await read(db), "t")
    revoke = change(db, before, "reader", "SELECT", columns=("id",), revoke=True, grantor=db.name("delegate"))
    error = await apply_one(db, before, revoke)
    assert error is not None
    assert named(await read(db), "t").entries == before.entries
    await db.beside.execute(error.message.partition("granted on the columns: ")[2])
    assert not any(one.column == "id" for one in named(await read(db), "t").entries)


async def test_a_privilege_is_revoked_even_if_the_role_got_it_back_from_whom_it_granted_it(db: AclDatabase) -> None:
    await db.run("""
        GRANT USAGE ON SCHEMA app TO PUBLIC; GRANT SELECT ON app.t TO {delegate} WITH GRANT OPTION;
        SET ROLE {delegate}; GRANT SELECT ON app.t TO {reader} WITH GRANT OPTION;
        SET ROLE {reader}; GRANT SELECT ON app.t TO {stranger} WITH GRANT OPTION;
        SET ROLE {stranger}; GRANT SELECT ON app.t TO {reader}; RESET ROLE
    """)
    before = named(await read(db), "t")
    grantors = [db.name(one) for one in ("delegate", "stranger")]
    revokes = [change(db, before, "reader", "SELECT", revoke=True, grantor=one) for one in grantors]
    dialect = AclDialect(int(await db.connection.fetchval("SELECT current_setting('server_version_num')::int")))
    before = named(await read(db, "reader"), "t")
    applied = await apply_acls(db.connection, [AclRepair(before, tuple(revokes))], (), db.grantees("reader"), dialect)
    assert not applied.errors
    after = named(await read(db), "t")
    assert not held(after, db.oids["reader"], db.oids["stranger"])
    assert held(after, db.oids["delegate"]) == {("", "SELECT")}


@pytest.mark.parametrize(
    "meanwhile",
    [
        "ALTER TABLE app.t OWNER TO {heir}",
        "ALTER TABLE app.t RENAME TO renamed",
        "DROP TABLE app.t CASCADE",
        "DROP TABLE app.t CASCADE; CREATE TABLE app.t ()",
        "GRANT SELECT ON app.t TO {stranger}",
        "ALTER SCHEMA app RENAME TO moved",
    ],
)
async def test_an_object_that_changed_since_it_was_read_is_left_alone(db: AclDatabase, meanwhile: str) -> None:
    acls = await read(db)
    table, sequence = named(acls, "t"), named(acls, "s")
    await db.run(meanwhile)
    repairs = [
        AclRepair(table, (change(db, table, "reader", "SELECT"),)),
        AclRepair(sequence, (change(db, sequence, "reader", "USAGE"),)),
    ]
    applied = await apply(db, repairs, extra="CREATE TABLE public.stored ()")
    assert applied.errors[table.object.id].reason is Reason.PROGRESSING
    assert not applied.stored
    assert await db.beside.fetchval("SELECT to_regclass('public.stored')") is None
    if "moved" not in meanwhile:
        assert set(applied.errors) == {table.object.id}
        assert held(named(await read(db), "s"), db.oids["reader"]) == {("", "USAGE")}


async def test_a_locked_table_delays_only_itself(db: AclDatabase) -> None:
    acls = await read(db)
    repairs = [AclRepair(one, (change(db, one, "reader", "SELECT"),)) for one in (named(acls, n) for n in ("t", "v"))]
    async with db.beside.transaction():
        await db.beside.execute("LOCK TABLE app.t IN ACCESS EXCLUSIVE MODE")
        applied = await apply(db, repairs)
    (error,) = applied.errors.values()
    assert (error.reason, named(acls, "t").object.id in applied.errors) == (Reason.PROGRESSING, True)
    assert "locked table app.t" in error.message
    assert held(named(await read(db), "v"), db.oids["reader"]) == {("", "SELECT")}


#: What an open transaction does to tables to prevent changes of their ACLs.
LOCKING = {
    "locks": "LOCK TABLE {tables}",
    "a grant": "GRANT INSERT ON {tables} TO {stranger}",
    "a grant after a savepoint that was released": (
        "SAVEPOINT a; GRANT INSERT ON {tables} TO {stranger}; RELEASE SAVEPOINT a"
    ),
    "a grant on columns": "GRANT SELECT (id) ON {tables} TO {reader}",
}


async def many_tables(db: AclDatabase, number: int) -> list[ObservedAcl]:
    """Creates tables m1, m2 and so on, each with a column privilege that another transaction granted."""
    await db.run(
        f"DO $$ BEGIN FOR i IN 1..{number} LOOP EXECUTE format('CREATE TABLE app.m%s (id int)', i); "
        "EXECUTE format('GRANT UPDATE (id) ON app.m%s TO {reader}', i); END LOOP; END $$"
    )
    return sorted(
        (one for one in await read(db) if re.fullmatch(r"m\d+", one.object.name)), key=lambda one: one.object.id.oid
    )


async def timed(db: AclDatabase, repairs: Sequence[AclRepair]) -> tuple[AppliedAcls, float]:
    """Also returns the elapsed seconds."""
    began = anyio.current_time()
    applied = await apply(db, repairs)
    return applied, anyio.current_time() - began


@pytest.mark.parametrize("how", LOCKING)
async def test_an_open_transaction_delays_only_the_tables_that_it_locks(db: AclDatabase, how: str) -> None:
    tables = await many_tables(db, 60)
    repairs = [
        AclRepair(
            one,
            (
                change(db, one, "reader", "UPDATE", columns=("id",), revoke=True),
                change(db, one, "reader", "SELECT"),
            ),
        )
        for one in tables
    ]
    names = ", ".join(f"app.{one.object.name}" for one in tables[:50])
    async with db.beside.transaction():
        await db.run(LOCKING[how].replace("{tables}", names))
        applied, seconds = await timed(db, repairs)
        assert set(applied.errors) == {one.object.id for one in tables[:50]}
        assert all("another transaction has locked" in error.message for error in applied.errors.values())
        assert seconds < 5.0  # tried one by one, each waits 0.2 s
        after = await read(db, "reader")
        assert all(held(named(after, one.object.name)) == {("", "SELECT")} for one in tables[50:])
        applied, seconds = await timed(db, repairs[:50])
        assert len(applied.errors) == 50
        assert seconds < 5.0  # the controller does not wait again so soon
    assert not (await apply(db, await reread(db, repairs[:50]))).errors


async def reread(db: AclDatabase, repairs: Sequence[AclRepair]) -> list[AclRepair]:
    acls = {one.object.id: one for one in await read(db)}
    return [replace(one, observed=acls[one.observed.object.id]) for one in repairs]


async def test_invisible_locks_delay_other_objects_only_briefly(
    db: AclDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def see_nothing(*_: object) -> set[Hashable]:
        return set()

    monkeypatch.setattr(acl_batches, "find_busy", see_nothing)
    tables = await many_tables(db, 60)
    left = [AclRepair(one, (change(db, one, "reader", "SELECT"),)) for one in tables]
    names = ", ".join(f"app.{one.object.name}" for one in tables[:50])
    async with db.beside.transaction():
        await db.run(f"LOCK TABLE {names}")
        for _ in range(20):
            applied, seconds = await timed(db, left)
            assert seconds < 5.0
            left = [one for one in left if one.observed.object.id in applied.errors]
            if len(left) == 50:
                break
    assert {one.observed.object.id for one in left} == {one.object.id for one in tables[:50]}
    await anyio.sleep(PATIENCE_SECONDS + REST_SECONDS)
    assert not (await apply(db, left)).errors


_MET_TABLE = "CREATE TABLE app.met (id int)"
_MET_FUNCTION = "CREATE FUNCTION app.met_f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'"

#: What creates object app.met, and what another session then repeats.
OTHERS_DDL = {
    "table": (
        _MET_TABLE,
        (
            "ALTER TABLE app.met ALTER COLUMN id SET STATISTICS 10; COMMENT ON TABLE app.met IS ''",
            "ALTER TABLE app.met ADD COLUMN x int; ALTER TABLE app.met DROP COLUMN x",
        ),
    ),
    "trigger": (
        f"{_MET_TABLE}; {_MET_FUNCTION}",
        (
            "CREATE TRIGGER met_t BEFORE INSERT ON app.met FOR EACH ROW EXECUTE FUNCTION app.met_f()",
            "DROP TRIGGER met_t ON app.met",
        ),
    ),
    "vacuum": (_MET_TABLE, ("VACUUM app.met",)),
    "index": (
        _MET_TABLE,
        ("CREATE INDEX CONCURRENTLY met_i ON app.met (id)", "DROP INDEX CONCURRENTLY app.met_i"),
    ),
    "view": ("CREATE VIEW app.met AS SELECT 1 AS a", ("ALTER VIEW app.met SET (security_barrier = true)",)),
    "materialized view": (
        "CREATE MATERIALIZED VIEW app.met AS SELECT 1 AS a",
        ("ALTER MATERIALIZED VIEW app.met SET (autovacuum_enabled = false)",),
    ),
    "sequence": ("CREATE SEQUENCE app.met", ("ALTER SEQUENCE app.met INCREMENT 2",)),
}


@pytest.mark.parametrize(
    "kind", [one if one == "table" else pytest.param(one, marks=pytest.mark.slow) for one in OTHERS_DDL]
)
async def test_another_sessions_ddl_waits_instead_of_failing(db: AclDatabase, kind: str) -> None:
    """Without the lock, it may fail with XX000 if it meets an open GRANT; on tables up to PostgreSQL 17."""
    setup, statements = OTHERS_DDL[kind]
    await db.run(setup)
    stop = anyio.Event()
    failed: list[asyncpg.PostgresError] = []
    rounds = 0

    async def alter() -> None:
        nonlocal rounds
        while not stop.is_set():
            for statement in statements:
                try:
                    await db.beside.execute(statement)
                except asyncpg.PostgresError as error:
                    failed.append(error)
            rounds += 1

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(alter)
        done = 0
        with anyio.fail_after(60):  # some hold a lock most of the time
            while done < 60 or rounds < 20:
                found = named(await read(db, "reader"), "met")
                revoke = ("", "SELECT") in held(found)
                done += await apply_one(db, found, change(db, found, "reader", "SELECT", revoke=revoke)) is None
        stop.set()
    assert failed == []


@pytest.mark.parametrize("committed", [False, True])
async def test_a_comment_that_another_session_sets_meanwhile_is_kept(db: AclDatabase, committed: bool) -> None:
    await db.run("CREATE VIEW app.met_v AS SELECT 1 AS a")
    found = named(await read(db, "reader"), "met_v")
    async with anyio.create_task_group() as tasks:
        transaction = db.beside.transaction()
        await transaction.start()
        await db.beside.execute("COMMENT ON VIEW app.met_v IS 'kept'")

        async def commit() -> None:
            await anyio.sleep(0.05 if committed else 0.0)
            await transaction.commit()

        tasks.start_soon(commit)
        await apply_one(db, found, change(db, found, "reader", "SELECT"))
    assert await db.beside.fetchval("SELECT obj_description('app.met_v'::regclass)") == "kept"
    assert held(named(await read(db, "reader"), "met_v")) == {("", "SELECT")}


async def test_1200_objects_are_changed_in_transactions_of_100(db: AclDatabase) -> None:
    await db.run("DO $$ BEGIN FOR i IN 1..1200 LOOP EXECUTE format('CREATE TABLE app.many_%s ()', i); END LOOP; END $$")
    acls = [one for one in await read(db, "reader") if one.object.name.startswith("many_")]
    repairs = [AclRepair(one, (change(db, one, "reader", "SELECT"),)) for one in acls]
    applied = await apply(db, repairs)
    assert not applied.errors
    after = [one for one in await read(db, "reader") if one.object.name.startswith("many_")]
    assert len(after) == 1200
    assert all(held(one) == {("", "SELECT")} for one in after)
    sizes = await db.beside.fetch(
        "SELECT count(*) FROM pg_class WHERE relname LIKE 'many\\_%' AND relkind = 'r' GROUP BY xmin::text"
    )
    assert [row["count"] for row in sizes] == [100] * 12


async def test_odd_names_are_quoted(db: AclDatabase) -> None:
    for name in ODD_NAMES:
        quoted = '"' + name.replace('"', '""') + '"'
        await db.beside.execute(f"CREATE SCHEMA {quoted}; CREATE TABLE {quoted}.{quoted} ({quoted} int)")
        await db.beside.execute(f"CREATE TYPE {quoted}.typ AS ENUM (); CREATE SEQUENCE {quoted}.seq")
        body = "LANGUAGE plpgsql AS 'BEGIN END'"
        await db.beside.execute(f"CREATE FUNCTION {quoted}.fn({quoted}.typ[]) RETURNS int {body}")
    odd = [one for one in await read(db) if one.object.schema in ODD_NAMES]
    columns = await read_columns(db.connection, [one.object.id.oid for one in odd])
    privilege = {"Schema": "USAGE", "Routine": "EXECUTE"}
    repairs = []
    for one in odd:
        changes = [change(db, one, "reader", privilege.get(one.object.kind.value, "SELECT"))]
        if one.object.kind.value == "Table":
            changes.append(change(db, one, "writer", "UPDATE", columns=tuple(columns[one.object.id])))
        repairs.append(AclRepair(one, tuple(changes)))
    assert len(repairs) == 4 * len(ODD_NAMES)
    applied = await apply(db, repairs)
    assert not applied.errors
    after = {one.object.id: held(one, db.oids["reader"]) for one in await read(db)}
    assert all(after[one.object.id] for one in odd)


ROUTINES = {
    "FUNCTION app.over(int)": "RETURNS int",
    "FUNCTION app.over(int[])": "RETURNS int",
    "FUNCTION app.over(VARIADIC text[])": "RETURNS int",
    "FUNCTION app.outs(a int, OUT b text, INOUT c bigint)": "",
    "PROCEDURE app.proc(a int, INOUT b text)": "",
    "FUNCTION app.both(int)": "RETURNS int",
    'FUNCTION app.quoted(a app."Odd ""type")': "RETURNS int",
    'FUNCTION app.chars("char", char(3), bit varying)': "RETURNS int",
}


async def test_execute_is_granted_on_routines_with_every_kind_of_argument(db: AclDatabase) -> None:
    await db.run('CREATE TYPE app."Odd ""type" AS ENUM ()')
    for signature, returns in ROUTINES.items():
        await db.run(f"CREATE {signature} {returns} LANGUAGE plpgsql AS 'BEGIN END'")
    await db.run("CREATE FUNCTION app.step(int, int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT 1'")
    await db.run("CREATE AGGREGATE app.total(int) (SFUNC = app.step, STYPE = int)")
    for outs in ("more(a int, OUT b text)", "both(OUT a int)"):
        await db.run(f"CREATE PROCEDURE app.{outs} LANGUAGE plpgsql AS 'BEGIN END'")
    found = [one for one in await read(db) if one.object.id.catalog == "pg_proc"]
    applied = await apply(db, [AclRepair(one, (change(db, one, "reader", "EXECUTE"),)) for one in found])
    assert not applied.errors
    after = [one for one in await read(db) if one.object.id.catalog == "pg_proc"]
    assert len(after) == len(ROUTINES) + len(("fn", "step", "total", "more", "both"))
    assert all(held(one, db.oids["reader"]) == {("", "EXECUTE")} for one in after)


async def test_default_privileges_are_granted_and_revoked(db: AclDatabase) -> None:
    owner, reader = (db.oids["owner"], db.name("owner")), (db.oids["reader"], db.name("reader"))
    grants = [
        DefaultAclChange(*owner, "app", "r", *reader, ("SELECT",)),
        DefaultAclChange(*owner, "", "f", *reader, ("EXECUTE",)),
    ]
    applied = await apply(db, (), grants, extra="CREATE TABLE public.stored ()")
    assert not applied.default_errors
    assert applied.stored
    assert await db.beside.fetchval("SELECT to_regclass('public.stored')") == "stored"
    found = await read_defaults(db.connection, db.grantees("reader"))
    assert {(one.schema, one.object_type) for one in found} == {("app", "r"), ("", "f")}
    absent = DefaultAclChange(1, "absent", "app", "r", *reader, ("SELECT",))
    revoke = DefaultAclChange(*owner, "app", "r", *reader, ("SELECT",), revoke=True)
    applied = await apply(db, (), [absent, revoke])
    assert set(applied.default_errors) == {absent}
    found = await read_defaults(db.connection, db.grantees("reader"))
    assert {(one.schema, one.object_type) for one in found} == {("", "f")}


async def test_300_default_privileges_are_changed_in_transactions_of_100(db: AclDatabase) -> None:
    """Any role can set them, in every schema and for each type of object: one transaction would delay other repairs."""
    await db.run("DO $$ BEGIN FOR i IN 1..300 LOOP EXECUTE format('CREATE SCHEMA d%s', i); END LOOP; END $$")
    creator, reader = (db.oids["owner"], db.name("owner")), (db.oids["reader"], db.name("reader"))
    changes = [DefaultAclChange(*creator, f"d{place}", "r", *reader, ("SELECT",)) for place in range(1, 301)]
    applied = await apply(db, (), changes, extra="CREATE TABLE public.stored ()")
    assert not applied.default_errors
    assert applied.stored
    sizes = await db.beside.fetch("SELECT count(*) FROM pg_default_acl GROUP BY xmin::text")
    assert [row["count"] for row in sizes] == [100] * 3
    some = await read_defaults(db.connection, db.grantees("reader"), ["d1", "d300", "absent"])
    assert {one.schema for one in some} == {"d1", "d300"}


@pytest.mark.parametrize("committed", [True, False], ids=["rows that it changed", "rows that it added"])
async def test_an_open_transaction_delays_only_the_default_privileges_that_it_wrote(
    db: AclDatabase, committed: bool
) -> None:
    number = 40 if committed else 8  # uncommitted rows are invisible, so each change must be tried
    await db.run(
        f"DO $$ BEGIN FOR i IN 1..{number + 1} LOOP EXECUTE format('CREATE SCHEMA d%s', i); "
        "EXECUTE format('GRANT ALL ON SCHEMA d%s TO {owner}', i); END LOOP; END $$"
    )
    creator, reader = (db.oids["owner"], db.name("owner")), (db.oids["reader"], db.name("reader"))
    changes = [DefaultAclChange(*creator, f"d{place}", "r", *reader, ("SELECT",)) for place in range(1, number + 2)]
    default = "ALTER DEFAULT PRIVILEGES FOR ROLE {owner} IN SCHEMA " + ", ".join(one.schema for one in changes[:-1])
    if committed:
        await db.run(f"{default} GRANT INSERT ON TABLES TO {{stranger}}")
    async with db.beside.transaction():
        await db.run(f"{default} GRANT UPDATE ON TABLES TO {{stranger}}")
        left: Sequence[DefaultAclChange] = changes
        for _ in range(20):
            began = anyio.current_time()
            applied = await apply(db, (), left)
            assert anyio.current_time() - began < 5.0
            left = [*applied.default_errors]
            if len(left) == number:
                break
        assert set(left) == set(changes[:-1])
    assert not (await apply(db, (), changes)).default_errors
    assert len(await read_defaults(db.connection, db.grantees("reader"))) == number + 1


@pytest.mark.parametrize(
    ("sqlstate", "reason"),
    [("57014", Reason.PROGRESSING), ("53100", Reason.SERVER_NOT_READY), ("P0001", Reason.DATABASE_ERROR)],
)
async def test_an_error_that_may_pass_by_itself_is_told_from_a_refusal(
    db: AclDatabase, sqlstate: str, reason: Reason
) -> None:
    await db.run(f"""
        CREATE FUNCTION app.fail() RETURNS event_trigger LANGUAGE plpgsql
        AS $$ BEGIN RAISE 'not now' USING ERRCODE = '{sqlstate}'; END $$;
        CREATE EVENT TRIGGER fail ON ddl_command_start WHEN TAG IN ('GRANT', 'ALTER DEFAULT PRIVILEGES')
        EXECUTE FUNCTION app.fail()
    """)
    table = named(await read(db), "t")
    some = AclRepair(table, (change(db, table, "reader", "SELECT"),))
    both = AclRepair(table, (*some.changes, change(db, table, "writer", "SELECT")))
    default = DefaultAclChange(
        db.oids["owner"], db.name("owner"), "app", "r", db.oids["reader"], db.name("reader"), ("SELECT",)
    )
    for repair in (some, both):
        applied = await apply(db, [repair], [default])
        for error in (applied.find_error(table.object.id, db.oids["reader"]), applied.default_errors[default]):
            assert error is not None
            assert (error.reason, "not now" in error.message) == (reason, True)
    postponed = failed_changes_of(db.connection).postpone(some)
    assert (postponed.reason is Reason.DATABASE_ERROR) is (reason is Reason.DATABASE_ERROR)


async def test_an_irrevocable_entry_is_an_error_of_its_grantee_only(db: AclDatabase) -> None:
    await db.run("""
        GRANT INSERT ON app.t TO {delegate} WITH GRANT OPTION; GRANT UPDATE ON app.t TO {reader};
        SET ROLE {delegate}; GRANT INSERT ON app.t TO {reader}; RESET ROLE; ALTER ROLE {delegate} SUPERUSER
    """)
    acls = await read(db)
    table, sequence = named(acls, "t"), named(acls, "s")
    repairs = [
        AclRepair(
            table,
            (
                change(db, table, "reader", "INSERT", revoke=True, grantor=db.name("delegate")),
                change(db, table, "reader", "UPDATE", revoke=True),
                change(db, table, "writer", "SELECT"),
                change(db, table, "heir", "SELECT", columns=("id",)),
            ),
        ),
        AclRepair(sequence, (change(db, sequence, "reader", "USAGE"),)),
    ]
    applied = await apply(db, repairs, extra="CREATE TABLE public.stored ()")
    assert set(applied.errors) == {table.object.id}
    errors = {role: applied.find_error(table.object.id, db.oids[role]) for role in ("reader", "writer", "heir")}
    assert [role for role, error in errors.items() if error is not None] == ["reader"]
    assert "NOSUPERUSER" in applied.errors[table.object.id].message
    assert applied.find_error(table.object.id, db.oids["reader"], (False,)) is None
    assert not applied.stored
    after = await read(db)
    assert held(named(after, "t"), db.oids["reader"]) == {("", "INSERT")}
    assert held(named(after, "t"), db.oids["writer"]) == {("", "SELECT")}
    assert held(named(after, "t"), db.oids["heir"]) == {("id", "SELECT")}
    assert held(named(after, "s"), db.oids["reader"]) == {("", "USAGE")}


async def test_a_grant_option_is_revoked_after_its_dependent_grants_even_if_another_change_fails(
    db: AclDatabase,
) -> None:
    """On its own, a grant option can be revoked only after the grants that depend on it."""
    await db.run("""
        GRANT USAGE ON SCHEMA app TO {heir}; GRANT SELECT, INSERT ON app.t TO {delegate}, {heir} WITH GRANT OPTION;
        SET ROLE {heir}; GRANT INSERT ON app.t TO {stranger}; RESET ROLE;
        SET ROLE {delegate}; GRANT SELECT ON app.t TO {reader}, {writer}; RESET ROLE; ALTER ROLE {heir} SUPERUSER
    """)
    table = named(await read(db), "t")
    changes = (
        change(db, table, "stranger", "INSERT", revoke=True, grantor=db.name("heir")),
        change(db, table, "delegate", "SELECT", "INSERT", revoke=True),
        change(db, table, "reader", "SELECT", revoke=True, grantor=db.name("delegate")),
    )
    applied = await apply(db, [AclRepair(table, changes)])
    assert set(applied.grantee_errors[table.object.id]) == {(db.oids["stranger"], True)}
    after = named(await read(db), "t")
    assert not held(after, db.oids["delegate"], db.oids["reader"])
    assert held(after, db.oids["writer"]) == {("", "SELECT")}  # granted again, by the owner
    assert held(after, db.oids["stranger"]) == {("", "INSERT")}


@pytest.mark.slow
@pytest.mark.parametrize(("owner", "attempts"), [("heir", 10), ("owner", 50)])
async def test_many_objects_that_cannot_be_changed_keep_no_other_from_being_changed_for_ever(
    db: AclDatabase, monkeypatch: pytest.MonkeyPatch, owner: str, attempts: int
) -> None:
    """Finding them takes longer than one call may. The one that can be changed comes last."""
    monkeypatch.setattr(acl_apply, "OBJECTS", 10)
    stuck = [f"stuck_{place}" for place in range(25)]
    for name in stuck:
        await db.run(
            f"CREATE TABLE app.{name} (id int); ALTER TABLE app.{name} OWNER TO {{owner}};"
            f"GRANT SELECT ON app.{name} TO {{delegate}} WITH GRANT OPTION;"
            f"SET ROLE {{delegate}}; GRANT SELECT ON app.{name} TO {{reader}}; RESET ROLE"
        )
    await db.run("ALTER ROLE {delegate} SUPERUSER; CREATE TABLE app.free ()")
    await db.run(f"ALTER TABLE app.free OWNER TO {{{owner}}}")
    found = {one.object.name: one for one in await read(db)}
    revoke = [change(db, found[name], "reader", "SELECT", revoke=True, grantor=db.name("delegate")) for name in stuck]
    repairs = [AclRepair(found[one.object.name], (one,)) for one in revoke]
    repairs.append(AclRepair(found["free"], (change(db, found["free"], "reader", "SELECT"),)))
    start = anyio.current_time()
    await apply(db, repairs[:1])
    monkeypatch.setattr(acl_batches, "DIVIDING_SECONDS", 5 * (anyio.current_time() - start))
    for _ in range(attempts):
        errors = (await apply(db, repairs)).errors
        assert {found[name].object.id for name in stuck} <= errors.keys()
        if found["free"].object.id not in errors:
            break
    assert held(named(await read(db), "free"), db.oids["reader"]) == {("", "SELECT")}


@pytest.mark.slow
async def test_many_irrevocable_entries_of_one_object_keep_no_other_from_being_revoked_for_ever(
    db: AclDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Finding them takes longer than one attempt may. The one that can be revoked comes last."""
    number, prefix = 60, f"stuck_{db.suffix}_"
    await db.run(f"""
        DO $$ BEGIN FOR i IN 1..{number} LOOP EXECUTE 'CREATE ROLE {prefix}' || i; END LOOP; END $$;
        GRANT USAGE ON SCHEMA app TO {{heir}}; GRANT SELECT ON app.t TO {{delegate}}, {{heir}} WITH GRANT OPTION;
        SET ROLE {{heir}}; GRANT SELECT ON app.t TO {{reader}}; RESET ROLE; SET ROLE {{delegate}};
        DO $$ BEGIN FOR i IN 1..{number} LOOP EXECUTE 'GRANT SELECT ON app.t TO {prefix}' || i; END LOOP; END $$;
        RESET ROLE; ALTER ROLE {{delegate}} SUPERUSER
    """)
    try:
        rows = await db.beside.fetch("SELECT oid, rolname FROM pg_roles WHERE starts_with(rolname, $1)", prefix)
        grantees = [*db.grantees(*ROLES), *(row["oid"] for row in rows)]
        table = named(await read_acls(db.connection, grantees, anywhere), "t")
        by = db.name("delegate")
        changes = [AclChange(table.object, one["oid"], one["rolname"], ("SELECT",), True, (), by) for one in rows]
        changes.append(change(db, table, "reader", "SELECT", revoke=True, grantor=db.name("heir")))
        version = int(await db.connection.fetchval("SELECT current_setting('server_version_num')::int"))
        start = anyio.current_time()
        await apply_acls(db.connection, [AclRepair(table, (changes[0],))], (), grantees, AclDialect(version))
        monkeypatch.setattr(acl_transaction, "_PARTS_SECONDS", 5 * (anyio.current_time() - start))
        for _ in range(number):
            applied = await apply_acls(
                db.connection, [AclRepair(table, tuple(changes))], (), grantees, AclDialect(version)
            )
            assert table.object.id in applied.errors
            if applied.find_error(table.object.id, db.oids["reader"]) is None:
                break
        assert not held(named(await read(db), "t"), db.oids["reader"])
    finally:
        await db.run("DROP TABLE app.t CASCADE")
        await db.run(f"DO $$ BEGIN FOR i IN 1..{number} LOOP EXECUTE 'DROP ROLE {prefix}' || i; END LOOP; END $$")


async def test_parts_that_failed_come_last_and_in_turn(db: AclDatabase) -> None:
    table, sequence = (AclRepair(one, ()) for one in (await read(db))[:2])
    failures, parts = FailedChanges(), [AclPart(1, False), *(AclPart(number, True) for number in (1, 2, 3))]
    refused, passing = PgRoleError(Reason.DATABASE_ERROR, ""), PgRoleError(Reason.PROGRESSING, "")
    assert failures.separate_parts(table, parts) == [[0, 1, 2, 3]]
    failures.note_parts(table, {parts[1]: passing, parts[3]: refused}, {parts[0]})
    failures.note_parts(table, {parts[1]: passing}, set())
    assert failures.separate_parts(table, parts) == [[0, 2], [3, 1]]
    assert failures.separate_parts(sequence, parts) == [[0, 1, 2, 3]]
    failures.note_parts(table, {}, {parts[1]})
    assert failures.separate_parts(table, parts) == [[0, 1, 2], [3]]


async def test_parts_for_which_there_is_no_time_are_in_progress_unless_they_were_refused_before(
    db: AclDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    await db.run("""
        GRANT INSERT ON app.t TO {delegate} WITH GRANT OPTION;
        SET ROLE {delegate}; GRANT INSERT ON app.t TO {reader}, {writer}; RESET ROLE; ALTER ROLE {delegate} SUPERUSER
    """)
    table, by = named(await read(db), "t"), db.name("delegate")
    roles = ["reader", "writer", "stranger"]
    changes = [change(db, table, role, "INSERT", revoke=True, grantor=by) for role in roles[:2]]
    for seconds, expected in ((1.0, {}), (0.0, {"stranger": Reason.PROGRESSING})):
        monkeypatch.setattr(acl_transaction, "_PARTS_SECONDS", seconds)
        applied = await apply(db, [AclRepair(table, tuple(changes))])
        errors = {role: applied.find_error(table.object.id, db.oids[role]) for role in roles[: len(changes)]}
        reasons = {role: error.reason for role, error in errors.items() if error is not None}
        assert reasons == {"reader": Reason.DATABASE_ERROR, "writer": Reason.DATABASE_ERROR} | expected
        changes.append(change(db, table, "stranger", "SELECT"))


@pytest.mark.slow
async def test_a_full_acl_is_an_error_of_its_object_only(db: AclDatabase) -> None:
    acls = await read(db)
    sequence, table = named(acls, "s"), named(acls, "t")
    prefix = f"crowd_{db.suffix}_"
    await db.run(f"DO $$ BEGIN FOR i IN 1..2600 LOOP EXECUTE 'CREATE ROLE {prefix}' || i; END LOOP; END $$")
    try:
        await db.run(f"""DO $$ BEGIN FOR i IN 1..2600 LOOP
            BEGIN EXECUTE 'GRANT SELECT ON app.t TO {prefix}' || i;
            EXCEPTION WHEN program_limit_exceeded THEN RETURN; END; END LOOP; END $$""")
        table = named(await read(db), "t")
        repairs = [
            AclRepair(table, (change(db, table, "reader", "SELECT"), change(db, table, "writer", "SELECT"))),
            AclRepair(sequence, (change(db, sequence, "reader", "USAGE"),)),
        ]
        applied = await apply(db, repairs)
        assert set(applied.errors) == {table.object.id}
        assert "group role" in applied.errors[table.object.id].message
        assert held(named(await read(db), "s"), db.oids["reader"]) == {("", "USAGE")}
        # However many grants fail first, a revoke makes room.
        one, oid = f"{prefix}1", await db.beside.fetchval(f"SELECT '{prefix}1'::regrole::oid")
        revoked = AclChange(table.object, oid, one, ("SELECT",), revoke=True)
        assert next(iter(divide(replace(repairs[0], changes=(*repairs[0].changes, revoked))))) == (oid, False)
    finally:
        await db.run("DROP TABLE app.t CASCADE")
        await db.run(f"DO $$ BEGIN FOR i IN 1..2600 LOOP EXECUTE 'DROP ROLE {prefix}' || i; END LOOP; END $$")


async def test_an_empty_repair_sends_nothing(db: AclDatabase) -> None:
    found = named(await read(db), "t")
    async with db.beside.transaction():  # a change would wait for this lock
        await db.beside.execute("LOCK TABLE app.t IN ACCESS EXCLUSIVE MODE")
        assert await apply(db, [AclRepair(found, ())]) == AppliedAcls()


async def test_a_process_that_no_longer_leads_changes_nothing(db: AclDatabase) -> None:
    found = named(await read(db), "t")
    repair = AclRepair(found, (change(db, found, "reader", "SELECT"),))
    with pytest.raises(PgRoleError, match="another process leads"):
        await apply(db, [repair], fence=Fence("x", None, guarded=False, is_leading=lambda: False))
    await db.run("""
        CREATE SCHEMA pgrole;
        CREATE FUNCTION pgrole.lock_changes() RETURNS void LANGUAGE sql AS '';
        CREATE FUNCTION pgrole.check_lead(text, bigint) RETURNS void LANGUAGE plpgsql AS
            'BEGIN RAISE EXCEPTION ''another process leads'' USING ERRCODE = ''PGR04''; END'
    """)
    with pytest.raises(PgRoleError, match="another process leads"):
        await apply(db, [repair], fence=Fence("x", 1, guarded=False, is_leading=lambda: True))
    assert not db.connection.is_in_transaction()
    assert not held(named(await read(db), "t"), db.oids["reader"])


async def test_a_transaction_without_an_answer_in_time_is_rolled_back(
    db: AclDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection stayed in the failed transaction, so that the next statement on it was refused."""
    monkeypatch.setattr(claim_store, "TRANSACTION_SECONDS", 0.3)
    await db.run("""
        CREATE FUNCTION app.sleep() RETURNS event_trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(3); END';
        CREATE EVENT TRIGGER slow ON ddl_command_start WHEN TAG IN ('ALTER DEFAULT PRIVILEGES')
        EXECUTE FUNCTION app.sleep()
    """)
    owner, reader = (db.oids["owner"], db.name("owner")), (db.oids["reader"], db.name("reader"))
    default = DefaultAclChange(*owner, "app", "r", *reader, ("SELECT",))
    applied = await apply(db, [], [default])
    assert "no answer in time" in applied.default_errors[default].message
    assert not db.connection.is_in_transaction()
    assert await db.connection.fetchval("SELECT 1") == 1


async def sent_while(db: AclDatabase, *repairs: AclRepair) -> tuple[AppliedAcls, list[str]]:
    await prepare_checks(db.connection)
    sent: list[str] = []

    def note(query: asyncpg.connection.LoggedQuery) -> None:
        sent.append(query.query)

    with db.connection.query_logger(note):
        applied = await apply(db, repairs, extra="SELECT 1")
        await anyio.wait_all_tasks_blocked()  # loggers are called later
    return applied, [query for query in sent if "server_version_num" not in query]


async def test_a_repair_of_several_objects_and_roles_is_sent_as_one_message(db: AclDatabase) -> None:
    found = await read(db)
    repairs = [
        AclRepair(one, tuple(change(db, one, role, "SELECT") for role in ("reader", "writer")))
        for one in (named(found, "t"), named(found, "parts"))
    ]
    applied, sent = await sent_while(db, *repairs)
    assert (applied.errors, applied.stored, len(sent)) == ({}, True, 1)
    assert sent[0].count("GRANT SELECT") == 1
    after = await read(db)
    for name in ("t", "parts"):
        assert held(named(after, name), db.oids["writer"]) == {("", "SELECT")}
    table = named(after, "t")
    applied, sent = await sent_while(db, AclRepair(table, (change(db, table, "reader", "SELECT", revoke=True),)))
    assert (applied.errors, applied.stored, len(sent)) == ({}, True, 1)
    assert not held(named(await read(db), "t"), db.oids["reader"])


@pytest.mark.parametrize(
    "meanwhile",
    [
        "GRANT INSERT ON app.t TO {stranger}",
        "ALTER TABLE app.t OWNER TO {heir}",
        "ALTER TABLE app.t RENAME TO former; CREATE TABLE app.t (id int)",
        "CREATE SCHEMA other; ALTER TABLE app.t SET SCHEMA other",
        "DROP TABLE app.t CASCADE",
    ],
)
async def test_the_message_changes_nothing_if_the_object_differs_from_what_was_read(
    db: AclDatabase, meanwhile: str
) -> None:
    before = named(await read(db), "t")
    text = render_repairs([AclRepair(before, (change(db, before, "reader", "SELECT"),))], 140_000, (), ())
    await prepare_checks(db.connection)
    await db.run(meanwhile)
    with pytest.raises(asyncpg.PostgresError) as raised:
        await db.connection.execute(text)
    assert raised.value.sqlstate == NOT_AS_EXPECTED
    assert all(not held(one, db.oids["reader"]) for one in await read(db))


async def test_the_message_changes_nothing_if_an_expected_entry_is_missing(db: AclDatabase) -> None:
    before = named(await read(db), "t")
    grant = change(db, before, "writer", "INSERT")
    other = AclEntry(db.oids["writer"], before.object.owner, db.name("owner"), "DELETE")
    claimed = replace(before, entries=(*before.entries, other))
    text = render_repairs([AclRepair(claimed, (grant,))], 140_000, (), ())
    await prepare_checks(db.connection)
    with pytest.raises(asyncpg.PostgresError) as raised:
        await db.connection.execute(text)
    assert raised.value.sqlstate == NOT_AS_EXPECTED
    assert not held(named(await read(db), "t"), db.oids["writer"])


async def test_the_repair_itself_detects_an_event_trigger_with_a_tenants_function(db: AclDatabase) -> None:
    before = named(await read(db), "t")
    await db.run("""
        CREATE TABLE app.ran (by name); GRANT INSERT ON app.ran TO PUBLIC;
        CREATE FUNCTION app.trap() RETURNS event_trigger LANGUAGE plpgsql
            AS 'BEGIN INSERT INTO app.ran VALUES (current_user); END';
        CREATE EVENT TRIGGER trap ON ddl_command_end EXECUTE FUNCTION app.trap();
    """)
    await db.run("ALTER FUNCTION app.trap() OWNER TO {stranger}")
    await db.beside.execute("DELETE FROM app.ran")
    for changes in (
        (change(db, before, "reader", "SELECT"),),
        (change(db, before, "reader", "SELECT", columns=("id",)),),  # takes several messages
    ):
        with pytest.raises(PgRoleError) as raised:
            await apply(db, [AclRepair(before, changes)])
        assert raised.value.reason is Reason.SERVER_NOT_READY
    assert await db.beside.fetchval("SELECT count(*) FROM app.ran") == 0
    assert not held(named(await read(db), "t"), db.oids["reader"])
