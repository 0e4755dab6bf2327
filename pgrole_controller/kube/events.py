"""Events about objects, written in the background.

Guarantees: `record` neither blocks nor raises. Repetitions of (object, reason, note) within six minutes become one
Event with a series. A refused Event is logged and dropped after a second attempt. Up to 2,000 occurrences wait, as
while the API server is unreachable or slow; urgent ones are written first and dropped last. Events in a terminating or
deleted namespace are skipped. The Events of a namespace are written one after the other; a namespace that refuses them,
as a rate limit or an admission webhook does, delays no other. While `quiet` is not set, Events make way for more urgent
requests, each for a few seconds at most.
"""

import logging
import socket
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import anyio

from pgrole_controller import metrics
from pgrole_controller.core.backoff import Backoff
from pgrole_controller.core.request import Key
from pgrole_controller.event_loop import Signal
from pgrole_controller.kube.client import Client
from pgrole_controller.kube.errors import NAMESPACE_GOES, ApiError, Unreachable
from pgrole_controller.kube.event_queue import EventQueue, EventType, Occurrence, SeriesKey
from pgrole_controller.kube.resource import EVENTS, MERGE_PATCH
from pgrole_controller.kube.stored_object import Stored

log = logging.getLogger(__name__)

CONTROLLER = "pgrole.dev/controller"
SERIES_WITHIN = 360.0  # seconds; like client-go
NOTE_LIMIT = 1_024  # bytes, as the API server counts them
NAME_LIMIT = 128
EVENT_NAME_LIMIT = 253
WAITING_LIMIT = 2_000
SERIES_LIMIT = 4_096
RETRY_DELAY = 1.0
RETRY_DELAY_MOST = 30.0
REQUEST_SECONDS = 10.0
_AWAY = Backoff(2.0, 30.0)  # between attempts while the API server cannot be reached
AT_ONCE = 4  # requests
#: Maximum time in seconds that an Event makes way for more urgent requests.
MAKE_WAY_SECONDS = 5.0
_CROWDED_CHECK = 0.2


@dataclass(slots=True)
class _Series:
    namespace: str
    name: str
    count: int
    last: float  # on the recorder's clock


class Recorder:
    """Collects occurrences, and writes them as events.k8s.io/v1 while `run` is running.

    Clear `quiet` while more urgent requests wait, and set it afterwards.
    """

    def __init__(
        self,
        client: Client,
        *,
        instance: str | None = None,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        waiting_limit: int = WAITING_LIMIT,
    ) -> None:
        self.dropped = 0  # since the process started
        self.quiet = Signal()
        self.quiet.set()
        self._client = client
        self._instance = cut(instance or socket.gethostname(), NAME_LIMIT)
        self._clock = clock
        self._now = now
        self._queue = EventQueue(waiting_limit)
        self._lost = 0  # while too many wait
        self._new_namespaces: deque[str] = deque()
        self._changed = Signal()
        self._places = anyio.CapacityLimiter(AT_ONCE)
        self._retrying = anyio.Lock()
        self._accepted = Signal()  # pulsed with each Event that is written
        self._series: OrderedDict[SeriesKey, _Series] = OrderedDict()
        self._closed = False

    def record(
        self,
        regarding: Stored | Mapping[str, Any],
        reason: str,
        note: str,
        *,
        action: str,
        event_type: EventType = "Normal",
        urgent: bool = False,
    ) -> None:
        """Queues an occurrence. `regarding` is the object, or a reference with apiVersion, kind, name, uid and, if any,
        namespace.

        `reason` and `action` are CamelCase words. `note` must not contain secrets; it is truncated. `urgent`: as in
        Occurrence.
        """
        reference = _refer(regarding) if isinstance(regarding, Stored) else dict(regarding)
        at = self._now().astimezone(UTC)
        occurrence = Occurrence(
            reference, event_type, reason, action, cut(note, NOTE_LIMIT), at, self._clock(), urgent=urgent
        )
        if self._closed:
            self._drop(occurrence, "the queue is closed")
        else:
            self._enqueue(occurrence)

    def _enqueue(self, occurrence: Occurrence) -> None:
        if occurrence.namespace not in self._queue:
            self._new_namespaces.append(occurrence.namespace)
            self._changed.set()
        lost = self._queue.put(occurrence)
        if lost is None:
            return
        if not self._lost:
            log.warning("event queue full, dropping events", extra={"namespace": lost.namespace})
        self._lost += 1
        self._count_dropped()

    @property
    def crowded(self) -> bool:
        """As in EventQueue: callers that can wait should record later."""
        return self._queue.crowded

    def close(self) -> None:
        """Accepts nothing more; `run` returns once everything queued is written."""
        self._closed = True
        self._changed.set()

    async def run(self) -> None:
        """Writes until closed or cancelled."""
        async with anyio.create_task_group() as tasks:
            while self._new_namespaces or not self._closed:
                self._changed.clear()
                while self._new_namespaces:
                    tasks.start_soon(self._write_namespace, self._new_namespaces.popleft())
                if not self._closed:
                    await self._changed.wait()

    async def _write_namespace(self, namespace: str) -> None:
        """Writes what waits for one namespace, and ends when nothing does."""
        while (first := self._queue.find_next(namespace)) is not None:
            await self._make_way(first)
            taken = self._queue.take_next(namespace)
            if taken is None:
                return
            if self._lost and not self.crowded:
                log.warning("event queue was full, events dropped", extra={"count": self._lost})
                self._lost = 0
            await self._write(taken)

    async def _make_way(self, occurrence: Occurrence) -> None:
        """Waits until nothing more urgent is to be written, or this must wait no longer."""
        while not (self.quiet.is_set() or self._closed or self.crowded):
            left = occurrence.recorded + MAKE_WAY_SECONDS - self._clock()
            if left <= 0:
                return
            with anyio.move_on_after(min(left, _CROWDED_CHECK)):
                await self.quiet.wait()

    async def _write(self, occurrence: Occurrence) -> None:
        """Writes one occurrence. While the API server is unreachable, it waits and reports it afterwards."""
        attempt, away = 0, 0.0
        while True:
            attempt += 1
            try:
                async with self._places:
                    await self._create_or_count(occurrence)
            except Unreachable:
                attempt, away = 0, _AWAY.longer(away)
                with anyio.move_on_after(away):
                    await self._client.reachability.wait_until_back()
            except ApiError as error:
                if NAMESPACE_GOES in error.causes:
                    log.info("event skipped: namespace is terminating", extra=_name(occurrence))
                    return
                if error.status == 404:
                    log.info("event skipped: namespace is deleted", extra=_name(occurrence))
                    return
                # 403: an API server that starts refuses everyone until it has read its RBAC rules
                if attempt >= 2 or (error.status not in (403, 429) and error.status < 500):
                    self._drop(occurrence, str(error))
                    return
                await anyio.sleep(min(error.retry_after or RETRY_DELAY, RETRY_DELAY_MOST))
                await self._wait_for_turn()
            else:
                self._accepted.pulse()
                return

    async def _wait_for_turn(self) -> None:
        """Before a second attempt: while the API server refuses everything, only one Event a second is lost."""
        async with self._retrying:
            with anyio.move_on_after(RETRY_DELAY):
                await self._accepted.wait()

    async def _create_or_count(self, occurrence: Occurrence) -> None:
        series = self._series.get(occurrence.series)
        if series is not None and self._clock() - series.last < SERIES_WITHIN:
            try:
                await self._count(series, occurrence)
            except ApiError as error:
                if error.status != 404:
                    raise
            else:
                return
        await self._create(occurrence)

    async def _count(self, series: _Series, occurrence: Occurrence) -> None:
        count = series.count + occurrence.count
        await self._client.request(
            "PATCH",
            EVENTS.path(series.namespace, series.name),
            body={"series": {"count": count, "lastObservedTime": micro_time(occurrence.at)}},
            content_type=MERGE_PATCH,
            timeout=REQUEST_SECONDS,
        )
        series.count, series.last = count, self._clock()
        self._series.move_to_end(occurrence.series)

    async def _create(self, occurrence: Occurrence) -> None:
        regarding = occurrence.regarding
        namespace = occurrence.namespace
        at = micro_time(occurrence.at)
        name = name_event(str(regarding["name"]), time.time_ns())
        body: dict[str, Any] = {
            "apiVersion": EVENTS.api_version,
            "kind": "Event",
            "metadata": {"name": name, "namespace": namespace},
            "eventTime": at,
            "reportingController": CONTROLLER,
            "reportingInstance": self._instance,
            "action": cut(occurrence.action, NAME_LIMIT),
            "reason": cut(occurrence.reason, NAME_LIMIT),
            "regarding": dict(regarding),
            "note": occurrence.note,
            "type": occurrence.event_type,
        }
        if occurrence.count > 1:
            body["series"] = {"count": occurrence.count, "lastObservedTime": at}
        await self._client.request("POST", EVENTS.path(namespace), body=body, timeout=REQUEST_SECONDS)
        self._series[occurrence.series] = _Series(namespace, name, occurrence.count, self._clock())
        self._series.move_to_end(occurrence.series)
        while len(self._series) > SERIES_LIMIT:
            self._series.popitem(last=False)

    def _drop(self, occurrence: Occurrence, cause: str) -> None:
        self._count_dropped()
        log.warning("event dropped", extra={**_name(occurrence), "cause": cause})

    def _count_dropped(self) -> None:
        self.dropped += 1
        metrics.EVENTS_DROPPED.inc()


def _name(occurrence: Occurrence) -> dict[str, Any]:
    about = Key(str(occurrence.regarding.get("namespace") or ""), str(occurrence.regarding.get("name")))
    return {"object": str(about), "reason": occurrence.reason}


def name_event(name: str, number: int) -> str:
    """Returns a valid name for an Event about an object with this name."""
    suffix = f".{number:x}"
    return name[: EVENT_NAME_LIMIT - len(suffix)].rstrip("-.") + suffix


def micro_time(at: datetime) -> str:
    """Formats RFC 3339 in UTC with exactly six digits, as metav1.MicroTime requires."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def cut(text: str, limit: int) -> str:
    """Truncates to at most `limit` bytes of UTF-8, with an ellipsis if anything is cut."""
    encoded = text.encode(errors="replace")
    if len(encoded) <= limit:
        return encoded.decode()
    return encoded[: limit - 3].decode(errors="ignore") + "…"


def _refer(stored: Stored) -> dict[str, Any]:
    read = stored.object()
    reference = {
        "apiVersion": read.get("apiVersion", ""),
        "kind": read.get("kind", ""),
        "name": stored.key.name,
        "uid": stored.uid,
        "resourceVersion": stored.resource_version,
    }
    if stored.key.namespace:
        reference["namespace"] = stored.key.namespace
    return reference
