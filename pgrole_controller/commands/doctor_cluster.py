"""The checks of `doctor` on the cluster, through its API server."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from shlex import quote
from typing import TYPE_CHECKING, Any

import anyio

from pgrole_controller import __version__
from pgrole_controller.api.crd import DEFINITIONS, crd
from pgrole_controller.commands.doctor_checks import CheckList
from pgrole_controller.commands.server_reading import ServerChoice
from pgrole_controller.controller.objects import server_of
from pgrole_controller.controller.server_config import DEFAULT_SERVER
from pgrole_controller.core.drift_record import read_moment
from pgrole_controller.core.findings import cluster_findings as judge
from pgrole_controller.core.findings.cluster_findings import CLUSTER, RequiredRight, not_checked
from pgrole_controller.core.findings.finding import Finding, FindingState, Remedy, shell
from pgrole_controller.kube.errors import ApiError
from pgrole_controller.kube.listing import list_objects, list_pages
from pgrole_controller.kube.resource import (
    ACCESS_REVIEWS,
    CONFIGMAPS,
    LEASES,
    NAMESPACES,
    PGROLES,
    PGSERVERS,
    SELF_ACCESS_REVIEWS,
    SELF_REVIEWS,
    Resource,
)
from pgrole_controller.kube.unvalidated import mapping, parse, parse_mapping, sequence
from pgrole_controller.settings import DSN

if TYPE_CHECKING:
    from pgrole_controller.kube.client import Client

CRDS = Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions")
DEPLOYMENTS = Resource("apps", "v1", "deployments")

_LABEL = "app.kubernetes.io/name=pgrole-controller"

_NAME_ONE = "you may not list them in all namespaces: name one with -n"

#: Maximum number of PgRoles that are read and counted.
MOST_ROLES = 20_000
#: A leader renews its Lease every 2 s.
RENEWAL_SECONDS = 5.0
#: Maximum number of installations in one namespace that are told apart.
MOST_INSTALLATIONS = 50


@dataclass(frozen=True, slots=True)
class CheckedInstallation:
    """The controller as its Deployment configures it. `lease`, `account`: names of its Lease and ServiceAccount.
    `elects`: its processes elect a leader. `watched`: the only namespace that it serves; empty: all. `upgrade`: the
    command that applies the chart again, where Helm installed the Deployment.
    """

    lease: str = "pgrole-controller"
    account: str = "pgrole-controller"
    elects: bool = True
    watched: str = ""
    upgrade: tuple[Remedy, ...] = ()


@dataclass(slots=True)
class ClusterChecks:
    """The checks of one cluster, one method for each question. What is learned from their answers:

    - `cluster`: its id in claims; None: unknown.
    - `servers`: names of the chosen PgServers. `databases`: those with managed privileges, by PgServer on which the
      controller reports.
    - `ahead`: the API server's clock, compared with this machine's.
    - `absent`: no Deployment of the controller is in its namespace.
    """

    client: "Client"
    choice: ServerChoice
    cluster: str | None = None
    servers: tuple[str, ...] = ()
    databases: dict[str, tuple[str, ...]] = field(default_factory=dict)
    user: str = "you"
    ahead: timedelta = timedelta()
    installation: CheckedInstallation = CheckedInstallation()
    absent: bool = False

    async def run(self) -> list[Finding]:
        """Never raises an error of the API server."""
        checks = CheckList(CLUSTER)
        if not await checks.run("API server", self._ask_version, failed=FindingState.PROBLEM):
            return checks.findings
        for name, check in (
            ("clock", self._ask_clock),
            ("CRDs", self._ask_definitions),
            ("your permissions", self._ask_own_rights),
            ("deployment", self._ask_deployment),
            ("the controller's permissions", self._ask_controller_rights),
            ("lease", self._ask_lease),
            ("cluster id", self._ask_cluster),
            ("PgServers", self._ask_servers),
            ("PgRoles", self._ask_roles),
        ):
            await checks.run(name, check)
        return checks.findings

    async def _ask_version(self) -> list[Finding]:
        try:
            answer = await self.client.request("GET", "/version", timeout=10)
            version = parse_mapping(answer).get("gitVersion")
            text = f"reachable, Kubernetes {str(version)[:60]}" if version else "reachable; its version is unknown"
        except ApiError as error:
            if error.status != 403:
                raise
            text = "reachable; its version is hidden from you"
        return [Finding(CLUSTER, "API server", FindingState.OK, text)]

    async def _ask_clock(self) -> list[Finding]:
        body = {"apiVersion": SELF_REVIEWS.api_version, "kind": "SelfSubjectReview"}
        try:
            review = parse(await self.client.request("POST", SELF_REVIEWS.path(), body=body))
        except ApiError as error:
            if error.status not in (403, 404):
                raise
            return [not_checked("clock", "this API server tells callers neither their name nor its time")]
        now = datetime.now(UTC)
        self.user = str(mapping(mapping(review.get("status")).get("userInfo")).get("username") or self.user)
        moment = read_moment(mapping(review.get("metadata")).get("creationTimestamp"))
        if moment is None:
            return [not_checked("clock", "this API server does not tell its time")]
        if abs(moment - now) > timedelta(seconds=2):
            self.ahead = moment - now
        return [judge.judge_clock(moment, now)]

    async def _ask_definitions(self) -> list[Finding]:
        findings = []
        for definition in DEFINITIONS:
            expected = crd(definition)
            name = expected["metadata"]["name"]
            try:
                found = parse(await self.client.request("GET", CRDS.path(None, name)))
            except ApiError as error:
                if error.status == 403:
                    findings.append(await self._discover(name, definition.plural))
                    continue
                if error.status != 404:
                    raise
                found = None
            findings.append(judge.judge_definition(name, expected, found))
        return findings

    async def _discover(self, name: str, plural: str) -> Finding:
        """Uses discovery to learn which resources exist, without the right to read CRDs."""
        check = f"CRD {name}"
        try:
            served = parse_mapping(await self.client.request("GET", f"/apis/{PGROLES.api_version}"))
        except ApiError as error:
            if error.status != 404:
                raise
            served = {}
        if plural in [mapping(one).get("name") for one in sequence(served.get("resources"))]:
            return not_checked(check, "it exists, but you may not read its schema")
        return Finding(CLUSTER, check, FindingState.PROBLEM, "not installed", shell(judge.APPLY_CRDS))

    async def _ask_own_rights(self) -> list[Finding]:
        missing = [one for one in judge.READ if not await self._may(one, None)]
        return [judge.judge_caller(self.user, missing)]

    async def _ask_deployment(self) -> list[Finding]:
        namespace = self.choice.own_namespace
        try:
            deployments = await list_objects(self.client, DEPLOYMENTS, namespace, {"labelSelector": _LABEL})
        except ApiError as error:
            if error.status != 403:
                raise
            return [not_checked("deployment", f"you may not list Deployments in namespace {namespace}")]
        self.absent = not deployments
        unelected = set[str]()
        for deployment in deployments[:MOST_INSTALLATIONS]:
            variables = await self._read_environment(deployment)
            elects = judge.elects(variables)
            if not elects:
                unelected.add(_name_of(deployment))
            watched = str(variables.get("PGROLE_NAMESPACE") or "")
            if deployment is not deployments[0] and watched != self.choice.cluster.namespace:
                continue  # of several installations, the checks are about the first, or the chosen namespace's own
            self.installation = CheckedInstallation(
                str(variables.get("PGROLE_LEASE") or "pgrole-controller"),
                judge.find_account(deployment),
                elects,
                watched,
                judge.upgrade_release(deployment),
            )
            self.cluster = str(variables.get("PGROLE_CLUSTER_ID") or "") or None
        return judge.judge_deployment(deployments, namespace, __version__, unelected)

    async def _read_environment(self, deployment: dict[str, Any]) -> dict[str, Any]:
        """Returns the variables that decide where the controller needs its rights, whether it elects a leader, and its
        name of the cluster. Assumes that an unreadable ConfigMap sets nothing.
        """
        variables: dict[str, Any] = {}
        own, config_maps = judge.find_environment(deployment)
        for name in config_maps[:5]:
            try:
                config_map = parse(await self.client.request("GET", CONFIGMAPS.path(self.choice.own_namespace, name)))
            except ApiError as error:
                if error.status not in (403, 404):
                    raise
                continue
            variables |= mapping(config_map.get("data"))  # as in a pod, the last one wins
        return variables | own

    async def _ask_controller_rights(self) -> list[Finding]:
        account = f"system:serviceaccount:{self.choice.own_namespace}:{self.installation.account}"
        missing = []
        for one in judge.NEEDED:
            try:
                if not await self._may(one, account):
                    missing.append(one)
            except ApiError as error:
                if error.status != 403:
                    raise
                look = f"kubectl auth can-i --list --as={quote(account)} -n {quote(self.choice.own_namespace)}"
                return [
                    not_checked("the controller's permissions", "you may not create SubjectAccessReviews", shell(look))
                ]
        if self.absent and len(missing) == len(judge.NEEDED):
            why = f"{account} has none, and no Deployment runs as it. Name the controller's namespace: --own-namespace"
            return [not_checked("the controller's permissions", why)]
        installation = self.installation
        return [judge.judge_controller_rights(account, installation.watched, missing, installation.upgrade)]

    async def _may(self, right: RequiredRight, account: str | None) -> bool:
        """Whether RBAC allows it to `account`, or to the caller. Raises ApiError."""
        plural, _, subresource = right.resource.partition("/")
        watched = (self.choice.cluster.namespace or "") if account is None else self.installation.watched
        namespaces = {"own": self.choice.own_namespace, "watched": watched, "cluster": ""}
        spec: dict[str, Any] = {
            "resourceAttributes": {
                "verb": right.verb,
                "group": right.group,
                "resource": plural,
                "subresource": subresource,
                "namespace": namespaces[right.where],
                "name": right.name.format(lease=self.installation.lease),
            }
        }
        if account is not None:
            namespace = self.choice.own_namespace
            spec["user"] = account
            spec["groups"] = ["system:authenticated", "system:serviceaccounts", f"system:serviceaccounts:{namespace}"]
        resource = SELF_ACCESS_REVIEWS if account is None else ACCESS_REVIEWS
        kind = "SelfSubjectAccessReview" if account is None else "SubjectAccessReview"
        body = {"apiVersion": resource.api_version, "kind": kind, "spec": spec}
        review = parse(await self.client.request("POST", resource.path(), body=body))
        return mapping(review.get("status")).get("allowed") is True

    async def _ask_lease(self) -> list[Finding]:
        if not self.installation.elects:  # a Lease from before it was switched off has no holder
            return [Finding(CLUSTER, "lease", FindingState.OK, "leader election is off: no Lease")]
        name, namespace = self.installation.lease, self.choice.own_namespace
        try:
            lease = await self._read_lease()
            now, later = datetime.now(UTC) + self.ahead, None
            if lease is not None and judge.is_in_doubt(lease, now):
                await anyio.sleep(RENEWAL_SECONDS)
                later = await self._read_lease()
        except ApiError as error:
            if error.status != 403:
                raise
            return [not_checked("lease", f"you may not read Lease {name} in namespace {namespace}")]
        return [judge.judge_lease(name, namespace, lease, now, later)]

    async def _read_lease(self) -> dict[str, Any] | None:
        path = LEASES.path(self.choice.own_namespace, self.installation.lease)
        try:
            return parse(await self.client.request("GET", path))
        except ApiError as error:
            if error.status != 404:
                raise
            return None

    async def _ask_cluster(self) -> list[Finding]:
        if self.cluster is not None:
            return []
        try:
            system = parse(await self.client.request("GET", NAMESPACES.path(None, "kube-system")))
        except ApiError as error:
            if error.status not in (403, 404):
                raise
            return []  # then only the claims of this cluster cannot be told from others
        self.cluster = str(mapping(system.get("metadata")).get("uid") or "") or None
        return []

    async def _ask_servers(self) -> list[Finding]:
        try:
            objects = await list_objects(self.client, PGSERVERS, None)
        except ApiError as error:
            if error.status not in (403, 404):
                raise
            return [not_checked("PgServers", "you may not list them" if error.status == 403 else "no CRD")]
        chosen = [one for one in objects if self.choice.server in (None, _name_of(one))]
        self.servers = tuple(_name_of(one) for one in chosen)
        findings = [judge.judge_server(one) for one in chosen]
        for one, finding in zip(chosen, findings, strict=True):
            listed = sequence(mapping(one.get("status")).get("databases"))
            names = (mapping(entry).get("name") for entry in listed)
            databases = tuple(name for name in names if isinstance(name, str))
            if databases or finding.state is FindingState.OK:  # else no controller has reported on them
                self.databases[_name_of(one)] = databases
        return findings or [self._judge_missing(self.choice.server)]

    def _judge_missing(self, server: str | None) -> Finding:
        """`server`: the PgServer that was asked for; None: any."""
        check, uses = f"PgServer {server}" if server else "PgServers", f"the controller uses {DSN.variable}"
        if server is None or (server == DEFAULT_SERVER and self.choice.dsn is not None):
            return Finding(CLUSTER, check, FindingState.WARNING, f"none exists: {uses}, if it is set")
        hint = f". If {uses}, set it here as well" if server == DEFAULT_SERVER else ""
        look = shell("kubectl get pgservers.pgrole.dev")
        return Finding(CLUSTER, check, FindingState.PROBLEM, f"it does not exist{hint}", look)

    async def _ask_roles(self) -> list[Finding]:
        objects: list[dict[str, Any]] = []
        try:
            async for page in list_pages(self.client, PGROLES, self.choice.cluster.namespace):
                objects += page
                if len(objects) >= MOST_ROLES:
                    break
        except ApiError as error:
            if error.status not in (403, 404):
                raise
            why = "no CRD"
            if error.status == 403:
                namespace = self.choice.cluster.namespace
                why = f"you may not list them in namespace {namespace}" if namespace else _NAME_ONE
            return [not_checked("PgRoles", why)]
        if self.choice.server is not None:
            objects = [one for one in objects if server_of(one) == self.choice.server]
        return judge.judge_roles(objects, self.choice.server)


def _name_of(obj: dict[str, Any]) -> str:
    return str(mapping(obj.get("metadata")).get("name") or "")
