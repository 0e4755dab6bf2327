"""The alerts, as Prometheus evaluates them: each fires when it should, and stays silent when it nearly would."""

import copy
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.manifests import RULES
from tests.deploy.programs import run
from tests.deploy.prometheus import ADDED, CASES, Exported, alerts, exported, named, try_rules
from tests.documents import read_document

Json = dict[str, Any]

_ALERTS = alerts()
_LEADS = re.compile(r"\s+and on \(job, instance\) pgrole_leader == 1")
_RISING = re.compile(r"\b(?:rate|increase)\(\s*$")
_OVER_TIME = re.compile(r"\b(?:changes|\w+_over_time)\(\s*$")


def _name(alert: Json) -> str:
    return str(alert["alert"])


@pytest.fixture(scope="module")
def known() -> dict[str, Exported]:
    return exported()


@cache
def cases() -> list[Json]:
    """Returns all cases, which no caller may change."""
    return [case for path in CASES for case in read_document(path.read_text(encoding="utf-8"))["tests"]]


def asked(name: str) -> list[Json]:
    """Returns the expectations about one alert, at any time of any case."""
    return [ask for case in cases() for ask in case["alert_rule_test"] if ask["alertname"] == name]


def only(name: str) -> Json:
    """Returns the cases with only the expectations about one alert."""
    of_one = [
        {**case, "alert_rule_test": [a for a in case["alert_rule_test"] if a["alertname"] == name]} for case in cases()
    ]
    return {"evaluation_interval": "30s", "tests": [case for case in of_one if case["alert_rule_test"]]}


async def test_prometheus_accepts_the_rules(promtool: Path) -> None:
    answer = await run(promtool, "check", "rules", "--lint=all", "--lint-fatal", RULES)
    assert answer.code == 0, answer.out + answer.err
    assert f"{len(alerts())} rules found" in answer.out


@pytest.mark.parametrize("path", [pytest.param(path, id=path.stem) for path in CASES])
async def test_every_alert_fires_as_expected_and_at_no_other_time(promtool: Path, path: Path) -> None:
    answer = await run(promtool, "test", "rules", path)
    assert answer.code == 0, answer.out + answer.err


@pytest.mark.parametrize("alert", _ALERTS, ids=_name)
def test_every_alert_has_a_case_in_which_it_fires_and_one_in_which_it_does_not(alert: Json) -> None:
    expected = asked(alert["alert"])
    assert any(one["exp_alerts"] for one in expected)
    assert any(not one["exp_alerts"] for one in expected)


def test_every_case_tests_an_existing_alert() -> None:
    there = {alert["alert"] for alert in alerts()}
    assert {ask["alertname"] for case in cases() for ask in case["alert_rule_test"]} == there


def test_the_cases_use_exported_series_only(known: dict[str, Exported]) -> None:
    for case in cases():
        for one in case["input_series"]:
            name, labels = re.fullmatch(r"(\w+)\{(.*)\}", one["series"]).groups()  # type: ignore[union-attr]
            found = set(re.findall(r"(\w+)=", labels))
            assert {"job", "namespace", "pod", "instance"} <= found, one["series"]
            assert name == "up" or found - ADDED == set(known[name].labels), one["series"]


@pytest.mark.parametrize("alert", _ALERTS, ids=_name)
def test_an_alert_queries_exported_metrics_according_to_their_kind(alert: Json, known: dict[str, Exported]) -> None:
    expression = alert["expr"]
    for name, selectors in named(expression):
        assert name in known, name
        assert selectors.keys() <= {*known[name].labels, *ADDED}, name
    for found in re.finditer(r"\b(?:pgrole|process)_\w+", expression):
        before, kind = expression[: found.start()], known[found[0]]
        if not _OVER_TIME.search(before):
            assert bool(_RISING.search(before)) == kind.rises, f"{found[0]} is a {kind.kind}"
    assert set(re.findall(r"\w+_bucket", expression)) == set(
        re.findall(r"histogram_quantile\([^_]*\((?:rate|increase)\((\w+)", expression)
    )


@pytest.mark.parametrize("alert", _ALERTS, ids=_name)
def test_a_firing_alert_names_its_namespace(alert: Json) -> None:
    """Alertmanager routes by namespace. Only the alert for a target that was never scraped has none."""
    for one in asked(alert["alert"]):
        for fired in one["exp_alerts"]:
            assert "namespace" in fired["exp_labels"] or fired["exp_labels"].keys() == {"severity"}


@pytest.mark.parametrize("alert", [one for one in _ALERTS if "for" in one], ids=_name)
async def test_an_alert_without_its_for_fires_too_early(promtool: Path, alert: Json, tmp_path: Path) -> None:
    changed = {key: value for key, value in alert.items() if key not in ("for", "keep_firing_for")}
    await _fails(promtool, changed, tmp_path)


@pytest.mark.parametrize("alert", [one for one in _ALERTS if _LEADS.search(one["expr"])], ids=_name)
async def test_an_alert_without_its_leader_condition_fires_for_a_standby(
    promtool: Path, alert: Json, tmp_path: Path
) -> None:
    await _fails(promtool, {**alert, "expr": _LEADS.sub("", alert["expr"])}, tmp_path)


async def _fails(promtool: Path, alert: Json, folder: Path) -> None:
    """Asserts that the cases hold for the alert as it is, and not for the changed one."""
    name = alert["alert"]
    [unchanged] = [copy.deepcopy(one) for one in alerts() if one["alert"] == name]
    answers = [
        await try_rules(promtool, only(name), folder, {"groups": [{"name": "one", "rules": [rule]}]})
        for rule in (unchanged, alert)
    ]
    assert answers[0].code == 0, answers[0].out + answers[0].err
    assert answers[1].code == 1
    assert f"alertname: {name}" in answers[1].out + answers[1].err
