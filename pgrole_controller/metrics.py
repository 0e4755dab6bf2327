"""All Prometheus metrics of `/metrics`; no other module names a metric.

Every package except `core` and `api` may record. Recording takes a few microseconds, never waits and never fails.
Values that can be read at any time (queue, connections, objects) are read at scrape time instead: see `Scrape`.

Guarantees: no label contains the name of a role, object or namespace. `server` is the name of a PgServer, whose series
are removed with it (`forget_server`). Every other label has a fixed set of values.
"""

import platform
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from pgrole_controller import __version__, imports

# Its exposition module imports an HTTP server, which is not used here.
imports.register(
    "prometheus_client",
    ("metrics", "metrics_core", "registry", "process_collector", "platform_collector", "gc_collector"),
)

from prometheus_client import (  # noqa: E402 - light only once it is registered
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    Metric,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.core import GaugeMetricFamily  # noqa: E402
from prometheus_client.registry import Collector  # noqa: E402

CONTENT_TYPE: Final = "text/plain; version=0.0.4"

#: Label `server` of objects whose server no PgServer declares; no PgServer can have this name.
UNDECLARED: Final = "(undeclared)"

OTHER: Final = "other"

# Buckets in seconds. A repair takes milliseconds and a back-off minutes; deadlines bound each statement and request.
_WIDE = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_SHORT = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series for each, which no one needs

REGISTRY: Final = CollectorRegistry()

_Kind = TypeVar("_Kind", Counter, Gauge, Histogram)

#: Metrics with the label `server`, and those of them that count from 0 as soon as the server is declared.
_BY_SERVER: Final[list[Counter | Gauge | Histogram]] = []
_FROM_ZERO: Final[list[Counter | Gauge | Histogram]] = []


def _make(kind: type[_Kind], name: str, text: str, labels: Sequence[str] = (), **options: Any) -> _Kind:  # noqa: ANN401
    metric = kind(name, text, labels, registry=REGISTRY, **options)
    if "server" in labels:
        _BY_SERVER.append(metric)
        if kind is Counter and len(labels) == 1:
            _FROM_ZERO.append(metric)
    return metric


RECONCILES: Final = _make(Counter, "pgrole_reconciles", "Total reconciles by result.", ["server", "result", "reason"])
RECONCILE_SECONDS: Final = _make(
    Histogram,
    "pgrole_reconcile_seconds",
    "Duration of one batch of reconciles, up to the last database transaction.",
    buckets=_WIDE,
)
REPAIR_SECONDS: Final = _make(
    Histogram,
    "pgrole_repair_seconds",
    "Time from the first request for a drift to the commit of its correction, by source of the request.",
    ["source"],
    buckets=_WIDE,
)
APPLICATION_SECONDS: Final = _make(
    Histogram,
    "pgrole_application_seconds",
    "Time from the first request for a change to its commit, for creations, declared changes and drops, by source.",
    ["source"],
    buckets=_WIDE,
)
DRIFTS: Final = _make(
    Counter,
    "pgrole_drifts",
    "Total drifted fields by server, field and action (corrected or reported).",
    ["server", "field", "action"],
)
PRIVILEGES_EXTENDED: Final = _make(
    Counter,
    "pgrole_privileges_extended",
    "Total Events about declared privileges granted on new objects or after a policy change.",
    ["server"],
)
NOTIFICATIONS: Final = _make(
    Counter,
    "pgrole_notifications",
    "Total detected changes of roles: notifications in mode Watch, polls that found a change in mode Poll.",
    ["server"],
)
LAST_NOTIFICATION: Final = _make(
    Gauge, "pgrole_last_notification_timestamp_seconds", "Unix time of the last detected change of a role.", ["server"]
)
DETECTION_DELAY_SECONDS: Final = _make(
    Histogram,
    "pgrole_detection_delay_seconds",
    "Delay of detection, measured from the commit of the controller's own changes to their notification.",
    ["server"],
    buckets=_SHORT,
)
SESSIONS: Final = _make(
    Counter, "pgrole_sessions", "Total sessions with a server. All but the first are reconnects.", ["server"]
)
SESSION_FAILURES: Final = _make(
    Counter, "pgrole_session_failures", "Total failed sessions and failed connection attempts.", ["server"]
)
INTERNAL_ERRORS: Final = _make(
    Counter,
    "pgrole_internal_errors",
    "Total unexpected errors by location: in a session with a server, or in the reconcile of one object.",
    ["where"],
)
for _where in ("session", "object"):
    INTERNAL_ERRORS.labels(_where)
PRIVILEGE_READS: Final = _make(
    Counter,
    "pgrole_privilege_reads",
    "Total reads of privileges in databases by scope (named, recent or full).",
    ["server", "scope"],
)
PRIVILEGE_REPAIR_SECONDS: Final = _make(
    Histogram,
    "pgrole_privilege_repair_seconds",
    "Time from the detection of a change of privileges to the commit of its correction.",
    ["server"],
    buckets=_SHORT,
)
DATABASE_SESSION_FAILURES: Final = _make(
    Counter,
    "pgrole_database_session_failures",
    "Total failed sessions and connection attempts with databases whose privileges are managed.",
    ["server"],
)
SQL_SECONDS: Final = _make(
    Histogram,
    "pgrole_sql_seconds",
    "Duration of SQL statements by kind, including the network round trip.",
    ["statement"],
    buckets=_SHORT,
)
API_REQUEST_SECONDS: Final = _make(
    Histogram,
    "pgrole_api_request_seconds",
    "Duration of requests to the API server, up to the end of the response; for a watch, up to its start.",
    ["verb", "resource", "code"],
    buckets=_SHORT,
)
LISTS: Final = _make(Counter, "pgrole_lists", "Total complete lists read from the API server.", ["resource"])
WATCH_ENDS: Final = _make(
    Counter,
    "pgrole_watch_ends",
    "Total watches and lists that ended, by cause (in time, silent, expired, refused or failed).",
    ["resource", "cause"],
)
EVENTS_DROPPED: Final = _make(Counter, "pgrole_events_dropped", "Total Events that the controller failed to write.")
LEADERSHIPS: Final = _make(Counter, "pgrole_leaderships", "Total number of times this process became leader.")
LEASE_RENEWALS: Final = _make(
    Counter,
    "pgrole_lease_renewals",
    "Total attempts of the leader to renew its Lease, by result (renewed or failed).",
    ["result"],
)
LOOP_LAG_SECONDS: Final = _make(
    Histogram,
    "pgrole_loop_lag_seconds",
    "Delay of the event loop: how much later than scheduled an iteration started.",
    buckets=_WIDE,
)
LOOP_BLOCKS: Final = _make(
    Counter,
    "pgrole_loop_blocks",
    "Total iterations of the event loop that took longer than 0.1 s and delayed every server.",
)
BUILD: Final = _make(Gauge, "pgrole_build_info", "Version of the controller; the value is always 1.", ["version"])

BUILD.labels(__version__).set(1)

_expected: set[str] = set()  # servers that have series


@dataclass(frozen=True, slots=True)
class ServerFigures:
    """A server at one moment. `mode` is the detection mode, empty without a session.

    `fallback`: a lesser mode than Watch is in effect. `oldest`: how many seconds the first of `depth` keys has waited.
    `unheard`: own changes that detection should have noticed by now. `databases`: those with managed privileges.
    """

    server: str
    connected: bool = False
    mode: str = ""
    fallback: bool = False
    depth: int = 0
    oldest: float = 0.0
    objects: int = 0
    ready: int = 0
    unheard: int = 0
    databases: int = 0
    databases_connected: int = 0
    largest_acl: int = 0


@dataclass(frozen=True, slots=True)
class Scrape:
    """Values read at scrape time."""

    servers: tuple[ServerFigures, ...] = ()
    contested: int = 0
    leading: bool = False


class _ScrapeCollector(Collector):
    """Collects the metrics made from a `Scrape`."""

    def __init__(self) -> None:
        self.scrape: Scrape | None = None
        self.heartbeat_age = 0.0

    def collect(self) -> Iterable[Metric]:
        scrape = self.scrape or Scrape()
        for name, text, values in _read_figures(scrape.servers):
            family = GaugeMetricFamily(name, text, labels=["server"])
            for server, value in values:
                family.add_metric([server], value)
            yield family
        mode = GaugeMetricFamily(
            "pgrole_server_detection", "Detection mode of the server; the value is always 1.", labels=["server", "mode"]
        )
        for one in scrape.servers:
            if one.mode:
                mode.add_metric([one.server, one.mode], 1.0)
        yield mode
        contested = GaugeMetricFamily(
            "pgrole_contested_objects",
            "Number of objects with the reason Contested: something else keeps changing a field, or privileges.",
        )
        leader = GaugeMetricFamily("pgrole_leader", "Whether this process is the leader (1) or not (0).")
        if self.scrape:
            contested.add_metric([], float(scrape.contested))
            leader.add_metric([], float(scrape.leading))
        yield from (contested, leader)
        yield GaugeMetricFamily(
            "pgrole_loop_heartbeat_age_seconds",
            "Seconds since the last iteration of the event loop.",
            value=self.heartbeat_age,
        )


def _read_figures(servers: Iterable[ServerFigures]) -> Iterator[tuple[str, str, list[tuple[str, float]]]]:
    declared = [one for one in servers if one.server != UNDECLARED]
    everything = list(servers)
    for name, text, of, attribute in (
        ("pgrole_queue_depth", "Number of objects that wait to be reconciled.", everything, "depth"),
        (
            "pgrole_queue_oldest_seconds",
            "Seconds that the oldest object in the queue has waited.",
            everything,
            "oldest",
        ),
        (
            "pgrole_server_connected",
            "Whether the controller has a session with the server (1) or not (0).",
            declared,
            "connected",
        ),
        (
            "pgrole_server_detection_fallback",
            "Whether Auto selected Poll because Watch is not available (1) or not (0).",
            declared,
            "fallback",
        ),
        ("pgrole_objects", "Number of PgRoles that reference the server.", everything, "objects"),
        ("pgrole_objects_ready", "Number of PgRoles that reference the server and are Ready.", everything, "ready"),
        (
            "pgrole_unheard_changes",
            "Number of the controller's own changes in the last 5 minutes whose notification is overdue. Above 0, "
            "change detection does not work.",
            declared,
            "unheard",
        ),
        ("pgrole_databases", "Number of databases that PgRoles declare privileges in.", declared, "databases"),
        (
            "pgrole_databases_connected",
            "Number of these databases that are connected, or were reached at their last poll.",
            declared,
            "databases_connected",
        ),
        (
            "pgrole_largest_acl_entries",
            "Number of entries in the largest ACL of a table, view or sequence in these databases. PostgreSQL accepts "
            "about 2,440.",
            declared,
            "largest_acl",
        ),
    ):
        yield name, text, [(one.server, float(getattr(one, attribute))) for one in of]


_scrape_collector = _ScrapeCollector()
REGISTRY.register(_scrape_collector)
ProcessCollector(registry=REGISTRY)
GCCollector(registry=REGISTRY)
PlatformCollector(registry=REGISTRY, platform=platform)


def render(scrape: Scrape | None, heartbeat_age: float) -> bytes:
    """Renders all metrics in Prometheus' text format. Without a `scrape`, no state is reported, nor who leads.

    `heartbeat_age`: seconds since the event loop last ran.
    """
    _scrape_collector.scrape, _scrape_collector.heartbeat_age = scrape, heartbeat_age
    return "".join(line for metric in REGISTRY.collect() for line in _write(metric)).encode()


def _write(metric: Metric) -> Iterator[str]:
    """Writes what `generate_latest` of prometheus_client does, for the metric types used here."""
    name = f"{metric.name}_total" if metric.type == "counter" else metric.name
    kind = "untyped" if metric.type == "unknown" else metric.type
    yield f"# HELP {name} {_escape(metric.documentation)}\n# TYPE {name} {kind}\n"
    for sample in metric.samples:
        labels = ",".join(f'{label}="{_quote(value)}"' for label, value in sorted(sample.labels.items()))
        yield f"{sample.name}{f'{{{labels}}}' if labels else ''} {float(sample.value)!r}\n"


def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")


def _quote(value: str) -> str:
    return _escape(value).replace('"', r"\"")


def expect_server(name: str) -> None:
    """Initialises a server's counters to 0: Prometheus detects no increase in a series that it has not seen before."""
    _expected.add(name)
    for metric in _FROM_ZERO:
        metric.labels(name)


def count_reported_drift(server: str, field: str) -> None:
    """Counts a drift once its report is written, which may be after the server was removed: that has no series."""
    if server in _expected:
        DRIFTS.labels(server, field, "reported").inc()


def forget_server(name: str) -> None:
    """Removes the series of a server that is no longer declared."""
    _expected.discard(name)
    for metric in _BY_SERVER:
        metric.remove_by_labels({"server": name})


def forget_other_servers(declared: Iterable[str]) -> None:
    """Removes the series of servers deleted while this process did not lead."""
    for name in _expected - set(declared):
        forget_server(name)


def notice(server: str) -> None:
    """Counts a notification of changed roles."""
    NOTIFICATIONS.labels(server).inc()
    LAST_NOTIFICATION.labels(server).set(time.time())


def note_renewal(*, renewed: bool) -> None:
    """Counts an attempt of the leader to renew its Lease."""
    LEASE_RENEWALS.labels("renewed" if renewed else "failed").inc()
