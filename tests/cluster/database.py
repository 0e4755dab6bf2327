"""The cluster's PostgreSQL, used like its administrator: with psql, through its Service."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path

from tests.cluster.cluster import Json, KindCluster, holds, wait

HOST = "postgres.databases.svc"
PASSWORD = "only-in-this-cluster"  # in postgres.yaml
_MANIFEST = Path(__file__).with_name("postgres.yaml")
_REPAIR_SECONDS = 60.0
_ATTRIBUTES = (
    ("CREATEROLE", "rolcreaterole"),
    ("CREATEDB", "rolcreatedb"),
    ("BYPASSRLS", "rolbypassrls"),
    ("REPLICATION", "rolreplication"),
    ("SUPERUSER", "rolsuper"),
)


@dataclass(frozen=True, slots=True)
class ClusterDatabase:
    cluster: KindCluster
    address: str
    _attributes: Iterator[tuple[str, str]] = field(default_factory=lambda: cycle(_ATTRIBUTES))

    def psql(self, statement: str, user: str = "postgres", password: str = PASSWORD) -> str:
        """Returns psql's unaligned output."""
        dsn = f"host={self.address} dbname=postgres user={user} password={password} connect_timeout=5"
        return self.cluster.run("psql", dsn, "-XAtqc", statement).strip()

    def repair_seconds(self, within: float = _REPAIR_SECONDS) -> float:
        """Makes a drift of another field than the last one; returns the seconds until its repair, including psql's own
        time.
        """
        attribute, column = next(self._attributes)
        asked = f"SELECT {column} FROM pg_roles WHERE rolname = 'shop_orders'"
        self.psql(f"ALTER ROLE shop_orders {attribute}")
        return wait(lambda: self.psql(asked) == "f", f"{attribute} is taken from shop_orders", within)


def start_dns(cluster: KindCluster) -> None:
    """Starts the cluster's DNS, at the address that its node expects. Raises AssertionError."""
    cluster.kubectl("apply", "-f", str(_MANIFEST.with_name("dns.yaml")))
    cluster.kubectl("-n", "kube-system", "rollout", "status", "deployment/dns", "--timeout=120s")


def start_database(cluster: KindCluster) -> ClusterDatabase:
    """Starts PostgreSQL. Raises AssertionError."""
    cluster.kubectl("apply", "-f", str(_MANIFEST))
    cluster.kubectl("-n", "databases", "rollout", "status", "deployment/postgres", "--timeout=120s")
    return ClusterDatabase(cluster, cluster.get("-n", "databases", "service", "postgres")["spec"]["clusterIP"])


def declare_server(cluster: KindCluster) -> None:
    """Declares this server as in docs/install.md."""
    login = ("--from-literal=username=postgres", f"--from-literal=password={PASSWORD}")
    cluster.kubectl("-n", "pgrole-system", "create", "secret", "generic", "pg-admin", *login)
    connection: Json = {"hosts": [HOST], "credentialsSecretRef": {"name": "pg-admin"}, "sslMode": "disable"}
    allow: Json = {"namespaces": {"matchNames": ["shop"]}, "roleNames": ["{namespace}_*"], "reassignTo": ["shop_*"]}
    cluster.apply(
        {
            "apiVersion": "pgrole.dev/v1alpha1",
            "kind": "PgServer",
            "metadata": {"name": "default"},
            "spec": {"connection": connection, "allow": allow},
        }
    )


def declare_role(cluster: KindCluster, name: str, namespace: str = "shop", **spec: object) -> None:
    """Declares a role, and waits until it is Ready."""
    cluster.apply(
        {
            "apiVersion": "pgrole.dev/v1alpha1",
            "kind": "PgRole",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"name": f"{namespace}_{name}", "login": True, **spec},
        }
    )
    wait(lambda: holds(cluster.get("-n", namespace, "pgr", name), "Ready"), f"PgRole {name} is Ready")
