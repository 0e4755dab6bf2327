"""The console in a cluster, used through its Service, like a browser behind an Ingress."""

import http.client
import re
import time
from dataclasses import dataclass, field
from urllib.parse import urlencode

from tests.cluster.cluster import KindCluster, wait
from tests.cluster.database import ClusterDatabase
from tests.cluster.product import NAMESPACE

_NAME = "pgrole-controller-console"
_CSRF = re.compile(r'name="csrf" value="([^"]*)"')


def the_console_shows_a_viewer_only_what_rbac_permits(database: ClusterDatabase) -> None:
    """Expects a role `orders` in `shop` that has drifted before."""
    cluster = database.cluster
    cluster.kubectl("-n", NAMESPACE, "rollout", "status", f"deployment/{_NAME}", "--timeout=110s")
    pod = cluster.items("-n", NAMESPACE, "pods", "-l", "app.kubernetes.io/name=pgrole-console")[0]
    mounts = [mount["mountPath"] for mount in pod["spec"]["containers"][0]["volumeMounts"]]
    assert mounts == ["/etc/pgrole-console"]  # no token of a ServiceAccount
    cluster.kubectl("-n", "shop", "create", "serviceaccount", "viewer")
    token = cluster.kubectl("-n", "shop", "create", "token", "viewer").strip()
    address = cluster.get("-n", NAMESPACE, "service", _NAME)["spec"]
    visitor = Visitor(address["clusterIP"], address["ports"][0]["port"])
    assert visitor.log_in("not-a-token") == 401
    assert visitor.log_in(token) == 303
    assert "You may not list and watch PgRoles in any namespace" in visitor.show("/roles")
    _permit(cluster)
    assert visitor.log_in(token, "shop") == 303
    wait(lambda: "/roles/shop/orders" in visitor.show("/roles"), "the console shows the role")
    assert "Corrected" in visitor.show("/roles/shop/orders")
    assert "not visible to you" in visitor.show("/servers")
    cluster.kubectl("-n", "shop", "delete", "rolebinding", "viewer")
    wait(lambda: "/roles/shop/orders" not in visitor.show("/roles"), "the console forgets what is no longer permitted")
    cluster.kubectl("-n", "shop", "delete", "role/viewer", "serviceaccount/viewer")
    wait(lambda: visitor.status("/") == 303, "the session ends with the token")


def _permit(cluster: KindCluster) -> None:
    verbs = "--verb=get,list,watch"
    cluster.kubectl("-n", "shop", "create", "role", "viewer", verbs, "--resource=pgroles.pgrole.dev")
    cluster.kubectl("-n", "shop", "create", "rolebinding", "viewer", "--role=viewer", "--serviceaccount=shop:viewer")
    time.sleep(1)  # the API server reads its new RBAC objects


@dataclass
class Visitor:
    """Keeps cookies, and sends Secure ones without TLS, as an Ingress does inside the cluster."""

    address: str
    port: int
    _cookies: dict[str, str] = field(default_factory=dict)

    def log_in(self, token: str, namespaces: str = "") -> int:
        """Returns the status of the answer to the form."""
        self._cookies.clear()
        found = _CSRF.search(self._ask("GET", "/login")[1])
        assert found is not None, "the login page has no form"
        return self._ask("POST", "/login", {"csrf": found[1], "token": token, "namespaces": namespaces})[0]

    def show(self, path: str) -> str:
        status, text = self._ask("GET", path)
        assert status in (200, 404), (status, text)
        return text

    def status(self, path: str) -> int:
        return self._ask("GET", path)[0]

    def _ask(self, method: str, path: str, form: dict[str, str] | None = None) -> tuple[int, str]:
        headers = {"Host": _NAME, "Cookie": "; ".join(f"{name}={value}" for name, value in self._cookies.items())}
        if form is not None:
            headers["Content-Type"] = "application/x-www-form-urlencoded"
        connection = http.client.HTTPConnection(self.address, self.port, timeout=20)
        try:
            connection.request(method, path, urlencode(form) if form else None, headers)
            answer = connection.getresponse()
            for cookie in answer.headers.get_all("Set-Cookie", []):
                name, _, value = cookie.partition(";")[0].partition("=")
                self._cookies[name] = value
            return answer.status, answer.read().decode()
        finally:
            connection.close()
