"""controller/reporter, background: their own writes cause no reconcile, and none rewrites a current status."""

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import anyio
import pytest

from pgrole_controller import metrics
from pgrole_controller.controller import status_writer
from pgrole_controller.controller.context import WorkerContext
from pgrole_controller.controller.namespaces import Namespaces
from pgrole_controller.controller.objects import Objects, Target, index_by_owner, index_pgrole
from pgrole_controller.controller.privileges.grantees import Grantees
from pgrole_controller.controller.queue import Endings, Queue
from pgrole_controller.controller.reporter import Reporter
from pgrole_controller.controller.result import Result
from pgrole_controller.controller.sources import PgRoleSource
from pgrole_controller.controller.status_writer import OLDER_CRDS_SECONDS, WRITE_SECONDS, PendingStatus, StatusWriter
from pgrole_controller.core.backoff import Backoff
from pgrole_controller.core.claim import Claim, Owner
from pgrole_controller.core.contest import Contests
from pgrole_controller.core.errors import Reason
from pgrole_controller.core.outcome import LONGEST_MESSAGE, RECONCILED, Outcome, Phase, of_read_back
from pgrole_controller.core.password import PasswordTask
from pgrole_controller.core.plan import Action, Plan
from pgrole_controller.core.request import Key, Request, RequestReason
from pgrole_controller.core.status import StatusDetails, build_status
from pgrole_controller.event_loop import Signal
from pgrole_controller.kube.client import Client
from pgrole_controller.kube.errors import ApiError, Unreachable
from pgrole_controller.kube.events import Recorder
from pgrole_controller.kube.server_side_apply import FINALIZER
from pgrole_controller.kube.store import Store
from pgrole_controller.kube.stored_object import Stored, pack
from pgrole_controller.kube.transport import Reachability
from tests.timelapse import in_timelapse
from tests.worker_context import make_context


@pytest.fixture
def objects() -> Objects:
    namespaces = Namespaces(cast("Client", None), Store())
    return Objects(Store(index_pgrole), Store(index_by_owner), namespaces, "c1")


def made(version: int, **more: Any) -> Stored:
    metadata = {"namespace": "shop", "name": "app", "uid": "u1", "resourceVersion": str(version), "generation": version}
    return pack({"apiVersion": "pgrole.dev/v1alpha1", "kind": "PgRole", "metadata": metadata | more, "spec": {}})


class StatusApi:
    """Accepts every write and answers with the resulting object, whose spec another client may just have changed."""

    may_write = True

    def __init__(self, generation: int = 1) -> None:
        self.generation = generation
        self.asked = 0

    async def request(self, _method: str, path: str, *, body: dict[str, Any], **_: object) -> bytes:
        self.asked += 1
        written = copy.deepcopy(made(1).object()) | {"status": body.get("status", {})}
        written["metadata"] |= {"resourceVersion": "9", "generation": self.generation}
        if "status" not in path:
            written["metadata"]["finalizers"] = [FINALIZER]
        return json.dumps(written).encode()


def make_writing(client: Client, objects: Objects, queue: Queue, recorder: Recorder) -> WorkerContext:
    reporter = Reporter(client, objects.store, Endings(queue, Contests()), recorder)
    return make_context(queue, objects, reporter, client)


async def write_all(context: WorkerContext) -> None:
    for writer in (context.background, context.reporter):
        writer.close()
        await writer.run()


@pytest.mark.parametrize("write", ["status", "finalizer"])
@pytest.mark.parametrize("generation", [1, 2])
async def test_own_writes_cause_no_reconcile_and_hide_no_change_of_others(
    objects: Objects, write: str, generation: int
) -> None:
    api, queue = StatusApi(generation), Queue()
    source = PgRoleSource(objects, queue, make_context(queue, objects).background, {"default"}, Grantees())
    seen = made(1)
    objects.store.put(seen)
    objects.store.subscribe(source.changed)
    recorder = Recorder(cast("Client", api))
    context = make_writing(cast("Client", api), objects, queue, recorder)
    outcome, finalizer = (RECONCILED, None) if write == "status" else (None, True)
    queue.put("default", Request(seen.key, RequestReason.OBJECT))
    await queue.take("default", 1)
    context.hand_on(Result(Target(seen.key, seen, finalizer=finalizer), outcome=outcome))
    await write_all(context)
    assert api.asked == 1
    # After a finalizer is set, the object is reconciled anyway.
    own = 1 if write == "finalizer" else 0
    assert queue.backlog("default").depth == max(own, 0 if generation == 1 else 1)
    recorder.close()
    await recorder.run()


async def test_events_about_drift_are_urgent(objects: Objects) -> None:
    queue, seen = Queue(), made(1)
    recorder = Recorder(cast("Client", StatusApi()))
    reporter = Reporter(cast("Client", StatusApi()), objects.store, Endings(queue, Contests()), recorder)
    for action in (Action.CREATED, Action.CORRECTED, Action.CHANGED):
        reporter.record(Result(Target(seen.key, seen), action=action, fields=("login",)))
    waiting = [recorder._queue.take_next("shop") for _ in range(3)]
    assert [one and (one.reason, one.urgent) for one in waiting] == [
        ("DriftCorrected", True),
        ("RoleCreated", False),
        ("RoleChanged", False),
    ]


@pytest.mark.parametrize(
    ("action", "told"),
    [
        (Action.CORRECTED, ["DriftCorrected", "PasswordRotated"]),
        (Action.CHANGED, ["RoleChanged", "PasswordRotated"]),
        (Action.NOTHING, ["PasswordRotated"]),
        (Action.ROTATED, ["PasswordRotated"]),
    ],
)
async def test_a_rotation_is_announced_once_whatever_else_was_changed(
    objects: Objects, monkeypatch: pytest.MonkeyPatch, action: Action, told: list[str]
) -> None:
    recorder, heard = Recorder(cast("Client", StatusApi())), list[str]()
    monkeypatch.setattr(recorder, "record", lambda *_, reason, **__: heard.append(reason))
    reporter = Reporter(cast("Client", StatusApi()), objects.store, Endings(Queue(), Contests()), recorder)
    reporter.record(Result(Target(KEY, made(1)), action=action, fields=("connectionLimit",), rotated=True))
    assert heard == told


@pytest.mark.parametrize(
    ("action", "told"),
    [
        (Action.CORRECTED, ["corrected drift: login"]),
        (Action.CHANGED, ["altered the role: login", "corrected drift: createdb"]),
        (Action.ROTATED, ["generated and set a new password", "corrected drift: createdb"]),
    ],
)
async def test_drift_that_a_further_round_corrected_is_announced_too(
    objects: Objects, monkeypatch: pytest.MonkeyPatch, action: Action, told: list[str]
) -> None:
    recorder, heard = Recorder(cast("Client", StatusApi())), list[str]()
    monkeypatch.setattr(recorder, "record", lambda *_, note, **__: heard.append(note))
    reporter = Reporter(cast("Client", StatusApi()), objects.store, Endings(Queue(), Contests()), recorder)
    reporter.record(Result(Target(KEY, made(1)), action=action, fields=("login",), corrected=("createdb",)))
    assert heard == told


async def test_a_message_that_status_cuts_is_announced_once(objects: Objects, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder, told = Recorder(cast("Client", StatusApi())), list[str]()
    monkeypatch.setattr(recorder, "record", lambda *_, reason, **__: told.append(reason))
    reporter = Reporter(cast("Client", StatusApi()), objects.store, Endings(Queue(), Contests()), recorder)
    outcome = Outcome(Phase.STALLED, Reason.NOT_ALLOWED, "x" * (LONGEST_MESSAGE + 1))
    stands = build_status({}, outcome, StatusDetails(), "default", 1, datetime.now(UTC))["conditions"]
    reporter._record_outcome(outcome, [], made(1))
    reporter._record_outcome(outcome, stands, made(1))
    assert told == ["NotAllowed"]


KEY = Key("shop", "app")
OTHER = Outcome(Phase.STALLED, Reason.CONFLICT, "another has it")


async def test_a_current_status_is_not_queued_for_writing(objects: Objects) -> None:
    api = StatusApi()
    told: list[Outcome] = []
    statuses = StatusWriter(cast("Client", api), objects.store, lambda outcome, *_: told.append(outcome), Signal())
    objects.store.put(made(1))
    for _ in range(2):
        statuses.put(PendingStatus(made(1), RECONCILED))
    assert set(statuses._waiting) == {KEY}  # not written yet, so not current
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(statuses.run)
        await anyio.wait_all_tasks_blocked()
        assert (api.asked, told) == (1, [RECONCILED])
        now = objects.store.get(KEY)
        assert now is not None
        statuses.put(PendingStatus(now, RECONCILED))
        assert not statuses._waiting
        statuses.put(PendingStatus(now, OTHER))
        assert set(statuses._waiting) == {KEY}
        statuses.close()
    assert api.asked == 2


async def test_an_object_that_was_created_again_does_not_get_the_status_of_its_predecessor(objects: Objects) -> None:
    api = StatusApi()
    statuses = StatusWriter(cast("Client", api), objects.store, lambda *_: None, Signal())
    objects.store.put(made(1, uid="u2"))
    statuses.put(PendingStatus(made(1), RECONCILED))
    statuses.close()
    await statuses.run()
    assert api.asked == 0


@pytest.mark.parametrize("state", ["waiting", "refused"])
async def test_a_withdrawn_status_is_not_written(objects: Objects, state: str) -> None:
    """The outage that it reports is over, and the next reconcile reports what it finds."""
    api = StatusApi()
    statuses = StatusWriter(cast("Client", api), objects.store, lambda *_: None, Signal())
    away = PendingStatus(made(1), Outcome(Phase.WORKING, Reason.SERVER_NOT_READY, "away"))
    objects.store.put(made(1))
    statuses.put(away)
    if state == "refused":
        statuses._failed[KEY] = (statuses._waiting.pop(KEY), 60.0)
    statuses.withdraw([KEY], Reason.PROGRESSING)
    assert (KEY in statuses._failed) is (state == "refused")
    statuses.withdraw([KEY], Reason.SERVER_NOT_READY)
    assert not statuses._failed
    statuses.close()
    await statuses.run()
    assert api.asked == 0


@pytest.mark.parametrize(
    ("unanswered", "generation", "oid", "system", "written"),
    [
        (True, 1, 20_000, "7", False),
        (False, 1, 20_000, "7", True),
        (True, 0, 20_000, "7", True),
        (True, 1, 20_001, "7", True),
        (True, 1, 20_000, "8", True),
    ],
    ids=["unanswered", "failed", "another spec", "another role", "another server"],
)
async def test_a_status_of_this_spec_and_role_stands_until_every_database_has_answered(
    objects: Objects, unanswered: bool, generation: int, oid: int, system: str, written: bool
) -> None:
    status = {
        "observedGeneration": generation,
        "conditions": [{"type": "Ready", "status": "True", "reason": "Reconciled", "message": "x"}],
        "role": {"name": "app", "oid": oid, "applied": ""},
        "server": {"name": "default", "systemIdentifier": system},
    }
    seen = pack(made(1).object() | {"status": status})
    objects.store.put(seen)
    api, queue = StatusApi(), Queue()
    recorder, endings = Recorder(cast("Client", api)), Endings(queue, Contests())
    reporter = Reporter(cast("Client", api), objects.store, endings, recorder)
    queue.put("default", Request(seen.key, RequestReason.OBJECT))
    await queue.take("default", 1)
    outcome = Outcome(Phase.WORKING, Reason.PROGRESSING, "being applied", by_databases=True, unanswered=unanswered)
    claim = Claim("app", 20_000, 7, Owner("c1", "shop", "n1", "app", "u1"), "")
    reporter.report(Result(Target(seen.key, seen), outcome, claim))
    reporter.close()
    await reporter.run()
    assert api.asked == written
    recorder.close()
    await recorder.run()


class FailingApi(StatusApi):
    """Answers none of the first `failures` writes. Notes the fields of the drifts in the history of the last one."""

    reachability = Reachability()

    def __init__(self, failures: int, before_failing: Callable[[], None]) -> None:
        super().__init__()
        self._failures, self._before_failing = failures, before_failing
        self.history: list[str] = []

    async def request(self, _method: str, path: str, *, body: dict[str, Any], **options: object) -> bytes:
        if self.asked < self._failures:
            self.asked += 1
            self._before_failing()
            raise Unreachable("the API server is away")
        self.history = [field for entry in body["status"]["driftHistory"] for field in entry["fields"]]
        return await super().request(_method, path, body=body, **options)


@pytest.mark.parametrize("state", ["waiting", "failed", "being written"])
async def test_the_history_has_every_drift_of_a_role_that_was_corrected_during_an_outage(
    objects: Objects, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status_writer, "_BACKOFF", Backoff(3600.0, 3600.0))
    now = datetime.now(UTC) - timedelta(hours=1)
    claim = Claim("app", 1, 1, Owner("c1", "shop", "n1", "app", "u1"), "")
    drifts = iter(range(3))

    def put() -> None:
        number = next(drifts)
        last = replace(claim, last_drift_at=now + timedelta(seconds=number), last_drift_fields=(f"f{number}",))
        statuses.put(PendingStatus(made(1), RECONCILED, StatusDetails(replace(last, drift_count=number + 1))))

    api = FailingApi(0 if state == "waiting" else 1, put if state == "being written" else lambda: None)
    statuses = StatusWriter(cast("Client", api), objects.store, lambda *_: None, Signal())
    objects.store.put(made(1))
    put()
    async with anyio.create_task_group() as tasks:
        if state == "waiting":
            put()
        tasks.start_soon(statuses.run)
        await anyio.wait_all_tasks_blocked()
        if state == "failed":
            put()
            await anyio.wait_all_tasks_blocked()
        statuses.close()
    assert api.history == ["f1", "f0"]
    assert next(drifts) == 2


async def test_events_wait_until_the_last_status_is_written(objects: Objects) -> None:
    quiet = Signal()
    quiet.set()
    statuses = StatusWriter(cast("Client", StatusApi()), objects.store, lambda *_: None, quiet)
    objects.store.put(made(1))
    statuses.put(PendingStatus(made(1), RECONCILED))
    statuses.put(PendingStatus(made(1), OTHER))
    assert not quiet.is_set()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(statuses.run)
        await quiet.wait()
        assert (statuses._waiting, statuses._queued) == ({}, set())
        statuses.put(PendingStatus(made(1), RECONCILED))
        assert not quiet.is_set()
        statuses.forget(KEY)
        await quiet.wait()
        statuses.close()


class SlowStatusApi(StatusApi):
    """Answers each write after a moment. Notes how many were under way at once."""

    def __init__(self) -> None:
        super().__init__()
        self.writes = self.most = 0

    async def request(self, _method: str, path: str, *, body: dict[str, Any], **more: object) -> bytes:
        self.writes += 1
        self.most = max(self.most, self.writes)
        await anyio.sleep(1.0)
        self.writes -= 1
        return await super().request(_method, path, body=body, **more)


@in_timelapse
async def test_there_is_one_write_at_a_time_to_an_object_that_was_forgotten_and_is_reported_again() -> None:
    store, api = Store(index_pgrole), SlowStatusApi()
    store.put(made(1))
    statuses = StatusWriter(cast("Client", api), store, lambda *_: None, Signal())
    statuses.put(PendingStatus(made(1), RECONCILED))
    statuses.forget(KEY)
    statuses.put(PendingStatus(made(1), RECONCILED))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(statuses.run)
        await anyio.sleep(0.5)
        statuses.put(PendingStatus(made(1), OTHER))
        statuses.close()
    assert (api.asked, api.most) == (2, 1)


@pytest.mark.parametrize("state", ["failed", "waiting"])
async def test_a_withdrawn_status_leaves_the_drifts_that_it_would_have_told_to_the_next(
    objects: Objects, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    """Both PostgreSQL and the API server were away."""
    monkeypatch.setattr(status_writer, "_BACKOFF", Backoff(3600.0, 3600.0))
    now = datetime.now(UTC) - timedelta(hours=1)
    claim = Claim("app", 1, 1, Owner("c1", "shop", "n1", "app", "u1"), "")
    details = [
        StatusDetails(replace(claim, last_drift_at=now + timedelta(seconds=each), last_drift_fields=(f"f{each}",)))
        for each in range(2)
    ]
    away = Outcome(Phase.WORKING, Reason.SERVER_NOT_READY, "away")
    api = FailingApi(3 if state == "failed" else 2, lambda: None)
    statuses = StatusWriter(cast("Client", api), objects.store, lambda *_: None, Signal())
    objects.store.put(made(1))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(statuses.run)
        for one in details:
            statuses.put(PendingStatus(made(1), RECONCILED, one))
            await anyio.wait_all_tasks_blocked()
        statuses.put(PendingStatus(made(1), away))
        if state == "failed":
            await anyio.wait_all_tasks_blocked()
        statuses.withdraw([KEY], Reason.SERVER_NOT_READY)
        await anyio.wait_all_tasks_blocked()
        statuses.put(PendingStatus(made(1), RECONCILED, details[1]))
        await anyio.wait_all_tasks_blocked()
        statuses.close()
    assert api.history == ["f1", "f0"]


@pytest.mark.parametrize("state", ["waiting", "reconciled"])
async def test_a_status_of_an_earlier_spec_leaves_the_drifts_that_it_would_have_told_to_the_next(
    objects: Objects, state: str
) -> None:
    """The spec changed while the status waited to be written, or while the object was reconciled."""
    now = datetime.now(UTC) - timedelta(hours=1)
    claim = Claim("app", 1, 1, Owner("c1", "shop", "n1", "app", "u1"), "")
    first, second, third = (
        StatusDetails(replace(claim, last_drift_at=now + timedelta(seconds=each), last_drift_fields=(f"f{each}",)))
        for each in range(3)
    )
    api = FailingApi(0, lambda: None)
    statuses = StatusWriter(cast("Client", api), objects.store, lambda *_: None, Signal())
    seen = pack(made(1).object() | {"status": {"observedGeneration": 1}})
    objects.store.put(seen)
    statuses.put(PendingStatus(seen, RECONCILED, first))
    if state == "waiting":
        statuses.put(PendingStatus(seen, RECONCILED, second))
    objects.store.put(made(2))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(statuses.run)
        await anyio.wait_all_tasks_blocked()
        if state == "reconciled":
            statuses.put(PendingStatus(seen, RECONCILED, second))
            await anyio.wait_all_tasks_blocked()
        assert api.asked == 0
        statuses.put(PendingStatus(made(2), RECONCILED, third))
        await anyio.wait_all_tasks_blocked()
        statuses.close()
    assert api.history == ["f2", "f1", "f0"]


@pytest.mark.parametrize("declared", [True, False])
async def test_a_report_that_is_written_after_its_server_was_removed_makes_no_series(
    objects: Objects, declared: bool
) -> None:
    metrics.expect_server("default")
    statuses = StatusWriter(cast("Client", StatusApi()), objects.store, lambda *_: None, Signal())
    objects.store.put(made(1))
    outcome = Outcome(Phase.PAUSED, Reason.DRIFT_REPORTED, "drift detected but not corrected")
    statuses.put(PendingStatus(made(1), outcome, StatusDetails(reported=("login",))))
    if not declared:
        metrics.forget_server("default")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(statuses.run)
        statuses.close()
    series = {"server": "default", "field": "login", "action": "reported"}
    assert metrics.REGISTRY.get_sample_value("pgrole_drifts_total", series) == (1.0 if declared else None)
    metrics.forget_server("default")


@pytest.mark.parametrize(
    ("reason", "ready", "last", "counted"),
    [
        ("DriftReported", False, {}, None),
        ("ServerNotReady", False, {}, None),
        ("Suspended", False, {}, None),
        ("Reconciled", True, {}, 1.0),
        ("ServerNotReady", False, {"fields": ["createdb"]}, 1.0),
        ("ServerNotReady", False, {"corrected": True}, 1.0),
        ("ServerNotReady", False, {"database": "orders"}, 1.0),
    ],
    ids=["standing", "after an outage", "resumed", "undone", "another field", "corrected", "of privileges"],
)
async def test_a_reported_drift_is_counted_once_whatever_else_status_said_meanwhile(
    objects: Objects, reason: str, ready: bool, last: dict[str, Any], counted: float | None
) -> None:
    metrics.expect_server("default")
    condition = {"type": "Ready", "status": str(ready), "reason": reason, "message": "x"}
    condition["lastTransitionTime"] = "2026-05-06T07:08:09Z"
    drift = {"time": "2026-05-06T07:08:09Z", "fields": ["login"], "corrected": False, **last}
    seen = pack(made(1).object() | {"status": {"conditions": [condition], "lastDrift": drift}})
    objects.store.put(seen)
    api = StatusApi()
    statuses = StatusWriter(cast("Client", api), objects.store, lambda *_: None, Signal())
    outcome = Outcome(Phase.PAUSED, Reason.DRIFT_REPORTED, "drift detected but not corrected")
    statuses.put(PendingStatus(seen, outcome, StatusDetails(reported=("login",))))
    statuses.close()
    await statuses.run()
    assert api.asked == 1
    series = {"server": "default", "field": "login", "action": "reported"}
    found = metrics.REGISTRY.get_sample_value("pgrole_drifts_total", series)
    metrics.forget_server("default")
    assert found == counted


async def test_a_status_that_another_client_overwrote_is_written_again(objects: Objects) -> None:
    api = StatusApi()
    statuses = StatusWriter(cast("Client", api), objects.store, lambda *_: None, Signal())
    objects.store.put(made(1))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(statuses.run)
        statuses.put(PendingStatus(made(1), RECONCILED))
        await anyio.wait_all_tasks_blocked()
        now = objects.store.get(KEY)
        assert now is not None
        statuses.put(PendingStatus(now, RECONCILED))
        await anyio.wait_all_tasks_blocked()
        assert api.asked == 1
        other = copy.deepcopy(now.object())
        other["metadata"]["resourceVersion"] = "10"
        other["status"]["conditions"][0]["status"] = "False"
        objects.store.put(pack(other))
        statuses.put(PendingStatus(now, RECONCILED))
        await anyio.wait_all_tasks_blocked()
        assert api.asked == 2
        statuses.close()


@pytest.mark.parametrize(("before", "events"), [("login", 0), ("createdb", 1)])
async def test_a_restarted_controller_announces_no_reported_drift_of_the_role_that_status_has(
    objects: Objects, monkeypatch: pytest.MonkeyPatch, before: str, events: int
) -> None:
    told = of_read_back(Plan("app", reported=(before,)))
    conditions = [{"type": "Ready", "status": "False", "lastTransitionTime": "2026-05-06T07:08:09Z"}]
    conditions[0] |= {"reason": told.reason.value, "message": told.message}
    seen = pack(made(1).object() | {"status": {"conditions": conditions}})
    objects.store.put(seen)
    client = cast("Client", StatusApi())
    queue = Queue()
    recorder, endings = Recorder(client), Endings(queue, Contests())
    recorded: list[str] = []
    monkeypatch.setattr(Recorder, "record", lambda _self, _stored, *, reason, **_: recorded.append(reason))
    reporter = Reporter(client, objects.store, endings, recorder)
    queue.put("default", Request(seen.key, RequestReason.OBJECT))
    await queue.take("default", 1)
    reporter.report(Result(Target(seen.key, seen), of_read_back(Plan("app", reported=("login",))), reported=("login",)))
    reporter.close()
    await reporter.run()
    recorder.close()
    await recorder.run()
    assert recorded == ["DriftReported"] * events


class HangingApi(StatusApi):
    """Answers no write to the objects of namespace slow, as where an admission webhook hangs."""

    reachability = Reachability()

    async def request(self, _method: str, path: str, *, body: dict[str, Any], **more: object) -> bytes:
        if "/namespaces/slow/" in path:
            await anyio.sleep_forever()
        return await super().request(_method, path, body=body, **more)


@pytest.mark.parametrize("write", ["status", "finalizer"])
@in_timelapse
async def test_writes_that_are_not_answered_in_one_namespace_do_not_delay_those_of_others(write: str) -> None:
    objects = Objects(Store(index_pgrole), Store(index_by_owner), Namespaces(cast("Client", None), Store()), "c1")
    client, queue = cast("Client", HangingApi()), Queue()
    context = make_writing(client, objects, queue, Recorder(client))

    async def report(stored: Stored) -> None:
        objects.store.put(stored)
        queue.put("default", Request(stored.key, RequestReason.OBJECT))
        await queue.take("default", 1)
        target = Target(stored.key, stored, finalizer=None if write == "status" else True)
        context.hand_on(Result(target, outcome=RECONCILED))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(context.reporter.run)
        tasks.start_soon(context.background.run)
        for number in range(200):
            await report(made(1, namespace="slow", name=f"r{number}", uid=f"s{number}"))
        await anyio.sleep(WRITE_SECONDS + 1.0)
        await report(made(1))
        await anyio.sleep(1.0)
        written = objects.store.get(KEY)
        assert written is not None
        assert written.resource_version == "9"
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("prepared", ["finalizer", "password"])
@in_timelapse
async def test_nothing_is_prepared_for_a_result_whose_event_cannot_be_recorded(
    objects: Objects, monkeypatch: pytest.MonkeyPatch, prepared: str
) -> None:
    """Once the finalizer is removed, no one would see that; the reconcile is retried instead."""

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError

    api, queue, seen = FinalizerRefusingApi(403), Queue(), made(1)
    objects.store.put(seen)
    recorder = Recorder(cast("Client", api))
    context = make_writing(cast("Client", api), objects, queue, recorder)
    queue.put("default", Request(seen.key, RequestReason.OBJECT))
    await queue.take("default", 1)
    monkeypatch.setattr(recorder, "record", fail)
    task = cast("PasswordTask", "task") if prepared == "password" else None
    finalizer = True if prepared == "finalizer" else None
    context.hand_on(Result(Target(seen.key, seen, finalizer=finalizer), action=Action.CREATED, password_task=task))
    monkeypatch.undo()
    await write_all(context)
    (status,) = api.statuses
    assert next(one["reason"] for one in status["conditions"] if one["type"] == "Ready") == "InternalError"
    with anyio.fail_after(60.0):
        (again,) = await queue.take("default", 1)
    assert again.failures == 1


class GoneApi(StatusApi):
    async def request(self, *_: object, **__: object) -> bytes:
        raise ApiError(404, "NotFound", "gone")


async def test_an_object_that_is_gone_before_its_finalizer_is_set_is_forgotten(objects: Objects) -> None:
    client, queue, seen = cast("Client", GoneApi()), Queue(), made(1)
    objects.store.put(seen)
    context = make_writing(client, objects, queue, Recorder(client))
    queue.put("default", Request(seen.key, RequestReason.OBJECT))
    await queue.take("default", 1)
    context.hand_on(Result(Target(seen.key, seen, finalizer=True)))
    await write_all(context)
    assert objects.store.get(seen.key) is None


class StrippingApi(StatusApi):
    """Takes every finalizer from what is written, like a mutating admission webhook."""

    reachability = Reachability()

    def __init__(self) -> None:
        super().__init__()
        self.finalizers = 0
        self.statuses: list[dict[str, Any]] = []

    async def request(self, _method: str, path: str, *, body: dict[str, Any], **more: object) -> bytes:
        written = json.loads(await super().request(_method, path, body=body, **more))
        if "status" in path:
            self.statuses.append(body["status"])
        else:
            self.finalizers += 1
            assert self.finalizers < 100, "set again and again without a pause"
        written["metadata"] |= {"finalizers": [], "resourceVersion": str(9 + len(self.statuses))}
        return json.dumps(written).encode()


@in_timelapse
async def test_a_finalizer_that_does_not_stay_is_reported_and_set_again_with_back_off() -> None:
    objects = Objects(Store(index_pgrole), Store(index_by_owner), Namespaces(cast("Client", None), Store()), "c1")
    api, queue, seen = StrippingApi(), Queue(), made(1)
    client = cast("Client", api)
    objects.store.put(seen)
    context = make_writing(client, objects, queue, Recorder(client))

    async def reconcile() -> None:
        while True:
            for request in await queue.take("default", 1):
                context.hand_on(Result(Target(request.key, objects.store.get(request.key), finalizer=True)))

    queue.put("default", Request(seen.key, RequestReason.OBJECT))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(context.reporter.run)
        tasks.start_soon(context.background.run)
        tasks.start_soon(reconcile)
        await anyio.sleep(60.0)
        tasks.cancel_scope.cancel()
    assert 3 < api.finalizers < 12
    ready = next(one for one in api.statuses[0]["conditions"] if one["type"] == "Ready")
    assert (ready["status"], ready["reason"]) == ("False", "Conflict")
    assert "removes finalizer pgrole.dev/drop" in ready["message"]


class FinalizerRefusingApi(StatusApi):
    """Refuses finalizers with this status code."""

    reachability = Reachability()

    def __init__(self, status: int) -> None:
        super().__init__()
        self.status = status
        self.statuses: list[dict[str, Any]] = []

    async def request(self, _method: str, path: str, *, body: dict[str, Any] | None = None, **more: object) -> bytes:
        if body is None:
            return json.dumps(made(1).object()).encode()
        if "status" not in path:
            raise ApiError(self.status, "Forbidden", 'admission webhook "w.example" denied the request: not today')
        self.statuses.append(body["status"])
        return await super().request(_method, path, body=body, **more)


@in_timelapse
@pytest.mark.parametrize("status", [400, 403, 422, 429, 500, 503])
@pytest.mark.parametrize("verb", ["set", "remove"])
async def test_a_finalizer_that_the_api_server_refuses_is_reported_on_the_object(
    objects: Objects, monkeypatch: pytest.MonkeyPatch, verb: str, status: int
) -> None:
    """Otherwise an object with Drop would have no status at all, and a deleted one would say that it is Ready."""
    api, queue, told = FinalizerRefusingApi(status), Queue(), list[str]()
    seen = made(1) if verb == "set" else made(1, finalizers=[FINALIZER], deletionTimestamp="2027-01-01T00:00:00Z")
    objects.store.put(seen)
    recorder = Recorder(cast("Client", api))
    monkeypatch.setattr(recorder, "record", lambda *_, reason, **__: told.append(reason))
    context = make_writing(cast("Client", api), objects, queue, recorder)
    queue.put("default", Request(seen.key, RequestReason.OBJECT))
    await queue.take("default", 1)
    target = Target(seen.key, seen, finalizer=True if verb == "set" else None)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(context.reporter.run)
        tasks.start_soon(context.background.run)
        context.hand_on(Result(target, done_with=verb == "remove"))
        await anyio.sleep(1.0)
        tasks.cancel_scope.cancel()
    if status in (429, 503):
        assert (api.statuses, told) == ([], [])
        return
    assert told == ["Conflict"]
    ready = next(one for one in api.statuses[0]["conditions"] if one["type"] == "Ready")
    assert (ready["status"], ready["reason"]) == ("False", "Conflict")
    assert f"refuses to {verb} finalizer pgrole.dev/drop: {status} " in ready["message"]
    assert "not today" in ready["message"]


class OlderApi(StatusApi):
    """Has the CRDs of the previous release."""

    older = True

    async def request(self, _method: str, path: str, *, body: dict[str, Any], **more: object) -> bytes:
        if self.older and "driftHistory" in body["status"]:
            raise ApiError(500, "InternalError", ".status.driftHistory: field not declared in schema")
        written = json.loads(await super().request(_method, path, body=body, **more))
        written["metadata"]["resourceVersion"] = str(9 + self.asked)
        return json.dumps(written).encode()


@in_timelapse
async def test_what_older_crds_refused_is_written_once_they_are_upgraded() -> None:
    store, api, seen = Store(index_pgrole), OlderApi(), made(1)
    store.put(seen)
    writer = StatusWriter(cast("Client", api), store, lambda *_: None, Signal())
    owner = Owner("c1", "shop", "n1", "app", "u1")
    drifted = datetime(2026, 1, 1, tzinfo=UTC)
    claim = Claim("app", 1, 7, owner, "x", drift_count=1, last_drift_at=drifted, last_drift_fields=("login",))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(writer.run)
        for older in (True, False):
            api.older = older
            stored = store.get(KEY)
            assert stored is not None
            writer.put(PendingStatus(stored, RECONCILED, StatusDetails(claim, observed_at=drifted)))
            await anyio.sleep(OLDER_CRDS_SECONDS + 1.0)
            written = store.get(KEY)
            assert written is not None
            assert ("driftHistory" in written.object()["status"]) is not older
        tasks.cancel_scope.cancel()


class ForbiddingStatusApi(StatusApi):
    """Refuses every write, with this status code."""

    def __init__(self, status: int) -> None:
        super().__init__()
        self.status = status
        self.reachability = Reachability()

    async def request(self, _method: str, path: str, *, body: dict[str, Any], **more: object) -> bytes:
        await super().request(_method, path, body=body, **more)
        raise ApiError(self.status, "", "refused")


@in_timelapse
@pytest.mark.parametrize("status", [403, 413, 422, 500])
async def test_where_status_is_refused_an_event_tells_what_it_would_have_said_once(status: int) -> None:
    store, api, seen, told = Store(index_pgrole), ForbiddingStatusApi(status), made(1), list[Outcome]()
    store.put(seen)
    writer = StatusWriter(cast("Client", api), store, lambda outcome, *_: told.append(outcome), Signal())
    refused = Outcome(Phase.STALLED, Reason.NOT_ALLOWED, "superuser is not allowed")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(writer.run)
        writer.put(PendingStatus(seen, refused))
        await anyio.sleep(60.0)
        tasks.cancel_scope.cancel()
    assert api.asked > 1
    assert told == [refused]
