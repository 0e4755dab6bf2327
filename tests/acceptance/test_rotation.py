"""Rotation, and restoring a deleted Secret, happen once, at whatever point the controller is killed."""

import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

import anyio
import pytest

from pgrole_controller.kube.client import Client
from pgrole_controller.local.apiserver import LocalApiError
from pgrole_controller.local.process import reached
from tests.acceptance.world import PATIENCE, Database, Json, Kube, Stage, is_ready, running

pytestmark = pytest.mark.slow

GENERATED: Json = {"password": {"generate": {}}, "connectionSecret": {"name": "delivered"}}
ROUNDS = 20
POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
SESSIONS = "FROM pg_stat_activity WHERE application_name LIKE 'pgrole-controller %'"
TURN = "LOCK TABLE pgrole.turn_to_change IN ACCESS EXCLUSIVE MODE"


def text(secret: Json | None) -> str:
    assert secret is not None
    return str(secret["text"]["password"])


def version(secret: Json | None) -> str:
    assert secret is not None
    return str(secret["metadata"]["resourceVersion"])


async def request(kube: Kube, value: str) -> None:
    await kube.patch("app", {"metadata": {"annotations": {"pgrole.dev/rotate": value}}})


async def look_again(kube: Kube, comment: str) -> Json:
    """Causes one more reconcile of the object, and waits until status reports it."""
    obj = await kube.patch("app", {"spec": {"comment": comment}})
    generation = obj["metadata"]["generation"]
    return await kube.wait_for(
        "app", lambda seen: is_ready(seen) and seen["status"]["observedGeneration"] >= generation, comment
    )


async def assert_agreement(kube: Kube, database: Database, password: str, held: Json | None = None) -> None:
    """Asserts that role and Secret have the password; given `held`, that the Secret was not written since."""
    await database.wait_password("app", password)
    await look_again(kube, "after all that")
    now = await kube.secret("delivered")
    assert text(now) == password
    assert held is None or version(now) == version(held)
    await database.wait_password("app", password)


@asynccontextmanager
async def denied(
    kube: Kube, resource: str, condition: str, probe: Callable[[], Awaitable[Json]]
) -> AsyncIterator[None]:
    """Denies writes of a resource in the namespace by an admission policy; `probe` shows whether it is effective."""
    group, _, plural = resource.rpartition(":")
    rule = {"apiGroups": [group], "apiVersions": ["*"], "operations": ["CREATE", "UPDATE"], "resources": [plural]}
    selector = {"matchLabels": {"kubernetes.io/metadata.name": kube.namespace}}
    kind = {"apiVersion": "admissionregistration.k8s.io/v1"}
    name = f"deny-{kube.namespace}-{plural.replace('/', '-')}"
    policy = {
        **kind,
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": name},
        "spec": {
            "matchConstraints": {"resourceRules": [rule]},
            "matchConditions": [{"name": "this", "expression": condition}],
            "validations": [{"expression": "false", "message": "denied for a moment"}],
        },
    }
    binding = {
        **kind,
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": name},
        "spec": {
            "policyName": name,
            "validationActions": ["Deny"],
            "matchResources": {"namespaceSelector": selector},
        },
    }

    async def is_denied() -> bool:
        try:
            await probe()
        except LocalApiError as error:
            return "denied for a moment" in str(error)
        return False

    async def is_allowed() -> bool:
        return not await is_denied()

    bindings = POLICIES.replace("policies", "policybindings")
    await kube.server.request("POST", POLICIES, policy)
    await kube.server.request("POST", bindings, binding)
    try:
        assert await reached(is_denied, PATIENCE)
        yield
    finally:
        await kube.server.request("DELETE", f"{bindings}/{name}")
        await kube.server.request("DELETE", f"{POLICIES}/{name}")
        assert await reached(is_allowed, PATIENCE)


def no_secret(kube: Kube) -> Any:
    async def probe() -> Json:
        body = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "delivered"}, "data": {"x": "eA=="}}
        return await kube.server.request(
            "PATCH",
            kube.secret_path("delivered"),
            body,
            content_type="application/apply-patch+yaml",
            query={"fieldManager": "probe", "dryRun": "All", "force": "true"},
        )

    return denied(kube, ":secrets", "object.metadata.name == 'delivered'", probe)


def no_status(kube: Kube) -> Any:
    async def probe() -> Json:
        return await kube.server.request(
            "PATCH",
            f"{kube.path('app')}/status",
            {"status": {"driftCount": 12345}},
            content_type="application/merge-patch+json",
            query={"dryRun": "All"},
        )

    return denied(kube, "pgrole.dev:pgroles/status", "true", probe)


ACTIONS = ["rotate", "delete"]


async def begin(stage: Stage) -> Json:
    """Returns the Secret of a Ready object; no controller runs afterwards."""
    async with running(stage.controller()):
        await stage.kube.apply("app", **GENERATED)
        await stage.kube.wait_ready("app")
        return await stage.kube.wait_secret("delivered")


async def disturb(kube: Kube, action: str) -> None:
    if action == "rotate":
        await request(kube, "1")
    else:
        await kube.delete_secret("delivered")


@pytest.mark.parametrize("action", ACTIONS)
async def test_a_kill_before_the_secret_is_written_loses_nothing(stage: Stage, action: str) -> None:
    kube, before = stage.kube, await begin(stage)
    async with stage.database() as database:
        async with no_secret(kube):
            controller = stage.controller()
            await controller.start()
            await controller.wait_log("session with PostgreSQL begins")
            await disturb(kube, action)
            obj = await kube.wait_reason("app", "NotAllowed")
            conditions = json.dumps(obj["status"]["conditions"])
            assert ": 422 Invalid" in conditions
            assert "denied for a moment" not in conditions
            await controller.kill()
            await database.wait_password("app", text(before))
        async with running(stage.controller()):
            after = await kube.wait_secret("delivered", lambda held: text(held) != text(before), "another password")
            await assert_agreement(kube, database, text(after), after)


@pytest.mark.parametrize("action", ACTIONS)
async def test_a_kill_between_secret_and_database_ends_with_the_secrets_password_set(stage: Stage, action: str) -> None:
    kube, before = stage.kube, await begin(stage)
    async with stage.database() as database, stage.database() as other:
        controller = stage.controller()
        await controller.start()
        await controller.wait_log("session with PostgreSQL begins")
        await look_again(kube, "at rest")
        async with other.connection.transaction():
            await other.execute(TURN)
            await disturb(kube, action)
            after = await kube.wait_secret("delivered", lambda held: text(held) != text(before), "another password")
            await controller.kill()
            # A statement that it sent waits for the lock, and would still run.
            await database.execute(f"SELECT pg_terminate_backend(pid) {SESSIONS}")
            await database.wait_value(f"SELECT count(*) {SESSIONS}", 0)
        await database.wait_password("app", text(before))
        async with running(stage.controller()):
            await assert_agreement(kube, database, text(after), after)


@pytest.mark.parametrize("action", ACTIONS)
async def test_a_kill_between_database_and_status_repeats_nothing(stage: Stage, action: str) -> None:
    kube, before = stage.kube, await begin(stage)
    async with stage.database() as database:
        async with no_status(kube):
            controller = stage.controller()
            await controller.start()
            await controller.wait_log("session with PostgreSQL begins")
            await disturb(kube, action)
            after = await kube.wait_secret("delivered", lambda held: text(held) != text(before), "another password")
            await database.wait_password("app", text(after))
            await controller.wait_log("status not written, trying again")
            await controller.kill()
        async with running(stage.controller()):
            await assert_agreement(kube, database, text(after), after)


async def test_a_lock_only_delays_a_rotation(stage: Stage) -> None:
    kube, before = stage.kube, await begin(stage)
    async with running(stage.controller()) as controller, stage.database() as database, stage.database() as other:
        await look_again(kube, "at rest")
        async with other.connection.transaction():
            await other.execute(TURN)
            await request(kube, "1")
            after = await kube.wait_secret("delivered", lambda held: text(held) != text(before), "another password")
            await controller.wait_log("object is not ready")
        await assert_agreement(kube, database, text(after), after)


async def test_each_rotation_request_is_handled_once_despite_kills_at_random_points(stage: Stage) -> None:
    kube, held = stage.kube, await begin(stage)
    since, handled = version(held), 0
    async with stage.database() as database:
        for number in range(1, ROUNDS + 1):
            controller = stage.controller()
            await controller.start()
            await controller.wait_log("session with PostgreSQL begins")
            await wait_agreement(kube, database, handled)
            await request(kube, str(number))
            handled = number
            await anyio.sleep(random.uniform(0, 0.08))  # makes the point of the kill random
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
    await database.wait_password("app", text(await kube.secret("delivered")))


async def read_history(kube: Kube, since: str) -> list[Json]:
    """Returns every version of the Secret after `since`. No controller may be running."""
    found: list[Json] = []
    last = version(await kube.patch_secret("delivered", {"metadata": {"labels": {"last": since}}}))
    async with Client.connect(str(kube.server.kubeconfig)) as client:
        query = {"watch": "true", "resourceVersion": since}
        async with client.stream(kube.secret_path(), query=query, inactivity=PATIENCE) as lines:
            async for line in lines:
                event = json.loads(line)
                if event["type"] in ("ADDED", "MODIFIED") and event["object"]["metadata"]["name"] == "delivered":
                    found.append(event["object"])
                    if version(event["object"]) == last:
                        return found
    raise AssertionError("the history ended early")


async def test_a_restart_rotates_and_writes_nothing(stage: Stage) -> None:
    kube = stage.kube
    async with running(stage.controller()):
        await kube.apply("app", **(GENERATED | {"password": {"generate": {"rotateEvery": "1h"}}}))
        await kube.wait_ready("app")
        before = await kube.wait_secret("delivered")
        await request(kube, "1")
        held = await kube.wait_secret("delivered", lambda held: text(held) != text(before), "another password")
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
    assert version(await kube.secret("delivered")) == version(held)
    assert {obj["metadata"]["name"]: obj for obj in await kube.objects()} == objects


async def test_a_rotation_that_became_due_while_no_controller_ran_happens_once(stage: Stage) -> None:
    kube = stage.kube
    async with running(stage.controller()):
        await kube.apply("app", **(GENERATED | {"password": {"generate": {"rotateEvery": "15s"}}}))
        obj = await kube.wait_ready("app")
    before = await kube.wait_secret("delivered")
    due = datetime.fromisoformat(before["metadata"]["annotations"]["pgrole.dev/rotated-at"])
    assert obj["status"]["nextRotation"]
    async with stage.database() as database:
        await database.wait_value(f"SELECT now() > '{due.isoformat()}'::timestamptz + interval '15 s'", True)
        since = version(before)
        await kube.patch("app", {"spec": {"password": {"generate": {"rotateEvery": "1h"}}}})
        async with running(stage.controller()):
            await kube.wait_ready("app")
            assert text(await kube.secret("delivered")) == text(before), "the current spec decides"
            await kube.patch("app", {"spec": {"password": {"generate": {"rotateEvery": "15s"}}}})
            held = await kube.wait_secret("delivered", lambda held: text(held) != text(before), "another password")
            await kube.patch("app", {"spec": {"password": {"generate": {"rotateEvery": "1h"}}}})
            await assert_agreement(kube, database, text(held))
        assert len({seen["data"]["password"] for seen in await read_history(kube, since)}) == 1


async def test_the_database_follows_a_secret_restored_from_a_backup_and_repeats_no_rotation(stage: Stage) -> None:
    kube, backup = stage.kube, await begin(stage)
    async with stage.database() as database:
        async with running(stage.controller()):
            await request(kube, "1")
            await kube.wait_secret("delivered", lambda held: text(held) != text(backup), "another password")
            await database.wait_value("SELECT rotate_handled FROM pgrole.claim WHERE role_name = 'app'", "1")
            annotations = {"pgrole.dev/rotate-handled": None} | backup["metadata"]["annotations"]
            restored = await kube.patch_secret(
                "delivered", {"metadata": {"annotations": annotations}, "data": backup["data"]}
            )
            await assert_agreement(kube, database, text(backup))
            assert version(await kube.secret("delivered")) == version(restored)
        async with running(stage.controller()):
            await look_again(kube, "once more")
            assert version(await kube.secret("delivered")) == version(restored)
            await request(kube, "2")
            after = await kube.wait_secret("delivered", lambda held: text(held) != text(backup), "another password")
            await assert_agreement(kube, database, text(after), after)


async def test_handled_rotations_are_not_repeated_after_the_claims_are_lost(stage: Stage) -> None:
    kube, before = stage.kube, await begin(stage)
    async with running(stage.controller()), stage.database() as database:
        await request(kube, "1")
        held = await kube.wait_secret("delivered", lambda held: text(held) != text(before), "another password")
        await look_again(kube, "at rest")
        await database.drop_schema()
        await database.wait_value("SELECT to_regclass('pgrole.claim') IS NOT NULL", True)
        await database.wait_value("SELECT rotate_handled FROM pgrole.claim WHERE role_name = 'app'", "1")
        await assert_agreement(kube, database, text(held))
