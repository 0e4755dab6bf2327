"""What whoever may write Secrets, or PgRoles alone, might bring about with either."""

import secrets
from typing import Any

import pytest

from tests.acceptance.world import Database, Json, Kube

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
async def test_a_note_of_a_request_that_was_never_made_is_removed_and_the_password_stays_from_then_on(
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
