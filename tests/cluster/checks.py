"""Checks of the product in a cluster, each a sentence, with kubectl, psql and curl from outside."""

import base64
import json
import time

from tests.cluster import outages, removals
from tests.cluster.cluster import holds, wait
from tests.cluster.database import HOST, ClusterDatabase, declare_role, declare_server
from tests.cluster.product import NAMESPACE, leader, metric, pods, read_log, restarts, rolled_out
from tests.compose.engine import say

_MEMORY_SHARE = 0.5  # of the limit
_SLOW = "watch failed, trying again"  # a watch that was silent because the machine is busy
_PYTHON = "/usr/bin/python3.13"
_WRITES = "import pathlib; pathlib.Path('/app/new').touch()"


def check_all(database: ClusterDatabase) -> None:
    """Raises AssertionError for a failed check."""
    for check in (
        it_is_installed_by_one_command_and_both_pods_are_ready,
        a_server_and_a_role_are_ready_and_the_connection_secret_opens_the_database,
        drift_is_repaired_and_told,
        the_pods_have_no_rights_that_they_do_not_need,
        the_probes_are_answered_and_nothing_was_restarted,
        metrics_are_scraped_through_the_service,
        the_log_is_lines_of_json_and_the_memory_is_within_its_limits,
        outages.a_leader_that_is_deleted_hands_over,
        outages.a_leader_that_is_killed_is_replaced_after_the_time_of_the_lease,
        outages.a_leader_that_is_evicted_hands_over_and_the_budget_keeps_the_other,
        outages.in_a_rollout_drift_is_repaired_all_the_time,
        removals.what_an_object_owns_goes_with_it,
        removals.a_namespace_is_deleted_with_what_is_in_it,
        nothing_was_refused_to_the_controller,
        removals.uninstalled_by_the_page_nothing_is_left,
        removals.with_helm_it_is_installed_upgraded_and_uninstalled,
        removals.with_kustomize_it_is_installed_for_one_namespace,
    ):
        started = time.monotonic()
        check(database)
        say(f"ok  {check.__name__.replace('_', ' ')} ({time.monotonic() - started:.0f} s)")


def it_is_installed_by_one_command_and_both_pods_are_ready(database: ClusterDatabase) -> None:
    cluster = database.cluster
    cluster.kubectl("apply", "--server-side", "-f", "deploy/install.yaml")
    rolled_out(cluster)
    assert len(pods(cluster)) == 2
    assert all(holds(pod, "Ready") for pod in pods(cluster))
    wait(lambda: leader(cluster) in {pod["metadata"]["name"] for pod in pods(cluster)}, "one of the pods leads")


def a_server_and_a_role_are_ready_and_the_connection_secret_opens_the_database(database: ClusterDatabase) -> None:
    cluster = database.cluster
    declare_server(cluster)
    cluster.kubectl("create", "namespace", "shop")
    declare_role(cluster, "orders", password={"generate": {}}, connectionSecret={"name": "orders-connection"})
    secret = cluster.get("-n", "shop", "secret", "orders-connection")["data"]
    content = {key: base64.b64decode(value).decode() for key, value in secret.items()}
    assert content["host"] == HOST
    assert database.psql("SELECT current_user", content["username"], content["password"]) == "shop_orders"


def drift_is_repaired_and_told(database: ClusterDatabase) -> None:
    cluster = database.cluster
    database.repair_seconds()
    wait(lambda: cluster.get("-n", "shop", "pgr", "orders")["status"].get("driftCount") == 1, "the object reports it")
    wait(lambda: "DriftCorrected" in cluster.kubectl("-n", "shop", "get", "events"), "an Event reports it")


def the_pods_have_no_rights_that_they_do_not_need(database: ClusterDatabase) -> None:
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


def the_probes_are_answered_and_nothing_was_restarted(database: ClusterDatabase) -> None:
    cluster = database.cluster
    for pod in pods(cluster):
        name = pod["metadata"]["name"]
        assert restarts(pod) == 0
        answer = cluster.kubectl("get", "--raw", f"/api/v1/namespaces/{NAMESPACE}/pods/{name}:8080/proxy/readyz")
        ready = json.loads(answer)
        assert (ready["ready"], ready["leading"]) == (True, name == leader(cluster))
        assert ready["servers"] == {"default": "connected"}
    told = cluster.items("-n", NAMESPACE, "events", "--field-selector=type=Warning")
    assert not [one["message"] for one in told if "Liveness" in one["message"]]


def metrics_are_scraped_through_the_service(database: ClusterDatabase) -> None:
    service = database.cluster.get("-n", NAMESPACE, "service", "pgrole-controller")
    address = f"http://{service['spec']['clusterIP']}:{service['spec']['ports'][0]['port']}"
    leading = {metric(database.cluster.run("curl", "-sSf", f"{address}/metrics"), "pgrole_leader") for _ in range(20)}
    assert leading == {0.0, 1.0}  # both answer


def the_log_is_lines_of_json_and_the_memory_is_within_its_limits(database: ClusterDatabase) -> None:
    cluster = database.cluster
    for pod in pods(cluster):
        name = pod["metadata"]["name"]
        lines = list(read_log(cluster, name))
        assert {"API server configured", "health served"} <= {line["message"] for line in lines}
        assert not [line for line in lines if line["level"] in ("warning", "error") and line["message"] != _SLOW]
        scrape = cluster.kubectl("get", "--raw", f"/api/v1/namespaces/{NAMESPACE}/pods/{name}:8080/proxy/metrics")
        used = metric(scrape, "process_resident_memory_bytes")
        limit = pod["spec"]["containers"][0]["resources"]["limits"]["memory"]
        assert limit.endswith("Mi")
        assert used < _MEMORY_SHARE * int(limit[:-2]) * 2**20
        say(f"    {name} has {used / 2**20:.0f} MiB of {limit}")


def nothing_was_refused_to_the_controller(database: ClusterDatabase) -> None:
    """Neither by RBAC nor by the policy for Secrets, according to the audit log."""
    refused = database.cluster.control_plane.audit.refused()
    mine = [entry for entry in refused if entry.user == f"system:serviceaccount:{NAMESPACE}:pgrole-controller"]
    assert not mine, mine


def _read(path: str) -> str:
    """Returns code that prints a file: the image contains no other program for it."""
    return f"print(open('{path}').read())"
