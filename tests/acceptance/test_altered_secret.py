"""An admission policy that changes the connection Secret while the controller writes it."""

import json
import secrets
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

from tests.acceptance.admission import admission_policy
from tests.acceptance.world import Json, Kube, Stage, condition, running, says

INJECTED = "of-a-policy"


@asynccontextmanager
async def mutating(kube: Kube, key: str, operation: str = "replace") -> AsyncIterator[None]:
    """Has the API server replace or add this key of each Secret in the namespace that has the key `username`."""
    value = b64encode(INJECTED.encode()).decode()
    patch = f'[JSONPatch{{op: "{operation}", path: "/data/{key}", value: "{value}"}}]'
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"], "resources": ["secrets"]}
    spec = {
        "matchConstraints": {"resourceRules": [rule]},
        "matchConditions": [{"name": "this", "expression": "has(object.data) && 'username' in object.data"}],
        "failurePolicy": "Fail",
        "reinvocationPolicy": "Never",
        "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": patch}}],
    }

    async def is_altered() -> bool:
        data = {"username": "eA==", "password": "eA=="}
        body = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "probe"}, "data": data}
        made = await kube.server.request("POST", kube.secret_path(), body, query={"dryRun": "All"})
        return bool(made["data"].get(key) == value)

    async with admission_policy(kube, "Mutating", f"alter-{kube.namespace}", spec, {}, is_altered):
        yield


@pytest.fixture
def role() -> str:
    return f"m{secrets.token_hex(3)}"


def delivering(role: str, origin: Json) -> Json:
    return {"name": role, "login": True, "password": origin, "connectionSecret": {"name": "delivered"}}


@pytest.mark.parametrize(
    "origin",
    [
        pytest.param({"generate": {}}, id="generated"),
        pytest.param({"secretRef": {"name": "chosen"}}, id="given", marks=pytest.mark.slow),
    ],
)
async def test_a_policy_that_changes_the_connection_secret_is_reported_until_it_is_gone(
    stage: Stage, role: str, origin: Json
) -> None:
    kube, controller = stage.kube, stage.controller()
    await kube.apply_secret("chosen", password="of their own choice")
    async with running(controller), stage.database() as database:
        async with mutating(kube, "password"):
            begun = anyio.current_time()
            await kube.apply("app", **delivering(role, origin))
            words = ('key "password"', 'Secret "delivered"', "exempt")
            found = await kube.wait_for("app", lambda obj: says(obj, "NotAllowed", *words), "what is changed")
            assert condition(found, "Stalled")["status"] == "True"
            held = await kube.wait_secret("delivered")
            assert held["text"]["password"] == INJECTED
            await controller.wait_count("connection Secret written", 4)
            assert anyio.current_time() - begun > 1.5, "back-off"
            for text in (held["text"]["uri"].split(":")[2].split("@")[0], INJECTED):
                assert text not in controller.log
                assert text not in json.dumps([await kube.get("app"), await kube.events("NotAllowed")])
        held = await kube.wait_secret("delivered", lambda one: one["text"]["password"] != INJECTED, "what was sent")
        await kube.wait_ready("app")
        held = await kube.wait_secret("delivered")
        await database.wait_password(role, held["text"]["password"])


@pytest.mark.slow
async def test_a_key_that_a_policy_adds_does_no_harm(stage: Stage, role: str) -> None:
    kube = stage.kube
    async with running(stage.controller()), stage.database() as database, mutating(kube, "ca", "add"):
        await kube.apply("app", **delivering(role, {"generate": {}}))
        await kube.wait_ready("app")
        held = await kube.wait_secret("delivered")
        assert held["text"]["ca"] == INJECTED
        await database.wait_password(role, held["text"]["password"])
