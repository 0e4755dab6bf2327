"""A standby without the last commits is promoted: everything converges on it, privileges in a database too, and roles
of others stay untouched.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio

from pgrole_controller.local.workspace import free_port
from tests.acceptance import copies
from tests.acceptance.replicas import Replicas, replicas
from tests.acceptance.test_identity import DELIVERED, declared, versions_of_roles, wait_claimed
from tests.acceptance.world import Database, Json, Stage, open_database
from tests.servers import Servers

pytestmark = pytest.mark.slow

LED = "SELECT number FROM pgrole.leader"
#: Roles of someone else, with members, settings and a password that no object declares.
THEIRS = """
CREATE ROLE theirs LOGIN PASSWORD 'theirs'; CREATE ROLE their_group; GRANT their_group TO theirs;
ALTER ROLE theirs SET work_mem = '1MB'; COMMENT ON ROLE theirs IS 'theirs'
"""


@pytest.fixture(autouse=True)
def _files(servers: Servers) -> None:
    if servers.docker:
        pytest.skip("this test copies the files of PostgreSQL: run it without --postgres docker:…")


@pytest_asyncio.fixture(loop_scope="session")
async def pair(stage: Stage) -> AsyncIterator[Replicas]:
    async with replicas(stage, "--databases-detection", "auto") as made:
        yield made


@asynccontextmanager
async def promoted(stage: Stage, standby: Path) -> AsyncIterator[Database]:
    """Crashes the primary; the standby, as it was when stopped, takes its address."""
    await stage.postgres.kill()
    async with copies.serving(stage.postgres, standby, stage.postgres.port), stage.database() as database:
        assert await database.fetchval("SELECT pg_promote()")
        yield database


async def follow(stage: Stage) -> tuple[Path, Mapping[str, str]]:
    """Returns the folder of a stopped standby that has every commit up to now, and the versions of its roles."""
    folder = await copies.back_up(stage.postgres, stage.folder / "standby", "-R")
    async with copies.serving(stage.postgres, folder, free_port()) as standby, open_database(standby.dsn()) as database:
        async with stage.database() as primary:
            now = await primary.fetchval("SELECT pg_current_wal_lsn()::text")
        await database.wait_value(f"SELECT pg_last_wal_replay_lsn() >= '{now}'", True)
        return folder, await versions_of_roles(database)


async def lose(stage: Stage, database: Database) -> str:
    """Makes commits of every kind that the standby never receives. Returns the new password."""
    kube = stage.kube
    before = await kube.wait_secret(DELIVERED)
    await kube.apply("since", name="since", login=True)
    await kube.apply("app", **{**declared()["app"], "connectionLimit": 7})
    await kube.delete("last")
    await kube.wait_gone("last")
    await kube.patch("keyed", {"metadata": {"annotations": {"pgrole.dev/rotate": "now"}}})
    made = await kube.wait_secret(
        DELIVERED, lambda one: bool(one["text"]["password"] != before["text"]["password"]), "a new password"
    )
    await database.wait_password("keyed", made["text"]["password"])
    await database.execute("ALTER ROLE batch CREATEDB")
    await kube.wait_for("batch", lambda obj: obj["status"].get("driftCount") == 1, "one drift")
    await kube.wait_all_ready()
    return str(made["text"]["password"])


async def check(stage: Stage, database: Database, before: Mapping[str, str], password: str) -> None:
    """Verifies that everything is as declared, and that only what the lost commits affected was changed."""
    kube = stage.kube
    names = set(declared()) - {"last"} | {"since", "wider", "narrower", "watched"}
    await wait_claimed(database, names)
    await database.wait_role("app", lambda row: row["rolconnlimit"] == 7, "as declared now")
    await database.wait_password("keyed", password)
    objects = await kube.wait_all_ready()
    assert {obj["metadata"]["name"] for obj in objects} == names
    oids = {row["rolname"]: row["oid"] for row in await database.connection.fetch("SELECT rolname, oid FROM pg_roles")}
    assert {obj["status"]["role"]["oid"] for obj in objects} == {oids[name] for name in names}
    assert (await kube.wait_secret(DELIVERED))["text"]["password"] == password
    after = await versions_of_roles(database)
    assert before.keys() <= after.keys()  # "last" too: an administrator may want an old role back
    assert {name for name in before if after[name] != before[name]} <= {"app", "keyed"}
    released = "SELECT released_at IS NOT NULL FROM pgrole.claim WHERE role_name = 'last'"
    assert await database.fetchval(released)
    for obj in objects:
        drifted = obj["status"].get("driftCount", 0)
        assert drifted <= (obj["metadata"]["name"] in ("batch", "wider")), obj
    for reason in ("RoleExists", "NameTaken", "Conflict", "Protected", "NotAllowed", "RoleAdopted", "RoleDropped"):
        about = [event["regarding"]["name"] for event in await kube.events(reason)]
        assert set(about) <= {"last"}, reason


def reads(*on_orders: str) -> list[Json]:
    """Returns privileges to read schema app of database orders, and these on its table orders."""
    objects = [{"kind": "Table", "schema": "app", "names": ["orders"], "privileges": list(on_orders)}]
    return [
        {
            "database": "orders",
            "schemas": [{"name": "app", "access": ["Read"]}],
            **({"objects": objects} if on_orders else {}),
        }
    ]


async def wait_held(database: Database, role: str, *expected: str) -> None:
    """Waits until the role has exactly these privileges on table app.orders."""
    query = (
        "SELECT coalesce(string_agg(privilege_type, ' ' ORDER BY privilege_type), '') "
        f"FROM information_schema.table_privileges WHERE grantee = '{role}' AND table_name = 'orders'"
    )
    await database.wait_value(query, " ".join(sorted(expected)))


def orders(stage: Stage) -> AbstractAsyncContextManager[Database]:
    return open_database(stage.postgres.dsn(database="orders"))


async def declare_privileges(pair: Replicas) -> None:
    kube = pair.stage.kube
    await pair.database.execute("CREATE DATABASE orders")
    async with orders(pair.stage) as database:
        await database.execute(
            "CREATE SCHEMA app AUTHORIZATION readers; CREATE TABLE app.orders ();"
            "ALTER TABLE app.orders OWNER TO readers"
        )
        await kube.apply("wider", name="wider", privileges=reads())
        await kube.apply("narrower", name="narrower", privileges=reads("UPDATE"))
        await kube.apply("watched", name="watched", privileges=reads(), drift={"policy": "Report"})
        await kube.wait_all_ready()
        await wait_held(database, "narrower", "SELECT", "UPDATE")


async def lose_privileges(stage: Stage) -> None:
    """Changes declarations, and corrects a drift, in commits that the standby never receives."""
    kube = stage.kube
    await kube.apply("wider", name="wider", privileges=reads("INSERT"))
    await kube.apply("narrower", name="narrower", privileges=reads())
    async with orders(stage) as database:
        await wait_held(database, "wider", "SELECT", "INSERT")
        await wait_held(database, "narrower", "SELECT")
        await kube.wait_all_ready()
        await database.execute("GRANT TRUNCATE ON app.orders TO wider")
        await kube.wait_for("wider", lambda obj: obj["status"].get("driftCount") == 1, "one drift")


async def check_privileges(stage: Stage) -> None:
    """Verifies that privileges are as declared now, and that drift is noticed."""
    kube = stage.kube
    async with orders(stage) as database:
        await wait_held(database, "wider", "SELECT", "INSERT")
        await wait_held(database, "narrower", "SELECT")
        await kube.wait_all_ready()
        await database.execute("GRANT DELETE ON app.orders TO wider, watched")
        await wait_held(database, "wider", "SELECT", "INSERT")
        await kube.wait_reason("watched", "DriftReported")
        await wait_held(database, "watched", "SELECT", "DELETE")
        for name, count in (("wider", 2), ("watched", 0)):
            obj = await kube.wait_for(name, lambda obj: "DELETE" in str(obj["status"].get("lastDrift")), "the drift")
            assert obj["status"]["lastDrift"]["by"]["proof"] == "Transaction", obj
            assert obj["status"]["driftCount"] == count
        await database.execute("REVOKE DELETE ON app.orders FROM watched")
        await kube.wait_all_ready()


async def test_everything_converges_on_a_promoted_standby_with_an_older_fence(pair: Replicas) -> None:
    stage, kube = pair.stage, pair.stage.kube
    await pair.start()
    for name, spec in declared().items():
        await kube.apply(name, **spec)
    await kube.wait_all_ready()
    await declare_privileges(pair)
    await pair.database.execute(THEIRS)
    standby, before = await follow(stage)
    old = await pair.database.fetchval(LED)
    await pair.first.end()
    await pair.second.leads()
    await pair.database.wait_value(f"SELECT number > {old} FROM pgrole.leader", True)
    password = await lose(stage, pair.database)
    await lose_privileges(stage)
    async with promoted(stage, standby) as database:
        await pair.second.leads(2)
        await check(stage, database, before, password)
        await check_privileges(stage)
        assert await database.fetchval("SELECT holder FROM pgrole.leader") != ""
        assert await database.fetchval(LED) > old
        await database.execute("ALTER ROLE app CREATEDB; ALTER ROLE keyed PASSWORD 'guessed'")
        await database.wait_role("app", lambda row: not row["rolcreatedb"], "repaired")
        await database.wait_password("keyed", password)
        stood_by = pair.first.stood_by
        await pair.first.start()
        await pair.first.stands_by(stood_by + 1)
        await pair.second.end()
        await pair.first.leads(2)
        await database.execute("ALTER ROLE app CREATEDB")
        await database.wait_role("app", lambda row: not row["rolcreatedb"], "repaired by the other")
    for one in (pair.first, pair.second):
        assert "another process leads" not in one.controller.log
        assert "does not confirm that this process leads" not in one.controller.log
