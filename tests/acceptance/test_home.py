"""Schema pgrole has one home on a server: a controller configured with another database is refused, with the remedy."""

from pathlib import Path

import asyncpg
import pytest

from pgrole_controller.local.postgres import PostgresServer
from pgrole_controller.postgres import queries
from tests.acceptance import copies
from tests.acceptance.privileges import CONTROLLER_ROLE, PASSWORD, role_sql
from tests.acceptance.world import Database, Stage, is_ready, open_database, running, says
from tests.servers import Servers

pytestmark = pytest.mark.slow

RECORDED = """
    SELECT coalesce(array_agg(d.datname::text ORDER BY d.oid), '{}')
    FROM pg_db_role_setting AS s JOIN pg_database AS d ON d.oid = s.setdatabase
    WHERE s.setrole = 0 AND 'pgrole.home=on' = ANY (s.setconfig)
"""
UNRECORDED = "home database not recorded"


async def versions_of_roles(database: Database) -> set[str]:
    sql = "SELECT array_agg(concat_ws('/', rolname, oid, xmin)) FROM pg_authid WHERE oid >= 16384"
    return set(await database.fetchval(sql))


async def test_a_second_home_on_the_server_is_refused_until_the_first_is_removed(stage: Stage) -> None:
    async with stage.database() as database:
        async with running(stage.controller()):
            await stage.kube.apply("app", name="app", login=True)
            await stage.kube.wait_ready("app")
        assert await database.fetchval(RECORDED) == ["postgres"]
        await database.execute('CREATE DATABASE "Other"')
        roles = await versions_of_roles(database)

        elsewhere = stage.controller(stage.postgres.dsn(database="Other"))
        async with running(elsewhere, connected=False), open_database(stage.postgres.dsn(database="Other")) as other:
            words = ("database postgres", 'not "Other"', "ALTER DATABASE postgres RESET pgrole.home")
            await stage.kube.wait_for("app", lambda obj: says(obj, "ServerNotReady", *words), "what to do")
            assert await other.fetchval("SELECT to_regnamespace('pgrole') IS NULL")
            assert await versions_of_roles(database) == roles

            await database.execute("DROP SCHEMA pgrole CASCADE")
            await database.execute("ALTER DATABASE postgres RESET pgrole.home")
            await stage.kube.wait_ready("app")
            assert await database.fetchval(RECORDED) == ["Other"]
            assert await versions_of_roles(database) == roles


async def test_a_home_moved_as_documented_keeps_its_claims(stage: Stage, tmp_path: Path) -> None:
    if type(stage.postgres) is not PostgresServer:
        pytest.skip("this test dumps a schema with this machine's programs: run it without --postgres docker:…")
    async with stage.database() as database:
        async with running(stage.controller()):
            await stage.kube.apply("app", name="app", login=True)
            await stage.kube.wait_ready("app")
        roles, claim = await versions_of_roles(database), await database.claim("app")
        await database.execute("CREATE DATABASE other")
        await copies.dump_schema(stage.postgres, "pgrole", tmp_path / "dump" / "pgrole.sql")
        await copies.restore(stage.postgres, tmp_path / "dump" / "pgrole.sql", "other")
        await database.execute("DROP SCHEMA pgrole CASCADE")
        await database.execute("ALTER DATABASE postgres RESET pgrole.home")
        moved = stage.controller(stage.postgres.dsn(database="other"))
        async with running(moved), open_database(stage.postgres.dsn(database="other")) as other:
            assert await database.fetchval(RECORDED) == ["other"]
            await database.execute("ALTER ROLE app NOINHERIT")
            await database.wait_role("app", lambda row: row["rolinherit"], "repaired")
            await other.wait_value("SELECT drift_count FROM pgrole.claim WHERE role_name = 'app'", 1)
            kept = await other.claim("app")
            assert claim is not None
            assert kept is not None
            assert kept == {**claim, **{name: kept[name] for name in kept if "drift" in name}}
        assert len(await versions_of_roles(database)) == len(roles)


async def test_a_dropped_or_renamed_home_prevents_no_new_one_and_the_older_of_two_works(stage: Stage) -> None:
    async with stage.database() as database:
        await database.execute("CREATE DATABASE first; ")
        async with running(stage.controller(stage.postgres.dsn(database="first"))):
            await stage.kube.apply("app", name="app")
            await stage.kube.wait_ready("app")
        await database.execute("ALTER DATABASE first RENAME TO renamed")
        async with running(stage.controller(stage.postgres.dsn(database="renamed"))):
            await stage.kube.apply("app", name="app", login=True)
            await stage.kube.wait_ready("app")
        assert await database.fetchval(RECORDED) == ["renamed"]
        await database.execute("DROP DATABASE renamed WITH (FORCE)")
        async with running(stage.controller()):
            await stage.kube.apply("app", name="app", connectionLimit=3)
            await stage.kube.wait_ready("app")
        assert await database.fetchval(RECORDED) == ["postgres"]

        await database.execute("CREATE DATABASE younger")
        await database.execute("ALTER DATABASE younger SET pgrole.home = 'on'")
        async with running(stage.controller(stage.postgres.dsn(database="younger")), connected=False):
            await stage.kube.wait_for("app", lambda obj: says(obj, "ServerNotReady", "database postgres"), "refused")
        async with running(stage.controller()):
            await stage.kube.wait_ready("app")


async def test_only_a_superuser_can_record_a_home_and_doing_so_is_no_drift(stage: Stage, servers: Servers) -> None:
    async with stage.database() as database:
        await database.execute("CREATE ROLE tenant LOGIN CREATEROLE CREATEDB PASSWORD 'p'")
        await database.execute("CREATE DATABASE own OWNER tenant")
        tenant = await asyncpg.connect(stage.postgres.dsn("tenant", "own", "p"))
        try:
            await tenant.execute("SET pgrole.home = 'on'")
            for statement in (
                "ALTER DATABASE own SET pgrole.home = 'on'",
                "ALTER DATABASE own SET pgrole.home FROM CURRENT",
            ):
                with pytest.raises(asyncpg.InsufficientPrivilegeError):
                    await tenant.execute(statement)
            # Settings of a role are ignored, even if it was granted the right to set the parameter.
            if servers.version >= 15:
                await database.execute("GRANT SET ON PARAMETER pgrole.home TO tenant")
                await tenant.execute("ALTER ROLE tenant IN DATABASE own SET pgrole.home = 'on'")
                await tenant.execute("ALTER ROLE tenant SET pgrole.home = 'on'")
        finally:
            await tenant.close()
        assert await database.fetchval(RECORDED) == []
        async with running(stage.controller()):
            await stage.kube.apply("app", name="app", databaseParameters=[{"database": "postgres", "parameters": {}}])
            await stage.kube.wait_ready("app")
            await database.execute("ALTER DATABASE postgres RESET pgrole.home")
            await database.execute("ALTER DATABASE postgres SET pgrole.home = 'on'")
            await database.execute("ALTER ROLE app CREATEDB")
            obj = await stage.kube.wait_for(
                "app", lambda obj: obj["status"].get("driftCount", 0) >= 1 and is_ready(obj), "a drift, and Ready"
            )
            assert obj["status"]["driftCount"] == 1


async def test_a_controller_without_the_right_to_record_its_home_logs_the_remedy_once(
    stage: Stage, servers: Servers
) -> None:
    async with stage.database() as database:
        await database.execute(role_sql(servers.version))
        controller = stage.controller(stage.postgres.dsn(CONTROLLER_ROLE, password=PASSWORD))
        async with running(controller):
            await stage.kube.apply("app", name="app", login=True)
            await stage.kube.wait_ready("app")
            ended = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE usename = $1"
            await database.fetchval(ended, CONTROLLER_ROLE)
            await controller.wait_count("session with PostgreSQL begins", 2)
            assert controller.log.count(UNRECORDED) == 1
            assert "ALTER DATABASE postgres SET pgrole.home = 'on'" in controller.log
            assert await database.fetchval(RECORDED) == []
            await database.execute("ALTER DATABASE postgres SET pgrole.home = 'on'")
        await database.execute(f"CREATE DATABASE other OWNER {CONTROLLER_ROLE}")
        async with running(stage.controller(stage.postgres.dsn(CONTROLLER_ROLE, "other", PASSWORD)), connected=False):
            await stage.kube.wait_for("app", lambda obj: says(obj, "ServerNotReady", "not other: a second"), "refused")


async def test_a_schema_installed_by_hand_is_recorded_and_refused_in_a_second_database(stage: Stage) -> None:
    async with stage.database() as database:
        await database.execute(f"BEGIN; {queries.install()}; COMMIT")
        assert await database.fetchval(RECORDED) == ["postgres"]
        await database.execute("CREATE DATABASE other")
        async with open_database(stage.postgres.dsn(database="other")) as other:
            with pytest.raises(asyncpg.DuplicateSchemaError, match='in database "postgres"'):
                await other.execute(f"BEGIN; {queries.install()}; COMMIT")
            await other.execute("ROLLBACK")
            assert await other.fetchval("SELECT to_regnamespace('pgrole') IS NULL")
