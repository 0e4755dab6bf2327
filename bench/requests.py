"""Measures the CPU that one status write costs: server-side apply by the controller's client, and by a bare connection.

Both send the object's current status with another lastTransitionTime, and read the answer. CPU is that of this process,
without the API server's.
"""

import asyncio
import json
import re
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

from bench.stand import NAMESPACE, BenchStand
from pgrole_controller.kube.client import Client
from pgrole_controller.kube.resource import APPLY, PGROLES
from pgrole_controller.kube.server_side_apply import MANAGER, apply_status
from pgrole_controller.kube.stored_object import pack
from pgrole_controller.kube.unvalidated import parse

_REQUESTS = 300
_WARM_UP = 20
_OBJECT = "bench-0"

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def measure_request(stand: BenchStand) -> float:
    """Mean CPU in milliseconds of many sequential requests. Needs the object `bench-0`, and no controller."""
    used = 0.0
    async with Client.connect(str(stand.api.kubeconfig)) as client:
        stored = pack(parse(await client.request("GET", PGROLES.path(NAMESPACE, _OBJECT))))
        for turn in range(_WARM_UP + _REQUESTS):
            status = _changed(stored.object()["status"], turn)
            before = time.process_time()
            stored = await apply_status(client, PGROLES, stored, status)
            used += time.process_time() - before if turn >= _WARM_UP else 0.0
    return 1000 * used / _REQUESTS


async def measure_bare_request(stand: BenchStand) -> float:
    """Sends the same bytes, made beforehand, through a plain connection."""
    read = await stand.api.request("GET", PGROLES.path(NAMESPACE, _OBJECT))
    used = 0.0
    async with connect_bare(stand) as streams:
        for turn in range(_WARM_UP + _REQUESTS):
            request = _request(stand, read, _changed(read["status"], turn))
            before = time.process_time()
            status, body = await send_bare(streams, request)
            used += time.process_time() - before if turn >= _WARM_UP else 0.0
            if status != 200 or json.loads(body)["metadata"]["uid"] != read["metadata"]["uid"]:
                raise AssertionError(f"the API server answered {status}: {body[:500]!r}")
    return 1000 * used / _REQUESTS


def _changed(status: dict[str, Any], turn: int) -> dict[str, Any]:
    """Changes the status without changing its meaning: the API server must write it, but the controller will not
    react.
    """
    moment = f"2026-01-01T{turn // 60:02}:{turn % 60:02}:00Z"
    return {**status, "conditions": [{**one, "lastTransitionTime": moment} for one in status["conditions"]]}


def _request(stand: BenchStand, read: dict[str, Any], status: dict[str, Any]) -> bytes:
    metadata = {"name": _OBJECT, "namespace": NAMESPACE, "uid": read["metadata"]["uid"]}
    sent = {"apiVersion": read["apiVersion"], "kind": read["kind"], "metadata": metadata, "status": status}
    path = f"{PGROLES.path(NAMESPACE, _OBJECT, 'status')}?fieldManager={MANAGER}&force=true"
    return compose_request(stand, "PATCH", path, sent, APPLY)


def compose_request(stand: BenchStand, method: str, target: str, sent: dict[str, Any], content_type: str) -> bytes:
    """The bytes of a request to the API server. `target`: path and query."""
    body = json.dumps(sent).encode()
    lines = (
        f"{method} {target} HTTP/1.1",
        f"Host: {urlsplit(stand.api.url).netloc}",
        f"Authorization: Bearer {stand.api.token}",
        f"Content-Type: {content_type}",
        "Accept: application/json",
        f"Content-Length: {len(body)}",
    )
    return "\r\n".join((*lines, "", "")).encode() + body


async def send_bare(streams: Streams, request: bytes) -> tuple[int, bytes]:
    """Sends a request; returns status and body of the answer."""
    reader, writer = streams
    writer.write(request)
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    length = re.search(r"^content-length: (\d+)\r$", head, re.IGNORECASE | re.MULTILINE)
    if length is None:
        raise AssertionError(f"an answer without a length: {head}")
    return int(head.split()[1]), await reader.readexactly(int(length[1]))


@asynccontextmanager
async def connect_bare(stand: BenchStand) -> AsyncIterator[Streams]:
    """A connection to the API server, without an HTTP client."""
    address = urlsplit(stand.api.url)
    trust = ssl.create_default_context(cafile=str(stand.api.ca))
    reader, writer = await asyncio.open_connection(address.hostname, address.port, ssl=trust)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()
