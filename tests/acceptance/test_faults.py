"""PostgreSQL and the API server stop, crash, freeze and lose connections: nothing is lost, and status reports it."""

import re

import anyio
import asyncpg
import pytest

from pgrole_controller.controller.status_writer import WRITE_SECONDS, WRITERS
from pgrole_controller.local.binaries import Binaries
from pgrole_controller.local.manifests import apply_crds
from pgrole_controller.local.process import reached
from tests.acceptance.scraped_metrics import scrape
from tests.acceptance.service_account import serving
from tests.acceptance.shell import blocks, make_shell
from tests.acceptance.world import (
    PATIENCE,
    Controller,
    Database,
    Kube,
    Stage,
    condition,
    is_ready,
    make_kube,
    running,
    says,
)

WATCH_FAILED = "watch failed, trying again"
#: Number of attempts on a server that refuses connections, at 200 ms each: PATIENCE allows five times as many.
ATTEMPTS = 40
#: Maximum number of log lines about them and the beginning of the outage.
TOLD = 5

NO_SESSION = re.compile(r"^.*WARN\S*.*(?:no session with PostgreSQL|session with PostgreSQL ended).*$", re.MULTILINE)

OUTAGES = ["stopped", pytest.param("crashed", marks=pytest.mark.slow)]


@pytest.mark.parametrize("outage", OUTAGES)
async def test_changes_during_a_postgresql_outage_are_applied_afterwards_and_conditions_report_it(
    stage: Stage, outage: str
) -> None:
    kube, server = stage.kube, stage.postgres
    async with running(stage.controller()) as controller:
        await kube.apply_all({name: {} for name in ("stays", "altered", "goes", "is-dropped", "drifts")})
        await kube.apply("is-dropped", deletionPolicy="Drop")
        await kube.wait_all_ready()
        async with stage.database() as database:
            await database.execute("ALTER ROLE drifts CREATEROLE; CHECKPOINT")
        await (server.stop() if outage == "stopped" else server.kill())
        await kube.wait_reason("stays", "ServerNotReady")
        await kube.apply("created", login=True)
        await kube.apply("altered", login=True)
        await kube.delete("goes")
        await kube.delete("is-dropped")
        await kube.wait_gone("goes")
        for name in ("created", "altered", "is-dropped"):
            obj = await kube.wait_reason(name, "ServerNotReady")
            assert condition(obj, "Ready")["status"] == "False"
            assert condition(obj, "Reconciling")["status"] == "True"
        if outage == "crashed":
            await check_retried_often_and_reported_once(kube, controller)
        await server.start()
        await kube.wait_gone("is-dropped")
        await kube.wait_all_ready()
        async with stage.database() as database:
            assert await database.role("is-dropped") is None
            for name in ("created", "altered"):
                await database.wait_role(name, lambda row: row["rolcanlogin"], "LOGIN")
            await database.wait_role("drifts", lambda row: not row["rolcreaterole"], "NOCREATEROLE")
            assert await database.role("goes") is not None
            claim = "SELECT released_at IS NOT NULL FROM pgrole.claim WHERE role_name = 'goes'"
            await database.wait_value(claim, True)
            await database.execute("ALTER ROLE stays CREATEROLE")
            await database.wait_role("stays", lambda row: not row["rolcreaterole"], "NOCREATEROLE")


async def check_retried_often_and_reported_once(kube: Kube, controller: Controller) -> None:
    before, said = await count_failed_attempts(controller), await kube.wait_reason("stays", "ServerNotReady")

    async def is_tried() -> bool:
        return await count_failed_attempts(controller) >= before + ATTEMPTS

    assert await reached(is_tried, PATIENCE, every=0.2)
    assert await kube.get("stays") == said  # written once, whatever the number of attempts
    told = NO_SESSION.findall(controller.log)
    assert 1 <= len(told) <= TOLD, told


async def count_failed_attempts(controller: Controller) -> float:
    return (await scrape(controller)).sum("pgrole_session_failures_total")


@pytest.mark.slow
async def test_changes_while_postgresql_is_frozen_are_applied_afterwards(stage: Stage) -> None:
    kube = stage.kube
    async with running(stage.controller()) as controller:
        await kube.apply_all({"altered": {}, "goes": {"deletionPolicy": "Drop"}})
        await kube.wait_all_ready()
        stage.postgres.pause()
        begun = controller.log.count("reason=object")
        await kube.apply("created")
        await kube.apply("altered", login=True)
        await kube.delete("goes")
        await controller.wait_count("reason=object", begun + 1)
        stage.postgres.resume()
        await kube.wait_gone("goes")
        await kube.wait_all_ready()
        async with stage.database() as database:
            assert await database.role("goes") is None
            await database.wait_role("altered", lambda row: row["rolcanlogin"], "LOGIN")
            await database.execute("ALTER ROLE created CREATEROLE")
            await database.wait_role("created", lambda row: not row["rolcreaterole"], "NOCREATEROLE")


async def test_the_controller_waits_for_a_server_that_is_down_at_the_start(stage: Stage) -> None:
    await stage.postgres.stop()
    controller = stage.controller()
    await controller.start()
    try:
        await stage.kube.apply("early")
        obj = await stage.kube.wait_reason("early", "ServerNotReady")
        assert 'server "default"' in condition(obj, "Ready")["message"]
        await stage.postgres.start()
        await stage.kube.wait_ready("early")
    finally:
        assert await controller.stop() == 0
    assert "Traceback" not in controller.log


async def test_a_drift_at_the_moment_a_connection_is_terminated_is_repaired(stage: Stage) -> None:
    purposes = ("work", "listen", "watch")
    async with running(stage.controller()) as controller, stage.database() as database:
        await stage.kube.apply_all({purpose: {} for purpose in purposes})
        await stage.kube.wait_all_ready()
        for purpose in purposes:
            for _ in range(3):
                ended = controller.log.count("session with PostgreSQL ended")
                hit = await database.fetchval(
                    "WITH drift AS (SELECT pid FROM pg_stat_activity WHERE application_name = $1) "
                    "SELECT count(pg_terminate_backend(pid)) FROM drift",
                    f"pgrole-controller {purpose}",
                )
                await database.execute(f"ALTER ROLE {purpose} CREATEROLE")
                assert hit == 1, purpose
                await database.wait_role(purpose, lambda row: not row["rolcreaterole"], "NOCREATEROLE")
                await controller.wait_count("session with PostgreSQL ended", ended + 1)
                await controller.wait_count("session with PostgreSQL begins", ended + 2)
            await stage.kube.wait_for(
                purpose, lambda obj: obj["status"].get("driftCount") == 3 and is_ready(obj), "Ready after three drifts"
            )


@pytest.mark.slow
async def test_drift_is_noticed_and_repaired_while_the_server_waits_for_a_synchronous_standby(stage: Stage) -> None:
    names = ("one", "two", "three")
    async with running(stage.controller()), stage.database() as database:
        await stage.kube.apply_all({name: {} for name in names})
        await stage.kube.wait_all_ready()
        await database.execute("ALTER SYSTEM SET synchronous_standby_names = 'missing'")
        await database.execute("SET synchronous_commit = local; SELECT pg_reload_conf()")
        await database.wait_value("SELECT current_setting('synchronous_standby_names')", "missing")
        for name in names:
            await database.execute(f"ALTER ROLE {name} CREATEROLE")
            await database.wait_role(name, lambda row: not row["rolcreaterole"], "NOCREATEROLE", 20.0)
            event = await stage.kube.wait_event("ServerNotReady", about=name)
            assert "synchronous_standby_names" in event["note"]
            await stage.kube.wait_ready(name)


@pytest.mark.slow
async def test_drift_is_repaired_while_the_api_server_hangs_or_is_away_and_object_changes_are_applied_afterwards(
    stage: Stage, binaries: Binaries
) -> None:
    async with serving(binaries) as server:
        await apply_crds(server)
        kube = await make_kube(server)
        own = Stage(kube, stage.postgres, stage.folder)
        async with running(own.controller()) as controller, own.database() as database:
            await kube.apply_all({f"app-{number}": {} for number in range(WRITERS + 1)})
            names = [obj["metadata"]["name"] for obj in await kube.wait_all_ready()]
            await drift_repeatedly_while_it_hangs(kube, database, names)
            await delete_before_it_hangs(kube, database, names[:5])
            await change_objects_while_it_is_away(kube, database, controller)


async def drift_repeatedly_while_it_hangs(kube: Kube, database: Database, names: list[str]) -> None:
    """Reporting the first drift does not delay the second repair until the request times out."""
    kube.server.pause()
    try:
        began = anyio.current_time()
        for _ in range(3):
            await drift_each(database, names)
        assert anyio.current_time() - began < 2 * WRITE_SECONDS
    finally:
        kube.server.resume()
    for name in names:
        await kube.wait_for(
            name, lambda obj: obj["status"].get("driftCount") == 3 and is_ready(obj), "Ready after three drifts"
        )


async def delete_before_it_hangs(kube: Kube, database: Database, names: list[str]) -> None:
    """The controller verifies concurrently, and only for new objects, that the namespace is still the same."""
    await kube.apply("is-deleted")
    await kube.wait_ready("is-deleted")
    await kube.delete("is-deleted")
    claim = "SELECT released_at IS NOT NULL FROM pgrole.claim WHERE role_name = 'is-deleted'"
    await database.wait_value(claim, True)
    kube.server.pause()
    try:
        began = anyio.current_time()
        await drift_each(database, names)
        assert anyio.current_time() - began < WRITE_SECONDS
    finally:
        kube.server.resume()
    await kube.apply("new")
    await kube.wait_ready("new")
    for name in names:  # one more drift within a minute would be a contest
        await kube.wait_for(
            name, lambda obj: obj["status"].get("driftCount") == 4 and is_ready(obj), "Ready after four drifts"
        )


async def drift_each(database: Database, names: list[str]) -> None:
    for name in names:
        await database.execute(f'ALTER ROLE "{name}" CREATEROLE')
    for name in names:
        await database.wait_role(name, lambda row: not row["rolcreaterole"], "NOCREATEROLE")


async def change_objects_while_it_is_away(kube: Kube, database: Database, controller: Controller) -> None:
    await kube.apply_all({"drifts": {}, "altered": {}, "goes": {"deletionPolicy": "Drop"}, "twice": {}})
    before = {obj["metadata"]["name"]: obj["metadata"]["uid"] for obj in await kube.wait_all_ready()}
    failed = controller.log.count(WATCH_FAILED)
    await kube.server.kill()
    await database.execute("ALTER ROLE drifts SUPERUSER")
    await database.wait_role("drifts", lambda row: not row["rolsuper"], "NOSUPERUSER")
    await database.execute("DROP ROLE altered")
    await database.wait_role("altered", bool, "recreated")
    await controller.wait_count(WATCH_FAILED, failed + 1)
    await kube.server.start()
    await kube.apply("altered", login=True)
    await kube.apply("created")
    await kube.delete("goes")
    await kube.delete("twice")
    await kube.apply("twice", login=True)
    await kube.wait_gone("goes")
    objects = {obj["metadata"]["name"]: obj for obj in await kube.wait_all_ready()}
    assert set(objects) == before.keys() - {"goes"} | {"created"}
    for name in ("drifts", "altered"):
        await kube.wait_for(name, lambda obj: obj["status"].get("driftCount") == 1, "one drift counted")
    assert objects["twice"]["metadata"]["uid"] != before["twice"]
    for name in ("altered", "twice"):
        await database.wait_role(name, lambda row: row["rolcanlogin"], "LOGIN")
    assert await database.role("goes") is None
    claim = await database.claim("twice")
    assert claim is not None
    assert claim["object_uid"] == objects["twice"]["metadata"]["uid"]


async def test_wrong_credentials_are_reported_on_the_object_and_never_shown(stage: Stage) -> None:
    wrong = "hunter2-not-this-one"
    dsn = stage.postgres.dsn(password=wrong)
    controller = stage.controller(dsn)
    await controller.start()
    try:
        await stage.kube.apply("locked-out")
        obj = await stage.kube.wait_for("locked-out", lambda obj: says(obj, "ServerNotReady", "credentials"), "shown")
        await stage.kube.wait_event("ServerNotReady")
        told = [str(await stage.kube.events(reason)) for reason in ("ServerNotReady",)]
    finally:
        assert await controller.stop() == 0
    for text in (controller.log, str(obj), *told):
        assert wrong not in text
    assert "Traceback" not in controller.log


@pytest.mark.slow
async def test_a_missing_home_database_is_reported_and_used_once_created(stage: Stage) -> None:
    controller = stage.controller(stage.postgres.dsn(database="not_yet"))
    await controller.start()
    try:
        await stage.kube.apply("homeless")
        obj = await stage.kube.wait_for("homeless", lambda obj: says(obj, "ServerNotReady", "not_yet"), "reported")
        async with stage.database() as database:
            await database.execute("CREATE DATABASE not_yet")
            await stage.kube.wait_ready("homeless")
            assert await database.role("homeless") is not None
    finally:
        assert await controller.stop() == 0
    for text in (controller.log, str(obj)):
        assert stage.postgres.password not in text


@pytest.mark.slow
async def test_a_lock_on_the_schema_is_reported_and_the_documented_query_names_its_holder(stage: Stage) -> None:
    [query] = blocks("troubleshooting.md", "A lock on schema pgrole")
    shell = await make_shell(stage.kube.server, stage.postgres, stage.folder / "shell")
    async with running(stage.controller()), stage.database() as holder, stage.database() as database:
        await stage.kube.apply("app", login=True)
        await stage.kube.wait_ready("app")
        await holder.execute("BEGIN; LOCK TABLE pgrole.role_state")
        await database.execute("ALTER ROLE app CREATEDB")
        obj = await stage.kube.wait_reason("app", "ServerNotReady")
        assert "a lock was not available in time" in condition(obj, "Ready")["message"]
        said = await shell.run(query)
        assert re.search(
            rf"^ *{await holder.fetchval('SELECT pg_backend_pid()')} \| pgrole\.role_state \| AccessExclusiveLock",
            said,
            re.MULTILINE,
        )
        assert "(1 row)" in said
        await holder.execute("ROLLBACK")
        await database.wait_role("app", lambda row: not row["rolcreatedb"], "NOCREATEDB")
        await stage.kube.wait_ready("app")


async def test_schema_pgrole_dropped_while_running_is_restored_with_every_claim(stage: Stage) -> None:
    async with running(stage.controller()) as controller, stage.database() as database:
        reporting = {"drift": {"policy": "Report"}}
        await stage.kube.apply_all({"one": {"login": True}, "two": {"createdb": True}, "three": reporting})
        await stage.kube.wait_all_ready()
        await database.execute("ALTER ROLE three CREATEDB")
        await stage.kube.wait_reason("three", "DriftReported")
        await database.drop_schema()
        await controller.wait_count("schema pgrole was installed", 2)
        await database.wait_value("SELECT count(*) FROM pgrole.claim WHERE released_at IS NULL", 3)
        for name in ("one", "two", "three"):
            await controller.wait_log(f"object={stage.kube.namespace}/{name} action=reclaimed")
            claim = await database.claim(name)
            role = await database.role(name)
            assert claim is not None
            assert role is not None
            assert claim["role_oid"] == role["oid"]
            assert claim["released_at"] is None
            event = await stage.kube.wait_event("ClaimRestored", about=name)
            assert event["note"] == "restored the claim on the role, which was missing from the database"
        await stage.kube.wait_reason("three", "DriftReported")
        await database.execute("ALTER ROLE three NOCREATEDB")
        await stage.kube.wait_all_ready()
        await database.execute("ALTER ROLE one CREATEROLE")
        await database.wait_role("one", lambda row: not row["rolcreaterole"], "NOCREATEROLE")
        await stage.kube.wait_for("one", lambda obj: obj["status"].get("driftCount") == 1, "one drift counted")


@pytest.mark.slow
async def test_drift_made_while_schema_pgrole_was_dropped_and_the_controller_down_is_counted(
    stage: Stage,
) -> None:
    async with stage.database() as database:
        async with running(stage.controller()):
            await stage.kube.apply_all({"one": {}, "two": {}, "mighty": {}})
            await stage.kube.wait_all_ready()
        await database.execute("DROP SCHEMA pgrole CASCADE; ALTER ROLE one CREATEDB; ALTER ROLE mighty SUPERUSER")
        async with running(stage.controller()):
            await database.wait_role("one", lambda row: not row["rolcreatedb"], "NOCREATEDB")
            obj = await stage.kube.wait_for("one", lambda obj: obj["status"].get("driftCount") == 1, "counted")
            assert obj["status"]["lastDrift"]["fields"] == ["createdb"]
            assert obj["status"]["lastDrift"]["corrected"]
            event = await stage.kube.wait_event("ClaimRestored", about="one")
            assert event["note"].endswith("missing from the database, and corrected drift: createdb")
            await stage.kube.wait_ready("two")
            # Status alone, which more users can write than the database, proves no claim on a role beyond the policy.
            await stage.kube.wait_for("mighty", lambda obj: says(obj, "NotAllowed", "superuser"), "reported")
            assert await database.claim("mighty") is None
            await database.execute("ALTER ROLE mighty NOSUPERUSER")
            await stage.kube.wait_ready("mighty")
            await database.wait_value("SELECT count(*) FROM pgrole.claim WHERE released_at IS NULL", 3)


@pytest.mark.slow
async def test_a_schema_pgrole_created_by_an_ordinary_role_is_refused_and_never_called(stage: Stage) -> None:
    async with stage.database() as database:
        await database.execute(
            "CREATE ROLE mallory LOGIN PASSWORD 'm'; GRANT CREATE ON DATABASE postgres TO mallory;"
            "CREATE SEQUENCE public.trace; GRANT USAGE ON SEQUENCE public.trace TO PUBLIC"
        )
        mallory = await asyncpg.connect(stage.postgres.dsn("mallory", password="m"))
        try:
            await mallory.execute(_TRAP)
            with pytest.raises(asyncpg.InsufficientPrivilegeError):  # a trace stays although the call fails
                await mallory.execute("SELECT pgrole.observe()")
        finally:
            await mallory.close()
        assert await database.fetchval(_TRACED)
        await database.execute("ALTER SEQUENCE public.trace RESTART")
        controller = stage.controller()
        await controller.start()
        try:
            await stage.kube.apply("victim")
            await stage.kube.wait_for(
                "victim", lambda obj: says(obj, "ServerNotReady", "schema pgrole", "mallory"), "reported"
            )
            assert not await database.fetchval(_TRACED)
            assert await database.role("victim") is None
            assert not await database.fetchval("SELECT rolsuper FROM pg_roles WHERE rolname = 'mallory'")
            await database.drop_schema()
            await stage.kube.wait_ready("victim")
            assert not await database.fetchval(_TRACED)
        finally:
            assert await controller.stop() == 0
        assert "Traceback" not in controller.log


_TRACED = "SELECT is_called FROM public.trace"
_TRAP = """
CREATE SCHEMA pgrole;
CREATE TABLE pgrole.installation (singleton boolean PRIMARY KEY, version integer NOT NULL, parts integer NOT NULL);
INSERT INTO pgrole.installation VALUES (true, 1, 7);
CREATE FUNCTION pgrole.leave_trace() RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    PERFORM nextval('public.trace');  -- not undone with the transaction
    EXECUTE 'ALTER ROLE mallory SUPERUSER';
    RETURN '';
END $$;
CREATE FUNCTION pgrole.observe(everything boolean DEFAULT false) RETURNS text LANGUAGE sql
AS 'SELECT pgrole.leave_trace()';
CREATE FUNCTION pgrole.lock_changes() RETURNS void LANGUAGE sql AS 'SELECT pgrole.leave_trace()::void';
CREATE PROCEDURE pgrole.watch(tick interval, lasting interval) LANGUAGE sql AS 'SELECT pgrole.leave_trace()';
CREATE VIEW pgrole.claim AS SELECT pgrole.leave_trace() AS role_name;
GRANT ALL ON SCHEMA pgrole TO PUBLIC;
"""
