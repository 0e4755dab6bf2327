"""Writes to the API server what a visit found: status, finalizer, Events. Then the key is free for its next visit.

Status writes take their time, so they are made beside the lanes' workers, a few at once: a drift of another role does
not wait for them.
"""

import logging
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import anyio

from pgrole_controller import logs, metrics
from pgrole_controller.controller.containment import contain
from pgrole_controller.controller.errands import Errands
from pgrole_controller.controller.objects import Objects, generation_of, server_of
from pgrole_controller.controller.queue import Queue
from pgrole_controller.controller.reconcile import Finding
from pgrole_controller.core.errors import PgRoleError, Reason
from pgrole_controller.core.hint import Key
from pgrole_controller.core.outcome import Outcome, of_error
from pgrole_controller.core.plan import Deed
from pgrole_controller.core.report import Standing, build_status
from pgrole_controller.core.schedule import After, Result, Retry, Success
from pgrole_controller.kube.client import PGROLES, Client
from pgrole_controller.kube.errors import ApiError, BadStream, KubeError, Unreachable
from pgrole_controller.kube.events import Recorder
from pgrole_controller.kube.finalizers import FINALIZER, apply_finalizer
from pgrole_controller.kube.status import apply_status, unchanged
from pgrole_controller.kube.store import Stored, mapping

log = logging.getLogger(__name__)

#: How many writes are under way at once.
WRITERS = 12

#: For all writes to one object, in seconds. A drift of its role waits for them, but for status not longer than that.
WRITE_SECONDS = 10.0
GIVE_WAY_SECONDS = 2.0

#: After a write that the API server did not take, in seconds; its own back-off guards the server.
UNREACHABLE_AGAIN = 3.0
CONFLICT_AGAIN = 0.5

#: After a change of ours, in seconds: longer than `observe` needs to look again. A drift that puts back, before that,
#: what `observe` saw last is no change to it, and nothing tells of it.
CONFIRM_AGAIN = 2.0

_EVENTS = {
    Deed.CREATED: ("RoleCreated", "Create", "the role was created"),
    Deed.ADOPTED: ("RoleAdopted", "Adopt", "the role that existed already was taken over"),
    Deed.CHANGED: ("RoleChanged", "Alter", "the role was altered"),
    Deed.CORRECTED: ("DriftCorrected", "Correct", "the role was changed in the database and was set back"),
    Deed.ROTATED: ("PasswordRotated", "Rotate", "another password was generated and set"),
    Deed.DROPPED: ("RoleDropped", "Drop", "the role was dropped"),
    Deed.RECLAIMED: ("ClaimRestored", "Claim", "the database held no claim for the role; it was written anew"),
}

_WITHOUT_FIELDS = (Deed.CREATED, Deed.DROPPED, Deed.ROTATED)


class Reporter:
    def __init__(self, client: Client, objects: Objects, queue: Queue, recorder: Recorder, errands: Errands) -> None:
        self._objects = objects
        self._errands = errands
        self._client = client
        self._store = objects.store
        self._queue = queue
        self._recorder = recorder
        self._unconfirmed: dict[Key, float] = {}  # when what we changed is to be looked at once more
        self._send, self._receive = anyio.create_memory_object_stream[tuple[str, Finding]](float("inf"))

    def report(self, finding: Finding) -> None:
        """Takes the finding of a visit, whose id is the one of the log here; the visit ends when it is written."""
        self._doubt(finding)
        self._send.send_nowait((logs.current_visit(), finding))

    def close(self) -> None:
        """No more findings: `run` returns when those that it has are written."""
        self._send.close()

    async def run(self) -> None:
        async with self._receive, anyio.create_task_group() as tasks:
            for _ in range(WRITERS):
                tasks.start_soon(self._write_each)

    async def _write_each(self) -> None:
        async with self._receive.clone() as findings:
            async for visit, finding in findings:
                with logs.tracing(visit):
                    result = self._confirm(finding.key, await self._write(finding))
                    log.debug("visit ends", extra={"object": str(finding.key), **_describe(result)})
                    self._queue.done(finding.key, result)

    def _doubt(self, finding: Finding) -> None:
        """After a look: whether there is one to come. A hint that is answered before that does not take its place."""
        now = anyio.current_time()
        if finding.request.stored is None or finding.done_with:
            self._unconfirmed.pop(finding.key, None)
        elif _is_unconfirmed(finding):
            self._unconfirmed[finding.key] = now + CONFIRM_AGAIN
        elif self._unconfirmed.get(finding.key, now) <= now:
            self._unconfirmed.pop(finding.key, None)

    def _confirm(self, key: Key, result: Result) -> Result:
        if key not in self._unconfirmed or isinstance(result, Retry):
            return result
        seconds = max(self._unconfirmed[key] - anyio.current_time(), 0.0)
        return After(min(result.seconds, seconds) if isinstance(result, After) else seconds)

    async def _write(self, finding: Finding) -> Result:
        """Writes it, and says when the key is to be looked at again."""
        stored = finding.request.stored
        if stored is None:
            # What the object left behind is to be released, however often that fails.
            return Retry() if finding.outcome and finding.outcome.retried else Success()
        try:
            with anyio.fail_after(WRITE_SECONDS):
                return await self._write_object(finding, stored)
        except TimeoutError:
            log.warning("write not answered by the API server", extra={"object": str(finding.key)})
            return After(UNREACHABLE_AGAIN)
        except ApiError as error:
            if error.status == 404:
                return Success()  # gone: the watch says so too
            if error.status == 409:
                return After(CONFLICT_AGAIN)
            log.warning("write refused by the API server", extra={"object": str(finding.key), "error": str(error)})
            return After(error.retry_after) if error.retry_after else Retry()
        except (Unreachable, BadStream) as error:
            log.warning("write did not reach the API server", extra={"object": str(finding.key), "error": str(error)})
            return After(UNREACHABLE_AGAIN)
        except Exception as error:  # noqa: BLE001 -- one object's error
            return await self._report_unexpected(contain(error, finding.key), finding, stored)

    async def _report_unexpected(self, problem: PgRoleError, finding: Finding, stored: Stored) -> Result:
        """Says it on the object in place of what could not be written, as far as that can be: only on conditions."""
        outcome = of_error(problem)
        status = build_status({}, outcome, Standing(""), generation_of(stored), datetime.now(UTC))
        kept = {name: value for name, value in mapping(stored.object().get("status")).items() if name not in status}
        try:
            with anyio.fail_after(WRITE_SECONDS):
                written = await apply_status(self._client, PGROLES, stored, {**kept, **status})
            self._store.put(written, by=stored.key)
        except (KubeError, TimeoutError) as error:
            log.warning("unexpected error not written", extra={"object": str(finding.key), "error": str(error)})
        except Exception as error:  # noqa: BLE001 -- one object's error
            contain(error, finding.key)
        return Retry()

    async def _write_object(self, finding: Finding, stored: Stored) -> Result:
        self._record_deed(finding, stored)
        if finding.request.finalizer is not None:
            await self._set_finalizer(stored, present=finding.request.finalizer)
            return After(0.0)
        if finding.done_with:
            if FINALIZER in (stored.object()["metadata"].get("finalizers") or ()):
                await self._set_finalizer(stored, present=False)
            return Success()
        if finding.errand is not None:
            # It may have waited: nothing is written for what is being deleted, or asks for something else by now.
            if self._objects.asks_still(stored):
                brought = await self._errands.run(finding.errand, stored)
                problem = brought.problem.reason.value if brought.problem else ""
                log.debug("errand run", extra={"object": str(finding.key), "problem": problem})
                self._objects.hand_over(stored, brought)
            return After(0.0)
        if finding.outcome is None:
            return Retry()
        with self._queue.giving_way(finding.key, GIVE_WAY_SECONDS) as scope:
            await self._set_status(finding, finding.outcome, stored)
        if scope.cancelled_caught:
            raise TimeoutError  # the next visit says what is so by then
        if _is_unconfirmed(finding):
            return After(CONFIRM_AGAIN)
        if finding.outcome.retried:
            return Retry()
        # What is due and was not done now waits for something else.
        return After(finding.again_in) if finding.again_in > 0 else Success()

    async def _set_finalizer(self, stored: Stored, *, present: bool) -> None:
        written = await apply_finalizer(self._client, PGROLES, stored, present)
        if written is not None:
            self._store.put(written, by=stored.key)

    async def _set_status(self, finding: Finding, outcome: Outcome, stored: Stored) -> None:
        obj = stored.object()
        previous = obj.get("status") or {}
        standing = Standing(
            server_name=server_of(obj),
            claim=finding.claim,
            next_rotation=finding.next_rotation,
            reported=finding.fields if outcome.reason is Reason.DRIFT_REPORTED else (),
        )
        status = build_status(previous, outcome, standing, obj["metadata"]["generation"], datetime.now(UTC))
        if unchanged(previous, status):
            log.debug("status stands", extra={"object": str(stored.key), "reason": outcome.reason.value})
            return
        before = previous.get("conditions") or []
        try:
            self._store.put(await apply_status(self._client, PGROLES, stored, status), by=stored.key)
        except ApiError as error:
            # A definition that came later may refuse the object itself and every status with it: an Event can say it.
            if error.status in (422, 500):
                self._record_outcome(outcome, before, stored)
            raise
        log.debug("status written", extra={"object": str(stored.key), "reason": outcome.reason.value})
        for field in standing.reported:
            if field not in _reported(previous):
                metrics.DRIFTS.labels(standing.server_name, field, "reported").inc()
        self._record_outcome(outcome, before, stored)

    def _record_deed(self, finding: Finding, stored: Stored) -> None:
        if finding.deed not in _EVENTS:
            return
        reason, action, note = _EVENTS[finding.deed]
        fields = ", ".join(finding.fields)
        told = f"{note}: {fields}" if fields and finding.deed not in _WITHOUT_FIELDS else note
        log.info("role brought in", extra={"object": str(finding.key), "deed": finding.deed.value, "fields": fields})
        self._recorder.record(stored, reason=reason, note=told, action=action)

    def _record_outcome(self, outcome: Outcome, before: list[dict[str, str]], stored: Stored) -> None:
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


def _reported(status: Mapping[str, Any]) -> Sequence[str]:
    """The fields that were left as they are, as they were said last, if they still stood then."""
    last = status.get("lastDrift") or {}
    drifts = any(said["type"] == "DriftDetected" for said in status.get("conditions") or ())
    return last.get("fields") or () if drifts and not last.get("corrected") else ()


def _describe(result: Result) -> dict[str, str | float]:
    """When the object is looked at again without a hint."""
    match result:
        case After(seconds):
            return {"result": "again", "in_seconds": round(seconds, 3)}
        case Retry():
            return {"result": "back-off"}
        case _:
            return {"result": "done"}


def _is_unconfirmed(finding: Finding) -> bool:
    """Whether something was changed, or compared with what was there a while ago."""
    ask, outcome = finding.request.ask, finding.outcome
    return finding.deed is not Deed.NOTHING or bool(ask and ask.credential and outcome and outcome.ready)
