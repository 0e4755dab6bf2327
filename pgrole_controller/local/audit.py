"""The audit log of the local API server: what ServiceAccounts asked for, and what they were refused."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml

#: Metadata of every request of a ServiceAccount; a watch is told of when it begins, and again when it ends.
_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "omitManagedFields": True,
    "rules": [{"level": "Metadata", "userGroups": ["system:serviceaccounts"]}, {"level": "None"}],
}
_LOG_MEGABYTES = 4_096  # it is begun anew beyond, and what it said is in another file then
_DECISION = "authorization.k8s.io/decision"
_VIOLATION = "validation.policy.admission.k8s.io/validation_failure"  # of a policy whose binding says Audit


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One request. `resource` with its subresource, as rules of RBAC name it (`pgroles/status`), or a path outside of
    the API's groups; `namespace` and `name` are empty where there is none. `refused`: by RBAC, or by the policy that is
    installed with it.
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
    """The files of it, in a folder of their own. It may be read while it is written. What was only tried (a dry run) is
    left out: nobody has used a right by that, or written anything.
    """

    def __init__(self, folder: Path) -> None:
        self._policy = folder / "audit-policy.yaml"
        self.path = folder / "audit.log"
        self.ready_from = (
            0  # its `size` when the API server was last ready: before, it refuses what it does not know yet
        )

    def arguments(self) -> list[str]:
        """Those of kube-apiserver. An entry is written before its request counts as done: none is lost."""
        self._policy.write_text(yaml.safe_dump(_POLICY, sort_keys=False), encoding="utf-8")
        return [
            f"--audit-policy-file={self._policy}",
            f"--audit-log-path={self.path}",
            "--audit-log-mode=blocking",
            f"--audit-log-maxsize={_LOG_MEGABYTES}",
        ]

    @property
    def size(self) -> int:
        """In bytes: where what comes from now on begins."""
        return self.path.stat().st_size if self.path.exists() else 0

    def read(self, since: int = 0) -> Iterator[AuditEntry]:
        """The entries from a `size` on."""
        yield from (_take(event) for event in map(json.loads, self._lines(since)) if not _is_dry(event))

    def refused(self, since: int = 0) -> Iterator[AuditEntry]:
        """Those that were refused, from a `size` on."""
        lines = (line for line in self._lines(since) if b'"forbid"' in line or _VIOLATION.encode() in line)
        events = (event for event in map(json.loads, lines) if not _is_dry(event))
        yield from (entry for entry in map(_take, events) if entry.refused)

    def _lines(self, since: int) -> Iterator[bytes]:
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(since)
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
