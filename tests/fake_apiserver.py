"""A fake API server for faults that the real one cannot produce on demand.

It serves one resource without a schema: list in pages, watch, create, merge-patch and delete, with one version counter.
It passes the same contract tests as the real one (tests/integration/test_kube_reflector.py). A test injects faults
through `faults`, each for the next request with its verb.
"""

import json
import uuid
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import anyio
from aiohttp import web

from pgrole_controller.kube.client import Client
from pgrole_controller.kube.errors import ApiError
from pgrole_controller.kube.resource import NAMESPACES, Resource

_DEFINITIONS = Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions")
Verb = Literal["list", "watch", "post", "patch"]
ApiFault = Callable[[web.Request], Awaitable[web.StreamResponse]]

KIND = "Widget"
WIDGETS = Resource("example.dev", "v1", "widgets")


async def define_widgets(client: Client) -> None:
    """Defines the fake's resource on the real API server, unless it is already defined."""
    free = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    schema = {"type": "object", "properties": {"spec": free, "status": free}}
    version = {"name": WIDGETS.version, "served": True, "storage": True, "subresources": {"status": {}}}
    version["schema"] = {"openAPIV3Schema": schema}
    names = {"plural": WIDGETS.plural, "singular": "widget", "kind": KIND, "listKind": f"{KIND}List"}
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{WIDGETS.plural}.{WIDGETS.group}"},
        "spec": {"group": WIDGETS.group, "scope": "Namespaced", "names": names, "versions": [version]},
    }
    try:
        await client.request("POST", _DEFINITIONS.path(), body=definition)
    except ApiError as error:
        if error.reason != "AlreadyExists":
            raise
    with anyio.fail_after(30):
        while not await _are_served(client):  # noqa: ASYNC110 - seen from outside only
            await anyio.sleep(0.05)


async def _are_served(client: Client) -> bool:
    try:
        await client.request("GET", WIDGETS.path())
    except ApiError:
        return False
    return True


async def make_namespace(client: Client) -> str:
    """Creates a namespace for a test on the real API server; returns its name."""
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"generateName": "kube-"}}
    made = json.loads(await client.request("POST", NAMESPACES.path(), body=body))
    return str(made["metadata"]["name"])


async def make_widget(client: Client, namespace: str, name: str, **spec: object) -> dict[str, Any]:
    body = {
        "apiVersion": WIDGETS.api_version,
        "kind": KIND,
        "metadata": {"name": name},
        "spec": spec,
    }
    made: dict[str, Any] = json.loads(await client.request("POST", WIDGETS.path(namespace), body=body))
    return made


def status_body(code: int, reason: str, message: str) -> dict[str, Any]:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": code,
    }


def refuse(code: int, reason: str, headers: dict[str, str] | None = None) -> ApiFault:
    """Answers with a Status."""

    async def fault(_: web.Request) -> web.StreamResponse:
        return web.json_response(status_body(code, reason, "on purpose"), status=code, headers=headers)

    return fault


def plain(code: int, text: str) -> ApiFault:
    """Answers with text/plain, like a proxy."""

    async def fault(_: web.Request) -> web.StreamResponse:
        return web.Response(status=code, text=text)

    return fault


def say(*chunks: bytes) -> ApiFault:
    """Sends these bytes as a watch, and ends it."""

    async def fault(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        for chunk in chunks:
            await response.write(chunk)
        return response

    return fault


def freeze(*, headers: bool) -> ApiFault:
    """Accepts the request, then sends nothing, or nothing after the headers."""

    async def fault(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        if headers:
            await response.prepare(request)
        await anyio.sleep_forever()
        return response

    return fault


class FakeApiServer:
    def __init__(self, resource: Resource = WIDGETS) -> None:
        self.resource = resource
        self.objects: dict[tuple[str, str], dict[str, Any]] = {}
        self.history: list[tuple[int, dict[str, Any]]] = []
        self.version = 100
        self.faults: dict[Verb, deque[ApiFault]] = {
            "list": deque(),
            "watch": deque(),
            "post": deque(),
            "patch": deque(),
        }
        self.always: dict[Verb, ApiFault] = {}  # for every request with the verb, once `faults` are used up
        self.requests: list[web.Request] = []
        self._moved = anyio.Event()

    def count(self, verb: Verb) -> int:
        return sum(_verb(request) == verb for request in self.requests)

    @asynccontextmanager
    async def serve(self, kubeconfig: Path) -> AsyncIterator[None]:
        """Listens on a free port of 127.0.0.1 and writes `kubeconfig`."""
        application = web.Application(client_max_size=64 * 2**20)
        application.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(application, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            port = runner.addresses[0][1]
            cluster = {"name": "fake", "cluster": {"server": f"http://127.0.0.1:{port}"}}
            context = {"name": "fake", "context": {"cluster": "fake", "user": ""}}
            await anyio.Path(kubeconfig).write_text(
                json.dumps({"current-context": "fake", "clusters": [cluster], "contexts": [context]})
            )
            yield
        finally:
            await runner.cleanup()

    def put(self, namespace: str, name: str, **content: object) -> dict[str, Any]:
        """Creates or changes an object, as another client would."""
        before = self.objects.get((namespace, name))
        metadata = {"namespace": namespace, "name": name, "resourceVersion": self._next()}
        metadata["uid"] = before["metadata"]["uid"] if before else str(uuid.uuid4())
        obj = {"apiVersion": self.resource.api_version, "kind": KIND, "metadata": metadata, **content}
        self.objects[namespace, name] = obj
        self._announce("MODIFIED" if before else "ADDED", obj)
        return obj

    def delete(self, namespace: str, name: str) -> dict[str, Any]:
        obj = self.objects.pop((namespace, name))
        obj = {**obj, "metadata": {**obj["metadata"], "resourceVersion": self._next()}}
        self._announce("DELETED", obj)
        return obj

    def _next(self) -> str:
        self.version += 1
        return str(self.version)

    def _announce(self, kind: str, obj: dict[str, Any]) -> None:
        self.history.append((self.version, {"type": kind, "object": obj}))
        moved, self._moved = self._moved, anyio.Event()
        moved.set()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        verb = _verb(request)
        if verb is not None and self.faults[verb]:
            return await self.faults[verb].popleft()(request)
        if verb is not None and verb in self.always:
            return await self.always[verb](request)
        if verb == "list":
            return self._list(request)
        if verb == "watch":
            return await self._watch(request)
        if verb == "post":
            return await self._create(request)
        return await self._one(request)

    def _list(self, request: web.Request) -> web.Response:
        items = [self.objects[key] for key in sorted(self.objects)]
        limit = int(request.query.get("limit", "0")) or len(items)
        start = int(request.query.get("continue", "0"))
        metadata = {"resourceVersion": str(self.version)}
        if start + limit < len(items):
            metadata["continue"] = str(start + limit)
        page = {"apiVersion": self.resource.api_version, "kind": f"{KIND}List", "metadata": metadata}
        return web.json_response(page | {"items": items[start : start + limit]})

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        version = int(request.query["resourceVersion"])
        with anyio.move_on_after(float(request.query.get("timeoutSeconds", "300"))):
            while True:
                moved = self._moved
                for at, event in [entry for entry in self.history if entry[0] > version]:
                    await response.write(json.dumps(event).encode() + b"\n")
                    version = at
                await moved.wait()
        return response

    async def _create(self, request: web.Request) -> web.Response:
        given = await request.json()
        if request.path == NAMESPACES.path():
            return web.json_response(given | {"metadata": {"name": "shop"}}, status=201)
        namespace = request.path.split("/namespaces/")[1].split("/")[0]
        name = given["metadata"]["name"]
        if (namespace, name) in self.objects:
            return web.json_response(status_body(409, "AlreadyExists", name), status=409)
        return web.json_response(self.put(namespace, name, **_content(given)), status=201)

    async def _one(self, request: web.Request) -> web.Response:
        namespace, _, name = request.path.split("/namespaces/")[1].split("/")
        found = self.objects.get((namespace, name))
        if found is None:
            return web.json_response(status_body(404, "NotFound", name), status=404)
        if request.method == "DELETE":
            return web.json_response(self.delete(namespace, name))
        if request.method == "PATCH":
            return web.json_response(self.put(namespace, name, **_content(_merge(found, await request.json()))))
        return web.json_response(found)


def _content(obj: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in obj.items() if key not in {"apiVersion", "kind", "metadata"}}


def _merge(value: Any, patch: Any) -> Any:
    """A JSON merge patch (RFC 7386)."""
    if not isinstance(patch, dict):
        return patch
    merged = {**value} if isinstance(value, dict) else {}
    for key, change in patch.items():
        if change is None:
            merged.pop(key, None)
        else:
            merged[key] = _merge(merged.get(key), change)
    return merged


def _verb(request: web.Request) -> Verb | None:
    if request.method == "POST":
        return "post"
    if request.method == "PATCH":
        return "patch"
    parts = request.path.split("/namespaces/")
    if request.method != "GET" or (len(parts) == 2 and parts[1].count("/") > 1):
        return None
    return "watch" if "watch" in request.query else "list"
