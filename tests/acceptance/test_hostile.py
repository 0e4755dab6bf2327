"""Users who can connect, or write objects, gain nothing that is not theirs, and do not delay others."""

import json
import random
from collections.abc import AsyncIterator, Mapping
from typing import Any

import anyio
import asyncpg
import pytest
import pytest_asyncio

from pgrole_controller import resources
from pgrole_controller.core.ddl import quote_literal
from pgrole_controller.local.apiserver import ApiServer
from pgrole_controller.local.manifests import apply, apply_crds, read_folder
from pgrole_controller.local.postgres import PostgresServer
from pgrole_controller.local.process import reached
from tests.acceptance.service_account import check_none_refused
from tests.acceptance.world import (
    PATIENCE,
    Controller,
    Database,
    Json,
    Kube,
    Stage,
    condition,
    is_ready,
    make_kube,
    open_database,
    remove,
    running,
    says,
)
from tests.api_server_pool import ApiServerPool
from tests.servers import Servers

pytestmark = pytest.mark.slow

CONTROLLER_ROLE, CONTROLLER_PASSWORD = "steward", "steward's own"

#: Every role with all its properties, except what declared drift may change meanwhile.
ROLES = """
SELECT array_agg(to_jsonb(a) || jsonb_build_object(
    'members', (SELECT jsonb_agg(m.member) FROM pg_auth_members AS m WHERE m.roleid = a.oid),
    'comment', shobj_description(a.oid, 'pg_authid')
) ORDER BY a.oid)::text
FROM pg_authid AS a
"""

#: Every claim, except what drift changes.
CLAIMS = """
SELECT array_agg(to_jsonb(c) - '{drift_count,last_drift_at,last_drift_fields}'::text[] ORDER BY c.role_name)::text
FROM pgrole.claim AS c
"""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def target(
    api_server: ApiServer, servers: Servers, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[PostgresServer, Controller, Kube]]:
    """A server to which the controller connects as a superuser other than the one that set it up."""
    async with servers.run() as server:
        async with open_database(server.dsn()) as database:
            await database.execute(
                f"CREATE ROLE {CONTROLLER_ROLE} SUPERUSER LOGIN PASSWORD {quote_literal(CONTROLLER_PASSWORD)};"
                "CREATE ROLE anybody LOGIN PASSWORD 'anybody';"
                "CREATE ROLE root_too SUPERUSER; CREATE ROLE child; GRANT root_too TO child;"
                "CREATE ROLE grandchild; GRANT child TO grandchild;"
                f"CREATE ROLE near_steward; GRANT {CONTROLLER_ROLE} TO near_steward;"
                "CREATE ROLE reader; GRANT pg_read_server_files TO reader; CREATE ROLE creator CREATEROLE"
            )
        kube = await make_kube(api_server)
        stage = Stage(kube, server, tmp_path_factory.mktemp("target"))
        async with running(stage.controller(server.dsn(CONTROLLER_ROLE, password=CONTROLLER_PASSWORD))) as controller:
            yield server, controller, kube
        await remove(kube)


@pytest_asyncio.fixture(loop_scope="session")
async def inside(target: tuple[PostgresServer, Controller, Kube]) -> AsyncIterator[Database]:
    async with open_database(target[0].dsn()) as database:
        yield database


@pytest.fixture
def tenants(target: tuple[PostgresServer, Controller, Kube]) -> Kube:
    return target[2]


PAYLOADS = [
    "",
    "not JSON",
    "\x01\x02 \u2028 \U0001f600",
    "x" * 7999,
    "[" * 7999,
    '{"a":' * 1599,
    "9" * 7999,
    "null",
    "[]",
    '"app"',
    "1e999",
    "NaN",
    '{"op":"update","oid":10,"name":null,"was":{"name":[]}}',
    '{"op":"delete","oid":-1,"name":"postgres","was":"steward"}',
    '{"op":"insert","name":"\\ud800"}',
    '{"op":"insert","name":"nul\\u0000"}',
    json.dumps({"op": "update", "name": "'; DROP ROLE postgres; --"}),
    json.dumps({"op": "update", "name": '"; ALTER ROLE anybody SUPERUSER; --'}),
    json.dumps({"op": "update", "name": "x" * 7900}),
    json.dumps({"op": ["many"], "name": 5}),
    '{"op":"hello","token":"0000000000000000"}',
]


async def test_forged_notifications_change_nothing_and_drift_is_still_repaired(
    target: tuple[PostgresServer, Controller, Kube], inside: Database, tenants: Kube
) -> None:
    server, controller, _ = target
    await tenants.apply("app", login=True)
    await tenants.wait_ready("app")
    before = await inside.fetchval(ROLES)
    claims = await inside.fetchval(CLAIMS)
    forger = await asyncpg.connect(server.dsn("anybody", password="anybody"))
    try:
        for payload in PAYLOADS:
            await forger.execute("SELECT pg_notify('pgrole', $1)", payload)
        await forger.execute(
            "SELECT pg_notify('pgrole', json_build_object('op', 'many', 'n', n)::text) "
            "FROM generate_series(1, 5000) AS s (n)"
        )
        for _ in range(200):
            await forger.execute("""NOTIFY pgrole, '{"op":"many"}'""")
    finally:
        await forger.close()
    # Notifications arrive in order: once this drift has been repaired, all of those have been read.
    await inside.execute("ALTER ROLE app CREATEROLE")
    await inside.wait_role("app", lambda row: not row["rolcreaterole"], "NOCREATEROLE")
    await tenants.wait_for("app", lambda obj: obj["status"].get("driftCount") == 1, "one drift")
    assert await inside.fetchval(ROLES) == before
    assert await inside.fetchval(CLAIMS) == claims
    assert controller.process.running
    assert controller.log.count("session with PostgreSQL begins") == 1


@pytest.mark.parametrize("name", ["postgres", CONTROLLER_ROLE])
async def test_the_bootstrap_superuser_and_the_controllers_own_role_are_protected(
    inside: Database, tenants: Kube, name: str
) -> None:
    before = await inside.fetchval(ROLES)
    await tenants.apply(f"for-{name}", name=name, adopt=True, deletionPolicy="Drop", login=True)
    obj = await tenants.wait_reason(f"for-{name}", "Protected")
    assert f'"{name}"' in condition(obj, "Ready")["message"]
    assert condition(obj, "Stalled")["status"] == "True"
    assert await inside.claim(name) is None
    await tenants.delete(f"for-{name}")
    await tenants.wait_gone(f"for-{name}")
    assert await inside.fetchval(ROLES) == before


@pytest.mark.parametrize(
    ("name", "held"),
    [
        ("root_too", "superuser"),
        ("child", "root_too"),
        ("grandchild", "root_too"),
        ("near_steward", CONTROLLER_ROLE),
        ("reader", "pg_read_server_files"),
        ("creator", "createrole"),
    ],
)
async def test_a_role_with_more_power_than_objects_may_request_is_not_adopted(
    inside: Database, tenants: Kube, name: str, held: str
) -> None:
    before = await inside.fetchval(ROLES)
    obj_name = f"adopts-{name.replace('_', '-')}"
    await tenants.apply(obj_name, name=name, adopt=True, deletionPolicy="Drop")
    obj = await tenants.wait_reason(obj_name, "NotAllowed")
    assert held in condition(obj, "Ready")["message"]
    assert await inside.claim(name) is None
    await tenants.delete(obj_name)
    await tenants.wait_gone(obj_name)
    assert await inside.fetchval(ROLES) == before


async def test_a_role_locked_by_another_session_does_not_delay_its_batch(
    target: tuple[PostgresServer, Controller, Kube], inside: Database, tenants: Kube
) -> None:
    names = [f"batch-{number:02}" for number in range(20)]
    holder = await asyncpg.connect(target[0].dsn())
    try:
        transaction = holder.transaction()
        await transaction.start()
        await holder.execute('CREATE ROLE "batch-10"')
        await tenants.apply_all({name: {} for name in names})
        for name in names:
            if name != "batch-10":
                await tenants.wait_ready(name)
        obj = await tenants.wait_for("batch-10", lambda obj: condition(obj, "Ready").get("status") == "False", "shown")
        assert condition(obj, "Ready")["reason"] in ("DatabaseError", "Progressing")
        await transaction.rollback()
    finally:
        await holder.close()
    await tenants.wait_ready("batch-10")


async def test_after_a_storm_of_drift_every_role_is_as_declared(
    target: tuple[PostgresServer, Controller, Kube], inside: Database, tenants: Kube
) -> None:
    server, controller, _ = target
    names = [f"storm-{number:02}" for number in range(20)]
    await tenants.apply_all({name: {"login": True, "comment": "calm"} for name in names})
    for name in names:
        await tenants.wait_ready(name)
    ends = anyio.current_time() + 3
    async with anyio.create_task_group() as tasks:
        for seed in range(4):
            tasks.start_soon(storm, server.dsn(), names, ends, random.Random(seed))
    for name in names:
        await inside.wait_role(name, lambda row: _is_calm(row), "as declared")
    oids = "SELECT array_agg(DISTINCT o) FROM pg_roles, pgrole.claim, unnest(ARRAY[oid, role_oid]) AS o"
    seen: dict[str, tuple[list[int], int, Json]] = {}
    for name in names:

        async def is_told(name: str = name) -> bool:
            obj = await tenants.get(name) or {}
            held = await inside.fetchval(f"{oids} WHERE rolname = '{name}' AND role_name = rolname")
            drifted = await inside.fetchval("SELECT drift_count FROM pgrole.claim WHERE role_name = $1", name)
            status = obj["status"]
            is_right = is_ready(obj) or says(obj, "Contested", "now matches the spec")
            seen[name] = held, drifted, status
            return is_right and held == [status["role"]["oid"]] and status["driftCount"] == drifted > 0

        # Such frequent drift is a contest, which is watched for a minute (tests/acceptance/test_contest.py).
        assert await reached(is_told, 2 * PATIENCE), str(seen[name])
    assert controller.log.count("session with PostgreSQL begins") == 1


def _is_calm(row: Mapping[str, Any]) -> bool:
    return (row["rolcanlogin"], row["rolcreatedb"], row["comment"]) == (True, False, "calm")


async def storm(dsn: str, names: list[str], ends: float, draw: random.Random) -> None:
    """Makes every role drift in various ways until `ends`. Ignores statements that fail because another session was
    first.
    """
    connection = await asyncpg.connect(dsn)
    untouched = set(names)
    try:
        while anyio.current_time() < ends or untouched:
            name = draw.choice(sorted(untouched or names))
            drift = draw.choice(
                [
                    f'ALTER ROLE "{name}" CREATEDB NOLOGIN',
                    f'ALTER ROLE "{name}" CONNECTION LIMIT {draw.randrange(9)}',
                    f'COMMENT ON ROLE "{name}" IS NULL',
                    f'DROP ROLE "{name}"',
                    f'ALTER ROLE "{name}" RENAME TO "stormy-{draw.getrandbits(32):08x}"',
                    f'DROP ROLE "{name}"; CREATE ROLE "{name}"',
                    f'BEGIN; ALTER ROLE "{name}" SUPERUSER; ROLLBACK',
                ]
            )
            try:
                await connection.execute(drift)
                if "ROLLBACK" not in drift:
                    untouched.discard(name)
            except asyncpg.PostgresError as error:
                if error.sqlstate not in ("42704", "42710", "XX000", "23505", "40P01"):
                    raise
                await connection.execute("ROLLBACK" if connection.is_in_transaction() else "SELECT")
    finally:
        await connection.close()


async def test_specs_that_pass_the_schema_but_not_validation_are_reported_and_delay_no_other_object(
    api_servers: ApiServerPool, own_postgres: PostgresServer, stage: Stage
) -> None:
    bad: dict[str, tuple[Json, str]] = {
        "protected": ({"name": "pg_mine"}, "spec.name"),
        "reserved": ({"name": "public"}, "spec.name"),
        "too-long": ({"name": "x" * 64}, "spec.name"),
        "too-many-bytes": ({"name": "ü" * 32}, "spec.name"),
        "no-comment": ({"comment": "a\0b"}, "spec.comment"),
        "no-limit": ({"connectionLimit": -7}, "spec.connectionLimit"),
        "no-policy": ({"drift": {"policy": "Perhaps"}}, "spec.drift.policy"),
    }
    # These no longer fit the CRD, so the API server accepts no status for them: an Event reports the error.
    unfit: dict[str, tuple[Json, str]] = {
        "no-flag": ({"login": "yes"}, "spec.login"),
        "no-moment": ({"validUntil": "soon"}, "spec.validUntil"),
    }
    async with api_servers.lend() as server:
        for crd in read_folder(resources.path("crds")):
            await apply(server, permissive(crd))
        await apply_crds_established(server)
        kube = await make_kube(server)
        await kube.apply_all({name: spec for name, (spec, _) in (bad | unfit).items()})
        await kube.apply("good", login=True)
        await apply_crds(server)
        own = Stage(kube, own_postgres, stage.folder)
        async with running(own.controller()) as controller, own.database() as database:
            await kube.wait_ready("good")
            for name, (_, field) in bad.items():
                obj = await kube.wait_reason(name, "InvalidSpec")
                assert field in condition(obj, "Ready")["message"], name
                assert condition(obj, "Stalled")["status"] == "True"
            for name, (_, field) in unfit.items():
                event = await kube.wait_event("InvalidSpec", about=name)
                assert field in event["note"], name
            roles = await database.fetchval("SELECT array_agg(rolname::text) FROM pg_roles WHERE oid >= 16384")
            assert roles == ["good"]
            await database.execute("ALTER ROLE good CREATEROLE")
            await database.wait_role("good", lambda row: not row["rolcreaterole"], "NOCREATEROLE")
            await kube.delete("reserved")
            await kube.wait_gone("reserved")
            assert is_ready(await kube.wait_ready("good"))
            assert "Traceback" not in controller.log
        check_none_refused(server)


def permissive(crd: Json) -> Json:
    """Returns the CRD as an earlier release might have had it: with the same fields, but accepting any value."""
    loose: Json = json.loads(json.dumps(crd))
    for version in loose["spec"]["versions"]:
        version["schema"]["openAPIV3Schema"] = {
            "type": "object",
            "properties": {
                name: {"type": "object", "x-kubernetes-preserve-unknown-fields": True} for name in ("spec", "status")
            },
        }
    return loose


async def apply_crds_established(server: ApiServer) -> None:
    """Waits until the API server serves objects of the CRDs just applied."""
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/pgroles.pgrole.dev"
    with anyio.fail_after(30):
        while True:
            conditions = (await server.request("GET", path)).get("status", {}).get("conditions") or []
            if {"Established"} <= {one["type"] for one in conditions if one["status"] == "True"}:
                return
            await anyio.sleep(0.05)
