"""The rights that the acceptance tests and `dev` run the controller with are those that kustomize gives it."""

import pytest

from pgrole_controller.local.rights import Installation, read_rights
from tests.deploy.manifests import OVERLAYS
from tests.deploy.programs import Programs
from tests.deploy.rendering import Json, of_kind, render_kustomization

ACCOUNT = {"kind": "ServiceAccount", "name": "pgrole-controller", "namespace": "pgrole-system"}


def identify(document: Json) -> tuple[str, str, str]:
    metadata = document["metadata"]
    return document["kind"], metadata.get("namespace", ""), metadata["name"]


@pytest.mark.parametrize(("overlay", "watched"), [("cluster", None), ("namespace", "team-a")])
async def test_they_are_all_that_is_bound_to_the_account_and_no_more(
    programs: Programs, overlay: str, watched: str | None
) -> None:
    objects = await render_kustomization(programs, OVERLAYS / overlay)
    rendered = {identify(one): one for one in objects}
    read = {identify(one): one for one in read_rights(Installation(watched=watched))}
    bound = {
        identify(one) for one in of_kind(objects, "RoleBinding", "ClusterRoleBinding") if ACCOUNT in one["subjects"]
    }
    assert {name for name in read if name[0].endswith("Binding")} == bound
    for name, document in read.items():
        for field in ("rules", "roleRef", "subjects"):
            assert document.get(field) == rendered[name].get(field), name
