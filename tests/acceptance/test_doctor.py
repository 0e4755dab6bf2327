"""`doctor` and `history` with a real API server: their findings in a cluster, and that the printed commands fix it."""

import shlex
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import anyio
import asyncpg
import pytest
import pytest_asyncio

from pgrole_controller.commands.doctor import examine
from pgrole_controller.commands.doctor_cluster import ClusterChecks
from pgrole_controller.commands.server_reading import open_cluster
from pgrole_controller.core.findings.finding import Finding, FindingState
from pgrole_controller.local.apiserver import ApiServer
from pgrole_controller.local.manifests import apply, apply_crds, create_namespace
from pgrole_controller.local.postgres import PostgresServer
from pgrole_controller.local.process import reached
from pgrole_controller.local.rights import RightsScope, install
from pgrole_controller.postgres.schema import install as install_schema
from tests.acceptance.servers import PgServers
from tests.acceptance.world import GROUP, PATIENCE, Json, Kube
from tests.api_server_pool import ApiServerPool
from tests.commands import choose, run_command
from tests.conftest import lent
from tests.documents import read_documents
from tests.integration.look_support import by_check, states
from tests.servers import Servers

pytestmark = pytest.mark.slow

OK, WARNING, PROBLEM, UNKNOWN = FindingState.OK, FindingState.WARNING, FindingState.PROBLEM, FindingState.UNKNOWN
OWN = "pgrole-system"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def cluster(request: pytest.FixtureRequest, api_servers: ApiServerPool) -> AsyncIterator[ApiServer]:
    """An API server of its own, at first without CRDs, because these tests remove CRDs and rights."""
    async with lent(request, api_servers) as server:
        await create_namespace(server, OWN)
        yield server


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def postgres(servers: Servers) -> AsyncIterator[PostgresServer]:
    async with servers.run() as server:
        yield server


async def look(cluster: ApiServer, kubeconfig: Path | None = None, **chosen: str) -> dict[str, list[Finding]]:
    given = {"kubeconfig": str(kubeconfig or cluster.kubeconfig), **chosen}
    return by_check(await examine(choose(**given), None))


async def test_the_printed_command_installs_missing_crds(cluster: ApiServer) -> None:
    found = await look(cluster)
    for name in ("pgroles.pgrole.dev", "pgservers.pgrole.dev"):
        (finding,) = found[f"CRD {name}"]
        assert (finding.state, finding.text) == (PROBLEM, "not installed")
        assert finding.remedies[0].command == "pgrole-controller crds | kubectl apply --server-side -f -"
    assert states(found["PgServers"]) == states(found["PgRoles"]) == {UNKNOWN}
    assert states(found["API server"]) == states(found["clock"]) == {OK}
    assert found["API server"][0].text.startswith("reachable, Kubernetes v1.")
    printed = await run_command("crds")
    for definition in read_documents(printed.out):
        await apply(cluster, definition)
    await apply_crds(cluster)  # waits until they are served
    found = await look(cluster)
    assert states(found["CRD pgroles.pgrole.dev"]) == states(found["CRD pgservers.pgrole.dev"]) == {OK}
    assert states(found["PgRoles"]) == {OK}


async def test_a_crd_of_another_version_is_a_warning(cluster: ApiServer) -> None:
    await apply_crds(cluster)
    path = "/spec/versions/0/schema/openAPIV3Schema/properties/status/properties/driftHistory"
    await cluster.request(
        "PATCH",
        f"{CRDS}/pgroles.pgrole.dev",
        [{"op": "remove", "path": path}],  # type: ignore[arg-type]
        content_type="application/json-patch+json",
    )
    assert states((await look(cluster))["CRD pgroles.pgrole.dev"]) == {WARNING}
    await apply_crds(cluster)
    assert states((await look(cluster))["CRD pgroles.pgrole.dev"]) == {OK}


async def test_the_printed_commands_grant_missing_rights_to_the_caller(cluster: ApiServer) -> None:
    await apply_crds(cluster)
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "auditor", "namespace": OWN}}
    await apply(cluster, account)
    kubeconfig = cluster.kubeconfig_of(await cluster.admit(OWN, "auditor"))
    found = await look(cluster, kubeconfig)
    (rights,) = found["your permissions"]
    assert rights.state is WARNING
    assert "system:serviceaccount:pgrole-system:auditor may not list pgroles.pgrole.dev" in rights.text
    for check in (
        "PgServers",
        "PgRoles",
        "deployment",
        "lease",
        "the controller's permissions",
        "CRD pgroles.pgrole.dev",
    ):
        assert (check, states(found[check])) == (check, {UNKNOWN})
    assert "name one with -n" in found["PgRoles"][0].text
    (own,) = (await look(cluster, kubeconfig, namespace=OWN))["PgRoles"]
    assert own.text == f"not checked: you may not list them in namespace {OWN}"
    history = await run_command("history", "--kubeconfig", str(kubeconfig))
    assert (history.code, "name one with -n" in history.err) == (1, True)
    for remedy in rights.remedies:
        await create(cluster, remedy.command)

    async def is_mended() -> bool:
        return states((await look(cluster, kubeconfig))["your permissions"]) == {OK}

    assert await reached(is_mended, PATIENCE)
    found = await look(cluster, kubeconfig)
    assert states(found["CRD pgroles.pgrole.dev"]) == states(found["PgRoles"]) == {OK}


async def create(cluster: ApiServer, command: str) -> None:
    """Does what kubectl does for `create clusterrole` and `create clusterrolebinding`."""
    kubectl, verb, kind, name, *rest = shlex.split(command)
    assert (kubectl, verb) == ("kubectl", "create")
    options = dict(option.removeprefix("--").split("=", 1) for option in rest)
    group = "rbac.authorization.k8s.io"
    document: Json = {"apiVersion": f"{group}/v1", "metadata": {"name": name}}
    if kind == "clusterrole":
        resources = [one.partition(".") for one in options["resource"].split(",")]
        rules = [
            {"apiGroups": [of], "resources": [plural], "verbs": options["verb"].split(",")}
            for plural, _, of in resources
        ]
        document |= {"kind": "ClusterRole", "rules": rules}
    else:
        document |= {
            "kind": "ClusterRoleBinding",
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": options["clusterrole"]},
            "subjects": [{"apiGroup": group, "kind": "User", "name": options["user"]}],
        }
    await apply(cluster, document)


async def test_the_controllers_rights_are_compared_with_deploy(cluster: ApiServer) -> None:
    await apply_crds(cluster)
    (nowhere,) = (await look(cluster))["the controller's permissions"]
    assert (nowhere.state, "--own-namespace" in nowhere.text) == (UNKNOWN, True)
    await apply(cluster, deployment("pgrole-controller", OWN, {"serviceAccountName": "pgrole-controller"}))
    (before,) = (await look(cluster))["the controller's permissions"]
    assert before.state is PROBLEM
    assert "patch pgroles/status.pgrole.dev" in before.text
    await install(cluster, RightsScope())
    assert states((await look(cluster))["the controller's permissions"]) == {OK}


def deployment(name: str, namespace: str, pods: Json) -> Json:
    """One of the controller's, whose pods have the spec `pods`."""
    labels = {"app.kubernetes.io/name": "pgrole-controller"}
    spec = {
        "replicas": 2,
        "selector": {"matchLabels": labels},
        "template": {
            "metadata": {"labels": labels},
            "spec": {"containers": [{"name": "controller", "image": "x:0.1"}], **pods},
        },
    }
    metadata = {"name": name, "namespace": namespace, "labels": labels}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}


async def test_rights_of_a_controller_for_one_namespace_are_checked_in_that_namespace(cluster: ApiServer) -> None:
    await apply_crds(cluster)
    await create_namespace(cluster, "team-q")
    scope = RightsScope("quiet-controller", "quiet-system", "team-q")
    await install(cluster, scope)
    source = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "watched", "namespace": scope.namespace}}
    await apply(cluster, {**source, "data": {"PGROLE_NAMESPACE": "team-q"}})
    container = {
        "name": "controller",
        "image": "x:0.1",
        "env": [{"name": "PGROLE_LEASE", "value": scope.name}],
        "envFrom": [{"configMapRef": {"name": "watched"}}],
    }
    pods = {"serviceAccountName": scope.name, "containers": [container]}
    await apply(cluster, deployment("quiet", scope.namespace, pods))
    found = await look(cluster, own_namespace=scope.namespace)
    assert states(found["the controller's permissions"]) == {OK}
    assert "in namespace team-q" in found["the controller's permissions"][0].text
    assert states(found["deployment"]) == {PROBLEM}
    assert "quiet: 0 of 2 replicas ready" in found["deployment"][0].text
    assert "Lease quiet-controller does not exist" in found["lease"][0].text
    roles = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{scope.namespace}/roles"
    await cluster.request("DELETE", f"{roles}/{scope.name}-credentials")

    async def is_named() -> bool:
        [rights] = (await look(cluster, own_namespace=scope.namespace))["the controller's permissions"]
        return "may not get secrets, list secrets, watch secrets in its own namespace: install" in rights.text

    assert await reached(is_named, PATIENCE)


@pytest.mark.parametrize(("chosen", "name"), [(None, "a"), ("team-a", "a"), ("team-b", "b")])
async def test_of_several_installations_the_one_of_the_chosen_namespace_is_checked(
    cluster: ApiServer, chosen: str | None, name: str
) -> None:
    await apply_crds(cluster)
    await create_namespace(cluster, "shared-system")
    for one in ("a", "b"):
        variables = {"PGROLE_LEASE": f"lease-{one}", "PGROLE_NAMESPACE": f"team-{one}"}
        container = {
            "name": "c",
            "image": "x:0.1",
            "env": [{"name": key, "value": variables[key]} for key in variables],
        }
        pods = {"serviceAccountName": one, "containers": [container]}
        await apply(cluster, deployment(one, "shared-system", pods))
    given = {"own_namespace": "shared-system", **({"namespace": chosen} if chosen else {})}
    found = await look(cluster, None, **given)
    assert f"Lease lease-{name} does not exist" in found["lease"][0].text
    [rights] = found["the controller's permissions"]
    assert f"system:serviceaccount:shared-system:{name} may not" in rights.text
    assert f"in namespace team-{name}" in rights.text


async def identify(cluster: ApiServer, own: str, namespace: str | None = None) -> str | None:
    """The cluster's id in claims, for an environment with the id `own`."""
    choice = choose(kubeconfig=str(cluster.kubeconfig), own_namespace="named-system", namespace=namespace)
    async with open_cluster(choice.cluster) as client:
        checks = ClusterChecks(client, choice, own)
        await checks.run()
    return checks.cluster


async def test_the_cluster_has_the_name_that_its_controller_uses_in_claims(cluster: ApiServer) -> None:
    await apply_crds(cluster)
    await create_namespace(cluster, "named-system")
    system = await cluster.request("GET", "/api/v1/namespaces/kube-system")
    assert await identify(cluster, "own") == "own"
    for one, variables in (("a", {}), ("b", {"PGROLE_NAMESPACE": "team-b", "PGROLE_CLUSTER_ID": "eu-1"})):
        source = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": one, "namespace": "named-system"}}
        await apply(cluster, {**source, "data": variables})
        container = {"name": "c", "image": "x:0.1", "envFrom": [{"configMapRef": {"name": one}}]}
        await apply(cluster, deployment(one, "named-system", {"containers": [container]}))
    assert await identify(cluster, "own", "team-b") == "eu-1"
    assert await identify(cluster, "own") == system["metadata"]["uid"]


async def test_of_several_config_maps_the_last_one_sets_a_variable(
    cluster: ApiServer,
) -> None:
    await apply_crds(cluster)
    await create_namespace(cluster, "layered-system")
    for name, data in (
        ("base", {"PGROLE_NAMESPACE": "team-base", "PGROLE_LEASE": "base"}),
        ("overlay", {"PGROLE_NAMESPACE": "team-overlay", "PGROLE_LEASE": "overlay"}),
    ):
        source = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "layered-system"}}
        await apply(cluster, {**source, "data": data})
    container = {
        "name": "controller",
        "image": "x:0.1",
        "env": [{"name": "PGROLE_LEASE", "value": "own"}],
        "envFrom": [{"configMapRef": {"name": name}} for name in ("base", "overlay")],
    }
    await apply(cluster, deployment("layered", "layered-system", {"containers": [container]}))
    found = await look(cluster, own_namespace="layered-system")
    assert "in namespace team-overlay" in found["the controller's permissions"][0].text
    assert "Lease own does not exist" in found["lease"][0].text


@pytest.mark.parametrize(
    ("value", "wanted", "state", "said", "replicas"),
    [
        ("False", 0, OK, "leader election is off: no Lease", 1),
        ("False", 2, OK, "leader election is off: no Lease", 1),
        ("true", 0, PROBLEM, "no process holds Lease pgrole-controller", 2),
    ],
)
async def test_without_leader_election_no_process_has_to_hold_the_lease(
    cluster: ApiServer, value: str, wanted: int, state: FindingState, said: str, replicas: int
) -> None:
    """Processes that elected a leader before have resigned the Lease, which stays without a holder."""
    await apply_crds(cluster)
    own = f"elects-{value.lower()}-{wanted}"
    await create_namespace(cluster, own)
    source = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings", "namespace": own}}
    await apply(cluster, {**source, "data": {"PGROLE_LEADER_ELECTION": value}})
    metadata = {"name": "pgrole-controller", "namespace": own}
    spec = {"holderIdentity": "", "leaseDurationSeconds": 1}
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}
    await apply(cluster, lease)
    container = {"name": "c", "image": "x:0.1", "envFrom": [{"configMapRef": {"name": "settings"}}]}
    controller = deployment("controller", own, {"containers": [container]})
    controller["spec"]["replicas"] = wanted
    await apply(cluster, controller)
    found = await look(cluster, own_namespace=own)
    assert states(found["lease"]) == {state}
    assert said in found["lease"][0].text
    assert states(found["deployment"]) == {PROBLEM}
    [remedy] = found["deployment"][0].remedies
    assert remedy.command == f"kubectl -n {own} scale deployment controller --replicas={replicas}"


async def test_a_lease_without_a_recent_renewal_is_a_problem(cluster: ApiServer) -> None:
    await apply_crds(cluster)
    assert states((await look(cluster))["lease"]) == {WARNING}
    for age, state in ((300, PROBLEM), (2, OK)):
        renewed = (datetime.now(UTC) - timedelta(seconds=age)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        await apply(
            cluster,
            {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": "pgrole-controller", "namespace": OWN},
                "spec": {"holderIdentity": "pod-1", "renewTime": renewed, "leaseDurationSeconds": 15},
            },
        )
        assert states((await look(cluster))["lease"]) == {state}


@pytest.mark.parametrize("hours", [-1, 1])
async def test_a_leader_whose_clock_is_wrong_is_not_taken_for_dead(cluster: ApiServer, hours: int) -> None:
    async def renew_for_ever() -> None:
        while True:
            renewed = (datetime.now(UTC) + timedelta(hours=hours)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
            spec = {"holderIdentity": "pod-1", "renewTime": renewed, "leaseDurationSeconds": 15}
            metadata = {"name": "pgrole-controller", "namespace": OWN}
            lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}
            await apply(cluster, lease)
            renewing.set()
            await anyio.sleep(0.5)

    renewing = anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(renew_for_ever)
        await renewing.wait()
        (finding,) = (await look(cluster))["lease"]
        tasks.cancel_scope.cancel()
    assert finding.state is WARNING
    assert finding.text.startswith("pod-1 leads, but the clock of its machine is 3")


async def test_a_pgserver_is_checked_with_its_secret_independently_of_one_that_fails(
    cluster: ApiServer, postgres: PostgresServer
) -> None:
    await apply_crds(cluster)
    declared = PgServers(cluster)
    await declared.apply("main", postgres)
    lost = {"connection": {"hosts": ["127.0.0.1"], "sslMode": "disable", "credentialsSecretRef": {"name": "absent"}}}
    await declared.apply_spec("lost", lost)
    condition = {
        "type": "Ready",
        "status": "False",
        "reason": "ServerNotReady",
        "message": "Secret absent does not exist",
        "lastTransitionTime": "2026-11-22T12:00:00Z",
        "observedGeneration": 1,
    }
    await declared.server.request(
        "PATCH",
        f"{declared.path('lost')}/status",
        {"status": {"conditions": [condition]}},
        content_type="application/merge-patch+json",
    )
    findings = await examine(choose(kubeconfig=str(cluster.kubeconfig)), None)
    found = by_check(findings)
    assert found["PgServer lost"][0].state is PROBLEM
    assert found["PgServer lost"][0].text == "ServerNotReady: Secret absent does not exist"
    areas = {area: [one for one in findings if one.area == area] for area in ("server main", "server lost")}
    assert states(by_check(areas["server main"])["privileges"]) == {OK}
    assert [one.state for one in areas["server lost"]] == [UNKNOWN]
    assert "absent" in areas["server lost"][0].text
    condition["status"], condition["reason"] = "True", "Reconciled"
    await declared.server.request(
        "PATCH",
        f"{declared.path('lost')}/status",
        {"status": {"conditions": [condition]}},
        content_type="application/merge-patch+json",
    )
    assert states((await look(cluster))["PgServer lost"]) == {OK}
    one = await look(cluster, server="main")
    assert "PgServer lost" not in one
    assert states((await look(cluster, server="no-such"))["PgServer no-such"]) == {PROBLEM}


async def test_databases_on_which_no_controller_reports_are_those_of_claims(
    cluster: ApiServer, postgres: PostgresServer
) -> None:
    await apply_crds(cluster)
    declared = PgServers(cluster)
    await declared.apply("silent", postgres)
    admin = await asyncpg.connect(postgres.dsn())
    try:
        await install_schema(admin)
        await admin.execute(
            "INSERT INTO pgrole.claim (role_name, role_oid, system_identifier, cluster, namespace, namespace_uid,"
            " object, object_uid, privileges) VALUES ('r', 1, 1, 'c', 'n', 'u', 'o', 'u', '{\"postgres\": []}')"
        )
        assert 'event triggers of "postgres"' in await look(cluster, server="silent")
        for databases, name in (([], "postgres"), ([{"name": "other", "ready": True}], "other")):
            ready = {
                "type": "Ready",
                "status": "True",
                "reason": "Reconciled",
                "message": "connected",
                "lastTransitionTime": "2026-11-22T12:00:00Z",
            }
            await declared.server.request(
                "PATCH",
                f"{declared.path('silent')}/status",
                {"status": {"conditions": [ready], "databases": databases}},
                content_type="application/merge-patch+json",
            )
            found = await look(cluster, server="silent")
            assert [one for one in found if one.startswith("event triggers")] == [f'event triggers of "{name}"']
    finally:
        await admin.execute("DROP SCHEMA pgrole CASCADE; ALTER DATABASE postgres RESET pgrole.home")
        await admin.close()
        await declared.delete("silent")


async def test_history_shows_drifts_from_status_if_it_cannot_read_the_database(
    cluster: ApiServer, postgres: PostgresServer
) -> None:
    await apply_crds(cluster)
    await create_namespace(cluster, "shop")
    kube = Kube(cluster, "shop")
    await kube.apply("orders-app", name="orders_app")
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    by = {"login": "alice", "proof": "Log"}
    entries = [
        {"time": now, "fields": ["login"], "count": 1, "corrected": True, "by": by},
        {"time": "2020-01-01T00:00:00Z", "fields": ["createdb"], "count": 1, "corrected": False},
    ]
    await cluster.request(
        "PATCH",
        f"{GROUP}/namespaces/shop/pgroles/orders-app/status",
        {"status": {"driftHistory": entries}},
        content_type="application/merge-patch+json",
    )
    here = ("--kubeconfig", str(cluster.kubeconfig))
    for environment, why in (({}, "no server is named"), ({"PGROLE_DSN": postgres.dsn()}, "does not exist there")):
        answer = await run_command("history", "orders_app", *here, "-o", "json", **environment)
        shape = answer.json()
        assert why in shape["instead"]
        assert "drifts before the last ten of each PgRole" in shape["lacks"]
        (drift,) = shape["drifts"]
        assert (drift["time"], drift["object"], drift["by"]["login"]) == (now, "shop/orders-app", "alice")
    spec = {"connection": {"hosts": ["h"], "sslMode": "disable", "credentialsSecretRef": {"name": "absent"}}}
    await PgServers(cluster).apply_spec("default", spec)
    hidden = await run_command("history", *here, "--server", "default", "-o", "json")
    assert ("absent" in hidden.json()["instead"], len(hidden.json()["drifts"])) == (True, 1)
    table = await run_command("history", *here, "-n", "shop", "--since", "3650d")
    assert len(table.out.splitlines()) == 3
    assert "It lacks:" in table.err


async def test_history_with_a_dsn_shows_the_status_of_every_server_unless_one_is_named(
    cluster: ApiServer, postgres: PostgresServer
) -> None:
    await apply_crds(cluster)
    await create_namespace(cluster, "bank")
    kube = Kube(cluster, "bank")
    await kube.apply("here", name="here")
    await kube.apply("there", name="there", serverRef={"name": "eu"})
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    for name in ("here", "there"):
        await cluster.request(
            "PATCH",
            f"{GROUP}/namespaces/bank/pgroles/{name}/status",
            {"status": {"driftHistory": [{"time": now, "fields": ["login"], "count": 1, "corrected": True}]}},
            content_type="application/merge-patch+json",
        )
    spec = {"connection": {"hosts": ["h"], "sslMode": "disable", "credentialsSecretRef": {"name": "absent"}}}
    await PgServers(cluster).apply_spec("eu", spec)
    for chosen, roles in ((), {"here", "there"}), (("--server", "eu"), {"there"}):
        where = ("--kubeconfig", str(cluster.kubeconfig), "-n", "bank", *chosen)
        shape = (await run_command("history", *where, "-o", "json", PGROLE_DSN=postgres.dsn())).json()
        assert {drift["role"] for drift in shape["drifts"]} == roles
        table = await run_command("history", *where, PGROLE_DSN=postgres.dsn())
        assert ("name one with --server" in table.err) is (not chosen)
