"""Measures the floor of applying many objects: what the same requests to the API server take without a controller.

For each object the controller writes a status and an Event. Here bare connections send both as soon as the object is
posted, so that the rest of the time that applying takes is the controller's and PostgreSQL's.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream

from bench.objects import connect_api, post_objects
from bench.requests import compose_request, connect_bare, send_bare
from bench.stand import BenchStand, role_name
from pgrole_controller.kube.resource import APPLY, EVENTS, JSON, PGROLES
from pgrole_controller.local.manifests import create_namespace

_NAMESPACE = "bench-floor"

#: As many connections as the controller has.
_STATUS_WRITERS = 12
_EVENT_WRITERS = 1

_MOMENT = "2026-01-01T00:00:00Z"

#: The bytes of the request about the object of this name.
Compose: TypeAlias = Callable[[BenchStand, str], bytes]


@dataclass(frozen=True, slots=True)
class Posting:
    """Seconds for a number of objects: until all were posted, and until each also had a status and an Event."""

    alone: float
    written: float

    def __str__(self) -> str:
        return (
            f"without a controller: posted in {self.alone:.2f} s; with a status and an Event each {self.written:.2f} s"
        )


async def measure_posting(stand: BenchStand, objects: int, clients: int) -> Posting:
    """Needs a stand without a running controller. Leaves no objects."""
    await create_namespace(stand.api, _NAMESPACE)
    return Posting(await _measure(stand, objects, clients), await _measure(stand, objects, clients, writing=True))


async def _measure(stand: BenchStand, objects: int, clients: int, *, writing: bool = False) -> float:
    names = [f"bench-{number}" for number in range(objects)]
    specs = {name: {"name": role_name(number)} for number, name in enumerate(names)}
    send_status, statuses = anyio.create_memory_object_stream[str](float("inf"))
    send_event, events = anyio.create_memory_object_stream[str](float("inf"))

    def note(name: str) -> None:
        if writing:
            send_status.send_nowait(name)
            send_event.send_nowait(name)

    async with connect_api(stand) as session:
        start = time.monotonic()
        async with anyio.create_task_group() as writers, statuses, events:
            for _ in range(_STATUS_WRITERS if writing else 0):
                writers.start_soon(_write_each, stand, statuses.clone(), _compose_status)
            for _ in range(_EVENT_WRITERS if writing else 0):
                writers.start_soon(_write_each, stand, events.clone(), _compose_event)
            async with send_status, send_event:
                await post_objects(session, specs, clients, namespace=_NAMESPACE, posted=note)
        took = time.monotonic() - start
        async with session.delete(PGROLES.path(_NAMESPACE)) as response:
            response.raise_for_status()
    return took


async def _write_each(stand: BenchStand, names: MemoryObjectReceiveStream[str], compose: Compose) -> None:
    async with names, connect_bare(stand) as streams:
        async for name in names:
            status, body = await send_bare(streams, compose(stand, name))
            if not 200 <= status <= 299:
                raise AssertionError(f"the API server answered {status}: {body[:500]!r}")


def _compose_status(stand: BenchStand, name: str) -> bytes:
    condition = {
        "type": "Ready",
        "status": "True",
        "reason": "Reconciled",
        "message": "the role matches the spec",
        "observedGeneration": 1,
        "lastTransitionTime": _MOMENT,
    }
    status = {
        "observedGeneration": 1,
        "conditions": [condition],
        "role": {"name": name, "oid": 16_384, "applied": "0" * 64},
        "server": {"name": "default", "systemIdentifier": "7000000000000000000"},
        "driftCount": 0,
    }
    body = {
        "apiVersion": PGROLES.api_version,
        "kind": "PgRole",
        "metadata": {"name": name, "namespace": _NAMESPACE},
        "status": status,
    }
    path = f"{PGROLES.path(_NAMESPACE, name, 'status')}?fieldManager=bench&force=true"
    return compose_request(stand, "PATCH", path, body, APPLY)


def _compose_event(stand: BenchStand, name: str) -> bytes:
    body = {
        "apiVersion": EVENTS.api_version,
        "kind": "Event",
        "metadata": {"name": f"{name}.{time.time_ns():x}", "namespace": _NAMESPACE},
        "eventTime": "2026-01-01T00:00:00.000000Z",
        "reportingController": "pgrole.dev/bench",
        "reportingInstance": "bench",
        "action": "Create",
        "reason": "RoleCreated",
        "regarding": {
            "apiVersion": PGROLES.api_version,
            "kind": "PgRole",
            "name": name,
            "namespace": _NAMESPACE,
        },
        "note": "created the role",
        "type": "Normal",
    }
    return compose_request(stand, "POST", EVENTS.path(_NAMESPACE), body, JSON)
