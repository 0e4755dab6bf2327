"""A real API server accepts everything that is rendered, and the pods meet Pod Security level restricted."""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import yaml

from pgrole_controller.local.apiserver import ApiServer, LocalApiError
from pgrole_controller.local.manifests import apply, apply_crds, create_namespace
from tests.api_server_pool import ApiServerPool
from tests.deploy.manifests import CHART, COMPONENTS, INSTALL, OVERLAYS
from tests.deploy.monitoring import definitions
from tests.deploy.programs import Answer, Programs, run
from tests.deploy.rendering import (
    NAMESPACE,
    RELEASE,
    Json,
    dump,
    read_objects,
    render_chart,
    render_kustomization,
    the,
)
from tests.deploy.test_chart import EVERYTHING, WATCHED
from tests.releases import BEFORE

WITH_SERVERS = ("--api-versions", "pgrole.dev/v1alpha1")
BY_HAND: Json = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "Role",
    "metadata": {"name": RELEASE, "namespace": NAMESPACE},
    "rules": [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get", "list", "watch"]}],
}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def prepared(cluster: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> ApiServer:
    """Has all required CRDs and namespaces; nothing else is ever written to it."""
    await apply_crds(cluster)
    folder = tmp_path_factory.mktemp("monitoring")
    (folder / "crds.yaml").write_text(dump(definitions()), encoding="utf-8")
    await apply_crds(cluster, folder)
    for name in ("team-a", "2026", "1e3"):
        await create_namespace(cluster, name)
    await apply(cluster, the(read_objects(INSTALL.read_text(encoding="utf-8")), "Namespace", NAMESPACE))
    return cluster


async def dry_run(programs: Programs, server: ApiServer, objects: list[Json] | str) -> Answer:
    """Applies objects as a dry run, in which unknown fields are refused and warnings are errors."""
    return await run(
        programs.kubectl,
        *("--kubeconfig", server.kubeconfig, "--warnings-as-errors"),
        *("apply", "--server-side", "--force-conflicts", "--dry-run=server", "-f", "-"),
        stdin=objects if isinstance(objects, str) else dump(objects),
    )


@pytest.mark.parametrize("overlay", ["cluster", "namespace"])
async def test_every_object_of_an_overlay_is_admitted(programs: Programs, prepared: ApiServer, overlay: str) -> None:
    objects = await render_kustomization(programs, OVERLAYS / overlay)
    answer = await dry_run(programs, prepared, objects)
    assert answer.code == 0, answer.err
    assert len(answer.out.splitlines()) == len(objects)


async def test_every_component_is_admitted(programs: Programs, prepared: ApiServer) -> None:
    files = [path for path in COMPONENTS.rglob("*.yaml") if path.name != "kustomization.yaml"]
    objects = [one for path in files for one in yaml.safe_load_all(path.read_text(encoding="utf-8"))]
    answer = await dry_run(programs, prepared, objects)
    assert answer.code == 0, answer.err
    assert len(answer.out.splitlines()) == len(objects)
    assert {path.parent.name for path in files} == {path.name for path in COMPONENTS.iterdir() if path.is_dir()}


@pytest.mark.parametrize("values", [{}, WATCHED, EVERYTHING], ids=["none", "one namespace", "everything"])
async def test_every_object_of_the_chart_is_admitted(programs: Programs, prepared: ApiServer, values: Json) -> None:
    objects = await render_chart(programs, *WITH_SERVERS, values=values)
    answer = await dry_run(programs, prepared, objects)
    assert answer.code == 0, answer.err
    assert len(answer.out.splitlines()) == len(objects)


#: Names that YAML reads as numbers or booleans.
ODD: Json = {
    "console": {"enabled": True},
    "dsn": {"secretName": "2026", "key": "true"},
    "image": {"pullSecrets": ["1e3"]},
    "networkPolicy": {"enabled": True},
    "podDisruptionBudget": {"enabled": True},
    "priorityClassName": "1e3",
    "prometheusRule": {"enabled": True},
    "serviceAccount": {"name": "1e3"},
    "serviceMonitor": {"enabled": True},
}


@pytest.mark.parametrize(
    ("release", "namespace", "values"),
    [
        ("2026", "1e3", ODD),
        ("1e3", "2026", ODD | {"watch": {"namespace": "1e3", "clusterId": "1"}}),
        ("eu.west", NAMESPACE, {}),
        (f"{'x' * 42}.y", NAMESPACE, {}),
    ],
)
async def test_the_chart_is_admitted_whatever_release_and_namespace_are_called(
    programs: Programs, prepared: ApiServer, release: str, namespace: str, values: Json
) -> None:
    answer = await run(
        programs.helm, "template", release, CHART, "-n", namespace, "--values", "-", stdin=json.dumps(values)
    )
    assert answer.code == 0, answer.err
    answer = await dry_run(programs, prepared, answer.out)
    assert answer.code == 0, answer.err


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("Deployment", ("spec", "template", "spec", "restartPolicies")),
        ("PrometheusRule", ("spec", "groups", 0, "rules", 0, "fore")),
        ("ServiceMonitor", ("spec", "endpoints", 0, "every")),
        ("PgServer", ("spec", "connection", "host")),
    ],
)
async def test_a_misspelt_field_is_refused(
    programs: Programs, prepared: ApiServer, kind: str, path: tuple[str | int, ...]
) -> None:
    objects = await render_chart(
        programs, *WITH_SERVERS, values=EVERYTHING | {"servers": {"default": EVERYTHING["servers"]["default"]}}
    )
    changed = deepcopy(next(one for one in objects if one["kind"] == kind))
    part: Any = changed
    for step in path[:-1]:
        part = part[step]
    part[path[-1]] = "x"
    answer = await dry_run(programs, prepared, [changed])
    assert answer.code != 0
    assert str(path[-1]) in answer.err


async def create_pod(server: ApiServer, deployment: Json) -> None:
    """Creates a pod like the Deployment's controller, as a dry run. Raises LocalApiError."""
    template = deployment["spec"]["template"]
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**template["metadata"], "name": "pgrole-controller-0"},
        "spec": template["spec"],
    }
    await server.request("POST", f"/api/v1/namespaces/{NAMESPACE}/pods", pod, query={"dryRun": "All"})


async def test_the_pods_are_admitted_under_pod_security_restricted(programs: Programs, prepared: ApiServer) -> None:
    for objects in (
        await render_kustomization(programs, OVERLAYS / "cluster"),
        await render_kustomization(programs, OVERLAYS / "namespace"),
        await render_chart(programs),
        await render_chart(programs, *WITH_SERVERS, values=EVERYTHING | {"priorityClassName": ""}),
    ):
        await create_pod(prepared, the(objects, "Deployment"))
    await create_pod(prepared, await console_of(programs))


@pytest.mark.parametrize(
    ("weaker", "named"),
    [
        ({"podSecurityContext": {"runAsNonRoot": False}}, "runAsNonRoot"),
        ({"podSecurityContext": {"seccompProfile": {"type": "Unconfined"}}}, "seccompProfile"),
        ({"securityContext": {"allowPrivilegeEscalation": True}}, "allowPrivilegeEscalation"),
        ({"securityContext": {"capabilities": {"add": ["SYS_PTRACE"]}}}, "capabilities"),
        ({"securityContext": {"capabilities": None}}, "capabilities"),
        ({"extraVolumes": [{"name": "x", "hostPath": {"path": "/"}}]}, "hostPath"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
async def test_weaker_pods_are_refused_and_their_deployment_warns(
    programs: Programs, prepared: ApiServer, weaker: Json, named: str
) -> None:
    deployment = the(await render_chart(programs, values=weaker), "Deployment")
    with pytest.raises(LocalApiError, match=f"violates PodSecurity.*{named}") as refused:
        await create_pod(prepared, deployment)
    assert refused.value.status == 403
    answer = await dry_run(programs, prepared, [deployment])
    assert answer.code != 0
    assert "would violate PodSecurity" in answer.err


async def console_of(programs: Programs) -> Json:
    objects = await render_chart(programs, values={"console": {"enabled": True}})
    return the(objects, "Deployment", f"{RELEASE}-console")


async def test_the_console_has_no_token_no_writable_file_and_a_memory_limit(programs: Programs) -> None:
    pod = (await console_of(programs))["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["resources"]["limits"]["memory"]
    assert (pod["automountServiceAccountToken"], pod["enableServiceLinks"]) == (False, False)
    assert pod["securityContext"]["runAsUser"] > 0
    assert pod["volumes"] == [{"name": "api-server-ca", "configMap": {"name": "kube-root-ca.crt"}}]
    assert all(mount["readOnly"] for mount in container["volumeMounts"])
    assert [one["name"] for one in container["env"]] == ["POD_NAMESPACE"]  # nothing of a Secret
    assert "envFrom" not in container
    assert "hostNetwork" not in pod


async def test_the_pod_is_hardened_beyond_pod_security_restricted(programs: Programs) -> None:
    pod = the(await render_chart(programs), "Deployment")["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert pod["securityContext"]["runAsUser"] > 0  # Kubernetes cannot verify that a user name is not root
    assert "volumes" not in pod
    assert "hostNetwork" not in pod


@pytest.mark.parametrize("first", [("--server-side",), ()], ids=["server-side", "client-side"])
async def test_install_yaml_can_be_applied_and_applied_again_in_either_way(
    programs: Programs, api_servers: ApiServerPool, first: tuple[str, ...]
) -> None:
    async with api_servers.lend() as server:
        for how in (first, ("--server-side",)):
            options = ("--kubeconfig", server.kubeconfig, "--warnings-as-errors")
            answer = await run(programs.kubectl, *options, "apply", *how, "-f", INSTALL)
            assert answer.code == 0, answer.err


async def test_install_yaml_replaces_objects_of_the_same_names_that_were_made_by_hand(
    programs: Programs, api_servers: ApiServerPool
) -> None:
    async with api_servers.lend() as server:

        async def kubectl(*arguments: str | Path, stdin: str = "") -> str:
            answer = await run(programs.kubectl, "--kubeconfig", server.kubeconfig, *arguments, stdin=stdin)
            assert answer.code == 0, answer.err
            return answer.out

        await kubectl("apply", "-f", BEFORE.crds)
        await kubectl("create", "namespace", NAMESPACE)
        await kubectl("apply", "-f", "-", stdin=dump([BY_HAND]))
        account = f"--serviceaccount={NAMESPACE}:{RELEASE}"
        await kubectl("create", "rolebinding", RELEASE, "-n", NAMESPACE, "--role", RELEASE, account)
        await kubectl("apply", "--server-side", "-f", INSTALL)
        rules = json.loads(await kubectl("get", "role", RELEASE, "-n", NAMESPACE, "-o", "json"))["rules"]
        assert rules == the(read_objects(INSTALL.read_text(encoding="utf-8")), "Role")["rules"]
