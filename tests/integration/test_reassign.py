"""postgres, against real servers: a role is emptied before it is dropped, and nothing created as the role is lost."""

import os
import secrets
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta

import anyio
import asyncpg
import pytest
import pytest_asyncio

from pgrole_controller.core.ddl import quote_identifier, quote_literal
from pgrole_controller.core.errors import Reason, Transient, Waiting
from pgrole_controller.core.plan import Blocker, ReassignOwned, blocked
from pgrole_controller.local.postgres import PostgresServer
from pgrole_controller.postgres import catalog, queries, reassign_in_database
from pgrole_controller.postgres.capabilities import identify
from pgrole_controller.postgres.connection import Connection, Endpoint, connect
from pgrole_controller.postgres.reassign import reassign_owned
from pgrole_controller.postgres.reassign_in_database import MADE_MEANWHILE, RoleEmptying, reassign_sql
from tests.servers import ContainerServer, Servers

DEADLINE = 60.0
SETTINGS = {"max_prepared_transactions": "5", "max_locks_per_transaction": "20"}


@dataclass
class ReassignTrial:
    """A role to be dropped and its new owner, which no other test uses, and the databases that a test creates."""

    server: PostgresServer
    home: Connection
    stack: AsyncExitStack
    tag: str
    role: str = ""
    new_owner: str = ""
    databases: list[str] = field(default_factory=list)
    oids: dict[str, int] = field(default_factory=dict)

    @property
    def q(self) -> str:
        return quote_identifier(self.role)

    @property
    def version(self) -> int:
        return self.home.get_server_version().major

    async def start(self, role: str = "ro'l\"e") -> None:
        self.role, self.new_owner = f"{role}_{self.tag}", f"heir_{secrets.token_hex(3)}"
        await self.home.execute(f"CREATE ROLE {self.q} LOGIN PASSWORD 'p'; CREATE ROLE {self.new_owner}")
        await self.oid()

    async def oid(self) -> int:
        if self.role not in self.oids:
            found = await self.home.fetchval("SELECT oid FROM pg_roles WHERE rolname = $1", self.role)
            self.oids[self.role] = int(found)
        return self.oids[self.role]

    async def create_database(self, name: str = "", options: str = "") -> str:
        name = name or f"db{len(self.databases)}_{self.tag}"
        await self.home.execute(f"CREATE DATABASE {quote_identifier(name)} {options}")
        self.databases.append(name)
        return name

    async def enter(self, database: str = "postgres", user: str = "postgres", *statements: str) -> Connection:
        made: Connection = await asyncpg.connect(
            self.server.dsn(user, password="p" if user != "postgres" else None), database=database
        )
        self.stack.push_async_callback(made.close, timeout=5)
        for statement in statements:
            await made.execute(statement)
        return made

    async def become(self, database: str, *statements: str) -> Connection:
        """A superuser's session that has done SET ROLE."""
        return await self.enter(database, "postgres", f"SET ROLE {self.q}", *statements)

    async def reassign(self, endpoint: Endpoint | None = None, **changed: object) -> None:
        task = ReassignOwned(self.role, await self.oid(), self.new_owner, terminate=False)
        values = {name: changed.get(name, getattr(task, name)) for name in ("role", "oid", "new_owner", "terminate")}
        deadline = float(str(changed.get("deadline", DEADLINE)))
        await reassign_owned(endpoint or Endpoint(self.server.dsn()), ReassignOwned(**values), deadline)  # type: ignore[arg-type]

    async def refused(self, **changed: object) -> str:
        with pytest.raises(Waiting) as raised:
            await self.reassign(**changed)  # type: ignore[arg-type]
        assert raised.value.reason is Reason.DROP_BLOCKED
        return raised.value.message

    async def dependents(self) -> dict[str, int]:
        found = await catalog.read_dependents(self.home, [await self.oid()])
        return {dependent.database: dependent.count for some in found.values() for dependent in some}

    async def drop(self, members: int = 0) -> None:
        assert await self.dependents() == ({"": members} if members else {})
        await self.home.execute(f"DROP ROLE {self.q}")

    async def owner(self, connection: Connection, relation: str) -> str | None:
        query = "SELECT pg_get_userbyid(relowner)::text FROM pg_class WHERE oid = to_regclass($1)"
        found = await connection.fetchval(query, relation)
        return None if found is None else str(found)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def server(servers: Servers) -> AsyncIterator[PostgresServer]:
    async with servers.run(settings=SETTINGS) as own:
        yield own


@pytest_asyncio.fixture(loop_scope="session")
async def trial(server: PostgresServer) -> AsyncIterator[ReassignTrial]:
    home: Connection = await asyncpg.connect(server.dsn())
    try:
        async with AsyncExitStack() as stack:
            trial = ReassignTrial(server, home, stack, secrets.token_hex(3))
            await trial.start()
            yield trial
        for name in trial.databases:
            await home.execute(f"UPDATE pg_database SET datallowconn = true WHERE datname = {quote_literal(name)}")
            await home.execute(f"DROP DATABASE IF EXISTS {quote_identifier(name)} WITH (FORCE)")
    finally:
        await home.close()


@asynccontextmanager
async def emptying(connection: Connection, oid: int) -> AsyncIterator[None]:
    """A transaction in which drop_owned.sql can run; it is rolled back."""
    transaction = connection.transaction()
    await transaction.start()
    await connection.execute(f"SET LOCAL pgrole.role = '{oid}'")
    try:
        yield
    finally:
        await transaction.rollback()


async def reached(connection: Connection, query: str, *arguments: object) -> None:
    """Waits until the query is true."""
    with anyio.fail_after(DEADLINE):
        while not await connection.fetchval(query, *arguments):  # noqa: ASYNC110
            await anyio.sleep(0.01)


WAITS = """SELECT EXISTS (SELECT FROM pg_stat_activity WHERE application_name = 'pgrole-controller reassign'
                          AND wait_event_type = 'Lock')"""

# What a role can own: created by it in schema s, or created by a superuser and given to it.
OWNED = {
    "table": "CREATE TABLE s.t (a int PRIMARY KEY, b text)",
    "unlogged table": "CREATE UNLOGGED TABLE s.t (a int)",
    "temporary table": "CREATE TEMP TABLE t (a int)",
    "partitioned table": "CREATE TABLE s.p (a int) PARTITION BY RANGE (a); "
    "CREATE TABLE s.p1 PARTITION OF s.p FOR VALUES FROM (1) TO (9)",
    "sequence": "CREATE SEQUENCE s.q",
    "view": "CREATE VIEW s.v AS SELECT 1 AS a",
    "materialized view": "CREATE MATERIALIZED VIEW s.m AS SELECT 1 AS a",
    "foreign table": "CREATE FOREIGN TABLE s.ft (a int) SERVER loopback",
    "function": "CREATE FUNCTION s.f() RETURNS int LANGUAGE sql AS 'SELECT 1'",
    "procedure": "CREATE PROCEDURE s.f() LANGUAGE sql AS 'SELECT 1'",
    "aggregate": "CREATE AGGREGATE s.g (int) (SFUNC = int4pl, STYPE = int)",
    "schema": "CREATE SCHEMA own",
    "enum": "CREATE TYPE s.e AS ENUM ('a')",
    "composite": "CREATE TYPE s.c AS (a int)",
    "range": "CREATE TYPE s.r AS RANGE (SUBTYPE = int8)",
    "domain": "CREATE DOMAIN s.d AS int",
    "large object": "SELECT lo_create(0)",
    "publication": "CREATE PUBLICATION pub",
    "collation": "CREATE COLLATION s.co (LOCALE = 'C')",
    "operator": "CREATE OPERATOR s.=== (LEFTARG = int, RIGHTARG = int, FUNCTION = int4eq)",
    "dictionary": "CREATE TEXT SEARCH DICTIONARY s.td (TEMPLATE = simple)",
    "conversion": "CREATE CONVERSION s.cv FOR 'LATIN1' TO 'UTF8' FROM iso8859_1_to_utf8",
    "extended statistics": "CREATE STATISTICS s.st ON relname, relkind FROM s.plain",
    "operator class": "CREATE OPERATOR CLASS s.oc FOR TYPE int USING hash AS OPERATOR 1 =",
    "operator family": "CREATE OPERATOR FAMILY s.of USING btree",
    "text search configuration": "CREATE TEXT SEARCH CONFIGURATION s.tc (COPY = pg_catalog.simple)",
    "extension": "DROP EXTENSION plpgsql; CREATE EXTENSION plpgsql",
    "foreign server": "CREATE SERVER sv FOREIGN DATA WRAPPER w",
}
GIVEN = {
    "foreign-data wrapper": "CREATE FOREIGN DATA WRAPPER w2; ALTER FOREIGN DATA WRAPPER w2 OWNER TO {role}",
    "event trigger": "CREATE FUNCTION s.et() RETURNS event_trigger LANGUAGE plpgsql AS 'BEGIN END'; "
    "CREATE EVENT TRIGGER et ON ddl_command_start WHEN TAG IN ('CREATE CAST') EXECUTE FUNCTION s.et(); "
    "ALTER EVENT TRIGGER et OWNER TO {role}",
    "language": "CREATE LANGUAGE l HANDLER plpgsql_call_handler; ALTER LANGUAGE l OWNER TO {role}",
}
# What a role can have been granted, or be named in, besides what it owns.
PRIVILEGES = {
    "a table": "GRANT ALL ON s.plain TO {role}",
    "a column": "GRANT SELECT (relname), UPDATE (relname) ON s.plain TO {role}",
    "a schema": "GRANT ALL ON SCHEMA s TO {role}",
    "a database": "GRANT CREATE ON DATABASE postgres TO {role}",
    "a tablespace": "GRANT CREATE ON TABLESPACE pg_default TO {role}",
    "a type": "CREATE TYPE s.e AS ENUM ('a'); GRANT USAGE ON TYPE s.e TO {role}",
    "a function": "GRANT EXECUTE ON FUNCTION pg_sleep(float8) TO {role}",
    "a large object": "DO $$ BEGIN "
    "EXECUTE format($q$GRANT SELECT ON LARGE OBJECT %s TO {role}$q$, lo_create(0)); END $$",
    "a parameter": "GRANT SET ON PARAMETER work_mem TO {role}",
    "default privileges of its own": "ALTER DEFAULT PRIVILEGES FOR ROLE {role} GRANT SELECT ON TABLES TO {new_owner}",
    "default privileges of another": "ALTER DEFAULT PRIVILEGES FOR ROLE {new_owner} GRANT SELECT ON TABLES TO {role}",
    "a user mapping": "CREATE USER MAPPING FOR {role} SERVER loopback",
    "a policy of its own": "CREATE POLICY y ON s.plain TO {role} USING (true)",
    "a policy with others": "CREATE POLICY y ON s.plain TO {role}, {new_owner} USING (true)",
    "privileges passed on": "GRANT SELECT ON s.plain TO {role} WITH GRANT OPTION; SET ROLE {role}; "
    "GRANT SELECT ON s.plain TO {new_owner}; RESET ROLE",
}
# What a role that is not the owner can have granted it.
DELEGATED = {
    "a table": "SELECT, DELETE ON TABLE s.plain",
    "one privilege on a table": "TRUNCATE ON TABLE s.plain",
    "a column": "SELECT (relname), UPDATE (relname), SELECT (relkind) ON TABLE s.plain",
    "a system column": "SELECT (ctid) ON TABLE s.plain",
    "a sequence": "USAGE ON SEQUENCE s.q",
    "a view": "SELECT ON TABLE s.v",
    "a function": "EXECUTE ON FUNCTION s.f()",
    "one of two overloads": "EXECUTE ON FUNCTION s.g(int)",
    "an aggregate": "EXECUTE ON FUNCTION s.a(int)",
    "a procedure": "EXECUTE ON PROCEDURE s.p(s.e, text[])",
    "a schema": "CREATE ON SCHEMA s",
    "a type": "USAGE ON TYPE s.e",
    "a domain": "USAGE ON DOMAIN s.d",
    "a language": "USAGE ON LANGUAGE plpgsql",
    "a foreign data wrapper": "USAGE ON FOREIGN DATA WRAPPER w",
    "a foreign server": "USAGE ON FOREIGN SERVER loopback",
    "a large object": "SELECT ON LARGE OBJECT 4711",
    "a database": "CREATE ON DATABASE postgres",
    "a tablespace": "CREATE ON TABLESPACE pg_default",
    "a parameter": "SET ON PARAMETER work_mem",
    "a parameter of an extension": "SET ON PARAMETER app.tenant",
}
DELEGATED_STAGE = """CREATE SEQUENCE s.q; CREATE VIEW s.v AS SELECT 1 AS a; CREATE TYPE s.e AS ENUM ('x');
CREATE DOMAIN s.d AS int; CREATE FUNCTION s.f() RETURNS int LANGUAGE sql AS 'SELECT 1';
CREATE FUNCTION s.g(int) RETURNS int LANGUAGE sql AS 'SELECT 1';
CREATE PROCEDURE s.g(OUT integer) LANGUAGE sql AS 'SELECT 1';
CREATE FUNCTION s.g(text) RETURNS int LANGUAGE sql AS 'SELECT 1';
CREATE AGGREGATE s.a (int) (SFUNC = int4pl, STYPE = int);
CREATE PROCEDURE s.p(s.e, VARIADIC text[]) LANGUAGE sql AS 'SELECT 1'; SELECT lo_create(4711)"""
STAGE = """CREATE SCHEMA s; GRANT ALL ON SCHEMA s TO PUBLIC; CREATE TABLE s.plain AS SELECT * FROM pg_class;
ALTER TABLE s.plain OWNER TO {role}; CREATE FOREIGN DATA WRAPPER w; CREATE SERVER loopback FOREIGN DATA WRAPPER w;
GRANT ALL ON FOREIGN DATA WRAPPER w TO PUBLIC; GRANT ALL ON FOREIGN SERVER loopback TO PUBLIC"""


def privileges(trial: ReassignTrial) -> dict[str, str]:
    return {kind: statement for kind, statement in PRIVILEGES.items() if trial.version >= 15 or kind != "a parameter"}


async def test_nothing_is_reassigned_on_another_server_at_the_same_address(trial: ReassignTrial) -> None:
    """New servers give the same oids to their first roles, and a copy has the roles of its origin."""
    table = f"public.t_{trial.tag}"
    await trial.home.execute(f"CREATE TABLE {table} (a int); ALTER TABLE {table} OWNER TO {trial.q}")
    here = await identify(trial.home)
    before = replace(here, started_at=here.started_at - timedelta(days=1))
    task = ReassignOwned(trial.role, await trial.oid(), trial.new_owner, terminate=False)
    with pytest.raises(Transient, match="now leads to another"):
        await reassign_owned(Endpoint(trial.server.dsn()), task, server=before)
    assert await trial.owner(trial.home, table) == trial.role
    await reassign_owned(Endpoint(trial.server.dsn()), task, server=here)
    assert await trial.owner(trial.home, table) == trial.new_owner
    await trial.home.execute(f"DROP TABLE {table}")


async def test_drop_owned_fails_whenever_it_would_drop_something(trial: ReassignTrial) -> None:
    await trial.start("plain")  # the owner of an extension has no quotes in its name
    oid = await trial.oid()
    await trial.home.execute(f"ALTER ROLE {trial.q} SUPERUSER")
    for kind, statement in {**OWNED, **GIVEN}.items():
        async with emptying(trial.home, oid):
            await trial.home.execute(STAGE.format(role=trial.new_owner))
            if kind in OWNED:
                await trial.home.execute(f"SET LOCAL ROLE {trial.q}")
            await trial.home.execute(statement.format(role=trial.q))
            await trial.home.execute("RESET ROLE")
            with pytest.raises(asyncpg.PostgresError) as raised:
                await trial.home.execute(reassign_sql("drop_owned"))
            assert raised.value.sqlstate == MADE_MEANWHILE, (kind, raised.value)


async def test_drop_owned_revokes_privileges_without_a_false_alarm(trial: ReassignTrial) -> None:
    oid = await trial.oid()
    for kind, statement in privileges(trial).items():
        async with emptying(trial.home, oid):
            await trial.home.execute(STAGE.format(role=trial.new_owner))
            await trial.home.execute(statement.format(role=trial.q, new_owner=trial.new_owner))
            assert await trial.dependents() != {}, kind
            await trial.home.execute(reassign_sql("drop_owned"))
            assert await trial.dependents() == {}, kind
            assert await trial.home.fetchval("SELECT count(*) FROM s.plain"), kind


async def test_privileges_are_revoked_whoever_granted_them(trial: ReassignTrial) -> None:
    oid, delegate = await trial.oid(), f'"De ""legate"" {trial.tag}"'
    for kind, privilege in DELEGATED.items():
        if trial.version < 15 and "parameter" in kind:
            continue
        async with emptying(trial.home, oid):
            await trial.home.execute(STAGE.format(role=trial.new_owner))
            await trial.home.execute(DELEGATED_STAGE)
            await trial.home.execute(f"CREATE ROLE {delegate}; GRANT {privilege} TO {delegate} WITH GRANT OPTION")
            await trial.home.execute(f"GRANT {privilege} TO {trial.q} WITH GRANT OPTION; SET LOCAL ROLE {delegate}")
            await trial.home.execute(f"GRANT {privilege} TO {trial.q} WITH GRANT OPTION; RESET ROLE")
            await trial.home.execute(reassign_sql("drop_owned"))
            assert await trial.dependents() != {}, kind
            await trial.home.execute(reassign_sql("revoke_delegated"))
            await trial.home.execute(reassign_sql("drop_owned"))
            assert await trial.dependents() == {}, kind


async def test_privileges_are_revoked_although_the_grantor_can_no_longer_name_the_object(trial: ReassignTrial) -> None:
    oid, delegate = await trial.oid(), f'"De ""legate"" {trial.tag}"'
    for kind in ("a table", "a column", "a sequence", "a procedure", "a type"):
        privilege = DELEGATED[kind]
        async with emptying(trial.home, oid):
            await trial.home.execute(STAGE.format(role=trial.new_owner))
            await trial.home.execute(DELEGATED_STAGE)
            await trial.home.execute(f"CREATE ROLE {delegate}; GRANT {privilege} TO {delegate} WITH GRANT OPTION")
            await trial.home.execute(f"SET LOCAL ROLE {delegate}; GRANT {privilege} TO {trial.q}; RESET ROLE")
            await trial.home.execute("REVOKE ALL ON SCHEMA s FROM PUBLIC")
            await trial.home.execute(reassign_sql("revoke_delegated"))
            await trial.home.execute(reassign_sql("drop_owned"))
            assert await trial.dependents() == {}, kind
            question = "SELECT has_schema_privilege($1, 's', 'USAGE')"
            assert not await trial.home.fetchval(question, f'De "legate" {trial.tag}')


async def test_privileges_are_revoked_even_from_a_role_that_got_one_back_from_whom_it_granted_it(
    trial: ReassignTrial,
) -> None:
    oid, first, last = await trial.oid(), f"a_{trial.tag}", f"z_{trial.tag}"
    async with emptying(trial.home, oid):
        await trial.home.execute(STAGE.format(role=trial.new_owner))
        grant = "GRANT SELECT ON s.plain TO"
        await trial.home.execute(f"CREATE ROLE {first}; CREATE ROLE {last}; {grant} {first} WITH GRANT OPTION")
        await trial.home.execute(f"SET LOCAL ROLE {first}; {grant} {trial.q} WITH GRANT OPTION")
        await trial.home.execute(f"SET LOCAL ROLE {trial.q}; {grant} {last} WITH GRANT OPTION")
        await trial.home.execute(f"SET LOCAL ROLE {last}; {grant} {trial.q}; RESET ROLE")
        await trial.home.execute(reassign_sql("revoke_delegated"))
        await trial.home.execute(reassign_sql("drop_owned"))
        assert await trial.dependents() == {}


@pytest.mark.parametrize("lost", ["SELECT", "GRANT OPTION FOR SELECT"])
@pytest.mark.parametrize("kept", ["SELECT", "SELECT (b)"])
async def test_what_a_grantor_granted_on_columns_before_it_lost_the_grant_option_is_revoked(
    trial: ReassignTrial, lost: str, kept: str
) -> None:
    delegate = f"delegate_{trial.tag}"
    superuser = await trial.enter(
        await trial.create_database(),
        "postgres",
        f"CREATE ROLE {delegate}; CREATE TABLE t (a int, b int); GRANT SELECT ON t TO {delegate} WITH GRANT OPTION",
        f"SET ROLE {delegate}; GRANT SELECT (a, b) ON t TO {trial.q}; RESET ROLE",
        f"REVOKE {lost} ON t FROM {delegate}; GRANT {kept} ON t TO {delegate}",
    )
    acls = (
        "SELECT (SELECT relacl FROM pg_class WHERE oid = 't'::regclass)::text, array_agg(attacl::text ORDER BY attnum)"
    )
    acls += " FROM pg_attribute WHERE attrelid = 't'::regclass AND attnum > 0"
    before = await superuser.fetchrow(acls)
    await trial.reassign()
    after = await superuser.fetchrow(acls)
    assert after is not None
    assert before is not None
    assert after[0] == before[0]
    for old, new in zip(before[1], after[1], strict=True):
        others = [one for one in old.strip("{}").split(",") if trial.tag in one and delegate == one.partition("=")[0]]
        assert [one for one in (new or "").strip("{}").split(",") if one] == others
    await trial.drop()
    await superuser.execute(f"DROP OWNED BY {delegate}")
    await trial.home.execute(f"DROP ROLE {delegate}")


async def test_a_privilege_that_its_grantor_cannot_revoke_as_a_superuser_is_named(trial: ReassignTrial) -> None:
    name = await trial.create_database()
    delegate = f"delegate_{trial.tag}"
    superuser = await trial.enter(
        name,
        "postgres",
        f"CREATE ROLE {delegate}; CREATE TABLE t (a int); GRANT SELECT ON t TO {delegate} WITH GRANT OPTION",
        f"SET ROLE {delegate}; GRANT SELECT ON t TO {trial.q}; RESET ROLE; ALTER ROLE {delegate} SUPERUSER",
    )
    message = await trial.refused()
    assert f'role "{delegate}", a superuser now, granted privileges on TABLE public.t' in message
    assert "make it NOSUPERUSER" in message
    await superuser.execute(f"ALTER ROLE {delegate} NOSUPERUSER")
    await trial.reassign()
    assert not await superuser.fetchval("SELECT has_table_privilege($1, 't', 'SELECT')", trial.role)
    await superuser.execute(f"DROP OWNED BY {delegate}")


async def test_a_privilege_that_only_its_grantor_can_revoke_is_named(trial: ReassignTrial) -> None:
    name = await trial.create_database()
    delegate, user = f"delegate_{trial.tag}", f"controller_{trial.tag}"
    await trial.home.execute(f"CREATE ROLE {delegate}; CREATE ROLE {user} LOGIN CREATEROLE PASSWORD 'p'")
    await trial.home.execute(f"GRANT {trial.q}, {trial.new_owner} TO {user}")
    superuser = await trial.enter(
        name,
        "postgres",
        f"CREATE TABLE t (a int); GRANT SELECT ON t TO {delegate} WITH GRANT OPTION; SET ROLE {delegate};"
        f"GRANT SELECT ON t TO {trial.q}; RESET ROLE",
    )
    endpoint = Endpoint(trial.server.dsn(user, password="p"))
    message = await trial.refused(endpoint=endpoint)
    assert f'in database "{name}": role "{delegate}" granted privileges on TABLE public.t to it' in message
    assert "GRANT it to the controller's role" in message
    await trial.home.execute(f"GRANT {delegate} TO {user}")
    await trial.reassign(endpoint=endpoint)
    assert not await superuser.fetchval("SELECT has_table_privilege($1, 't', 'SELECT')", trial.role)
    await superuser.execute(f"DROP OWNED BY {delegate}")


async def test_what_owners_granted_that_the_controller_does_not_act_for_is_named_with_the_remedies(
    trial: ReassignTrial,
) -> None:
    name = await trial.create_database()
    owner, user = f"owner_{trial.tag}", f"controller_{trial.tag}"
    await trial.home.execute(f"CREATE ROLE {owner}; CREATE ROLE {user} LOGIN CREATEROLE PASSWORD 'p'")
    await trial.home.execute(f"GRANT {trial.q}, {trial.new_owner} TO {user}")
    await trial.home.execute(f"GRANT CREATE ON DATABASE {name} TO {trial.q}")
    superuser = await trial.enter(
        name,
        "postgres",
        f"CREATE TABLE t (a int); ALTER TABLE t OWNER TO {owner}; SET ROLE {owner}; GRANT SELECT ON t TO {trial.q};"
        "RESET ROLE",
    )
    endpoint = Endpoint(trial.server.dsn(user, password="p"))
    message = await trial.refused(endpoint=endpoint)
    assert f'in database "{name}": privileges from owners of other objects' in message
    assert message.count("or objects that appeared in the meantime (1): ") == 2
    for where in "there", "in any database":
        run = f'run REASSIGN OWNED BY {trial.q} TO "{trial.new_owner}" and then DROP OWNED BY {trial.q} {where}'
        assert run in message
    await trial.home.execute(f"GRANT {owner} TO {user}; REVOKE CREATE ON DATABASE {name} FROM {trial.q}")
    await trial.reassign(endpoint=endpoint)
    assert await trial.dependents() == {"": 1}, "its member, the controller"
    await superuser.execute(f"DROP OWNED BY {owner}; REVOKE {trial.q}, {trial.new_owner} FROM {user}")


async def test_everything_is_reassigned_in_every_database_and_the_role_can_be_dropped(trial: ReassignTrial) -> None:
    await trial.start("plain")
    await trial.home.execute(f"ALTER ROLE {trial.q} SUPERUSER; ALTER ROLE {trial.new_owner} SUPERUSER")
    inside = []
    for name in (await trial.create_database(), await trial.create_database()):
        superuser = await trial.enter(name, "postgres", STAGE.format(role=trial.new_owner))
        await trial.become(name, *(OWNED[kind] for kind in OWNED if kind not in {"unlogged table", "procedure"}))
        for statement in (*GIVEN.values(), *privileges(trial).values()):
            if "s.e" not in statement and "POLICY" not in statement:
                await superuser.execute(statement.format(role=trial.q, new_owner=trial.new_owner))
        await superuser.execute("INSERT INTO s.t SELECT n FROM generate_series(1, 10) AS n")
        inside.append(superuser)
    await trial.home.execute(f"CREATE DATABASE own_{trial.tag} OWNER {trial.q}")
    trial.databases.append(f"own_{trial.tag}")
    await trial.reassign()
    for superuser in inside:
        assert await superuser.fetchval("SELECT count(*) FROM s.t") == 10
        for relation in ("s.t", "s.p", "s.p1", "s.q", "s.v", "s.m", "s.ft"):
            assert await trial.owner(superuser, relation) == trial.new_owner
        kinds = "SELECT count(*) FROM pg_shdepend WHERE refobjid = $1::regrole AND deptype = 'o' AND dbid = " + (
            "(SELECT oid FROM pg_database WHERE datname = current_database())"
        )
        assert await superuser.fetchval(kinds, trial.new_owner) >= len(OWNED) + len(GIVEN) - 2
    owner = "SELECT pg_get_userbyid(datdba) FROM pg_database WHERE datname = $1"
    assert await trial.home.fetchval(owner, f"own_{trial.tag}") == trial.new_owner
    await trial.drop()


async def test_a_table_that_is_committed_right_before_drop_owned_is_reassigned(trial: ReassignTrial) -> None:
    name = await trial.create_database()
    superuser = await trial.enter(
        name,
        "postgres",
        f"GRANT CREATE, USAGE ON SCHEMA public TO {trial.q}",
        "CREATE FUNCTION hold() RETURNS event_trigger LANGUAGE plpgsql "
        "AS 'BEGIN PERFORM pg_advisory_xact_lock(7); END'",
        "CREATE EVENT TRIGGER hold ON ddl_command_start WHEN TAG IN ('DROP OWNED') EXECUTE FUNCTION hold()",
        "SELECT pg_advisory_lock(7)",
    )
    maker = await trial.become(name)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(trial.reassign)
        await reached(trial.home, WAITS)
        await maker.execute("CREATE TABLE late AS SELECT n FROM generate_series(1, 100) AS n")
        await superuser.execute("SELECT pg_advisory_unlock(7)")
    assert await superuser.fetchval("SELECT count(*) FROM late") == 100
    assert await trial.owner(superuser, "late") == trial.new_owner
    await trial.drop()


@pytest.mark.slow
async def test_a_session_that_creates_tables_as_the_role_in_a_loop_loses_no_row(trial: ReassignTrial) -> None:
    made: dict[str, int] = {}
    for _ in range(2):
        name = await trial.create_database()
        await trial.enter(name, "postgres", "GRANT CREATE ON SCHEMA public TO PUBLIC")
        made[name] = 0
    dropped = anyio.Event()
    makers = [(name, await trial.become(name)) for name in made]

    async def make(name: str, maker: Connection) -> None:
        while made[name] < 200 and not dropped.is_set():
            try:
                await maker.execute(f"CREATE TABLE t{made[name]} AS SELECT n FROM generate_series(1, 50) AS n")
            except asyncpg.PostgresError:  # the role is being dropped
                continue
            made[name] += 1
            await anyio.sleep(0.002)

    async with anyio.create_task_group() as tasks:
        for name, maker in makers:
            tasks.start_soon(make, name, maker)
        await reached(trial.home, "SELECT EXISTS (SELECT FROM pg_shdepend WHERE refobjid = $1)", await trial.oid())
        await attempt(trial)
        dropped.set()
    for name, count in made.items():
        superuser = await trial.enter(name)
        assert count
        for number in range(count):
            assert await superuser.fetchval(f"SELECT count(*) FROM t{number}") == 50
            assert await trial.owner(superuser, f"t{number}") == trial.new_owner


async def attempt(trial: ReassignTrial) -> None:
    """Empties and drops the role, as often as it takes."""
    await trial.home.execute(f"ALTER ROLE {trial.q} NOLOGIN; SET lock_timeout = '2s'")
    with anyio.fail_after(DEADLINE):
        while True:
            try:
                await trial.reassign()
                await trial.home.execute(f"DROP ROLE {trial.q}")
            except (Waiting, asyncpg.PostgresError) as error:
                assert isinstance(error, Waiting) or error.sqlstate in {"2BP01", "55P03"}  # noqa: PT017
                await anyio.sleep(0.01)
            else:
                return


async def test_an_object_given_to_the_role_repeatedly_is_reported_and_never_dropped(trial: ReassignTrial) -> None:
    name = await trial.create_database()
    superuser = await trial.enter(
        name,
        "postgres",
        "CREATE TABLE kept AS SELECT 1 AS n",
        "CREATE FUNCTION again() RETURNS event_trigger LANGUAGE plpgsql AS "
        + quote_literal(f"BEGIN ALTER TABLE public.kept OWNER TO {trial.q}; END"),
        "CREATE EVENT TRIGGER again ON ddl_command_start WHEN TAG IN ('DROP OWNED') EXECUTE FUNCTION again()",
        f"GRANT USAGE ON SCHEMA public TO {trial.q}",
    )
    message = await trial.refused()
    assert name in message
    assert "SET ROLE" in message
    assert await superuser.fetchval("SELECT n FROM kept") == 1


@pytest.mark.slow
async def test_more_objects_than_the_server_can_lock_at_once_are_reassigned_in_pieces(trial: ReassignTrial) -> None:
    name = await trial.create_database()
    superuser = await trial.enter(name)
    for start in range(0, 2000, 200):
        await superuser.execute(
            f"DO $$ BEGIN FOR i IN {start}..{start + 199} LOOP "
            f"EXECUTE format('CREATE TABLE t%s (a serial PRIMARY KEY)', i);"
            f"EXECUTE format($q$ALTER TABLE t%s OWNER TO {trial.q}$q$, i); END LOOP; END $$"
        )
    await trial.reassign()
    owned = "SELECT count(*) FROM pg_class WHERE relowner = $1::regrole AND relkind IN ('r', 'S')"
    assert await superuser.fetchval(owned, trial.new_owner) == 4000
    await trial.drop()


async def test_sessions_block_with_their_count_or_are_terminated_on_request(trial: ReassignTrial) -> None:
    session = await trial.enter("postgres", trial.role)
    await trial.enter("postgres", trial.role)
    sessions = await trial.home.fetch(queries.inspect("sessions"), [await trial.oid()])
    assert [(row["role"], row["count"]) for row in sessions] == [(await trial.oid(), 2)]
    assert "open sessions of the role: 2 (to terminate them, set spec.terminateSessions" in await trial.refused(
        new_owner=None
    )
    assert await session.fetchval("SELECT 1")
    await trial.reassign(new_owner=None, terminate=True)
    assert session.is_closed() or await ended(session)
    await trial.drop()


async def test_a_controller_that_may_not_end_sessions_names_pg_signal_backend(trial: ReassignTrial) -> None:
    user = f"controller_{trial.tag}"
    await trial.home.execute(f"CREATE ROLE {user} LOGIN CREATEROLE PASSWORD 'p'")
    await trial.enter("postgres", trial.role)
    endpoint = Endpoint(trial.server.dsn(user, password="p"))
    message = await trial.refused(endpoint=endpoint, new_owner=None, terminate=True)
    assert "GRANT it, or pg_signal_backend, to the controller's role" in message
    await trial.home.execute(f"GRANT pg_signal_backend TO {user}")
    await trial.reassign(endpoint=endpoint, new_owner=None, terminate=True)
    await trial.drop()


async def test_a_session_that_does_not_end_is_counted_and_blocks(trial: ReassignTrial) -> None:
    session = await trial.enter("postgres", trial.role)
    process = session.get_server_pid()
    if isinstance(trial.server, ContainerServer):
        pytest.skip("this test freezes a PostgreSQL process on this machine")
    os.kill(process, signal.SIGSTOP)
    try:
        assert "open sessions of the role: 1 (terminated, but not yet ended)" in await trial.refused(terminate=True)
    finally:
        os.kill(process, signal.SIGCONT)
    await trial.reassign(terminate=True)
    await trial.drop()


async def ended(session: Connection) -> bool:
    with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, OSError)):
        await session.fetchval("SELECT 1")
    return True


async def test_without_a_new_owner_only_sessions_are_terminated(trial: ReassignTrial) -> None:
    name = await trial.create_database()
    member = await trial.enter(name, "postgres", f"GRANT {trial.q} TO {trial.new_owner}; CREATE TABLE t (a int)")
    await member.execute(f"ALTER TABLE t OWNER TO {trial.q}")
    await trial.reassign(new_owner=None, terminate=True)
    assert await trial.owner(member, "t") == trial.role
    assert await trial.dependents() == {name: 1, "": 1}


async def test_prepared_transactions_are_named_with_their_database(trial: ReassignTrial) -> None:
    name = await trial.create_database()
    superuser = await trial.enter(name, "postgres", "GRANT CREATE ON SCHEMA public TO PUBLIC")
    await trial.become(name, "BEGIN", "CREATE TABLE t (a int)", f"PREPARE TRANSACTION 'gid {trial.tag}'")
    message = await trial.refused()
    assert name in message
    assert f'"gid {trial.tag}"' in message
    await superuser.execute(f"COMMIT PREPARED 'gid {trial.tag}'")
    await trial.reassign()
    assert await trial.owner(superuser, "t") == trial.new_owner
    await trial.drop()


async def test_an_open_transaction_that_created_something_as_the_role_is_named(trial: ReassignTrial) -> None:
    name = await trial.create_database()
    superuser = await trial.enter(name, "postgres", "GRANT CREATE ON SCHEMA public TO PUBLIC")
    maker = await trial.become(name, "BEGIN", "CREATE TABLE t (a int)")
    message = await trial.refused()
    assert f'in database "{name}": the open transaction of process {maker.get_server_pid()}' in message
    await maker.execute("COMMIT")
    await trial.reassign()
    assert await trial.owner(superuser, "t") == trial.new_owner
    await trial.drop()


async def test_a_session_that_creates_more_as_the_role_after_every_attempt_is_named_as_the_cause(
    trial: ReassignTrial, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = await trial.create_database()
    superuser = await trial.enter(name, "postgres", "GRANT CREATE ON SCHEMA public TO PUBLIC")
    maker = await trial.become(name, "CREATE TABLE t0 (a int)")
    attempts = 0

    async def execute(emptying: RoleEmptying, connection: Connection, step: str) -> None:
        nonlocal attempts
        await run(emptying, connection, step)
        if step == "reassign":
            attempts += 1
            await maker.execute(f"CREATE TABLE t{attempts} (a int)")

    run = reassign_in_database.execute
    with monkeypatch.context() as busy:
        busy.setattr(reassign_in_database, "execute", execute)
        message = await trial.refused()
    assert f'in database "{name}": sessions keep making changes as the role: end the sessions that ran SET' in message
    assert attempts == reassign_in_database.ROUNDS
    assert await trial.owner(superuser, f"t{attempts - 1}") == trial.new_owner
    await trial.reassign()
    assert await trial.owner(superuser, f"t{attempts}") == trial.new_owner
    await trial.drop()


async def test_a_database_that_accepts_no_connections_is_named_with_a_remedy_and_delays_no_other(
    trial: ReassignTrial,
) -> None:
    closed, unneeded, other = [await trial.create_database() for _ in range(3)]
    for name in (closed, other):
        await trial.enter(name, "postgres", "CREATE TABLE t (a int)", f"ALTER TABLE t OWNER TO {trial.q}")
    superuser = await trial.enter(other, "postgres", f"GRANT USAGE ON SCHEMA public TO {trial.q}")
    for name in (closed, unneeded):
        await trial.home.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
    message = await trial.refused()
    assert f'in database "{closed}"' in message
    assert "ALLOW_CONNECTIONS true" in message
    assert unneeded not in message
    assert await trial.owner(superuser, "t") == trial.new_owner
    # a blocker in another database leaves privileges unchanged
    assert await superuser.fetchval("SELECT has_schema_privilege($1, 'public', 'USAGE')", trial.role)
    await trial.home.execute(f"ALTER DATABASE {closed} ALLOW_CONNECTIONS true")
    await trial.reassign()
    await trial.drop()


async def test_a_database_whose_drop_was_interrupted_is_named(trial: ReassignTrial) -> None:
    name = await trial.create_database()
    await trial.enter(name, "postgres", f"GRANT USAGE ON SCHEMA public TO {trial.q}")
    await trial.home.execute(f"UPDATE pg_database SET datconnlimit = -2 WHERE datname = '{name}'")
    assert "run DROP DATABASE again" in await trial.refused()
    await trial.home.execute(f"DROP DATABASE {name} WITH (FORCE)")
    await trial.reassign()
    await trial.drop()


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("we\"ird '$$ %I ünd", ""),
        ("x" * 50 + "ü" * 6 + "z", ""),
        ("latin", "TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'"),
        ("ascii", "TEMPLATE template0 ENCODING 'SQL_ASCII' LOCALE 'C'"),
        ("euc", "TEMPLATE template0 ENCODING 'EUC_JP' LOCALE 'C'"),
        ("win", "TEMPLATE template0 ENCODING 'WIN1252' LOCALE 'C'"),
    ],
)
async def test_a_role_is_emptied_whatever_names_and_encodings_databases_and_roles_have(
    trial: ReassignTrial, name: str, options: str
) -> None:
    await trial.start(role="rôleā字")
    name = await trial.create_database(name, options)
    oid = await trial.oid()
    superuser = await trial.enter(name, "postgres", "CREATE TABLE t (a int)", "CREATE TABLE u (a int)")
    await superuser.execute(
        f"DO $$ BEGIN EXECUTE format('ALTER TABLE t OWNER TO %I', (SELECT rolname FROM pg_roles WHERE oid = {oid})); "
        f"EXECUTE format('GRANT SELECT ON u TO %I', (SELECT rolname FROM pg_roles WHERE oid = {oid})); END $$"
    )
    assert await trial.dependents() == {name: 2}
    await trial.reassign()
    assert await trial.owner(superuser, "t") == trial.new_owner
    await trial.drop()


async def test_a_role_is_emptied_in_template1_like_in_any_other_database(trial: ReassignTrial) -> None:
    superuser = await trial.enter("template1", "postgres", f"CREATE SCHEMA s AUTHORIZATION {trial.q}")
    await trial.reassign()
    await superuser.execute("DROP SCHEMA s")
    await superuser.close()
    await trial.drop()


async def test_a_database_whose_name_is_not_utf8_is_named_by_its_bytes(trial: ReassignTrial) -> None:
    latin = await trial.create_database("", "TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'")
    inside = await trial.enter(latin)
    await trial.home.execute(f"CREATE ROLE plain_{trial.tag}; DROP ROLE {trial.q}")
    trial.role = f"plain_{trial.tag}"
    await inside.execute(f'CREATE DATABASE "caf\xe9_{trial.tag}" OWNER plain_{trial.tag}')
    await inside.execute(f"GRANT {trial.q} TO {trial.new_owner}")
    oid = await trial.oid()
    # a database's owner is a shared dependency, unlike what the database contains
    await trial.home.execute(
        "INSERT INTO pg_shdepend (dbid, classid, objid, objsubid, refclassid, refobjid, deptype) "
        "SELECT oid, 'pg_class'::regclass, 99999, 0, 'pg_authid'::regclass, $1, 'o' FROM pg_database "
        "WHERE oid > (SELECT oid FROM pg_database WHERE datname = $2)",
        oid,
        latin,
    )
    assert f"caf\\351_{trial.tag}" in await trial.dependents()
    message = await trial.refused()
    assert f'in database "caf\\xe9_{trial.tag}"' in message
    assert "not UTF-8" in message
    await inside.execute(f'DROP DATABASE "caf\xe9_{trial.tag}"')
    await trial.reassign()
    await trial.drop(members=1)


@pytest.mark.parametrize("which", [0, 1])
async def test_a_database_that_is_dropped_meanwhile_causes_no_error(trial: ReassignTrial, which: int) -> None:
    names = [await trial.create_database() for _ in range(2)]
    for name in names:
        await trial.enter(name, "postgres", f"CREATE TABLE t (a int); ALTER TABLE t OWNER TO {trial.q}")
    blocker = await trial.enter(names[0], "postgres", "BEGIN", "LOCK TABLE t")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(trial.reassign)
        await reached(trial.home, WAITS)
        await trial.home.execute(f"DROP DATABASE {names[which]} WITH (FORCE)")
        if which == 1:
            await blocker.execute("ROLLBACK")
    await trial.drop()


async def test_an_unavailable_lock_is_reported_with_its_database(trial: ReassignTrial) -> None:
    name = await trial.create_database()
    blocker = await trial.enter(name, "postgres", f"CREATE TABLE t (a int); ALTER TABLE t OWNER TO {trial.q}")
    await blocker.execute("BEGIN; LOCK TABLE t")
    message = await trial.refused()
    assert f'in database "{name}": a lock was not available in time' in message
    with pytest.raises(Transient) as raised:
        await trial.reassign(deadline=0.2)
    assert raised.value.reason is Reason.PROGRESSING
    await blocker.execute("ROLLBACK")
    await trial.reassign()
    assert await trial.owner(blocker, "t") == trial.new_owner
    await trial.drop()


async def test_a_controller_that_may_not_reassign_reports_it_with_the_database(trial: ReassignTrial) -> None:
    name = await trial.create_database()
    superuser = await trial.enter(name, "postgres", f"CREATE TABLE t (a int); ALTER TABLE t OWNER TO {trial.q}")
    user = f"controller_{trial.tag}"
    await trial.home.execute(f"CREATE ROLE {user} LOGIN CREATEROLE PASSWORD 'p'")
    endpoint = Endpoint(trial.server.dsn(user, password="p"))
    message = await trial.refused(endpoint=endpoint)
    assert f'in database "{name}"' in message
    assert "permission denied" in message
    await trial.home.execute(f"GRANT {trial.q}, {trial.new_owner} TO {user}")
    await superuser.execute(f"GRANT CREATE ON SCHEMA public TO {trial.new_owner}")
    await trial.reassign(endpoint=endpoint)
    assert await trial.owner(superuser, "t") == trial.new_owner
    async with connect(endpoint, "test") as own:
        assert await catalog.read_dependents(own, [await trial.oid()]) == {}


@pytest.mark.parametrize("hosts", [1, 2])
@pytest.mark.parametrize(
    ("refusal", "words"),
    [
        ("REVOKE CONNECT ON DATABASE {} FROM PUBLIC", 'may not connect to database "{}": GRANT CONNECT'),
        ("ALTER DATABASE {} CONNECTION LIMIT 0", 'cannot connect to database "{}"'),
    ],
)
async def test_a_database_that_does_not_admit_the_controller_delays_no_other(
    trial: ReassignTrial, refusal: str, words: str, hosts: int
) -> None:
    """Nor is that taken for a failure of the whole server, also where another host does not answer at all."""
    closed, other = [await trial.create_database() for _ in range(2)]
    user = f"controller_{trial.tag}"
    await trial.home.execute(f"CREATE ROLE {user} LOGIN CREATEROLE PASSWORD 'p'")
    await trial.home.execute(f"GRANT {trial.q}, {trial.new_owner} TO {user}")
    table = f"CREATE TABLE t (a int); ALTER TABLE t OWNER TO {trial.q}"
    grant = f"GRANT CREATE ON SCHEMA public TO {trial.new_owner}"
    _, superuser = [await trial.enter(name, "postgres", table, grant) for name in (closed, other)]
    await trial.home.execute(refusal.format(closed))
    addresses = [trial.server.host] if hosts == 1 else ["127.0.0.3", trial.server.host]
    endpoint = Endpoint.of(addresses, trial.server.port, "postgres", user, "p", "disable")
    message = await trial.refused(endpoint=endpoint)
    assert f'in database "{closed}": ' in message
    assert words.format(closed) in message
    assert f'in database "{other}"' not in message
    assert await trial.owner(superuser, "t") == trial.new_owner


async def test_settings_of_a_database_do_not_make_the_controller_act_as_another_role(trial: ReassignTrial) -> None:
    name = await trial.create_database()
    superuser = await trial.enter(name, "postgres", f"CREATE TABLE t (a int); ALTER TABLE t OWNER TO {trial.q}")
    await trial.home.execute(f"ALTER DATABASE {name} SET role = {quote_literal(trial.role)}")
    await trial.reassign()
    assert await trial.owner(superuser, "t") == trial.new_owner
    await trial.drop()


async def test_an_invalid_new_owner_is_refused_before_anything_is_done(trial: ReassignTrial) -> None:
    name = await trial.create_database()
    superuser = await trial.enter(name, "postgres", f"CREATE TABLE t (a int); ALTER TABLE t OWNER TO {trial.q}")
    for new_owner in ("pg_monitor", f"absent_{trial.tag}", trial.role, ""):
        assert "reassignOwnedTo" in await trial.refused(new_owner=new_owner)
    assert await trial.owner(superuser, "t") == trial.role


async def test_a_role_that_is_not_the_one_that_was_read_is_not_touched(trial: ReassignTrial) -> None:
    for changed in ({"oid": await trial.oid() + 1000}, {"role": trial.new_owner, "new_owner": trial.role}):
        with pytest.raises(Transient) as raised:
            await trial.reassign(**changed)
        assert raised.value.reason is Reason.PROGRESSING


async def test_members_and_granted_memberships_do_not_prevent_dropping_a_role(trial: ReassignTrial) -> None:
    group, member, passed = (f"{kind}_{trial.tag}" for kind in ("group", "member", "passed"))
    await trial.home.execute(
        f"CREATE ROLE {group}; CREATE ROLE {member}; CREATE ROLE {passed};"
        f"GRANT {group} TO {trial.q} WITH ADMIN OPTION;"
        f"GRANT {trial.q} TO {member} WITH ADMIN OPTION; SET ROLE {member}; GRANT {trial.q} TO {passed}; RESET ROLE;"
        f"SET ROLE {trial.q}; GRANT {group} TO {member} WITH ADMIN OPTION; RESET ROLE;"
        f"SET ROLE {member}; GRANT {group} TO {passed}; RESET ROLE; GRANT {group} TO {trial.new_owner}"
    )
    # two members, and since PostgreSQL 16 the membership that it granted
    assert await trial.dependents() == {"": 3 if trial.version >= 16 else 2}
    await trial.reassign()
    await trial.drop(members=2)
    members = await trial.home.fetch(
        "SELECT member::regrole::text AS name FROM pg_auth_members WHERE roleid = $1::regrole", group
    )
    kept = [trial.new_owner] if trial.version >= 16 else [trial.new_owner, member, passed]
    assert sorted(row["name"] for row in members) == sorted(kept)


@pytest.mark.since(16, "memberships that the creator of a role gives to itself")
async def test_memberships_that_a_role_granted_to_itself_do_not_prevent_dropping_it(trial: ReassignTrial) -> None:
    await trial.home.execute(
        f"ALTER ROLE {trial.q} CREATEROLE; SET createrole_self_grant = 'inherit, set'; SET ROLE {trial.q};"
        f"CREATE ROLE made_{trial.tag}; RESET ROLE"
    )
    grantor = "SELECT count(*) FROM pg_auth_members WHERE grantor = $1"
    assert await trial.home.fetchval(grantor, await trial.oid()) == 1
    await trial.drop()


async def test_a_role_without_dependents_can_be_dropped(trial: ReassignTrial) -> None:
    await trial.reassign()
    await trial.reassign(terminate=True)
    await trial.drop()


def test_blockers_in_many_databases_are_counted() -> None:
    error = blocked("r", [Blocker(f"db{number}", "no") for number in range(200)])
    assert error.message.endswith("; and 195 more")
    assert len(error.message) < 1000
