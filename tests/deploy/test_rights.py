"""The acceptance tests and `dev` run the controller with exactly the rights and policies in kustomize."""

import pytest

from pgrole_controller.local.rights import RightsScope, read_rights
from tests.deploy.manifests import OVERLAYS
from tests.deploy.programs import Programs
from tests.deploy.rendering import Json, of_kind, render_kustomization

POLICIES = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
ACCOUNT = {"kind": "ServiceAccount", "name": "pgrole-controller", "namespace": "pgrole-system"}


def identify(document: Json) -> tuple[str, str, str]:
    metadata = document["metadata"]
    return document["kind"], metadata.get("namespace", ""), metadata["name"]


@pytest.mark.parametrize(("overlay", "watched"), [("cluster", None), ("namespace", "team-a")])
async def test_read_rights_returns_exactly_what_is_bound_to_the_account(
    programs: Programs, overlay: str, watched: str | None
) -> None:
    objects = await render_kustomization(programs, OVERLAYS / overlay)
    rendered = {identify(one): one for one in objects}
    read = {identify(one): one for one in read_rights(RightsScope(watched=watched))}
    bound = {
        identify(one) for one in of_kind(objects, "RoleBinding", "ClusterRoleBinding") if ACCOUNT in one["subjects"]
    }
    assert {name for name in read if name[0].endswith("RoleBinding")} == bound
    policies = {identify(one) for one in of_kind(objects, *POLICIES)}
    assert {name for name in read if name[0] in POLICIES} == policies
    assert {name[0] for name in policies} == set(POLICIES)
    for name, document in read.items():
        for field in ("rules", "roleRef", "subjects", "spec"):
            assert document.get(field) == rendered[name].get(field), name


def test_the_policy_for_secrets_matches_the_account_of_the_installation() -> None:
    installation = RightsScope("other", "databases", "team-b")
    policy, binding = (one for one in read_rights(installation) if one["kind"] in POLICIES)
    assert policy["metadata"]["name"] == binding["metadata"]["name"] == binding["spec"]["policyName"] == "other-secrets"
    [condition] = policy["spec"]["matchConditions"]
    assert condition["expression"] == "request.userInfo.username.matches('^system:serviceaccount:[^:]+:other$')"
