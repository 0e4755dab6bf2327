"""A deleted object's role is dropped unless something would be lost; then the object reports what blocks the drop."""

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass

import anyio
import asyncpg
import pytest
import pytest_asyncio

from pgrole_controller.core.ddl import quote_identifier
from pgrole_controller.local.apiserver import ApiServer
from pgrole_controller.local.postgres import PostgresServer
from tests.acceptance.world import (
    PATIENCE,
    REST,
    Controller,
    Database,
    Json,
    Kube,
    Stage,
    make_kube,
    open_database,
    running,
    says,
)

WAY_OUT = "spec.deletionPolicy: Retain"
MakeDatabase = Callable[[str], Awaitable[Database]]

#: Whether a session that empties a role waits for a lock in this database.
HELD = """SELECT EXISTS (SELECT FROM pg_stat_activity WHERE application_name = 'pgrole-controller reassign'
          AND wait_event_type = 'Lock' AND datname = {})"""


@pytest.fixture
def role() -> str:
    return f"d{secrets.token_hex(3)}"


@pytest_asyncio.fixture(loop_scope="session")
async def make_database(database: Database, shared_postgres: PostgresServer) -> AsyncIterator[MakeDatabase]:
    """Creates a database on the shared controller's server; yields a superuser's session in it."""
    made: list[str] = []
    async with AsyncExitStack() as stack:

        async def make(name: str) -> Database:
            await database.execute(f"CREATE DATABASE {quote_identifier(name)}")
            made.append(name)
            return await stack.enter_async_context(open_database(shared_postgres.dsn(database=name)))

        yield make
    for name in made:
        await database.execute(f"ALTER DATABASE {quote_identifier(name)} ALLOW_CONNECTIONS true")
        await database.execute(f"DROP DATABASE {quote_identifier(name)} WITH (FORCE)")


async def declare(kube: Kube, role: str, **spec: object) -> Json:
    """Declares a role that is dropped with its object `app`, and its new owner."""
    await kube.apply("heir", name=f"{role}_heir")
    await kube.apply("app", **{"name": role, "login": True, "deletionPolicy": "Drop", **spec})
    await kube.wait_ready("heir")
    return await kube.wait_ready("app")


async def blocked(kube: Kube, *words: str) -> Json:
    return await kube.wait_for("app", lambda obj: says(obj, "DropBlocked", *words, WAY_OUT), f"DropBlocked: {words}")


async def retain(kube: Kube) -> None:
    await kube.patch("app", {"spec": {"deletionPolicy": "Retain"}})
    await kube.wait_gone("app")


async def owner(inside: Database, table: str) -> object:
    return await inside.fetchval("SELECT tableowner FROM pg_tables WHERE tablename = $1", table)


async def can_log_in(database: Database, role: str) -> bool:
    found = await database.role(role)
    return found is not None and bool(found["rolcanlogin"])


async def is_released(database: Database, role: str) -> bool:
    claim = await database.claim(role)
    return claim is not None and claim["released_at"] is not None


@dataclass(frozen=True, slots=True)
class DependentKind:
    """What keeps a role from being dropped, how it is removed, and how many it is in the database and elsewhere."""

    made: str
    removed: str
    within: int = 0
    shared: int = 0


#: In the order in which they are removed.
DEPENDENTS = (
    DependentKind("GRANT {role} TO {role}_heir", "REVOKE {role} FROM {role}_heir", shared=1),
    DependentKind(
        'GRANT CREATE ON DATABASE "{database}" TO {role}',
        'REVOKE CREATE ON DATABASE "{database}" FROM {role}',
        shared=1,
    ),
    DependentKind(
        "CREATE TABLE owned (); ALTER TABLE owned OWNER TO {role}; "
        "CREATE VIEW v AS SELECT; ALTER VIEW v OWNER TO {role}",
        "DROP VIEW v; DROP TABLE owned",
        within=2,
    ),
    DependentKind("CREATE TABLE granted (); GRANT SELECT ON granted TO {role}", "DROP TABLE granted", within=1),
    DependentKind(
        "CREATE TABLE secured (); CREATE POLICY p ON secured TO {role} USING (true)", "DROP TABLE secured", within=1
    ),
    DependentKind(
        "ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO {role}",
        "ALTER DEFAULT PRIVILEGES REVOKE SELECT ON TABLES FROM {role}",
        within=1,
    ),
)


class TestDropWithoutNewOwner:
    async def test_a_role_without_dependents_is_dropped_with_its_claim(
        self, kube: Kube, database: Database, role: str
    ) -> None:
        await declare(kube, role, comment="to go", parameters={"work_mem": "8MB"})
        await kube.delete("app")
        await kube.wait_gone("app")
        assert await database.role(role) is None
        assert await database.claim(role) is None
        await kube.wait_event("RoleDropped", about="app")

    async def test_dependents_are_counted_by_database_and_block_the_drop_until_all_are_removed(
        self, kube: Kube, database: Database, make_database: MakeDatabase, role: str
    ) -> None:
        names = {"role": role, "database": f"{role}_db"}
        await declare(kube, role)
        # the other object must not revoke the membership
        await kube.apply("heir", name=f"{role}_heir", drift={"ignore": ["memberOf"]})
        await kube.wait_ready("heir")
        inside = await make_database(names["database"])
        for dependent in DEPENDENTS:
            await inside.execute(dependent.made.format(**names))
        await kube.delete("app")
        for number, dependent in enumerate(DEPENDENTS):
            within, shared = (sum(getattr(one, of) for one in DEPENDENTS[number:]) for of in ("within", "shared"))
            counts = [f"{shared} shared by the server"] * bool(shared) + [f'{within} in database "{role}_db"']
            await blocked(kube, f": {', '.join(counts)}. ", "reassignOwnedTo")
            assert await can_log_in(database, role)
            await inside.execute(dependent.removed.format(**names))
            if dependent.shared:
                continue  # the controller looks again by itself, seldom after several failures
            await kube.patch("app", {"metadata": {"annotations": {"example.com/removed": str(number)}}})
        await kube.wait_gone("app")
        assert await database.role(role) is None
        await kube.wait_event("DropBlocked", about="app")

    async def test_a_drop_waits_for_an_open_transaction_that_creates_a_dependent(
        self, kube: Kube, database: Database, shared_postgres: PostgresServer, role: str
    ) -> None:
        await declare(kube, role)
        async with open_database(shared_postgres.dsn()) as maker:
            await maker.execute(f"BEGIN; CREATE SCHEMA {role}_own AUTHORIZATION {role}")
            await kube.delete("app")
            await kube.wait_for("app", lambda obj: says(obj, "DatabaseError", "lock", WAY_OUT), "a lock")
            await maker.execute("COMMIT")
            await blocked(kube, '1 in database "postgres"')
            await maker.execute(f"DROP SCHEMA {role}_own")
        await kube.wait_gone("app")
        assert await database.role(role) is None


STAGE = """
CREATE TABLE plain AS SELECT n FROM generate_series(1, 7) AS n;
GRANT SELECT ON plain TO {role} WITH GRANT OPTION;
CREATE POLICY alone ON plain TO {role} USING (true);
CREATE POLICY shared ON plain TO {role}, {new_owner} USING (true);
ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO {role};
CREATE SCHEMA own AUTHORIZATION {role};
SET ROLE {role};
GRANT SELECT ON plain TO {new_owner};
ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO {new_owner};
CREATE TABLE own.t AS SELECT n FROM generate_series(1, 11) AS n;
CREATE FUNCTION own.f() RETURNS int LANGUAGE sql AS 'SELECT 1';
CREATE TYPE own.mood AS ENUM ('fine');
SELECT lo_from_bytea(0, 'large');
RESET ROLE
"""
HANDED = """SELECT
    (SELECT count(*) FROM own.t) = 11 AND (SELECT count(*) FROM plain) = 7
    AND (SELECT relowner = $1::regrole FROM pg_class WHERE oid = 'own.t'::regclass)
    AND (SELECT nspowner = $1::regrole FROM pg_namespace WHERE nspname = 'own')
    AND (SELECT proowner = $1::regrole FROM pg_proc WHERE oid = 'own.f()'::regprocedure)
    AND (SELECT typowner = $1::regrole FROM pg_type WHERE oid = 'own.mood'::regtype)
    AND (SELECT every(lomowner = $1::regrole) AND count(*) = 1 FROM pg_largeobject_metadata)
    AND (SELECT array_agg(policyname::text) = ARRAY['shared'] FROM pg_policies)
    AND (SELECT count(*) FROM pg_default_acl) = 0"""


class TestTheNewOwner:
    @pytest.mark.since(16, "a role that granted memberships cannot be dropped")
    async def test_the_new_owner_gets_everything_and_nothing_else_is_dropped(
        self, kube: Kube, database: Database, make_database: MakeDatabase, role: str
    ) -> None:
        new_owner, group = f"{role}_heir", f"{role}_group"
        await kube.apply("group", name=group)
        member_of = [{"role": group, "admin": True}]
        await declare(kube, role, reassignOwnedTo=new_owner, memberOf=member_of, createdb=True)
        names = [f"{role}_1", f'{role} "it\'s" odd', f"{role}_3"]
        inside = [await make_database(name) for name in names]
        for one in inside:
            await one.execute(STAGE.format(role=role, new_owner=new_owner))
        await database.execute(
            f"ALTER DATABASE {role}_3 OWNER TO {role}; CREATE ROLE {role}_x; CREATE ROLE {role}_y; "
            f"GRANT {role} TO {role}_x WITH ADMIN OPTION; SET ROLE {role}; GRANT {group} TO {role}_y; "
            f"SET ROLE {role}_x; GRANT {role} TO {role}_y; RESET ROLE"
        )
        await kube.delete("app")
        await kube.wait_gone("app")
        assert await database.role(role) is None
        for one in inside:
            assert await one.fetchval(HANDED, new_owner)
        assert await database.fetchval(
            "SELECT datdba = $1::regrole FROM pg_database WHERE datname = $2", new_owner, names[2]
        )
        for other in (new_owner, group, f"{role}_x", f"{role}_y"):
            assert await database.role(other) is not None
        await kube.wait_event("RoleDropped", about="app")
        await database.execute(f"DROP ROLE {role}_x, {role}_y")

    async def test_a_declared_member_waits_for_the_dropped_role(
        self, kube: Kube, database: Database, role: str
    ) -> None:
        await declare(kube, role, reassignOwnedTo=f"{role}_heir")
        await kube.apply("member", name=f"{role}_member", memberOf=[{"role": role}])
        await kube.wait_ready("member")
        await kube.delete("app")
        await kube.wait_gone("app")
        assert await database.role(role) is None
        await kube.wait_reason("member", "MembershipPending")

    async def test_each_unsuitable_new_owner_is_refused_and_nothing_changes(
        self, kube: Kube, database: Database, shared_api_server: ApiServer, make_database: MakeDatabase, role: str
    ) -> None:
        refusals = {
            f"{role}_elsewhere": f'no PgRole in namespace {kube.namespace} declares role "{role}_elsewhere"',
            f"{role}_nobodys": f'no PgRole in namespace {kube.namespace} declares role "{role}_nobodys"',
            f"{role}_mighty": "reaches pg_execute_server_program",
            "postgres": "the controller's own role",
        }
        elsewhere = await make_kube(shared_api_server)
        await elsewhere.apply("other", name=f"{role}_elsewhere")
        await elsewhere.wait_ready("other")
        await database.execute(f"CREATE ROLE {role}_nobodys SUPERUSER; CREATE ROLE {role}_step")
        await kube.apply("mighty", name=f"{role}_mighty", memberOf=[{"role": f"{role}_step"}])
        await kube.wait_ready("mighty")
        await database.execute(f"GRANT pg_execute_server_program TO {role}_step")
        try:
            await declare(kube, role)
            inside = await make_database(f"{role}_db")
            await inside.execute(f"CREATE TABLE t AS SELECT 1 AS one; ALTER TABLE t OWNER TO {role}")
            for number, (new_owner, words) in enumerate(refusals.items()):
                await kube.patch("app", {"spec": {"reassignOwnedTo": new_owner}})
                if number == 0:
                    await kube.delete("app")
                await blocked(kube, "spec.reassignOwnedTo", words)
                assert await can_log_in(database, role), new_owner
                assert await owner(inside, "t") == role, new_owner
            await retain(kube)
            assert await is_released(database, role)
            assert await can_log_in(database, role)
        finally:
            await database.execute(f"DROP ROLE {role}_nobodys, {role}_step")
            await elsewhere.delete_all()

    async def test_a_missing_new_owner_gets_everything_once_it_is_created(
        self, kube: Kube, make_database: MakeDatabase, role: str
    ) -> None:
        await declare(kube, role, reassignOwnedTo=f"{role}_late")
        inside = await make_database(f"{role}_db")
        await inside.execute(f"CREATE TABLE t AS SELECT 1 AS one; ALTER TABLE t OWNER TO {role}")
        await kube.delete("app")
        await blocked(kube, "does not exist")
        await kube.apply("late", name=f"{role}_late")
        await kube.wait_gone("app")
        assert await owner(inside, "t") == f"{role}_late"
        assert await inside.fetchval("SELECT one FROM t") == 1

    @pytest.mark.slow
    async def test_reassigning_loses_no_row_of_a_session_that_creates_tables_meanwhile(
        self, kube: Kube, database: Database, make_database: MakeDatabase, shared_postgres: PostgresServer, role: str
    ) -> None:
        await declare(kube, role, reassignOwnedTo=f"{role}_heir")
        places = [f"{role}_1", f"{role}_2"]
        inside = [await make_database(name) for name in places]
        made = dict.fromkeys(places, 0)
        begun = [anyio.Event() for _ in places]
        for one in inside:
            await one.execute("GRANT CREATE ON SCHEMA public TO PUBLIC")

        async def make(name: str, has_begun: anyio.Event) -> None:
            async with open_database(shared_postgres.dsn(database=name)) as session:
                await session.execute(f"SET ROLE {role}")
                for number in range(150):
                    try:
                        await session.execute(
                            f"CREATE TABLE made_{number} AS SELECT n FROM generate_series(1, 5) AS n; "
                            f"INSERT INTO made_{number} SELECT 6"
                        )
                    except asyncpg.PostgresError as error:
                        if "dropped" in str(error) or "does not exist" in str(error):
                            return
                        continue  # a deadlock: nothing was committed
                    made[name] += 1
                    if made[name] == 5:
                        has_begun.set()
                    await anyio.sleep(0.003)

        async with anyio.create_task_group() as tasks:
            for name, event in zip(places, begun, strict=True):
                tasks.start_soon(make, name, event)
            with anyio.fail_after(PATIENCE):
                for event in begun:
                    await event.wait()
            await kube.delete("app")
        await kube.wait_gone("app")
        assert await database.role(role) is None
        for name, one in zip(places, inside, strict=True):
            tables = await one.connection.fetch(
                "SELECT tablename, tableowner FROM pg_tables WHERE tablename ~ '^made_'"
            )
            assert len(tables) == made[name]
            for table in tables:
                assert table["tableowner"] == f"{role}_heir"
                assert await one.fetchval(f"SELECT count(*) FROM {table['tablename']}") == 6


class TestOpenSessions:
    @pytest.mark.parametrize("end", ["by themselves", "terminateSessions"])
    async def test_a_drop_waits_for_open_sessions_and_prevents_new_logins(
        self, kube: Kube, database: Database, shared_postgres: PostgresServer, role: str, end: str
    ) -> None:
        await kube.apply_secret("source", password="secret")
        await declare(kube, role, password={"secretRef": {"name": "source"}})
        dsn = shared_postgres.dsn(role, password="secret")
        connection = await asyncpg.connect(dsn)
        try:
            await kube.delete("app")
            await blocked(kube, "open sessions: 1", "terminateSessions")
            with pytest.raises(asyncpg.InvalidAuthorizationSpecificationError):
                await asyncpg.connect(dsn)
            assert await connection.fetchval("SELECT 1") == 1
            if end == "terminateSessions":
                await kube.patch("app", {"spec": {"terminateSessions": True}})
            else:
                await connection.close()
            await kube.wait_gone("app")
            assert await database.role(role) is None
        finally:
            connection.terminate()


class TestRetainWhileDropping:
    async def test_retain_restores_the_login_that_the_deletion_disabled(
        self, kube: Kube, database: Database, shared_postgres: PostgresServer, role: str
    ) -> None:
        await kube.apply_secret("source", password="secret")
        await declare(kube, role, password={"secretRef": {"name": "source"}})
        dsn = shared_postgres.dsn(role, password="secret")
        connection = await asyncpg.connect(dsn)
        try:
            await kube.delete("app")
            await blocked(kube, "open sessions")
            assert not await can_log_in(database, role)
            await retain(kube)
            assert await is_released(database, role)
            await (await asyncpg.connect(dsn)).close()
        finally:
            connection.terminate()

    async def test_retain_does_not_restore_a_login_that_someone_else_disabled(
        self, kube: Kube, database: Database, role: str
    ) -> None:
        await declare(kube, role, drift={"ignore": ["login"]})
        await kube.apply("heir", name=f"{role}_heir", memberOf=[{"role": role}])
        await kube.wait_ready("heir")
        await database.execute(f"ALTER ROLE {role} NOLOGIN")
        await kube.delete("app")
        await blocked(kube, "1 shared by the server")
        await retain(kube)
        assert await is_released(database, role)
        assert not await can_log_in(database, role)

    async def test_retain_interrupts_a_reassignment_in_progress(
        self, kube: Kube, database: Database, make_database: MakeDatabase, role: str
    ) -> None:
        await declare(kube, role, reassignOwnedTo=f"{role}_heir")
        first, second = await make_database(f"{role}_1"), await make_database(f"{role}_2")
        for inside in (first, second):
            await inside.execute(f"CREATE TABLE t (); ALTER TABLE t OWNER TO {role}")
        async with first.connection.transaction():
            await first.execute("LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
            began = anyio.current_time()
            await kube.delete("app")
            await database.wait_value(HELD.format(f"'{role}_1'"), True)
            await retain(kube)
            in_time = anyio.current_time() - began < 2.0  # its lock_timeout: then it goes on with the next database
        assert not in_time or await owner(second, "t") == role
        assert await can_log_in(database, role)
        assert await is_released(database, role)

    @pytest.mark.slow
    async def test_retain_works_without_a_server(self, stage: Stage) -> None:
        kube = stage.kube
        async with running(stage.controller()):
            await declare(kube, "app")
            async with stage.database() as database:
                await database.execute("CREATE TABLE t (); ALTER TABLE t OWNER TO app")
                await kube.delete("app")
                await blocked(kube, '1 in database "postgres"')
            await stage.postgres.stop()
            await kube.wait_for("app", lambda obj: says(obj, "ServerNotReady", WAY_OUT), "ServerNotReady")
            await retain(kube)
            await stage.postgres.start()
            async with stage.database() as database:
                await database.wait_value(
                    "SELECT released_at IS NOT NULL FROM pgrole.claim WHERE role_name = 'app'", True
                )
                assert await can_log_in(database, "app")

    @pytest.mark.slow
    async def test_retain_works_while_changes_are_suspended_and_the_claim_is_released_afterwards(
        self, stage: Stage
    ) -> None:
        kube = stage.kube
        async with running(stage.controller()), stage.database() as database:
            await declare(kube, "app")
            await kube.apply("kept", name="kept")
            await kube.wait_ready("kept")
            await database.execute("CREATE TABLE t (); ALTER TABLE t OWNER TO app")
            await kube.delete("app")
            await blocked(kube, '1 in database "postgres"')
            await database.execute("ALTER DATABASE postgres SET pgrole.suspend = on")
            await anyio.sleep(REST)
            await retain(kube)
            await kube.delete("kept")
            await kube.wait_gone("kept")
            assert not await is_released(database, "app")
            await database.execute("ALTER DATABASE postgres RESET pgrole.suspend")
            for name in ("app", "kept"):
                await database.wait_value(
                    f"SELECT released_at IS NOT NULL FROM pgrole.claim WHERE role_name = '{name}'", True
                )

    @pytest.mark.slow
    async def test_retain_works_without_the_privilege_to_restore_the_login(self, stage: Stage) -> None:
        kube, dsn = stage.kube, stage.postgres.dsn("keeper", password="secret")
        async with stage.database() as database:
            await database.execute(
                "CREATE ROLE keeper LOGIN CREATEROLE PASSWORD 'secret'; GRANT CREATE ON DATABASE postgres TO keeper"
            )
            async with running(stage.controller(dsn)):
                await kube.apply_secret("source", password="secret")
                await declare(kube, "app", password={"secretRef": {"name": "source"}})
                connection = await asyncpg.connect(stage.postgres.dsn("app", password="secret"))
                try:
                    await kube.delete("app")
                    await blocked(kube, "open sessions")
                    await database.execute("ALTER ROLE app SUPERUSER")
                    await retain(kube)
                finally:
                    connection.terminate()
                assert not await can_log_in(database, "app")

    async def test_retain_is_named_and_works_without_a_declared_server(self, kube: Kube, role: str) -> None:
        await kube.apply("app", name=role, serverRef={"name": "nowhere"}, deletionPolicy="Drop")
        await kube.wait_for("app", lambda obj: bool(obj["metadata"].get("finalizers")), "held")
        await kube.delete("app")
        await kube.wait_for("app", lambda obj: says(obj, "ServerGone", WAY_OUT), "ServerGone")
        await retain(kube)

    @pytest.mark.slow
    async def test_retain_works_for_a_protected_role(self, stage: Stage) -> None:
        kube = stage.kube
        async with running(stage.controller()):
            await declare(kube, "app")
        async with running(stage.controller(None, "--protected", "a*")), stage.database() as database:
            await kube.delete("app")
            await blocked(kube, "protected")
            assert await database.role("app") is not None
            await retain(kube)
            assert await is_released(database, "app")


async def test_a_database_without_connections_blocks_the_drop_only_if_it_has_dependents(
    kube: Kube, database: Database, make_database: MakeDatabase, role: str
) -> None:
    await declare(kube, role, reassignOwnedTo=f"{role}_heir")
    shut, other = await make_database(f"{role}_shut"), await make_database(f"{role}_other")
    for inside in (shut, other):
        await inside.execute(f"CREATE TABLE t (); ALTER TABLE t OWNER TO {role}")
    await make_database(f"{role}_aside")
    await database.execute(f"ALTER DATABASE {role}_aside ALLOW_CONNECTIONS false")
    await database.execute(f"ALTER DATABASE {role}_shut ALLOW_CONNECTIONS false")
    await kube.delete("app")
    obj = await blocked(kube, f'"{role}_shut"', "ALLOW_CONNECTIONS true")
    assert f"{role}_aside" not in str(obj["status"])
    assert await owner(other, "t") == f"{role}_heir"
    assert await owner(shut, "t") == role
    await database.execute(f"ALTER DATABASE {role}_shut ALLOW_CONNECTIONS true")
    await kube.wait_gone("app")
    assert await owner(shut, "t") == f"{role}_heir"


@pytest.mark.slow
async def test_locked_tables_delay_only_deletions_in_their_namespace_which_wait_one_at_a_time(
    kube: Kube, shared_api_server: ApiServer, database: Database, make_database: MakeDatabase, role: str
) -> None:
    held, neighbour = await make_database(f"{role}_held"), await make_kube(shared_api_server)
    await kube.apply("heir", name=f"{role}_heir")
    names = [f"{role}_{number}" for number in range(4)]
    for name in names:
        spec = {"name": name, "login": True, "deletionPolicy": "Drop", "reassignOwnedTo": f"{role}_heir"}
        await kube.apply(name.replace("_", "-"), **spec)
        await kube.wait_ready(name.replace("_", "-"))
        await held.execute(f"CREATE TABLE t_{name} (); ALTER TABLE t_{name} OWNER TO {name}")
    await declare(neighbour, f"{role}_n", reassignOwnedTo=f"{role}_n_heir")
    inside = await make_database(f"{role}_free")
    await inside.execute(f"CREATE TABLE t (); ALTER TABLE t OWNER TO {role}_n")
    waiting = HELD.replace("EXISTS (SELECT FROM", "(SELECT count(*) FROM").format(f"'{role}_held'")
    most = 0
    async with held.connection.transaction(), anyio.create_task_group() as tasks:

        async def watch() -> None:
            nonlocal most
            while True:
                most = max(most, int(str(await database.fetchval(waiting))))
                await anyio.sleep(0.01)

        for name in names:
            await held.execute(f"LOCK TABLE t_{name} IN ACCESS EXCLUSIVE MODE")
            await kube.delete(name.replace("_", "-"))
        login = f"SELECT count(*) FROM pg_roles WHERE rolcanlogin AND rolname = ANY (ARRAY{names})"
        await database.wait_value(login, 0)
        await database.wait_value(HELD.format(f"'{role}_held'"), True)
        tasks.start_soon(watch)
        for name in names:
            await kube.wait_for(
                name.replace("_", "-"),
                lambda obj: says(obj, "DropBlocked", f"{role}_held", "a lock was not available"),
                name,
            )
        await neighbour.delete("app")
        await neighbour.wait_gone("app")
        tasks.cancel_scope.cancel()
    await neighbour.delete_all()
    assert most == 1
    assert await owner(inside, "t") == f"{role}_n_heir"
    for name in names:
        await kube.wait_gone(name.replace("_", "-"))


class TestInterruptedDrop:
    @pytest.mark.parametrize("broken", ["stopped", "killed", "server"])
    @pytest.mark.slow
    async def test_a_reassignment_interrupted_by_stop_or_crash_completes_later(self, stage: Stage, broken: str) -> None:
        """In each of three databases in turn: the role `app_two` is emptied last in that of this name, for example."""
        kube, places = stage.kube, ("one", "three", "two")
        controller = stage.controller()
        await controller.start()
        await kube.apply("heir")
        owners = {f"app-{held}": f"app_{held}" for held in places}
        spec: Json = {"login": True, "deletionPolicy": "Drop", "reassignOwnedTo": "heir"}
        await kube.apply_all({name: {**spec, "name": role} for name, role in owners.items()})
        await kube.wait_all_ready()
        async with stage.database() as database:
            for place in places:
                await database.execute(f"CREATE DATABASE {place}")
                async with open_database(stage.postgres.dsn(database=place)) as inside:
                    for role in owners.values():
                        await inside.execute(f"CREATE TABLE of_{role} AS SELECT 1 AS one")
                        await inside.execute(f"ALTER TABLE of_{role} OWNER TO {role}; CHECKPOINT")
        for held in places:
            name, role = f"app-{held}", owners[f"app-{held}"]
            await end_while_held(stage, controller, broken, held)
            if broken == "server":
                await stage.postgres.start()
            else:
                assert "Traceback" not in controller.log, held
                controller = stage.controller()
                await controller.start()
            await kube.wait_gone(name)
            async with stage.database() as database:
                assert await database.role(role) is None, held
                assert await database.claim(role) is None, held
            for place in places:
                async with open_database(stage.postgres.dsn(database=place)) as inside:
                    assert await inside.fetchval(f"SELECT one FROM of_{role}") == 1, (held, place)
                    assert await owner(inside, f"of_{role}") == "heir", (held, place)
        assert await controller.stop() == 0
        assert "Traceback" not in controller.log

    async def test_suspend_delays_a_deletion_until_it_ends(self, kube: Kube, database: Database, role: str) -> None:
        await declare(kube, role)
        await kube.apply("heir", name=f"{role}_heir", memberOf=[{"role": role}])
        await kube.wait_ready("heir")
        await kube.delete("app")
        await blocked(kube, "1 shared by the server")
        await kube.patch("app", {"spec": {"suspend": True, "reassignOwnedTo": f"{role}_heir"}})
        await blocked(kube, "spec.suspend")
        assert await can_log_in(database, role)
        await kube.patch("app", {"spec": {"suspend": False}})
        await kube.wait_gone("app")
        assert await database.role(role) is None

    @pytest.mark.slow
    async def test_a_role_is_dropped_in_a_terminating_namespace(self, stage: Stage) -> None:
        kube = stage.kube
        secret = {"name": "app-connection"}
        async with running(stage.controller()) as controller, stage.database() as database:
            await declare(kube, "app", password={"generate": {}}, connectionSecret=secret)
            await kube.wait_secret("app-connection")
            await database.execute("CREATE TABLE t (); ALTER TABLE t OWNER TO app")
            await kube.server.request("DELETE", f"/api/v1/namespaces/{kube.namespace}")
            await kube.delete_secret("app-connection")
            await kube.delete("app")
            await blocked(kube, '1 in database "postgres"')
            await database.execute("DROP TABLE t")
            await kube.wait_gone("app")
            assert await database.role("app") is None
            assert await kube.secret("app-connection") is None
            await controller.wait_log("action=dropped")

    async def test_no_secret_is_written_for_a_terminating_object(self, kube: Kube, role: str) -> None:
        await declare(kube, role, password={"generate": {}}, connectionSecret={"name": "app-connection"})
        await kube.wait_secret("app-connection")
        await kube.apply("heir", name=f"{role}_heir", memberOf=[{"role": role}])
        await kube.wait_ready("heir")
        await kube.delete("app")
        await blocked(kube, "1 shared by the server")
        await kube.delete_secret("app-connection")
        changed = await kube.patch("app", {"spec": {"comment": "looked at again"}})
        seen = changed["metadata"]["generation"]
        await kube.wait_for("app", lambda obj: obj["status"]["observedGeneration"] == seen, "looked at")
        await blocked(kube, "1 shared by the server")
        assert await kube.secret("app-connection") is None
        await retain(kube)
        assert await kube.secret("app-connection") is None


async def end_while_held(stage: Stage, controller: Controller, broken: str, held: str) -> None:
    """Deletes an object, and ends controller or server once emptying its role waits for a lock in a database."""
    connection = await asyncpg.connect(stage.postgres.dsn(database=held))
    try:
        await connection.execute(f"BEGIN; LOCK TABLE of_app_{held} IN ACCESS EXCLUSIVE MODE")
        await stage.kube.delete(f"app-{held}")
        async with stage.database() as database:
            await database.wait_value(HELD.format(f"'{held}'"), True)
            if broken == "server":
                await stage.postgres.kill()
            elif broken == "killed":
                await controller.kill()
            else:
                assert await controller.stop() == 0
    finally:
        connection.terminate()


class TestDropOfOwnRolesOnly:
    async def test_a_role_the_object_never_owned_is_not_dropped(
        self, kube: Kube, database: Database, role: str
    ) -> None:
        await database.execute(f"CREATE ROLE {role}")
        try:
            await kube.apply("app", name=role, deletionPolicy="Drop")
            await kube.wait_reason("app", "RoleExists")
            await kube.delete("app")
            await kube.wait_gone("app")
            assert await database.role(role) is not None
        finally:
            await database.execute(f"DROP ROLE {role}")

    @pytest.mark.slow
    async def test_roles_renamed_or_replaced_while_the_controller_was_down_are_dropped_unless_superuser(
        self, stage: Stage
    ) -> None:
        kube = stage.kube
        async with running(stage.controller()), stage.database() as database:
            going = {"login": True, "deletionPolicy": "Drop"}
            await kube.apply_all(dict.fromkeys(("renamed", "replaced", "app"), going))
            await kube.apply_all({"heir": {}, "rich": {**going, "reassignOwnedTo": "heir"}})
            await kube.wait_all_ready()
        async with stage.database() as database:
            await database.execute(
                "ALTER ROLE renamed RENAME TO elsewhere; ALTER ROLE rich RENAME TO away; "
                "CREATE SCHEMA own AUTHORIZATION away; "
                "DROP ROLE replaced, app; CREATE ROLE replaced; CREATE ROLE app SUPERUSER"
            )
            await kube.delete_each(["renamed", "rich", "replaced", "app"])
            async with running(stage.controller()):
                await blocked(kube, "superuser")
                for name in ("renamed", "rich", "replaced"):
                    await kube.wait_gone(name)
                for name in ("renamed", "elsewhere", "rich", "away", "replaced"):
                    assert await database.role(name) is None
                handed = "SELECT nspowner::regrole::text = 'heir' FROM pg_namespace WHERE nspname = 'own'"
                await database.wait_value(handed, True)
                await retain(kube)
                assert await database.role("app") is not None


@pytest.mark.parametrize("policy", ["Retain", "Drop"])
async def test_an_object_that_another_finalizer_keeps_says_that_its_role_is_no_longer_managed(
    kube: Kube, database: Database, role: str, policy: str
) -> None:
    await kube.apply("app", name=role, deletionPolicy=policy)
    await kube.wait_ready("app")
    await kube.patch("app", {"metadata": {"finalizers": ["example.com/hold", *await finalizers(kube)]}})
    await kube.delete("app")
    found = await kube.wait_reason("app", "Progressing")
    assert {one["type"]: one["status"] for one in found["status"]["conditions"]} == {
        "Ready": "False",
        "Reconciling": "True",
    }
    assert "no longer manages its role: another controller's finalizer" in found["status"]["conditions"][0]["message"]
    assert found["status"]["observedGeneration"] == found["metadata"]["generation"]
    assert (await database.role(role) is None) is (policy == "Drop")
    await kube.patch("app", {"metadata": {"finalizers": None}})
    await kube.wait_gone("app")
    await kube.apply("last", name=f"{role}_last")
    await kube.wait_ready("last")
    assert await kube.get("app") is None


async def finalizers(kube: Kube) -> list[str]:
    found: Json = await kube.get("app") or {}
    return list(found["metadata"].get("finalizers", ()))
