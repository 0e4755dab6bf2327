"""Rotation, and restoring a deleted Secret, happen once, at whatever point the controller is killed."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from random import Random
from typing import Any

import anyio
import pytest

from pgrole_controller.kube.client import Client
from pgrole_controller.local.apiserver import LocalApiError
from tests.acceptance.admission import admission_policy
from tests.acceptance.world import PATIENCE, Database, Json, Kube, Stage, is_ready, running

pytestmark = pytest.mark.slow

#: What happens to the object of each name.
ACTIONS = ("rotate", "delete")
ROUNDS = 6
#: Of the points at which the controller is killed.
SEED = 7
#: How long a rotation takes at most.
ROTATION_SECONDS = 0.08
SESSIONS = "FROM pg_stat_activity WHERE application_name LIKE 'pgrole-controller %'"
TURN = "LOCK TABLE pgrole.turn_to_change IN ACCESS EXCLUSIVE MODE"


def text(secret: Json | None) -> str:
    assert secret is not None
    return str(secret["text"]["password"])


def version(secret: Json | None) -> str:
    assert secret is not None
    return str(secret["metadata"]["resourceVersion"])


def generated(name: str, **generate: object) -> Json:
    """Returns the spec of an object of this name."""
    return {"password": {"generate": generate}, "connectionSecret": {"name": secret_of(name)}}


def secret_of(name: str) -> str:
    return f"{name}-delivered"


async def make(kube: Kube, *names: str) -> dict[str, Json]:
    """Returns the Secrets of Ready objects, by their names."""
    await kube.apply_all({name: generated(name) for name in names})
    for name in names:
        await kube.wait_ready(name)
    return {name: await kube.wait_secret(secret_of(name)) for name in names}


async def wait_other(kube: Kube, before: Json, name: str = "app") -> Json:
    """Returns the Secret of an object once it has another password."""
    return await kube.wait_secret(secret_of(name), lambda held: text(held) != text(before), "another password")


async def request(kube: Kube, value: str, name: str = "app") -> None:
    await kube.patch(name, {"metadata": {"annotations": {"pgrole.dev/rotate": value}}})


async def look_again(kube: Kube, comment: str, name: str = "app") -> Json:
    """Causes one more reconcile of the object, and waits until status reports it."""
    obj = await kube.patch(name, {"spec": {"comment": comment}})
    generation = obj["metadata"]["generation"]
    return await kube.wait_for(
        name, lambda seen: is_ready(seen) and seen["status"]["observedGeneration"] >= generation, comment
    )


async def assert_agreement(
    kube: Kube, database: Database, password: str, held: Json | None = None, name: str = "app"
) -> None:
    """Asserts that role and Secret have the password; given `held`, that the Secret was not written since."""
    await database.wait_password(name, password)
    await look_again(kube, "after all that", name)
    now = await kube.secret(secret_of(name))
    assert text(now) == password, name
    assert held is None or version(now) == version(held), name
    await database.wait_password(name, password)


@asynccontextmanager
async def denied(
    kube: Kube, resource: str, condition: str, probe: Callable[[], Awaitable[Json]]
) -> AsyncIterator[None]:
    """Denies writes of a resource in the namespace by an admission policy; `probe` shows whether it is effective."""
    group, _, plural = resource.rpartition(":")
    rule = {"apiGroups": [group], "apiVersions": ["*"], "operations": ["CREATE", "UPDATE"], "resources": [plural]}
    spec = {
        "matchConstraints": {"resourceRules": [rule]},
        "matchConditions": [{"name": "this", "expression": condition}],
        "validations": [{"expression": "false", "message": "denied for a moment"}],
    }

    async def is_denied() -> bool:
        try:
            await probe()
        except LocalApiError as error:
            return "denied for a moment" in str(error)
        return False

    name = f"deny-{kube.namespace}-{plural.replace('/', '-')}"
    async with admission_policy(kube, "Validating", name, spec, {"validationActions": ["Deny"]}, is_denied):
        yield


def no_secret(kube: Kube) -> Any:
    async def probe() -> Json:
        name = secret_of("probe")
        body = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": {"x": "eA=="}}
        return await kube.server.request(
            "PATCH",
            kube.secret_path(name),
            body,
            content_type="application/apply-patch+yaml",
            query={"fieldManager": "probe", "dryRun": "All", "force": "true"},
        )

    return denied(kube, ":secrets", f"object.metadata.name.endsWith('{secret_of('')}')", probe)


def no_status(kube: Kube, name: str) -> Any:
    async def probe() -> Json:
        return await kube.server.request(
            "PATCH",
            f"{kube.path(name)}/status",
            {"status": {"driftCount": 12345}},
            content_type="application/merge-patch+json",
            query={"dryRun": "All"},
        )

    return denied(kube, "pgrole.dev:pgroles/status", "true", probe)


async def disturb(kube: Kube) -> None:
    """Requests a rotation for one object, and deletes the Secret of the other."""
    await request(kube, "1", "rotate")
    await kube.delete_secret(secret_of("delete"))


async def test_a_kill_before_the_secret_is_written_loses_nothing(stage: Stage) -> None:
    kube, controller = stage.kube, stage.controller()
    await controller.start()
    before = await make(kube, *ACTIONS)
    async with stage.database() as database:
        async with no_secret(kube):
            await disturb(kube)
            for name in ACTIONS:
                obj = await kube.wait_reason(name, "NotAllowed")
                conditions = json.dumps(obj["status"]["conditions"])
                assert ": 422 Invalid" in conditions
                assert "denied for a moment" not in conditions
            await controller.kill()
            for name in ACTIONS:
                await database.wait_password(name, text(before[name]))
        async with running(stage.controller()):
            for name in ACTIONS:
                after = await wait_other(kube, before[name], name)
                await assert_agreement(kube, database, text(after), after, name)


async def test_a_lock_only_delays_a_rotation_and_a_kill_meanwhile_ends_with_the_secrets_password_set(
    stage: Stage,
) -> None:
    kube, controller = stage.kube, stage.controller()
    await controller.start()
    before = await make(kube, "app", *ACTIONS)
    async with stage.database() as database, stage.database() as other:
        await look_again(kube, "at rest")
        async with other.connection.transaction():
            await other.execute(TURN)
            await request(kube, "1")
            after = await wait_other(kube, before["app"])
            await controller.wait_log("object is not ready")
        await assert_agreement(kube, database, text(after), after)
        for name in ACTIONS:
            await look_again(kube, "at rest", name)
        async with other.connection.transaction():
            await other.execute(TURN)
            await disturb(kube)
            changed = {name: await wait_other(kube, before[name], name) for name in ACTIONS}
            await controller.kill()
            # A statement that it sent waits for the lock, and would still run.
            await database.execute(f"SELECT pg_terminate_backend(pid) {SESSIONS}")
            await database.wait_value(f"SELECT count(*) {SESSIONS}", 0)
        for name in ACTIONS:
            await database.wait_password(name, text(before[name]))
        async with running(stage.controller()):
            for name in ACTIONS:
                await assert_agreement(kube, database, text(changed[name]), changed[name], name)


async def test_a_kill_between_database_and_status_repeats_nothing(stage: Stage) -> None:
    kube, controller = stage.kube, stage.controller()
    await controller.start()
    before = await make(kube, *ACTIONS)
    async with stage.database() as database:
        async with no_status(kube, ACTIONS[0]):
            await disturb(kube)
            after = {name: await wait_other(kube, before[name], name) for name in ACTIONS}
            for name in ACTIONS:
                await database.wait_password(name, text(after[name]))
                await controller.wait_log(f"status not written, trying again  object={kube.namespace}/{name}")
            await controller.kill()
        async with running(stage.controller()):
            for name in ACTIONS:
                await assert_agreement(kube, database, text(after[name]), after[name], name)


async def test_each_rotation_request_is_handled_once_despite_kills_at_random_points(stage: Stage) -> None:
    kube, draw, handled = stage.kube, Random(SEED), 0
    async with running(stage.controller()):
        since = version((await make(kube, "app"))["app"])
    async with stage.database() as database:
        for number in range(1, ROUNDS + 1):
            controller = stage.controller()
            await controller.start()
            await controller.wait_log("session with PostgreSQL begins")
            await wait_agreement(kube, database, handled)
            await request(kube, str(number))
            handled = number
            # a random point in another part of the rotation each time
            await anyio.sleep((number - draw.random()) * ROTATION_SECONDS / ROUNDS)
            await controller.kill()
            assert "Traceback" not in controller.log
        async with running(stage.controller()):
            await wait_agreement(kube, database, handled)
            await look_again(kube, "after all that")
    history = await read_history(kube, since)
    passwords: dict[str, set[str]] = {}
    for seen in history:
        request_ = seen["metadata"]["annotations"].get("pgrole.dev/rotate-handled", "")
        passwords.setdefault(request_, set()).add(seen["data"]["password"])
    assert passwords.keys() - {""} == {str(number) for number in range(1, ROUNDS + 1)}
    assert {request_: len(some) for request_, some in passwords.items() if len(some) > 1} == {}


async def wait_agreement(kube: Kube, database: Database, handled: int) -> None:
    """Waits until the claim records this request as handled, and the role has the password in the Secret."""
    sql = "SELECT rotate_handled FROM pgrole.claim WHERE role_name = 'app'"
    await database.wait_value(sql, str(handled or ""))
    await database.wait_password("app", text(await kube.secret(secret_of("app"))))


async def read_history(kube: Kube, since: str) -> list[Json]:
    """Returns every version of the Secret after `since`. No controller may be running."""
    found: list[Json] = []
    last = version(await kube.patch_secret(secret_of("app"), {"metadata": {"labels": {"last": since}}}))
    async with Client.connect(str(kube.server.kubeconfig)) as client:
        query = {"watch": "true", "resourceVersion": since}
        async with client.stream(kube.secret_path(), query=query, inactivity=PATIENCE) as lines:
            async for line in lines:
                event = json.loads(line)
                if event["type"] in ("ADDED", "MODIFIED") and event["object"]["metadata"]["name"] == secret_of("app"):
                    found.append(event["object"])
                    if version(event["object"]) == last:
                        return found
    raise AssertionError("the history ended early")


async def test_a_restart_rotates_and_writes_nothing(stage: Stage) -> None:
    kube = stage.kube
    async with running(stage.controller()):
        await kube.apply("app", **generated("app", rotateEvery="1h"))
        await kube.wait_ready("app")
        before = await kube.wait_secret(secret_of("app"))
        await request(kube, "1")
        held = await wait_other(kube, before)
        await kube.wait_for("app", lambda obj: bool(obj["status"].get("nextRotation")), "nextRotation")
        await kube.apply_secret("source", password="ours")
        for number in range(10):
            await kube.apply(f"more-{number}", password={"secretRef": {"name": "source"}})
        await kube.wait_all_ready()
        async with stage.database() as database:
            await database.wait_value("SELECT rotate_handled FROM pgrole.claim WHERE role_name = 'app'", "1")
            await database.wait_password("app", text(held))
        await look_again(kube, "at rest")
    objects = {obj["metadata"]["name"]: obj for obj in await kube.objects()}
    for _ in range(2):
        async with running(stage.controller()):
            await kube.apply("fence", password={"secretRef": {"name": "source"}})
            await kube.wait_ready("fence")
            await kube.delete("fence")
            await kube.wait_gone("fence")
    assert version(await kube.secret(secret_of("app"))) == version(held)
    assert {obj["metadata"]["name"]: obj for obj in await kube.objects()} == objects


async def test_a_rotation_that_became_due_while_no_controller_ran_happens_once(stage: Stage) -> None:
    kube = stage.kube
    async with running(stage.controller()):
        await kube.apply("app", **generated("app", rotateEvery="15s"))
        obj = await kube.wait_ready("app")
    before = await kube.wait_secret(secret_of("app"))
    due = datetime.fromisoformat(before["metadata"]["annotations"]["pgrole.dev/rotated-at"])
    assert obj["status"]["nextRotation"]
    async with stage.database() as database:
        await database.wait_value(f"SELECT now() > '{due.isoformat()}'::timestamptz + interval '15 s'", True)
        since = version(before)
        await kube.patch("app", {"spec": {"password": {"generate": {"rotateEvery": "1h"}}}})
        async with running(stage.controller()):
            await kube.wait_ready("app")
            assert text(await kube.secret(secret_of("app"))) == text(before), "the current spec decides"
            await kube.patch("app", {"spec": {"password": {"generate": {"rotateEvery": "15s"}}}})
            held = await wait_other(kube, before)
            await kube.patch("app", {"spec": {"password": {"generate": {"rotateEvery": "1h"}}}})
            await assert_agreement(kube, database, text(held))
        assert len({seen["data"]["password"] for seen in await read_history(kube, since)}) == 1


async def test_neither_a_secret_restored_from_a_backup_nor_the_loss_of_claims_repeats_a_rotation(stage: Stage) -> None:
    """The database follows the restored Secret. Claims are lost with schema pgrole, after another object's rotation."""
    kube = stage.kube
    handled = "SELECT rotate_handled FROM pgrole.claim WHERE role_name = '{}'"
    async with stage.database() as database:
        async with running(stage.controller()):
            secrets = await make(kube, "app", "other")
            backup = secrets["app"]
            await request(kube, "1")
            await wait_other(kube, backup)
            await database.wait_value(handled.format("app"), "1")
            annotations = {"pgrole.dev/rotate-handled": None} | backup["metadata"]["annotations"]
            restored = await kube.patch_secret(
                secret_of("app"), {"metadata": {"annotations": annotations}, "data": backup["data"]}
            )
            await assert_agreement(kube, database, text(backup))
            assert version(await kube.secret(secret_of("app"))) == version(restored)
        async with running(stage.controller()):
            await look_again(kube, "once more")
            assert version(await kube.secret(secret_of("app"))) == version(restored)
            await request(kube, "2")
            after = await wait_other(kube, backup)
            await assert_agreement(kube, database, text(after), after)

            await request(kube, "1", "other")
            held = await wait_other(kube, secrets["other"], "other")
            await look_again(kube, "at rest", "other")
            await database.drop_schema()
            await database.wait_value("SELECT to_regclass('pgrole.claim') IS NOT NULL", True)
            await database.wait_value(handled.format("other"), "1")
            await assert_agreement(kube, database, text(held), name="other")
