"""Over a hundred objects that refer to each other, applied at once: all become Ready without reporting an error."""

import json
import logging
import random
import ssl
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiohttp
import anyio
import pytest

from pgrole_controller.core.scram import verifies
from pgrole_controller.local.process import reached
from tests.acceptance.world import Database, Json, Kube, Stage, condition, is_ready, running

pytestmark = pytest.mark.slow

log = logging.getLogger(__name__)

SIZE = 120
SEED = 20240229
#: Deadline for the whole batch, in seconds: generous, since the machine may be busy.
BATCH_SECONDS = 180.0

#: Reasons that Ready may have on the way.
HARMLESS = {"Reconciled", "Progressing", "MembershipPending"}


@dataclass
class Seen:
    """Everything that the API server reported about the objects: reason of Ready → names of the objects that had it."""

    reasons: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    messages: dict[str, str] = field(default_factory=dict)
    ready: set[str] = field(default_factory=set)

    def take(self, obj: Json) -> None:
        name, ready = obj["metadata"]["name"], condition(obj, "Ready")
        if ready:
            self.reasons[ready["reason"]].add(name)
            self.messages[ready["reason"]] = ready["message"]
        (self.ready.add if is_ready(obj) else self.ready.discard)(name)


def make_batch(seed: int) -> dict[str, Json]:
    """Returns specs by name, each a member of up to four of those that follow it."""
    draw = random.Random(seed)
    names = [f"batch-{number:03}" for number in range(SIZE)]
    specs: dict[str, Json] = {}
    for place, name in enumerate(names):
        later = names[place + 1 :]
        groups = draw.sample(later, min(len(later), draw.choice([0, 1, 1, 2, 4])))
        spec: Json = {"memberOf": [{"role": group, "admin": draw.random() < 0.2} for group in groups]}
        if draw.random() < 0.3:
            spec["parameters"] = {"work_mem": f"{draw.randint(1, 64)}MB", "app.batch": name}
        match place % 10:
            case 3:
                spec |= {"password": {"secretRef": {"name": f"{name}-password"}}}
            case 7:
                spec |= {
                    "login": True,
                    "password": {"generate": {}},
                    "connectionSecret": {"name": f"{name}-connection"},
                }
        specs[name] = spec
    return specs


@asynccontextmanager
async def following(kube: Kube) -> AsyncIterator[Seen]:
    """Watches all objects of the namespace for the duration of the context."""
    seen = Seen()
    listed = await kube.server.request("GET", kube.path())
    trust = ssl.create_default_context(cafile=str(kube.server.ca))
    version = listed["metadata"]["resourceVersion"]

    async def read(session: aiohttp.ClientSession) -> None:
        """Reads again and again, since the API server ends a watch whose client does not keep up."""
        nonlocal version
        while True:
            async with session.get(
                kube.server.url + kube.path(),
                params={"watch": "true", "resourceVersion": version},
                headers={"Authorization": f"Bearer {kube.server.token}"},
                ssl=trust,
            ) as stream:
                assert stream.status == 200
                async for line in stream.content:
                    event = json.loads(line)
                    assert event["type"] in ("ADDED", "MODIFIED"), event
                    version = event["object"]["metadata"]["resourceVersion"]
                    seen.take(event["object"])

    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as session,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(read, session)
        yield seen
        tasks.cancel_scope.cancel()


async def warnings(kube: Kube) -> dict[str, str]:
    """Returns the reasons of all Warning Events, each with one of its notes."""
    answer = await kube.server.request("GET", f"/apis/events.k8s.io/v1/namespaces/{kube.namespace}/events")
    return {event["reason"]: event["note"] for event in answer["items"] if event["type"] == "Warning"}


async def check(database: Database, kube: Kube, specs: dict[str, Json]) -> None:
    """Verifies that everything is exactly as declared."""
    rows = await database.connection.fetch(
        "SELECT m.rolname AS member, g.rolname AS role, bool_or(a.admin_option) AS admin FROM pg_auth_members AS a"
        " JOIN pg_roles AS m ON m.oid = a.member JOIN pg_roles AS g ON g.oid = a.roleid"
        " WHERE m.rolname LIKE 'batch-%' OR g.rolname LIKE 'batch-%' GROUP BY 1, 2"
    )
    # since 16 PostgreSQL itself grants nothing to a superuser that creates a role
    declared = {(name, one["role"], one["admin"]) for name, spec in specs.items() for one in spec["memberOf"]}
    assert {(row["member"], row["role"], row["admin"]) for row in rows} == declared
    rows = await database.connection.fetch("SELECT rolname, rolconfig FROM pg_roles WHERE rolname LIKE 'batch-%'")
    for row in rows:
        parameters = specs[row["rolname"]].get("parameters", {})
        assert sorted(row["rolconfig"] or ()) == sorted(f"{name}={value}" for name, value in parameters.items())
    for name, spec in specs.items():
        if "password" in spec:
            verifier = await database.verifier(name)
            secret = await kube.secret(spec.get("connectionSecret", {}).get("name") or f"{name}-password")
            assert secret is not None
            assert verifier is not None
            assert verifies(secret["text"]["password"], verifier), name


async def apply_and_follow(stage: Stage, specs: dict[str, Json]) -> tuple[Seen, float]:
    """Applies members before their groups, so that most of them must wait.

    Returns what was reported meanwhile, and the seconds from the first apply until all were Ready.
    """
    async with following(stage.kube) as seen:
        began = anyio.current_time()
        await stage.kube.apply_all(specs)

        async def are_ready() -> bool:
            return len(seen.ready) == len(specs)

        if not await reached(are_ready, BATCH_SECONDS):
            left = sorted(set(specs) - seen.ready)
            raise AssertionError(f"{len(left)} of {len(specs)} not ready in time, as {await stage.kube.get(left[0])}")
        return seen, anyio.current_time() - began


async def test_a_batch_of_objects_that_refer_to_each_other_becomes_ready_without_errors(stage: Stage) -> None:
    specs = make_batch(SEED)
    for name, spec in specs.items():
        if "secretRef" in spec.get("password", {}):
            await stage.kube.apply_secret(f"{name}-password", password=f"of {name}")
    async with stage.database() as database, running(stage.controller()):
        seen, seconds = await apply_and_follow(stage, specs)
        log.info("batch came right in %.1f s, pending on the way: %d", seconds, len(seen.reasons["MembershipPending"]))
        assert set(seen.reasons) <= HARMLESS, seen.messages
        await check(database, stage.kube, specs)
        assert await database.fetchval("SELECT sum(drift_count) FROM pgrole.claim") == 0
    told = await warnings(stage.kube)
    assert set(told) <= {"MembershipPending"}, told
    await stage.kube.delete_all()
