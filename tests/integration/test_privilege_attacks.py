"""Tenants attack the controller's work on privileges: by what they own, name, grant, rename and flood.

Each attack has a counterpart that succeeds where it is allowed, so that a controller that does nothing fails here.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace

import anyio
import asyncpg
import pytest
import pytest_asyncio

from pgrole_controller.core.privileges.acl import AclChange, ObjectKind
from pgrole_controller.core.privileges.acl_decision import PrivilegeDecision, decide_privileges
from pgrole_controller.core.privileges.grantee import (
    Access,
    DatabasePrivileges,
    Grantee,
    ObjectPrivileges,
    PrivilegePolicy,
    PrivilegeRule,
    SchemaAccess,
)
from pgrole_controller.core.privileges.observed_database import ObservedDatabase
from pgrole_controller.core.privileges.privilege_reach import PrivilegeReach
from pgrole_controller.core.request import Key
from pgrole_controller.local.postgres import PostgresServer
from pgrole_controller.postgres.privileges.acl_apply import apply_acls
from pgrole_controller.postgres.privileges.acl_catalog import read_database
from pgrole_controller.postgres.privileges.acl_read_back import AclReadBack
from pgrole_controller.postgres.privileges.acl_repair import AclRepair
from pgrole_controller.postgres.privileges.acl_transaction import AclDialect, AclTransactions, AppliedAcls
from tests.integration.acl_support import AclDatabase, acl_database
from tests.integration.test_reassign import reached
from tests.servers import Servers

TABLES, ROUTINES, SCHEMAS = ObjectKind.TABLE, ObjectKind.ROUTINE, ObjectKind.SCHEMA


@pytest_asyncio.fixture(loop_scope="session")
async def db(postgres_server: PostgresServer) -> AsyncIterator[AclDatabase]:
    async with acl_database(postgres_server) as made:
        yield made


def grantee(
    db: AclDatabase, declared: DatabasePrivileges, *owned: str, rules: Sequence[PrivilegeRule] | None
) -> Grantee:
    """The role `reader` of a namespace that claims the roles `owned`."""
    name = db.dsn.rsplit("/", 1)[-1].split("?")[0]
    declared = replace(declared, database=name)
    policy = PrivilegePolicy(None if rules is None else tuple(rules), ("*",))
    owners = frozenset(db.grantees(*owned))
    return Grantee(
        Key("shop", "reader"), "u", 1, db.name("reader"), db.oids["reader"], {name: declared}, {}, policy, owners
    )


@dataclass(frozen=True, slots=True)
class Settled:
    decision: PrivilegeDecision
    applied: AppliedAcls

    @property
    def said(self) -> str:
        errors = [*self.decision.pending, *self.applied.errors.values(), *self.applied.default_errors.values()]
        return " ".join(error.message for error in errors)


async def decide(db: AclDatabase, one: Grantee) -> tuple[ObservedDatabase, PrivilegeDecision]:
    (name,) = one.declared
    reach = PrivilegeReach.of(name, [one])
    observed = await read_database(db.connection, [one.oid], reach.creators, reach.touches, reach.has_columns)
    return observed, decide_privileges(one, observed, "", new_objects=frozenset())


async def settle(db: AclDatabase, one: Grantee) -> Settled:
    """Reads, decides and applies, as the worker does."""
    observed, decision = await decide(db, one)
    changes: dict[object, list[AclChange]] = {}
    for change in decision.changes:
        changes.setdefault(change.object.id, []).append(change)
    repairs = [AclRepair(acl, tuple(changes[acl.object.id])) for acl in observed.acls if acl.object.id in changes]
    dialect = AclDialect(observed.facts.version)
    applied = await apply_acls(db.connection, repairs, decision.default_changes, [one.oid], dialect)
    return Settled(decision, applied)


def on(kind: ObjectKind, schema: str, name: str, *privileges: str, columns: tuple[str, ...] = ()) -> DatabasePrivileges:
    names = () if kind is SCHEMAS else (name,)
    return DatabasePrivileges("", objects=(ObjectPrivileges(kind, schema, names, frozenset(privileges), columns),))


def access(schema: str, *kinds: Access) -> DatabasePrivileges:
    return DatabasePrivileges("", schemas=(SchemaAccess(schema, frozenset(kinds)),))


#: A rule as administrators write it for a shared area: every kind and privilege, in schemas by pattern.
WIDE = PrivilegeRule(schemas=("*",))


@dataclass(frozen=True, slots=True)
class Climb:
    """`setup`: by a superuser, as the victim would have it. `declared`: by the attacker, whose namespace claims
    `delegate`. `gained`: what the attacker's role may do if it succeeds. `allowed`: a policy under which it may.
    """

    setup: str
    declared: DatabasePrivileges
    gained: str
    rules: tuple[PrivilegeRule, ...] | None = None
    allowed: tuple[PrivilegeRule, ...] | None = (WIDE,)
    since: int = 14


TABLE = "CREATE TABLE app.t (id int, total int); ALTER TABLE app.t OWNER TO {owner};"
ROUTINE = "CREATE FUNCTION app.fn() RETURNS int LANGUAGE sql AS 'SELECT 1'; ALTER FUNCTION app.fn OWNER TO {owner};"
EXACT = (replace(WIDE, schemas=("app",)),)
PATTERN = (replace(WIDE, schemas=("ap*",)),)
MAY_READ = "has_table_privilege('{reader}', 'app.t', 'SELECT')"

CLIMBS = {
    "a table of another owner, by name": Climb(TABLE, on(TABLES, "app", "t", "SELECT"), MAY_READ),
    "a table of another owner, by pattern": Climb(TABLE, access("*", Access.READ), MAY_READ),
    "a table of another owner in a schema of one's own": Climb(
        TABLE + "ALTER SCHEMA app OWNER TO {delegate};", access("app", Access.READ), MAY_READ
    ),
    "a column of another owner's table": Climb(
        TABLE,
        on(TABLES, "app", "t", "UPDATE", columns=("id",)),
        "has_column_privilege('{reader}', 'app.t', 'id', 'UPDATE')",
    ),
    "a partition that belongs to another owner": Climb(
        "CREATE TABLE app.parts (id int) PARTITION BY LIST (id); ALTER TABLE app.parts OWNER TO {delegate};"
        "CREATE TABLE app.t PARTITION OF app.parts DEFAULT; ALTER TABLE app.t OWNER TO {owner};",
        access("app", Access.READ),
        MAY_READ,
    ),
    "a view of another owner": Climb(
        "CREATE VIEW app.t AS SELECT * FROM pg_catalog.pg_authid; ALTER VIEW app.t OWNER TO {owner};",
        access("app", Access.READ),
        MAY_READ,
    ),
    "a sequence of another owner": Climb(
        "CREATE SEQUENCE app.s; ALTER SEQUENCE app.s OWNER TO {owner};",
        access("app", Access.WRITE),
        "has_sequence_privilege('{reader}', 'app.s', 'UPDATE')",
    ),
    "a routine of another owner": Climb(
        ROUTINE + "REVOKE ALL ON FUNCTION app.fn FROM PUBLIC;",
        access("app", Access.EXECUTE),
        "has_function_privilege('{reader}', 'app.fn()', 'EXECUTE')",
    ),
    "a schema of another owner": Climb(
        "", access("app", Access.READ), "has_schema_privilege('{reader}', 'app', 'USAGE')"
    ),
    "the database": Climb(
        "",
        DatabasePrivileges("", on_database=frozenset({"CREATE"})),
        "has_database_privilege('{reader}', current_database(), 'CREATE')",
        allowed=(PrivilegeRule(databases=("{database}",)),),
    ),
    "the database, by a pattern of databases": Climb(
        "",
        DatabasePrivileges("", on_database=frozenset({"CREATE"})),
        "has_database_privilege('{reader}', current_database(), 'CREATE')",
        rules=(WIDE,),
        allowed=(PrivilegeRule(databases=("{database}",)),),
    ),
    "a routine that runs as its owner, by a rule with a pattern": Climb(
        ROUTINE + "REVOKE ALL ON FUNCTION app.fn FROM PUBLIC; ALTER FUNCTION app.fn SECURITY DEFINER;",
        on(ROUTINES, "app", "fn", "EXECUTE"),
        "has_function_privilege('{reader}', 'app.fn()', 'EXECUTE')",
        rules=PATTERN,
        allowed=EXACT,
    ),
    "a routine in an untrusted language, by a rule with a pattern": Climb(
        "CREATE LANGUAGE wild HANDLER plpgsql_call_handler;"
        "CREATE FUNCTION app.fn() RETURNS int LANGUAGE wild AS 'BEGIN RETURN 1; END';"
        "REVOKE ALL ON FUNCTION app.fn FROM PUBLIC;",
        on(ROUTINES, "app", "fn", "EXECUTE"),
        "has_function_privilege('{reader}', 'app.fn()', 'EXECUTE')",
        rules=PATTERN,
        allowed=EXACT,
    ),
    "TRIGGER": Climb(
        TABLE,
        on(TABLES, "app", "t", "TRIGGER"),
        "has_table_privilege('{reader}', 'app.t', 'TRIGGER')",
        rules=PATTERN,
        allowed=EXACT,
    ),
    "REFERENCES": Climb(
        TABLE,
        on(TABLES, "app", "t", "REFERENCES"),
        "has_table_privilege('{reader}', 'app.t', 'REFERENCES')",
        rules=PATTERN,
        allowed=EXACT,
    ),
    "REFERENCES of a column": Climb(
        TABLE,
        on(TABLES, "app", "t", "REFERENCES", columns=("id",)),
        "has_column_privilege('{reader}', 'app.t', 'id', 'REFERENCES')",
        rules=PATTERN,
        allowed=EXACT,
    ),
    "MAINTAIN": Climb(
        TABLE,
        on(TABLES, "app", "t", "MAINTAIN"),
        "has_table_privilege('{reader}', 'app.t', 'MAINTAIN')",
        rules=PATTERN,
        allowed=EXACT,
        since=17,
    ),
    "CREATE in public": Climb(
        "REVOKE CREATE ON SCHEMA public FROM PUBLIC",
        on(SCHEMAS, "public", "", "CREATE"),
        "has_schema_privilege('{reader}', 'public', 'CREATE')",
        rules=(WIDE,),
        allowed=(PrivilegeRule(schemas=("public",)),),
    ),
    **{
        f"CREATE in a schema that others search: {how}": Climb(
            setup,
            on(SCHEMAS, schema, "", "CREATE"),
            f"has_schema_privilege('{{reader}}', '{schema}', 'CREATE')",
            rules=(WIDE,),
            allowed=(PrivilegeRule(schemas=(schema,)),),
        )
        for how, schema, setup in (
            ("$user", "{writer}", "CREATE SCHEMA {writer}"),
            ("the database's setting", "app", 'ALTER DATABASE {database} SET search_path = nowhere, "App", app'),
            ("a role's setting", "app", "ALTER ROLE {writer} SET search_path = app"),
            ("a role's setting here", "app", "ALTER ROLE {writer} IN DATABASE {database} SET search_path = 'app'"),
            ("a routine's setting", "app", ROUTINE + "ALTER FUNCTION app.fn SET search_path = app"),
        )
    },
    "a table of a superuser, by a pattern of owners": Climb(
        "CREATE TABLE app.t ()",
        on(TABLES, "app", "t", "SELECT"),
        MAY_READ,
        rules=(replace(WIDE, owned_by=("*",)),),
        allowed=(replace(WIDE, owned_by=("postgres",)),),
    ),
    "a routine that an extension has in pg_catalog, by a rule with a pattern": Climb(
        "CREATE FUNCTION pg_catalog.fn() RETURNS int LANGUAGE sql AS 'SELECT 1'; REVOKE ALL ON FUNCTION pg_catalog.fn"
        " FROM PUBLIC; ALTER EXTENSION plpgsql ADD FUNCTION pg_catalog.fn",
        on(ROUTINES, "pg_catalog", "fn", "EXECUTE"),
        "has_function_privilege('{reader}', 'pg_catalog.fn()', 'EXECUTE')",
        rules=(WIDE,),
        allowed=(PrivilegeRule(schemas=("pg_catalog",)),),
    ),
    "schema public of whoever owns the database": Climb(
        "REVOKE ALL ON SCHEMA public FROM PUBLIC; ALTER DATABASE {database} OWNER TO {delegate}",
        access("public", Access.READ),
        "has_schema_privilege('{reader}', 'public', 'USAGE')",
        allowed=(replace(WIDE, owned_by=("pg_database_owner",)),),
        since=15,
    ),
    "a catalog": Climb(
        "",
        on(TABLES, "pg_catalog", "pg_authid", "SELECT"),
        "has_table_privilege('{reader}', 'pg_catalog.pg_authid', 'SELECT')",
        rules=(WIDE,),
        allowed=None,
    ),
    "the controller's own schema": Climb(
        "CREATE SCHEMA pgrole; CREATE TABLE pgrole.ddl_event (); ALTER TABLE pgrole.ddl_event OWNER TO {delegate};",
        on(TABLES, "pgrole", "ddl_event", "INSERT"),
        "has_table_privilege('{reader}', 'pgrole.ddl_event', 'INSERT')",
        rules=(PrivilegeRule(schemas=("pgrole",)),),
        allowed=None,
    ),
}


def _fill(db: AclDatabase, text: str, one: Grantee) -> str:
    return db.fill(text).replace("{database}", next(iter(one.declared)))


def _fill_declared(db: AclDatabase, declared: DatabasePrivileges) -> DatabasePrivileges:
    objects = tuple(replace(one, schema=db.fill(one.schema)) for one in declared.objects)
    return replace(declared, objects=objects)


@pytest.mark.parametrize("name", CLIMBS)
async def test_no_declaration_gains_a_privilege_that_the_policy_does_not_allow(
    db: AclDatabase, servers: Servers, name: str
) -> None:
    climb = CLIMBS[name]
    if servers.version < climb.since:
        pytest.skip(f"exists since {climb.since}")
    declared = _fill_declared(db, climb.declared)
    one = grantee(db, declared, "delegate", rules=climb.rules)
    await db.run(f"{_fill(db, climb.setup, one)};SELECT")
    settled = await settle(db, one)
    gained = f"SELECT {_fill(db, climb.gained, one)}"
    assert not await db.beside.fetchval(gained), settled
    if climb.allowed is None:
        return
    assert settled.decision.pending, "the refusal is not reported"
    rules = [
        replace(
            rule,
            schemas=tuple(db.fill(schema) for schema in rule.schemas),
            databases=tuple(_fill(db, database, one) for database in rule.databases),
            owned_by=rule.owned_by and tuple(_fill_owner(db, owner) for owner in rule.owned_by),
        )
        for rule in climb.allowed
    ]
    settled = await settle(db, grantee(db, declared, "delegate", rules=rules))
    assert await db.beside.fetchval(gained), settled.said


def _fill_owner(db: AclDatabase, owner: str) -> str:
    return "postgres" if owner == "postgres" else db.fill(owner)


async def test_default_privileges_of_a_creator_that_leaves_the_namespace_extend_to_none_of_its_new_tables(
    db: AclDatabase,
) -> None:
    await db.run("GRANT CREATE ON SCHEMA app TO {delegate}")
    declared = replace(access("app", Access.READ), created_by=(db.name("delegate"),))
    settled = await settle(db, grantee(db, declared, "owner", "delegate", rules=None))
    assert not settled.said
    await db.run("SET ROLE {delegate}; CREATE TABLE app.before (); RESET ROLE")
    may_read = "SELECT has_table_privilege('{reader}', 'app.%s', 'SELECT')"
    assert await db.beside.fetchval(db.fill(may_read % "before"))
    left = grantee(db, declared, "owner", rules=None)
    settled = await settle(db, left)
    assert "createdBy" in settled.said
    await db.run("SET ROLE {delegate}; CREATE TABLE app.after (); RESET ROLE")
    assert not await db.beside.fetchval(db.fill(may_read % "after"))
    assert await db.beside.fetchval(db.fill(may_read % "before")), "what the role holds already remains"
    assert (await decide(db, left))[1].default_changes == ()


async def test_a_role_cannot_pass_on_a_declared_privilege_that_the_policy_denies(db: AclDatabase) -> None:
    await db.run(
        """
        CREATE TABLE app.t (id int, name text); GRANT USAGE ON SCHEMA app TO {reader};
        GRANT SELECT, UPDATE (id) ON app.t TO {reader} WITH GRANT OPTION;
        SET ROLE {reader}; GRANT SELECT, UPDATE (id) ON app.t TO {stranger}; RESET ROLE
        """
    )
    parts = on(TABLES, "app", "t", "SELECT"), on(TABLES, "app", "t", "UPDATE", columns=("id",))
    declared = DatabasePrivileges("", objects=tuple(one for part in parts for one in part.objects))
    denied = grantee(db, declared, rules=())
    settled = await settle(db, denied)
    assert "the server's policy does not allow SELECT on table app.t" in settled.said
    may = "has_table_privilege('{%s}', 'app.t', 'SELECT%s'), has_column_privilege('{%s}', 'app.t', 'id', 'UPDATE%s')"
    for role, option, expected in (
        ("reader", "", True),
        ("reader", " WITH GRANT OPTION", False),
        ("stranger", "", False),
    ):
        found = await db.beside.fetchrow("SELECT " + db.fill(may % (role, option, role, option)))
        assert found is not None
        assert tuple(found) == (expected, expected), (role, option)
    assert not (await decide(db, denied))[1].changes


#: Ways to grant `reader` what it does not declare: SELECT on app.t. Each grant is revoked, whoever made it and
#: whatever became of the grantor.
GIVEN = {
    "by the owner": "GRANT SELECT ON app.t TO {reader}",
    "with grant option": "GRANT SELECT ON app.t TO {reader} WITH GRANT OPTION",
    "a column": "GRANT SELECT (id) ON app.t TO {reader}",
    "by a delegate": "{option}; SET ROLE {delegate}; GRANT SELECT ON app.t TO {reader}",
    "by a delegate that grants the option": (
        "{option}; SET ROLE {delegate}; GRANT SELECT ON app.t TO {reader} WITH GRANT OPTION; RESET ROLE;"
        "GRANT USAGE ON SCHEMA app TO {reader}; SET ROLE {reader};"
        "GRANT SELECT ON app.t TO {writer}"
    ),
    "by a chain of delegates": (
        "{option}; SET ROLE {delegate}; GRANT SELECT ON app.t TO {stranger} WITH GRANT OPTION; SET ROLE {stranger};"
        "GRANT SELECT ON app.t TO {reader}"
    ),
    "by a delegate and by the owner": (
        "{option}; GRANT SELECT ON app.t TO {reader}; SET ROLE {delegate}; GRANT SELECT ON app.t TO {reader}"
    ),
    "by a delegate that became a member of the owner": (
        "{option}; SET ROLE {delegate}; GRANT SELECT ON app.t TO {reader}; RESET ROLE; GRANT {owner} TO {delegate}"
    ),
    "a column, by a delegate that became a member of the owner": (
        "GRANT SELECT (id) ON app.t TO {delegate} WITH GRANT OPTION; SET ROLE {delegate};"
        "GRANT SELECT (id) ON app.t TO {reader}; RESET ROLE; GRANT {owner} TO {delegate}"
    ),
    "by a delegate in a chain that became a member of the owner": (
        "{option}; SET ROLE {delegate}; GRANT SELECT ON app.t TO {stranger} WITH GRANT OPTION; SET ROLE {stranger};"
        "GRANT SELECT ON app.t TO {reader}; RESET ROLE; GRANT {owner} TO {stranger}"
    ),
    "by a delegate that cannot use the schema any more": (
        "{option}; SET ROLE {delegate}; GRANT SELECT ON app.t TO {reader}; RESET ROLE;"
        "REVOKE USAGE ON SCHEMA app FROM {delegate}"
    ),
    "by a delegate that was renamed": (
        "{option}; SET ROLE {delegate}; GRANT SELECT ON app.t TO {reader}; RESET ROLE;"
        'ALTER ROLE {delegate} RENAME TO "{delegate}\'; SELECT 1";'
        'ALTER ROLE "{delegate}\'; SELECT 1" RENAME TO {delegate}'
    ),
    "by an owner that gave the table away": "GRANT SELECT ON app.t TO {reader}; ALTER TABLE app.t OWNER TO {heir}",
    "in an extension that the owner of the table faked": (
        "GRANT SELECT ON app.t TO {reader}; ALTER EXTENSION plpgsql ADD TABLE app.t"
    ),
    "by default privileges": (
        "ALTER DEFAULT PRIVILEGES FOR ROLE {owner} GRANT SELECT ON TABLES TO {reader}; DROP TABLE app.t;"
        "SET ROLE {owner};"
        "CREATE TABLE app.t (id int)"
    ),
}


@pytest.mark.parametrize("name", GIVEN)
async def test_every_undeclared_privilege_is_revoked(db: AclDatabase, name: str) -> None:
    await db.run(TABLE + "GRANT SELECT ON app.t TO {heir}; GRANT USAGE ON SCHEMA app TO {stranger}, {writer}, {heir}")
    one = grantee(db, access("other", Access.READ), rules=None)
    option = "GRANT SELECT ON app.t TO {delegate} WITH GRANT OPTION"
    given = GIVEN[name].replace("{option}", option)
    await db.run(f"{given}; RESET ROLE")
    may = "has_any_column_privilege('{reader}', 'app.t', 'SELECT')"
    assert await db.beside.fetchval(f"SELECT {db.fill(may)}")
    settled = await settle(db, one)
    assert not await db.beside.fetchval(f"SELECT {db.fill(may)}"), settled.said
    assert not (await decide(db, one))[1].changes
    for other in ("delegate", "heir"):
        if other in given and "DROP TABLE" not in given:
            kept = f"has_any_column_privilege('{{{other}}}', 'app.t', 'SELECT')"
            assert await db.beside.fetchval(f"SELECT {db.fill(kept)}"), f"{other} lost its own privilege"


async def test_privileges_on_system_columns_are_revoked_and_granted_as_declared(db: AclDatabase) -> None:
    """SELECT on ctid tells how many rows a table has."""
    await db.run(TABLE + "GRANT SELECT (ctid) ON app.t TO {reader}")
    one = grantee(db, on(TABLES, "app", "t", "SELECT", columns=("id", "xmin")), rules=(WIDE,))
    settled = await settle(db, one)
    assert not settled.said
    held = [f"has_column_privilege('{{reader}}', 'app.t', '{column}', 'SELECT')" for column in ("id", "xmin", "ctid")]
    assert await db.beside.fetchval(db.fill(f"SELECT ARRAY[{', '.join(held)}]")) == [True, True, False]
    decision = (await decide(db, one))[1]
    assert (decision.changes, decision.pending) == ((), ())


async def test_a_grant_by_a_role_that_became_a_superuser_is_reported_with_a_working_remedy(db: AclDatabase) -> None:
    """Whatever role is set, PostgreSQL revokes in the owner's name."""
    await db.run(f"""
        {TABLE} GRANT SELECT ON app.t TO {{delegate}} WITH GRANT OPTION; GRANT DELETE ON app.t TO {{reader}};
        SET ROLE {{delegate}}; GRANT SELECT ON app.t TO {{reader}}; RESET ROLE; ALTER ROLE {{delegate}} SUPERUSER
    """)
    one = grantee(db, access("other", Access.READ), rules=None)
    settled = await settle(db, one)
    remedy = db.fill('ALTER ROLE "{delegate}" NOSUPERUSER')
    assert remedy in settled.said
    await db.run(remedy)
    assert not (await settle(db, one)).applied.errors
    assert not await db.beside.fetchval(db.fill("SELECT has_table_privilege('{reader}', 'app.t', 'SELECT, DELETE')"))


#: What a tenant changes after the controller verified the object and before it grants, by oid and by name. `app.v` and
#: `evil.v` have different owners; the attacker owns both schemas.
SWAPS = {
    "schemas": "ALTER SCHEMA app RENAME TO away; ALTER SCHEMA evil RENAME TO app",
    "views": "ALTER VIEW app.v RENAME TO old; ALTER VIEW evil.v SET SCHEMA app",
    "another view": "DROP VIEW app.v; ALTER VIEW evil.v SET SCHEMA app",
    "the owner": "ALTER VIEW app.v OWNER TO {stranger}",
    "the grantee": "ALTER ROLE {reader} RENAME TO x_{reader}; ALTER ROLE {writer} RENAME TO {reader}",
    "the routine": "DROP FUNCTION app.fn(); ALTER FUNCTION evil.fn() SET SCHEMA app",
    "the routine's powers": "ALTER FUNCTION app.fn() SECURITY DEFINER",
}
VIEWS = """
CREATE SCHEMA evil AUTHORIZATION {owner};
CREATE VIEW app.v AS SELECT 1 AS id; CREATE VIEW evil.v AS SELECT 'secret' AS id;
CREATE FUNCTION app.fn() RETURNS int LANGUAGE sql AS 'SELECT 1';
CREATE FUNCTION evil.fn() RETURNS int LANGUAGE sql SECURITY DEFINER AS 'SELECT 2';
REVOKE ALL ON FUNCTION app.fn, evil.fn FROM PUBLIC;
ALTER VIEW app.v OWNER TO {owner}; ALTER VIEW evil.v OWNER TO {stranger};
ALTER FUNCTION app.fn OWNER TO {owner}; ALTER FUNCTION evil.fn OWNER TO {stranger};
"""


@pytest.mark.parametrize("name", SWAPS)
async def test_nothing_is_granted_on_an_object_that_took_the_name_meanwhile(
    db: AclDatabase, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await db.run(VIEWS)
    declared = DatabasePrivileges(
        "",
        objects=(
            ObjectPrivileges(TABLES, "app", ("v",), frozenset({"SELECT"})),
            ObjectPrivileges(ROUTINES, "app", ("fn",), frozenset({"EXECUTE"})),
        ),
    )
    one = grantee(db, declared, "owner", rules=None)
    verify = AclReadBack.find_stale

    async def verify_and_swap(self: AclReadBack, repairs: Sequence[AclRepair]) -> object:
        stale = await verify(self, repairs)
        monkeypatch.setattr(AclReadBack, "find_stale", verify)
        await db.run(SWAPS[name])
        return stale

    monkeypatch.setattr(AclReadBack, "find_stale", verify_and_swap)
    await settle(db, one)
    rows = await db.beside.fetch("""
        SELECT format('%s of %s for %s', x.name, x.owner::regrole, a.grantee::regrole) AS found
        FROM (
            SELECT c.relname, c.relowner, c.relacl FROM pg_class AS c WHERE c.oid >= 16384
            UNION ALL SELECT p.proname, p.proowner, p.proacl FROM pg_proc AS p WHERE p.oid >= 16384 AND p.prosecdef
        ) AS x (name, owner, acl) CROSS JOIN aclexplode(x.acl) AS a
        WHERE a.grantee <> x.owner
    """)
    found = {row["found"] for row in rows}
    wrong = {text for text in found if not text.endswith(f"of {db.name('owner')} for {db.name('reader')}")}
    assert not (found if name == "the grantee" else wrong)
    assert name != "the routine's powers" or not any(text.startswith("fn ") for text in found)


#: The attacker's schemas `app` and `evil` have objects of the same name, its own and one of another owner. What the
#: attacker's role declares, and the statement with which the attacker grants the same on its own.
TWINS = {
    "a table": (on(TABLES, "app", "twin", "SELECT"), "GRANT SELECT ON app.twin TO {reader}"),
    "a column": (on(TABLES, "app", "twin", "SELECT", columns=("id",)), "GRANT SELECT (id) ON app.twin TO {reader}"),
    "a routine": (on(ROUTINES, "app", "fn", "EXECUTE"), "GRANT EXECUTE ON FUNCTION app.fn TO {reader}"),
}
MAKE_TWINS = """
CREATE SCHEMA evil AUTHORIZATION {owner};
CREATE TABLE app.twin (id int); ALTER TABLE app.twin OWNER TO {owner};
CREATE TABLE evil.twin (id int); ALTER TABLE evil.twin OWNER TO {stranger};
CREATE FUNCTION app.fn() RETURNS int LANGUAGE sql AS 'SELECT 1'; ALTER FUNCTION app.fn OWNER TO {owner};
CREATE FUNCTION evil.fn() RETURNS int LANGUAGE sql AS 'SELECT 2'; ALTER FUNCTION evil.fn OWNER TO {stranger};
REVOKE ALL ON FUNCTION app.fn, evil.fn FROM PUBLIC
"""
SWAP_SCHEMAS = "ALTER SCHEMA app RENAME TO away; ALTER SCHEMA evil RENAME TO app; ALTER SCHEMA away RENAME TO evil"
ON_OTHERS = """
SELECT has_any_column_privilege('{reader}', t.oid, 'SELECT') OR has_function_privilege('{reader}', f.oid, 'EXECUTE')
FROM pg_class AS t, pg_proc AS f
WHERE t.relname = 'twin' AND t.relowner = '{stranger}'::regrole
  AND f.proname = 'fn' AND f.proowner = '{stranger}'::regrole
"""


@pytest.mark.parametrize("name", TWINS)
async def test_nothing_is_granted_on_an_object_that_had_the_name_for_a_moment(
    db: AclDatabase, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What should be granted is there afterwards, since the attacker granted it."""
    declared, by_hand = TWINS[name]
    await db.run(MAKE_TWINS)
    find_stale, verify = AclReadBack.find_stale, AclReadBack.verify

    async def find_stale_and_swap(self: AclReadBack, repairs: Sequence[AclRepair]) -> object:
        stale = await find_stale(self, repairs)
        await db.run(SWAP_SCHEMAS)
        return stale

    async def swap_back_and_verify(
        self: AclReadBack, repairs: Sequence[AclRepair], refused: asyncpg.PostgresError | None
    ) -> None:
        await db.run(f"{SWAP_SCHEMAS}; {by_hand}")
        await verify(self, repairs, refused)

    async def never(*_arguments: object, **_options: object) -> bool:
        return False

    with monkeypatch.context() as patch:
        patch.setattr(AclTransactions, "_transact_at_once", never)
        patch.setattr(AclReadBack, "find_stale", find_stale_and_swap)
        patch.setattr(AclReadBack, "verify", swap_back_and_verify)
        await settle(db, grantee(db, declared, "owner", rules=None))
    assert not await db.beside.fetchval(db.fill(ON_OTHERS))


async def test_nothing_is_granted_on_a_table_that_has_the_name_while_one_message_waits(db: AclDatabase) -> None:
    """The message revokes first. That waits for a transaction of the attacker, who can choose the moment."""
    declared, by_hand = TWINS["a table"]
    await db.run(f"{MAKE_TWINS}; {TABLE} GRANT DELETE ON app.t TO {{reader}}")
    waits = "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = $1"
    attacker = await asyncpg.connect(db.dsn)
    try:
        await db.run("BEGIN; GRANT INSERT ON app.t TO {writer}")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(settle, db, grantee(db, declared, "owner", rules=None))
            await reached(attacker, waits, db.connection.get_server_pid())
            await attacker.execute(db.fill(f"BEGIN; {by_hand}; {SWAP_SCHEMAS}; COMMIT"))
            await db.run("ROLLBACK")
    finally:
        await attacker.close()
    assert not await db.beside.fetchval(db.fill(ON_OTHERS))
