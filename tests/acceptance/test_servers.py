"""Administrators declare servers and what may be requested there; servers are added, changed and removed at
run time.
"""

import secrets
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest
import pytest_asyncio

from pgrole_controller.controller.server_reporter import DRIFT_SECONDS
from tests.acceptance.servers import EVERYTHING, PgServers, pgservers
from tests.acceptance.service_account import OWN_NAMESPACE
from tests.acceptance.world import PATIENCE, Controller, Database, Stage, condition, is_ready, running, says
from tests.servers import Servers


@pytest.fixture
def role() -> str:
    return f"s{secrets.token_hex(3)}"


@pytest_asyncio.fixture(loop_scope="session")
async def declared(stage: Stage) -> AsyncIterator[PgServers]:
    async with pgservers(stage.kube.server) as made:
        yield made


def alone(stage: Stage) -> Controller:
    """Returns a controller that knows declared servers only, and leads."""
    return Controller(stage.kube.server, "", stage.folder, "--leader-election", "true")


@pytest.mark.slow
async def test_a_declared_server_and_its_secret_are_used_and_reported(
    stage: Stage, declared: PgServers, role: str
) -> None:
    async with running(alone(stage), connected=False), stage.database() as database:
        await stage.kube.apply("app", name=role, serverRef={"name": "main"})
        await stage.kube.wait_reason("app", "ServerGone")
        await a_missing_or_wrong_secret_is_reported_and_used_once_corrected(stage, declared)
        await version_and_mode_are_reported(declared, database)
        await declared.apply("main", stage.postgres)
        await a_session_outlives_its_secret_and_reports_that_but_no_new_one_begins(stage, declared, database, role)
        await only_namespaces_with_matching_labels_can_have_roles(stage, declared, role)


async def a_missing_or_wrong_secret_is_reported_and_used_once_corrected(stage: Stage, declared: PgServers) -> None:
    connection = {
        "hosts": ["127.0.0.1"],
        "port": stage.postgres.port,
        "sslMode": "disable",
        "credentialsSecretRef": {"name": "none-such"},
    }
    await declared.apply_spec("main", {"connection": connection, "allow": EVERYTHING})
    await declared.wait_for("main", lambda obj: says(obj, "ServerNotReady", '"none-such"'), "what is missing")
    await stage.kube.wait_for("app", lambda obj: says(obj, "ServerNotReady", '"none-such"'), "what is missing")
    await declared.apply_credentials("none-such", "postgres", "wrong")
    await declared.wait_for("main", lambda obj: says(obj, "ServerNotReady", "credentials"), "what is wrong")
    await declared.apply_credentials("none-such", "postgres", stage.postgres.password)
    await stage.kube.wait_ready("app")


async def version_and_mode_are_reported(declared: PgServers, database: Database) -> None:
    server = await declared.wait_for("main", lambda obj: "detection" in obj.get("status", {}), "what it is")
    identifier = await database.fetchval("SELECT system_identifier::text FROM pg_control_system()")
    version = await database.fetchval("SHOW server_version")
    assert server["status"]["systemIdentifier"] == identifier
    assert server["status"]["version"] == version
    assert server["status"]["detection"] == {"mode": "Watch", "passwords": True, "claims": "Database"}
    table = await declared.table()
    assert [column["name"] for column in table["columnDefinitions"]][1:] == [
        "Ready",
        "Reason",
        "Version",
        "Mode",
        "Roles",
        "Roles Ready",
        "Age",
    ]


async def a_session_outlives_its_secret_and_reports_that_but_no_new_one_begins(
    stage: Stage, declared: PgServers, database: Database, role: str
) -> None:
    await stage.kube.server.request("DELETE", f"/api/v1/namespaces/{OWN_NAMESPACE}/secrets/none-such")
    await drift(database, role)  # in a session with the other Secret
    await stage.kube.server.request("DELETE", f"/api/v1/namespaces/{OWN_NAMESPACE}/secrets/main")
    missing = f'Secret "main" in namespace {OWN_NAMESPACE} does not exist'
    said = await declared.wait_for(
        "main", lambda obj: missing in condition(obj, "Ready").get("message", ""), "what is missing"
    )
    assert condition(said, "Ready")["status"] == "True"
    await drift(database, role)
    await database.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'pgrole-controller%'"
    )
    await declared.wait_for("main", lambda obj: says(obj, "ServerNotReady", "does not exist"), "what is missing")
    await declared.apply_credentials("main", "postgres", stage.postgres.password)
    await stage.kube.wait_ready("app")
    await declared.wait_for(
        "main", lambda obj: "does not exist" not in condition(obj, "Ready")["message"], "nothing is missing"
    )


async def only_namespaces_with_matching_labels_can_have_roles(stage: Stage, declared: PgServers, role: str) -> None:
    await declared.apply("main", stage.postgres, allow={**EVERYTHING, "namespaces": {"matchLabels": {"pg": "yes"}}})
    await stage.kube.apply("late", name=f"{role}_late", serverRef={"name": "main"})
    await stage.kube.wait_for("late", lambda obj: says(obj, "NotAllowed", "namespace"), "the namespace is refused")
    path = f"/api/v1/namespaces/{stage.kube.namespace}"
    body = {"metadata": {"labels": {"pg": "yes"}}}
    await stage.kube.server.request("PATCH", path, body, content_type="application/merge-patch+json")
    await stage.kube.wait_ready("late")


async def drift(database: Database, role: str) -> None:
    """Makes the role drift, and waits for the repair."""
    await database.execute(f"ALTER ROLE {role} CREATEDB")
    await database.wait_role(role, lambda row: not row["rolcreatedb"], "repaired")


async def test_changed_credentials_policy_and_deletion_take_effect_without_a_restart(
    stage: Stage, declared: PgServers, role: str
) -> None:
    async with running(alone(stage), connected=False) as controller, stage.database() as database:
        await declared.apply("main", stage.postgres)
        await stage.kube.apply("app", name=role, serverRef={"name": "main"}, deletionPolicy="Drop")
        await stage.kube.wait_ready("app")
        await changed_credentials_are_used(declared, controller, database, role)
        await a_stricter_policy_reports_and_a_looser_one_applies(stage, declared, database, f"{role}_creates")
        await a_deleted_server_stays_until_no_object_names_it(stage, declared)


async def changed_credentials_are_used(
    declared: PgServers, controller: Controller, database: Database, role: str
) -> None:
    await database.execute("CREATE ROLE second_admin SUPERUSER LOGIN PASSWORD 'second'")
    await declared.apply_credentials("main", "second_admin", "second")
    await controller.wait_count("session with PostgreSQL begins", 2)
    await drift(database, role)
    await database.wait_value(
        "SELECT array_agg(DISTINCT usename::text) FROM pg_stat_activity"
        " WHERE application_name LIKE 'pgrole-controller%'",
        ["second_admin"],
    )


async def a_stricter_policy_reports_and_a_looser_one_applies(
    stage: Stage, declared: PgServers, database: Database, role: str
) -> None:
    await stage.kube.apply("creates", name=role, createdb=True, serverRef={"name": "main"})
    await stage.kube.wait_ready("creates")
    await declared.apply("main", stage.postgres, allow={**EVERYTHING, "attributes": []})
    await stage.kube.wait_for("creates", lambda obj: says(obj, "NotAllowed", "createdb"), "what is not allowed")
    assert await database.role(role) is not None
    await declared.apply("main", stage.postgres)
    await stage.kube.wait_ready("creates")
    await stage.kube.delete("creates")
    await stage.kube.wait_gone("creates")


async def a_deleted_server_stays_until_no_object_names_it(stage: Stage, declared: PgServers) -> None:
    await declared.wait_for("main", lambda obj: bool(obj["metadata"].get("finalizers")), "a finalizer")
    await declared.delete("main")
    await stage.kube.patch("app", {"spec": {"comment": "still at work"}})
    await stage.kube.wait_for("app", is_ready, "Ready")
    await stage.kube.delete("app")
    await stage.kube.wait_gone("app")
    await declared.wait_gone("main")


@pytest.mark.slow
async def test_an_object_recreated_for_another_server_releases_its_old_claim(
    stage: Stage, declared: PgServers, servers: Servers, role: str
) -> None:
    async with (
        servers.run() as another,
        running(alone(stage), connected=False) as controller,
        stage.database() as database,
    ):
        await declared.apply("one", stage.postgres, resyncInterval="2s")
        await declared.apply("two", another)
        await stage.kube.apply("busy", name=f"{role}_busy", serverRef={"name": "one"})
        await stage.kube.apply("app", name=role, serverRef={"name": "one"})
        await stage.kube.wait_all_ready()
        reconciles = controller.log.count("reconcile begins")
        stage.postgres.pause()
        try:
            await stage.kube.apply("busy", name=f"{role}_busy", comment="looked at", serverRef={"name": "one"})
            await controller.wait_count("reconcile begins", reconciles + 1)
            await stage.kube.delete("app")
            await stage.kube.apply("app", name=role, serverRef={"name": "two"})
        finally:
            stage.postgres.resume()
        await stage.kube.wait_ready("app")
        await database.wait_value(f"SELECT released_at IS NULL FROM pgrole.claim WHERE role_name = '{role}'", False)


async def test_the_younger_of_two_pgservers_for_one_live_server_is_refused(
    stage: Stage, declared: PgServers, role: str
) -> None:
    async with running(alone(stage), connected=False) as controller:
        await declared.apply("elder", stage.postgres)
        await declared.wait_ready("elder")
        await declared.wait_younger("elder")
        await declared.apply("younger", stage.postgres)
        await stage.kube.apply("app", name=role, serverRef={"name": "younger"})
        await declared.wait_for("younger", lambda obj: says(obj, "Conflict", '"elder"'), "which it is")
        await controller.wait_count("no session with PostgreSQL", 3)
        await stage.kube.apply("first", name=f"{role}_first", serverRef={"name": "elder"})
        await stage.kube.wait_ready("first")
        assert "another process leads" not in controller.log
        await stage.kube.delete("first")
        await stage.kube.wait_for("app", lambda obj: says(obj, "ServerNotReady", '"elder"'), "which it is")
        await declared.delete("elder")
        await declared.wait_ready("younger")
        await stage.kube.wait_ready("app")


@pytest.mark.slow
async def test_an_older_pgserver_without_a_session_keeps_the_claims_of_its_objects(
    stage: Stage, declared: PgServers, role: str
) -> None:
    async with running(alone(stage), connected=False), stage.database() as database:
        await declared.apply("elder", stage.postgres)
        await declared.wait_ready("elder")
        await stage.kube.apply("app", name=role, serverRef={"name": "elder"})
        await stage.kube.apply("gone", name=f"{role}_gone", serverRef={"name": "elder"})
        await stage.kube.wait_all_ready()
        await declared.wait_younger("elder")
        await declared.apply("younger", stage.postgres, resyncInterval="2s")
        await declared.wait_for("younger", lambda obj: says(obj, "Conflict", '"elder"'), "which it is")
        await declared.apply_credentials("elder", "postgres", "wrong")
        await stage.kube.apply("rival", name=role, serverRef={"name": "younger"}, adopt=True)
        owner = f"{stage.kube.namespace}/app"
        await stage.kube.wait_for("rival", lambda obj: says(obj, "Conflict", owner), "whose role it is")
        await stage.kube.delete("gone")
        await database.wait_value(
            f"SELECT released_at IS NOT NULL FROM pgrole.claim WHERE role_name = '{role}_gone'", True
        )
        await database.wait_value(f"SELECT object FROM pgrole.claim WHERE role_name = '{role}'", "app")
        await declared.apply_credentials("elder", "postgres", stage.postgres.password)
        await declared.wait_for("younger", lambda obj: says(obj, "Conflict", '"elder"'), "which it is")
        await stage.kube.wait_ready("app")


@pytest.mark.slow
async def test_a_declared_default_server_overrides_the_one_in_the_environment(
    stage: Stage, declared: PgServers, servers: Servers, role: str
) -> None:
    async with running(Controller(stage.kube.server, stage.postgres.dsn(), stage.folder)):
        await stage.kube.apply("app", name=role)
        await stage.kube.wait_ready("app")
        async with servers.run() as another:
            await declared.apply("default", another)
            first = condition(await declared.wait_ready("default"), "Ready")
            assert first["reason"] == "Reconciled"
            await stage.kube.apply("late", name=f"{role}_late")
            obj = await stage.kube.wait_ready("late")
            server = await declared.get("default")
            assert server is not None
            assert obj["status"]["server"]["systemIdentifier"] == server["status"]["systemIdentifier"]
            await declared.delete("default")
            await stage.kube.delete("late")
            await stage.kube.delete("app")
            await declared.wait_gone("default")


@pytest.mark.slow
async def test_a_pgserver_counts_the_drifts_of_each_hour(stage: Stage, declared: PgServers, role: str) -> None:
    async with running(alone(stage), connected=False), stage.database() as database:
        await declared.apply("main", stage.postgres)
        await stage.kube.apply("app", name=role, serverRef={"name": "main"})
        await stage.kube.wait_ready("app")
        await database.execute(f"ALTER ROLE {role} CREATEDB")
        await database.wait_role(role, lambda row: not row["rolcreatedb"], "repaired")
        counted = await declared.wait_for(
            "main", lambda obj: bool(obj["status"].get("driftsPerHour")), "the drift", PATIENCE + DRIFT_SECONDS
        )
        (hour,) = counted["status"]["driftsPerHour"]
        assert (hour["corrected"], hour["reported"]) == (1, 0)
        assert timedelta(0) <= datetime.now(UTC) - datetime.fromisoformat(hour["hour"]) < timedelta(hours=2)
