"""The controller has exactly the rights in the cluster that it needs: none is denied, and none is unused."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import pytest_asyncio

from pgrole_controller.local.apiserver import LocalApiError
from pgrole_controller.local.apiserver import api_server as run_api_server
from pgrole_controller.local.binaries import Binaries
from pgrole_controller.local.kubeconfig import ADMIN
from pgrole_controller.local.manifests import apply, apply_crds, create_namespace, path_of
from pgrole_controller.local.process import reached
from pgrole_controller.local.rights import may, read_rights
from tests.acceptance.permissions import Permission, read_permissions, take_away
from tests.acceptance.rbac_uses import SERVER, RbacPlace, name_a_secret, new_name, use_of, want_a_connection_secret
from tests.acceptance.relay import relay
from tests.acceptance.servers import PgServers
from tests.acceptance.service_account import OWN_NAMESPACE, ServiceAccount, installation_for
from tests.acceptance.world import GROUP, PATIENCE, Controller, Json, Kube, open_database, running, says
from tests.servers import Servers

pytestmark = pytest.mark.slow

TEAM = "team-x"
OVERLAYS = {"cluster": None, "namespace": TEAM}

#: Rights that both overlays contain are removed in one of them.
TAKEN = [
    pytest.param(overlay, one, id=f"{overlay}: {one}")
    for overlay, watched in OVERLAYS.items()
    for one in read_permissions(installation_for(watched))
    if overlay == "cluster" or one.role[1].removeprefix(installation_for(watched).name) not in ("", "-servers")
]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def place(
    request: pytest.FixtureRequest,
    binaries: Binaries,
    servers: Servers,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[RbacPlace]:
    """An API server of its own, since these tests remove rights, and a controller with leader election."""
    watched, folder = OVERLAYS[request.param], tmp_path_factory.mktemp(request.param)
    async with (
        run_api_server(binaries=binaries, audit=True) as server,
        servers.run() as postgres,
        open_database(postgres.dsn()) as database,
        relay(server) as between,
    ):
        await apply_crds(server)
        for namespace in (TEAM, OWN_NAMESPACE):
            await create_namespace(server, namespace)
        account = ServiceAccount(server, installation_for(watched), folder, between.url)
        declared, kube = PgServers(server), Kube(server, TEAM)
        await declared.apply(SERVER, postgres)
        options = ("--leader-election", "true", *(() if watched is None else ("--namespace", watched)))
        async with running(Controller(account, "", folder, *options), connected=False) as controller:
            yield RbacPlace(account, kube, declared, postgres, database, between, controller)


@pytest.fixture
def allowed(place: RbacPlace) -> list[Permission]:
    return read_permissions(place.account.installation)


@pytest.mark.parametrize("place", OVERLAYS, indirect=True, scope="module")
async def test_every_right_is_used_and_no_other_is_requested(place: RbacPlace, allowed: list[Permission]) -> None:
    audit, user = place.server.audit, place.account.installation.user
    for use in dict.fromkeys(map(use_of, allowed)):
        name = new_name()
        await use.prepare(place, name)
        await use.do(place, name)
    for permission in allowed:
        await place.wait_used(permission, 0)
    asked = [entry for entry in audit.read() if entry.user == user]
    covering = {entry: [one for one in allowed if one.covers(entry)] for entry in asked}
    assert list(audit.refused()) == []
    assert [entry for entry, by in covering.items() if not by] == []
    # Each right is needed: it allows some request that no other right allows.
    assert {by[0] for by in covering.values() if len(by) == 1} == set(allowed)


@asynccontextmanager
async def without(place: RbacPlace, taken: Permission) -> AsyncIterator[None]:
    """The account has all rights but this one."""
    documents = read_rights(place.account.installation)
    role = next(one for one in documents if (one["kind"], one["metadata"]["name"]) == taken.role)
    await apply(place.server, take_away(documents, taken))
    await wait_effect(place, taken, False)
    try:
        yield
    finally:
        await apply(place.server, role)
        await wait_effect(place, taken, True)


async def wait_effect(place: RbacPlace, permission: Permission, wanted: bool) -> None:
    async def is_so() -> bool:
        scope = {"namespace": permission.namespace, "name": permission.name}
        user = place.account.installation.user
        return wanted is await may(place.server, user, permission.verb, permission.group, permission.resource, **scope)

    assert await reached(is_so, PATIENCE)


@pytest.mark.parametrize(("place", "taken"), TAKEN, indirect=["place"], scope="module")
async def test_a_missing_right_is_denied_and_reported_and_used_again_once_granted(
    place: RbacPlace, taken: Permission
) -> None:
    use, name = use_of(taken), new_name()
    words = f'cannot {taken.verb} resource "{taken.resource}"'

    async def is_said() -> bool:
        return await use.said(place, name, words, begun)

    await use.prepare(place, name)
    begun = len(place.controller.log)  # it may report the denial while the right is being taken
    async with without(place, taken):
        since = place.server.audit.size
        await use.do(place, name)
        await place.wait_used(taken, since, refused=True)
        assert await reached(is_said, PATIENCE), f"{words!r} is not reported"
    name, since = new_name(), place.server.audit.size
    await use.prepare(place, name)
    await use.do(place, name)
    await place.wait_used(taken, since)
    await place.tidy()


def elsewhere(place: RbacPlace) -> list[tuple[str, str, Json | None]]:
    """Requests that the controller never needs: method, path and body."""
    rbac, core = "/apis/rbac.authorization.k8s.io/v1", "/api/v1/namespaces"
    account = place.account.installation
    role = {"metadata": {"name": "more"}, "rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]}
    binding = {
        "metadata": {"name": "more"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "ServiceAccount", "name": account.name, "namespace": account.namespace}],
    }
    pod = {"metadata": {"name": "more"}, "spec": {"containers": [{"name": "more", "image": "more"}]}}
    return [
        ("POST", f"{rbac}/clusterroles", role),
        ("POST", f"{rbac}/namespaces/{TEAM}/roles", role),
        ("POST", f"{rbac}/clusterrolebindings", binding),
        ("POST", f"{rbac}/namespaces/{TEAM}/rolebindings", binding),
        ("POST", f"{core}/{TEAM}/pods", pod),
        ("POST", f"{core}/{account.namespace}/pods", pod),
        ("POST", f"{core}/{account.namespace}/serviceaccounts/{account.name}/token", {"spec": {}}),
        ("PATCH", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/pgroles.pgrole.dev", {}),
        ("POST", place.kube.path(), {"metadata": {"name": "more"}, "spec": {}}),
        ("DELETE", place.kube.path("any"), None),
        ("DELETE", place.servers.path(SERVER), None),
        ("DELETE", f"{core}/{TEAM}/secrets", None),
        ("POST", f"{core}/{account.namespace}/configmaps", {"metadata": {"name": "more"}}),
        ("GET", "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases", None),
    ]


def in_other_namespaces() -> list[tuple[str, str, Json | None]]:
    """Requests that an installation for one namespace does not need."""
    core, secret = "/api/v1/namespaces", {"metadata": {"name": "more"}, "type": "Opaque"}
    return [
        ("GET", "/api/v1/secrets", None),
        ("GET", f"{core}/kube-system/secrets", None),
        ("GET", f"{core}/default/secrets/any", None),
        ("POST", f"{core}/default/secrets", secret),
        ("POST", f"{core}/{OWN_NAMESPACE}/secrets", secret),
        ("GET", f"{core}/kube-system", None),
        ("GET", core, None),
        ("GET", f"{GROUP}/pgroles", None),
        ("PATCH", f"{GROUP}/namespaces/default/pgroles/any/status", {}),
        ("POST", "/apis/events.k8s.io/v1/namespaces/default/events", {"metadata": {"name": "more"}}),
    ]


@pytest.mark.parametrize("place", OVERLAYS, indirect=True, scope="module")
async def test_its_token_permits_nothing_else(place: RbacPlace) -> None:
    tried = elsewhere(place) + (in_other_namespaces() if place.account.installation.watched else [])
    for method, path, body in tried:
        content_type = "application/merge-patch+json" if method == "PATCH" else "application/json"
        with pytest.raises(LocalApiError, match="is forbidden: User") as refused:
            await place.server.request(
                method, path, body, content_type=content_type, user=place.account.installation.user
            )
        assert refused.value.status == 403, path


def refer(kind: str = "PgRole", version: str = "pgrole.dev/v1alpha1") -> Json:
    return {"ownerReferences": [{"apiVersion": version, "kind": kind, "name": "app", "uid": "of-app"}]}


def make_secret(name: str, kind: str = "Opaque", **metadata: object) -> Json:
    """Returns a Secret that, with the type of a ServiceAccount token, would hold another account's token."""
    account = {"annotations": {"kubernetes.io/service-account.name": "default"}}
    return {"metadata": {"name": name, **account, **metadata}, "type": kind}


def strays(theirs: str, owned: str) -> list[tuple[str, str, Json | None]]:
    """Requests on Secrets that RBAC permits but the controller never needs: method, path and body.

    `theirs` is someone else's Secret, `owned` one that it may write.
    """
    secrets, name = f"/api/v1/namespaces/{TEAM}/secrets", new_name()
    return [
        ("POST", secrets, make_secret(name, "kubernetes.io/service-account-token", **refer())),
        ("POST", secrets, make_secret(name)),
        ("POST", secrets, make_secret(name, **refer("ConfigMap", "v1"))),
        ("POST", secrets, make_secret(name, **refer(version="pgrole.dev.example.com/v1"))),
        ("POST", secrets, make_secret(name, **refer("PgServer"))),
        ("PATCH", f"{secrets}/{theirs}", {"data": {"password": "eA=="}}),
        ("PATCH", f"{secrets}/{theirs}", {"metadata": refer(), "data": {"password": "eA=="}}),
        ("PATCH", f"{secrets}/{owned}", {"metadata": {"ownerReferences": None}}),
        ("DELETE", f"{secrets}/{theirs}", None),
    ]


@pytest.mark.parametrize("place", OVERLAYS, indirect=True, scope="module")
async def test_it_may_write_only_opaque_secrets_of_pgroles_while_others_stay_unrestricted(
    place: RbacPlace,
) -> None:
    installation, theirs, owned = place.account.installation, new_name(), new_name()
    secrets = f"/api/v1/namespaces/{TEAM}/secrets"

    async def ask(user: str, method: str, path: str, body: Json | None) -> None:
        content_type = "application/merge-patch+json" if method == "PATCH" else "application/json"
        query = {"dryRun": "All"}
        await place.server.request(method, path, body, content_type=content_type, query=query, user=user)

    for verb in ("create", "patch", "delete"):
        assert await may(place.server, installation.user, verb, "", "secrets", namespace=TEAM)
    await place.kube.apply_secret(theirs, password="theirs")
    await place.server.request("POST", secrets, make_secret(owned, **refer()), user=installation.user)
    words = f"ValidatingAdmissionPolicy '{installation.name}-secrets' .* denied request: the controller writes"
    for method, path, body in strays(theirs, owned):
        with pytest.raises(LocalApiError, match=words) as refused:
            await ask(installation.user, method, path, body)
        assert refused.value.status == 403, path
        await ask(ADMIN, method, path, body)
    for method, body in (("PATCH", {"data": {"password": "eA=="}}), ("DELETE", None)):
        await ask(installation.user, method, f"{secrets}/{owned}", body)


@pytest.mark.parametrize("place", OVERLAYS, indirect=True, scope="module")
async def test_denials_of_the_admission_policy_for_secrets_are_in_the_audit_log(place: RbacPlace) -> None:
    since, user = place.server.audit.size, place.account.installation.user
    body = make_secret(new_name())
    with pytest.raises(LocalApiError, match="the controller writes Secrets of PgRoles only"):
        await place.server.request("POST", f"/api/v1/namespaces/{TEAM}/secrets", body, user=user)
    assert [(one.verb, one.resource) for one in place.server.audit.refused(since)] == [("create", "secrets")]


@pytest.mark.parametrize("place", OVERLAYS, indirect=True, scope="module")
async def test_without_the_right_to_write_secrets_an_object_reports_it_and_others_work(
    place: RbacPlace,
) -> None:
    installation = place.account.installation
    written = f"{installation.name}-connection-secrets"
    [binding] = [one for one in read_rights(installation) if one["metadata"]["name"] == written and "roleRef" in one]
    user, wanting, plain = installation.user, new_name(), new_name()

    async def may_write(wanted: bool) -> None:
        async def is_so() -> bool:
            return wanted is await may(place.server, user, "create", "", "secrets", namespace=TEAM)

        assert await reached(is_so, PATIENCE)

    await place.server.request("DELETE", await path_of(place.server, binding))
    await may_write(False)
    await want_a_connection_secret(place, wanting)
    await name_a_secret(place, plain)
    await place.kube.wait_ready(plain)
    words = f'spec.connectionSecret: the controller cannot write Secret "{wanting}": 403 Forbidden', "permissions"
    await place.kube.wait_for(wanting, lambda obj: says(obj, "SecretMissing", *words), "what it may not do")
    await place.kube.wait_event("SecretMissing", about=wanting)
    await apply(place.server, binding)
    await may_write(True)
    await place.kube.wait_ready(wanting)
    await place.tidy()
