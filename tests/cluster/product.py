"""The installed product as kubectl shows it: pods, Lease, log, metrics."""

import json
import re
from collections.abc import Iterator

from tests.cluster.cluster import Json, KindCluster

NAMESPACE = "pgrole-system"


def wait_for_rollout(cluster: KindCluster) -> None:
    cluster.kubectl("-n", NAMESPACE, "rollout", "status", "deployment/pgrole-controller", "--timeout=110s")


def pods(cluster: KindCluster) -> list[Json]:
    """Returns the pods that are not terminating."""
    found = cluster.items("-n", NAMESPACE, "pods", "-l", "app.kubernetes.io/name=pgrole-controller")
    return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]


def restarts(pod: Json) -> int:
    return sum(int(one["restartCount"]) for one in pod["status"].get("containerStatuses", []))


def leader(cluster: KindCluster) -> str:
    """Returns the leading pod's name."""
    lease = cluster.get("-n", NAMESPACE, "lease", "pgrole-controller")
    return str(lease["spec"].get("holderIdentity", "")).partition("_")[0]


def read_log(cluster: KindCluster, pod: str) -> Iterator[Json]:
    """Yields the lines of a pod's log. Raises ValueError for one that is not JSON."""
    for line in cluster.kubectl("-n", NAMESPACE, "logs", pod).splitlines():
        yield json.loads(line)


def metric(scrape: str, name: str) -> float:
    """Returns a metric without labels."""
    found = re.search(rf"^{name} (\S+)$", scrape, re.MULTILINE)
    assert found is not None, f"{name} is missing in the scrape"
    return float(found[1])
