"""The dashboard's expressions, as Prometheus reads and evaluates them."""

import json
import re
from pathlib import Path

import pytest

from pgrole_controller import metrics
from tests.deploy.programs import run
from tests.deploy.prometheus import Exported, exported, named, panels, try_rules

_TARGET = 'job="pgrole-controller", namespace="pgrole-system", pod="{pod}", instance="{pod}:8080"'
#: Metrics of a server's work that a standby exports, too: it listens, and due objects wait in its queue.
_ON_A_STANDBY = (
    "pgrole_notifications_total",
    "pgrole_last_notification_timestamp_seconds",
    "pgrole_objects",
    "pgrole_objects_ready",
    "pgrole_queue_depth",
    "pgrole_queue_oldest_seconds",
    "pgrole_server_connected",
)
_RISING = re.compile(r"\b(?:rate|increase|last_over_time)\(\s*$")


@pytest.fixture(scope="module")
def known() -> dict[str, Exported]:
    return exported()


def series(known: dict[str, Exported], pods: str = "ab") -> list[dict[str, str]]:
    """Returns ten minutes of everything that a leader, a, and a standby, b, export, and of another job's process."""
    found = []
    for pod, leads in ((pod, "1" if pod == "a" else "0") for pod in pods):
        for one in known.values():
            labels = ", ".join((_TARGET.format(pod=pod), *(f'{label}="main"' for label in one.labels if label != "le")))
            values = "0+3x20" if one.rises else f"{leads}x20" if one.name == "pgrole_leader" else "1x20"
            if one.name == "pgrole_drifts_total":
                labels, values = labels.replace('action="main"', 'action="corrected"'), "_x10 7x10"
            ends = [', le="1.0"', ', le="+Inf"'] if "le" in one.labels else [""]
            found += [{"series": f"{one.name}{{{labels}{end}}}", "values": values} for end in ends]
    others = [name for name in known if name.startswith("process_")]
    return [*found, *({"series": f'{name}{{job="other", instance="z:1"}}', "values": "5+5x20"} for name in others)]


async def test_prometheus_reads_every_expression(promtool: Path, tmp_path: Path) -> None:
    rules = [{"record": f"panel:{number}", "expr": expr} for number, (_, expr) in enumerate(panels())]
    (tmp_path / "rules.yaml").write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    answer = await run(promtool, "check", "rules", tmp_path / "rules.yaml")
    assert answer.code == 0, answer.out + answer.err
    assert f"{len(panels())} rules found" in answer.out


async def test_every_query_returns_values_of_the_controller_only(
    promtool: Path, tmp_path: Path, known: dict[str, Exported]
) -> None:
    """Each query returns at least one number, and no value of another job."""
    asks = [
        {"expr": f"{made} > bool 0", "eval_time": "9m", "exp_samples": [{"labels": "{}", "value": value}]}
        for _, expr in panels()
        for made, value in (
            (f"count(({expr}) < +Inf)", 1),
            (f'count(({expr}) and on (job) up{{job="other"}}) or vector(0)', 0),
        )
    ]
    case = {"interval": "30s", "input_series": [*series(known), {"series": 'up{job="other"}', "values": "1x20"}]}
    answer = await try_rules(promtool, {"tests": [{**case, "promql_expr_test": asks}]}, tmp_path)
    assert answer.code == 0, answer.out + answer.err


async def test_a_standby_changes_nothing_that_is_shown_of_a_server(
    promtool: Path, tmp_path: Path, known: dict[str, Exported]
) -> None:
    """It notices and counts much of what the leader does."""
    expressions = [expr for _, expr in panels() if any(name in _ON_A_STANDBY for name, _ in named(expr))]
    assert {name for expr in expressions for name, _ in named(expr)} >= set(_ON_A_STANDBY)
    rules = [
        {"record": "shown", "expr": expr, "labels": {"panel": str(number)}} for number, expr in enumerate(expressions)
    ]
    asks = [{"expr": "shown", "eval_time": "9m", "exp_samples": []}]
    said = []
    for pods in ("a", "ab"):
        case = {"interval": "30s", "input_series": series(known, pods), "promql_expr_test": asks}
        answer = await try_rules(promtool, {"tests": [case]}, tmp_path, {"groups": [{"name": "one", "rules": rules}]})
        said.append(answer.err)
    assert said[0].count('{__name__="shown"') == len(expressions)
    assert said[1] == said[0]


async def test_the_first_drift_of_a_field_is_shown(promtool: Path, tmp_path: Path, known: dict[str, Exported]) -> None:
    """Its counter begins with that drift, which is no increase in Prometheus: 7 from each replica."""
    expressions = [expr for title, expr in panels() if title.startswith("Drifts") and "pgrole_drifts_total" in expr]
    assert len(expressions) == 2
    asks = [
        {"expr": f"sum({expr})", "eval_time": "6m", "exp_samples": [{"labels": "{}", "value": 14}]}
        for expr in expressions
    ]
    case = {"interval": "30s", "input_series": series(known), "promql_expr_test": asks}
    answer = await try_rules(promtool, {"tests": [case]}, tmp_path)
    assert answer.code == 0, answer.out + answer.err


@pytest.mark.parametrize(("title", "expression"), panels())
def test_a_panel_queries_each_metric_according_to_its_kind(
    title: str, expression: str, known: dict[str, Exported]
) -> None:
    for found in re.finditer(r"\b(?:pgrole|process)_\w+", expression):
        kind = known[found[0]]
        before = expression[: found.start()]
        assert kind.rises == bool(_RISING.search(before)), f"{title}: {found[0]} is a {kind.kind}"
    for name, selectors in named(expression):
        assert selectors.keys() <= {*known[name].labels, "job"}, title


def test_the_process_start_time_is_exported_and_constant(known: dict[str, Exported]) -> None:
    """Our own registry exports it, with the same value at each scrape of one process."""
    assert known["process_start_time_seconds"].kind == "gauge"
    said = [
        re.findall(rb"^process_start_time_seconds (.+)$", metrics.render(None, 0.0), flags=re.MULTILINE)
        for _ in range(2)
    ]
    assert said[0] == said[1]
    assert float(said[0][0]) > 1.7e9
