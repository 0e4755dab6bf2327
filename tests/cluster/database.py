"""The PostgreSQL of the cluster, as an administrator of it sees it: with psql, through its Service."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path

from tests.cluster.cluster import Cluster, Json, holds, wait

HOST = "postgres.databases.svc"
PASSWORD = "only-in-this-cluster"  # of postgres.yaml
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
class Database:
    cluster: Cluster
    address: str
    _attributes: Iterator[tuple[str, str]] = field(default_factory=lambda: cycle(_ATTRIBUTES))

    def psql(self, statement: str, user: str = "postgres", password: str = PASSWORD) -> str:
        """What is asked for, unaligned."""
        dsn = f"host={self.address} dbname=postgres user={user} password={password} connect_timeout=5"
        return self.cluster.run("psql", dsn, "-XAtqc", statement).strip()

    def repair_seconds(self, within: float = _REPAIR_SECONDS) -> float:
        """How long a drift stands that is made now, of a field that was not the last. What psql needs is in it."""
        attribute, column = next(self._attributes)
        asked = f"SELECT {column} FROM pg_roles WHERE rolname = 'shop_orders'"
        self.psql(f"ALTER ROLE shop_orders {attribute}")
        return wait(lambda: self.psql(asked) == "f", f"{attribute} is taken from shop_orders", within)


def start_dns(cluster: Cluster) -> None:
    """The cluster's: its node finds it by address. Raises AssertionError."""
    cluster.kubectl("apply", "-f", str(_MANIFEST.with_name("dns.yaml")))
    cluster.kubectl("-n", "kube-system", "rollout", "status", "deployment/dns", "--timeout=120s")


def start_database(cluster: Cluster) -> Database:
    """Raises AssertionError."""
    cluster.kubectl("apply", "-f", str(_MANIFEST))
    cluster.kubectl("-n", "databases", "rollout", "status", "deployment/postgres", "--timeout=120s")
    return Database(cluster, cluster.get("-n", "databases", "service", "postgres")["spec"]["clusterIP"])


def declare_server(cluster: Cluster) -> None:
    """As docs/install.md does it, with this server."""
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


def declare_role(cluster: Cluster, name: str, namespace: str = "shop", **spec: object) -> None:
    """Until it is Ready."""
    cluster.apply(
        {
            "apiVersion": "pgrole.dev/v1alpha1",
            "kind": "PgRole",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"name": f"{namespace}_{name}", "login": True, **spec},
        }
    )
    wait(lambda: holds(cluster.get("-n", namespace, "pgr", name), "Ready"), f"PgRole {name} is Ready")
