"""The audit log of the local API server: what ServiceAccounts requested, and what was denied."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml

#: Logs the metadata of every ServiceAccount's request; a watch is logged when it begins and when it ends.
_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "omitManagedFields": True,
    "rules": [{"level": "Metadata", "userGroups": ["system:serviceaccounts"]}, {"level": "None"}],
}
_LOG_MEGABYTES = 4_096  # above this, the log rotates and older entries are no longer read
_DECISION = "authorization.k8s.io/decision"
_VIOLATION = "validation.policy.admission.k8s.io/validation_failure"  # of a policy whose binding has the action Audit


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One request. `resource` includes its subresource, as in RBAC rules (`pgroles/status`), or is a path outside the
    API groups; `namespace` and `name` are empty if absent. `refused`: by RBAC, or by the admission policy installed
    with it.
    """

    user: str
    verb: str
    group: str
    resource: str
    namespace: str
    name: str
    code: int
    refused: bool


class AuditLog:
    """The log's files, in a folder of their own; may be read while the API server writes it. Dry runs are left out,
    since they neither use a right nor write anything.
    """

    def __init__(self, folder: Path) -> None:
        self._policy = folder / "audit-policy.yaml"
        self.path = folder / "audit.log"
        self.ready_from = (
            0  # its `size` when the API server last became ready: before, it denies what it does not know yet
        )

    def arguments(self) -> list[str]:
        """Arguments for kube-apiserver. Each entry is written before its request completes, so none is lost."""
        self._policy.write_text(yaml.safe_dump(_POLICY, sort_keys=False), encoding="utf-8")
        return [
            f"--audit-policy-file={self._policy}",
            f"--audit-log-path={self.path}",
            "--audit-log-mode=blocking",
            f"--audit-log-maxsize={_LOG_MEGABYTES}",
        ]

    @property
    def size(self) -> int:
        """Size in bytes: the position at which new entries will begin."""
        return self.path.stat().st_size if self.path.exists() else 0

    def read(self, since: int = 0) -> Iterator[AuditEntry]:
        """Yields the entries from a `size` on."""
        yield from (_take(event) for event in map(json.loads, self._lines(since)) if not _is_dry(event))

    def refused(self, since: int = 0) -> Iterator[AuditEntry]:
        """Yields the denied requests from a `size` on."""
        lines = (line for line in self._lines(since) if b'"forbid"' in line or _VIOLATION.encode() in line)
        events = (event for event in map(json.loads, lines) if not _is_dry(event))
        yield from (entry for entry in map(_take, events) if entry.refused)

    def _lines(self, since: int) -> Iterator[bytes]:
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            if since:
                file.seek(since - 1)
                file.readline()  # the rest of an entry that was being written, or only its end of line
            yield from (line for line in file if line.endswith(b"\n"))


def _is_dry(event: dict[str, Any]) -> bool:
    return "dryRun" in parse_qs(urlsplit(event["requestURI"]).query)


def _take(event: dict[str, Any]) -> AuditEntry:
    target = event.get("objectRef") or {}
    subresource = target.get("subresource")
    resource = target.get("resource", event["requestURI"].partition("?")[0])
    annotations = event.get("annotations") or {}
    return AuditEntry(
        user=event["user"]["username"],
        verb=event["verb"],
        group=target.get("apiGroup", ""),
        resource=f"{resource}/{subresource}" if subresource else resource,
        namespace=target.get("namespace", ""),
        name=target.get("name", ""),
        code=(event.get("responseStatus") or {}).get("code", 0),
        refused=annotations.get(_DECISION) == "forbid" or _VIOLATION in annotations,
    )
