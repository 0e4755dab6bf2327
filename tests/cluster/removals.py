"""Checks that deleted objects, namespaces and the removed product leave nothing, except what Retain promises."""

import shutil
import tempfile
from pathlib import Path

from tests.cluster.cluster import Json, KindCluster, wait
from tests.cluster.console import the_console_shows_a_viewer_only_what_rbac_permits
from tests.cluster.database import ClusterDatabase, declare_role, declare_server
from tests.cluster.images import CONTROLLER
from tests.cluster.product import NAMESPACE, leader, pods, read_log, wait_for_rollout
from tests.compose.images import ROOT

_KINDS = (
    "crd,clusterrole,clusterrolebinding,validatingadmissionpolicy,validatingadmissionpolicybinding,namespace",
    "all,serviceaccount,role,rolebinding,lease,pdb,secret,configmap",
)
_REPAIRED = 15.0  # seconds, including psql's own time on a busy machine
_CHART = "deploy/helm/pgrole-controller"
_OPTIONAL_PARTS = ("--set=podDisruptionBudget.enabled=true", "--set=console.enabled=true")
_NEXT = CONTROLLER.rpartition(":")[0] + ":next"


def deleting_an_object_deletes_the_secret_it_owns(database: ClusterDatabase) -> None:
    cluster = database.cluster
    declare_role(cluster, "passing", password={"generate": {}}, connectionSecret={"name": "passing-connection"})
    cluster.kubectl("-n", "shop", "delete", "pgr", "passing")
    wait(lambda: "passing" not in cluster.kubectl("-n", "shop", "get", "secrets"), "the Secret is collected")
    assert _roles(database, "shop_passing") == ["shop_passing"]  # Retain


def deleting_a_namespace_applies_the_deletion_policy_of_each_role(database: ClusterDatabase) -> None:
    """One of its roles is dropped, one is dropped after its objects are reassigned, and one is retained."""
    cluster = database.cluster
    _admit(cluster, "shop", "doomed")
    cluster.kubectl("create", "namespace", "doomed")
    generated: Json = {"password": {"generate": {}}}
    declare_role(cluster, "kept", "doomed", connectionSecret={"name": "kept"}, **generated)
    declare_role(cluster, "plain", "doomed", deletionPolicy="Drop", connectionSecret={"name": "plain"}, **generated)
    declare_role(cluster, "owner", "doomed", deletionPolicy="Drop", reassignOwnedTo="shop_orders")
    database.psql("CREATE TABLE orders (); ALTER TABLE orders OWNER TO doomed_owner")
    cluster.kubectl("delete", "namespace", "doomed", "--timeout=60s")
    assert "event dropped" not in {line["message"] for line in read_log(cluster, leader(cluster))}
    assert _roles(database, "doomed_%") == ["doomed_kept"]
    assert database.psql("SELECT tableowner FROM pg_tables WHERE tablename = 'orders'") == "shop_orders"


def following_the_uninstall_page_leaves_nothing_behind(database: ClusterDatabase) -> None:
    """Follows the first three steps of docs/uninstall.md."""
    cluster = database.cluster
    _remove_objects(cluster)
    cluster.kubectl("delete", "-f", "deploy/install.yaml", "--ignore-not-found", "--timeout=120s")
    _nothing_is_left(database)


def helm_installs_upgrades_and_uninstalls_it(database: ClusterDatabase) -> None:
    cluster = database.cluster
    cluster.node.ctr("images", "tag", CONTROLLER, _NEXT)
    release = ("pgrole-controller", _CHART, "--namespace", NAMESPACE, "--wait", "--timeout=110s")
    cluster.run("helm", "install", *release, "--create-namespace", *_OPTIONAL_PARTS)
    declare_server(cluster)
    declare_role(cluster, "orders")
    assert database.repair_seconds() < _REPAIRED
    the_console_shows_a_viewer_only_what_rbac_permits(database)
    cluster.run(
        "helm", "upgrade", *release, "--reset-then-reuse-values", "--set=settings.logLevel=debug,image.tag=next"
    )
    wait_for_rollout(cluster)
    wait(lambda: {_image(pod) for pod in pods(cluster)} == {_NEXT}, "all pods have the new image")
    cluster.run("helm", "rollback", "pgrole-controller", "1", "--namespace", NAMESPACE, "--wait", "--timeout=110s")
    wait(lambda: {_image(pod) for pod in pods(cluster)} == {CONTROLLER}, "all pods have the previous image")
    assert database.repair_seconds() < _REPAIRED
    _remove_objects(cluster)
    cluster.run("helm", "uninstall", "pgrole-controller", "--namespace", NAMESPACE, "--wait", "--timeout=110s")
    cluster.kubectl("-n", NAMESPACE, "delete", "lease", "pgrole-controller", "--ignore-not-found")
    cluster.kubectl("delete", "namespace", NAMESPACE, "--timeout=60s")
    _nothing_is_left(database)


def kustomize_installs_it_for_one_namespace(database: ClusterDatabase) -> None:
    """Follows docs/install.md: copies the overlay and fills in the namespace and the cluster."""
    cluster = database.cluster
    with tempfile.TemporaryDirectory(prefix="pgrole-overlay-") as name:
        shutil.copytree(ROOT / "deploy" / "kustomize", name, dirs_exist_ok=True)
        overlay = Path(name, "overlays", "namespace")
        written = (overlay / "kustomization.yaml").read_text(encoding="utf-8")
        uid = cluster.get("namespace", "kube-system")["metadata"]["uid"]
        written = written.replace("PGROLE_NAMESPACE=team-a", "PGROLE_NAMESPACE=shop")
        written = written.replace("PGROLE_CLUSTER_ID= ", f"PGROLE_CLUSTER_ID={uid} ")
        (overlay / "kustomization.yaml").write_text(written, encoding="utf-8")
        cluster.kubectl("apply", "--server-side", "-f", "crds/")
        cluster.kubectl("apply", "--server-side", "-k", str(overlay))
        wait_for_rollout(cluster)
        declare_server(cluster)
        declare_role(cluster, "orders", connectionSecret={"name": "orders"}, password={"generate": {}})
        assert database.repair_seconds() < _REPAIRED
        _remove_objects(cluster)
        cluster.kubectl("delete", "--ignore-not-found", "-k", str(overlay), "--timeout=120s")
    _nothing_is_left(database)


def _remove_objects(cluster: KindCluster) -> None:
    """Follows the page's steps before the removal of the CRDs, while the controller runs."""
    cluster.kubectl("delete", "pgroles", "--all", "-A", "--timeout=60s")
    wait(lambda: cluster.items("-n", "shop", "secrets") == [], "the Secrets are collected")
    cluster.kubectl("delete", "pgservers", "--all", "--timeout=60s")
    cluster.kubectl("delete", "crd", "pgroles.pgrole.dev", "pgservers.pgrole.dev", "--timeout=60s")


def _nothing_is_left(database: ClusterDatabase) -> None:
    cluster = database.cluster
    found = [line for kinds in _KINDS for line in cluster.kubectl("get", kinds, "-A", "-o", "name").splitlines()]
    assert not [line for line in found if "pgrole" in line or "orders" in line], found
    assert cluster.items("-n", "shop", "secrets") == []


def _roles(database: ClusterDatabase, pattern: str) -> list[str]:
    return database.psql(f"SELECT rolname FROM pg_roles WHERE rolname LIKE '{pattern}' ORDER BY 1").splitlines()


def _admit(cluster: KindCluster, *namespaces: str) -> None:
    names = ", ".join(f'"{name}"' for name in namespaces)
    patch = f'{{"spec": {{"allow": {{"namespaces": {{"matchNames": [{names}]}}}}}}}}'
    cluster.kubectl("patch", "pgserver", "default", "--type=merge", "-p", patch)


def _image(pod: Json) -> str:
    return str(pod["spec"]["containers"][0]["image"])
