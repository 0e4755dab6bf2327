"""Made-up snapshots that look as in production, for states that real servers do not have on demand."""

import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from pgrole_controller.console.snapshot import Snapshot
from pgrole_controller.console.viewed_objects import ViewedObjects
from pgrole_controller.core.outcome import CONNECTED, RECONCILED
from pgrole_controller.core.request import Key
from pgrole_controller.kube.stored_object import Stored

NOW = datetime(2026, 11, 22, 14, 40, tzinfo=UTC)
SCRIPT = "<script>globalThis.pwned=1</script>"
HOSTILE = (
    SCRIPT,
    '"><img src=x onerror="globalThis.pwned=1">',
    "javascript:globalThis.pwned=1",
    "{{ 7 * 7 }}{% raw %}",
    "\u202egnp.reader\u2066 \x1b[31m\x00 \ud800 ',;--",
    "</main></svg></title><style>*{display:none}</style>",
    "W" * 63,
)


def rfc3339(time: datetime) -> str:
    return time.isoformat(timespec="seconds").replace("+00:00", "Z")


def ago(**distance: float) -> str:
    return rfc3339(NOW - timedelta(**distance))


def conditions(reason: str, message: str, since: str) -> list[dict[str, Any]]:
    """Conditions as the controller writes them."""
    ready = {"type": "Ready", "status": "True" if reason == "Reconciled" else "False"}
    kinds = {"Reconciled": "", "Suspended": "", "DriftReported": "DriftDetected"}
    working = ("Progressing", "MembershipPending", "PrivilegePending", "ServerNotReady", "DatabaseError", "Contested")
    other = kinds.get(reason, "Reconciling" if reason in working else "Stalled")
    rest = {"reason": reason, "message": message, "lastTransitionTime": since, "observedGeneration": 1}
    return [{**ready, **rest}, *([{"type": other, "status": "True", **rest}] if other else [])]


def make_role(
    namespace: str,
    name: str,
    reason: str = "Reconciled",
    message: str = RECONCILED.message,
    *,
    since: str = ago(days=3),
    spec: Mapping[str, Any] | None = None,
    status: Mapping[str, Any] | None = None,
) -> tuple[Key, dict[str, Any]]:
    role = name.replace("-", "_")
    found = {
        "apiVersion": "pgrole.dev/v1alpha1",
        "kind": "PgRole",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "generation": 1,
            "uid": f"uid-{namespace}-{name}",
            "creationTimestamp": ago(days=40),
        },
        "spec": {"name": role, "serverRef": {"name": "orders"}, **(spec or {})},
        "status": {
            "observedGeneration": 1,
            "conditions": conditions(reason, message, since),
            "role": {"name": role, "oid": 24_601 + len(name), "applied": "v1:8c1f"},
            "server": {"name": "orders", "systemIdentifier": "7301234567890123456"},
            "driftCount": 0,
            **(status or {}),
        },
    }
    return Key(namespace, name), found


def drift(
    time: str, *fields: str, corrected: bool = True, by: str = "", proof: str = "None", **more: Any
) -> dict[str, Any]:
    cause = {"by": {"login": by, "proof": proof}} if by else {}
    return {"time": time, "fields": list(fields), "corrected": corrected, "count": len(fields), **cause, **more}


def make_server(name: str, reason: str = "Reconciled", message: str = CONNECTED.message, **more: Any) -> dict[str, Any]:
    return {
        "apiVersion": "pgrole.dev/v1alpha1",
        "kind": "PgServer",
        "metadata": {"name": name, "generation": 1, "uid": f"uid-{name}", "creationTimestamp": ago(days=90)},
        "spec": {
            "connection": {
                "hosts": [f"{name}-a.db.example.com", f"{name}-b.db.example.com"],
                "port": 5432,
                "database": "postgres",
                "sslMode": "verify-full",
                "credentialsSecretRef": {"name": f"{name}-controller"},
            },
            "allow": {
                "namespaces": {"matchNames": ["shop", "billing", "team-*"]},
                "roleNames": ["{namespace}_*", "orders_*", "billing_*", "readers"],
                "memberOf": ["readers", "{namespace}_*", "pg_monitor"],
                "attributes": ["createdb"],
                "privileges": [
                    {"databases": ["orders"], "schemas": ["app", "report_*"], "privileges": ["SELECT", "INSERT"]}
                ],
                "adopt": True,
            },
            "protectedRoles": ["rds*", "cloudsql*"],
            "databases": {"matchNames": ["*"]},
            "drift": {"mode": "Auto"},
        },
        "status": {
            "observedGeneration": 1,
            "conditions": conditions(reason, message, ago(minutes=12) if reason != "Reconciled" else ago(days=9)),
            "version": "18.1",
            "systemIdentifier": "7301234567890123456",
            "detection": {"mode": "Watch", "passwords": True, "claims": "Database"},
            "databases": [
                {"name": "orders", "ready": True, "detection": "Events"},
                {"name": "analytics", "ready": False, "detection": "Poll", "message": "event triggers are disabled"},
            ],
            **more,
        },
    }


SUSPENDED = "spec.suspend is true: the controller neither reads nor changes the role"


def typical() -> Snapshot:
    """A few roles in the states that an on-call engineer encounters."""
    privileges = [
        {
            "database": "orders",
            "onDatabase": ["CONNECT"],
            "schemas": [
                {"name": "app", "access": ["Read"]},
                {"name": "report_*", "access": ["Read"], "except": ["salaries", "tmp_*"]},
            ],
            "objects": [
                {"kind": "Table", "schema": "app", "names": ["order_*"], "privileges": ["INSERT", "UPDATE"]},
                {"kind": "Table", "schema": "hr", "names": ["people"], "columns": ["id"], "privileges": ["SELECT"]},
            ],
            "createdBy": ["orders_owner"],
        },
        {"database": "analytics", "schemas": [{"name": "public", "access": ["Read"]}]},
    ]
    orders_app = make_role(
        "shop",
        "orders-app",
        spec={
            "login": True,
            "connectionLimit": 20,
            "validUntil": "2027-01-01T00:00:00Z",
            "comment": "orders service, team shop",
            "password": {"generate": {"rotateEvery": "720h"}},
            "memberOf": [{"role": "readers"}, {"role": "orders_owner", "inherit": False}],
            "parameters": {"statement_timeout": "30s", "search_path": "app, public"},
            "databaseParameters": [{"database": "orders", "parameters": {"work_mem": "64MB"}}],
            "privileges": privileges,
            "drift": {"ignore": ["connectionLimit"]},
        },
        status={
            "driftCount": 14,
            "nextRotation": rfc3339(NOW + timedelta(days=17)),
            "lastDrift": {
                **drift(ago(minutes=4), "privileges", database="orders"),
                "details": ["DELETE on table app.orders was granted", "UPDATE on table app.prices was revoked"],
                "by": {
                    "login": "alice",
                    "role": "dba",
                    "application": "psql",
                    "address": "10.2.7.14",
                    "statement": "GRANT DELETE ON app.orders TO orders_app",
                    "proof": "Transaction",
                },
            },
            "driftHistory": [
                drift(ago(hours=2), "superuser", "createrole", by="bob", proof="Log"),
                drift(ago(hours=2, minutes=20), "memberOf", by="deploy_bot", proof="Session"),
                drift(ago(hours=9), "password"),
                drift(ago(days=2), "connectionLimit", "parameters", by="alice", proof="Statistics"),
            ],
            "privileges": [
                {"database": "orders", "ready": True, "reason": "Reconciled"},
                {"database": "analytics", "ready": True, "reason": "Reconciled"},
            ],
        },
    )
    roles = [
        orders_app,
        make_role("shop", "readers", spec={"privileges": privileges[:1], "memberOf": [{"role": "pg_monitor"}]}),
        make_role("shop", "orders-owner", spec={"memberOf": [{"role": "readers"}]}),
        make_role(
            "shop",
            "orders-report",
            "NotAllowed",
            "the server's policy does not allow superuser; allowed: createdb. Remove it from spec, or ask the server's "
            "administrator for allow.attributes",
            since=ago(minutes=35),
            spec={"superuser": True, "memberOf": [{"role": "orders_app"}]},
        ),
        make_role(
            "billing",
            "legacy-batch",
            "DriftReported",
            "drift detected but not corrected, since spec.drift.policy is Report: login, memberOf",
            since=ago(hours=5),
            spec={"drift": {"policy": "Report"}, "memberOf": [{"role": "readers"}]},
            status={
                "driftHistory": [drift(ago(hours=5), "login", "memberOf", corrected=False, by="carol", proof="Log")]
            },
        ),
        make_role(
            "billing",
            "billing-app",
            "Contested",
            "connectionLimit: corrected 11 times within 540 s, but something else keeps changing it; "
            f"from {ago(minutes=-2)} on, the controller corrects it again if it differs. Last seen running a statement "
            'about this role: user "terraform", application "Terraform", from "10.4.0.17". Apart from that: everything '
            "else matches the spec",
            since=ago(minutes=9),
            spec={"login": True, "memberOf": [{"role": "readers"}]},
            status={
                "driftCount": 61,
                "driftHistory": [
                    drift(ago(minutes=9 + each), "connectionLimit", by="terraform", proof="Log") for each in range(5)
                ],
            },
        ),
        make_role(
            "billing",
            "invoices",
            "MembershipPending",
            'spec.memberOf: these roles do not exist yet: "billing_owner": create or declare them. The controller '
            "grants each once it exists",
            since=ago(seconds=40),
            spec={"memberOf": [{"role": "billing_owner"}, {"role": "readers"}]},
        ),
        make_role("team-data", "etl", "Suspended", SUSPENDED, since=ago(days=1), spec={"suspend": True}),
        make_role("team-data", "notebooks", spec={"login": True, "memberOf": [{"role": "readers"}]}),
        make_role("team-data", "airflow", spec={"login": True, "memberOf": [{"role": "etl"}]}),
    ]
    hours = [
        (0, 6, 0),
        (1, 0, 1),
        (2, 3, 0),
        (3, 1, 0),
        (5, 2, 1),
        (6, 0, 2),
        (9, 6, 0),
        (10, 2, 0),
        (15, 1, 0),
        (21, 4, 0),
    ]
    counts = [{"hour": ago(hours=back), "corrected": fixed, "reported": left} for back, fixed, left in hours]
    servers = {
        "orders": make_server("orders", driftsPerHour=counts, roles={"declared": 10, "ready": 5}),
        "warehouse": make_server(
            "warehouse",
            "ServerNotReady",
            "warehouse-a.db.example.com:5432: the server's certificate is not trusted: certificate has expired",
            detection={"mode": "Poll", "passwords": False, "claims": "Status"},
            version="16.9",
            databases=[],
        ),
    }
    return make_snapshot(roles, servers)


def store_roles(roles: Iterable[tuple[Key, Any]]) -> ViewedObjects[Key]:
    """Roles of any shape, as the API server's are stored."""
    return ViewedObjects(
        {key: Stored(key, "uid", "1", zlib.compress(json.dumps(found).encode(), level=1)) for key, found in roles}
    )


def make_snapshot(
    roles: Iterable[tuple[Key, dict[str, Any]]], servers: Mapping[str, Mapping[str, Any]] | None = None
) -> Snapshot:
    return Snapshot(
        roles=store_roles(roles),
        servers=dict(servers or {}),
        servers_hidden=False,
        namespaces=None,
        connected=True,
        read_at=NOW,
        viewer="alice@example.com",
    )


def calm() -> Snapshot:
    """Everything is Ready."""
    return make_snapshot(
        [make_role("shop", name) for name in ("orders-app", "readers")], {"orders": make_server("orders")}
    )


def empty() -> Snapshot:
    return make_snapshot([])


def disconnected() -> Snapshot:
    return replace(typical(), connected=False, read_at=NOW - timedelta(minutes=3))


def restricted() -> Snapshot:
    """As seen by a viewer with rights in one namespace, who cannot list PgServers."""
    full = typical()
    roles = [(key, found) for key, found in full.roles.items() if key.namespace == "billing"]
    return replace(full, roles=store_roles(roles), servers={}, servers_hidden=True, namespaces=("billing",))


def without_rights() -> Snapshot:
    return replace(empty(), servers_hidden=True, namespaces=())


def many(count: int = 10_000) -> Snapshot:
    """Ten thousand roles, a few of them in other states, with memberships and drifts."""
    reasons = ("NotAllowed", "MembershipPending", "Contested", "DriftReported")
    roles = []
    for number in range(count):
        reason = reasons[number // 400 % 4] if number % 400 == 7 else "Reconciled"
        roles.append(
            make_role(
                f"team-{number % 40:02}",
                f"service-{number:05}",
                reason,
                spec={"login": number % 3 > 0, "memberOf": [{"role": f"service_{number // 10:05}"}] if number else []},
                status={"driftHistory": [drift(ago(hours=number % 24), "memberOf", by="alice", proof="Log")]}
                if number % 50 == 0
                else {},
            )
        )
    return make_snapshot(roles, {"orders": make_server("orders")})


def hostile() -> Snapshot:
    """Names, messages and values that contain markup, scripts or control characters, or are very long."""
    roles = []
    for number, text in enumerate(HOSTILE):
        other = HOSTILE[(number + 1) % len(HOSTILE)]
        roles.append(
            make_role(
                "hostile",
                f"role-{number}",
                "NotAllowed",
                (text + " ") * (2048 // (len(text) + 1)),
                spec={
                    "name": text,
                    "comment": text,
                    "memberOf": [{"role": other}, {"role": text}],
                    "parameters": {text: text},
                    "serverRef": {"name": "orders"},
                    "password": {"secretRef": {"name": text}},
                    "privileges": [{"database": text, "schemas": [{"name": text, "access": [text], "except": [text]}]}],
                },
                status={
                    "driftHistory": [
                        drift(ago(minutes=number), text, by=text, proof=text, database=text, details=[text, text * 2])
                    ],
                    "privileges": [{"database": text, "ready": False, "reason": text, "message": text}],
                },
            )
        )
    roles.append((Key(SCRIPT, SCRIPT), {"spec": SCRIPT, "status": [SCRIPT]}))
    return make_snapshot(roles, {"orders": make_server("orders"), SCRIPT: make_server(SCRIPT, SCRIPT, SCRIPT)})
