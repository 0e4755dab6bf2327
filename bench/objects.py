"""PgRoles by the thousand, written as fast as the API server takes them, and when all of them are Ready."""

import json
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import anyio

from bench.stand import NAMESPACE, Stand, role_name

_PATH = f"/apis/pgrole.dev/v1alpha1/namespaces/{NAMESPACE}/pgroles"
_WRITERS = 16
_READY_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Loading:
    """So many objects were applied, and were all Ready so long after the first request."""

    objects: int
    seconds: float


async def load(stand: Stand, first: int, last: int) -> Loading:
    """Creates the objects of the roles `first` to `last - 1` and waits until all of them are Ready."""
    numbers = iter(range(first, last))
    waiting = {_object_name(number) for number in range(first, last)}
    start = time.monotonic()
    async with _session(stand) as session:
        version = (await _get(session, {"limit": "1"}))["metadata"]["resourceVersion"]
        async with anyio.create_task_group() as tasks:
            for _ in range(_WRITERS):
                tasks.start_soon(_create, session, numbers)
            with anyio.fail_after(_READY_SECONDS):
                async with aclosing(_watch_ready(session, version)) as names:
                    async for name in names:
                        waiting.discard(name)
                        stand.display.advance(f"{len(waiting):,} of {last - first:,} objects are not Ready yet")
                        if not waiting:
                            break
    return Loading(last - first, time.monotonic() - start)


def _object_name(number: int) -> str:
    return f"bench-{number}"


async def _create(session: aiohttp.ClientSession, numbers: Iterator[int]) -> None:
    for number in numbers:
        body = {
            "apiVersion": "pgrole.dev/v1alpha1",
            "kind": "PgRole",
            "metadata": {"name": _object_name(number), "namespace": NAMESPACE},
            "spec": {"name": role_name(number), "login": True, "connectionLimit": 20, "comment": "made to measure"},
        }
        async with session.post(_PATH, json=body) as response:
            response.raise_for_status()


async def _watch_ready(session: aiohttp.ClientSession, version: str) -> AsyncGenerator[str]:
    """The name of each object when it is seen to be Ready for its present generation, again when it changes."""
    while True:  # the server ends the watch of a client that it finds slow
        async with session.get(_PATH, params={"watch": "true", "resourceVersion": version}) as response:
            response.raise_for_status()
            async for line in response.content:
                obj = json.loads(line)["object"]
                version = obj["metadata"]["resourceVersion"]
                if _is_ready(obj):
                    yield obj["metadata"]["name"]


def _is_ready(obj: dict[str, Any]) -> bool:
    status = obj.get("status") or {}
    said = {condition["type"]: condition["status"] for condition in status.get("conditions") or ()}
    return said.get("Ready") == "True" and bool(status["observedGeneration"] == obj["metadata"]["generation"])


async def _get(session: aiohttp.ClientSession, query: dict[str, str]) -> dict[str, Any]:
    async with session.get(_PATH, params=query) as response:
        response.raise_for_status()
        answer: dict[str, Any] = await response.json()
        return answer


@asynccontextmanager
async def _session(stand: Stand) -> AsyncIterator[aiohttp.ClientSession]:
    trust = ssl.create_default_context(cafile=str(stand.api.ca))
    async with aiohttp.ClientSession(
        stand.api.url,
        headers={"Authorization": f"Bearer {stand.api.token}"},
        connector=aiohttp.TCPConnector(ssl=trust),
        timeout=aiohttp.ClientTimeout(total=None, connect=30),
    ) as session:
        yield session
