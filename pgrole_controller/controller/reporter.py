"""Reports the result of a reconcile in Kubernetes: Events and status.

Status is written beside the reconciles (`StatusWriter`), so the next reconcile of the key need not wait for it. What
the next reconcile depends on is the background's.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pgrole_controller import logs
from pgrole_controller.controller.containment import contain
from pgrole_controller.controller.objects import generation_of
from pgrole_controller.controller.queue import Endings
from pgrole_controller.controller.result import Result
from pgrole_controller.controller.status_writer import PendingStatus, StatusWriter, is_about
from pgrole_controller.core.approval import tell_approval
from pgrole_controller.core.errors import PgRoleError, Reason, make_legible
from pgrole_controller.core.outcome import LONGEST_MESSAGE, Outcome, of_error
from pgrole_controller.core.plan import Action
from pgrole_controller.core.privileges.privilege_result import News, PrivilegeNews, PrivilegeResult
from pgrole_controller.core.request import Key
from pgrole_controller.core.status import StatusDetails
from pgrole_controller.kube.client import Client
from pgrole_controller.kube.event_queue import EventType
from pgrole_controller.kube.events import Recorder
from pgrole_controller.kube.store import Store
from pgrole_controller.kube.stored_object import Stored
from pgrole_controller.kube.unvalidated import mapping

log = logging.getLogger(__name__)

_EVENTS = {
    Action.CREATED: ("RoleCreated", "Create", "created the role"),
    Action.ADOPTED: ("RoleAdopted", "Adopt", "adopted the existing role"),
    Action.CHANGED: ("RoleChanged", "Alter", "altered the role"),
    Action.CORRECTED: ("DriftCorrected", "Correct", "corrected drift"),
    Action.ROTATED: ("PasswordRotated", "Rotate", "generated and set a new password"),
    Action.DROPPED: ("RoleDropped", "Drop", "dropped the role"),
    Action.RECLAIMED: ("ClaimRestored", "Claim", "restored the claim on the role, which was missing from the database"),
}

_NEWS_ACTIONS = {
    News.DRIFT_CORRECTED: "Correct",
    News.DRIFT_REPORTED: "Report",
    News.PRIVILEGES_EXTENDED: "Grant",
}

#: What others did, of which status shows the last one in full and the last ten in short.
_URGENT = (Action.CORRECTED, Action.RECLAIMED)
_URGENT_NEWS = (News.DRIFT_CORRECTED, News.DRIFT_REPORTED)

_WITHOUT_FIELDS = (Action.CREATED, Action.DROPPED, Action.ROTATED, Action.RECLAIMED)


class Reporter:
    def __init__(self, client: Client, store: Store, endings: Endings, recorder: Recorder) -> None:
        """`store` holds the PgRoles."""
        self._store = store
        self._recorder = recorder
        self._endings = endings
        self._statuses = StatusWriter(client, store, self._record_outcome, recorder.quiet)

    def report(self, result: Result) -> None:
        """Takes over the result of a reconcile and ends the reconcile. Keeps the log's reconcile id. Never raises."""
        try:
            self._take(result)
        except Exception as error:  # noqa: BLE001 -- one object's error
            self._fail(error, result)

    def record(self, result: Result) -> bool:
        """Records only the Event: the background ends the reconcile. Never raises. Returns False if it failed: then the
        reconcile has ended, and is retried.
        """
        try:
            self._record_action(result)
        except Exception as error:  # noqa: BLE001 -- one object's error
            self._fail(error, result)
            return False
        return True

    def _fail(self, error: Exception, result: Result) -> None:
        self.report_error(contain(error, result.key), result)
        self._endings.fail(result.key)

    def announce(self, result: PrivilegeResult) -> bool:
        """Records the Events about a result in which only the news are new. Returns False if nothing was recorded: the
        object is gone, or so many Events wait that a reconcile should report it later. Never raises.
        """
        stored = self._store.get(result.key)
        if stored is None or stored.uid != result.uid or self._recorder.crowded:
            return False
        try:
            for news in result.news:
                self._record_news(stored, news)
        except Exception as error:  # noqa: BLE001 -- one object's error
            contain(error, result.key)
        return True

    def _take(self, result: Result) -> None:
        stored, outcome = result.target.stored, result.outcome
        self._record_action(result)
        if stored is not None and outcome is not None and not self._keeps_status(result):
            drift = result.drift
            details = StatusDetails(
                result.claim,
                result.reported if outcome.reason is Reason.DRIFT_REPORTED else (),
                result.observed_at,
                result.next_rotation,
                result.privileges,
                result.cause,
                result.offer,
                exposes_all=result.exposes_all,
                reported_at=drift.at if drift is not None and not drift.corrected else None,
            )
            self._statuses.put(PendingStatus(stored, outcome, details, logs.current_reconcile_id()))
        self._endings.end(result)

    def _keeps_status(self, result: Result) -> bool:
        """Whether the status stands until every database has answered: a restarted controller knows no answers, and
        nothing else changed.
        """
        stored, seen, outcome = self._store.get(result.key), result.target.stored, result.outcome
        if stored is None or seen is None or outcome is None or not outcome.unanswered:
            return False
        status = mapping(stored.object().get("status"))
        return stored.uid == seen.uid and is_about(status, generation_of(seen), result.claim)

    def withdraw(self, keys: Iterable[Key], reason: Reason) -> None:
        """Drops unwritten statuses with this reason: these objects are about to be reconciled."""
        self._statuses.withdraw(keys, reason)

    def close(self) -> None:
        """Accepts no more results; `run` returns when those it has are written."""
        self._statuses.close()

    async def run(self) -> None:
        await self._statuses.run()

    def forget(self, key: Key) -> None:
        """Forgets an object that is about to be deleted: its status is no longer written."""
        self._statuses.forget(key)

    def report_error(self, error: PgRoleError, result: Result) -> None:
        """Reports an error on the object of the result. Does not end the reconcile."""
        if result.target.stored is not None:
            pending = PendingStatus(result.target.stored, of_error(error), reconcile_id=logs.current_reconcile_id())
            self._statuses.put(pending)

    def _record_action(self, result: Result) -> None:
        stored = result.target.stored
        if stored is None:
            return
        for news in result.news:
            self._record_news(stored, news)
        if result.action in _EVENTS:
            self._record_change(stored, result)
        # Another round of the same reconcile may have done these.
        if result.corrected and result.action not in _URGENT:
            self._record_change(stored, replace(result, action=Action.CORRECTED, fields=result.corrected, cascades=()))
        if result.rotated and result.action is not Action.ROTATED:
            reason, action, note = _EVENTS[Action.ROTATED]
            self._recorder.record(stored, reason=reason, note=note, action=action)

    def _record_change(self, stored: Stored, result: Result) -> None:
        reason, action, note = _EVENTS[result.action]
        fields = ", ".join(result.fields)
        text = f"{note}: {fields}" if fields and result.action not in _WITHOUT_FIELDS else note
        if result.action is Action.RECLAIMED and result.corrected:
            text = f"{note}, and corrected drift: {', '.join(result.corrected)}"
        if result.cascades:
            text = make_legible(f"{text}; revoked with CASCADE: {'; '.join(result.cascades)}")
        if result.approval is not None:
            text = f"{text}; {tell_approval(result.approval)}"
        log.info("role reconciled", extra={"object": str(result.key), "action": result.action.value, "fields": fields})
        self._recorder.record(stored, reason=reason, note=text, action=action, urgent=result.action in _URGENT)

    def _record_news(self, stored: Stored, news: PrivilegeNews) -> None:
        log.info("privileges reconciled", extra={"object": str(stored.key), "reason": news.reason.value})
        event_type: EventType = "Warning" if news.reason is News.DRIFT_REPORTED else "Normal"
        self._recorder.record(
            stored,
            reason=news.reason.value,
            note=make_legible(news.note),
            action=_NEWS_ACTIONS[news.reason],
            event_type=event_type,
            urgent=news.reason in _URGENT_NEWS,
        )

    def _record_outcome(self, outcome: Outcome, before: Sequence[Mapping[str, Any]], stored: Stored) -> None:
        """Records a Warning Event when an object stops being Ready, or is not Ready for another reason than before."""
        same = any(
            (one["type"], one["reason"], one["message"])
            == ("Ready", outcome.reason.value, outcome.message[:LONGEST_MESSAGE])
            for one in before
        )
        announced = outcome.by_databases and outcome.reason is Reason.DRIFT_REPORTED  # as news
        if same or outcome.ready or announced or outcome.reason in (Reason.PROGRESSING, Reason.SUSPENDED):
            return
        log.info("object is not ready", extra={"object": str(stored.key), "reason": outcome.reason.value})
        self._recorder.record(
            stored, reason=outcome.reason.value, note=outcome.message, action="Reconcile", event_type="Warning"
        )
