"""Passwords follow their Secret, are never shown, and are set back when they are changed in the database."""

import secrets
from typing import Any

import asyncpg
import pytest

from pgrole_controller.core.scram import make_verifier
from pgrole_controller.local.postgres import PostgresServer
from tests.acceptance.world import Database, Json, Kube, condition, says


@pytest.fixture
def role() -> str:
    return f"p{secrets.token_hex(3)}"


def source(name: str = "source", **more: Any) -> Json:
    return {"secretRef": {"name": name, **more}}


def drifts(count: int) -> Any:
    return lambda obj: obj.get("status", {}).get("driftCount", 0) >= count


async def test_the_role_logs_in_with_what_the_secret_holds(
    kube: Kube, database: Database, shared_postgres: PostgresServer, role: str
) -> None:
    await kube.apply_secret("source", password="pässword \u00aa 1")
    await kube.apply("app", name=role, login=True, password=source())
    obj = await kube.wait_ready("app")
    connection = await asyncpg.connect(shared_postgres.dsn(role, password="pässword \u00aa 1"))
    await connection.close()
    held = await kube.secret("source")
    assert held is not None
    assert obj["status"]["passwordSecretVersion"] == held["metadata"]["resourceVersion"]


async def test_a_changed_secret_is_applied(kube: Kube, database: Database, role: str) -> None:
    await kube.apply_secret("source", password="first")
    await kube.apply("app", name=role, password=source())
    await kube.wait_ready("app")
    await database.wait_password(role, "first")
    await kube.apply_secret("source", password="second")
    await database.wait_password(role, "second")
    obj = await kube.wait_ready("app")
    assert obj["status"]["driftCount"] == 0, "a changed Secret is no drift"


async def test_a_password_changed_in_the_database_is_set_back(kube: Kube, database: Database, role: str) -> None:
    await kube.apply_secret("source", password="ours")
    await kube.apply("app", name=role, password=source())
    await kube.wait_ready("app")
    await database.execute(f"ALTER ROLE {role} PASSWORD 'theirs'")
    obj = await kube.wait_for("app", drifts(1), "driftCount 1")
    await database.wait_password(role, "ours")
    assert obj["status"]["lastDrift"]["fields"] == ["password"]
    assert obj["status"]["lastDrift"]["corrected"] is True


async def test_a_disabled_password_is_kept_away(kube: Kube, database: Database, role: str) -> None:
    await kube.apply("app", name=role, password={"disabled": True})
    await kube.wait_ready("app")
    await database.execute(f"ALTER ROLE {role} PASSWORD 'theirs'")
    await kube.wait_for("app", drifts(1), "driftCount 1")
    assert await database.verifier(role) is None


async def test_a_missing_secret_is_waited_for_and_the_rest_is_applied(
    kube: Kube, database: Database, role: str
) -> None:
    await kube.apply("app", name=role, login=True, password=source())
    obj = await kube.wait_reason("app", "SecretMissing")
    assert '"source"' in condition(obj, "Ready")["message"]
    await database.wait_role(role, lambda row: bool(row["rolcanlogin"]), "login")
    await kube.apply_secret("source", other="x")
    await kube.wait_for("app", lambda obj: says(obj, "SecretMissing", 'key "password"'), "which key is missing")
    await kube.apply_secret("source", password="now")
    await database.wait_password(role, "now")
    await kube.wait_ready("app")
    await kube.delete_secret("source")
    await kube.wait_reason("app", "SecretMissing")
    await database.wait_password(role, "now")


async def test_a_ready_verifier_is_used_as_it_is(kube: Kube, database: Database, role: str) -> None:
    ready = make_verifier("known elsewhere", b"0123456789abcdef", 5000)
    await kube.apply_secret("source", verifier=ready.text)
    await kube.apply("app", name=role, password=source(key="verifier"))
    await kube.wait_ready("app")
    assert await database.verifier(role) == ready


async def test_a_generated_password_is_delivered_and_works(
    kube: Kube, database: Database, shared_postgres: PostgresServer, role: str
) -> None:
    await kube.apply("app", name=role, login=True, password={"generate": {}}, connectionSecret={"name": "delivered"})
    obj = await kube.wait_ready("app")
    secret = await kube.wait_secret("delivered")
    assert secret["text"]["username"] == role
    assert len(secret["text"]["password"]) == 32
    connection = await asyncpg.connect(secret["text"]["uri"])
    await connection.close()
    assert secret["type"] == "Opaque"
    assert [owner["uid"] for owner in secret["metadata"]["ownerReferences"]] == [obj["metadata"]["uid"]]


async def test_a_deleted_secret_comes_back_with_another_password(kube: Kube, database: Database, role: str) -> None:
    await kube.apply("app", name=role, password={"generate": {}}, connectionSecret={"name": "delivered"})
    await kube.wait_ready("app")
    before = (await kube.wait_secret("delivered"))["text"]["password"]
    await kube.delete_secret("delivered")
    after = (await kube.wait_secret("delivered"))["text"]["password"]
    assert after != before
    await database.wait_password(role, after)
    await kube.wait_event("SecretRestored")
    await kube.wait_ready("app")


async def test_a_rotation_is_made_on_demand_and_only_once(kube: Kube, database: Database, role: str) -> None:
    await kube.apply("app", name=role, password={"generate": {}}, connectionSecret={"name": "delivered"})
    await kube.wait_ready("app")
    before = (await kube.wait_secret("delivered"))["text"]["password"]
    await kube.patch("app", {"metadata": {"annotations": {"pgrole.dev/rotate": "1"}}})
    secret = await kube.wait_secret("delivered", lambda held: held["text"]["password"] != before, "another password")
    await database.wait_password(role, secret["text"]["password"])
    await kube.wait_event("PasswordRotated")
    await kube.patch("app", {"spec": {"comment": "look again"}})
    await database.wait_role(role, lambda row: row["comment"] == "look again", "comment")
    assert await kube.secret("delivered") == secret


async def test_passwords_are_rotated_in_time(kube: Kube, database: Database, role: str) -> None:
    await kube.apply(
        "app", name=role, password={"generate": {"rotateEvery": "3s"}}, connectionSecret={"name": "delivered"}
    )
    obj = await kube.wait_ready("app")
    assert obj["status"]["nextRotation"]
    seen: set[str] = set()
    while len(seen) < 3:
        held = await kube.wait_secret("delivered", lambda held: held["text"]["password"] not in seen, "another")
        seen.add(held["text"]["password"])
        await database.wait_password(role, held["text"]["password"])
