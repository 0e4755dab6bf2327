"""Says on Kubernetes what a reconcile found: Events, status, finalizer.

Status is written beside the reconciles (`StatusWriter`), so the key is free for its next reconcile at once. What the
next reconcile depends on, a finalizer or a password task, is done first, a few at once.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import anyio

from pgrole_controller import logs
from pgrole_controller.controller.background import PasswordTasks
from pgrole_controller.controller.endings import Endings
from pgrole_controller.controller.errors import contain, explain_failed_write
from pgrole_controller.controller.objects import Objects, Target
from pgrole_controller.controller.queue import Queue
from pgrole_controller.controller.result import Result, refuse
from pgrole_controller.controller.status_writer import PendingStatus, StatusWriter, standing_fields
from pgrole_controller.controller.telemetry import begin_reconciles, count_ending
from pgrole_controller.core.deletion import add_way_out
from pgrole_controller.core.errors import PgRoleError, Reason
from pgrole_controller.core.next_attempt import FailedWrite, WriteError
from pgrole_controller.core.plan import Action
from pgrole_controller.core.policy import ServerPolicy
from pgrole_controller.core.request import Key, Rank
from pgrole_controller.core.status import Outcome, of_error
from pgrole_controller.kube.apply import FINALIZER, apply_finalizer
from pgrole_controller.kube.client import PGROLES, Client
from pgrole_controller.kube.errors import KubeError
from pgrole_controller.kube.events import Recorder
from pgrole_controller.kube.store import Stored

log = logging.getLogger(__name__)

#: How many finalizers and password tasks are under way at once.
WRITERS = 12

#: For what the next reconcile of one object depends on, in seconds.
WRITE_SECONDS = 10.0

#: Between two unchanged objects on which an outage is reported, in seconds: when the server is back, each of these
#: statuses has to be written again.
OUTAGE_REPORT_PAUSE = 0.01

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
    def __init__(
        self, client: Client, objects: Objects, endings: Endings, recorder: Recorder, password_tasks: PasswordTasks
    ) -> None:
        self._objects = objects
        self._password_tasks = password_tasks
        self._client = client
        self._store = objects.store
        self._recorder = recorder
        self._endings = endings
        self._statuses = StatusWriter(client, objects.store, self._record_outcome)
        self._send, self._receive = anyio.create_memory_object_stream[tuple[str, Result]](float("inf"))

    def report(self, result: Result) -> None:
        """Takes the result of a reconcile, whose id is the one of the log here, and ends the reconcile. Never
        raises.
        """
        try:
            self._take(result)
        except Exception as error:  # noqa: BLE001 -- one object's error
            self._fail(error, result)

    def _take(self, result: Result) -> None:
        stored, outcome = result.target.stored, result.outcome
        if stored is not None:
            self._record_action(result, stored)
        if stored is not None and (result.is_prerequisite or result.done_with):
            self._send.send_nowait((logs.current_reconcile_id(), result))
            return
        if stored is not None and outcome is not None:
            reported = standing_fields(result.fields, outcome)
            self._statuses.put(
                PendingStatus(
                    stored, outcome, result.claim, result.next_rotation, reported, logs.current_reconcile_id()
                )
            )
        self._endings.end(result)

    def withdraw(self, keys: Iterable[Key], reason: Reason) -> None:
        """What is not yet written with this reason is no longer so, and these objects are about to be reconciled."""
        self._statuses.withdraw(keys, reason)

    def close(self) -> None:
        """No more results: `run` returns when those that it has are written."""
        self._send.close()
        self._statuses.close()

    async def run(self) -> None:
        async with self._receive, anyio.create_task_group() as tasks:
            tasks.start_soon(self._statuses.run)
            for _ in range(WRITERS):
                tasks.start_soon(self._write_each)

    async def _write_each(self) -> None:
        async with self._receive.clone() as results:
            async for reconcile_id, result in results:
                with logs.tracing(reconcile_id):
                    await self._write_first(result)

    async def _write_first(self, result: Result) -> None:
        """Writes what the next reconcile depends on, and ends this one."""
        failed: FailedWrite | None = None
        try:
            if self._client.may_write:
                with anyio.fail_after(WRITE_SECONDS):
                    await self._write_object(result)
            else:
                failed = FailedWrite(WriteError.UNREACHABLE)
        except (KubeError, TimeoutError) as error:
            failed = explain_failed_write(error, result.key)
        except Exception as error:  # noqa: BLE001 -- one object's error
            self._fail(error, result)
            return
        self._endings.end(result, failed)

    def _fail(self, error: Exception, result: Result) -> None:
        outcome = of_error(contain(error, result.key))
        if result.target.stored is not None:
            self._statuses.put(
                PendingStatus(result.target.stored, outcome, None, None, (), logs.current_reconcile_id())
            )
        self._endings.fail(result.key)

    async def _write_object(self, result: Result) -> None:
        stored = result.target.stored
        if stored is None:
            return
        if result.target.finalizer is not None:
            await self._set_finalizer(stored, present=result.target.finalizer)
        elif result.done_with:
            self._statuses.forget(stored.key)
            if FINALIZER in (stored.object()["metadata"].get("finalizers") or ()):
                await self._set_finalizer(stored, present=False)
        elif result.password_task is not None and self._objects.asks_still(stored):
            # It may have waited: nothing is written for what is being deleted, or asks for something else by now.
            brought = await self._password_tasks.run(result.password_task, stored)
            problem = brought.problem.reason.value if brought.problem else ""
            log.debug("password task run", extra={"object": str(result.key), "problem": problem})
            self._objects.hand_over(stored, brought)

    async def _set_finalizer(self, stored: Stored, *, present: bool) -> None:
        written = await apply_finalizer(self._client, PGROLES, stored, present)
        if written is not None:
            self._store.put(written, by=stored.key)

    def _record_action(self, result: Result, stored: Stored) -> None:
        if result.action not in _EVENTS:
            return
        reason, action, note = _EVENTS[result.action]
        fields = ", ".join(result.fields)
        told = f"{note}: {fields}" if fields and result.action not in _WITHOUT_FIELDS else note
        log.info("role reconciled", extra={"object": str(result.key), "deed": result.action.value, "fields": fields})
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


async def decline(
    server: str,
    queue: Queue,
    objects: Objects,
    reporter: Reporter,
    endings: Endings,
    error: PgRoleError,
    changed: set[Key] | None = None,
) -> None:
    """Reconciles the keys of a worker without a server: says why nothing can be done, until cancelled or closed.

    With `changed`, during an outage, the keys of objects that changed are put into it, and the others are reconciled
    one after the other, with pauses.
    """
    while items := await queue.take(server, 1):
        (item,) = items
        found = False
        if changed is not None and item.rank is Rank.CHANGE:
            changed.add(item.key)
        try:
            with logs.tracing(begin_reconciles(server, items).batch):
                result = _declined(objects.read(item.key, None, ServerPolicy()), error)
                count_ending(server, result)
                reporter.report(result)
            found = True
        except Exception as unexpected:  # noqa: BLE001 -- this object's error
            contain(unexpected, item.key)
            endings.fail(item.key)
            found = True
        finally:
            if not found:
                endings.interrupt(item.key)
        if changed is not None and item.rank > Rank.CHANGE and not item.failures:
            await anyio.sleep(OUTAGE_REPORT_PAUSE)


def _declined(target: Target, error: PgRoleError) -> Result:
    desired = target.desired
    if target.finalizer is False or (desired and desired.terminating and not desired.drop):
        return Result(target, done_with=True)  # its way out does not need the server
    if target.stored is None or target.quiet:
        return Result(target)
    said = target.error or error
    return refuse(target, add_way_out(said) if desired and desired.terminating else said)
