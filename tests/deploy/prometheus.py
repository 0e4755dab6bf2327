"""The queries of alerts and dashboard, and the metrics that the controller exports for them."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from pgrole_controller import metrics
from tests.deploy.manifests import DEPLOY, RULES
from tests.deploy.programs import Answer, run
from tests.documents import read_document

Json = dict[str, Any]

DASHBOARD = DEPLOY / "grafana" / "pgrole-controller.json"
CASES = sorted((DEPLOY / "alerts" / "tests").glob("*.yaml"))

#: Labels that Prometheus adds to each series, and one that only buckets have.
ADDED = frozenset({"job", "instance", "namespace", "pod"})

_SERVER = metrics.ServerFigures("exported", True, "Watch", True, depth=2, oldest=1.5, objects=3, ready=2, unheard=1)


@dataclass(frozen=True, slots=True)
class Exported:
    """An exported name. `kind`: counter, gauge, or bucket, count, sum of a histogram. `labels`: all, sorted."""

    name: str
    kind: str
    labels: tuple[str, ...]

    @property
    def rises(self) -> bool:
        return self.kind != "gauge"


@cache
def alerts() -> list[Json]:
    """Returns the alerts, which no caller may change."""
    return [rule for group in read_document(RULES.read_text(encoding="utf-8"))["groups"] for rule in group["rules"]]


def panels() -> list[tuple[str, str]]:
    """Returns title and expression of each query of each panel, with values for Grafana's variables."""
    document = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    found = [(one["title"], target["expr"]) for one in document["panels"] for target in one.get("targets", ())]
    return [
        (title, expr.replace("$__rate_interval", "2m").replace("$job", ".*").replace("$server", ".*"))
        for title, expr in found
    ]


def exported() -> dict[str, Exported]:
    """Returns every name that the controller's registry exports; metrics without samples get one first."""
    added = [
        (metric, ("exported",) * len(metric._labelnames))
        for metric in vars(metrics).values()
        if getattr(metric, "_labelnames", ())
    ]
    for metric, values in added:
        metric.labels(*values)
    found = dict(_read(metrics.render(metrics.Scrape((_SERVER,), contested=1, leading=True), 0.1).decode()))
    for metric, values in added:
        metric.remove(*values)
    return found


def _read(text: str) -> Iterator[tuple[str, Exported]]:
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            kind = family.type if family.type != "histogram" else sample.name.rpartition("_")[2]
            yield sample.name, Exported(sample.name, kind, tuple(sorted(sample.labels)))


def named(expression: str) -> list[tuple[str, dict[str, str]]]:
    """Returns each metric in an expression with its selectors: label → operator and value."""
    found = re.findall(r"\b((?:pgrole|process|python)_\w+)(?:\{([^}]*)\})?", expression)
    return [(name, {key: op + value for key, op, value in _selectors(inside)}) for name, inside in found]


def _selectors(inside: str) -> list[tuple[str, str, str]]:
    return re.findall(r'(\w+)\s*(=~|!=|!~|=)\s*"([^"]*)"', inside)


async def try_rules(promtool: Path, cases: Json, folder: Path, rules: Json | None = None) -> Answer:
    """Runs `promtool test rules` with these cases, on our rules or those given."""
    asked = folder / "rules.yaml"
    asked.write_text(RULES.read_text(encoding="utf-8") if rules is None else json.dumps(rules), encoding="utf-8")
    (folder / "cases.yaml").write_text(json.dumps({**cases, "rule_files": [str(asked)]}), encoding="utf-8")
    return await run(promtool, "test", "rules", folder / "cases.yaml")
