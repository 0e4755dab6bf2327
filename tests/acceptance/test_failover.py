"""A standby without the last commits is promoted: everything converges on it, and roles of others stay untouched."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio

from pgrole_controller.local.workspace import free_port
from tests.acceptance import copies
from tests.acceptance.replicas import Replicas, replicas
from tests.acceptance.test_identity import DELIVERED, declared, versions_of_roles, wait_claimed
from tests.acceptance.world import Database, Stage, open_database
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
    async with replicas(stage) as made:
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
    names = set(declared()) - {"last"} | {"since"}
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
        assert drifted <= (obj["metadata"]["name"] == "batch"), obj
    for reason in ("RoleExists", "NameTaken", "Conflict", "Protected", "NotAllowed", "RoleAdopted", "RoleDropped"):
        about = [event["regarding"]["name"] for event in await kube.events(reason)]
        assert set(about) <= {"last"}, reason


async def test_everything_converges_on_a_promoted_standby_with_an_older_fence(pair: Replicas) -> None:
    stage, kube = pair.stage, pair.stage.kube
    await pair.start()
    for name, spec in declared().items():
        await kube.apply(name, **spec)
    await kube.wait_all_ready()
    await pair.database.execute(THEIRS)
    standby, before = await follow(stage)
    old = await pair.database.fetchval(LED)
    await pair.first.end()
    await pair.second.leads()
    await pair.database.wait_value(f"SELECT number > {old} FROM pgrole.leader", True)
    password = await lose(stage, pair.database)
    async with promoted(stage, standby) as database:
        await pair.second.leads(2)
        await check(stage, database, before, password)
        assert await database.fetchval("SELECT holder FROM pgrole.leader") != ""
        assert await database.fetchval(LED) > old
        await database.execute("ALTER ROLE app CREATEDB; ALTER ROLE keyed PASSWORD 'guessed'")
        await database.wait_role("app", lambda row: not row["rolcreatedb"], "repaired")
        await database.wait_password("keyed", password)
        await pair.first.start()
        await pair.first.stands_by()
        await pair.second.end()
        await pair.first.leads(2)
        await database.execute("ALTER ROLE app CREATEDB")
        await database.wait_role("app", lambda row: not row["rolcreatedb"], "repaired by the other")
    for one in (pair.first, pair.second):
        assert "another process leads" not in one.controller.log
        assert "does not confirm that this process leads" not in one.controller.log
