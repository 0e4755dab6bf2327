"""Says on Kubernetes what a visit found: Events, status, finalizer.

Status is written beside the visits (`Statuses`), so the key is free for its next visit at once. What the next visit
depends on, a finalizer or an errand, is done first, a few at once.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import anyio

from pgrole_controller import logs
from pgrole_controller.controller.containment import contain
from pgrole_controller.controller.errands import Errands
from pgrole_controller.controller.objects import Objects
from pgrole_controller.controller.queue import Queue
from pgrole_controller.controller.reconcile import Finding
from pgrole_controller.controller.statuses import Said, Statuses, standing_fields
from pgrole_controller.core.errors import Reason
from pgrole_controller.core.plan import Action
from pgrole_controller.core.request import Key
from pgrole_controller.core.status import Outcome, of_error
from pgrole_controller.core.workqueue import Done, NextAttempt, Retry, RetryAfter
from pgrole_controller.kube.apply import FINALIZER, apply_finalizer
from pgrole_controller.kube.client import PGROLES, Client
from pgrole_controller.kube.errors import ApiError, BadStream, Unreachable
from pgrole_controller.kube.events import Recorder
from pgrole_controller.kube.store import Stored

log = logging.getLogger(__name__)

#: How many finalizers and errands are under way at once.
WRITERS = 12

#: For what the next visit to one object depends on, in seconds.
WRITE_SECONDS = 10.0

#: After a write that the API server did not take, in seconds; its own back-off guards the server.
UNREACHABLE_AGAIN = 3.0
CONFLICT_AGAIN = 0.5

#: After a change of ours, in seconds: longer than `observe` needs to look again. A drift that puts back, before that,
#: what `observe` saw last is no change to it, and nothing tells of it.
CONFIRM_AGAIN = 2.0

_EVENTS = {
    Action.CREATED: ("RoleCreated", "Create", "created the role"),
    Action.ADOPTED: ("RoleAdopted", "Adopt", "adopted the existing role"),
    Action.CHANGED: ("RoleChanged", "Alter", "altered the role"),
    Action.CORRECTED: ("DriftCorrected", "Correct", "corrected drift"),
    Action.ROTATED: ("PasswordRotated", "Rotate", "generated and set a new password"),
    Action.DROPPED: ("RoleDropped", "Drop", "dropped the role"),
    Action.RECLAIMED: ("ClaimRestored", "Claim", "restored the claim on the role, which was missing from the database"),
}

_WITHOUT_FIELDS = (Action.CREATED, Action.DROPPED, Action.ROTATED)


class Reporter:
    def __init__(self, client: Client, objects: Objects, queue: Queue, recorder: Recorder, errands: Errands) -> None:
        self._objects = objects
        self._errands = errands
        self._client = client
        self._store = objects.store
        self._queue = queue
        self._recorder = recorder
        self._unconfirmed: dict[Key, float] = {}  # when what we changed is to be looked at once more
        self._statuses = Statuses(client, objects.store, self._record_outcome)
        self._send, self._receive = anyio.create_memory_object_stream[tuple[str, Finding]](float("inf"))

    def report(self, finding: Finding) -> None:
        """Takes the finding of a visit, whose id is the one of the log here, and ends the visit. Never raises."""
        try:
            self._take(finding)
        except Exception as error:  # noqa: BLE001 -- one object's error
            self._say_unexpected(error, finding)
            self._end(finding, Retry())

    def _take(self, finding: Finding) -> None:
        self._doubt(finding)
        stored, outcome = finding.request.stored, finding.outcome
        if stored is not None:
            self._record_action(finding, stored)
        if stored is None or outcome is None or _is_first(finding):
            self._send.send_nowait((logs.current_visit(), finding))
            return
        reported = standing_fields(finding.fields, outcome)
        self._statuses.put(Said(stored, outcome, finding.claim, finding.next_rotation, reported, logs.current_visit()))
        self._end(finding, _next_visit(finding, outcome))

    def withdraw(self, keys: Iterable[Key], reason: Reason) -> None:
        """What is not yet written with this reason is no longer so, and these objects are about to be visited."""
        self._statuses.withdraw(keys, reason)

    def close(self) -> None:
        """No more findings: `run` returns when those that it has are written."""
        self._send.close()
        self._statuses.close()

    async def run(self) -> None:
        async with self._receive, anyio.create_task_group() as tasks:
            tasks.start_soon(self._statuses.run)
            for _ in range(WRITERS):
                tasks.start_soon(self._write_each)

    def _end(self, finding: Finding, result: NextAttempt) -> None:
        result = self._confirm(finding.key, result)
        log.debug("reconcile ends", extra={"object": str(finding.key), **_describe(result)})
        self._queue.done(finding.key, result)

    async def _write_each(self) -> None:
        async with self._receive.clone() as findings:
            async for visit, finding in findings:
                with logs.tracing(visit):
                    self._end(finding, await self._write(finding))

    def _doubt(self, finding: Finding) -> None:
        """After a look: whether there is one to come. A request that is answered before that does not take its
        place.
        """
        now = anyio.current_time()
        if finding.request.stored is None or finding.done_with:
            self._unconfirmed.pop(finding.key, None)
        elif _is_unconfirmed(finding):
            self._unconfirmed[finding.key] = now + CONFIRM_AGAIN
        elif self._unconfirmed.get(finding.key, now) <= now:
            self._unconfirmed.pop(finding.key, None)

    def _confirm(self, key: Key, result: NextAttempt) -> NextAttempt:
        if key not in self._unconfirmed or isinstance(result, Retry):
            return result
        seconds = max(self._unconfirmed[key] - anyio.current_time(), 0.0)
        return RetryAfter(min(result.seconds, seconds) if isinstance(result, RetryAfter) else seconds)

    async def _write(self, finding: Finding) -> NextAttempt:
        """Writes it, and says when the key is to be looked at again."""
        stored = finding.request.stored
        if stored is None:
            # What the object left behind is to be released, however often that fails.
            return Retry() if finding.outcome and finding.outcome.retried else Done()
        try:
            with anyio.fail_after(WRITE_SECONDS):
                return await self._write_object(finding, stored)
        except TimeoutError:
            log.warning("write not answered by the API server", extra={"object": str(finding.key)})
            return RetryAfter(UNREACHABLE_AGAIN)
        except ApiError as error:
            if error.status == 404:
                return Done()  # gone: the watch says so too
            if error.status == 409:
                return RetryAfter(CONFLICT_AGAIN)
            log.warning("write refused by the API server", extra={"object": str(finding.key), "error": str(error)})
            return RetryAfter(error.retry_after) if error.retry_after else Retry()
        except (Unreachable, BadStream) as error:
            log.warning("write did not reach the API server", extra={"object": str(finding.key), "error": str(error)})
            return RetryAfter(UNREACHABLE_AGAIN)
        except Exception as error:  # noqa: BLE001 -- one object's error
            self._say_unexpected(error, finding)
            return Retry()

    def _say_unexpected(self, error: Exception, finding: Finding) -> None:
        outcome = of_error(contain(error, finding.key))
        if finding.request.stored is not None:
            self._statuses.put(Said(finding.request.stored, outcome, None, None, (), logs.current_visit()))

    async def _write_object(self, finding: Finding, stored: Stored) -> NextAttempt:
        if not self._client.may_write:  # an errand that hangs would keep its key from being visited
            return RetryAfter(UNREACHABLE_AGAIN)
        if finding.request.finalizer is not None:
            await self._set_finalizer(stored, present=finding.request.finalizer)
            return RetryAfter(0.0)
        if finding.done_with:
            self._statuses.forget(stored.key)
            if FINALIZER in (stored.object()["metadata"].get("finalizers") or ()):
                await self._set_finalizer(stored, present=False)
            return Done()
        if finding.errand is not None:
            # It may have waited: nothing is written for what is being deleted, or asks for something else by now.
            if self._objects.asks_still(stored):
                brought = await self._errands.run(finding.errand, stored)
                problem = brought.problem.reason.value if brought.problem else ""
                log.debug("errand run", extra={"object": str(finding.key), "problem": problem})
                self._objects.hand_over(stored, brought)
            return RetryAfter(0.0)
        return Retry()

    async def _set_finalizer(self, stored: Stored, *, present: bool) -> None:
        written = await apply_finalizer(self._client, PGROLES, stored, present)
        if written is not None:
            self._store.put(written, by=stored.key)

    def _record_action(self, finding: Finding, stored: Stored) -> None:
        if finding.action not in _EVENTS:
            return
        reason, action, note = _EVENTS[finding.action]
        fields = ", ".join(finding.fields)
        told = f"{note}: {fields}" if fields and finding.action not in _WITHOUT_FIELDS else note
        log.info("role reconciled", extra={"object": str(finding.key), "deed": finding.action.value, "fields": fields})
        self._recorder.record(stored, reason=reason, note=told, action=action)

    def _record_outcome(self, outcome: Outcome, before: Sequence[Mapping[str, Any]], stored: Stored) -> None:
        """An Event for what stands in the way, once for each time that it begins."""
        same = any(
            (said["type"], said["reason"], said["message"]) == ("Ready", outcome.reason.value, outcome.message)
            for said in before
        )
        if same or outcome.ready or outcome.reason in (Reason.PROGRESSING, Reason.SUSPENDED):
            return
        log.info("object is not ready", extra={"object": str(stored.key), "reason": outcome.reason.value})
        self._recorder.record(
            stored, reason=outcome.reason.value, note=outcome.message, action="Reconcile", event_type="Warning"
        )


def _is_first(finding: Finding) -> bool:
    """Whether something has to be done in Kubernetes before the next visit."""
    return finding.request.finalizer is not None or finding.done_with or finding.errand is not None


def _next_visit(finding: Finding, outcome: Outcome) -> NextAttempt:
    """When the key is looked at again without a request."""
    if _is_unconfirmed(finding):
        return RetryAfter(CONFIRM_AGAIN)
    if outcome.retried:
        return Retry()
    # What is due and was not done now waits for something else.
    return RetryAfter(finding.again_in) if finding.again_in > 0 else Done()


def _describe(result: NextAttempt) -> dict[str, str | float]:
    """When the object is looked at again without a request."""
    match result:
        case RetryAfter(seconds):
            return {"result": "again", "in_seconds": round(seconds, 3)}
        case Retry():
            return {"result": "back-off"}
        case _:
            return {"result": "done"}


def _is_unconfirmed(finding: Finding) -> bool:
    """Whether something was changed, or compared with what was there a while ago."""
    desired, outcome = finding.request.desired, finding.outcome
    return finding.action is not Action.NOTHING or bool(
        desired and desired.password_result and outcome and outcome.ready
    )
