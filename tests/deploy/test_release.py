"""A release of the chart on a real API server: installed, upgraded, rolled back, removed."""

import json
import re
import shutil
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
import yaml

from pgrole_controller.api.pgserver import PgServer
from pgrole_controller.core.findings.cluster_findings import APPLY_CRDS
from pgrole_controller.local.apiserver import ApiServer, LocalApiError
from pgrole_controller.local.manifests import apply, apply_crds, create_namespace, path_of
from tests.api_server_pool import ApiServerPool
from tests.conftest import lent
from tests.deploy.manifests import CHART, ROOT
from tests.deploy.programs import Answer, Programs, run
from tests.deploy.rendering import NAMESPACE, RELEASE, Json, of_kind, render_chart
from tests.deploy.test_chart import SERVER
from tests.documents import read_document, write_documents

NEWER_FIELD = "resyncInterval"  # of PgServer, removed from the older chart
ROLE: Json = {
    "apiVersion": "pgrole.dev/v1alpha1",
    "kind": "PgRole",
    "metadata": {"name": "orders-app", "namespace": "shop"},
    "spec": {"name": "orders_app"},
}
DEFINITION = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{}.pgrole.dev"
PGSERVER = "/apis/pgrole.dev/v1alpha1/pgservers/default"


@pytest_asyncio.fixture(loop_scope="session")
async def empty(request: pytest.FixtureRequest, api_servers: ApiServerPool) -> AsyncIterator[ApiServer]:
    """An API server on which nothing is installed."""
    async with lent(request, api_servers) as server:
        yield server


@pytest.fixture
def older_chart(tmp_path: Path) -> Path:
    """A chart whose PgServer CRD lacks one field."""
    folder = tmp_path / "older"
    shutil.copytree(CHART, folder)
    file = folder / "files" / "crds" / "pgrole.dev_pgservers.yaml"
    crd = read_document(file.read_text(encoding="utf-8"))
    del crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"][NEWER_FIELD]
    file.write_text(write_documents([crd]), encoding="utf-8")
    return folder


async def helm(programs: Programs, server: ApiServer, *arguments: str | Path, values: Json | None = None) -> Answer:
    given = () if values is None else ("--values", "-")
    command = ("--kubeconfig", server.kubeconfig, "-n", NAMESPACE, *arguments, *given)
    return await run(programs.helm, *command, stdin=yaml.safe_dump(values or {}))


async def helm_well(programs: Programs, server: ApiServer, *arguments: str | Path, values: Json | None = None) -> str:
    answer = await helm(programs, server, *arguments, values=values)
    assert answer.code == 0, answer.err
    return answer.out


async def fields_of_server(server: ApiServer) -> set[str]:
    """Returns the fields of PgServer's spec that the API server knows."""
    crd = await server.request("GET", DEFINITION.format("pgservers"))
    return set(crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"])


async def is_there(server: ApiServer, path: str) -> bool:
    try:
        await server.request("GET", path)
    except LocalApiError as error:
        if error.status == 404:
            return False
        raise
    return True


async def list_own(server: ApiServer) -> list[str]:
    """Returns the objects of the release other than CRDs and PgServers."""
    group, version = "rbac.authorization.k8s.io", "v1"
    paths = [
        f"/apis/{group}/{version}/clusterroles",
        f"/apis/{group}/{version}/clusterrolebindings",
        "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
        "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings",
        f"/apis/{group}/{version}/namespaces/{NAMESPACE}/roles",
        f"/apis/{group}/{version}/namespaces/{NAMESPACE}/rolebindings",
        f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments",
        f"/api/v1/namespaces/{NAMESPACE}/services",
        f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts",
        f"/api/v1/namespaces/{NAMESPACE}/secrets",
    ]
    found = []
    for path in paths:
        items = (await server.request("GET", path, query={"labelSelector": f"app.kubernetes.io/instance={RELEASE}"}))[
            "items"
        ]
        found += [f"{path}/{one['metadata']['name']}" for one in items]
    return found


async def test_an_upgrade_updates_the_crds_and_uninstalling_keeps_them_with_every_object(
    programs: Programs, empty: ApiServer, older_chart: Path
) -> None:
    said = await helm_well(programs, empty, "install", RELEASE, older_chart, "--create-namespace")
    [shown] = re.findall(r"<<END\n(.*?)^  END$", said, flags=re.MULTILINE | re.DOTALL)
    PgServer.model_validate(yaml.safe_load(shown))
    assert NEWER_FIELD not in await fields_of_server(empty)
    await create_namespace(empty, "shop")
    role = await apply(empty, ROLE)

    await helm_well(programs, empty, "upgrade", RELEASE, CHART, values={"servers": {"default": SERVER}})
    assert NEWER_FIELD in await fields_of_server(empty)
    pgserver = await empty.request("GET", PGSERVER)
    assert pgserver["spec"][NEWER_FIELD] == "1h"
    rendered = await render_chart(programs)
    assert len(await list_own(empty)) == len(rendered) - len(of_kind(rendered, "CustomResourceDefinition"))

    await helm_well(programs, empty, "uninstall", RELEASE)
    assert await list_own(empty) == []
    for path, before in ((await path_of(empty, ROLE), role), (PGSERVER, pgserver)):
        found = await empty.request("GET", path)
        assert found["metadata"]["uid"] == before["metadata"]["uid"]
        assert "deletionTimestamp" not in found["metadata"]
    for plural in ("pgroles", "pgservers"):
        assert await is_there(empty, DEFINITION.format(plural))

    await helm_well(programs, empty, "install", RELEASE, CHART, values={"servers": {"default": SERVER}})
    assert (await empty.request("GET", PGSERVER))["metadata"]["uid"] == pgserver["metadata"]["uid"]


async def test_a_rollback_restores_the_previous_crds_and_keeps_every_object(
    programs: Programs, empty: ApiServer, older_chart: Path
) -> None:
    await helm_well(programs, empty, "install", RELEASE, older_chart, "--create-namespace")
    await helm_well(programs, empty, "upgrade", RELEASE, CHART)
    await create_namespace(empty, "shop")
    role = await apply(empty, ROLE)
    await helm_well(programs, empty, "rollback", RELEASE, "1")
    assert NEWER_FIELD not in await fields_of_server(empty)
    found = await empty.request("GET", await path_of(empty, ROLE))
    assert found["metadata"]["uid"] == role["metadata"]["uid"]


async def test_a_downgrade_without_crds_keeps_the_new_ones_with_every_field(
    programs: Programs, empty: ApiServer, older_chart: Path
) -> None:
    """docs/upgrade.md: under older CRDs, an object loses the fields that they lack with its next write."""
    await helm_well(programs, empty, "install", RELEASE, CHART, "--create-namespace")
    without = ("--reset-then-reuse-values", "--set", "crds.install=false")
    await helm_well(programs, empty, "upgrade", RELEASE, older_chart, *without)
    assert NEWER_FIELD in await fields_of_server(empty)
    await helm_well(
        programs, empty, "upgrade", RELEASE, CHART, "--reset-then-reuse-values", "--set", "crds.install=true"
    )
    crd = await empty.request("GET", DEFINITION.format("pgservers"))
    assert crd["metadata"]["annotations"]["meta.helm.sh/release-name"] == RELEASE


async def test_the_commands_that_doctor_prints_mend_what_helm_installed(
    programs: Programs, empty: ApiServer, older_chart: Path
) -> None:
    await helm_well(programs, empty, "install", RELEASE, older_chart, "--create-namespace")
    kubectl = (programs.kubectl, "--kubeconfig", empty.kubeconfig)
    roles = f"{RELEASE}-roles"
    taken = await run(*kubectl, "patch", "clusterrole", roles, "--type=merge", "-p", '{"rules": []}')
    assert taken.code == 0, taken.err
    broken = await diagnose(empty)
    assert {"CRD pgservers.pgrole.dev", "the controller's permissions"} <= broken.keys()
    [_, by_kubectl] = APPLY_CRDS.split(" | ")
    refused = await run(
        *kubectl, *by_kubectl.split()[1:], stdin=(ROOT / "crds" / "pgrole.dev_pgservers.yaml").read_text("utf-8")
    )
    assert 'conflict with "helm"' in refused.err
    for commands in broken.values():
        for command in commands:
            helm_arguments = command.replace("deploy/helm/pgrole-controller", str(CHART)).split()
            assert helm_arguments.pop(0) == "helm"
            await helm_well(programs, empty, *helm_arguments)
    assert await diagnose(empty) == {}
    assert NEWER_FIELD in await fields_of_server(empty)


async def diagnose(server: ApiServer) -> dict[str, list[str]]:
    """Returns the commands that doctor prints about CRDs and the controller's permissions, by check."""
    answer = await run(
        Path(sys.executable), "-m", "pgrole_controller", "doctor", "--kubeconfig", server.kubeconfig, "-o", "json"
    )
    findings = json.loads(answer.out)["findings"]
    return {
        one["check"]: [remedy["command"] for remedy in one["remedies"]]
        for one in findings
        if one["state"] != "ok" and ("CRD" in one["check"] or "permissions" in one["check"])
    }


async def test_crds_applied_by_someone_else_are_left_or_taken_over_as_requested(
    programs: Programs, empty: ApiServer
) -> None:
    await apply_crds(empty)
    refused = await helm(programs, empty, "install", RELEASE, CHART, "--create-namespace")
    assert refused.code != 0
    assert "invalid ownership metadata" in refused.err

    without = {"crds": {"install": False}, "servers": {"default": SERVER}}
    said = await helm_well(programs, empty, "install", RELEASE, CHART, "--create-namespace", values=without)
    assert "are not part of this release" in said
    assert await is_there(empty, PGSERVER)
    await helm_well(
        programs, empty, "upgrade", RELEASE, CHART, "--take-ownership", values={"servers": {"default": SERVER}}
    )
    crd = await empty.request("GET", DEFINITION.format("pgroles"))
    assert crd["metadata"]["annotations"]["meta.helm.sh/release-name"] == RELEASE


async def test_a_pgserver_removed_from_the_values_stays(programs: Programs, empty: ApiServer) -> None:
    await helm_well(programs, empty, "install", RELEASE, CHART, "--create-namespace")
    await helm_well(programs, empty, "upgrade", RELEASE, CHART, values={"servers": {"default": SERVER}})
    await helm_well(programs, empty, "upgrade", RELEASE, CHART)
    assert "deletionTimestamp" not in (await empty.request("GET", PGSERVER))["metadata"]
