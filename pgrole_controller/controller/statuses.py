"""Writes the status of PgRoles, beside the visits: no drift waits for the API server.

Expected flow: a visit ends and leaves what is to be said; one of a few writers says it. What a later visit to the same
object found takes the place of what was not written yet. A write that fails is tried again with back-off, at once when
the API server is back.

Guarantees: one write at a time to an object, in the order of its visits; nothing is written onto an object that is of
another generation, or another object, than the one that was visited: its own visit says what is so.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import anyio
from anyio.abc import TaskGroup

from pgrole_controller import logs, metrics
from pgrole_controller.controller.containment import contain
from pgrole_controller.controller.objects import generation_of, server_of
from pgrole_controller.core.backoff import Backoff
from pgrole_controller.core.claim import Claim
from pgrole_controller.core.errors import Reason
from pgrole_controller.core.request import Key
from pgrole_controller.core.status import Outcome, StatusDetails, build_status, of_error
from pgrole_controller.kube.apply import apply_status, unchanged
from pgrole_controller.kube.client import PGROLES, Client
from pgrole_controller.kube.errors import ApiError, BadStream, Unreachable
from pgrole_controller.kube.store import Store, Stored, mapping

log = logging.getLogger(__name__)

#: How many writes are under way at once.
WRITERS = 12

#: Of so many objects it is remembered that their status says what was found last: most are looked at again soon.
STANDING = 256

#: For one write, in seconds.
WRITE_SECONDS = 10.0

#: After a write that failed, in seconds: doubled up to the longest.
FIRST_DELAY = 0.5
LONGEST_DELAY = 60.0
_BACKOFF = Backoff(FIRST_DELAY, LONGEST_DELAY)

#: When the API server is back, until the Lease is renewed: nothing is written before, in seconds.
LEASE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Said:
    """What a visit found, to be said on the object that it was about."""

    stored: Stored
    outcome: Outcome
    claim: Claim | None
    next_rotation: datetime | None
    reported: tuple[str, ...]  # fields that drifted and were left as they are
    visit: str = ""
    withdrawn: bool = False

    @property
    def key(self) -> Key:
        return self.stored.key

    @property
    def content(self) -> tuple[object, ...]:
        """What status is made from, beside the object."""
        return self.outcome, self.claim, self.reported, self.next_rotation


@dataclass(frozen=True, slots=True)
class _Writing:
    """A status to be written onto an object, and the one that it has."""

    stored: Stored
    previous: Mapping[str, Any]
    status: dict[str, Any]


#: What of a status proves whose a role is, where no database does.
_PROOF = ("role", "server")

#: Called with what was written for the first time: the outcome, the conditions before, and the object.
Announce = Callable[[Outcome, Sequence[Mapping[str, Any]], Stored], None]


class Statuses:
    def __init__(self, client: Client, store: Store, announce: Announce) -> None:
        self._client = client
        self._store = store
        self._announce = announce
        self._waiting: dict[Key, Said] = {}
        self._writing: set[Key] = set()
        self._closed = False
        self._failed: dict[Key, tuple[Said, float]] = {}  # what is tried again, and the delay before
        self._standing: OrderedDict[Key, tuple[str, tuple[object, ...]]] = OrderedDict()  # version, content
        self._send, self._receive = anyio.create_memory_object_stream[Key](float("inf"))

    def put(self, said: Said) -> None:
        """Takes the place of what was put for this object before. What says nothing new is done with."""
        if self._closed:
            return
        self._failed.pop(said.key, None)
        if said.key in self._waiting or said.key in self._writing or not self._stands(said):
            self._enqueue(said)

    def forget(self, key: Key) -> None:
        """The object is about to go: nothing is said on it any more."""
        self._failed.pop(key, None)
        self._waiting.pop(key, None)

    def withdraw(self, keys: Iterable[Key], reason: Reason) -> None:
        """What waits to be said of these objects with this reason is no longer so; their next visit says what is."""
        for key in keys:
            said = self._waiting.get(key)
            if said is not None and said.outcome.reason is reason:
                self._waiting[key] = replace(said, withdrawn=True)
            failed, _ = self._failed.get(key, (None, 0.0))
            if failed is not None and failed.outcome.reason is reason:
                del self._failed[key]

    def close(self) -> None:
        """Nothing is put any more: `run` returns when what waits is written."""
        self._closed = True
        self._send.close()

    async def run(self) -> None:
        async with self._receive, anyio.create_task_group() as retries:
            async with anyio.create_task_group() as tasks:
                for _ in range(WRITERS):
                    tasks.start_soon(self._write_each, retries)
            retries.cancel_scope.cancel()

    def _enqueue(self, said: Said) -> None:
        known = said.key in self._waiting or said.key in self._writing
        self._waiting[said.key] = said
        if not known:
            self._send.send_nowait(said.key)

    async def _write_each(self, retries: TaskGroup) -> None:
        async with self._receive.clone() as keys:
            async for key in keys:
                self._writing.add(key)
                try:
                    while (said := self._waiting.pop(key, None)) is not None:
                        with logs.tracing(said.visit):
                            await self._try(said, retries)
                finally:
                    self._writing.discard(key)

    async def _try(self, said: Said, retries: TaskGroup) -> None:
        try:
            with anyio.fail_after(WRITE_SECONDS):
                await self._write(said)
            self._failed.pop(said.key, None)
            return
        except TimeoutError:
            problem, at_least = "no answer in time", 0.0
        except ApiError as error:
            if error.status == 404:  # gone: the watch says so too
                self._failed.pop(said.key, None)
                return
            problem, at_least = str(error), min(error.retry_after or 0.0, LONGEST_DELAY)
        except (Unreachable, BadStream) as error:
            problem, at_least = str(error), 0.0
        except Exception as error:  # noqa: BLE001 -- one object's error
            unexpected = contain(error, said.key)
            if said.outcome.reason is not Reason.INTERNAL_ERROR and said.key not in self._waiting:
                self._enqueue(replace(said, outcome=of_error(unexpected), claim=None, next_rotation=None, reported=()))
            return
        _, last = self._failed.get(said.key, (said, 0.0))
        delay = max(_BACKOFF.longer(last), at_least)
        if last == 0.0:
            log.warning("status not written, trying again", extra={"object": str(said.key), "error": problem})
        if said.key not in self._waiting:
            self._failed[said.key] = (said, delay)
            retries.start_soon(self._put_again, said, delay)

    async def _put_again(self, said: Said, delay: float) -> None:
        with anyio.move_on_after(delay):
            await self._client.reachability.wait_until_back()
            await anyio.sleep(LEASE_SECONDS)
        if self._failed.get(said.key, (None, 0.0))[0] is said and not self._closed:
            self._enqueue(said)

    def _stands(self, said: Said) -> bool:
        """Whether there is nothing to write."""
        try:
            return _has_status(said.stored) and self._compose(said) is None
        except Exception:  # noqa: BLE001 -- contained where it is written
            return False

    def _note_standing(self, stored: Stored, said: Said) -> None:
        """The object, in this version, says what there is to say."""
        self._standing.pop(said.key, None)
        self._standing[said.key] = stored.resource_version, said.content
        if len(self._standing) > STANDING:
            self._standing.popitem(last=False)

    def _compose(self, said: Said) -> _Writing | None:
        """What is to be written now, None for nothing."""
        stored = self._store.get(said.key)
        if said.withdrawn or stored is None or stored.uid != said.stored.uid:
            return None
        if self._standing.get(said.key) == (stored.resource_version, said.content):
            return None
        obj = stored.object()
        generation = generation_of(stored)
        if generation != generation_of(said.stored):
            return None
        previous = mapping(obj.get("status"))
        if said.outcome.reason is Reason.INTERNAL_ERROR:  # what the status holds may be the very reason
            previous = {name: previous[name] for name in _PROOF if isinstance(previous.get(name), dict)}
        standing = StatusDetails(server_of(obj), said.claim, said.reported, said.next_rotation)
        status = build_status(previous, said.outcome, standing, generation, datetime.now(UTC))
        if unchanged(previous, status):
            log.debug("status unchanged", extra={"object": str(said.key), "reason": said.outcome.reason.value})
            self._note_standing(stored, said)
            return None
        return _Writing(stored, previous, status)

    async def _write(self, said: Said) -> None:
        writing = self._compose(said)
        if writing is None:
            return
        stored, previous = writing.stored, writing.previous
        before = previous.get("conditions") or []
        try:
            written = await apply_status(self._client, PGROLES, stored, writing.status)
        except ApiError as error:
            # A definition that came later may refuse the object itself and every status with it: an Event can say it.
            if error.status in (422, 500) and said.key not in self._failed:
                self._announce(said.outcome, before, stored)
            raise
        self._store.put(written, by=stored.key)
        if generation_of(written) == generation_of(said.stored):
            self._note_standing(written, said)
        log.debug("status written", extra={"object": str(said.key), "reason": said.outcome.reason.value})
        for field in said.reported:
            if field not in _reported(previous):
                metrics.DRIFTS.labels(server_of(stored.object()), field, "reported").inc()
        self._announce(said.outcome, before, stored)


def _has_status(stored: Stored) -> bool:
    return bool(stored.object().get("status"))


def standing_fields(fields: tuple[str, ...], outcome: Outcome) -> tuple[str, ...]:
    """The fields that status names as drifted: those of a drift that is only reported."""
    return fields if outcome.reason is Reason.DRIFT_REPORTED else ()


def _reported(status: Mapping[str, Any]) -> Sequence[str]:
    """The fields that were left as they are, as they were said last, if they still stood then."""
    last = status.get("lastDrift") or {}
    drifts = any(said["type"] == "DriftDetected" for said in status.get("conditions") or ())
    return last.get("fields") or () if drifts and not last.get("corrected") else ()
