"""The PostgreSQL of the cluster, as an administrator of it sees it: with psql, through its Service."""

import time
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.cluster import Cluster, Json, holds, wait

HOST = "postgres.databases.svc"
PASSWORD = "only-in-this-cluster"  # of postgres.yaml
_MANIFEST = Path(__file__).with_name("postgres.yaml")
_REPAIR_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Database:
    cluster: Cluster
    address: str

    def psql(self, statement: str, user: str = "postgres", password: str = PASSWORD) -> str:
        """What is asked for, unaligned."""
        dsn = f"host={self.address} dbname=postgres user={user} password={password} connect_timeout=5"
        return self.cluster.run("psql", dsn, "-XAtqc", statement).strip()

    def drift(self) -> None:
        """Something that no team asked for."""
        self.psql("ALTER ROLE shop_orders CREATEROLE")

    def is_repaired(self) -> bool:
        return self.psql("SELECT rolcreaterole FROM pg_roles WHERE rolname = 'shop_orders'") == "f"

    def repair_seconds(self, within: float = _REPAIR_SECONDS) -> float:
        """How long a drift stands that is made now. What psql itself needs is in it."""
        self.drift()
        started = time.monotonic()
        wait(self.is_repaired, "the drift is repaired", within)
        return time.monotonic() - started


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


def declare_role(cluster: Cluster, name: str, **spec: object) -> None:
    """Until it is Ready."""
    cluster.apply(
        {
            "apiVersion": "pgrole.dev/v1alpha1",
            "kind": "PgRole",
            "metadata": {"name": name, "namespace": "shop"},
            "spec": {"name": f"shop_{name}", "login": True, **spec},
        }
    )
    wait(lambda: holds(cluster.get("-n", "shop", "pgr", name), "Ready"), f"PgRole {name} is Ready")
