"""Installs the controller's ServiceAccount on the local API server, with the rights that deploy/kustomize grants.

From the overlays' `resources` and `components`, it reads only what concerns these rights: the account's objects of the
kinds below, and the admission policies, which narrow them. It replaces names, the controller's namespace and the
watched namespace by those of the installation.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pgrole_controller import resources
from pgrole_controller.local.apiserver import ApiServer, Json, LocalApiError
from pgrole_controller.local.manifests import apply, create_namespace, read_documents
from pgrole_controller.local.process import LocalError, reached

_NAME = "pgrole-controller"
_NAMESPACE = "pgrole-system"
_WATCHED = "team-a"  # in the overlay for one namespace
_ROLES = ("ClusterRole", "Role")
_BINDINGS = ("ClusterRoleBinding", "RoleBinding")
_POLICIES = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
_USER_ENDS = f":{_NAME}$"  # in the policies' expressions
_EFFECTIVE_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class RightsScope:
    """Where the controller is installed. `watched` is the only namespace whose PgRoles it manages; None means all."""

    name: str = _NAME
    namespace: str = _NAMESPACE
    watched: str | None = None

    @property
    def user(self) -> str:
        return f"system:serviceaccount:{self.namespace}:{self.name}"


def read_rights(installation: RightsScope) -> list[Json]:
    """Returns the ServiceAccount, its roles and bindings, and the policies.

    Raises LocalError if there are none, except for policies.
    """
    folder = resources.path("deploy", "kustomize")
    overlay = folder / "overlays" / ("cluster" if installation.watched is None else "namespace")
    found = list(_read_overlay(overlay, folder, None))
    bindings = [one for one in found if one["kind"] in _BINDINGS and _is_bound(one)]
    bound = {(one["roleRef"]["kind"], one["roleRef"]["name"], _namespace_of(one)) for one in bindings}
    roles = [one for one in found if (one["kind"], one["metadata"]["name"], _namespace_of(one)) in bound]
    accounts = [one for one in found if one["kind"] == "ServiceAccount"]
    if not (accounts and roles and len(bound) == len(roles)):
        raise LocalError(f"{overlay} does not grant {_NAME} its rights, or binds a role that does not exist")
    policies = [one for one in found if one["kind"] in _POLICIES]
    return [_place(one, installation) for one in (*accounts, *roles, *bindings, *policies)]


async def install(server: ApiServer, installation: RightsScope) -> str:
    """Installs all of it, admits the account to `server`, and returns its user name. Raises LocalError."""
    await create_namespace(server, installation.namespace)
    documents = read_rights(installation)
    for document in documents:
        await apply(server, document)
    for document in documents:
        if document["kind"] in _ROLES and not await reached(
            partial(is_effective, server, installation, document), _EFFECTIVE_SECONDS
        ):
            name = document["metadata"]["name"]
            raise LocalError(f"{document['kind']} {name} is not in effect after {_EFFECTIVE_SECONDS:.0f} s")
    user = await server.admit(installation.namespace, installation.name)
    if not await reached(partial(is_narrowed, server, installation), _EFFECTIVE_SECONDS):
        raise LocalError(f"{_POLICIES[0]} of {user} is not in effect after {_EFFECTIVE_SECONDS:.0f} s")
    return user


async def is_effective(server: ApiServer, installation: RightsScope, role: Json) -> bool:
    """Tells whether the API server already allows the first action that the role grants: it learns of changes late."""
    rule = role["rules"][0]
    return await may(
        server,
        installation.user,
        rule["verbs"][0],
        rule["apiGroups"][0],
        rule["resources"][0],
        namespace=role["metadata"].get("namespace", ""),
        name=rule.get("resourceNames", [""])[0],
    )


async def is_narrowed(server: ApiServer, installation: RightsScope) -> bool:
    """Tells whether a policy keeps the admitted account from a Secret of another owner. Writes nothing."""
    namespace = installation.watched or installation.namespace
    secret: Json = {"metadata": {"name": installation.name}}
    try:
        await server.request(
            "POST",
            f"/api/v1/namespaces/{namespace}/secrets",
            secret,
            query={"dryRun": "All"},
            user=installation.user,
        )
    except LocalApiError as error:
        if _POLICIES[0] in str(error):
            return True
        raise
    return False


async def may(
    server: ApiServer, user: str, verb: str, group: str, resource: str, *, namespace: str = "", name: str = ""
) -> bool:
    """Tells whether RBAC allows it. `resource` includes its subresource; no `namespace` means all of them."""
    plural, _, subresource = resource.partition("/")
    review = await server.request(
        "POST",
        "/apis/authorization.k8s.io/v1/subjectaccessreviews",
        {
            "spec": {
                "user": user,
                "resourceAttributes": {
                    "verb": verb,
                    "group": group,
                    "resource": plural,
                    "subresource": subresource,
                    "namespace": namespace,
                    "name": name,
                },
            }
        },
    )
    return bool(review["status"]["allowed"])


def _read_overlay(folder: Path, root: Path, namespace: str | None) -> Iterator[Json]:
    """Yields every object of an overlay and of its parts below `root`."""
    [overlay] = read_documents(folder / "kustomization.yaml")
    namespace = namespace or overlay.get("namespace")
    for name in (*overlay["resources"], *overlay.get("components", ())):
        path = (folder / name).resolve()
        if path.is_dir() and path.is_relative_to(root.resolve()):
            yield from _read_overlay(path, root, namespace)
        elif path.is_file():
            for document in read_documents(path):
                if namespace and document["kind"] in ("Role", "RoleBinding", "ServiceAccount"):
                    document["metadata"]["namespace"] = namespace
                yield document


def _is_bound(binding: Json) -> bool:
    account = {"kind": "ServiceAccount", "name": _NAME, "namespace": _NAMESPACE}
    return account in binding["subjects"]


def _namespace_of(document: Json) -> str:
    return str(document["metadata"].get("namespace", ""))


def _place(value: Any, installation: RightsScope) -> Any:  # noqa: ANN401 -- any part of a document
    """Replaces every name and namespace by that of the installation."""
    if isinstance(value, dict):
        return {key: _place(one, installation) for key, one in value.items()}
    if isinstance(value, list):
        return [_place(one, installation) for one in value]
    if value == _NAMESPACE:
        return installation.namespace
    if value == _WATCHED:
        return installation.watched
    if isinstance(value, str) and (value == _NAME or value.startswith(f"{_NAME}-")):
        return installation.name + value.removeprefix(_NAME)
    if isinstance(value, str):
        return value.replace(_USER_ENDS, f":{installation.name}$")
    return value
