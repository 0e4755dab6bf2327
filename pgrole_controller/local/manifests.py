"""Applies YAML manifests to the local API server by server-side apply."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import aiohttp
import yaml

from pgrole_controller import resources
from pgrole_controller.local.apiserver import ApiServer, Json, LocalApiError
from pgrole_controller.local.process import LocalError, reached

_MANAGER = "pgrole-local"
_ESTABLISHED_SECONDS = 30.0
#: The one in C, if PyYAML has it: reading the CRDs takes a tenth of the time.
_LOADER: type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


async def apply(server: ApiServer, document: Json) -> Json:
    """Creates or changes one object like `kubectl apply --server-side --force-conflicts`; returns the result."""
    path = await path_of(server, document)
    return await server.request(
        "PATCH",
        path,
        document,
        content_type="application/apply-patch+yaml",
        query={"fieldManager": _MANAGER, "force": "true"},
    )


async def apply_folder(server: ApiServer, folder: Path) -> list[Json]:
    """Applies every object in a folder's *.yaml files, in the order of their names. Raises LocalError if there are
    none.
    """
    objects = [await apply(server, document) for document in read_folder(folder)]
    if not objects:
        raise LocalError(f"{folder} contains no *.yaml files")
    return objects


async def apply_crds(server: ApiServer, folder: Path | None = None) -> None:
    """Applies `crds/*.yaml` and waits until each is served. Raises LocalError if one is rejected or times out."""
    for crd in await apply_folder(server, folder or resources.path("crds")):
        name = crd["metadata"]["name"]
        spec = crd["spec"]
        version = spec["versions"][0]["name"]
        listing = f"/apis/{spec['group']}/{version}/{spec['names']['plural']}"
        if not await reached(partial(_is_usable, server, name, listing), _ESTABLISHED_SECONDS):
            raise LocalError(f"CRD {name} is not established after {_ESTABLISHED_SECONDS:.0f} s")


async def create_namespace(server: ApiServer, name: str) -> None:
    """Creates a namespace unless it exists."""
    await apply(server, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})


async def are_ready(server: ApiServer, paths: Sequence[str]) -> bool:
    """Tells whether these objects are Ready for their present spec; False while the API server does not answer."""
    try:
        return all([_is_ready(await server.request("GET", path)) for path in paths])
    except (aiohttp.ClientError, TimeoutError):
        return False


def _is_ready(found: Json) -> bool:
    status = found.get("status", {})
    ready = any(one["type"] == "Ready" and one["status"] == "True" for one in status.get("conditions") or [])
    return ready and status.get("observedGeneration") == found["metadata"]["generation"]


async def path_of(server: ApiServer, document: Json) -> str:
    """Returns an object's path, by discovery. Raises LocalError if the API server does not know its kind."""
    version, kind, metadata = document["apiVersion"], document["kind"], document["metadata"]
    prefix = f"/apis/{version}" if "/" in version else f"/api/{version}"
    resource = _BUILT_IN.get((version, kind)) or await _discover(server, prefix, kind)
    if resource is None:
        raise LocalError(f"the API server does not know {kind} of {version}")
    if _is_built_in(version):
        _BUILT_IN[version, kind] = resource
    if resource.namespaced:
        prefix += f"/namespaces/{metadata.get('namespace', 'default')}"
    return f"{prefix}/{resource.name}/{metadata['name']}"


@dataclass(frozen=True, slots=True)
class _ServedResource:
    name: str
    namespaced: bool


#: Discovered resources of Kubernetes' own kinds, which are the same on every API server, by apiVersion and kind.
_BUILT_IN: dict[tuple[str, str], _ServedResource] = {}


def _is_built_in(version: str) -> bool:
    group = version.rpartition("/")[0]
    return "." not in group or group.endswith(".k8s.io")


async def _discover(server: ApiServer, prefix: str, kind: str) -> _ServedResource | None:
    known = (await server.request("GET", prefix))["resources"]
    found = (one for one in known if one["kind"] == kind and "/" not in one["name"])
    return next((_ServedResource(one["name"], one["namespaced"]) for one in found), None)


def read_folder(folder: Path) -> Iterator[Json]:
    for path in sorted(folder.glob("*.yaml")):
        yield from read_documents(path)


def read_documents(path: Path) -> Iterator[Json]:
    """Yields a file's documents, except empty ones."""
    yield from (one for one in yaml.load_all(path.read_text(encoding="utf-8"), _LOADER) if one)


async def _is_usable(server: ApiServer, name: str, listing: str) -> bool:
    crd = await server.request("GET", f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}")
    conditions = {one["type"]: one["status"] for one in crd.get("status", {}).get("conditions") or []}
    if conditions.get("Established") != "True":
        return False
    try:
        await server.request("GET", listing, query={"limit": "1"})
    except LocalApiError as error:
        if error.status == 404:
            return False
        raise
    return True
