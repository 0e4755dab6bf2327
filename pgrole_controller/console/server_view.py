"""Servers: the list of them, and the page of one with its policy, mode, databases, claims and connection."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pgrole_controller.console.drift_chart import DriftChart, chart_drifts
from pgrole_controller.console.object_fields import (
    LEFT_OUT,
    read_flag,
    read_map,
    read_maps,
    read_number,
    read_text,
    read_texts,
)
from pgrole_controller.console.object_state import ConditionView, ObjectState, judge, read_conditions
from pgrole_controller.console.remedies import ReasonAdvice, describe_outlook, find_server_remedy
from pgrole_controller.console.role_summary import RoleSummary
from pgrole_controller.console.snapshot import Snapshot
from pgrole_controller.core.names import count_things

_MODES = {
    "Watch": "Changes are noticed within milliseconds, by notifications from PostgreSQL.",
    "Poll": "Changes are noticed when the controller asks, once per interval.",
    "Resync": "Changes are noticed only when every object is reconciled.",
}
_CLAIMS = {
    "Database": "In the database, in schema pgrole. A second cluster that wants the same role is noticed.",
    "Status": "Only in the status of the PgRoles, without schema pgrole. A second cluster is not noticed.",
}


@dataclass(frozen=True, slots=True)
class ServerSummary:
    """A server in a list. `hidden`: the viewer may not read it, and only its name is known from roles."""

    name: str
    hidden: bool
    state: ObjectState
    reason: str
    message: str
    since: datetime | None
    mode: str
    version: str
    hosts: tuple[str, ...]
    declared: int
    ready: int


@dataclass(frozen=True, slots=True)
class PolicyRow:
    """One rule of spec.allow, in words; without values it allows nothing."""

    name: str
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ServerDatabase:
    name: str
    state: ObjectState
    detection: str
    message: str


@dataclass(frozen=True, slots=True)
class Fact:
    """A named value of one or more lines, and what it means."""

    name: str
    lines: tuple[str, ...]
    note: str = ""


@dataclass(frozen=True, slots=True)
class ServerView:
    """`no_database`: why `databases` is empty, in words."""

    summary: ServerSummary
    remedy: ReasonAdvice
    outlook: str
    conditions: tuple[ConditionView, ...]
    facts: tuple[Fact, ...]
    connection: tuple[Fact, ...]
    policy: tuple[PolicyRow, ...]
    databases: tuple[ServerDatabase, ...]
    no_database: str
    chart: DriftChart
    left_out: tuple[str, ...]


def list_servers(snapshot: Snapshot, summaries: Sequence[RoleSummary]) -> tuple[ServerSummary, ...]:
    """Returns the servers that the viewer may see, and the names of those that roles refer to; broken ones first."""
    declared, ready = _count(summaries)
    known = [_summarize(name, found, declared[name], ready[name]) for name, found in snapshot.servers.items()]
    names = sorted(set(declared) - set(snapshot.servers)) if snapshot.servers_hidden else []
    unseen = [
        ServerSummary(name, True, ObjectState.NEW, "", "", None, "", "", (), declared[name], ready[name])
        for name in names
    ]
    return tuple(sorted([*known, *unseen], key=lambda each: (each.hidden, each.state.rank, each.name)))


def view_server(name: str, found: Mapping[str, Any], summaries: Sequence[RoleSummary], now: datetime) -> ServerView:
    spec, status = read_map(found, "spec"), read_map(found, "status")
    declared, ready = _count(summaries)
    left_out = read_texts(found, LEFT_OUT, most=16)
    summary = _summarize(name, found, declared[name], ready[name])
    recent = (drift for each in summaries if each.server == name for drift in each.drifts)
    return ServerView(
        summary=summary,
        remedy=find_server_remedy(summary.reason),
        outlook=describe_outlook(summary.state),
        conditions=tuple(read_conditions(found)),
        facts=tuple(_facts(spec, status)),
        connection=tuple(_connection(spec, status, left_out)),
        policy=() if "spec.allow" in left_out else tuple(_policy(spec)),
        databases=tuple(_databases(status)),
        no_database=_explain_no_database(spec, left_out),
        chart=chart_drifts([found], recent, now, "this server"),
        left_out=left_out,
    )


def _count(summaries: Sequence[RoleSummary]) -> tuple[Counter[str], Counter[str]]:
    declared = Counter(each.server for each in summaries)
    return declared, Counter(each.server for each in summaries if each.state is ObjectState.READY)


def _summarize(name: str, found: Mapping[str, Any], declared: int, ready: int) -> ServerSummary:
    """The controller's own counts are of all roles. The viewer may list fewer."""
    verdict = judge(found)
    counted = read_number(found, "status", "roles", "declared")
    return ServerSummary(
        name=name,
        hidden=False,
        state=verdict.state,
        reason=verdict.reason,
        message=verdict.message,
        since=verdict.since,
        mode=read_text(found, "status", "detection", "mode", most=32),
        version=read_text(found, "status", "version", most=128),
        hosts=read_texts(found, "spec", "connection", "hosts", most=16),
        declared=declared if counted is None else counted,
        ready=ready if counted is None else read_number(found, "status", "roles", "ready") or 0,
    )


def _facts(spec: Mapping[str, Any], status: Mapping[str, Any]) -> Iterator[Fact]:
    mode = read_text(status, "detection", "mode", most=32)
    yield Fact("Detection", (mode or "unknown",), _explain_mode(mode, read_text(spec, "drift", "mode", most=32)))
    if mode == "Poll":
        interval = read_text(spec, "drift", "interval", most=32) or "1s"
        yield Fact("Interval", (interval,), "The time between two polls.")
    resync = read_text(spec, "resyncInterval", most=32) or "1h"
    yield Fact("Resync", (resync,), "The controller reconciles every object at least this often.")
    passwords = read_flag(status, "detection", "passwords")
    if passwords is None:
        yield Fact("Changed passwords", ("unknown",))
    elif passwords:
        yield Fact("Changed passwords", ("noticed",), "The controller may read verifiers.")
    else:
        yield Fact("Changed passwords", ("not noticed",), "The controller may not read pg_authid.")
    claims = read_text(status, "detection", "claims", most=32)
    yield Fact("Claims", (claims or "unknown",), _CLAIMS.get(claims, ""))
    yield Fact("History", (read_text(spec, "history", "retention", most=32) or "90d",), "Kept in each database.")
    audit = read_text(spec, "attribution", "auditLog", most=32) or "Never"
    read = "" if audit == "Never" else "The controller reads it to find out who caused a drift."
    yield Fact("Audit log", ("not read" if audit == "Never" else audit,), read)


def _explain_mode(mode: str, wanted: str) -> str:
    """Says what a mode of detection means, and why the controller uses it."""
    if not mode:
        return "Known when the controller has connected."
    meaning = _MODES.get(mode, "")
    if wanted in ("", "Auto"):
        better = "" if mode == "Watch" else " The server does not support Watch, or not yet."
        return f"{meaning} The controller chose it, because spec.drift.mode is Auto.{better}"
    return f"{meaning} spec.drift.mode asks for {wanted}."


def _connection(spec: Mapping[str, Any], status: Mapping[str, Any], left_out: Sequence[str]) -> Iterator[Fact]:
    connection = read_map(spec, "connection")
    port = read_number(connection, "port")
    secret = read_text(connection, "credentialsSecretRef", "name", most=256)
    if "spec.connection" in left_out:
        yield Fact("Address, TLS and credentials", ("left out here",))
    else:
        yield Fact("Hosts", read_texts(connection, "hosts", most=16) or ("none",))
        yield Fact("Port", (str(5432 if port is None else port),))
        yield Fact("Home database", (read_text(connection, "database", most=256) or "postgres",))
        yield Fact("TLS", (read_text(connection, "sslMode", most=32) or "verify-full",))
        yield Fact("Credentials", (f"Secret {secret}" if secret else "unknown",))
    yield Fact("PostgreSQL", (read_text(status, "version", most=128) or "unknown",))
    yield Fact("System identifier", (read_text(status, "systemIdentifier", most=64) or "unknown",))
    sessions = ("left out here",) if "status.databases" in left_out else _list_sessions(spec, status)
    yield Fact("Sessions of the controller", sessions)


def _list_sessions(spec: Mapping[str, Any], status: Mapping[str, Any]) -> tuple[str, ...]:
    if judge({"status": status}).state is not ObjectState.READY:
        return ("none in use",)
    databases = sum(1 for each in read_maps(status, "databases") if read_flag(each, "ready"))
    if not databases:
        return ("home database",)
    connected = min(databases, read_number(spec, "databases", "max") or databases)
    others = (f"{databases - connected} more in turn",) if connected < databases else ()
    return ("home database", f"{count_things(connected, 'database')} with managed privileges", *others)


def _policy(spec: Mapping[str, Any]) -> Iterator[PolicyRow]:
    allow = read_map(spec, "allow")
    selector = read_map(allow, "namespaces")
    labels = [f"label {name}={value}" for name, value in list(read_map(selector, "matchLabels").items())[:16]]
    expressions = [
        f"label {read_text(each, 'key', most=320)} {read_text(each, 'operator', most=32)} "
        f"{', '.join(read_texts(each, 'values', most=64))}".strip()
        for each in read_maps(selector, "matchExpressions", most=16)
    ]
    yield PolicyRow("Namespaces", (*read_texts(selector, "matchNames"), *labels, *expressions))
    yield PolicyRow("Role names", read_texts(allow, "roleNames"))
    yield PolicyRow("Attributes", read_texts(allow, "attributes"))
    yield PolicyRow("Memberships in", read_texts(allow, "memberOf"))
    yield PolicyRow("Superuser parameters", read_texts(allow, "parameters"))
    yield PolicyRow("New owners", read_texts(allow, "reassignTo"))
    if "privileges" in allow:
        yield PolicyRow("Privileges", tuple(_describe_rule(each) for each in read_maps(allow, "privileges", most=64)))
    else:
        yield PolicyRow("Privileges", ("on objects that the namespace's own roles own",))
    yield PolicyRow("Adopting existing roles", ("allowed",) if read_flag(allow, "adopt") else ())
    yield PolicyRow("Dropping roles", () if read_flag(allow, "drop") is False else ("allowed",))
    protected = read_texts(spec, "protectedRoles")
    if protected:
        yield PolicyRow("Protected roles", protected)


def _describe_rule(rule: Mapping[str, Any]) -> str:
    parts = [", ".join(read_texts(rule, "privileges", most=16)) or "every privilege"]
    for name, words in (("kinds", "on"), ("schemas", "in schemas"), ("databases", "in databases"), ("ownedBy", "of")):
        values = read_texts(rule, name, most=64)
        if values:
            parts.append(f"{words} {', '.join(values)}")
    return " ".join(parts)


def _explain_no_database(spec: Mapping[str, Any], left_out: Sequence[str]) -> str:
    if not {"spec.databases", "status.databases"}.isdisjoint(left_out):
        return "Left out here: the object is too long."
    if "databases" in spec:
        return "The controller manages privileges in no database yet: no PgRole declares any."
    return "The controller manages no privileges on this server: the spec has no databases."


def _databases(status: Mapping[str, Any]) -> Iterator[ServerDatabase]:
    for each in read_maps(status, "databases"):
        yield ServerDatabase(
            name=read_text(each, "name", most=256),
            state=ObjectState.READY if read_flag(each, "ready") else ObjectState.RETRYING,
            detection=read_text(each, "detection", most=32),
            message=read_text(each, "message"),
        )
