"""API servers that tests use one after another: starting one takes five times the CPU of emptying one.

A borrower gets a server as after its start, without the CRDs, and may do anything through its API. A test that stops,
freezes or kills an API server starts its own.
"""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio

from pgrole_controller.local.apiserver import ApiServer, Json, LocalApiError, OwnApiServer, RemoteApiServer
from pgrole_controller.local.apiserver import api_server as run_api_server
from pgrole_controller.local.audit import AuditLog
from pgrole_controller.local.binaries import Binaries
from pgrole_controller.local.kubeconfig import ADMIN

_METADATA = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
_DISCOVERY = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
_MERGE = "application/merge-patch+json"
_EMPTY_SECONDS = 30.0
_REST_SECONDS = 0.3
#: The last namespace that the API server creates by itself after a start.
_LAST = "/api/v1/namespaces/kube-node-lease"
_CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/"
_NAMESPACES = "/api/v1/namespaces/"
#: The group no longer exists, or its storage is being created or removed.
_PASSING = (404, 429, 503)
#: The API server writes these by itself.
_OWN = ("/leases/", "/apiservices/", "/flowschemas/", "/prioritylevelconfigurations/")


async def list_metadata(server: ApiServer) -> dict[str, Json]:
    """Returns the metadata of every object except Events, by path. Raises LocalApiError for a group that is removed
    meanwhile (404, 429, 503).
    """
    found: dict[str, Json] = {}
    for root in ("/api", "/apis"):
        for group in (await server.request("GET", root, accept=_DISCOVERY))["items"]:
            preferred = group["versions"][0]
            prefix = "/".join(filter(None, (root, group["metadata"].get("name"), preferred["version"])))
            for resource in preferred["resources"]:
                if "list" not in resource["verbs"] or resource["resource"] in ("events", "componentstatuses"):
                    continue
                found |= await _list_resource(server, f"{prefix}/{resource['resource']}")
    return found


async def _list_resource(server: ApiServer, path: str) -> dict[str, Json]:
    found: dict[str, Json] = {}
    prefix, name = path.rsplit("/", 1)
    for obj in (await server.request("GET", path, accept=_METADATA))["items"] or ():
        metadata = obj["metadata"]
        place = f"namespaces/{metadata['namespace']}/" if "namespace" in metadata else ""
        found[f"{prefix}/{place}{name}/{metadata['name']}"] = metadata
    return found


@dataclass(slots=True)
class ApiServerPool:
    """The API servers of one test process. Servers run until `close`."""

    binaries: Binaries
    _free: list["_PooledServer"] = field(default_factory=list)
    _abandoned: set[str] = field(default_factory=set)
    _started: AsyncExitStack = field(default_factory=AsyncExitStack)

    def abandon(self, server: ApiServer) -> None:
        """Does not lend it again, because a controller may still use it."""
        self._abandoned.add(server.url)

    @asynccontextmanager
    async def lend(self) -> AsyncIterator[ApiServer]:
        """Lends an empty server with an audit log. One whose borrower raises is not lent again."""
        pooled = self._free.pop() if self._free else await self._start()
        pooled.resume()
        async with pooled.opened() as server:
            yield server
        if pooled.server.url not in self._abandoned and await pooled.is_emptied():
            self._free.append(pooled)
            pooled.pause()
        else:
            await pooled.server.stop()

    async def close(self) -> None:
        for pooled in self._free:
            pooled.resume()
        await self._started.aclose()

    async def _start(self) -> "_PooledServer":
        server = await self._started.enter_async_context(run_api_server(binaries=self.binaries, audit=True))
        return _PooledServer(server, {user: server.token_of(user) for user in server.users}, await _rest(server))


@dataclass(frozen=True, slots=True)
class _PooledServer:
    """`tokens` are those of its initial users; `content` is its initial content, by path."""

    server: OwnApiServer
    tokens: dict[str, str]
    content: dict[str, str]

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[ApiServer]:
        """Yields a client with its own kubeconfigs, without ServiceAccounts of earlier borrowers."""
        audit = AuditLog(self.server.folder)
        async with anyio.TemporaryDirectory(prefix="pgrole-borrowed-") as folder:
            place, server = Path(folder), self.server
            borrowed = RemoteApiServer(place, url=server.url, ca=server.ca, tokens=self.tokens, audit=audit)
            borrowed.kubeconfig_of(ADMIN)
            await borrowed.start()
            audit.ready_from = audit.size
            try:
                yield borrowed
            finally:
                await borrowed.stop()

    def pause(self) -> None:
        """Pauses API server and etcd, which take a hundredth of a core even when idle."""
        self.server.pause()
        self.server.etcd.pause()

    def resume(self) -> None:
        self.server.etcd.resume()
        self.server.resume()

    async def is_emptied(self) -> bool:
        """Deletes added objects. Returns False if some remain, or the initial content has changed."""
        with anyio.move_on_after(_EMPTY_SECONDS):
            while True:
                try:
                    found = await list_metadata(self.server)
                except LocalApiError as error:
                    if error.status not in _PASSING:
                        raise
                else:
                    added = found.keys() - self.content.keys()
                    if not added:
                        return _versions(found) == self.content
                    for path in sorted(added, key=_rank):
                        await self._delete(path, found[path])
                await anyio.sleep(_REST_SECONDS)
        return False

    async def _delete(self, path: str, metadata: Json) -> None:
        if "/apiservices/" in path:  # deleted with its CRD
            return
        if metadata.get("finalizers") and not path.startswith(_CRDS):
            await self._ask("PATCH", path, {"metadata": {"finalizers": None}}, _MERGE)
        name = path.removeprefix(_NAMESPACES)
        if "/" in name:
            await self._ask("DELETE", path)
            return
        await self._ask("DELETE", f"{path}/events")
        await self._ask("DELETE", path)
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}, "spec": {}}
        await self._ask("PUT", f"{path}/finalize", body)

    async def _ask(self, method: str, path: str, body: Json | None = None, content_type: str = "") -> None:
        """Sends a request about an object that may be deleted already, or terminating."""
        try:
            await self.server.request(method, path, body, content_type=content_type or "application/json")
        except LocalApiError as error:
            if error.status not in (*_PASSING, 409):
                raise


def _rank(path: str) -> int:
    """Returns the order of deletion: CRDs after their objects, and namespaces last."""
    is_namespace = path.startswith(_NAMESPACES) and "/" not in path.removeprefix(_NAMESPACES)
    return 2 if is_namespace else int(path.startswith(_CRDS))


def _versions(found: dict[str, Json]) -> dict[str, str]:
    """Returns each object's version, or an empty string if the API server writes it by itself."""
    return {
        path: "" if any(part in path for part in _OWN) else metadata["resourceVersion"]
        for path, metadata in found.items()
    }


async def _rest(server: ApiServer) -> dict[str, str]:
    """Returns a server's initial content, once it has created everything that it creates by itself."""
    last: dict[str, str] = {}
    while True:
        now = _versions(await list_metadata(server))
        if now == last and _LAST in now:
            return now
        last = now
        await anyio.sleep(_REST_SECONDS)
