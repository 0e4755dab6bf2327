"""The API server's audit log: accepted and refused requests, without dry runs."""

import json
from pathlib import Path
from typing import Any

from pgrole_controller.local.audit import AuditLog

VIOLATION = "validation.policy.admission.k8s.io/validation_failure"


def event(uri: str, code: int = 201, **annotations: str) -> dict[str, Any]:
    return {
        "user": {"username": "system:serviceaccount:pgrole-system:pgrole-controller"},
        "verb": "create",
        "requestURI": uri,
        "objectRef": {"resource": "secrets", "namespace": "shop", "name": "app"},
        "responseStatus": {"code": code},
        "annotations": annotations,
    }


def test_dry_runs_count_neither_as_requests_nor_as_refusals(tmp_path: Path) -> None:
    events = [
        event("/api/v1/namespaces/shop/secrets?fieldManager=pgrole-controller"),
        event("/api/v1/namespaces/shop/secrets?dryRun=All&fieldManager=kubectl"),
        event("/api/v1/namespaces/shop/secrets", 403, **{"authorization.k8s.io/decision": "forbid"}),
        event("/api/v1/namespaces/shop/secrets", 403, **{VIOLATION: "[]"}),
        event("/api/v1/namespaces/shop/secrets?dryRun=All", 403, **{VIOLATION: "[]"}),
        event("/api/v1/namespaces/shop/secrets?dryRun=All", 403, **{"authorization.k8s.io/decision": "forbid"}),
    ]
    log = AuditLog(tmp_path)
    log.path.write_text("".join(json.dumps(one, separators=(",", ":")) + "\n" for one in events), encoding="utf-8")
    assert [(entry.code, entry.refused) for entry in log.read()] == [(201, False), (403, True), (403, True)]
    assert [entry.code for entry in log.refused()] == [403, 403]


def test_an_entry_that_was_being_written_at_the_position_is_left_out(tmp_path: Path) -> None:
    log = AuditLog(tmp_path)
    first, second = (json.dumps(event("/api/v1/secrets", code)) + "\n" for code in (201, 403))
    log.path.write_text(first[:50], encoding="utf-8")
    within = log.size
    log.path.write_text(first, encoding="utf-8")
    between = log.size
    log.path.write_text(first + second, encoding="utf-8")
    assert [entry.code for entry in log.read(within)] == [403]
    assert [entry.code for entry in log.read(between)] == [403]
    assert [entry.code for entry in log.read()] == [201, 403]
