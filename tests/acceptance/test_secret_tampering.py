"""What users who may write Secrets, or only PgRoles, can achieve."""

import secrets
from typing import Any

import pytest

from tests.acceptance.world import Database, Json, Kube, Stage, condition, running

pytestmark = pytest.mark.slow

GENERATED: Json = {"password": {"generate": {}}, "connectionSecret": {"name": "delivered"}}


@pytest.fixture
def role() -> str:
    return f"v{secrets.token_hex(3)}"


def text(secret: Json) -> str:
    return str(secret["text"]["password"])


async def deliver(kube: Kube, role: str, **spec: Any) -> Json:
    await kube.apply("app", name=role, **(GENERATED | spec))
    await kube.wait_ready("app")
    return await kube.wait_secret("delivered")


@pytest.mark.parametrize("value", ["never asked for", "x" * 200_000])
async def test_a_forged_rotate_handled_annotation_is_removed_and_the_new_password_stays(
    kube: Kube, database: Database, role: str, value: str
) -> None:
    before = await deliver(kube, role)
    await kube.patch_secret("delivered", {"metadata": {"annotations": {"pgrole.dev/rotate-handled": value}}})
    after = await kube.wait_secret("delivered", lambda held: text(held) != text(before), "another password")
    await database.wait_password(role, text(after))
    assert "pgrole.dev/rotate-handled" not in after["metadata"]["annotations"]
    await database.execute(f"ALTER ROLE \"{role}\" PASSWORD 'of somebody'")
    await database.wait_password(role, text(after))
    assert text(await kube.wait_secret("delivered")) == text(after)


async def test_a_renamed_connection_secret_with_a_foreign_finalizer_is_deleted_only_once(
    stage: Stage,
) -> None:
    kube = stage.kube
    async with running(stage.controller()) as controller:
        await kube.apply("app", **GENERATED)
        await kube.wait_ready("app")
        await kube.patch_secret("delivered", {"metadata": {"finalizers": ["example.com/held"]}})
        await kube.apply("app", **GENERATED | {"connectionSecret": {"name": "elsewhere"}})
        try:
            await kube.wait_ready("app")
            await kube.wait_secret("delivered", lambda held: "deletionTimestamp" in held["metadata"], "being deleted")
            await controller.wait_log("connection Secret deleted")
            before = controller.log.count("connection Secret deleted")
            await kube.apply("last", login=False)
            await kube.wait_ready("last")
            assert controller.log.count("connection Secret deleted") == before
        finally:
            await kube.patch_secret("delivered", {"metadata": {"finalizers": None}})


def at_its_bound(number: int) -> Json:
    """Returns a spec that uses every field to the maximum that the CRD permits."""
    many = {f"app.p{at:03}{'x' * 30}": "é" * 1024 for at in range(64)}
    return {
        "name": "ü" * 30 + f"{number:03}",
        "login": True,
        "connectionLimit": 2**31 - 1,
        "validUntil": "9999-12-31T23:59:59Z",
        "comment": "ß" * 1024,
        "password": {"generate": {"length": 256, "rotateEvery": "87600h"}},
        "memberOf": [{"role": f"bound_{at:02}" + "g" * 55, "admin": False} for at in range(64)],
        "parameters": many,
        "databaseParameters": [
            {"database": f"no_such_{at:02}" + "d" * 53, "parameters": {"app.x": "1"}} for at in range(32)
        ],
        "connectionSecret": {
            "name": "s" * 253,
            "template": {
                "metadata": {
                    "labels": {f"l{at}": "v" * 63 for at in range(32)},
                    "annotations": {f"example.com/a{at}": "v" * 4096 for at in range(32)},
                },
                "data": {f"KEY{at:02}": "{password_url}" * 10 + "t" * 3950 for at in range(32)},
            },
        },
        "reassignOwnedTo": "h" * 63,
        "terminateSessions": True,
        "deletionPolicy": "Drop",
        "drift": {"policy": "Correct", "ignore": ["comment"]},
    }


async def test_an_object_with_every_field_at_its_maximum_becomes_ready(stage: Stage) -> None:
    kube = stage.kube
    async with running(stage.controller()), stage.database() as database:
        spec = at_its_bound(1)
        await database.execute(";".join(f'CREATE ROLE "{one["role"]}"' for one in spec["memberOf"][1:]))
        await kube.apply("app", **spec)
        await kube.wait_reason("app", "MembershipPending")
        await database.execute(f'CREATE ROLE "{spec["memberOf"][0]["role"]}"')
        found = await kube.wait_reason("app", "DatabaseError")
        assert "no_such_00" in condition(found, "Ready")["message"]
        for one in spec["databaseParameters"]:
            await database.execute(f'CREATE DATABASE "{one["database"]}"')
        await kube.apply("app", **spec | {"connectionLimit": 7})
        await kube.wait_ready("app")
        held = await kube.wait_secret("s" * 253)
        assert len(held["text"]) == 32
        await database.execute(f'ALTER ROLE "{spec["name"]}" RESET ALL')
        await database.wait_value(
            f"SELECT count(*)::int FROM pg_db_role_setting WHERE setrole = '\"{spec['name']}\"'::regrole", 33
        )
        await database.execute("CREATE ROLE " + "h" * 63)
        await kube.delete("app")
        await kube.wait_gone("app")
