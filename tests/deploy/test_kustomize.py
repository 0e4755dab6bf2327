"""The overlays, and components that can be added or left out."""

import re
from pathlib import Path

import pytest

from pgrole_controller.cli import make_parser
from pgrole_controller.console.console_arguments import ConsoleArguments
from pgrole_controller.console.console_parser import read_arguments
from tests.deploy.manifests import COMPONENTS, INSTALL, OVERLAYS, ROOT
from tests.deploy.programs import Programs
from tests.deploy.rendering import (
    NAMESPACE,
    Json,
    environment_of,
    of_kind,
    read_objects,
    render_kustomization,
    the,
    write_overlay,
)
from tests.documents import read_document

POLICY = "pgrole-controller-secrets"
CONSOLE = "pgrole-controller-console"
CLUSTER, ONE_NAMESPACE = OVERLAYS / "cluster", OVERLAYS / "namespace"


def read_console(deployment: Json) -> ConsoleArguments:
    """Reads the console's arguments as the kubelet passes them on, with the values of variables."""
    source = {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}
    assert environment_of(deployment) == {"POD_NAMESPACE": source}
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    namespace = deployment["metadata"]["namespace"]
    given = [argument.replace("$(POD_NAMESPACE)", namespace) for argument in container["args"]]
    return read_arguments(make_parser().parse_args(given))


def copy_for_shop(folder: Path, text: str = "", component: str = "") -> Path:
    """Copies the overlay for one namespace and edits it, as its first lines say. Adds `text` to its kustomization, and
    a component before the others.
    """
    copy = folder / "copy"
    copy.mkdir(parents=True)
    for file in ONE_NAMESPACE.iterdir():
        (copy / file.name).write_text(file.read_text(encoding="utf-8"), encoding="utf-8")
    edited = (copy / "kustomization.yaml").read_text(encoding="utf-8") + text
    edited = edited.replace("PGROLE_NAMESPACE=team-a", "PGROLE_NAMESPACE=shop")
    if component:
        edited = edited.replace("components:\n", f"components:\n  - ../../components/{component}\n")
    return write_overlay(copy, edited.replace("../../", "ROOT/deploy/kustomize/"))


def rules_of(objects: list[Json]) -> dict[str, list[Json]]:
    return {one["metadata"]["name"]: one["rules"] for one in of_kind(objects, "Role", "ClusterRole")}


async def test_the_cluster_overlay_contains_everything_needed(programs: Programs) -> None:
    objects = await render_kustomization(programs, CLUSTER)
    assert {one["metadata"]["name"] for one in of_kind(objects, "CustomResourceDefinition")} == {
        "pgroles.pgrole.dev",
        "pgservers.pgrole.dev",
    }
    assert (
        the(objects, "Namespace", NAMESPACE)["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    )
    for kind in ("ServiceAccount", "Deployment", "Service", "Role", "RoleBinding"):
        assert the(objects, kind)["metadata"]["namespace"] == NAMESPACE


async def test_the_base_has_the_same_deployment_and_no_crd(programs: Programs) -> None:
    """docs/upgrade.md: it rolls the controller back, and leaves the newer CRDs."""
    base, cluster = [await render_kustomization(programs, at) for at in (OVERLAYS.parent / "base", CLUSTER)]
    assert not of_kind(base, "CustomResourceDefinition")
    assert the(base, "Deployment") == the(cluster, "Deployment")


async def test_install_yaml_equals_the_rendered_cluster_overlay(programs: Programs) -> None:
    assert read_objects(INSTALL.read_text(encoding="utf-8")) == await render_kustomization(programs, CLUSTER), (
        "run `make manifests`"
    )


async def test_the_kustomization_in_crds_contains_every_crd(programs: Programs) -> None:
    found = {one["metadata"]["name"]: one["spec"] for one in await render_kustomization(programs, ROOT / "crds")}
    written = [read_document(path.read_text(encoding="utf-8")) for path in (ROOT / "crds").glob("*.yaml")]
    assert found == {one["metadata"]["name"]: one["spec"] for one in written}


async def test_the_namespace_overlay_has_cluster_rights_on_pgservers_only(
    programs: Programs,
) -> None:
    objects = await render_kustomization(programs, ONE_NAMESPACE)
    of_the_cluster = [one for one in objects if "namespace" not in one["metadata"]]
    assert {(one["kind"], one["metadata"]["name"]) for one in of_the_cluster} == {
        ("Namespace", NAMESPACE),
        ("ClusterRole", "pgrole-controller-servers"),
        ("ClusterRoleBinding", "pgrole-controller-servers"),
        ("ValidatingAdmissionPolicy", POLICY),
        ("ValidatingAdmissionPolicyBinding", POLICY),
    }
    resources = {name for rule in rules_of(objects)["pgrole-controller-servers"] for name in rule["resources"]}
    assert resources == {"pgservers", "pgservers/status"}


async def test_the_namespace_is_set_once_for_roles_and_settings(programs: Programs, tmp_path: Path) -> None:
    objects = await render_kustomization(programs, copy_for_shop(tmp_path))
    for name in ("pgrole-controller-roles", "pgrole-controller-connection-secrets"):
        assert {the(objects, kind, name)["metadata"]["namespace"] for kind in ("Role", "RoleBinding")} == {"shop"}
    assert the(objects, "Role", "pgrole-controller-credentials")["metadata"]["namespace"] == NAMESPACE
    [settings] = of_kind(objects, "ConfigMap")
    assert settings["data"]["PGROLE_NAMESPACE"] == "shop"
    [container] = the(objects, "Deployment")["spec"]["template"]["spec"]["containers"]
    assert container["envFrom"] == [{"configMapRef": {"name": settings["metadata"]["name"]}}]
    assert "team-a" not in str(objects)


async def test_the_namespace_overlay_has_the_same_rights_except_listing_namespaces(programs: Programs) -> None:
    everywhere = rules_of(await render_kustomization(programs, CLUSTER))
    there = rules_of(await render_kustomization(programs, ONE_NAMESPACE))
    assert there["pgrole-controller-connection-secrets"] == everywhere["pgrole-controller-connection-secrets"]
    for rule in everywhere["pgrole-controller-roles"]:
        if rule["resources"] == ["namespaces"]:
            rule["verbs"] = ["get"]
    assert there["pgrole-controller-roles"] == everywhere["pgrole-controller-roles"]


@pytest.mark.parametrize("overlay", [CLUSTER, ONE_NAMESPACE], ids=lambda folder: folder.name)
async def test_no_rule_has_wildcards_and_only_one_role_may_write_secrets(programs: Programs, overlay: Path) -> None:
    objects = await render_kustomization(programs, overlay)
    for rules in rules_of(objects).values():
        assert "*" not in str(rules)
    for name, rules in rules_of(objects).items():
        if name.startswith("pgrole-controller"):
            written = [rule for rule in rules if {"create", "update", "patch", "delete"} & set(rule["verbs"])]
            secrets = [rule for rule in written if "secrets" in rule["resources"]]
            assert bool(secrets) == (name == "pgrole-controller-connection-secrets")


async def test_only_the_controllers_role_may_patch_status(programs: Programs) -> None:
    for name, rules in rules_of(await render_kustomization(programs, CLUSTER)).items():
        verbs = {verb for rule in rules for verb in rule["verbs"] if "pgroles/status" in rule["resources"]}
        assert ("patch" in verbs) == (name == "pgrole-controller-roles")
        assert "update" not in verbs


async def test_connection_secrets_can_be_left_out(programs: Programs, tmp_path: Path) -> None:
    overlay = write_overlay(
        tmp_path,
        """
resources: [ROOT/deploy/kustomize/overlays/cluster]
patches:
  - target: {name: pgrole-controller-connection-secrets}
    patch: '{"$patch": "delete", "apiVersion": "x", "kind": "x", "metadata": {"name": "x"}}'
""",
    )
    names = set(rules_of(await render_kustomization(programs, overlay)))
    whole = set(rules_of(await render_kustomization(programs, CLUSTER)))
    assert whole - names == {"pgrole-controller-connection-secrets"}


@pytest.mark.parametrize("overlay", [CLUSTER, ONE_NAMESPACE], ids=lambda folder: folder.name)
async def test_it_can_be_installed_in_another_namespace(programs: Programs, tmp_path: Path, overlay: Path) -> None:
    text = "namespace: databases\n"
    if overlay is CLUSTER:
        folder = write_overlay(tmp_path, text + "resources: [ROOT/deploy/kustomize/overlays/cluster]\n")
    else:
        folder = copy_for_shop(tmp_path, text)
    objects = await render_kustomization(programs, folder)
    assert of_kind(objects, "Namespace")[0]["metadata"]["name"] == "databases"
    for binding in of_kind(objects, "RoleBinding", "ClusterRoleBinding"):
        assert [subject["namespace"] for subject in binding["subjects"]] == ["databases"]
    for one in of_kind(objects, "Role", "RoleBinding"):
        watched = one["metadata"]["name"] in ("pgrole-controller-roles", "pgrole-controller-connection-secrets")
        assert one["metadata"]["namespace"] == ("shop" if watched else "databases")
    [condition] = the(objects, "ValidatingAdmissionPolicy", POLICY)["spec"]["matchConditions"]
    [pattern] = re.findall(r"^request\.userInfo\.username\.matches\('(.*)'\)$", condition["expression"])
    account = the(objects, "ServiceAccount")["metadata"]
    assert re.search(pattern, f"system:serviceaccount:{account['namespace']}:{account['name']}")
    assert not re.search(pattern, f"system:serviceaccount:{account['namespace']}:other-{account['name']}")
    assert not re.search(pattern, f"system:serviceaccount:{account['namespace']}:{account['name']}-other")


async def test_the_policy_for_secrets_can_be_left_out(programs: Programs, tmp_path: Path) -> None:
    overlay = write_overlay(
        tmp_path,
        """
resources: [ROOT/deploy/kustomize/overlays/cluster]
patches:
  - target: {name: pgrole-controller-secrets}
    patch: '{"$patch": "delete", "apiVersion": "x", "kind": "x", "metadata": {"name": "x"}}'
""",
    )
    left = await render_kustomization(programs, overlay)
    out = [one for one in await render_kustomization(programs, CLUSTER) if one not in left]
    assert [one["kind"] for one in out] == ["ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"]


async def test_every_optional_component_adds_one_object_that_selects_these_pods(
    programs: Programs, tmp_path: Path
) -> None:
    folders = sorted(folder.name for folder in COMPONENTS.iterdir() if folder.is_dir())
    folders.remove("secrets-policy")  # part of the overlays
    folders.remove("console")  # pods of its own
    listed = "".join(f"  - ROOT/deploy/kustomize/components/{name}\n" for name in folders)
    overlay = write_overlay(tmp_path, f"resources: [ROOT/deploy/kustomize/overlays/cluster]\ncomponents:\n{listed}")
    objects = await render_kustomization(programs, overlay)
    added = objects[:0] + [one for one in objects if one not in await render_kustomization(programs, CLUSTER)]
    assert sorted(one["kind"] for one in added) == [
        "NetworkPolicy",
        "PodDisruptionBudget",
        "PrometheusRule",
        "ServiceMonitor",
    ]
    pods = the(objects, "Deployment")["spec"]["template"]["metadata"]["labels"]
    service = the(objects, "Service")
    assert service["spec"]["selector"] == pods
    assert the(objects, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"] == pods
    assert the(objects, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"] == pods
    chosen = the(objects, "ServiceMonitor")["spec"]["selector"]["matchLabels"]
    assert chosen.items() <= service["metadata"]["labels"].items()


@pytest.mark.parametrize("overlay", [CLUSTER, ONE_NAMESPACE], ids=lambda folder: folder.name)
async def test_the_console_has_no_rights_no_token_and_its_own_pods(
    programs: Programs, tmp_path: Path, overlay: Path
) -> None:
    if overlay is CLUSTER:
        text = "resources: [ROOT/deploy/kustomize/overlays/cluster]\n"
        folder = write_overlay(tmp_path, f"{text}components: [ROOT/deploy/kustomize/components/console]\n")
        plain = await render_kustomization(programs, CLUSTER)
    else:
        folder = copy_for_shop(tmp_path, component="console")
        plain = await render_kustomization(programs, copy_for_shop(tmp_path / "plain"))
    objects = await render_kustomization(programs, folder)
    added = [one for one in objects if one not in plain]
    assert sorted(one["kind"] for one in added) == ["Deployment", "NetworkPolicy", "Service", "ServiceAccount"]
    assert {one["metadata"]["name"] for one in added} == {CONSOLE}
    assert {one["metadata"]["labels"]["app.kubernetes.io/name"] for one in added} == {"pgrole-console"}
    assert {one["metadata"]["labels"]["app.kubernetes.io/name"] for one in plain} == {"pgrole-controller"}
    assert the(objects, "ServiceAccount", CONSOLE)["automountServiceAccountToken"] is False
    pod = the(objects, "Deployment", CONSOLE)["spec"]["template"]
    assert (pod["spec"]["serviceAccountName"], pod["spec"]["automountServiceAccountToken"]) == (CONSOLE, False)
    [container] = pod["spec"]["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["image"] == the(objects, "Deployment")["spec"]["template"]["spec"]["containers"][0]["image"]
    assert read_console(the(objects, "Deployment", CONSOLE)).auth == "token"
    bound = [
        subject["name"] for one in objects if one["kind"].endswith("Binding") for subject in one.get("subjects", ())
    ]
    assert CONSOLE not in bound
    labels = pod["metadata"]["labels"]
    assert the(objects, "Service", CONSOLE)["spec"]["selector"] == labels
    assert the(objects, "NetworkPolicy", CONSOLE)["spec"]["podSelector"]["matchLabels"] == labels
    assert not the(objects, "Service")["spec"]["selector"].items() <= labels.items()


async def test_components_after_the_console_leave_it_its_labels(programs: Programs, tmp_path: Path) -> None:
    folders = sorted(folder.name for folder in COMPONENTS.iterdir() if folder.is_dir())
    assert folders[0] == "console"
    listed = "".join(f"  - ROOT/deploy/kustomize/components/{name}\n" for name in folders if name != "secrets-policy")
    text = f"resources: [ROOT/deploy/kustomize/overlays/cluster]\ncomponents:\n{listed}"
    for one in await render_kustomization(programs, write_overlay(tmp_path, text)):
        name = "pgrole-console" if one["metadata"]["name"] == CONSOLE else "pgrole-controller"
        assert one["metadata"]["labels"]["app.kubernetes.io/name"] == name


async def test_the_console_answers_to_the_name_of_its_service_in_the_overlays_namespace(
    programs: Programs, tmp_path: Path
) -> None:
    text = (
        "namespace: databases\n"
        "resources: [ROOT/deploy/kustomize/overlays/cluster]\ncomponents: [ROOT/deploy/kustomize/components/console]\n"
    )
    objects = await render_kustomization(programs, write_overlay(tmp_path, text))
    service = the(objects, "Service", CONSOLE)["metadata"]
    assert service["namespace"] == "databases"
    names = (service["name"], f"{service['name']}.{service['namespace']}.svc")
    assert read_console(the(objects, "Deployment", CONSOLE)).hostnames == names


async def test_the_writable_lease_is_the_one_in_the_environment(programs: Programs) -> None:
    objects = await render_kustomization(programs, CLUSTER)
    [names] = [rule["resourceNames"] for rule in the(objects, "Role")["rules"] if "resourceNames" in rule]
    assert names == [environment_of(the(objects, "Deployment"))["PGROLE_LEASE"]]
