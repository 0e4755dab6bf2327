"""Checks that drift is repaired after each way in which the pods can lose their leader."""

import json
import os
import signal
import threading
from pathlib import Path

from tests.cluster.cluster import KindCluster, wait
from tests.cluster.database import ClusterDatabase
from tests.cluster.product import NAMESPACE, leader, pods, restarts, wait_for_rollout
from tests.compose.engine import say

_LEASE_SECONDS = 15.0
_MARGIN_SECONDS = 15.0  # for psql and kubectl on a busy machine
_PACE_SECONDS = 1.5
_BUDGET = "deploy/kustomize/components/pod-disruption-budget/pod_disruption_budget.yaml"


def a_deleted_leader_hands_over(database: ClusterDatabase) -> None:
    before = leader(database.cluster)
    database.cluster.kubectl("-n", NAMESPACE, "delete", "pod", before, "--wait=false")
    _report("deleted", database.repair_seconds(within=_MARGIN_SECONDS))
    assert leader(database.cluster) != before
    wait_for_rollout(database.cluster)


def a_killed_leader_is_replaced_once_its_lease_expires(database: ClusterDatabase) -> None:
    cluster = database.cluster
    before = leader(cluster)
    os.kill(_process_of(before), signal.SIGKILL)
    _report("killed", database.repair_seconds(within=_LEASE_SECONDS + _MARGIN_SECONDS))
    assert leader(cluster) != before
    wait(lambda: sorted(map(restarts, pods(cluster))) == [0, 1], "its container was restarted")
    wait_for_rollout(cluster)


def an_evicted_leader_hands_over_and_the_budget_protects_the_other_pod(database: ClusterDatabase) -> None:
    cluster = database.cluster
    cluster.kubectl("apply", "-f", _BUDGET)
    cluster.kubectl("cordon", "node-1")
    try:
        before = leader(cluster)
        wait(lambda: _disruptions(cluster) == 1, "one pod may be evicted")
        _evict(cluster, before)
        _report("evicted", database.repair_seconds(within=_MARGIN_SECONDS))
        other = leader(cluster)
        assert other != before
        assert "disruption budget" in _evict(cluster, other, fails=True)
        assert leader(cluster) == other
    finally:
        cluster.kubectl("uncordon", "node-1")
    wait_for_rollout(cluster)


def drift_is_repaired_throughout_a_rollout(database: ClusterDatabase) -> None:
    cluster = database.cluster
    before = {pod["metadata"]["name"] for pod in pods(cluster)}
    cluster.kubectl("-n", NAMESPACE, "rollout", "restart", "deployment/pgrole-controller")
    rolling = threading.Thread(target=wait_for_rollout, args=(cluster,))
    rolling.start()
    longest = database.repair_seconds(within=_MARGIN_SECONDS)
    while rolling.is_alive():
        rolling.join(_PACE_SECONDS)  # the controller slows down repairs of a field that keeps changing
        longest = max(longest, database.repair_seconds(within=_MARGIN_SECONDS))
    rolling.join()
    _report("rolled out, at most", longest)
    wait(lambda: not before & {pod["metadata"]["name"] for pod in pods(cluster)}, "all pods are new")
    assert leader(cluster) not in before


def _evict(cluster: KindCluster, pod: str, *, fails: bool = False) -> str:
    """Evicts the pod, like `kubectl drain`."""
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": NAMESPACE}}
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}/eviction"
    return cluster.kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(body), fails=fails)


def _disruptions(cluster: KindCluster) -> int:
    status = cluster.get("-n", NAMESPACE, "pdb", "pgrole-controller").get("status", {})
    return int(status.get("disruptionsAllowed", 0))


def _process_of(pod: str) -> int:
    """Returns the process id, on this machine, of the controller in a pod."""
    for entry in Path("/proc").iterdir():
        try:
            environment = (entry / "environ").read_bytes().split(b"\0") if entry.name.isdigit() else []
        except OSError:  # it ended meanwhile, or belongs to the kernel
            continue
        if f"POD_NAME={pod}".encode() in environment:
            return int(entry.name)
    raise AssertionError(f"no process of pod {pod} runs")


def _report(how: str, seconds: float) -> None:
    say(f"    {how}: a drift was repaired within {seconds:.1f} s")
