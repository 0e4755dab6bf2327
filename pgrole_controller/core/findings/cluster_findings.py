"""Judges what was read from the API server: pure decisions of `doctor`. Objects may have any shape."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from shlex import quote
from typing import Any

from pgrole_controller.core.drift_record import read_moment
from pgrole_controller.core.findings.finding import Finding, FindingState, Remedy, shell
from pgrole_controller.core.names import name_some

OK, WARNING, PROBLEM, UNKNOWN = FindingState.OK, FindingState.WARNING, FindingState.PROBLEM, FindingState.UNKNOWN

CLUSTER = "cluster"
APPLY_CRDS = "pgrole-controller crds | kubectl apply --server-side -f -"
_DEFAULT_ACCOUNT = "system:serviceaccount:pgrole-system:pgrole-controller"
_APPLY_RIGHTS = "kubectl apply --server-side " + " ".join(
    f"-f deploy/kustomize/{file}.yaml"
    for file in ("base/own_namespace", "base/servers", "overlays/cluster/roles", "overlays/cluster/connection_secrets")
)

_CLOCK_SECONDS = 5.0
_LEASE_SECONDS = 60.0
_MESSAGE = 300


@dataclass(frozen=True, slots=True)
class RequiredRight:
    """One action. `where`: `own` namespace, `watched` namespaces, or the `cluster`."""

    verb: str
    group: str
    resource: str
    where: str = "watched"
    name: str = ""

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}" + (f".{self.group}" if self.group else "")


def _permissions(verbs: str, group: str, resource: str, where: str = "watched", name: str = "") -> list[RequiredRight]:
    return [RequiredRight(verb, group, resource, where, name) for verb in verbs.split()]


#: What the controller needs; deploy/kustomize grants it. Without `secrets` writes, PgRoles have no connection Secrets.
NEEDED = (
    *_permissions("get list watch patch", "pgrole.dev", "pgroles"),
    *_permissions("patch", "pgrole.dev", "pgroles/status"),
    *_permissions("get list watch", "", "secrets"),
    *_permissions("get", "", "namespaces"),
    *_permissions("create patch", "events.k8s.io", "events"),
    *_permissions("get list watch patch", "pgrole.dev", "pgservers", "cluster"),
    *_permissions("patch", "pgrole.dev", "pgservers/status", "cluster"),
    *_permissions("create", "coordination.k8s.io", "leases", "own"),
    *_permissions("get update", "coordination.k8s.io", "leases", "own", "{lease}"),
    *_permissions("get list watch", "", "configmaps", "own"),
    *_permissions("get list watch", "", "secrets", "own"),
)

#: What this command reads.
READ = (
    *_permissions("list", "pgrole.dev", "pgroles"),
    *_permissions("list", "pgrole.dev", "pgservers", "cluster"),
    *_permissions("get", "apiextensions.k8s.io", "customresourcedefinitions", "cluster"),
    *_permissions("list", "apps", "deployments", "own"),
    *_permissions("get", "coordination.k8s.io", "leases", "own"),
)


def judge_definition(name: str, expected: Mapping[str, Any], found: Mapping[str, Any] | None) -> Finding:
    """`found` None: there is no such CustomResourceDefinition."""
    check = f"CRD {name}"
    if found is None:
        return Finding(CLUSTER, check, PROBLEM, "not installed", shell(APPLY_CRDS))
    established = _condition(found, "Established")
    if established.get("status") != "True":
        text = f"not established: {_text(established, 'message') or 'no condition yet'}"
        return Finding(CLUSTER, check, PROBLEM, text, shell(f"kubectl describe crd {quote(name)}"))
    (wanted,) = expected["spec"]["versions"]
    versions = [one for one in _list(_map(found, "spec"), "versions") if isinstance(one, dict)]
    same = [one for one in versions if one.get("name") == wanted["name"]]
    if not same or same[0].get("served") is not True:
        return Finding(CLUSTER, check, PROBLEM, f"version {wanted['name']} is not served", _update_crds(found))
    schema = _map(same[0], "schema")
    if schema == wanted["schema"]:
        return Finding(CLUSTER, check, OK, "installed, with this program's schema")
    if _has_more(_map(schema, "openAPIV3Schema"), wanted["schema"]["openAPIV3Schema"]):
        text = "it has fields that this program does not know: use the program of the controller's version"
        return Finding(CLUSTER, check, WARNING, text)
    text = "its schema differs from this program's: it belongs to an older version"
    return Finding(CLUSTER, check, WARNING, text, _update_crds(found))


def _update_crds(found: Mapping[str, Any]) -> tuple[Remedy, ...]:
    return upgrade_release(found, " --set crds.install=true") or shell(APPLY_CRDS)


def upgrade_release(obj: Mapping[str, Any], options: str = "") -> tuple[Remedy, ...]:
    """The command that applies the chart again if Helm installed this object, else none. Helm owns the object's fields:
    `kubectl apply --server-side` fails.
    """
    annotations = _map(_map(obj, "metadata"), "annotations")
    release, namespace = (_text(annotations, f"meta.helm.sh/release-{one}") for one in ("name", "namespace"))
    if not release:
        return ()
    command = f"helm upgrade {quote(release)} deploy/helm/pgrole-controller --namespace {quote(namespace)}"
    return shell(f"{command} --reset-then-reuse-values{options}")


def _has_more(schema: Mapping[str, Any], known: Mapping[str, Any]) -> bool:
    """Whether a schema has a field that `known` lacks. Under `known`, the API server would drop it from objects."""
    fields, known_fields = _map(schema, "properties"), _map(known, "properties")
    return (
        not fields.keys() <= known_fields.keys()
        or any(_has_more(_map(fields, name), _map(known_fields, name)) for name in fields)
        or any(_has_more(_map(schema, of), _map(known, of)) for of in ("items", "additionalProperties") if of in schema)
    )


def judge_caller(user: str, missing: Sequence[RequiredRight]) -> Finding:
    """`missing`: of READ."""
    if not missing:
        return Finding(CLUSTER, "your permissions", OK, f"{user} may read everything that is checked")
    grouped = ",".join(dict.fromkeys(f"{one.resource}.{one.group}" for one in missing))
    remedies = shell(
        f"kubectl create clusterrole pgrole-doctor --verb=get,list --resource={grouped}",
        f"kubectl create clusterrolebinding pgrole-doctor --clusterrole=pgrole-doctor --user={quote(user)}",
    )
    text = f"{user} may not {', '.join(map(str, missing))}: skipped the checks that need it"
    return Finding(CLUSTER, "your permissions", WARNING, text, remedies)


def judge_controller_rights(
    account: str, watched: str, missing: Sequence[RequiredRight], release: tuple[Remedy, ...] = ()
) -> Finding:
    """`account`: system:serviceaccount:…; `watched`: its only namespace, or empty; `missing`: of NEEDED; `release`: the
    command that applies the chart again, where Helm installed it.
    """
    check = "the controller's permissions"
    where = f" in namespace {watched}" if watched else ""
    if not missing:
        return Finding(CLUSTER, check, OK, f"{account} may do what the controller needs{where}")
    there = ", ".join(dict.fromkeys(str(one) for one in missing if not watched or one.where != "own"))
    own = ", ".join(str(one) for one in missing if watched and one.where == "own")
    lacking = [f"{there}{where}"] * bool(there) + [f"{own} in its own namespace"] * bool(own)
    text = (
        f"{account} may not {', nor '.join(lacking)}: install its permissions again, with helm upgrade or your "
        "kustomize overlay"
    )
    is_default = account == _DEFAULT_ACCOUNT and not watched
    return Finding(CLUSTER, check, PROBLEM, text, release or (shell(_APPLY_RIGHTS) if is_default else ()))


def judge_clock(server_time: datetime, now: datetime) -> Finding:
    """The API server's time has whole seconds."""
    behind = (now - server_time).total_seconds()
    if abs(behind) <= _CLOCK_SECONDS:
        return Finding(CLUSTER, "clock", OK, "the API server's differs from this machine's by less than 5 s")
    way = "behind" if behind > 0 else "ahead of"
    text = (
        f"the API server is {abs(behind):.0f} s {way} this machine: set the clock of the machine that is wrong; there "
        "run"
    )
    return Finding(CLUSTER, "clock", WARNING, text, shell("chronyc makestep"))


def judge_deployment(
    deployments: Sequence[Mapping[str, Any]], namespace: str, version: str, unelected: Collection[str] = ()
) -> list[Finding]:
    """Those with the controller's label in its namespace. `version`: of this program. `unelected`: the names of those
    whose processes elect no leader.
    """
    check = "deployment"
    if not deployments:
        text = f"no Deployment with label app.kubernetes.io/name=pgrole-controller in namespace {namespace}"
        return [Finding(CLUSTER, check, WARNING, f"{text}: name the controller's with --own-namespace")]
    findings = []
    for deployment in deployments:
        name = _text(_map(deployment, "metadata"), "name")
        wanted, ready = (
            _number(_map(deployment, "spec"), "replicas"),
            _number(_map(deployment, "status"), "readyReplicas"),
        )
        image = find_image(deployment)
        text = f"{name}: {ready} of {wanted} replicas ready, image {image or 'unknown'}"
        logs = f"kubectl -n {quote(namespace)} describe deployment {quote(name)}"
        several = wanted > 1 and name in unelected
        if wanted == 0 or several:
            text += "; leader election is off, so each of them acts as if it were the only one" if several else ""
            replicas = 1 if name in unelected else 2
            scale = f"kubectl -n {quote(namespace)} scale deployment {quote(name)} --replicas={replicas}"
            findings.append(Finding(CLUSTER, check, PROBLEM, text, shell(scale)))
        elif ready < wanted:
            findings.append(Finding(CLUSTER, check, PROBLEM if ready == 0 else WARNING, text, shell(logs)))
        elif not _may_be(image, version):
            findings.append(Finding(CLUSTER, check, WARNING, f"{text}; this program is {version}"))
        else:
            findings.append(Finding(CLUSTER, check, OK, text))
    return findings


def _may_be(image: str, version: str) -> bool:
    """Whether an image has this version as its tag, or only a digest, which tells no version."""
    name, _, digest = image.partition("@")
    tag = name.rpartition("/")[2].partition(":")[2]
    return tag == version or bool(digest and not tag)


def _pod_spec(deployment: Mapping[str, Any]) -> Mapping[str, Any]:
    return _map(_map(_map(deployment, "spec"), "template"), "spec")


def _first_container(deployment: Mapping[str, Any]) -> Mapping[str, Any]:
    containers = _list(_pod_spec(deployment), "containers")
    return containers[0] if containers and isinstance(containers[0], dict) else {}


def find_image(deployment: Mapping[str, Any]) -> str:
    return _text(_first_container(deployment), "image")


def find_account(deployment: Mapping[str, Any]) -> str:
    """The name of its ServiceAccount."""
    return _text(_pod_spec(deployment), "serviceAccountName") or "default"


def find_environment(deployment: Mapping[str, Any]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Variables of its first container that have a literal value, and the ConfigMaps that set others."""
    container = _first_container(deployment)
    variables = [one for one in _list(container, "env") if isinstance(one, dict)]
    sources = [one for one in _list(container, "envFrom") if isinstance(one, dict)]
    names = (_text(_map(one, "configMapRef"), "name") for one in sources)
    return {_text(one, "name"): _text(one, "value") for one in variables}, tuple(name for name in names if name)


def elects(variables: Mapping[str, Any]) -> bool:
    """Whether processes with these variables elect a leader, as they do by default in a cluster."""
    return _text(variables, "PGROLE_LEADER_ELECTION").lower() != "false"


def is_in_doubt(lease: Mapping[str, Any], now: datetime) -> bool:
    """Whether it shows only later whether its holder renews it: the time in it is by the holder's clock."""
    renewed = _renewed_at(lease)
    return renewed is not None and not -_CLOCK_SECONDS <= (now - renewed).total_seconds() <= _LEASE_SECONDS


def _renewed_at(lease: Mapping[str, Any]) -> datetime | None:
    return read_moment(_map(lease, "spec").get("renewTime"))


def judge_lease(
    name: str,
    namespace: str,
    lease: Mapping[str, Any] | None,
    now: datetime,
    later: Mapping[str, Any] | None = None,
) -> Finding:
    """`now`: by the API server's clock. `lease` None: there is none. `later`: as it was a few seconds later, None: not
    read again.
    """
    check, logs = (
        "lease",
        shell(f"kubectl -n {quote(namespace)} logs -l app.kubernetes.io/name=pgrole-controller --tail=50"),
    )
    if lease is None:
        text = f"Lease {name} does not exist in namespace {namespace}: no controller has led"
        return Finding(CLUSTER, check, WARNING, text, logs)
    spec = _map(lease, "spec")
    holder, renewed = _text(spec, "holderIdentity"), _renewed_at(lease)
    if not holder:
        return Finding(CLUSTER, check, PROBLEM, f"no process holds Lease {name}: no controller runs", logs)
    if renewed is None:
        return Finding(CLUSTER, check, PROBLEM, f"Lease {name} of {holder} was never renewed", logs)
    age = (now - renewed).total_seconds()
    if later is not None and _renewed_at(later) != renewed:
        way = "behind" if age > 0 else "ahead of"
        text = (
            f"{_text(_map(later, 'spec'), 'holderIdentity') or holder} leads, but the clock of its machine is "
            f"{abs(age):.0f} s {way} the API server: set the clock of the machine that is wrong; there run"
        )
        return Finding(CLUSTER, check, WARNING, text, shell("chronyc makestep"))
    if later is not None and age < 0:
        text = f"{holder} does not renew Lease {name}, whose time is {-age:.0f} s ahead: no process leads"
        return Finding(CLUSTER, check, PROBLEM, text, logs)
    if age > _LEASE_SECONDS:
        return Finding(
            CLUSTER, check, PROBLEM, f"{holder} renewed Lease {name} {age:.0f} s ago: no process leads", logs
        )
    return Finding(CLUSTER, check, OK, f"{holder} leads, renewed {max(age, 0):.0f} s ago")


def judge_server(obj: Mapping[str, Any]) -> Finding:
    """One PgServer, by its condition Ready."""
    name = _text(_map(obj, "metadata"), "name")
    check, describe = f"PgServer {name}", shell(f"kubectl describe pgservers.pgrole.dev {quote(name)}")
    ready = _condition(obj, "Ready")
    if not ready:
        return Finding(CLUSTER, check, WARNING, "no controller has reported on it yet", describe)
    text = f"{_text(ready, 'reason')}: {_text(ready, 'message')[:_MESSAGE]}"
    if ready.get("status") != "True":
        return Finding(CLUSTER, check, PROBLEM, text, describe)
    mode = _text(_map(_map(obj, "status"), "detection"), "mode")
    return Finding(CLUSTER, check, OK, f"Ready, mode {mode or 'unknown'}")


def judge_roles(objects: Iterable[Mapping[str, Any]], server: str | None = None) -> list[Finding]:
    """PgRoles that are not Ready, by reason. `server`: they are those of this PgServer; None: of all."""
    waiting: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    number = 0
    for obj in objects:
        number += 1
        ready = _condition(obj, "Ready")
        if ready.get("status") != "True":
            waiting[_text(ready, "reason") or "no status"].append(obj)
    if not waiting:
        none = "no PgRoles exist" if server is None else f"no PgRole references PgServer {server}"
        return [Finding(CLUSTER, "PgRoles", OK, f"{number}, all Ready" if number else none)]
    findings = []
    for reason, objs in sorted(waiting.items(), key=lambda item: (-len(item[1]), item[0])):
        names = [f"{_text(_map(obj, 'metadata'), 'namespace')}/{_text(_map(obj, 'metadata'), 'name')}" for obj in objs]
        namespace, _, name = names[0].partition("/")
        remedy = shell(f"kubectl -n {quote(namespace)} describe pgroles.pgrole.dev {quote(name)}")
        text = f"{len(names)} of {number} not Ready, {reason}: {name_some(names)}"
        message = _text(_condition(objs[0], "Ready"), "message")[:_MESSAGE]
        state = WARNING if reason in _EXPECTED else PROBLEM
        findings.append(Finding(CLUSTER, "PgRoles", state, text + (f". {message}" if message else ""), remedy))
    return findings


#: Reasons that are someone's decision, or that pass.
_EXPECTED = frozenset(
    {"Progressing", "Suspended", "DriftReported", "MembershipPending", "PrivilegePending", "no status"}
)


def not_checked(what: str, why: str, remedies: tuple[Remedy, ...] = (), area: str = CLUSTER) -> Finding:
    return Finding(area, what, UNKNOWN, f"not checked: {why}", remedies)


def _condition(obj: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    for one in _list(_map(obj, "status"), "conditions"):
        if isinstance(one, dict) and one.get("type") == kind:
            return one
    return {}


def _map(obj: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = obj.get(name)
    return value if isinstance(value, dict) else {}


def _list(obj: Mapping[str, Any], name: str) -> list[Any]:
    value = obj.get(name)
    return value if isinstance(value, list) else []


def _text(obj: Mapping[str, Any], name: str) -> str:
    value = obj.get(name)
    return value if isinstance(value, str) else ""


def _number(obj: Mapping[str, Any], name: str) -> int:
    value = obj.get(name)
    return value if isinstance(value, int) else 0
