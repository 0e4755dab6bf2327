"""Creates PgServers like an administrator, for the tests of many servers."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import anyio

from pgrole_controller.local.apiserver import ApiServer, LocalApiError
from pgrole_controller.local.manifests import create_namespace
from pgrole_controller.local.postgres import PostgresServer
from pgrole_controller.local.process import reached
from tests.acceptance.service_account import OWN_NAMESPACE
from tests.acceptance.waiting import Attempts
from tests.acceptance.world import GROUP, PATIENCE, Json, Kube, apply, condition

EVERYTHING: Json = {
    "namespaces": {"matchNames": ["*"]},
    "roleNames": ["*"],
    "attributes": ["createdb"],
    "memberOf": ["*"],
    "adopt": True,
}


@dataclass(frozen=True, slots=True)
class PgServers:
    server: ApiServer

    def path(self, name: str = "") -> str:
        return f"{GROUP}/pgservers" + (f"/{name}" if name else "")

    async def apply(self, name: str, postgres: PostgresServer, *, allow: Json | None = None, **spec: Any) -> Json:
        """Declares a test server, with its superuser's credentials in a Secret of the same name."""
        await self.apply_credentials(name, "postgres", postgres.password)
        connection = {
            "hosts": ["127.0.0.1"],
            "port": postgres.port,
            "sslMode": "disable",
            "credentialsSecretRef": {"name": name},
        }
        spec = {"connection": connection, "allow": EVERYTHING if allow is None else allow, **spec}
        return await self.apply_spec(name, spec)

    async def apply_spec(self, name: str, spec: Json) -> Json:
        body = {"apiVersion": "pgrole.dev/v1alpha1", "kind": "PgServer", "metadata": {"name": name}, "spec": spec}
        return await apply(self.server, self.path(name), body)

    async def patch(self, name: str, body: Json) -> Json:
        return await self.server.request("PATCH", self.path(name), body, content_type="application/merge-patch+json")

    async def apply_credentials(self, name: str, username: str, password: str) -> None:
        await Kube(self.server, OWN_NAMESPACE).apply_secret(name, username=username, password=password)

    async def get(self, name: str) -> Json | None:
        try:
            return await self.server.request("GET", self.path(name))
        except LocalApiError as error:
            if error.status == 404:
                return None
            raise

    async def delete(self, name: str) -> None:
        await self.server.request("DELETE", self.path(name))

    async def wait_for(self, name: str, true: Callable[[Json], bool], what: str, seconds: float = PATIENCE) -> Json:
        last: Json | None = None
        with anyio.move_on_after(seconds):
            async for _ in Attempts():
                last = await self.get(name)
                if last is not None and true(last):
                    return last
        raise AssertionError(f"PgServer {name}: {what} did not come true within {seconds} s: {json.dumps(last)}")

    async def wait_ready(self, name: str) -> Json:
        return await self.wait_for(name, lambda obj: condition(obj, "Ready").get("status") == "True", "Ready")

    async def wait_younger(self, name: str) -> None:
        """Waits until anything created from now on is younger than this PgServer, since ages are whole seconds."""
        obj = await self.get(name)
        assert obj is not None
        made = datetime.fromisoformat(obj["metadata"]["creationTimestamp"])

        async def is_over() -> bool:
            return datetime.now(UTC) - made >= timedelta(seconds=1)

        assert await reached(is_over, PATIENCE)

    async def wait_gone(self, name: str) -> None:
        async def is_gone() -> bool:
            return await self.get(name) is None

        if not await reached(is_gone, PATIENCE):
            raise AssertionError(f"PgServer {name} was not deleted: {await self.get(name)}")

    async def table(self) -> Json:
        """Returns what `kubectl get pgs` prints."""
        return await self.server.request("GET", self.path(), accept="application/json;as=Table;g=meta.k8s.io;v=v1")


@asynccontextmanager
async def pgservers(server: ApiServer) -> AsyncIterator[PgServers]:
    """Starts without PgServers, whatever earlier tests left behind; deletes them at the end."""
    made = PgServers(server)
    await create_namespace(server, OWN_NAMESPACE)
    for obj in (await server.request("GET", f"{GROUP}/pgroles"))["items"]:
        left = Kube(server, obj["metadata"]["namespace"])
        await left.patch(obj["metadata"]["name"], {"metadata": {"finalizers": None}})
        if await left.get(obj["metadata"]["name"]) is not None:
            await left.delete(obj["metadata"]["name"])
    try:
        yield made
    finally:
        for obj in (await server.request("GET", made.path()))["items"]:
            name = obj["metadata"]["name"]
            await made.patch(name, {"metadata": {"finalizers": None}})
            if await made.get(name) is not None:
                await made.delete(name)
