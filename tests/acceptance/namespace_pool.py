"""Namespaces that tests use one after another: installing a controller for one takes longer than most tests."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pgrole_controller.local.apiserver import ApiServer
from tests.acceptance.service_account import OWN_NAMESPACE, installation_for
from tests.acceptance.world import Json, Kube, make_kube, remove

_LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{OWN_NAMESPACE}/leases"
_CONTENTS = ("secrets", "configmaps", "events")


class NamespacePool:
    """The namespaces of one API server."""

    def __init__(self, server: ApiServer) -> None:
        self._server = server
        self._free: list[Kube] = []
        self._abandoned: set[str] = set()

    def abandon(self, kube: Kube) -> None:
        """Removes the namespace from the pool, because a controller may still watch it."""
        self._abandoned.add(kube.namespace)

    @asynccontextmanager
    async def lend(self) -> AsyncIterator[Kube]:
        """Lends an empty namespace. At the end, no controller may be watching it."""
        kube = self._free.pop() if self._free else await make_kube(self._server)
        before = await self._metadata(kube)
        yield kube
        await remove(kube)
        if before == await self._metadata(kube) and kube.namespace not in self._abandoned:
            await self._empty(kube)
            self._free.append(kube)

    async def _metadata(self, kube: Kube) -> Json:
        """Differs for a namespace that was relabelled or is terminating."""
        metadata: Json = (await self._server.request("GET", f"/api/v1/namespaces/{kube.namespace}"))["metadata"]
        return {name: value for name, value in metadata.items() if name not in ("resourceVersion", "managedFields")}

    async def _empty(self, kube: Kube) -> None:
        for kind in _CONTENTS:
            await self._server.request("DELETE", f"/api/v1/namespaces/{kube.namespace}/{kind}")
        leases = {lease["metadata"]["name"] for lease in (await self._server.request("GET", _LEASES))["items"]}
        if (lease := installation_for(kube.namespace).name) in leases:
            await self._server.request("DELETE", f"{_LEASES}/{lease}")
