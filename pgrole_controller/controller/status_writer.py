"""Writes the status of PgRoles beside the reconciles, so that no drift waits for the API server.

Expected flow: a reconcile leaves its outcome; one of a few writers writes it. The outcome of a later reconcile of the
same object replaces one that is not written yet. A write that fails is repeated with back-off, and at once when the
API server is back.

Guarantees: one write at a time to an object, in the order of its reconciles; nothing is written to an object that was
replaced, or has another generation than the one that was reconciled: its own reconcile reports it, with the drifts that
were not written. A namespace whose writes are not answered in time delays no other.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import anyio
from anyio.abc import TaskGroup

from pgrole_controller import logs, metrics
from pgrole_controller.controller.containment import contain
from pgrole_controller.controller.fair_queue import FairQueue
from pgrole_controller.controller.objects import generation_of, server_of
from pgrole_controller.core.backoff import Backoff
from pgrole_controller.core.claim import Claim
from pgrole_controller.core.errors import Reason
from pgrole_controller.core.outcome import Outcome, of_error
from pgrole_controller.core.request import Key
from pgrole_controller.core.status import StatusDetails, build_status, find_reported
from pgrole_controller.event_loop import Signal
from pgrole_controller.kube.client import Client
from pgrole_controller.kube.errors import ApiError, BadStream, Unreachable
from pgrole_controller.kube.resource import PGROLES
from pgrole_controller.kube.server_side_apply import apply_status, unchanged
from pgrole_controller.kube.store import Store
from pgrole_controller.kube.stored_object import Stored
from pgrole_controller.kube.unvalidated import mapping, whole

log = logging.getLogger(__name__)

#: Maximum number of concurrent writes.
WRITERS = 12

#: Maximum number of objects whose status is remembered as current: most are reconciled again soon.
STANDING = 512

#: Timeout of one write, in seconds.
WRITE_SECONDS = 10.0

#: Pause after a failed write, in seconds: doubled up to the longest.
FIRST_DELAY = 0.5
LONGEST_DELAY = 60.0
_BACKOFF = Backoff(FIRST_DELAY, LONGEST_DELAY)

#: Time until the Lease is renewed after the API server is back, in seconds: nothing is written before.
LEASE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class PendingStatus:
    """The outcome of a reconcile, to be written to its object."""

    stored: Stored
    outcome: Outcome
    details: StatusDetails = field(default_factory=StatusDetails)
    reconcile_id: str = ""
    withdrawn: bool = False

    @property
    def key(self) -> Key:
        return self.stored.key

    def following(self, before: "PendingStatus") -> "PendingStatus":
        """Returns this one, to be written instead of one that was not."""
        if before.stored.uid != self.stored.uid:
            return self
        return replace(self, details=self.details.following(before.details))

    @property
    def content(self) -> tuple[Outcome, StatusDetails]:
        """Everything that status is made from, besides the object."""
        return self.outcome, self.details


@dataclass(frozen=True, slots=True)
class _StatusWrite:
    """A status to be written onto an object, and the one that it has."""

    stored: Stored
    previous: Mapping[str, Any]
    status: dict[str, Any]


#: Fields that the CRDs of 0.2.0 lack. The API server refuses a status with them until the CRDs are upgraded.
_LATER = ("driftHistory", "privileges", "approval")
_LATER_IN_DRIFT = ("database", "details", "by")
_NOT_DECLARED = "not declared in schema"
#: How long they are left out after such a refusal, in seconds.
OLDER_CRDS_SECONDS = 60.0

#: Answers that may stand however often the write is repeated.
_REFUSALS = (403, 413, 422, 500)

#: Fields of status that prove ownership of a role where no database does.
_PROOF = ("role", "server")

#: Called with what was written for the first time: the outcome, the conditions before, and the object.
Announce = Callable[[Outcome, Sequence[Mapping[str, Any]], Stored], None]


class StatusWriter:
    """`idle`: set while no status waits to be written, except in namespaces that are not answered."""

    def __init__(self, client: Client, store: Store, announce: Announce, idle: Signal) -> None:
        self._client = client
        self._store = store
        self._announce = announce
        self._waiting: dict[Key, PendingStatus] = {}
        self._queued: set[Key] = set()  # in the queue, or being written
        self._closed = False
        self._failed: dict[Key, tuple[PendingStatus, float]] = {}  # what to write again, and after how long
        self._older_crds_until = 0.0
        self._standing: OrderedDict[Key, tuple[str, tuple[Outcome, StatusDetails]]] = OrderedDict()  # version, content
        self._queue = FairQueue[Key](idle)

    def put(self, pending: PendingStatus) -> None:
        """Replaces what was put for this object before. Skips the write if the status is current."""
        if self._closed:
            return
        failed, _ = self._failed.pop(pending.key, (None, 0.0))
        before = self._waiting.get(pending.key, failed)
        if before is not None:
            pending = pending.following(before)
        if pending.key in self._queued or not self._stands(pending):
            self._enqueue(pending)

    def forget(self, key: Key) -> None:
        """Forgets an object that is about to be deleted: its status is no longer written."""
        self._failed.pop(key, None)
        self._waiting.pop(key, None)

    def withdraw(self, keys: Iterable[Key], reason: Reason) -> None:
        """Drops unwritten statuses with this reason: the next reconciles of these objects report."""
        for key in keys:
            pending = self._waiting.get(key)
            if pending is not None and pending.outcome.reason is reason:
                self._waiting[key] = replace(pending, withdrawn=True)
            failed, _ = self._failed.get(key, (None, 0.0))
            if failed is not None and failed.outcome.reason is reason:
                self._drop(failed)

    def _drop(self, pending: PendingStatus) -> None:
        """Writes it no more, but keeps the drifts that no status has for the next one."""
        self._failed.pop(pending.key, None)
        if pending.details.has_drifts:
            self._failed[pending.key] = (replace(pending, withdrawn=True), 0.0)

    def close(self) -> None:
        """Accepts nothing more; `run` returns when everything is written."""
        self._closed = True
        self._queue.close()

    async def run(self) -> None:
        async with anyio.create_task_group() as retries:
            async with anyio.create_task_group() as tasks:
                for _ in range(WRITERS):
                    tasks.start_soon(self._queue.serve, partial(self._write_key, retries))
            retries.cancel_scope.cancel()

    def _enqueue(self, pending: PendingStatus) -> None:
        self._waiting[pending.key] = pending
        if pending.key not in self._queued:
            self._queued.add(pending.key)
            self._queue.put(pending.key.namespace, pending.key)

    async def _write_key(self, retries: TaskGroup, key: Key) -> bool:
        """Writes what waits for this object. Returns whether the API server answered in time."""
        answered = True
        try:
            while (pending := self._waiting.pop(key, None)) is not None:
                with logs.tracing(pending.reconcile_id):
                    answered = await self._try(pending, retries)
        finally:
            self._queued.discard(key)
        return answered

    async def _try(self, pending: PendingStatus, retries: TaskGroup) -> bool:
        """Returns whether the API server answered in time."""
        answered = True
        if pending.withdrawn:
            self._drop(pending)
            return True
        try:
            if self._is_outdated(pending):
                self._drop(pending)
                return True
            with anyio.fail_after(WRITE_SECONDS):
                await self._write(pending)
            self._failed.pop(pending.key, None)
            return True
        except TimeoutError:
            answered, problem, at_least = False, "no answer in time", 0.0
        except ApiError as error:
            if error.status == 404:  # gone, as the watch reports too
                self._failed.pop(pending.key, None)
                return True
            problem, at_least = str(error), min(error.retry_after or 0.0, LONGEST_DELAY)
        except (Unreachable, BadStream) as error:
            problem, at_least = str(error), 0.0
        except Exception as error:  # noqa: BLE001 -- one object's error
            unexpected = contain(error, pending.key)
            if pending.outcome.reason is not Reason.INTERNAL_ERROR and pending.key not in self._waiting:
                self._enqueue(PendingStatus(pending.stored, of_error(unexpected), reconcile_id=pending.reconcile_id))
            return True
        _, last = self._failed.get(pending.key, (pending, 0.0))
        delay = max(_BACKOFF.longer(last), at_least)
        if last == 0.0:
            log.warning("status not written, trying again", extra={"object": str(pending.key), "error": problem})
        if pending.key in self._waiting:
            self._waiting[pending.key] = self._waiting[pending.key].following(pending)
        else:
            self._failed[pending.key] = (pending, delay)
            retries.start_soon(self._put_again, pending, delay)
        return answered

    async def _put_again(self, pending: PendingStatus, delay: float) -> None:
        with anyio.move_on_after(delay):
            await self._client.reachability.wait_until_back()
            await anyio.sleep(LEASE_SECONDS)
        if self._failed.get(pending.key, (None, 0.0))[0] is pending and not self._closed:
            self._enqueue(pending)

    def _stands(self, pending: PendingStatus) -> bool:
        """Whether there is nothing to write."""
        try:
            if not _reports_generation(pending.stored) or self._is_outdated(pending):
                return False
            return self._compose(pending) is None
        except Exception:  # noqa: BLE001 -- contained where it is written
            return False

    def _is_outdated(self, pending: PendingStatus) -> bool:
        """Whether the object has another generation by now: its own reconcile reports it."""
        stored, seen = self._store.get(pending.key), pending.stored
        return stored is not None and stored.uid == seen.uid and generation_of(stored) != generation_of(seen)

    def _note_standing(self, stored: Stored, pending: PendingStatus) -> None:
        """Notes that the object's status is current in this version, unless it lacks what the CRDs do not have yet."""
        if anyio.current_time() < self._older_crds_until:
            return
        self._standing.pop(pending.key, None)
        self._standing[pending.key] = stored.resource_version, pending.content
        if len(self._standing) > STANDING:
            self._standing.popitem(last=False)

    def _compose(self, pending: PendingStatus) -> _StatusWrite | None:
        """Returns what to write now, None for nothing. `pending` must not be outdated."""
        stored = self._store.get(pending.key)
        if stored is None or stored.uid != pending.stored.uid:
            return None
        if self._standing.get(pending.key) == (stored.resource_version, pending.content):
            return None
        obj = stored.object()
        generation = generation_of(stored)
        previous = mapping(obj.get("status"))
        if pending.outcome.reason is Reason.INTERNAL_ERROR:  # what the status holds may be the very reason
            previous = {name: previous[name] for name in _PROOF if isinstance(previous.get(name), dict)}
        now = datetime.now(UTC)
        status = build_status(previous, pending.outcome, pending.details, server_of(obj), generation, now)
        if anyio.current_time() < self._older_crds_until:
            status = _without_later_fields(status)
        if unchanged(previous, status):
            log.debug("status unchanged", extra={"object": str(pending.key), "reason": pending.outcome.reason.value})
            self._note_standing(stored, pending)
            return None
        return _StatusWrite(stored, previous, status)

    async def _write(self, pending: PendingStatus) -> None:
        writing = self._compose(pending)
        if writing is None:
            return
        stored, previous = writing.stored, writing.previous
        before = previous.get("conditions") or []
        try:
            written = await self._apply(stored, writing.status)
        except ApiError as error:
            # The right is missing, or a newer definition refuses the object and thus every status: an Event can tell.
            if error.status in _REFUSALS and pending.key not in self._failed:
                self._announce(pending.outcome, before, stored)
            raise
        self._store.put(written, by=stored.key)
        if generation_of(written) == generation_of(pending.stored):
            self._note_standing(written, pending)
        log.debug("status written", extra={"object": str(pending.key), "reason": pending.outcome.reason.value})
        for name in pending.details.reported:
            if name not in find_reported(previous):
                metrics.count_reported_drift(server_of(stored.object()), name)
        self._announce(pending.outcome, before, stored)

    async def _apply(self, stored: Stored, status: dict[str, Any]) -> Stored:
        """Applies the status, without the fields of this release where the CRDs are those of the previous one."""
        try:
            return await apply_status(self._client, PGROLES, stored, status)
        except ApiError as error:
            known = _without_later_fields(status)
            if _NOT_DECLARED not in str(error) or known == status:
                raise
            self._older_crds_until = anyio.current_time() + OLDER_CRDS_SECONDS
            log.warning("status without the fields of this release: upgrade the CRDs", extra={"error": str(error)})
            return await apply_status(self._client, PGROLES, stored, known)


def _without_later_fields(status: dict[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in status.items() if name not in _LATER}
    if "lastDrift" in kept:
        kept["lastDrift"] = {name: value for name, value in kept["lastDrift"].items() if name not in _LATER_IN_DRIFT}
    return kept


def _reports_generation(stored: Stored) -> bool:
    """Whether status is of the object's generation: if not, it must be written, whatever it says."""
    return whole(mapping(stored.object().get("status")).get("observedGeneration")) == generation_of(stored)


def is_about(status: Mapping[str, Any], generation: int, claim: Claim | None) -> bool:
    """Whether this status is about the generation and about the role of this claim."""
    if claim is None or whole(status.get("observedGeneration")) != generation or not status.get("conditions"):
        return False
    told = mapping(status.get("role")).get("oid"), mapping(status.get("server")).get("systemIdentifier")
    return told == (claim.role_oid, str(claim.system_identifier))
