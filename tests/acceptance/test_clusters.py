"""Two clusters share one PostgreSQL server: each role has one owner, neither cluster contests it, and a rebuilt cluster
takes over at once.
"""

import secrets
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import anyio
import pytest
import pytest_asyncio

from pgrole_controller.local.apiserver import ApiServer
from pgrole_controller.local.manifests import create_namespace
from pgrole_controller.local.postgres import PostgresServer
from tests.acceptance.world import (
    PATIENCE,
    Controller,
    Database,
    Json,
    Kube,
    is_ready,
    open_database,
    remove,
    running,
    says,
)
from tests.commands import run_command
from tests.servers import Servers

pytestmark = pytest.mark.slow

#: How long nothing may be written, in seconds: longer than a round of polling.
QUIET_SECONDS = 16.0


@dataclass(frozen=True, slots=True)
class SharingCluster:
    """One namespace of one API server, and the id by which claims know the cluster."""

    id: str
    kube: Kube
    controller: Controller

    @property
    def own(self) -> str:
        return self.kube.namespace


@dataclass(frozen=True, slots=True)
class SharedWorld:
    """Two clusters with a namespace of the same name, and the server that both use."""

    here: SharingCluster
    there: SharingCluster
    postgres: PostgresServer
    folder: Path

    async def claims(self, *arguments: str) -> str:
        """Returns the output of `pgrole-controller claims`, which must succeed."""
        answer = await run_command("claims", *arguments, PGROLE_DSN=self.postgres.dsn())
        assert answer.code == 0, answer.err
        return answer.err + answer.out


@pytest_asyncio.fixture(loop_scope="session")
async def quiet_postgres(servers: Servers) -> AsyncIterator[PostgresServer]:
    """A PostgreSQL that does nothing by itself."""
    async with servers.run({"autovacuum": "off"}) as server:
        yield server


@pytest_asyncio.fixture(loop_scope="session")
async def world(
    api_server: ApiServer, own_api_server: ApiServer, quiet_postgres: PostgresServer, tmp_path: Path
) -> AsyncIterator[SharedWorld]:
    namespace = f"shop-{secrets.token_hex(3)}"
    here = await make_cluster(api_server, namespace, quiet_postgres, tmp_path / "here")
    there = await make_cluster(own_api_server, namespace, quiet_postgres, tmp_path / "there")
    assert here.id != there.id
    yield SharedWorld(here, there, quiet_postgres, tmp_path)
    for cluster in (here, there):
        await remove(cluster.kube)


async def make_cluster(
    server: ApiServer, namespace: str, postgres: PostgresServer, folder: Path, *arguments: str
) -> SharingCluster:
    """Creates a cluster whose controller, not started yet, watches only this namespace."""
    await anyio.Path(folder).mkdir()
    await create_namespace(server, namespace)
    found = await server.request("GET", "/api/v1/namespaces/kube-system")
    controller = Controller(server, postgres.dsn(), folder, "--namespace", namespace, *arguments)
    return SharingCluster(found["metadata"]["uid"], Kube(server, namespace), controller)


async def written(database: Database, *clusters: SharingCluster) -> Json:
    """Returns everything that a contest would change: transactions that wrote to the server, and object versions."""
    return {
        "transactions": await database.fetchval("SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint"),
        "versions": [
            (cluster.id, obj["metadata"]["name"], obj["metadata"]["resourceVersion"])
            for cluster in clusters
            for obj in await cluster.kube.objects()
        ],
    }


async def versions_of_roles(database: Database) -> Mapping[str, str]:
    """Returns row versions that every DDL statement on a role changes, by role name."""
    rows = await database.connection.fetch("SELECT rolname, oid, xmin::text FROM pg_authid WHERE oid >= 16384")
    return {row["rolname"]: f"{row['oid']}/{row['xmin']}" for row in rows}


async def settle(database: Database, *clusters: SharingCluster) -> Json:
    """Waits until nothing is written for long enough that no pending reconcile is left."""
    before = await written(database, *clusters)
    with anyio.fail_after(PATIENCE):
        while True:
            await anyio.sleep(3)  # a look follows each change after 2 s
            now = await written(database, *clusters)
            if now == before:
                return now
            before = now


async def test_the_owning_cluster_repairs_the_role_and_the_other_only_names_the_owner(world: SharedWorld) -> None:
    here, there = world.here, world.there
    async with running(here.controller), running(there.controller), open_database(world.postgres.dsn()) as database:
        await here.kube.apply("app", name="shared", login=True)
        await here.kube.wait_ready("app")
        await there.kube.apply("app", name="shared", login=False, connectionLimit=3)
        words = (f"{here.own}/app", here.id)
        lost = await there.kube.wait_for("app", lambda obj: says(obj, "ClaimedElsewhere", *words), "ClaimedElsewhere")

        before = await settle(database, here, there)
        await anyio.sleep(QUIET_SECONDS)  # nothing may be written in this time
        assert await written(database, here, there) == before

        await database.execute("ALTER ROLE shared NOLOGIN CREATEDB")
        await database.wait_role("shared", lambda role: role["rolcanlogin"] and not role["rolcreatedb"], "repaired")
        owned = await here.kube.wait_for("app", lambda obj: obj["status"].get("driftCount") == 1, "a drift counted")
        await settle(database, here, there)
        claim = await database.claim("shared")
        assert claim is not None
        assert (claim["cluster"], claim["object_uid"], claim["drift_count"]) == (here.id, owned["metadata"]["uid"], 1)
        assert await there.kube.get("app") == lost
        assert "role reconciled" not in there.controller.log


async def test_a_released_role_is_taken_by_another_cluster_only_with_adopt(
    world: SharedWorld,
) -> None:
    here, there = world.here, world.there
    async with running(here.controller), running(there.controller), open_database(world.postgres.dsn()) as database:
        await here.kube.apply("app", name="shared", login=True)
        await here.kube.wait_ready("app")
        await there.kube.apply("app", name="shared", login=True)
        await there.kube.wait_reason("app", "ClaimedElsewhere")
        roles = await versions_of_roles(database)

        await here.kube.delete("app")
        await there.kube.wait_reason("app", "RoleExists")
        claim = await database.claim("shared")
        assert claim is not None
        assert claim["cluster"] == here.id
        assert claim["released_at"] is not None

        await there.kube.patch("app", {"spec": {"adopt": True}})
        await there.kube.wait_ready("app")
        await here.kube.apply("app", name="shared", login=True)
        await here.kube.wait_for("app", lambda obj: says(obj, "ClaimedElsewhere", f"{there.own}/app", there.id), "lost")
        assert await versions_of_roles(database) == roles


async def test_releasing_a_claim_makes_the_waiting_object_ready_without_back_off(
    world: SharedWorld,
) -> None:
    here, there = world.here, world.there
    async with open_database(world.postgres.dsn()) as database:
        async with running(here.controller):
            await here.kube.apply("app", name="shared")
            await here.kube.wait_ready("app")
        async with running(there.controller):
            await there.kube.apply("app", name="shared", adopt=True)
            await there.kube.wait_reason("app", "ClaimedElsewhere")
            await there.controller.back_off(there.kube, "app")
            await world.claims("release", "--cluster", here.id, "--yes")
            await there.kube.wait_ready("app")  # far sooner than by back-off
            claim = await database.claim("shared")
            assert claim is not None
            assert (claim["cluster"], claim["released_at"]) == (there.id, None)


def declared() -> dict[str, Json]:
    """Various roles; none of them may adopt."""
    return {
        "readers": {"name": "readers"},
        "app": {"name": "app", "login": True, "memberOf": [{"role": "readers"}], "comment": "the app"},
        "batch": {"name": "batch", "createdb": True, "parameters": {"work_mem": "64MB"}, "connectionLimit": 3},
        "last": {"name": "last", "deletionPolicy": "Drop", "validUntil": "2099-01-01T00:00:00Z"},
    }


async def test_transferring_claims_to_a_rebuilt_cluster_changes_no_role_and_needs_no_adopt(
    world: SharedWorld,
) -> None:
    lost, rebuilt = world.here, world.there
    async with open_database(world.postgres.dsn()) as database:
        async with running(lost.controller):
            await lost.kube.apply_all(declared())
            await lost.kube.wait_all_ready()
        roles = await versions_of_roles(database)
        async with running(rebuilt.controller):
            await rebuilt.kube.apply_all(declared())
            await rebuilt.kube.wait_all(lambda obj: says(obj, "ClaimedElsewhere", lost.id), "ClaimedElsewhere")
            await rebuilt.kube.apply("squatter", name="app", login=True, adopt=True)
            await rebuilt.kube.wait_for("squatter", lambda obj: says(obj, "ClaimedElsewhere"), "ClaimedElsewhere")

            for name in declared():
                await rebuilt.controller.back_off(rebuilt.kube, name)
            said = await world.claims("transfer", "--from", lost.id, "--to", rebuilt.id, "--yes")
            assert "4 claims" in said
            for name in declared():
                await rebuilt.kube.wait_ready(name)  # far sooner than by back-off
            words = (f"{rebuilt.own}/app",)
            await rebuilt.kube.wait_for("squatter", lambda obj: says(obj, "Conflict", *words), "Conflict")

            assert await versions_of_roles(database) == roles
            await assert_owned(database, rebuilt)
            assert all(obj["status"].get("driftCount", 0) == 0 for obj in await rebuilt.kube.objects())

        # The lost cluster's controller is started again: it reports the new owner, and changes nothing.
        again = Controller(lost.kube.server, world.postgres.dsn(), world.folder, "--namespace", lost.own)
        async with running(again):
            await lost.kube.wait_all(lambda obj: says(obj, "ClaimedElsewhere", rebuilt.id), "ClaimedElsewhere")
            assert await versions_of_roles(database) == roles


async def assert_owned(database: Database, cluster: SharingCluster) -> None:
    """Asserts that this cluster's object, in exactly this namespace, claims each declared role, and no other object
    does.
    """
    namespace = await cluster.kube.server.request("GET", f"/api/v1/namespaces/{cluster.own}")
    for name, spec in declared().items():
        obj, claim = await cluster.kube.get(name), await database.claim(spec["name"])
        assert obj is not None
        assert claim is not None
        owner = (claim["cluster"], claim["namespace_uid"], claim["object"], claim["object_uid"], claim["released_at"])
        assert owner == (cluster.id, namespace["metadata"]["uid"], name, obj["metadata"]["uid"], None)


async def test_claims_transferred_before_their_objects_are_restored_wait_for_them(world: SharedWorld) -> None:
    lost, rebuilt = world.here, world.there
    async with open_database(world.postgres.dsn()) as database:
        async with running(lost.controller):
            await lost.kube.apply_all(declared())
            await lost.kube.wait_all_ready()
        roles = await versions_of_roles(database)
        await world.claims("transfer", "--from", lost.id, "--to", rebuilt.id, "--yes")
        async with running(rebuilt.controller):
            held = "SELECT count(*) FROM pgrole.claim WHERE released_at IS NULL"
            await database.wait_value(held, 0)
            await rebuilt.kube.apply_all(declared())
            await rebuilt.kube.wait_all_ready()
            assert await versions_of_roles(database) == roles
            await assert_owned(database, rebuilt)


async def test_a_cluster_rebuilt_with_the_same_id_takes_over_by_transfers_to_itself(
    api_server: ApiServer, own_api_server: ApiServer, quiet_postgres: PostgresServer, tmp_path: Path
) -> None:
    """Whether an object is restored before the controller starts, or later, once its claim is released."""
    namespace, chosen = f"shop-{secrets.token_hex(3)}", ("--cluster-id", "production")
    lost = await make_cluster(api_server, namespace, quiet_postgres, tmp_path / "lost", *chosen)
    rebuilt = await make_cluster(own_api_server, namespace, quiet_postgres, tmp_path / "rebuilt", *chosen)
    world = SharedWorld(lost, rebuilt, quiet_postgres, tmp_path)
    to_itself = ("transfer", "--from", "production", "--to", "production", "--yes")
    async with open_database(quiet_postgres.dsn()) as database:
        async with running(lost.controller):
            await lost.kube.apply_all({"before": {"login": True}, "later": {"login": True}})
            await lost.kube.wait_all_ready()
        roles = await versions_of_roles(database)
        await rebuilt.kube.apply("before", login=True)
        async with running(rebuilt.controller):
            released = "SELECT array_agg(role_name) FROM pgrole.claim WHERE released_at IS NOT NULL"
            await database.wait_value(released, ["later"])
            await rebuilt.kube.apply("later", login=True)
            await rebuilt.kube.wait_reason("before", "Conflict")
            await rebuilt.kube.wait_reason("later", "RoleExists")
            await world.claims(*to_itself)
            await rebuilt.kube.wait_ready("before")
            await rebuilt.kube.wait_reason("later", "RoleExists")
            await world.claims(*to_itself, "--with-released")
            await rebuilt.kube.wait_ready("later")
            await rebuilt.kube.wait_ready("before")
            assert await versions_of_roles(database) == roles
    for cluster in (lost, rebuilt):
        await remove(cluster.kube)


async def test_a_cluster_with_a_changed_id_keeps_its_roles_and_drift_counts(world: SharedWorld) -> None:
    here = world.here
    renamed = Controller(
        *(here.kube.server, world.postgres.dsn(), world.there.controller.process.log.parent),
        *("--namespace", here.own, "--cluster-id", "production"),
    )
    async with open_database(world.postgres.dsn()) as database:
        async with running(here.controller):
            await here.kube.apply("app", name="app")
            await here.kube.wait_ready("app")
            await database.execute("ALTER ROLE app CREATEDB")
            await here.kube.wait_for("app", lambda obj: obj["status"].get("driftCount") == 1, "a drift counted")
        await world.claims("transfer", "--from", here.id, "--to", "production", "--yes")
        async with running(renamed):
            await database.wait_value("SELECT namespace_uid <> '' FROM pgrole.claim WHERE role_name = 'app'", True)
            claim = await database.claim("app")
            assert claim is not None
            assert (claim["cluster"], claim["drift_count"]) == ("production", 1)


async def test_with_a_cluster_id_an_installation_for_one_namespace_needs_no_rights_outside_it(
    own_api_server: ApiServer, quiet_postgres: PostgresServer, tmp_path: Path
) -> None:
    cluster = await make_cluster(own_api_server, f"team-{secrets.token_hex(3)}", quiet_postgres, tmp_path / "admin")
    dsn, arguments = quiet_postgres.dsn(), ("--namespace", cluster.own)
    without = Controller(own_api_server.kubeconfig_of("pgrole-controller"), dsn, tmp_path, *arguments)
    await without.start()
    with anyio.fail_after(PATIENCE):
        assert await without.process.wait() == 1
    for word in ("kube-system", "forbidden", "--cluster-id"):
        assert word in without.log
    assert "Traceback" not in without.log

    (tmp_path / "team").mkdir()
    async with (
        running(Controller(own_api_server, dsn, tmp_path / "team", *arguments, "--cluster-id", "team")),
        open_database(dsn) as database,
    ):
        await cluster.kube.apply("app", name="app", login=True)
        await cluster.kube.wait_ready("app")
        await database.execute("ALTER ROLE app CREATEROLE")
        await cluster.kube.wait_for("app", lambda obj: is_ready(obj) and obj["status"].get("driftCount") == 1, "repair")
        claim = await database.claim("app")
        assert claim is not None
        assert (claim["cluster"], claim["namespace"]) == ("team", cluster.own)
        await cluster.kube.wait_event("DriftCorrected")
    await remove(cluster.kube)
