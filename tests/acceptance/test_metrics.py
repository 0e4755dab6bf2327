"""The controller's metrics are correct, and contain no role, object or Secret."""

import re
import secrets
import time

import pytest

from pgrole_controller import __version__
from pgrole_controller.local.process import reached
from tests.acceptance.scraped_metrics import SampleKey, ScrapedMetrics, scrape, wait_figures
from tests.acceptance.servers import pgservers
from tests.acceptance.world import PATIENCE, Controller, Database, Stage, condition, running
from tests.servers import Servers

pytestmark = pytest.mark.slow

MANY = 30


@pytest.fixture
def role() -> str:
    return f"m{secrets.token_hex(3)}"


async def test_a_drift_is_counted_and_its_repair_is_timed(stage: Stage, role: str) -> None:
    async with running(stage.controller()) as controller, stage.database() as database:
        await stage.kube.apply("app", name=role, login=True)
        await stage.kube.wait_ready("app")
        await controller.rest()
        began = time.time()
        await database.execute(f"ALTER ROLE {role} SUPERUSER CONNECTION LIMIT 3")
        await database.wait_role(role, lambda row: not row["rolsuper"] and row["rolconnlimit"] == -1, "repair")
        found = await wait_figures(
            controller,
            lambda figures: (
                figures.sum("pgrole_drifts_total") == 2
                and figures.get("pgrole_repair_seconds_count", source="notify") == 1
                and figures.sum("pgrole_reconciles_total", server="default", result="done", reason="Reconciled") >= 2
                and figures.sum("pgrole_notifications_total") >= 2
                and figures.sum("pgrole_loop_lag_seconds_count") >= 1
                and figures.sum("pgrole_reconcile_seconds_count") >= 2
                and unspoken(figures) == []
                and astir(figures) == []
            ),
            "drifts of two fields, an object that is Ready again, and an Event",
        )
        for field in ("superuser", "connectionLimit"):
            assert found.get("pgrole_drifts_total", server="default", field=field, action="corrected") == 1
        assert 0 < found.sum("pgrole_repair_seconds_sum", source="notify") < time.time() - began
        assert found.get("pgrole_application_seconds_count", source="object") == 1
        assert began <= found.sum("pgrole_last_notification_timestamp_seconds", server="default") <= time.time()
        assert_well(found)


def astir(found: ScrapedMetrics) -> list[str]:
    """Returns what differs from one healthy server and one Ready object without a pending reconcile."""
    rest = {
        "pgrole_server_connected": 1,
        "pgrole_server_detection_fallback": 0,
        "pgrole_sessions_total": 1,
        "pgrole_unheard_changes": 0,
        "pgrole_objects": 1,
        "pgrole_objects_ready": 1,
        "pgrole_queue_depth": 0,
        "pgrole_queue_oldest_seconds": 0,
    }
    return [name for name, value in rest.items() if found.get(name, server="default") != value]


def assert_well(found: ScrapedMetrics) -> None:
    assert found.get("pgrole_server_detection", server="default", mode="Watch") == 1
    assert found.get("pgrole_contested_objects") == 0
    assert found.get("pgrole_leader") == 1
    assert found.get("pgrole_leaderships_total") == 1
    assert found.get("pgrole_build_info", version=__version__) == 1
    assert 0 <= found.sum("pgrole_loop_heartbeat_age_seconds") < 10
    assert found.sum("pgrole_lists_total", resource="pgroles") == 1
    assert found.sum("process_resident_memory_bytes") > 2**20


def unspoken(found: ScrapedMetrics) -> list[str]:
    """Returns kinds of statements, and of requests to the API server, that were not sent."""
    statements = ("connect", "identify", "read_roles", "transaction")
    sql = [one for one in statements if not found.sum("pgrole_sql_seconds_count", statement=one)]
    requests = (("list", "pgroles"), ("watch", "pgroles"), ("patch", "pgroles/status"), ("create", "events"))
    return sql + [
        f"{verb} {resource}"
        for verb, resource in requests
        if not found.sum("pgrole_api_request_seconds_count", verb=verb, resource=resource, code="2xx")
    ]


async def test_the_controller_measures_detection_delay_with_its_own_changes(stage: Stage, role: str) -> None:
    async with running(stage.controller()) as controller:
        began = time.time()
        found = await scrape(controller)
        for number in range(20):  # a notification that arrives before the answer is read is not measured
            await stage.kube.apply("app", name=role, comment=f"number {number}")
            await stage.kube.wait_ready("app")
            found = await wait_notifications(controller, number + 1)
            if found.sum("pgrole_detection_delay_seconds_count", server="default"):
                break
        assert found.sum("pgrole_detection_delay_seconds_count", server="default") >= 1
        assert 0 < found.sum("pgrole_detection_delay_seconds_sum", server="default") < time.time() - began
        assert found.get("pgrole_unheard_changes", server="default") == 0


async def wait_notifications(controller: Controller, count: int) -> ScrapedMetrics:
    return await wait_figures(
        controller, lambda figures: figures.sum("pgrole_notifications_total") >= count, f"{count} notifications"
    )


async def test_a_reported_drift_is_counted_once_however_often_it_is_read(stage: Stage, role: str) -> None:
    async with running(stage.controller()) as controller, stage.database() as database:
        await stage.kube.apply("app", name=role, drift={"policy": "Report"})
        await stage.kube.wait_ready("app")
        await database.execute(f"ALTER ROLE {role} CREATEDB")
        await stage.kube.wait_reason("app", "DriftReported")
        reported = {"server": "default", "field": "createdb", "action": "reported"}
        await wait_figures(controller, lambda figures: figures.get("pgrole_drifts_total", **reported) == 1, "one drift")
        before = (await scrape(controller)).sum("pgrole_reconciles_total", reason="DriftReported")
        await stage.kube.patch("app", {"metadata": {"annotations": {"note": "look again"}}})
        found = await wait_figures(
            controller,
            lambda figures: figures.sum("pgrole_reconciles_total", reason="DriftReported") > before,
            "another look",
        )
        assert found.get("pgrole_drifts_total", **reported) == 1
        assert found.sum("pgrole_drifts_total", action="corrected") == 0


async def test_series_name_no_role_object_or_secret_and_do_not_grow_with_objects(stage: Stage, role: str) -> None:
    async with running(stage.controller()) as controller, stage.database() as database:
        await stage.kube.apply_secret(f"{role}-secret", password=f"{role}-password")
        first = await drift_many(stage, database, controller, f"{role}-one", role)
        second = await drift_many(stage, database, controller, f"{role}-two", role)
        assert second.sum("pgrole_drifts_total") >= 2 * MANY
        assert len(series(second) - series(first)) < MANY, sorted(series(second) - series(first), key=str)
        for name in (role, stage.kube.namespace, "secretRef", stage.postgres.password):
            assert name not in second.text
        servers = {dict(labels).get("server", "default") for _, labels in second.samples}
        assert servers == {"default", "(undeclared)"}


def series(figures: ScrapedMetrics) -> set[SampleKey]:
    """Returns series without buckets."""
    return {one for one in figures.samples if not one[0].endswith("_bucket")}


async def drift_many(
    stage: Stage, database: Database, controller: Controller, prefix: str, role: str
) -> ScrapedMetrics:
    """Adds `MANY` objects, one of them with a password, and makes them drift; returns the metrics after the repairs."""
    before = (await scrape(controller)).sum("pgrole_drifts_total")
    names = [f"{prefix}-{number}" for number in range(MANY)]
    await stage.kube.apply_all({name: {"comment": name} for name in names})
    await stage.kube.apply(f"{prefix}-secret", password={"secretRef": {"name": f"{role}-secret"}})
    await stage.kube.wait_all_ready()
    for name in names:
        await database.execute(f'ALTER ROLE "{name}" CREATEDB')
    found = await wait_figures(
        controller, lambda figures: figures.sum("pgrole_drifts_total") >= before + MANY, f"{MANY} drifts repaired"
    )
    assert await database.fetchval("SELECT count(*) FROM pg_roles WHERE rolcreatedb AND NOT rolsuper") == 0
    return found


async def test_series_of_a_removed_server_are_removed(stage: Stage, servers: Servers, role: str) -> None:
    async with (
        pgservers(stage.kube.server) as declared,
        servers.run() as other,
        running(Controller(stage.kube.server, "", stage.folder), connected=False) as controller,
    ):
        await declared.apply("stays", stage.postgres)
        await declared.apply("goes", other)
        await declared.wait_ready("stays")
        await declared.wait_ready("goes")

        def is_connected(found: ScrapedMetrics) -> bool:
            return found.get("pgrole_server_connected", server="goes") == 1

        found = await wait_figures(controller, is_connected, "both are connected")
        assert found.get("pgrole_sessions_total", server="goes") == 1
        await stage.kube.apply("lost", name=role, serverRef={"name": "nowhere"})
        await stage.kube.wait_reason("lost", "ServerGone")
        await declared.delete("goes")
        await declared.wait_gone("goes")

        def is_alone(found: ScrapedMetrics) -> bool:
            return 'server="goes"' not in found.text and found.get("pgrole_server_connected", server="stays") == 1

        found = await wait_figures(controller, is_alone, "no such series")
        assert found.get("pgrole_objects", server="(undeclared)") == 1
        assert found.sum("pgrole_reconciles_total", server="(undeclared)", reason="ServerGone") >= 1


async def test_a_reconcile_id_connects_the_log_lines_from_request_to_status(stage: Stage, role: str) -> None:
    async with running(stage.controller()) as controller, stage.database() as database:
        await stage.kube.apply_secret("secret", password="hush-hush")
        await stage.kube.apply("app", name=role, password={"secretRef": {"name": "secret"}})
        await stage.kube.wait_ready("app")
        await controller.rest()
        await database.execute(f"ALTER ROLE {role} SUPERUSER")
        await database.wait_role(role, lambda row: not row["rolsuper"], "repair")
        await stage.kube.wait_for("app", lambda obj: obj["status"].get("driftCount") == 1, "the count")
        await controller.wait_log("action=corrected")
        corrected = next(line for line in controller.log.splitlines() if "action=corrected" in line)
        reconcile_id = re.search(r"reconcile_id=([0-9a-f]{8})\b", corrected)
        assert reconcile_id

        async def is_over() -> bool:
            lines = controller.log.splitlines()
            own = [line for line in lines if f"reconcile_id={reconcile_id[1]}" in line]
            return all(any(f"{last}  " in line for line in own) for last in ("reconcile ends", "status written"))

        assert await reached(is_over, PATIENCE)
        lines = [line for line in controller.log.splitlines() if f"reconcile_id={reconcile_id[1]}" in line]
        told = [re.split(r"  +", line)[1] if " INFO" not in line else line for line in lines]
        said = "\n".join(lines)
        for expected in (
            r"reconcile begins  object=\S+ server=default reason=notify waited_ms=[\d.]+ failures=0",
            r"decision made  object=\S+ decided=corrected differs=superuser drift=superuser",
            r"transaction  plans=1 changes=1 took_ms=[\d.]+ failed=\"\"",
            r"decision made  object=\S+ decided=nothing",
            r"role reconciled  object=\S+ action=corrected fields=superuser",
            r"status written  object=\S+ reason=Reconciled",
            r"reconcile ends  object=\S+ result=again in_seconds=",
        ):
            assert re.search(expected, said), (expected, told)
        assert "hush-hush" not in controller.log
        assert condition(await stage.kube.wait_ready("app"), "Ready")["reason"] == "Reconciled"


async def test_metrics_show_which_of_two_replicas_leads(stage: Stage, role: str) -> None:
    first, second = (stage.controller(None, "--leader-election", "true") for _ in range(2))
    async with running(second, connected=False):
        await second.wait_log("session with PostgreSQL begins")
        async with running(first, connected=False):
            await first.wait_log("ready to lead")
            await stage.kube.apply("app", name=role)
            await stage.kube.wait_ready("app")
            leader = await wait_figures(second, lambda figures: figures.sum("pgrole_objects_ready") == 1, "Ready")
            standby = await wait_figures(first, lambda figures: figures.sum("pgrole_objects_ready") == 1, "Ready")
            assert (leader.get("pgrole_leader"), leader.get("pgrole_leaderships_total")) == (1, 1)
            assert (standby.get("pgrole_leader"), standby.get("pgrole_leaderships_total")) == (0, 0)
            assert standby.get("pgrole_server_connected", server="default") == 1
            assert standby.sum("pgrole_reconciles_total") == 0
            await wait_figures(
                second, lambda figures: figures.sum("pgrole_lease_renewals_total", result="renewed") >= 1, "a renewal"
            )
            await second.stop()
            await wait_figures(first, lambda figures: figures.get("pgrole_leader") == 1, "the other leads")
            found = await wait_figures(first, lambda figures: figures.sum("pgrole_reconciles_total") >= 1, "it works")
            assert found.get("pgrole_leaderships_total") == 1
