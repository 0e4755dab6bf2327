"""Kubernetes is unreachable: one process at a time enforces the last applied state, and nothing else happens."""

import signal
import statistics
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

from pgrole_controller.local.apiserver import ApiServer
from pgrole_controller.local.binaries import Binaries
from pgrole_controller.local.manifests import apply_crds
from pgrole_controller.local.process import reached
from tests.acceptance.replicas import Replicas, Say, replicas
from tests.acceptance.scraped_metrics import wait_figures
from tests.acceptance.service_account import serving
from tests.acceptance.wire import Wire, wire
from tests.acceptance.world import (
    PATIENCE,
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
from tests.api_server_pool import ApiServerPool
from tests.servers import Servers

pytestmark = pytest.mark.slow

#: How long Kubernetes is unreachable, in seconds: twice as long as a standby waits for a heartbeat.
AWAY = 40.0
#: Tolerance beyond documented times, in seconds: the machine may be busy.
SLACK = 20.0
#: Number of roles for `repairs`: enough that none drifts five times within a minute, which would be a contest.
ROLES = 20
#: Number of roles where no more than these drift.
FEW = 3
#: Pause between two drifts, in seconds: repairs do not depend on each other.
PAUSE = 1.0


@asynccontextmanager
async def cluster(stage: Stage, roles: int = FEW, *arguments: str) -> AsyncIterator[tuple[Replicas, tuple[Wire, Wire]]]:
    """Two replicas, each with its own wire to the API server; the first leads, and everything is Ready."""
    host, _, port = stage.kube.server.url.removeprefix("https://").partition(":")
    async with (
        wire(host, int(port)) as one,
        wire(host, int(port)) as other,
        replicas(
            stage, *arguments, url=f"https://127.0.0.1:{one.port}", second_url=f"https://127.0.0.1:{other.port}"
        ) as pair,
    ):
        await pair.start()
        await declare(stage, roles)
        yield pair, (one, other)


async def declare(stage: Stage, roles: int) -> None:
    await stage.kube.apply_secret("app", password="first password")
    password = {"secretRef": {"name": "app"}}
    specs: dict[str, Json] = {f"app-{number}": {"login": True, "connectionLimit": 5} for number in range(roles)}
    specs["secured"] = {"login": True, "password": password}
    specs["dropped"] = {"login": True, "comment": "is dropped and comes back", "password": password}
    await stage.kube.apply_all(specs)
    await stage.kube.wait_all_ready()


async def unconfirmed(pair: Replicas, times: int = 1) -> None:
    await pair.first.controller.wait_count("leadership not confirmed", times)


async def no_leader(pair: Replicas) -> None:
    await wait_figures(pair.first.controller, lambda found: found.get("pgrole_leader") == 0, "no leader")


async def enforced_on_passwords(database: Database) -> None:
    """Guesses a password and drops a role; waits until both are as last applied."""
    await database.execute("ALTER ROLE secured PASSWORD 'guessed'")
    await database.wait_password("secured", "first password")
    await database.execute("DROP ROLE dropped")
    await database.wait_password("dropped", "first password")


async def repairs(pair: Replicas, until: float, roles: int = ROLES, pause: float = PAUSE) -> list[float]:
    """Makes one role after another drift, each once the previous one is repaired; returns the seconds of each
    repair.
    """
    took: list[float] = []
    async with pair.stage.database() as database:
        while anyio.current_time() < until:
            name = f"app-{len(took) % roles}"
            began = anyio.current_time()
            await database.execute(f'ALTER ROLE "{name}" CONNECTION LIMIT 99')
            while await database.fetchval("SELECT rolconnlimit FROM pg_roles WHERE rolname = $1", name) == 99:
                await anyio.sleep(0.01)
                assert anyio.current_time() - began < PATIENCE * 2
            took.append(anyio.current_time() - began)
            await anyio.sleep(pause)
    return took


async def drifts_counted(kube: Kube, corrected: int) -> None:
    """Waits until the status counts every drift: all objects were Ready meanwhile, and stay so."""
    counted: dict[str, int] = {}

    async def are_counted() -> bool:
        counted.update({obj["metadata"]["name"]: obj["status"].get("driftCount", 0) for obj in await kube.objects()})
        apps = sum(counted[f"app-{number}"] for number in range(ROLES))
        return (counted["secured"], counted["dropped"], apps) == (1, 1, corrected)

    assert await reached(are_counted, PATIENCE), f"{corrected} drifts corrected, counted: {counted}"


async def everything_is_reported(kube: Kube, pair: Replicas, took: list[float]) -> None:
    """Waits until status and an Event report all these drifts: the first replica led all the time."""
    await drifts_counted(kube, len(took))
    await kube.wait_event("DriftCorrected", about="secured")
    assert "no longer leading" not in pair.first.controller.log
    assert pair.second.changed() == (0, 0)


async def test_without_kubernetes_the_leader_enforces_the_last_applied_state_and_nothing_else(
    stage: Stage, say: Say
) -> None:
    """For `AWAY` seconds, with an API server that hangs. One that accepts no connections:
    `test_an_api_server_that_is_killed_and_restarted_interrupts_no_repair`.
    """
    kube = stage.kube
    async with cluster(stage, ROLES) as (pair, wires):
        logged = pair.logged()
        for one in wires:
            one.freeze()
        until = anyio.current_time() + AWAY
        # The controller does not know what is declared meanwhile; it waits.
        await kube.apply("late", login=True)
        await kube.apply("app-0", login=True, connectionLimit=7)
        await kube.apply("doomed", login=True, deletionPolicy="Drop")
        took = await repairs(pair, until - AWAY / 2)
        await unconfirmed(pair)
        await no_leader(pair)
        await enforced_on_passwords(pair.database)
        took += await repairs(pair, until)
        assert await pair.database.role("late") is None
        assert pair.writers(logged) == ["first"]
        say(f"away: drift repaired, p50 of {len(took)}", statistics.median(took))
        say("away: drift repaired, p99", sorted(took)[int(len(took) * 0.99)])
        say("away: drift repaired, longest", max(took))
        assert max(took) < SLACK
        for one in wires:
            one.mend()
        began = anyio.current_time()
        await pair.first.controller.wait_log("leadership confirmed again")
        await pair.database.wait_role("late", lambda role: role["rolcanlogin"], "LOGIN")
        await pair.database.wait_role("app-0", lambda role: role["rolconnlimit"] == 7, "CONNECTION LIMIT 7")
        await kube.wait_all_ready()
        say("away: back, until everything is reported", anyio.current_time() - began)
        await everything_is_reported(kube, pair, took)
        await kube.delete("doomed")
        await kube.wait_gone("doomed")


async def test_without_kubernetes_a_standby_replaces_a_killed_leader_also_for_privileges(
    stage: Stage, say: Say
) -> None:
    """The leader's connections are refused, the API server of the standby hangs. The other way round for the standby:
    `standby_replaces_it`.
    """
    async with cluster(stage, FEW, "--databases-detection=auto") as (pair, wires):
        await pair.database.execute("CREATE DATABASE shop")
        async with open_database(stage.postgres.dsn(database="shop")) as shop:
            await shop.execute("CREATE SCHEMA app; CREATE TABLE app.orders (id int)")
            read = {"database": "shop", "schemas": [{"name": "app", "access": ["Read"]}]}
            await stage.kube.apply("reader", name="reader", privileges=[read])
            await stage.kube.wait_ready("reader")
            await leader_is_killed(stage, pair, wires, shop, say)


async def leader_is_killed(stage: Stage, pair: Replicas, wires: tuple[Wire, Wire], shop: Database, say: Say) -> None:
    logged = pair.logged()
    wires[0].cut()
    wires[1].freeze()
    await unconfirmed(pair)
    await pair.database.execute("ALTER ROLE secured PASSWORD 'guessed'")
    await pair.database.wait_password("secured", "first password")
    await privileges_kept(shop)
    await pair.first.end(signal.SIGKILL)
    gap = await pair.drift("app-1", PATIENCE * 2)
    say("away, leader killed: the gap", gap)
    assert gap < 20.0 + SLACK
    # It has read no Secret: it knows only the password verifier that the database held after its first reconcile.
    await pair.second.controller.wait_log(f"decision made  object={stage.kube.namespace}/secured")
    await pair.second.controller.wait_log(f"reconcile ends  object={stage.kube.namespace}/secured")
    await pair.database.execute("ALTER ROLE secured PASSWORD 'guessed again'")
    await pair.database.wait_password("secured", "first password")
    await privileges_kept(shop)
    assert pair.writers(logged) == ["first", "second"]
    assert "session with PostgreSQL ended" not in pair.second.controller.log
    await pair.first.start()  # knows nothing: it changes nothing, and reports nothing
    await anyio.sleep(5.0)
    for one in wires:
        one.mend()
    await stage.kube.apply("app-2", login=True, connectionLimit=8)
    await pair.database.wait_role("app-2", lambda role: role["rolconnlimit"] == 8, "CONNECTION LIMIT 8")
    await stage.kube.wait_all_ready()
    assert len([one for one in pair.writers(logged) if one == "first"]) <= 2


async def privileges_kept(shop: Database) -> None:
    await shop.execute("GRANT DELETE ON app.orders TO reader")
    await shop.wait_value("SELECT has_table_privilege('reader', 'app.orders', 'DELETE')", False)


async def test_a_standby_that_cannot_reach_kubernetes_does_not_replace_a_leader_that_can(stage: Stage) -> None:
    async with cluster(stage) as (pair, (_, wire_of_second)):
        logged = pair.logged()
        wire_of_second.freeze()
        await pair.second.controller.wait_log("lease not acquired, trying again", PATIENCE * 2)
        await repairs(pair, anyio.current_time() + 20.0, FEW, 2.0)
        assert pair.writers(logged) == ["first"]
        assert "enforcing" not in pair.second.controller.log
        wire_of_second.mend()
        await pair.first.end()
        await pair.second.leads()


async def test_an_api_server_that_is_killed_and_restarted_interrupts_no_repair(
    binaries: Binaries, servers: Servers, stage: Stage, say: Say
) -> None:
    async with serving(binaries) as server:
        await apply_crds(server)
        await api_server_is_killed(server, servers, stage, say)


async def api_server_is_killed(own_api_server: ApiServer, servers: Servers, stage: Stage, say: Say) -> None:
    kube = await make_kube(own_api_server)
    folder = stage.folder / "own"
    folder.mkdir()
    async with servers.run() as postgres:
        own = Stage(kube, postgres, folder)
        async with replicas(own) as pair:
            await pair.start()
            await declare(own, ROLES)
            logged = pair.logged()
            await own_api_server.kill()
            took = await repairs(pair, anyio.current_time() + 20.0)
            await unconfirmed(pair)
            await no_leader(pair)
            await enforced_on_passwords(pair.database)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(own_api_server.start)
                took += await repairs(pair, anyio.current_time() + 15.0)
            say("API server killed and started: longest repair", max(took))
            assert max(took) < SLACK
            await pair.first.controller.wait_log("leadership confirmed again")
            assert pair.writers(logged) == ["first"]
            await kube.wait_all_ready()
            await everything_is_reported(kube, pair, took)
            await pair.second.wait_readiness({"status": 200, "synced": True, "leading": False})
            await own_api_server.kill()
            await standby_replaces_it(pair, say)


async def standby_replaces_it(pair: Replicas, say: Say) -> None:
    """Kills the leader as well. The connections of the standby are refused."""
    logged = pair.logged()
    await unconfirmed(pair, 2)
    await pair.first.end(signal.SIGKILL)
    gap = await pair.drift("app-1", PATIENCE * 2)
    say("API server killed, leader killed: the gap", gap)
    assert gap < 20.0 + SLACK
    assert pair.writers(logged) == ["second"]


async def test_revoked_rights_end_enforcement_without_kubernetes(api_servers: ApiServerPool, stage: Stage) -> None:
    """An administrator stops the controller this way."""
    async with api_servers.lend() as server:
        await apply_crds(server)
        kube = await make_kube(server)
        await rights_taken_away(Stage(kube, stage.postgres, stage.folder))


async def rights_taken_away(own: Stage) -> None:
    server, kube = own.kube.server, own.kube
    async with cluster(own) as (pair, wires):
        for one in wires:
            one.cut()
        await unconfirmed(pair)
        await pair.drift("app-1")
        path = "/apis/rbac.authorization.k8s.io/v1/namespaces/pgrole-system/rolebindings"
        for binding in (await server.request("GET", path))["items"]:
            if kube.namespace in binding["metadata"]["name"]:
                await server.request("DELETE", f"{path}/{binding['metadata']['name']}")
        for one in wires:
            one.mend()
        await pair.first.controller.wait_log("lease not renewed", PATIENCE)

        async def is_refused() -> bool:
            return "Forbidden" in pair.first.controller.log and "Forbidden" in pair.second.controller.log

        assert await reached(is_refused, PATIENCE)
        await pair.first.controller.wait_log("no longer leading")
        await pair.database.execute('ALTER ROLE "app-1" CONNECTION LIMIT 99')
        await anyio.sleep(20.0)  # longer than a standby would wait
        assert (await pair.database.role("app-1") or {})["rolconnlimit"] == 99


async def test_a_role_dropped_without_kubernetes_gets_its_password_when_it_is_back(stage: Stage) -> None:
    """Also from a process that never set the password, and may not read it."""
    kube, (host, _, port) = stage.kube, stage.kube.server.url.removeprefix("https://").partition(":")
    async with (
        wire(host, int(port)) as one,
        replicas(stage, url=f"https://127.0.0.1:{one.port}") as pair,
    ):
        await pair.database.execute(
            "ALTER ROLE replica_first NOSUPERUSER CREATEROLE; GRANT CREATE ON DATABASE postgres TO replica_first; "
            "GRANT SELECT (oid, xmin) ON pg_authid TO replica_first"
        )
        await kube.apply_secret("source", password="ours")
        await kube.apply("app", login=True, connectionLimit=5, password={"secretRef": {"name": "source"}})
        await pair.first.start()
        await kube.wait_ready("app")
        await pair.first.end()
        await pair.first.start()
        await pair.database.execute("ALTER ROLE app CONNECTION LIMIT 9")
        await pair.database.wait_role("app", lambda role: role["rolconnlimit"] == 5, "CONNECTION LIMIT 5")
        one.cut()
        await unconfirmed(pair)
        await pair.database.execute("DROP ROLE app")
        await pair.database.wait_role("app", lambda role: role["rolconnlimit"] == 5, "CONNECTION LIMIT 5")
        assert await pair.database.verifier("app") is None
        one.mend()
        await pair.database.wait_password("app", "ours")
        await kube.wait_ready("app")


@pytest.mark.parametrize("arguments", [(), ("--install", "false", "--poll-interval", "200ms")], ids=["watch", "poll"])
async def test_a_superuser_suspends_all_changes_with_a_setting_of_the_home_database(
    stage: Stage, arguments: tuple[str, ...]
) -> None:
    kube = stage.kube
    controller = Controller(kube.server, stage.postgres.dsn(), stage.folder, "--namespace", kube.namespace, *arguments)
    async with stage.database() as database, running(controller):
        await kube.apply("app", login=True)
        await kube.apply("secured", password={"generate": {}}, connectionSecret={"name": "delivered"})
        await kube.wait_all_ready()
        before = (await kube.wait_secret("delivered"))["text"]["password"]
        await database.execute("ALTER DATABASE postgres SET pgrole.suspend = on")
        await kube.patch("secured", {"metadata": {"annotations": {"pgrole.dev/rotate": "1"}}})
        await kube.wait_for("secured", lambda obj: says(obj, "Suspended", "pgrole.suspend"), "Suspended")
        await database.execute("ALTER ROLE app SUPERUSER")
        await kube.wait_for("app", lambda obj: says(obj, "Suspended", "pgrole.suspend"), "Suspended")
        await kube.apply("other", login=True)
        await kube.wait_for("other", lambda obj: says(obj, "Suspended", "pgrole.suspend"), "Suspended")
        assert await database.role("other") is None
        assert (await database.role("app") or {})["rolsuper"]
        assert (await kube.wait_secret("delivered"))["text"]["password"] == before
        await database.execute("ALTER DATABASE postgres RESET pgrole.suspend")
        await kube.wait_all_ready()
        assert not (await database.role("app") or {})["rolsuper"]
        secret = await kube.wait_secret("delivered", lambda held: held["text"]["password"] != before, "another")
        await database.wait_password("secured", secret["text"]["password"])
