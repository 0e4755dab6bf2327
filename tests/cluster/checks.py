"""Checks of the product in a cluster, each a sentence, with kubectl, psql and curl from outside."""

import base64
import json
import time

from tests.cluster import outages, removals
from tests.cluster.cluster import holds, wait
from tests.cluster.database import HOST, ClusterDatabase, declare_role, declare_server
from tests.cluster.product import NAMESPACE, leader, metric, pods, read_log, restarts, wait_for_rollout
from tests.compose.engine import say

_MEMORY_SHARE = 0.5  # of the limit
_NEW_CRDS = "storage is (re)initializing"  # the API server prepares the storage of CRDs that were just applied
_PYTHON = "/usr/bin/python3.13"
_WRITES = "import pathlib; pathlib.Path('/app/new').touch()"


def check_all(database: ClusterDatabase) -> None:
    """Raises AssertionError for a failed check."""
    for check in (
        one_command_installs_it_and_both_pods_become_ready,
        a_server_and_a_role_become_ready_and_the_connection_secret_works,
        drift_is_repaired_and_reported,
        the_pods_run_with_least_privilege,
        the_probes_succeed_and_no_container_was_restarted,
        the_service_serves_the_metrics_of_both_pods,
        the_logs_are_json_lines_and_memory_stays_below_half_the_limit,
        outages.a_deleted_leader_hands_over,
        outages.a_killed_leader_is_replaced_once_its_lease_expires,
        outages.an_evicted_leader_hands_over_and_the_budget_protects_the_other_pod,
        outages.drift_is_repaired_throughout_a_rollout,
        removals.deleting_an_object_deletes_the_secret_it_owns,
        removals.deleting_a_namespace_applies_the_deletion_policy_of_each_role,
        no_request_of_the_controller_was_denied,
        removals.following_the_uninstall_page_leaves_nothing_behind,
        removals.helm_installs_upgrades_and_uninstalls_it,
        removals.kustomize_installs_it_for_one_namespace,
    ):
        started = time.monotonic()
        check(database)
        say(f"ok  {check.__name__.replace('_', ' ')} ({time.monotonic() - started:.0f} s)")


def one_command_installs_it_and_both_pods_become_ready(database: ClusterDatabase) -> None:
    cluster = database.cluster
    cluster.kubectl("apply", "--server-side", "-f", "deploy/install.yaml")
    wait_for_rollout(cluster)
    assert len(pods(cluster)) == 2
    assert all(holds(pod, "Ready") for pod in pods(cluster))
    wait(lambda: leader(cluster) in {pod["metadata"]["name"] for pod in pods(cluster)}, "one of the pods leads")


def a_server_and_a_role_become_ready_and_the_connection_secret_works(database: ClusterDatabase) -> None:
    cluster = database.cluster
    declare_server(cluster)
    cluster.kubectl("create", "namespace", "shop")
    declare_role(cluster, "orders", password={"generate": {}}, connectionSecret={"name": "orders-connection"})
    secret = cluster.get("-n", "shop", "secret", "orders-connection")["data"]
    content = {key: base64.b64decode(value).decode() for key, value in secret.items()}
    assert content["host"] == HOST
    assert database.psql("SELECT current_user", content["username"], content["password"]) == "shop_orders"


def drift_is_repaired_and_reported(database: ClusterDatabase) -> None:
    cluster = database.cluster
    database.repair_seconds()
    wait(lambda: cluster.get("-n", "shop", "pgr", "orders")["status"].get("driftCount") == 1, "the object reports it")
    wait(lambda: "DriftCorrected" in cluster.kubectl("-n", "shop", "get", "events"), "an Event reports it")


def the_pods_run_with_least_privilege(database: ClusterDatabase) -> None:
    for pod in pods(database.cluster):
        name = pod["metadata"]["name"]
        status = database.cluster.kubectl("-n", NAMESPACE, "exec", name, "--", _PYTHON, "-c", _read("/proc/1/status"))
        fields = {key: value.split() for key, _, value in (line.partition(":") for line in status.splitlines())}
        assert set(fields["Uid"]) == set(fields["Gid"]) == set(fields["Groups"]) == {"65532"}
        assert {*fields["CapEff"], *fields["CapPrm"], *fields["CapBnd"]} == {"0" * 16}
        assert fields["NoNewPrivs"] == ["1"]
        assert fields["Seccomp"] == ["2"]  # a filter
        refused = database.cluster.kubectl("-n", NAMESPACE, "exec", name, "--", _PYTHON, "-c", _WRITES, fails=True)
        assert "Read-only file system" in refused


def the_probes_succeed_and_no_container_was_restarted(database: ClusterDatabase) -> None:
    cluster = database.cluster
    for pod in pods(cluster):
        name = pod["metadata"]["name"]
        assert restarts(pod) == 0
        answer = cluster.kubectl("get", "--raw", f"/api/v1/namespaces/{NAMESPACE}/pods/{name}:8080/proxy/readyz")
        ready = json.loads(answer)
        assert (ready["ready"], ready["leading"]) == (True, name == leader(cluster))
        assert ready["servers"] == {"default": "connected"}
    warnings = cluster.items("-n", NAMESPACE, "events", "--field-selector=type=Warning")
    assert not [one["message"] for one in warnings if "Liveness" in one["message"]]


def the_service_serves_the_metrics_of_both_pods(database: ClusterDatabase) -> None:
    service = database.cluster.get("-n", NAMESPACE, "service", "pgrole-controller")
    address = f"http://{service['spec']['clusterIP']}:{service['spec']['ports'][0]['port']}"
    leading = {metric(database.cluster.run("curl", "-sSf", f"{address}/metrics"), "pgrole_leader") for _ in range(20)}
    assert leading == {0.0, 1.0}  # both answer


def the_logs_are_json_lines_and_memory_stays_below_half_the_limit(database: ClusterDatabase) -> None:
    cluster = database.cluster
    for pod in pods(cluster):
        name = pod["metadata"]["name"]
        lines = list(read_log(cluster, name))
        assert {"API server configured", "health endpoints listening"} <= {line["message"] for line in lines}
        said = [line for line in lines if line["level"] in ("warning", "error")]
        assert not [line for line in said if _NEW_CRDS not in line.get("error", "")]
        scrape = cluster.kubectl("get", "--raw", f"/api/v1/namespaces/{NAMESPACE}/pods/{name}:8080/proxy/metrics")
        used = metric(scrape, "process_resident_memory_bytes")
        limit = pod["spec"]["containers"][0]["resources"]["limits"]["memory"]
        assert limit.endswith("Mi")
        assert used < _MEMORY_SHARE * int(limit[:-2]) * 2**20
        say(f"    {name} has {used / 2**20:.0f} MiB of {limit}")


def no_request_of_the_controller_was_denied(database: ClusterDatabase) -> None:
    """Neither by RBAC nor by the policy for Secrets, according to the audit log."""
    refused = database.cluster.control_plane.audit.refused()
    mine = [entry for entry in refused if entry.user == f"system:serviceaccount:{NAMESPACE}:pgrole-controller"]
    assert not mine, mine


def _read(path: str) -> str:
    """Returns code that prints a file: the image contains no other program for it."""
    return f"print(open('{path}').read())"
