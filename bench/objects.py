"""Creates thousands of PgRoles as fast as the API server accepts them, and waits until all are Ready."""

import json
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import aiohttp
import anyio

from bench.stand import NAMESPACE, BenchStand, role_name
from pgrole_controller.kube.resource import PGROLES
from pgrole_controller.local.process import reached

PATH = PGROLES.path(NAMESPACE)
_WRITERS = 16
_READY_SECONDS = 600.0
_GONE_SECONDS = 60.0

Spec = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Loading:
    """Seconds from the first request: until the last was posted (`posting`), and until all
    were Ready.
    """

    seconds: float
    posting: float


async def load(stand: BenchStand, first: int, last: int, *, writers: int = _WRITERS) -> Loading:
    """Creates the objects of roles `first` to `last - 1` and waits until all are Ready."""
    return await make(stand, {f"bench-{number}": _spec(number) for number in range(first, last)}, writers=writers)


def _spec(number: int) -> Spec:
    return {"name": role_name(number), "login": True, "connectionLimit": 20, "comment": "made to measure"}


async def make(stand: BenchStand, specs: Mapping[str, Spec], *, writers: int = _WRITERS) -> Loading:
    """Creates the objects, by name, with `writers` in parallel, and waits until all are Ready."""
    waiting = set(specs)
    posted: list[float] = []
    start = time.monotonic()
    async with connect_api(stand) as session:
        version = (await get(session, {"limit": "1"}))["metadata"]["resourceVersion"]
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(_post_timed, session, specs, writers, posted))
            with anyio.fail_after(_READY_SECONDS):
                async with aclosing(_watch_ready(session, version)) as names:
                    async for name in names:
                        waiting.discard(name)
                        stand.display.advance(f"{len(waiting):,} of {len(specs):,} objects are not Ready yet")
                        if not waiting:
                            break
    return Loading(time.monotonic() - start, max(posted, default=start) - start)


async def remove(stand: BenchStand, names: Collection[str]) -> None:
    """Deletes the objects, and waits until they no longer exist."""
    async with connect_api(stand) as session:
        for name in names:
            async with session.delete(f"{PATH}/{name}") as response:
                response.raise_for_status()
        for name in names:
            if not await reached(partial(_is_gone, session, name), _GONE_SECONDS):
                raise AssertionError(f"object {name} is still there after {_GONE_SECONDS:.0f} s")


async def _is_gone(session: aiohttp.ClientSession, name: str) -> bool:
    async with session.get(f"{PATH}/{name}") as response:
        return response.status == 404


async def _post_timed(
    session: aiohttp.ClientSession, specs: Mapping[str, Spec], writers: int, posted: list[float]
) -> None:
    """Posts all objects, then appends the time of the last answer."""
    await post_objects(session, specs, writers)
    posted.append(time.monotonic())


async def post_objects(
    session: aiohttp.ClientSession,
    specs: Mapping[str, Spec],
    writers: int,
    *,
    namespace: str = NAMESPACE,
    posted: Callable[[str], None] = lambda _: None,
) -> None:
    """Creates the objects, by name, with `writers` in parallel. Calls `posted` with the name of each that exists."""
    left = iter(specs.items())
    async with anyio.create_task_group() as tasks:
        for _ in range(writers):
            tasks.start_soon(_post_each, session, left, namespace, posted)


async def _post_each(
    session: aiohttp.ClientSession, left: Iterator[tuple[str, Spec]], namespace: str, posted: Callable[[str], None]
) -> None:
    for name, spec in left:
        body = {
            "apiVersion": PGROLES.api_version,
            "kind": "PgRole",
            "metadata": {"name": name, "namespace": namespace},
            "spec": spec,
        }
        async with session.post(PGROLES.path(namespace), json=body) as response:
            response.raise_for_status()
        posted(name)


async def _watch_ready(session: aiohttp.ClientSession, version: str) -> AsyncGenerator[str]:
    """Yields an object's name whenever it changes and is Ready for its current generation."""
    async with aclosing(watch(session, version)) as objects:
        async for obj in objects:
            if is_ready(obj):
                yield obj["metadata"]["name"]


async def watch(session: aiohttp.ClientSession, version: str) -> AsyncGenerator[dict[str, Any]]:
    """Yields each object whenever it changes after this version."""
    while True:  # the server ends the watch of a client that it finds slow
        async with session.get(PATH, params={"watch": "true", "resourceVersion": version}) as response:
            response.raise_for_status()
            async for line in response.content:
                obj = json.loads(line)["object"]
                version = obj["metadata"]["resourceVersion"]
                yield obj


def is_ready(obj: dict[str, Any]) -> bool:
    status = obj.get("status") or {}
    statuses = {condition["type"]: condition["status"] for condition in status.get("conditions") or ()}
    return statuses.get("Ready") == "True" and bool(status["observedGeneration"] == obj["metadata"]["generation"])


async def get(session: aiohttp.ClientSession, query: dict[str, str]) -> dict[str, Any]:
    """Lists objects."""
    async with session.get(PATH, params=query) as response:
        response.raise_for_status()
        answer: dict[str, Any] = await response.json()
        return answer


@asynccontextmanager
async def connect_api(stand: BenchStand) -> AsyncIterator[aiohttp.ClientSession]:
    trust = ssl.create_default_context(cafile=str(stand.api.ca))
    async with aiohttp.ClientSession(
        stand.api.url,
        headers={"Authorization": f"Bearer {stand.api.token}"},
        connector=aiohttp.TCPConnector(ssl=trust),
        timeout=aiohttp.ClientTimeout(total=None, connect=30),
    ) as session:
        yield session
