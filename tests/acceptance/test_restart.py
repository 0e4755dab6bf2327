"""A controller that is killed, stopped or started incorrectly leaves a consistent state, from which the next one
continues.
"""

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from random import Random

import anyio
import pytest

from pgrole_controller.local.process import Process, reached
from tests.acceptance.world import PATIENCE, Database, Json, Stage, is_ready, running

#: Four controllers in a row are interrupted before all have their roles: each takes 25 at first, and more later.
MANY = 100
#: Tolerance beyond documented times, in seconds: the machine may be busy.
SLACK = 9.0
KILLS = 3
CLAIMED = "SELECT count(*) FROM pgrole.claim"
#: Of the points at which controllers are killed.
SEED = 3


def declared() -> dict[str, Json]:
    """Returns specs of many roles, every fifth with deletionPolicy Drop."""
    return {
        f"many-{number:03}": {
            "login": number % 2 == 0,
            "createdb": number % 3 == 0,
            "connectionLimit": number,
            "comment": f"number {number}",
            "deletionPolicy": "Drop" if number % 5 == 0 else "Retain",
        }
        for number in range(MANY)
    }


async def kill_at_random_points(stage: Stage, draw: Random, question: str, goal: int) -> None:
    """Starts controllers and kills each once `question` is part of the way to `goal`; one may have finished by then."""
    unfinished = 0
    async with stage.database() as database:
        for round_ in range(KILLS):
            controller = stage.controller()
            await controller.start()
            await controller.wait_log("session with PostgreSQL begins")
            begin = await database.fetchval(question)
            await wait_past(database, question, begin + draw.randint(0, (goal - begin) // (KILLS - round_ + 1)))
            await anyio.sleep(draw.uniform(0, 0.02))  # makes the point of the kill random
            await controller.kill()
            unfinished += await database.fetchval(question) < goal
            assert "Traceback" not in controller.log
    assert unfinished >= KILLS - 1, "too late"


async def stop_during_convergence(stage: Stage, database: Database) -> None:
    """Asserts that a controller that receives SIGTERM once it has begun ends within 10 s, and leaves nothing half."""
    controller = stage.controller()
    await controller.start()
    await controller.wait_log("session with PostgreSQL begins")
    await wait_past(database, CLAIMED, 1)
    with anyio.fail_after(10 + SLACK):
        assert await controller.stop() == 0
    assert "Traceback" not in controller.log
    claimed = await database.fetchval(CLAIMED)
    assert claimed < MANY, "too late"
    roles = await database.fetchval("SELECT count(*) FROM pg_roles WHERE oid >= 16384")
    assert roles == claimed
    ready = sum(is_ready(obj) for obj in await stage.kube.objects())
    assert ready <= claimed


async def wait_past(database: Database, question: str, count: int) -> None:
    async def is_past() -> bool:
        return bool(await database.fetchval(question) >= count)

    assert await reached(is_past, PATIENCE, every=0.001), f"{question}: {count} was not reached"


async def assert_as_declared(database: Database, objects: Mapping[str, Json]) -> None:
    """Asserts that every object has its role with its attributes and claim, and that no others exist."""
    specs = declared()
    rows = await database.connection.fetch(
        "SELECT r.rolname, r.oid, r.rolcanlogin, r.rolcreatedb, r.rolconnlimit, "
        "shobj_description(r.oid, 'pg_authid') AS comment, c.role_oid, c.object, c.object_uid, c.released_at "
        "FROM pg_roles AS r FULL JOIN pgrole.claim AS c ON c.role_name = r.rolname "
        "WHERE r.oid >= 16384 OR r.oid IS NULL"
    )
    assert {row["rolname"] for row in rows} == set(objects)
    for row in rows:
        name = row["rolname"]
        spec, obj = specs[name], objects[name]
        assert (row["rolcanlogin"], row["rolcreatedb"]) == (spec["login"], spec["createdb"])
        assert (row["rolconnlimit"], row["comment"]) == (spec["connectionLimit"], spec["comment"])
        assert (row["role_oid"], row["object"], row["released_at"]) == (row["oid"], name, None)
        assert row["object_uid"] == obj["metadata"]["uid"]
        assert obj["status"]["role"]["oid"] == row["oid"]
        assert obj["status"].get("driftCount", 0) == 0


@pytest.mark.slow
async def test_after_sigterm_and_kills_at_random_points_the_next_controller_converges(stage: Stage) -> None:
    kube, draw = stage.kube, Random(SEED)
    async with stage.database() as database:
        # schema pgrole must exist before the first kill, so that claims can be counted
        async with running(stage.controller()):
            pass
        await kube.apply_all(declared())
        await stop_during_convergence(stage, database)
        await kill_at_random_points(stage, draw, CLAIMED, MANY)
        async with running(stage.controller()):
            objects = {obj["metadata"]["name"]: obj for obj in await kube.wait_all_ready()}
            assert len(objects) == MANY
            await assert_as_declared(database, objects)
        going = [name for name, spec in declared().items() if spec["deletionPolicy"] == "Drop"]
        await kube.delete_each(going)
        gone = f"SELECT {MANY} - count(*) FROM pgrole.claim"
        await kill_at_random_points(stage, draw, gone, len(going))
        async with running(stage.controller()):
            await kube.wait_number(MANY - len(going))
            left = {obj["metadata"]["name"]: obj for obj in await kube.wait_all_ready()}
            assert set(left) == set(objects) - set(going)
            await assert_as_declared(database, left)


async def test_objects_recreated_while_no_controller_ran_replace_the_old_ones(stage: Stage) -> None:
    kube = stage.kube
    async with stage.database() as database:
        async with running(stage.controller()):
            await kube.apply("retained", login=True, deletionPolicy="Retain")
            await kube.apply("dropped", login=True, deletionPolicy="Drop")
            retained, dropped = await kube.wait_ready("retained"), await kube.wait_ready("dropped")
        await kube.delete_each(["retained", "dropped"])
        assert await kube.get("retained") is None
        await kube.apply("retained", createdb=True, deletionPolicy="Retain")
        async with running(stage.controller()):
            await assert_reborn(database, retained, await kube.wait_ready("retained"), "Retain")
            await kube.wait_gone("dropped")  # the object stays until a controller drops its role
        await kube.apply("dropped", createdb=True, deletionPolicy="Drop")
        async with running(stage.controller()):
            await assert_reborn(database, dropped, await kube.wait_ready("dropped"), "Drop")
            assert sorted(obj["metadata"]["name"] for obj in await kube.objects()) == ["dropped", "retained"]


@pytest.mark.slow
async def test_an_object_recreated_while_the_controller_was_frozen_replaces_the_old_one(stage: Stage) -> None:
    kube = stage.kube
    async with running(stage.controller()) as controller, stage.database() as database:
        await kube.apply("phoenix", login=True)
        before = await kube.wait_ready("phoenix")
        controller.process.pause()
        try:
            await database.execute("ALTER ROLE phoenix CREATEROLE")
            await kube.patch("phoenix", {"spec": {"connectionLimit": 5}})
            await kube.delete("phoenix")
            await kube.apply("phoenix", createdb=True)
            await kube.apply("flash")
            await kube.delete("flash")
        finally:
            controller.process.resume()
        after = await kube.wait_ready("phoenix")
        await assert_reborn(database, before, after, "Retain")
        assert [obj["metadata"]["name"] for obj in await kube.objects()] == ["phoenix"]


async def assert_reborn(database: Database, before: Json, after: Json, policy: str) -> None:
    name = before["metadata"]["name"]
    role = await database.role(name)
    claim = await database.claim(name)
    assert role is not None
    assert claim is not None
    assert after["metadata"]["uid"] != before["metadata"]["uid"]
    assert (role["rolcanlogin"], role["rolcreatedb"]) == (False, True)
    assert not role["rolcreaterole"]
    assert role["rolconnlimit"] == -1
    assert after["status"]["role"]["oid"] == role["oid"]
    assert (role["oid"] == before["status"]["role"]["oid"]) == (policy == "Retain")
    assert claim["object_uid"] == after["metadata"]["uid"]
    assert claim["released_at"] is None
    assert after["status"].get("driftCount", 0) == 0


@pytest.mark.slow
async def test_sigterm_while_postgresql_is_frozen_ends_within_10_seconds(stage: Stage) -> None:
    controller = stage.controller()
    await controller.start()
    await controller.wait_log("session with PostgreSQL begins")
    await stage.kube.apply("hanging")
    await stage.kube.wait_ready("hanging")
    stage.postgres.pause()
    try:
        await stage.kube.apply("hanging", login=True)
        with anyio.fail_after(10 + SLACK):
            assert await controller.stop() == 0
    finally:
        stage.postgres.resume()
    assert "Traceback" not in controller.log


@pytest.mark.parametrize(
    ("arguments", "environment", "words"),
    [
        (["--resync-interval", "soon"], {}, ["--resync-interval", "soon", "30s"]),
        ([], {"PGROLE_DSN": "mysql://root:hunter2@db"}, ["PGROLE_DSN", "postgresql://"]),
    ],
)
async def test_an_invalid_setting_is_refused_by_name(
    tmp_path: Path, arguments: list[str], environment: dict[str, str], words: list[str]
) -> None:
    code, said = await run_to_its_end(tmp_path, arguments, environment)
    assert code == 2
    for word in words:
        assert word in said
    assert "hunter2" not in said
    assert "Traceback" not in said


async def test_without_a_configured_api_server_it_fails_and_names_the_options(tmp_path: Path) -> None:
    code, said = await run_to_its_end(tmp_path, [], {})
    assert code == 1
    for word in ("--kubeconfig", "KUBECONFIG", "~/.kube/config", "service account"):
        assert word in said
    assert "Traceback" not in said


async def test_a_health_port_in_use_is_a_fatal_error_that_names_it(stage: Stage) -> None:
    first = stage.controller()
    async with running(first):
        second = stage.controller(None, "--health-port", str(first.health_port))
        await second.start()
        with anyio.fail_after(PATIENCE):
            assert await second.process.wait() == 1
        assert f"--health-port {first.health_port}" in second.log
        assert "Traceback" not in second.log


async def test_sigterm_ends_it_while_the_credential_plugin_of_its_kubeconfig_hangs(tmp_path: Path) -> None:
    asked, config = tmp_path / "asked", tmp_path / "config"
    plugin = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": "sh",
        "args": ["-c", f"touch {asked}; exec sleep 60"],
        "interactiveMode": "Never",
    }
    content = {
        "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:9"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "users": [{"name": "u", "user": {"exec": plugin}}],
    }
    config.write_text(json.dumps(content))
    arguments = ["run", "--kubeconfig", str(config), "--health-port", "0"]
    process = Process(
        "pgrole-controller",
        [sys.executable, "-m", "pgrole_controller", *arguments],
        tmp_path / "run.log",
        {"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
    )
    await process.start()
    try:

        async def is_asked() -> bool:
            return asked.exists()

        assert await reached(is_asked, PATIENCE)
        with anyio.fail_after(10 + SLACK):
            assert await process.stop() == 0
    finally:
        await process.kill()
    assert "Traceback" not in process.log.read_text(encoding="utf-8")


async def run_to_its_end(folder: Path, arguments: list[str], environment: Mapping[str, str | None]) -> tuple[int, str]:
    """Returns exit code and output of `pgrole-controller run` on a machine where nothing is configured."""
    given = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "PGROLE_DSN": "postgresql://nobody:hunter2@127.0.0.1:9/postgres",
        **environment,
    }
    process = Process(
        "pgrole-controller",
        [sys.executable, "-m", "pgrole_controller", "run", *arguments],
        folder / "run.log",
        {name: value for name, value in given.items() if value is not None},
    )
    await process.start()
    try:
        with anyio.fail_after(PATIENCE):
            code = await process.wait()
    finally:
        await process.kill()
    return code, process.log.read_text(encoding="utf-8")
