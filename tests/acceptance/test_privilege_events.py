"""What `kubectl describe` shows about drifting privileges, and what only with `attribution.expose: Full`."""

import json
import re
import secrets
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest
import pytest_asyncio

from pgrole_controller.local.apiserver import ApiServer
from pgrole_controller.local.postgres import PostgresServer
from pgrole_controller.postgres.connection import Connection
from tests.acceptance.servers import PgServers
from tests.acceptance.world import Controller, Json, Kube, make_kube, remove, running
from tests.servers import Servers

pytestmark = pytest.mark.slow

APPLICATION = "nightly report"


@pytest_asyncio.fixture(loop_scope="session")
async def postgres(servers: Servers) -> AsyncIterator[PostgresServer]:
    async with servers.run() as server:
        yield server


@pytest_asyncio.fixture(loop_scope="session")
async def kube(api_server: ApiServer) -> AsyncIterator[Kube]:
    made = await make_kube(api_server)
    yield made
    await remove(made)


async def test_events_name_the_login_and_only_under_full_application_and_address(
    api_server: ApiServer, kube: Kube, postgres: PostgresServer, tmp_path: Path
) -> None:
    name, declared = f"n{secrets.token_hex(4)}", PgServers(api_server)
    home = await asyncpg.connect(postgres.dsn())
    await home.execute(f"CREATE DATABASE {name}")
    hand = await asyncpg.connect(
        postgres.dsn(database=name), server_settings={"application_name": APPLICATION}, statement_cache_size=0
    )
    async with running(Controller(api_server, "", tmp_path), connected=False):
        for expose in ("Minimal", "Full"):
            applied = await declared.apply(
                name, postgres, databases={"matchNames": ["*"], "detection": "Events"}, attribution={"expose": expose}
            )
            generation = applied["metadata"]["generation"]
            await declared.wait_for(
                name,
                lambda obj, seen=generation: obj.get("status", {}).get("observedGeneration") == seen,  # type: ignore[misc]
                expose,
            )
            await declared.wait_ready(name)
            if expose == "Minimal":
                await kube.apply("owner", name=f"{name}_owner", serverRef={"name": name})
                await kube.wait_ready("owner")
                await hand.execute(f"CREATE SCHEMA app AUTHORIZATION {name}_owner; SET ROLE {name}_owner")
                await hand.execute("CREATE TABLE app.orders (id int)")
                await hand.execute("RESET ROLE")
            await check_events(kube, hand, name, expose)
        await kube.delete("owner")
        await kube.wait_number(0)
        await declared.delete(name)
    await hand.close()
    await home.close()


async def check_events(kube: Kube, hand: Connection, name: str, expose: str) -> None:
    reader, table = f"reader-{expose.lower()}", f"app.invoices_{expose.lower()}"
    role = f"{name}_{expose.lower()}"
    privileges = [{"database": name, "schemas": [{"name": "app", "access": ["Read"]}]}]
    await kube.apply(reader, name=role, privileges=privileges, serverRef={"name": name})
    await kube.wait_ready(reader)
    await hand.execute(f"GRANT DELETE ON app.orders TO {role}")
    event = await kube.wait_event("DriftCorrected", about=reader)
    await hand.execute(f"SET ROLE {name}_owner; CREATE TABLE {table} (id int); RESET ROLE")
    extended = await kube.wait_event("PrivilegesExtended", about=reader)
    obj = await kube.wait_for(reader, lambda obj: obj["status"]["driftCount"] == 1, "driftCount 1")
    await kube.delete(reader)
    await kube.wait_gone(reader)
    place = rf' \("{APPLICATION}", 127\.0\.0\.1\)' if expose == "Full" else ""
    assert re.fullmatch(
        rf"DELETE on table app\.orders \(database {name}\) was granted by postgres{place}"
        r" at \d\d:\d\d:\d\d\.\d\d\d and revoked",
        event["note"],
    ), event["note"]
    assert extended["note"] == f"granted declared privileges (database {name}): SELECT on table {table}"
    shown = _secrets_in([event, extended, obj])
    if expose == "Full":
        cause = obj["status"]["lastDrift"]["by"]
        assert (cause["application"], cause["address"]) == (APPLICATION, "127.0.0.1")
        assert cause["statement"].startswith("GRANT DELETE")
    else:
        assert shown == []


def _secrets_in(told: list[Json]) -> list[str]:
    text = json.dumps(told)
    return [one for one in (APPLICATION, "127.0.0.1", "GRANT DELETE") if one in text]
