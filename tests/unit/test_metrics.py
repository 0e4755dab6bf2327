"""metrics: all are documented, and dashboard and alerts query no others."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
import yaml
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from pgrole_controller import metrics
from pgrole_controller.controller.objects import Target
from pgrole_controller.controller.result import Result
from pgrole_controller.controller.telemetry import BatchMetrics
from pgrole_controller.core.errors import Reason
from pgrole_controller.core.outcome import Outcome, Phase
from pgrole_controller.core.request import Key, Rank, RequestReason
from pgrole_controller.core.workqueue import WorkItem
from pgrole_controller.kube.errors import Unreachable
from pgrole_controller.kube.resource import EVENTS, NAMESPACES, PGROLES, PGSERVERS, SECRETS
from pgrole_controller.kube.transport import RequestTimer, read_path
from pgrole_controller.metrics import REGISTRY, Scrape, ServerFigures, forget_server, render
from tests.unit.test_docs import anchors, table_row

ROOT = Path(__file__).parents[2]
SERVER = replace(
    ServerFigures("main", connected=True, mode="Watch", depth=2, oldest=1.5, objects=3, ready=2, unheard=1),
    databases=7,
    databases_connected=6,
    largest_acl=2000,
)

#: What Prometheus adds to each series, and what only buckets have.
ADDED = {"job", "instance", "namespace", "pod", "le"}


def families() -> dict[str, set[str]]:
    """Returns the labels of every metric by its name in Prometheus."""
    made = {}
    for metric in REGISTRY.collect():
        name = f"{metric.name}_total" if metric.type == "counter" else metric.name
        made[name] = {label for sample in metric.samples for label in sample.labels} - {"le"}
    declared = [value for value in vars(metrics).values() if hasattr(value, "_labelnames")]
    for metric in declared:
        name = f"{metric._name}_total" if metric._type == "counter" else metric._name
        made[name] = set(metric._labelnames)
    return made


@pytest.fixture(autouse=True)
def one_server() -> None:
    render(Scrape((SERVER,), leading=True), 0.0)


def samples() -> dict[str, set[str]]:
    """Returns the labels by sample name: a histogram has three samples."""
    named: dict[str, set[str]] = {}
    kinds = {metric.name: metric.type for metric in REGISTRY.collect()}
    for name, labels in families().items():
        ends = ("_bucket", "_count", "_sum") if kinds.get(name) == "histogram" else ("",)
        named |= {name + end: labels for end in ends}
    return named


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / "deploy/grafana/pgrole-controller.json").read_text(encoding="utf-8"))
    return found


def alerts() -> list[dict[str, Any]]:
    document = yaml.safe_load((ROOT / "deploy/alerts/rules.yaml").read_text(encoding="utf-8"))
    return [rule for group in document["groups"] for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def questions() -> Iterator[tuple[str, str]]:
    """Yields the source and expression of each query of the dashboard and the alerts."""
    for panel in panels():
        for target in panel["targets"]:
            yield panel["title"], target["expr"]
    for variable in dashboard()["templating"]["list"][1:]:
        yield variable["name"], re.sub(r"label_values\((.+), \w+\)", r"\1", variable["query"]["query"])
    for alert in alerts():
        yield alert["alert"], alert["expr"]


def asked(expression: str) -> Iterator[tuple[str, set[str]]]:
    """Yields each metric that an expression names, with the labels in its selector."""
    for name, selector in re.findall(r"\b((?:pgrole|process|python)_\w+)(?:\{([^}]*)\})?", expression):
        yield name, set(re.findall(r"(\w+)\s*(?:=~|!=|!~|=)", selector))


@pytest.mark.parametrize(("title", "expression"), [*questions()])
def test_every_queried_metric_and_label_exists(title: str, expression: str) -> None:
    known = samples()
    named = list(asked(expression))
    assert named, f"{title} queries none of our metrics"
    for name, labels in named:
        assert name in known, f"{title}: {name}"
        assert labels <= known[name] | ADDED, f"{title}: {name} has {known[name]}"
    held = set().union(*(known[name] for name, _ in named)) | ADDED
    for group in re.findall(r"\bby \(([^)]*)\)", expression):
        assert {label.strip() for label in group.split(",")} <= held, f"{title}: by ({group})"


def test_every_metric_of_ours_is_on_the_dashboard() -> None:
    shown = {name for panel in panels() for target in panel["targets"] for name, _ in asked(target["expr"])}
    known = samples()
    ours = {name for name in families() if name.startswith("pgrole_")}
    assert {name for name in ours if not any(one in shown for one in known if one.startswith(name))} == set()


def test_the_documented_metrics_and_labels_match_the_code() -> None:
    text = (ROOT / "docs/metrics.md").read_text(encoding="utf-8")
    tables = "\n".join(line for line in text.splitlines() if line.startswith("| `"))
    named = set(re.findall(r"`((?:pgrole|process|python)_\w+)`", tables))
    ours = {name for name in families() if name.startswith("pgrole_")}
    assert {name for name in named if name.startswith("pgrole_")} == ours
    assert set(families()) <= named  # those of the process exist only on Linux
    assert set(re.findall(r"`(pgrole_\w+)`", text)) <= named
    for name, labels in families().items():
        if name.startswith("pgrole_"):
            assert set(re.findall(r"`(\w+)`", table_row(text, name).split("|")[3])) == labels, name


def test_the_documented_sources_match_the_request_reasons() -> None:
    text = (ROOT / "docs/metrics.md").read_text(encoding="utf-8")
    (listed,) = re.findall(r"^`source`: (.*?)\.$", text, flags=re.MULTILINE | re.DOTALL)
    assert set(re.findall(r"`(\w+)`", listed)) == {reason.label for reason in RequestReason}


def test_every_request_reason_is_used_in_the_code() -> None:
    rooms = [*(ROOT / "pgrole_controller/controller").glob("*.py"), ROOT / "pgrole_controller/core/workqueue.py"]
    text = "\n".join(file.read_text(encoding="utf-8") for file in rooms)
    assert set(re.findall(r"RequestReason\.([A-Z_]+)", text)) == {reason.name for reason in RequestReason}


@pytest.mark.parametrize("alert", [pytest.param(alert, id=alert["alert"]) for alert in alerts()])
def test_every_alert_has_a_summary_and_a_runbook_entry(alert: dict[str, Any]) -> None:
    page, _, anchor = alert["annotations"]["runbook_url"].partition("#")
    assert page == "https://github.com/pgrole-dev/pgrole-controller/blob/main/docs/runbook.md"
    text = (ROOT / "docs/runbook.md").read_text(encoding="utf-8")
    assert f"\n## {alert['alert']}\n" in text
    assert anchor == alert["alert"].lower()
    assert anchor in anchors(text)
    assert alert["annotations"]["summary"]
    assert alert["labels"]["severity"] in ("critical", "warning")


def test_the_runbook_names_only_existing_alerts_and_metrics() -> None:
    text = (ROOT / "docs/runbook.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^## (.+)$", text, flags=re.MULTILINE)) == {alert["alert"] for alert in alerts()}
    assert set(re.findall(r"`(pgrole_\w+)", text)) <= samples().keys() | families().keys()


def test_a_test_observes_every_metric_that_is_documented() -> None:
    """An alert on a metric that nothing counts would never fire."""
    constants = {one._name: f"metrics.{name}" for name, one in vars(metrics).items() if hasattr(one, "_labelnames")}
    tiers = [ROOT / "tests" / tier for tier in ("unit", "integration", "acceptance")]
    tests = "\n".join(file.read_text(encoding="utf-8") for tier in tiers for file in tier.rglob("*.py"))
    ours = [name for name in families() if name.startswith("pgrole_")]
    assert ours
    for name in ours:
        constant = constants.get(name.removesuffix("_total"), name)
        assert re.search(rf'"{name}(_count|_sum)?"|\b{constant}\b', tests), name


def test_the_dashboard_can_be_imported_anywhere() -> None:
    found = dashboard()
    assert found["id"] is None
    assert found["templating"]["list"][0]["type"] == "datasource"
    ids = [panel["id"] for panel in found["panels"]]
    assert len(ids) == len(set(ids))
    for panel in panels():
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}, panel["title"]
        assert [target["datasource"] for target in panel["targets"]] == [panel["datasource"]] * len(panel["targets"])
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])


def read(text: bytes) -> dict[str, dict[tuple[str, ...], float]]:
    """Returns samples by name and label values."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(value for _, value in sorted(sample.labels.items()))] = sample.value
    return found


def test_gauges_show_the_state_at_the_time_of_the_scrape() -> None:
    rest = ServerFigures(metrics.UNDECLARED, objects=4)
    found = read(render(Scrape((SERVER, rest), contested=5, leading=True), 0.25))
    assert found["pgrole_queue_depth"] == {("main",): 2, ("(undeclared)",): 0}
    assert found["pgrole_queue_oldest_seconds"][("main",)] == 1.5
    assert found["pgrole_objects"] == {("main",): 3, ("(undeclared)",): 4}
    assert found["pgrole_objects_ready"][("main",)] == 2
    assert found["pgrole_server_connected"] == {("main",): 1}
    assert found["pgrole_server_detection"] == {("Watch", "main"): 1}
    assert found["pgrole_unheard_changes"] == {("main",): 1}
    assert found["pgrole_databases"] == {("main",): 7}
    assert found["pgrole_databases_connected"] == {("main",): 6}
    assert found["pgrole_largest_acl_entries"] == {("main",): 2000}
    assert found["pgrole_contested_objects"] == {(): 5}
    assert found["pgrole_leader"] == {(): 1}
    assert found["pgrole_loop_heartbeat_age_seconds"] == {(): 0.25}
    assert "pgrole_server_connected" not in read(render(Scrape(), 0.0))


def test_nothing_is_in_the_default_registry_of_the_library() -> None:
    assert b"_created" not in render(None, 0.0)
    assert metrics.REGISTRY is not __import__("prometheus_client").REGISTRY


def test_rendered_metrics_parse_like_those_that_the_library_renders() -> None:
    odd = 'a "quoted" \\ and a\nnew line'
    metrics.expect_server(odd)
    metrics.REPAIR_SECONDS.labels("notify").observe(1e9)
    metrics.LAST_NOTIFICATION.labels(odd).set(float("nan"))
    metrics.REPAIR_SECONDS.labels("object").observe(float("inf"))

    def rendered(text: bytes) -> list[str]:
        """Returns comments unchanged and samples as they parse, without those of the process."""
        lines = [line for line in text.decode().splitlines() if not line.startswith(("process_", "python_gc"))]
        samples = [
            repr(sample) for family in text_string_to_metric_families("\n".join(lines)) for sample in family.samples
        ]
        return [line for line in lines if line.startswith("#")] + samples

    ours = render(Scrape((SERVER,), leading=True), 0.0)
    assert rendered(ours) == rendered(generate_latest(REGISTRY))
    assert f'{{server="{metrics._quote(odd)}"}}' in ours.decode()
    forget_server(odd)


def test_a_forgotten_server_has_no_series_left() -> None:
    for metric in metrics._BY_SERVER:
        metric.labels(*["forgotten" if label == "server" else "x" for label in metric._labelnames])
    assert b'server="forgotten"' in render(None, 0.0)
    forget_server("forgotten")
    assert b'server="forgotten"' not in render(None, 0.0)


def test_the_counters_of_a_server_start_at_zero() -> None:
    metrics.expect_server("expected")
    for name in ("pgrole_sessions_total", "pgrole_session_failures_total", "pgrole_notifications_total"):
        assert REGISTRY.get_sample_value(name, {"server": "expected"}) == 0
    forget_server("expected")


def test_every_metric_with_a_server_label_is_cleared_for_a_forgotten_server() -> None:
    declared = {value for value in vars(metrics).values() if "server" in getattr(value, "_labelnames", ())}
    assert set(metrics._BY_SERVER) == declared


def test_a_renewal_is_counted_by_its_result() -> None:
    def count(result: str) -> float:
        return REGISTRY.get_sample_value("pgrole_lease_renewals_total", {"result": result}) or 0.0

    before = count("renewed"), count("failed")
    metrics.note_renewal(renewed=True)
    metrics.note_renewal(renewed=False)
    assert (count("renewed"), count("failed")) == (before[0] + 1, before[1] + 1)


@pytest.mark.parametrize(
    ("path", "found"),
    [
        (PGROLES.path(), ("pgroles", False)),
        (PGROLES.path("shop"), ("pgroles", False)),
        (PGROLES.path("shop", "status"), ("pgroles", True)),
        (PGROLES.path("namespaces", "namespaces", "status"), ("pgroles/status", True)),
        (PGSERVERS.path(name="main", subresource="status"), ("pgservers/status", True)),
        (NAMESPACES.path(), ("namespaces", False)),
        (NAMESPACES.path(name="kube-system"), ("namespaces", True)),
        (SECRETS.path("a/b", "c/d"), ("secrets", True)),
        (EVENTS.path("shop", "secrets"), ("events", True)),
        ("/", ("other", False)),
    ],
)
def test_a_path_is_reduced_to_its_resource_without_names(path: str, found: tuple[str, bool]) -> None:
    assert read_path(path) == found


def test_a_request_is_counted_by_its_class_of_status_codes_unless_it_is_cancelled() -> None:
    def count(verb: str, code: str) -> float:
        labels = {"verb": verb, "resource": "pgservers", "code": code}
        return REGISTRY.get_sample_value("pgrole_api_request_seconds_count", labels) or 0.0

    before = {pair: count(*pair) for pair in (("list", "4xx"), ("patch", "none"), ("watch", "2xx"), ("delete", "none"))}
    with RequestTimer("GET", PGSERVERS.path()) as latency:
        latency.status = 409
    with pytest.raises(Unreachable), RequestTimer("PATCH", PGSERVERS.path(name="x")):
        raise Unreachable("away")
    with RequestTimer("GET", PGSERVERS.path(), watch=True) as latency:
        latency.status = 200
    with pytest.raises(TimeoutError), RequestTimer("DELETE", PGSERVERS.path(name="x")):
        raise TimeoutError
    after = {pair: count(*pair) - number for pair, number in before.items()}
    assert after == {("list", "4xx"): 1, ("patch", "none"): 1, ("watch", "2xx"): 1, ("delete", "none"): 0}


async def test_repair_time_is_measured_from_when_the_request_was_due() -> None:
    def value(suffix: str) -> float:
        labels = {"source": "secret"}
        return REGISTRY.get_sample_value(f"pgrole_repair_seconds_{suffix}", labels) or 0.0

    key = Key("shop", "app")
    before, now = (value("count"), value("sum")), anyio.current_time()
    batch_metrics = BatchMetrics("counted", (WorkItem(key, RequestReason.SECRET, Rank.CHANGE, 7.0, 0),))
    late = anyio.current_time() - now
    outcome = Outcome(Phase.DONE, Reason.RECONCILED, "")
    batch_metrics.count(Result(Target(key, None), outcome, changed_at=now + 2.0, corrected=("superuser",)))
    assert value("count") - before[0] == 1
    assert 8.99 - late < value("sum") - before[1] <= 9.01
    labels = {"server": "counted", "field": "superuser", "action": "corrected"}
    assert REGISTRY.get_sample_value("pgrole_drifts_total", labels) == 1
    forget_server("counted")
