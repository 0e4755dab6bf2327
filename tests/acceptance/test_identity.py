"""Another server answers at the same address: whatever its oids refer to, no role of others is renamed or dropped."""

import secrets
from collections.abc import AsyncIterator, Mapping

import pytest
import pytest_asyncio

from pgrole_controller.core.errors import Reason
from pgrole_controller.core.privileges.privilege_result import News
from pgrole_controller.local.postgres import PostgresServer, Stop, postgres
from pgrole_controller.local.workspace import free_port
from tests.acceptance import copies
from tests.acceptance.servers import PgServers, pgservers
from tests.acceptance.world import (
    Controller,
    Database,
    Json,
    Stage,
    is_ready,
    open_database,
    running,
    says,
)
from tests.servers import Servers

BEGINS = "session with PostgreSQL begins"

#: Event of a rotation.
ROTATED = "PasswordRotated"

#: The Secret with a password that was generated once and must not change.
DELIVERED = "keyed-connection"

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("programs")]


@pytest.fixture
def programs(servers: Servers) -> None:
    if servers.docker:
        pytest.skip("this test copies the files of PostgreSQL: run it without --postgres docker:…")


@pytest.fixture
def stranger() -> str:
    """A role that no one declares."""
    return f"stranger_{secrets.token_hex(3)}"


def declared() -> dict[str, Json]:
    """Returns specs of various roles, none with `adopt`; not in the order of their names."""
    return {
        "zebra": {"name": "zebra", "createdb": True, "parameters": {"work_mem": "64MB"}},
        "readers": {"name": "readers"},
        "app": {"name": "app", "login": True, "memberOf": [{"role": "readers"}], "comment": "the app"},
        "batch": {"name": "batch", "connectionLimit": 3, "validUntil": "2099-01-01T00:00:00Z"},
        "last": {"name": "last", "deletionPolicy": "Drop"},
        "keyed": {
            "name": "keyed",
            "login": True,
            "password": {"generate": {"length": 32}},
            "connectionSecret": {"name": DELIVERED},
        },
    }


async def declare(stage: Stage, **spec: object) -> str:
    """Declares these roles; returns the generated password."""
    for name, one in declared().items():
        await stage.kube.apply(name, **one, **spec)
        await stage.kube.wait_ready(name)
    return str((await stage.kube.wait_secret(DELIVERED))["text"]["password"])


async def versions_of_roles(database: Database) -> Mapping[str, str]:
    """Returns row versions that change with a role, its memberships, its settings and its comment, by role name."""
    rows = await database.connection.fetch("""
        SELECT r.rolname, concat_ws('/', r.oid, r.xmin,
            (SELECT string_agg(m.xmin::text, ' ' ORDER BY m.roleid) FROM pg_auth_members AS m WHERE m.member = r.oid),
            (SELECT string_agg(s.xmin::text, ' ') FROM pg_db_role_setting AS s WHERE s.setrole = r.oid),
            (SELECT d.xmin FROM pg_shdescription AS d WHERE d.objoid = r.oid AND d.classoid = 'pg_authid'::regclass)
        ) AS version
        FROM pg_authid AS r
        WHERE r.oid >= 16384
    """)
    return {row["rolname"]: row["version"] for row in rows}


async def wait_claimed(database: Database, names: set[str]) -> None:
    """Waits until exactly these roles are claimed, each as it is on this server."""
    sql = """
        SELECT coalesce(array_agg(c.role_name ORDER BY c.role_name COLLATE "C"), '{}')
        FROM pgrole.claim AS c
        JOIN pg_roles AS r ON r.oid = c.role_oid AND r.rolname = c.role_name
        JOIN pg_control_system() AS s ON s.system_identifier = c.system_identifier
        WHERE c.released_at IS NULL
    """
    await database.wait_value(sql, sorted(names))


async def drift(database: Database, role: str = "app") -> None:
    """Changes a role, including its name, and waits for the repairs."""
    await database.execute(f"ALTER ROLE {role} RENAME TO stolen")
    await database.wait_value("SELECT count(*) FROM pg_roles WHERE rolname = 'stolen'", 0)
    await database.execute(f"ALTER ROLE {role} NOINHERIT")
    await database.wait_role(role, lambda row: row["rolinherit"], "repaired")


#: Events that no restore may cause.
UNWANTED = (
    *(Reason.ROLE_EXISTS, Reason.NAME_TAKEN, Reason.CONFLICT, Reason.PROTECTED, Reason.NOT_ALLOWED),
    "RoleAdopted",
    ROTATED,
)


async def assert_nothing_lost(
    stage: Stage, database: Database, password: str, names: set[str], *, rotated: int = 0
) -> None:
    """Asserts that everything is Ready, names its role on the current server, and was never refused."""
    identifier = await database.fetchval("SELECT system_identifier::text FROM pg_control_system()")
    oids = await holders(database)

    def is_told(obj: Json) -> bool:
        status = obj["status"]
        where = (status["server"]["systemIdentifier"], status["role"]["oid"])
        return is_ready(obj) and where == (identifier, oids[status["role"]["name"]])

    objects = await stage.kube.wait_all(is_told, "Ready with the identity of the server")
    assert {obj["metadata"]["name"] for obj in objects} == names
    for reason in UNWANTED:
        said = [(event["regarding"]["name"], event["note"]) for event in await stage.kube.events(reason)]
        assert len(said) == (rotated if reason == ROTATED else 0), (reason, said)
    delivered = await stage.kube.wait_secret(DELIVERED)
    assert delivered["text"]["password"] == password
    await database.wait_password("keyed", password)


async def test_a_physical_copy_at_the_address_is_treated_as_the_same_server(stage: Stage, stranger: str) -> None:
    async with running(stage.controller()) as controller:
        password = await declare(stage)
        async with stage.database() as database:
            await database.execute(f"CREATE ROLE {stranger} IN ROLE readers")
            before = await versions_of_roles(database)
        folder = await copies.back_up(stage.postgres, stage.folder / "copy")
        async with copies.serving(stage.postgres, folder, free_port()) as copy, open_database(copy.dsn()) as database:
            await database.execute("ALTER ROLE batch SUPERUSER; ALTER ROLE zebra RENAME TO stolen")
        await stage.postgres.stop(Stop.IMMEDIATE)
        async with copies.serving(stage.postgres, folder, stage.postgres.port), stage.database() as database:
            await controller.wait_count(BEGINS, 2)
            await database.wait_role("batch", lambda row: not row["rolsuper"], "repaired")
            await database.wait_role("zebra", lambda row: row["rolcreatedb"], "renamed back")
            await wait_claimed(database, set(declared()))
            await assert_nothing_lost(stage, database, password, set(declared()))
            await drift(database)
            after = await versions_of_roles(database)
            assert {name for name in before if after.get(name) != before[name]} == {"batch", "zebra", "app"}


async def test_the_controller_waits_until_a_standby_at_the_address_is_promoted(stage: Stage, stranger: str) -> None:
    async with running(stage.controller()):
        password = await declare(stage)
        folder = await copies.back_up(stage.postgres, stage.folder / "standby", "-R")
        await stage.postgres.stop()
        async with copies.serving(stage.postgres, folder, stage.postgres.port), stage.database() as database:
            before = await versions_of_roles(database)
            await stage.kube.wait_all(lambda obj: says(obj, "ServerNotReady", "standby"), "ServerNotReady")
            assert await database.fetchval("SELECT pg_promote()")
            await assert_nothing_lost(stage, database, password, set(declared()))
            assert await versions_of_roles(database) == before
            await drift(database)


async def test_after_a_logical_restore_with_other_oids_roles_are_matched_by_name(
    stage: Stage, servers: Servers
) -> None:
    async with running(stage.controller(None, "--protected", "rds_*")) as controller:
        password = await declare(stage)
        async with stage.database() as database:
            oids = {name: (await database.claim(name) or {})["role_oid"] for name in declared()}
        path = stage.folder / "dump" / "all.sql"
        await copies.dump(stage.postgres, path)
        await stage.postgres.stop()
        async with postgres(version=servers.version, port=free_port()) as fresh:
            async with open_database(fresh.dsn()) as database:
                await use_oids(database, min(oids.values()))
                await database.execute("CREATE ROLE rds_keeper")
                await database.execute(f"ALTER ROLE postgres PASSWORD '{stage.postgres.password}'")
            fresh.password = stage.postgres.password  # as the dump sets it
            await copies.restore(fresh, path)
            await move(fresh, stage.postgres.port)
            async with stage.database() as database:
                before = await versions_of_roles(database)
                names = await holders(database)
                assert set(names) >= set(oids)
                foreign = {name for name in oids for other in set(oids) - {name} if names[name] == oids[other]}
                assert foreign, (names, oids)  # the old oids now belong to other roles
                assert names["rds_keeper"] in oids.values()
                await controller.wait_count(BEGINS, 2)
                await wait_claimed(database, set(oids))
                await assert_nothing_lost(stage, database, password, set(oids))
                assert await versions_of_roles(database) == before
                for name in oids:
                    await drift(database, name)
                await assert_nothing_lost(stage, database, password, set(oids))
                assert await holders(database) == names


async def use_oids(database: Database, below: int) -> None:
    """Consumes oids until the next role gets this one."""
    await database.execute(f"""
        DO $$
        BEGIN
            LOOP
                CREATE ROLE burnt;
                EXIT WHEN (SELECT oid FROM pg_roles WHERE rolname = 'burnt') >= {below - 1};
                DROP ROLE burnt;
            END LOOP;
            DROP ROLE burnt;
        END
        $$
    """)


async def holders(database: Database) -> dict[str, int]:
    rows = await database.connection.fetch("SELECT rolname, oid FROM pg_roles WHERE oid >= 16384")
    return {row["rolname"]: row["oid"] for row in rows}


async def move(server: PostgresServer, port: int) -> None:
    """Restarts the server at this port."""
    await server.stop()
    server.port = port
    server.process.command = [
        f"--port={port}" if part.startswith("--port=") else part for part in server.process.command
    ]
    await server.start()


@pytest_asyncio.fixture(loop_scope="session")
async def old_stage(stage: Stage) -> AsyncIterator[Stage]:
    """A stage with PostgreSQL 16."""
    async with postgres(version=16) as old:
        yield Stage(stage.kube, old, stage.folder)


async def test_after_pg_upgrade_every_object_keeps_its_role(old_stage: Stage) -> None:
    stage = old_stage
    async with running(stage.controller()) as controller:
        password = await declare(stage)
        async with stage.database() as database:
            before = await holders(database)
            identifier = await database.fetchval("SELECT system_identifier FROM pg_control_system()")
        await stage.postgres.stop()
        folder = stage.folder / "new"
        programs = await copies.upgrade(stage.postgres, folder, 18)
        async with copies.serving(stage.postgres, folder, stage.postgres.port, programs), stage.database() as database:
            assert await database.fetchval("SELECT system_identifier FROM pg_control_system()") != identifier
            versions = await versions_of_roles(database)
            await controller.wait_count(BEGINS, 2)
            await wait_claimed(database, set(declared()))
            await assert_nothing_lost(stage, database, password, set(declared()))
            assert await holders(database) == before
            assert await versions_of_roles(database) == versions
            await drift(database)


@pytest_asyncio.fixture(loop_scope="session")
async def stage_of_15(stage: Stage) -> AsyncIterator[Stage]:
    """A stage with the last PostgreSQL in which the member's attribute decides whether it inherits."""
    async with postgres(version=15) as old:
        yield Stage(stage.kube, old, stage.folder)


async def test_a_role_that_did_not_inherit_before_16_does_not_after_the_documented_steps(stage_of_15: Stage) -> None:
    """Follows "From PostgreSQL 15 or earlier" in docs/servers.md; `forgotten` is left out."""
    stage = stage_of_15
    inherits = """
        SELECT jsonb_object_agg(member::regrole::text, inherit_option)
        FROM pg_auth_members WHERE roleid = 'readers'::regrole
    """
    async with running(stage.controller()) as controller:
        await stage.kube.apply("readers", name="readers")
        for name in ("suspended", "forgotten"):
            await stage.kube.apply(name, name=name, inherit=False, memberOf=[{"role": "readers"}])
            await stage.kube.wait_ready(name)
        await stage.kube.patch("suspended", {"spec": {"suspend": True}})
        await stage.kube.wait_reason("suspended", "Suspended")
        path = stage.folder / "dump" / "all.sql"
        await copies.dump(stage.postgres, path)
        await stage.postgres.stop()
        async with postgres(version=18, port=free_port()) as fresh:
            async with open_database(fresh.dsn()) as database:
                await database.execute(f"ALTER ROLE postgres PASSWORD '{stage.postgres.password}'")
            fresh.password = stage.postgres.password  # as the dump sets it
            await copies.restore(fresh, path)
            async with open_database(fresh.dsn()) as database:
                assert await database.fetchval(inherits) == '{"forgotten": false, "suspended": false}'
            await move(fresh, stage.postgres.port)
            async with stage.database() as database:
                await controller.wait_count(BEGINS, 2)
                await database.wait_value(inherits, '{"forgotten": true, "suspended": false}')
                await stage.kube.patch("suspended", {"spec": {"memberOf": [{"role": "readers", "inherit": False}]}})
                await stage.kube.patch("suspended", {"spec": {"suspend": False}})
                await stage.kube.wait_ready("suspended")
                assert await database.fetchval(inherits) == '{"forgotten": true, "suspended": false}'


async def test_an_older_backup_is_reconciled_with_the_current_specs_and_the_connection_secret(stage: Stage) -> None:
    async with running(stage.controller()) as controller:
        password = await declare(stage)
        folder = await copies.back_up(stage.postgres, stage.folder / "older")
        await stage.kube.delete("last")
        await stage.kube.wait_gone("last")
        await stage.kube.apply("since", name="since", login=True)
        await stage.kube.apply("app", **{**declared()["app"], "connectionLimit": 7})
        await stage.kube.patch("keyed", {"metadata": {"annotations": {"pgrole.dev/rotate": "now"}}})
        secret = await stage.kube.wait_secret(DELIVERED, lambda one: one["text"]["password"] != password, "rotated")
        rotated = secret["text"]
        await stage.kube.wait_event(ROTATED, about="keyed")
        async with stage.database() as database:
            await database.wait_password("keyed", rotated["password"])
            await stage.kube.wait_all_ready()
            assert await database.role("last") is None
        await stage.postgres.stop()
        async with copies.serving(stage.postgres, folder, stage.postgres.port), stage.database() as database:
            before = await versions_of_roles(database)
            await controller.wait_count(BEGINS, 2)
            await database.wait_role("since", lambda row: row["rolcanlogin"], "recreated")
            await database.wait_role("app", lambda row: row["rolconnlimit"] == 7, "as declared now")
            names = set(declared()) - {"last"} | {"since"}
            await wait_claimed(database, names)
            await database.wait_password("keyed", rotated["password"])
            await assert_nothing_lost(stage, database, rotated["password"], names, rotated=1)
            assert (await stage.kube.wait_secret(DELIVERED))["text"] == rotated
            after = await versions_of_roles(database)
            assert {name for name in before if after.get(name) != before[name]} == {"app", "keyed"}
            claim = await database.claim("last")
            assert claim is not None
            assert claim["released_at"] is not None
            assert await stage.kube.events(News.DRIFT_CORRECTED) == []


@pytest_asyncio.fixture(loop_scope="session")
async def servers_declared(stage: Stage) -> AsyncIterator[PgServers]:
    async with pgservers(stage.kube.server) as made:
        yield made


async def test_a_copy_is_a_separate_server_until_the_original_pgserver_names_it(
    stage: Stage, servers_declared: PgServers
) -> None:
    alone = Controller(stage.kube.server, "", stage.folder)
    async with running(alone, connected=False):
        await servers_declared.apply("main", stage.postgres)
        password = await declare(stage, serverRef={"name": "main"})
        folder = await copies.back_up(stage.postgres, stage.folder / "beside")
        async with copies.serving(stage.postgres, folder, free_port()) as copy, open_database(copy.dsn()) as beside:
            before = await versions_of_roles(beside)
            await servers_declared.wait_younger("main")
            await servers_declared.apply("copy", copy)
            await servers_declared.wait_ready("copy")
            await wait_claimed(beside, set())
            async with stage.database() as database:
                await wait_claimed(database, set(declared()))
                await beside.execute("ALTER ROLE zebra CONNECTION LIMIT 5")
                await drift(database)
            await stage.kube.apply("there", name="there", serverRef={"name": "copy"})
            await stage.kube.wait_ready("there")
            after = await versions_of_roles(beside)
            assert {name for name in after if after[name] != before.get(name)} == {"zebra", "there"}
            await stage.kube.delete("there")
            await stage.kube.wait_gone("there")

            await stage.postgres.stop()
            await servers_declared.apply("main", copy)
            await beside.wait_role("zebra", lambda row: row["rolconnlimit"] == -1, "repaired")
            await wait_claimed(beside, set(declared()))
            await assert_nothing_lost(stage, beside, password, set(declared()))
            await servers_declared.wait_for("copy", lambda obj: says(obj, "Conflict", '"main"'), "Conflict")
            await servers_declared.wait_ready("main")
