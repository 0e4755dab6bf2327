"""Replaces what a cluster has besides its API server, as far as the pages need it.

Pods of Deployments are local processes with the Deployment's arguments, environment and ServiceAccount; a Deployment is
available once they are ready at /readyz. Deleting a namespace deletes its content. Nothing is garbage-collected.
"""

import json
import os
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import anyio

from pgrole_controller.local.apiserver import ApiServer, Json, LocalApiError
from pgrole_controller.local.kubeconfig import write_kubeconfig
from pgrole_controller.local.process import Process
from pgrole_controller.local.workspace import free_port
from tests.forks import Forked

_EVERY_SECONDS = 0.3
_DEPLOYMENTS = "/apis/apps/v1/deployments"
_JSON = "application/json"
_MERGE = "application/merge-patch+json"
_ANSWER = aiohttp.ClientTimeout(total=2)


@dataclass(frozen=True, slots=True)
class Pod:
    process: Process
    port: int


@dataclass(slots=True)
class DocumentedCluster:
    """The controllers of one API server, active during `run`; `folder` receives logs."""

    server: ApiServer
    folder: Path
    _pods: dict[str, list[Pod]] = field(default_factory=dict)

    async def run(self) -> None:
        """Runs until cancelled."""
        try:
            async with aiohttp.ClientSession(timeout=_ANSWER) as session:
                while True:
                    await self._look(session)
                    await anyio.sleep(_EVERY_SECONDS)
        finally:
            with anyio.CancelScope(shield=True):
                for pod in [pod for pods in self._pods.values() for pod in pods]:
                    await pod.process.kill()

    def logs(self) -> str:
        """Logs of all pods so far."""
        return "".join(path.read_text(encoding="utf-8", errors="replace") for path in sorted(self.folder.glob("*.log")))

    async def _look(self, session: aiohttp.ClientSession) -> None:
        there = {}
        for deployment in (await self.server.request("GET", _DEPLOYMENTS))["items"]:
            template = json.dumps(deployment["spec"]["template"], sort_keys=True)
            there[f"{deployment['metadata']['uid']} {deployment['spec']['replicas']} {template}"] = deployment
        await self._keep(set(there))
        for key, deployment in there.items():
            if key not in self._pods:
                replicas = range(deployment["spec"]["replicas"])
                self._pods[key] = [await self._begin(deployment, number) for number in replicas]
            await self._report(deployment, self._pods[key], session)
        await self._finish_namespaces()

    async def _keep(self, keys: set[str]) -> None:
        """Ends the others, like a rollout that waits for them."""
        for key in set(self._pods) - keys:
            async with anyio.create_task_group() as tasks:
                for pod in self._pods.pop(key):
                    tasks.start_soon(pod.process.stop)

    async def _begin(self, deployment: Json, number: int) -> Pod:
        metadata, spec = deployment["metadata"], deployment["spec"]["template"]["spec"]
        namespace, port = metadata["namespace"], free_port()
        name = f"{metadata['name']}-{metadata['generation']}-{number}"
        user = await self.server.admit(namespace, spec["serviceAccountName"])
        kubeconfig = write_kubeconfig(
            self.folder / f"{name}.kubeconfig",
            url=self.server.url,
            ca=self.server.ca,
            user=user,
            token=self.server.token_of(user),
        )
        [container] = spec["containers"]
        environment = {
            "PATH": os.environ["PATH"],
            "PGROLE_KUBECONFIG": str(kubeconfig),
            "PGROLE_OWN_NAMESPACE": namespace,
            "PGROLE_LEADER_ELECTION": "true",
            **await self._environment_of(container, namespace, {"metadata.name": name, "metadata.uid": f"uid-{name}"}),
            "PGROLE_HEALTH_PORT": str(port),
        }
        process = Forked(name, container["args"], self.folder / f"{name}.log", environment)
        await process.start()
        return Pod(process, port)

    async def _environment_of(self, container: Json, namespace: str, fields: Mapping[str, str]) -> dict[str, str]:
        """Builds the environment like the kubelet. Raises KeyError for an unsupported source."""
        found: dict[str, str] = {}
        for source in container.get("envFrom", []):
            path = f"/api/v1/namespaces/{namespace}/configmaps/{source['configMapRef']['name']}"
            found |= (await self.server.request("GET", path))["data"]
        for variable in container["env"]:
            if "value" in variable:
                text = variable["value"]
                for name, value in found.items():
                    text = text.replace(f"$({name})", value)
                found[variable["name"]] = text
            elif "fieldRef" in variable["valueFrom"]:
                found[variable["name"]] = fields[variable["valueFrom"]["fieldRef"]["fieldPath"]]
            else:
                wanted = variable["valueFrom"]["secretKeyRef"]
                secret = await self._ask("GET", f"/api/v1/namespaces/{namespace}/secrets/{wanted['name']}")
                if secret:
                    found[variable["name"]] = b64decode(secret["data"][wanted["key"]]).decode()
        return found

    async def _report(self, deployment: Json, pods: list[Pod], session: aiohttp.ClientSession) -> None:
        for pod in pods:
            if not pod.process.running:
                raise pod.process.failure("ended by itself")
        ready = sum([await _is_ready(pod, session) for pod in pods])
        metadata, generation = deployment["metadata"], deployment["metadata"]["generation"]
        status = {
            "observedGeneration": generation,
            "replicas": len(pods),
            "updatedReplicas": len(pods),
            "readyReplicas": ready,
            "availableReplicas": ready,
        }
        if not status.items() <= {"readyReplicas": 0, "availableReplicas": 0, **deployment.get("status", {})}.items():
            path = f"/apis/apps/v1/namespaces/{metadata['namespace']}/deployments/{metadata['name']}/status"
            await self._ask("PATCH", path, {"status": status}, _MERGE)

    async def _finish_namespaces(self) -> None:
        for namespace in (await self.server.request("GET", "/api/v1/namespaces"))["items"]:
            if "deletionTimestamp" in namespace["metadata"]:
                name = namespace["metadata"]["name"]
                if not await self._empty(name):
                    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}, "spec": {}}
                    await self._ask("PUT", f"/api/v1/namespaces/{name}/finalize", body)

    async def _empty(self, namespace: str) -> int:
        """Deletes the namespace's content; returns how many objects are left."""
        left = 0
        for path in await self._listings(namespace):
            await self._ask("DELETE", path)
            left += len((await self._ask("GET", path)).get("items", ()))
        return left

    async def _listings(self, namespace: str) -> list[str]:
        groups = (await self.server.request("GET", "/apis"))["groups"]
        found: list[str] = []
        for prefix in ("/api/v1", *(f"/apis/{group['preferredVersion']['groupVersion']}" for group in groups)):
            found.extend(
                f"{prefix}/namespaces/{namespace}/{resource['name']}"
                for resource in (await self._ask("GET", prefix)).get("resources", ())
                if resource["namespaced"] and {"list", "deletecollection"} <= set(resource["verbs"])
            )
        return found

    async def _ask(self, method: str, path: str, body: Json | None = None, content_type: str = _JSON) -> Json:
        """Returns the answer; empty if the object does not exist."""
        try:
            return await self.server.request(method, path, body, content_type=content_type)
        except LocalApiError as error:
            if error.status == 404:
                return {}
            raise


async def _is_ready(pod: Pod, session: aiohttp.ClientSession) -> bool:
    url = f"http://127.0.0.1:{pod.port}/readyz"
    try:
        async with session.get(url) as response:
            return response.status == 200
    except (aiohttp.ClientError, TimeoutError):
        return False
