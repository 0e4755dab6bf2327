"""Databases beyond `databases.max`: everything declared is kept there, too, and only noticed later."""

import secrets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import asyncpg
import pytest
import pytest_asyncio

from pgrole_controller.core.privileges.database_places import QUIET_SECONDS
from pgrole_controller.local.apiserver import ApiServer
from pgrole_controller.local.postgres import PostgresServer
from pgrole_controller.local.process import reached
from tests.acceptance.servers import EVERYTHING, PgServers
from tests.acceptance.world import PATIENCE, Controller, Json, Kube, make_kube, remove, running
from tests.servers import Servers

pytestmark = pytest.mark.slow


@pytest_asyncio.fixture(loop_scope="session")
async def postgres(servers: Servers) -> AsyncIterator[PostgresServer]:
    async with servers.run() as server:
        yield server


@pytest_asyncio.fixture(loop_scope="session")
async def kube(api_server: ApiServer) -> AsyncIterator[Kube]:
    made = await make_kube(api_server)
    yield made
    await remove(made)


def detections(server: Json) -> dict[str, str]:
    return {one["name"]: one.get("detection", "") for one in server["status"].get("databases", ())}


def readiness(obj: Json) -> dict[str, bool]:
    return {one["database"]: one["ready"] for one in obj.get("status", {}).get("privileges", ())}


async def test_databases_beyond_the_maximum_are_kept_as_declared(
    api_server: ApiServer, kube: Kube, postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    server, declared = f"n{secrets.token_hex(4)}", PgServers(api_server)
    role, alice = f"{server}_reader", f"{server}_alice"
    names = first, second, third = [f"{server}_{letter}" for letter in "abc"]
    closed, missing = f"{server}_closed", f"{server}_missing"
    async with AsyncExitStack() as stack:
        home = await asyncpg.connect(postgres.dsn())
        stack.push_async_callback(home.close)
        await home.execute(f"CREATE ROLE {alice} LOGIN SUPERUSER PASSWORD 'a'")
        hands = {}
        for name in (*names, closed):
            await home.execute(f"CREATE DATABASE {name}")
            if name != closed:
                hands[name] = await asyncpg.connect(postgres.dsn(alice, password="a", database=name))
                stack.push_async_callback(hands[name].close)
                await hands[name].execute("CREATE SCHEMA app; CREATE TABLE app.orders (id int)")
        await home.execute(f"ALTER DATABASE {closed} ALLOW_CONNECTIONS false")

        async def wait_may(name: str, privilege: str, *, expected: bool) -> None:
            query = "SELECT has_table_privilege(oid, 'app.orders', $2) FROM pg_roles WHERE rolname = $1"

            async def is_so() -> bool:
                return (await hands[name].fetchval(query, role, privilege)) is expected

            assert await reached(is_so, PATIENCE), (name, privilege, expected, await kube.objects())

        async def declare(*databases: str) -> None:
            schemas = [{"name": "app", "access": ["Read"]}]
            privileges = [{"database": name, "schemas": schemas} for name in databases]
            await kube.apply(
                "reader", name=role, privileges=privileges, deletionPolicy="Drop", serverRef={"name": server}
            )

        folder = tmp_path_factory.mktemp("polled-databases")
        async with running(Controller(api_server, "", folder), connected=False):
            rule = {**EVERYTHING, "privileges": [{}]}
            await declared.apply(server, postgres, databases={"matchNames": ["*"], "max": 1}, allow=rule)
            await declared.wait_ready(server)
            await declare(first)
            await kube.wait_ready("reader")
            await declare(*names, closed, missing)
            for name in names:
                await wait_may(name, "SELECT", expected=True)
            expected = {**dict.fromkeys(names, True), closed: False, missing: False}
            await kube.wait_for("reader", lambda obj: readiness(obj) == expected, str(expected))

            await hands[third].execute(f"GRANT DELETE ON app.orders TO {role}")
            await wait_may(third, "DELETE", expected=False)
            event = await kube.wait_event("DriftCorrected", about="reader")
            assert event["note"].startswith(f"DELETE on table app.orders (database {third}) was granted by {alice} at ")
            expected_detections = {first: "Events", second: "Poll", third: "Poll", closed: "", missing: ""}
            found = await declared.wait_for(
                server, lambda obj: detections(obj) == expected_detections, "two are polled"
            )
            messages = {one["name"]: one["message"] for one in found["status"]["databases"]}
            assert "polled in turn" in messages[second]
            assert "does not accept connections" in messages[closed]
            assert "does not exist" in messages[missing]

            await declare(*names)
            await kube.wait_ready("reader")

            async def drifts_and_is_placed() -> bool:
                await hands[second].execute(f"GRANT DELETE ON app.orders TO {role}")
                await wait_may(second, "DELETE", expected=False)
                obj = await declared.get(server)
                return obj is not None and detections(obj) == {first: "Poll", second: "Events", third: "Poll"}

            assert await reached(drifts_and_is_placed, QUIET_SECONDS + PATIENCE)

            await kube.delete("reader")
            await kube.wait_number(0)
            assert not await home.fetchval("SELECT count(*) FROM pg_roles WHERE rolname = $1", role)
            await declared.delete(server)
