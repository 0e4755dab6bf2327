"""A deleted object's role is dropped when nothing is lost by it, and says what stands in the way until then."""

import secrets

import asyncpg
import pytest

from pgrole_controller.local.postgres import PostgresServer
from tests.acceptance.world import Database, Kube, says


@pytest.fixture
def role() -> str:
    return f"d{secrets.token_hex(3)}"


async def test_what_the_role_owns_goes_to_the_heir(kube: Kube, database: Database, role: str) -> None:
    await kube.apply("heir", name=f"{role}_heir")
    await kube.apply("app", name=role, deletionPolicy="Drop", reassignOwnedTo=f"{role}_heir")
    await kube.wait_ready("app")
    await kube.wait_ready("heir")
    await database.execute(f"CREATE TABLE t_{role} AS SELECT 1 AS one; ALTER TABLE t_{role} OWNER TO {role}")
    await kube.delete("app")
    await kube.wait_gone("app")
    assert await database.role(role) is None
    assert await database.fetchval(f"SELECT tableowner FROM pg_tables WHERE tablename = 't_{role}'") == f"{role}_heir"
    await database.execute(f"DROP TABLE t_{role}")


async def test_open_sessions_are_waited_for_unless_they_shall_be_ended(
    kube: Kube, database: Database, shared_postgres: PostgresServer, role: str
) -> None:
    await kube.apply_secret("source", password="secret")
    await kube.apply("app", name=role, login=True, deletionPolicy="Drop", password={"secretRef": {"name": "source"}})
    await kube.wait_ready("app")
    connection = await asyncpg.connect(shared_postgres.dsn(role, password="secret"))
    try:
        await kube.delete("app")
        await kube.wait_for("app", lambda obj: says(obj, "DropBlocked", "sessions", "terminateSessions"), "DropBlocked")
        await kube.patch("app", {"spec": {"terminateSessions": True}})
        await kube.wait_gone("app")
        assert await database.role(role) is None
    finally:
        connection.terminate()
