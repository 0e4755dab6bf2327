"""For each RBAC permission of the controller: how to make it use the permission, and where it reports a denial."""

import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

from pgrole_controller.local.apiserver import ApiServer, LocalApiError
from pgrole_controller.local.postgres import PostgresServer
from pgrole_controller.local.process import reached
from tests.acceptance.permissions import Permission
from tests.acceptance.relay import Relay
from tests.acceptance.servers import PgServers
from tests.acceptance.service_account import OWN_NAMESPACE, ServiceAccount
from tests.acceptance.world import PATIENCE, Controller, Database, Json, Kube, apply, condition

SERVER = "main"


@dataclass(frozen=True, slots=True)
class RbacPlace:
    """An installation for one namespace, whose requests pass a relay."""

    account: ServiceAccount
    kube: Kube
    servers: PgServers
    postgres: PostgresServer
    database: Database
    relay: Relay
    controller: Controller

    @property
    def server(self) -> ApiServer:
        return self.account.server

    async def declare(self, name: str, **spec: object) -> None:
        """Declares a PgRole with this name, for a role with this name."""
        await self.kube.apply(name, name=name, serverRef={"name": SERVER}, **spec)

    async def tidy(self) -> None:
        """Deletes all objects, and all PgServers except the first."""
        await self.kube.delete_all()
        await self.kube.wait_number(0)
        for obj in (await self.server.request("GET", self.servers.path()))["items"]:
            if obj["metadata"]["name"] != SERVER:
                await self.servers.delete(obj["metadata"]["name"])
                await self.servers.wait_gone(obj["metadata"]["name"])

    async def wait_used(self, permission: Permission, since: int, *, refused: bool = False) -> None:
        """Waits until the audit log has a request that used this permission, allowed or refused."""

        async def is_so() -> bool:
            entries = self.server.audit.read(since)
            return any(permission.covers(entry) and entry.refused == refused for entry in entries)

        if not await reached(is_so, PATIENCE):
            what = "made no refused request" if refused else "made no allowed request"
            raise self.controller.process.failure(f"{what}: {permission}")


RbacStep = Callable[[RbacPlace, str], Awaitable[object]]

#: Tells whether the log, from this character on, contains these words about this name.
IsLogged = Callable[[RbacPlace, str, str, int], Awaitable[bool]]


async def do_nothing(place: RbacPlace, name: str) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Use:
    """`do`, given a unique name, makes the controller use the permission; `said` tells whether it reported a denial.

    `prepare` runs first, with the same name.
    """

    do: RbacStep
    said: IsLogged
    prepare: RbacStep = do_nothing


async def log_says(place: RbacPlace, name: str, words: str, since: int) -> bool:
    said = place.controller.log[since:].replace('\\"', '"')
    return any(words in line for line in said.splitlines())


async def object_says(place: RbacPlace, name: str, words: str, since: int) -> bool:
    return _has(await place.kube.get(name), words)


async def object_says_forbidden(place: RbacPlace, name: str, words: str, since: int) -> bool:
    """The API server's message may quote a Secret, so the controller shows only its status and reason."""
    return _has(await place.kube.get(name), ": 403 Forbidden")


async def server_says(place: RbacPlace, name: str, words: str, since: int) -> bool:
    return _has(await place.servers.get(name), words)


def _has(obj: Json | None, words: str) -> bool:
    return words in condition(obj or {}, "Ready").get("message", "")


def lease_path(place: RbacPlace) -> str:
    return f"/apis/coordination.k8s.io/v1/namespaces/{OWN_NAMESPACE}/leases/{place.account.installation.name}"


async def lead(place: RbacPlace, name: str) -> None:
    """Waits for what the leader does by itself."""

    async def is_led() -> bool:
        try:
            lease = await place.server.request("GET", lease_path(place))
        except LocalApiError as error:
            if error.status != 404:
                raise
            return False
        return bool(lease["spec"]["holderIdentity"])

    if not await reached(is_led, PATIENCE):
        raise place.controller.process.failure(f"did not lead within {PATIENCE} s")


async def begin_anew(place: RbacPlace, name: str) -> None:
    """Gives the Lease to another holder, who releases it: the controller takes it, and lists and watches again."""
    body = {"spec": {"holderIdentity": ""}}
    await place.server.request("PATCH", lease_path(place), body, content_type="application/merge-patch+json")


async def lose_the_lease(place: RbacPlace, name: str) -> None:
    """Deletes the Lease; the controller creates it again."""
    await place.server.request("DELETE", lease_path(place))


async def declare_role(place: RbacPlace, name: str) -> None:
    await place.declare(name)


async def declare_dropped_role(place: RbacPlace, name: str) -> None:
    """Declares a role that gets a finalizer."""
    await place.declare(name, deletionPolicy="Drop")


async def declare_role_that_goes(place: RbacPlace, name: str) -> None:
    """The object is deleted before the finalizer is set, so the controller asks whether it still exists."""
    place.relay.forestall("PATCH", place.kube.path(name), partial(place.kube.delete, name))
    await declare_dropped_role(place, name)


async def declare_server(place: RbacPlace, name: str) -> None:
    """Declares the same server a second time, a second later: within one second, the uid decides which is older. A
    PgRole names it, since only then an installation for one namespace sets its finalizer.
    """
    declared = await place.servers.get(SERVER)
    assert declared is not None
    first = datetime.fromisoformat(declared["metadata"]["creationTimestamp"])

    async def is_later() -> bool:
        return (datetime.now(UTC) - first).total_seconds() > 1.0

    assert await reached(is_later, PATIENCE)
    await place.kube.apply(name, name=name, serverRef={"name": name})
    await place.servers.apply(name, place.postgres)


async def declare_server_that_goes(place: RbacPlace, name: str) -> None:
    place.relay.forestall("PATCH", place.servers.path(name), partial(place.servers.delete, name))
    await declare_server(place, name)


async def declare_server_with_ca(place: RbacPlace, name: str) -> None:
    """Declares a server with a CA; how PostgreSQL answers a TLS client does not matter here."""
    path = f"/api/v1/namespaces/{OWN_NAMESPACE}/configmaps/{name}"
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"ca.crt": "a CA"}}
    await apply(place.server, path, body)
    await place.servers.apply_credentials(name, "postgres", place.postgres.password)
    connection = {
        "hosts": ["127.0.0.1"],
        "port": place.postgres.port,
        "caRef": {"kind": "ConfigMap", "name": name},
        "credentialsSecretRef": {"name": name},
    }
    await place.servers.apply_spec(name, {"connection": connection, "allow": {}})


async def name_a_secret(place: RbacPlace, name: str) -> None:
    await place.kube.apply_secret(name, password="from a Secret")
    await place.declare(name, login=True, password={"secretRef": {"name": name}})


async def want_a_connection_secret(place: RbacPlace, name: str) -> None:
    await place.declare(name, login=True, password={"generate": {}}, connectionSecret={"name": name})


async def have_a_connection_secret(place: RbacPlace, name: str) -> None:
    await want_a_connection_secret(place, name)
    await place.kube.wait_ready(name)


async def damage_a_connection_secret(place: RbacPlace, name: str) -> None:
    await place.kube.patch_secret(name, {"data": {"password": None}})


async def rename_a_connection_secret(place: RbacPlace, name: str) -> None:
    await place.kube.patch(name, {"spec": {"connectionSecret": {"name": f"{name}-renamed"}}})


async def have_drifted(place: RbacPlace, name: str) -> None:
    await place.declare(name)
    await place.kube.wait_ready(name)
    await drift(place, name)
    await place.kube.wait_event("DriftCorrected", about=name)


async def drift(place: RbacPlace, name: str) -> None:
    """Makes a drift. The second one adds to the series of the same Event."""
    await place.database.execute(f'ALTER ROLE "{name}" CREATEDB')


async def have_another(place: RbacPlace, name: str) -> None:
    await place.declare(f"{name}-gone")
    await place.kube.wait_ready(f"{name}-gone")


async def declare_when_another_went(place: RbacPlace, name: str) -> None:
    """Declares a role after another one was deleted, so the controller verifies that the namespace is the same."""
    await place.kube.delete(f"{name}-gone")
    await place.declare(name)


_FOLLOWED = Use(begin_anew, log_says, lead)

#: By verb and resource; Secrets in the controller's own namespace are "own secrets".
USES = {
    ("get", "leases"): _FOLLOWED,
    ("create", "leases"): Use(lose_the_lease, log_says, lead),
    ("list", "leases"): _FOLLOWED,
    ("watch", "leases"): _FOLLOWED,
    ("update", "leases"): Use(do_nothing, log_says),  # every two seconds, by itself
    ("get", "configmaps"): Use(declare_server_with_ca, server_says),
    ("list", "configmaps"): _FOLLOWED,
    ("watch", "configmaps"): _FOLLOWED,
    ("get", "own secrets"): Use(declare_server, server_says),
    ("list", "own secrets"): _FOLLOWED,
    ("watch", "own secrets"): _FOLLOWED,
    ("get", "pgservers"): Use(declare_server_that_goes, log_says),
    ("list", "pgservers"): _FOLLOWED,
    ("watch", "pgservers"): _FOLLOWED,
    ("patch", "pgservers"): Use(declare_server, log_says),
    ("patch", "pgservers/status"): Use(declare_server, log_says),
    ("get", "pgroles"): Use(declare_role_that_goes, log_says),
    ("list", "pgroles"): _FOLLOWED,
    ("watch", "pgroles"): _FOLLOWED,
    ("patch", "pgroles"): Use(declare_dropped_role, log_says),
    ("patch", "pgroles/status"): Use(declare_role, log_says),
    ("get", "secrets"): Use(name_a_secret, object_says),
    ("list", "secrets"): _FOLLOWED,
    ("watch", "secrets"): _FOLLOWED,
    ("create", "secrets"): Use(want_a_connection_secret, object_says_forbidden),
    ("patch", "secrets"): Use(damage_a_connection_secret, object_says_forbidden, have_a_connection_secret),
    ("delete", "secrets"): Use(rename_a_connection_secret, object_says_forbidden, have_a_connection_secret),
    ("create", "events"): Use(declare_role, log_says),
    ("patch", "events"): Use(drift, log_says, have_drifted),
    ("get", "namespaces"): Use(declare_when_another_went, object_says, have_another),
    ("list", "namespaces"): _FOLLOWED,
    ("watch", "namespaces"): _FOLLOWED,
}


def use_of(permission: Permission) -> Use:
    """Raises KeyError for a permission without a known use."""
    own = permission.resource == "secrets" and permission.namespace == OWN_NAMESPACE
    return USES[permission.verb, f"own {permission.resource}" if own else permission.resource]


def new_name() -> str:
    return f"u{secrets.token_hex(4)}"
