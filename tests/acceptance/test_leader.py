"""Two processes of one installation: one leads, and the other is a standby that takes over when the leader fails."""

import random
import signal
from collections.abc import AsyncIterator
from datetime import datetime
from functools import partial
from typing import Literal

import anyio
import pytest
import pytest_asyncio

from pgrole_controller.controller.app import RECONCILE_SECONDS
from pgrole_controller.local.postgres import Stop
from pgrole_controller.local.process import reached
from pgrole_controller.postgres.connection import Endpoint, connect
from pgrole_controller.postgres.schema import install
from tests.acceptance.replicas import (
    LEADS,
    LEASES,
    ControllerReplica,
    Replicas,
    Say,
    name_of,
    replicas,
    side_by_side,
)
from tests.acceptance.servers import pgservers
from tests.acceptance.wire import Wire, wire
from tests.acceptance.world import PATIENCE, Stage, is_ready
from tests.servers import Servers

#: A leader that could not renew its Lease changes nothing after this time (10 s), with some tolerance.
OWN_CLOCK_SECONDS = 12.0

#: Duration of the Lease, in seconds.
DURATION = 15.0
#: Tolerance beyond documented times, in seconds: the machine may be busy.
SLACK = 20.0

GIVEN_UP, LOST = "lease released", "no longer leading"
#: How often to try a handover that should be immediate, since the machine may be busy at that moment.
ATTEMPTS = 4

#: How many roles have this connection limit.
LIMITED = "SELECT count(*) FROM pg_roles WHERE rolname LIKE 'app-%' AND rolconnlimit = {}"


#: Measurements of each handover; `-s` shows them.
@pytest_asyncio.fixture(loop_scope="session")
async def pair(stage: Stage) -> AsyncIterator[Replicas]:
    async with replicas(stage) as made:
        yield made


async def lost(replica: ControllerReplica, times: int = 1) -> None:
    await replica.controller.wait_count(LOST, times)


async def test_one_replica_leads_and_the_other_is_a_ready_connected_standby(pair: Replicas) -> None:
    await make_ready(pair)
    assert (await pair.read_lease())["spec"]["holderIdentity"].startswith("first_")
    for replica, leading in ((pair.first, True), (pair.second, False)):
        said = {"status": 200, "ready": True, "synced": True, "leading": leading, "servers": {"default": "connected"}}
        await replica.wait_readiness(said)
    purposes = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'replica_second'"
    await pair.database.wait_value(purposes, 3)
    assert pair.second.wrote() == []
    assert pair.second.changed() == (0, 0)


@pytest.mark.slow
async def test_a_standby_writes_nothing(pair: Replicas) -> None:
    """It runs alone while another holder has the Lease, so any write would be its own."""
    kube = pair.stage.kube
    async with connect(Endpoint(pair.stage.postgres.dsn()), "administrator") as connection:
        await install(connection)
    spec = {"holderIdentity": "elsewhere", "leaseDurationSeconds": 60}
    body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": pair.lease}, "spec": spec}
    await kube.server.request("POST", LEASES, body)
    await kube.apply_secret("app", password="secret")
    await kube.apply("app", login=True, password={"secretRef": {"name": "app"}}, deletionPolicy="Drop")
    await pair.second.start()
    await pair.second.stands_by()
    await kube.apply("late", login=True)
    await pair.second.controller.wait_log("listed")
    await kube.patch_secret("app", {"metadata": {"labels": {"changed": "yes"}}})
    await kube.delete("late")
    await pair.database.execute("SELECT pgrole.observe()")
    await pair.second.wait_readiness({"status": 200})
    began = anyio.current_time()
    assert await pair.second.end() == 0
    assert anyio.current_time() - began < 2.0 + SLACK
    assert pair.second.wrote() == []
    assert pair.second.changed() == (0, 0)
    assert await pair.database.fetchval("SELECT count(*) FROM pgrole.leader") == 0
    assert await pair.database.role("app") is None
    assert (await kube.get("app") or {}).get("status", {}).get("conditions") is None


async def test_a_leader_hands_over_immediately_on_sigterm(pair: Replicas, say: Say) -> None:
    await make_ready(pair)
    old, new = pair.first, pair.second
    given_up: list[float] = []
    for number in range(1, ATTEMPTS + 1):
        gave_up, led = old.controller.log.count(GIVEN_UP), new.controller.log.count(LEADS)
        began = anyio.current_time()
        old.controller.process.send(signal.SIGTERM)
        await old.controller.wait_count(GIVEN_UP, gave_up + 1)
        given_up.append(anyio.current_time() - began)
        await new.leads(led + 1)
        say("SIGTERM, until the other works", anyio.current_time() - began)
        await pair.drift("app")
        took = anyio.current_time() - began
        say("SIGTERM, until a drift after that is repaired", took)
        assert took < 1.0 + SLACK
        with anyio.fail_after(PATIENCE):
            assert await old.controller.process.wait() == 0
        assert "Traceback" not in old.controller.log
        spec = (await pair.read_lease())["spec"]
        assert spec["holderIdentity"].startswith(f"{name_of(new)}_")
        assert spec["leaseTransitions"] >= number
        if min(given_up) < RECONCILE_SECONDS:
            return
        stood_by = old.stood_by
        await old.start()
        await old.stands_by(stood_by + 1)
        old, new = new, old
    pytest.fail(f"each stop waited as if for a reconcile, but none was in progress: {given_up}")


@pytest.mark.slow
async def test_a_leader_stopped_during_its_work_leaves_nothing_undone(pair: Replicas) -> None:
    kube = pair.stage.kube
    await pair.start()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(kube.apply_all, {f"app-{number}": {"login": True} for number in range(40)})
        await pair.database.wait_value("SELECT count(*) > 5 FROM pgrole.claim", True)
        assert await pair.first.end() == 0
    await kube.wait_all_ready()
    began = anyio.current_time()
    assert await pair.second.end() == 0
    assert anyio.current_time() - began < 10.0 + SLACK


async def make_ready(pair: Replicas) -> None:
    """Starts both replicas, and declares a role `app`."""
    await pair.start()
    await pair.stage.kube.apply("app", login=True)
    await pair.stage.kube.wait_ready("app")


@pytest.mark.slow
async def test_a_killed_paused_or_disconnected_leader_is_replaced_when_its_lease_expires(
    stage: Stage, servers: Servers, say: Say
) -> None:
    """The former leader changes nothing after that, and becomes a standby if it can."""

    async def is_killed(own: Stage) -> None:
        async with replicas(own) as pair:
            await make_ready(pair)
            await pair.first.end(signal.SIGKILL)
            before = (await pair.read_lease())["spec"]
            took = await drift_until_led(pair, pair.second)
            say("SIGKILL, until a drift after that is repaired", took)
            assert took < DURATION + 1.0 + SLACK
            taken = (await pair.read_lease())["spec"]["acquireTime"]
            renewed = datetime.fromisoformat(before["renewTime"])
            assert (datetime.fromisoformat(taken) - renewed).total_seconds() >= DURATION
            # Now no other is left: the one that is started waits until the Lease of its predecessor expires.
            await pair.second.end(signal.SIGKILL)
            await pair.second.start()
            assert await drift_until_led(pair, pair.second) < DURATION + SLACK * 2

    await side_by_side(
        stage,
        servers,
        is_killed,
        is_paused,
        partial(is_cut_off, say),
    )


async def drift_until_led(pair: Replicas, new: ControllerReplica) -> float:
    """Makes a drift that the next leader repairs; returns the seconds. Asks the database only once it leads."""
    began, led = anyio.current_time(), new.controller.log.count(LEADS)
    await pair.database.execute("ALTER ROLE app SUPERUSER")
    await new.leads(led + 1)
    await pair.database.wait_role("app", lambda role: not role["rolsuper"], "NOSUPERUSER")
    return anyio.current_time() - began


async def is_paused(own: Stage) -> None:
    """Pauses the leader for 30 s with work to do; when it resumes, the other one has done other work."""
    kube = own.kube
    async with replicas(own) as pair:
        await pair.start()
        await kube.apply_all({f"app-{number}": {"login": True, "connectionLimit": 1} for number in range(10)})
        await kube.wait_all_ready()
        pair.first.pause()
        ends = anyio.current_time() + 30.0
        # The paused one receives both, and must not act on either: drift, and a changed spec.
        await pair.database.execute("; ".join(f'ALTER ROLE "app-{number}" CONNECTION LIMIT 7' for number in range(10)))
        await pair.second.leads(1, DURATION + PATIENCE)
        await kube.apply_all({f"app-{number}": {"login": True, "connectionLimit": 2} for number in range(10)})
        await pair.database.wait_value(LIMITED.format(2), 10)
        await kube.wait_all_ready()
        await anyio.sleep(ends - anyio.current_time())
        await pair.second.controller.rest()
        audited, logged = pair.audited(), pair.logged()
        written = [obj["metadata"]["resourceVersion"] for obj in await kube.objects()]
        stood_by = pair.first.stood_by
        pair.first.resume()
        await lost(pair.first)
        await pair.first.stands_by(stood_by + 1)
        assert pair.first.wrote(audited) == []
        sent, refused = pair.first.changed(logged)
        assert sent == refused
        assert [obj["metadata"]["resourceVersion"] for obj in await kube.objects()] == written
        assert await pair.database.fetchval(LIMITED.format(2)) == 10
        await pair.second.end()
        await pair.first.leads(2)
        await pair.drift("app-0")


async def is_cut_off(say: Say, own: Stage) -> None:
    """Cuts each leader off from the API server only: requests of the first hang, those of the second are refused."""
    host, _, port = own.kube.server.url.removeprefix("https://").partition(":")
    async with (
        wire(host, int(port)) as of_first,
        wire(host, int(port)) as of_second,
        replicas(
            own, url=f"https://127.0.0.1:{of_first.port}", second_url=f"https://127.0.0.1:{of_second.port}"
        ) as pair,
    ):
        await make_ready(pair)
        await lose_api_server(say, pair, of_first, "freeze", pair.first, pair.second)
        await lose_api_server(say, pair, of_second, "cut", pair.second, pair.first)
        await pair.first.end()
        await pair.second.wait_readiness({"leading": True})
        await pair.drift("app")


async def lose_api_server(
    say: Say,
    pair: Replicas,
    between: Wire,
    how: Literal["freeze", "cut"],
    old: ControllerReplica,
    new: ControllerReplica,
) -> None:
    """Takes the API server from the leader, while there is always drift to repair, and gives it back."""
    led, stood_by, gave_up = new.controller.log.count(LEADS), old.stood_by, old.controller.log.count(LOST)
    (between.freeze if how == "freeze" else between.cut)()
    began, logged = anyio.current_time(), pair.logged()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(keep_drifting, pair, began + DURATION + 2.0)
        await new.leads(led + 1, DURATION + PATIENCE)
        replaced = anyio.current_time() - began
    say(f"API server away ({how}), until the other leads", replaced)
    # The old one enforced what was applied until then. The database never accepted the writes of both.
    assert pair.writers(logged) == [name_of(old), name_of(new)]
    await pair.drift("app")
    audited, logged = pair.audited(), pair.logged()
    between.mend()
    await lost(old, gave_up + 1)
    await old.stands_by(stood_by + 1, PATIENCE * 2)
    # An Event about its work as the leader may have been on its way.
    assert [one for one in old.wrote(audited) if one[1] != "events"] == []
    assert name_of(old) not in pair.writers(logged)


async def keep_drifting(pair: Replicas, until: float) -> None:
    """Makes drift continuously, so that the leader always has something to repair."""
    while anyio.current_time() < until:
        await pair.database.execute("SELECT pgrole.lock_changes(); ALTER ROLE app SUPERUSER")
        await anyio.sleep(0.2)


@pytest.mark.slow
async def test_the_database_refuses_a_former_leader_that_still_believes_it_leads(pair: Replicas) -> None:
    """It is paused at a random moment of its work, and resumed after the test took the Lease from it."""
    draw = random.Random(6)
    kube, database = pair.stage.kube, pair.database
    await pair.start()
    names = [f"app-{number}" for number in range(30)]
    old, new, led = pair.first, pair.second, {"first": 1, "second": 0}
    for limit in range(1, 3):
        async with anyio.create_task_group() as tasks:
            specs = {name: {"login": True, "connectionLimit": 2 * limit} for name in names}
            tasks.start_soon(kube.apply_all, specs)
            await anyio.sleep(draw.uniform(0.0, 0.8))
            old.pause()
        await pair.edit_lease(holderIdentity="")
        led[name_of(new)] += 1
        await new.leads(led[name_of(new)])
        logged = pair.logged()
        await kube.apply_all({name: {"login": True, "connectionLimit": 2 * limit + 1} for name in names})
        stood_by = old.stood_by
        old.resume()
        await lost(old, led[name_of(old)])
        await old.stands_by(stood_by + 1)
        await database.wait_value(LIMITED.format(2 * limit + 1), len(names))
        await kube.wait_all_ready()
        sent, refused = old.changed(logged)
        assert sent == refused
        old, new = new, old


@pytest.mark.slow
async def test_a_leader_killed_before_it_takes_the_lead_with_its_number_delays_no_other(pair: Replicas) -> None:
    await pair.stage.kube.apply("app", login=True)
    async with connect(Endpoint(pair.stage.postgres.dsn()), "administrator") as connection:
        await install(connection)
    async with pair.stage.database() as locker:
        await locker.execute("BEGIN; SELECT pgrole.lock_changes()")
        await pair.first.start()
        await pair.database.wait_value("SELECT count(*) FROM pgrole.leader WHERE drawn > 0 AND number = 0", 1)
        await pair.second.start()
        await pair.second.stands_by()
        await pair.first.end(signal.SIGKILL)
        await pair.edit_lease(holderIdentity="")
        await locker.execute("COMMIT")
    await pair.second.leads()
    await pair.stage.kube.wait_ready("app")
    assert await pair.database.fetchval("SELECT holder FROM pgrole.leader WHERE number = drawn") is not None


@pytest.mark.slow
async def test_the_same_replica_leads_after_its_lease_was_deleted_and_after_a_database_restart(pair: Replicas) -> None:
    await make_ready(pair)
    await delete_the_lease(pair)
    await restart_the_database(pair)


async def delete_the_lease(pair: Replicas) -> None:
    uid = (await pair.read_lease())["metadata"]["uid"]
    await pair.stage.kube.server.request("DELETE", f"{LEASES}/{pair.lease}")

    async def is_there() -> bool:
        found = await pair.stage.kube.server.request("GET", LEASES)
        again = [one for one in found["items"] if one["metadata"]["name"] == pair.lease]
        return any(one["metadata"]["uid"] != uid for one in again)

    assert await reached(is_there, 2.0 + SLACK)
    assert (await pair.read_lease())["spec"]["holderIdentity"].startswith("first_")
    await pair.drift("app")
    assert LOST not in pair.first.controller.log
    assert "session with PostgreSQL begins" not in pair.second.controller.log


async def restart_the_database(pair: Replicas) -> None:
    transitions = (await pair.read_lease())["spec"]["leaseTransitions"]
    await pair.stage.postgres.stop(Stop.IMMEDIATE)
    await pair.second.controller.wait_log("session with PostgreSQL ended")
    await pair.stage.postgres.start()
    await pair.first.leads(2)
    await pair.second.stands_by(2)
    assert pair.second.wrote() == []
    await pair.second.wait_readiness({"servers": {"default": "connected"}})
    spec = (await pair.read_lease())["spec"]
    assert (spec["holderIdentity"].split("_")[0], spec["leaseTransitions"]) == ("first", transitions)
    async with pair.stage.database() as database:
        await database.execute("ALTER ROLE app SUPERUSER")
        await database.wait_role("app", lambda role: not role["rolsuper"], "NOSUPERUSER")


@pytest.mark.slow
async def test_a_standby_takes_over_in_every_mode(stage: Stage, servers: Servers) -> None:
    """Including modes in which the database cannot tell who leads: then the former leader's clock decides. Every other
    version of PostgreSQL combines them differently.
    """
    modes = (
        (("--detection", "poll", "--poll-interval", "200ms"), "detection=Poll"),
        (("--detection", "resync", "--resync-interval", "2s"), "detection=Resync"),
    )
    own, status = modes if servers.version % 2 == 0 else reversed(modes)
    await side_by_side(
        stage,
        servers,
        partial(hand_over, own[0], (own[1], "claims=Database")),
        partial(hand_over, ("--install", "false", *status[0]), (status[1], "claims=Status")),
    )


async def hand_over(arguments: tuple[str, ...], said: tuple[str, ...], own: Stage) -> None:
    async with replicas(own, *arguments) as pair:
        await make_ready(pair)
        made = await own.kube.wait_ready("app")
        pair.first.pause()
        paused = anyio.current_time()
        await pair.edit_lease(holderIdentity="")
        await pair.second.leads()
        for words in said:
            assert words in pair.second.controller.log, words
        logged = pair.logged()
        await own.kube.apply("app", login=True, connectionLimit=3)
        await own.kube.wait_ready("app")
        # Normally a Lease is taken only after the former leader gave up by its own clock; here it was taken earlier.
        await anyio.sleep_until(paused + OWN_CLOCK_SECONDS)
        stood_by = pair.first.stood_by
        pair.first.resume()
        await lost(pair.first)
        await pair.first.stands_by(stood_by + 1)
        assert (await pair.database.role("app") or {})["rolconnlimit"] == 3
        sent, refused = pair.first.changed(logged)
        assert sent == refused
        await pair.drift("app")
        found = await own.kube.wait_ready("app")
        assert found["status"]["role"]["oid"] == made["status"]["role"]["oid"]


@pytest.mark.slow
async def test_a_standby_follows_declared_servers(stage: Stage) -> None:
    async with pgservers(stage.kube.server) as declared, replicas(stage) as pair:
        await pair.start()
        await declared.apply("other", stage.postgres)
        await pair.second.controller.wait_log("server added  server=other")

        async def knows_both() -> bool:
            said = await pair.second.readiness()
            return bool(said["status"] == 200) and set(said["servers"]) == {"default", "other"}

        assert await reached(knows_both, PATIENCE)
        await declared.apply_credentials("other", "replica_first", "wrong")
        await pair.second.controller.wait_log("server changed  server=other")
        await declared.delete("other")
        await pair.second.controller.wait_log("server removed  server=other")
        assert pair.second.wrote() == []
        await stage.kube.apply("app", login=True)
        await stage.kube.wait_ready("app")
        await pair.first.end()
        await pair.second.leads()
        await pair.drift("app")
        assert is_ready(await stage.kube.wait_ready("app"))
