"""Invariant 7, errors per object: an unexpected failure is reported on its own object and on no other."""

import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgrole_controller import logs, metrics
from pgrole_controller.controller import background as background_module
from pgrole_controller.controller import objects as objects_module
from pgrole_controller.controller import observation as observation_module
from pgrole_controller.controller import reconcile as reconcile_module
from pgrole_controller.controller import result as result_module
from pgrole_controller.controller import session_keeper as session_keeper_module
from pgrole_controller.controller.background import EmptyingLimits
from pgrole_controller.controller.namespaces import Namespaces
from pgrole_controller.controller.objects import Objects, Target, index_by_owner, index_pgrole, role_of, server_of
from pgrole_controller.controller.privileges.grantees import Grantees
from pgrole_controller.controller.queue import Endings, Queue
from pgrole_controller.controller.reconcile import reconcile
from pgrole_controller.controller.reporter import Reporter
from pgrole_controller.controller.result import Result
from pgrole_controller.controller.server_config import ServerConfig
from pgrole_controller.controller.session_keeper import decline
from pgrole_controller.controller.sources import PgRoleSource
from pgrole_controller.controller.worker import ServerWorker
from pgrole_controller.controller.worker_memory import WorkerMemory
from pgrole_controller.core.connection_secret import Address
from pgrole_controller.core.contest import Contests
from pgrole_controller.core.desired import desired_role_of
from pgrole_controller.core.errors import PgRoleError, Reason, Transient
from pgrole_controller.core.next_attempt import Done, Retry
from pgrole_controller.core.outcome import Phase
from pgrole_controller.core.plan import Action, Plan
from pgrole_controller.core.policy import NOTHING_ALLOWED, References, ServerPolicy
from pgrole_controller.core.request import Key, Rank, Request, RequestReason
from pgrole_controller.core.state import Detection, Observed
from pgrole_controller.event_loop import Signal
from pgrole_controller.kube.client import Client
from pgrole_controller.kube.events import Recorder
from pgrole_controller.kube.server_side_apply import FINALIZER
from pgrole_controller.kube.store import Store
from pgrole_controller.kube.stored_object import Stored, pack
from pgrole_controller.postgres.catalog import ReferencedNames
from pgrole_controller.postgres.session import Session
from tests.timelapse import in_timelapse
from tests.worker_context import make_context

SECRET = "hunter2"
SERVER = ServerConfig(
    "default",
    None,
    ServerPolicy(replace(NOTHING_ALLOWED, role_names=("*",), attributes=frozenset({"login"})), namespaces=("*",)),
    Address("pg", 5432, "orders", "require"),
)
POISONED = Key("shop", "poisoned")
WELL = [Key("shop", f"well-{number}") for number in range(5)]
DEADLINE = 30.0


class Poison(RuntimeError):
    def __init__(self) -> None:
        super().__init__(SECRET)


class ErringSession:
    """A server without roles. `breaks` names the step that raises for the poisoned object."""

    identity = SimpleNamespace(system_identifier=7, own_roles=frozenset({"keeper"}))
    detection, cluster, fence = Detection(), "c1", None
    enforcing, has_current_schema = False, True

    def __init__(self, breaks: str) -> None:
        self._breaks = breaks

    def _fail(self, step: str, names: Sequence[str]) -> None:
        if self._breaks == step and "poisoned" in names:
            raise Poison

    async def read_roles(self, asked: Sequence[tuple[Key, str]]) -> list[Observed | PgRoleError]:
        self._fail("read_roles", [name for _, name in asked])
        return [Observed() for _ in asked]

    def doubt(self, names: Iterable[str]) -> None:
        assert not list(names)

    async def apply_plans(
        self, plans: Sequence[Plan], *, enforcing: bool = False, notes_rows: bool = False
    ) -> list[None]:
        assert not any((enforcing, notes_rows))
        self._fail("apply_plans", [plan.role_name for plan in plans])
        return [None] * len(plans)

    async def read_references(self, referenced: Sequence[ReferencedNames]) -> list[References | PgRoleError]:
        return [References() for _ in referenced]

    read_unheld = read_drop_states = read_references


@pytest.fixture(autouse=True)
def lines(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    caplog.set_level(logging.DEBUG, "pgrole_controller")
    logs._tracebacks = logs.RateLimit(logs.TRACEBACKS, 60.0)
    yield caplog
    assert SECRET not in "".join(str(vars(record)) for record in caplog.records)


@pytest.fixture
def objects() -> Objects:
    return make_objects()


def make_objects() -> Objects:
    namespaces = Store()
    namespaces.put(pack({"metadata": {"name": "shop", "uid": "n1", "resourceVersion": "1"}}))
    made = Objects(Store(index_pgrole), Store(index_by_owner), Namespaces(cast("Client", None), namespaces), "c1")
    made.store.synced.set()
    for key in (POISONED, *WELL):
        made.store.put(stored(key))
    return made


def make_worker(objects: Objects, queue: Queue) -> ServerWorker:
    return ServerWorker(SERVER, make_context(queue, objects))


def stored(key: Key, *, version: int = 1, spec: Any = None, status: Any = None, **more: Any) -> Stored:
    metadata = {
        "namespace": key.namespace,
        "name": key.name,
        "uid": f"uid-{key.name}",
        "resourceVersion": str(version),
        "generation": 1,
        "creationTimestamp": "2027-01-01T00:00:00Z",
        **more,
    }
    obj = {"apiVersion": "pgrole.dev/v1alpha1", "kind": "PgRole", "metadata": metadata, "spec": spec}
    return pack(obj | ({"spec": {"login": True}} if spec is None else {}) | ({"status": status} if status else {}))


def counted() -> float:
    return metrics.INTERNAL_ERRORS.labels("object")._value.get()  # type: ignore[no-any-return]


async def reconcile_all(objects: Objects, breaks: str = "") -> dict[Key, Result]:
    session = cast("Session", ErringSession(breaks))
    results = await reconcile([POISONED, *WELL], SERVER, objects, session, WorkerMemory(Grantees(), Contests()), (), {})
    return {result.key: result for result in results}


def assert_contained(results: dict[Key, Result]) -> None:
    assert set(results) == {POISONED, *WELL}
    outcome = results[POISONED].outcome
    assert outcome is not None
    assert (outcome.reason, outcome.phase, outcome.retried) == (Reason.INTERNAL_ERROR, Phase.WORKING, True)
    assert "Poison" in outcome.message
    assert SECRET not in outcome.message
    for key in WELL:
        other = results[key].outcome
        assert other is not None
        assert other.reason is not Reason.INTERNAL_ERROR


@pytest.mark.parametrize("step", ["read_roles", "apply_plans"])
async def test_a_shared_step_that_fails_for_one_object_is_repeated_for_each_object_alone(
    objects: Objects, step: str, lines: pytest.LogCaptureFixture
) -> None:
    before = counted()
    assert_contained(await reconcile_all(objects, step))
    assert counted() == before + 1
    (line,) = [record for record in lines.records if record.message == "unexpected error in one object"]
    assert vars(line)["object"] == "shop/poisoned"
    assert vars(line)["error"] == "Poison"
    assert "_fail" in vars(line)["traceback"]


@pytest.mark.parametrize("step", ["_observe", "_end", "_result"])
async def test_an_error_in_one_objects_step_is_reported_on_that_object_only(
    objects: Objects, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = getattr(result_module.ObjectReconcile, step)

    def poisoned(attempt: Any, *arguments: Any) -> Any:
        if attempt.target.key == POISONED:
            raise Poison
        return real(attempt, *arguments)

    monkeypatch.setattr(result_module.ObjectReconcile, step, poisoned)
    assert_contained(await reconcile_all(objects))


@pytest.mark.parametrize(("module", "place"), [(reconcile_module, "decide"), (observation_module, "find_role_to_drop")])
async def test_an_error_in_one_objects_decision_is_reported_on_that_object_only(
    objects: Objects, module: ModuleType, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = getattr(module, place)

    def poisoned(desired: Any, *arguments: Any) -> Any:
        if desired.role.name == "poisoned":
            raise Poison
        return real(desired, *arguments)

    monkeypatch.setattr(module, place, poisoned)
    assert_contained(await reconcile_all(objects))


@pytest.mark.parametrize("place", ["_parse", "proof_of", "desired_of"])
async def test_an_error_in_reading_one_object_is_reported_on_that_object_only(
    objects: Objects, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = getattr(objects_module, place)

    def poisoned(*arguments: Any, **named: Any) -> Any:
        if "poisoned" in repr(arguments):
            raise Poison
        return real(*arguments, **named)

    monkeypatch.setattr(objects_module, place, poisoned)
    if place == "proof_of":  # receives only the status
        objects.store.put(stored(POISONED, version=2, status={"note": "poisoned"}))
    assert_contained(await reconcile_all(objects))


async def test_an_unreadable_object_does_not_affect_a_younger_one_that_names_the_same_role(
    objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    young = Key("shop", "young")
    same = {"name": "poisoned"}
    objects.store.put(stored(young, spec=same, creationTimestamp="2028-01-01T00:00:00Z"))
    real = desired_role_of

    def poisoned(pgrole: Any) -> Any:
        if pgrole.metadata.name == "poisoned":
            raise Poison
        return real(pgrole)

    monkeypatch.setattr(objects_module, "desired_role_of", poisoned)
    request = objects.read(young, "default", SERVER.server_policy)
    assert request.desired is not None, request.error
    assert request.desired.older_rivals == ()


async def test_a_failure_of_the_whole_server_is_not_an_objects_error(objects: Objects) -> None:
    class FailingReads(ErringSession):
        async def read_roles(self, _: Sequence[tuple[Key, str]]) -> list[Observed | PgRoleError]:
            raise Transient(Reason.SERVER_NOT_READY, "away")

    session = cast("Session", FailingReads(""))
    with pytest.raises(Transient, match="away"):
        await reconcile([POISONED, *WELL], SERVER, objects, session, WorkerMemory(Grantees(), Contests()), (), {})


async def test_only_a_few_of_many_errors_are_logged_with_a_traceback(
    objects: Objects, lines: pytest.LogCaptureFixture
) -> None:
    before = counted()
    for _ in range(3 * logs.TRACEBACKS):
        await reconcile_all(objects, "read_roles")
    assert counted() == before + 3 * logs.TRACEBACKS
    # Each pass writes two lines: that the batch failed, and whose error it was.
    assert sum("traceback" in vars(record) for record in lines.records) == logs.TRACEBACKS


class SilentApi:
    """Accepts every status."""

    def __init__(self) -> None:
        self.statuses: list[dict[str, Any]] = []

    async def request(self, _method: str, _path: str, *, body: dict[str, Any], **_: object) -> bytes:
        self.statuses.append(body["status"])
        metadata = stored(POISONED, version=9).object()["metadata"]
        return json.dumps({"kind": "PgRole", "metadata": metadata, "status": body["status"]}).encode()


class Breaking:
    """A recorder that fails for every Event."""

    def __init__(self) -> None:
        self.quiet = Signal()

    def record(self, *_: object, **__: object) -> None:
        raise Poison


async def report(objects: Objects, result: Result) -> list[dict[str, Any]]:
    """Returns the statuses written while every Event fails, and checks that the reconcile ends."""
    api, broken, queue = SilentApi(), Breaking(), Queue()
    reporter = Reporter(cast("Client", api), objects.store, Endings(queue, Contests()), cast("Recorder", broken))
    queue.put("s", Request(result.key, RequestReason.OBJECT))
    await queue.take("s", 1)
    reporter.report(result)
    reporter.close()
    await reporter.run()
    with pytest.raises(LookupError):
        queue.done(result.key, Retry())
    return api.statuses


async def test_an_error_while_recording_an_event_is_reported_in_the_objects_status(objects: Objects) -> None:
    result = replace((await reconcile_all(objects))[POISONED], action=Action.CORRECTED)
    (status,) = await report(objects, result)
    (ready,) = [one for one in status["conditions"] if one["type"] == "Ready"]
    assert (ready["status"], ready["reason"]) == ("False", "InternalError")
    assert SECRET not in str(status)


async def test_a_malformed_status_does_not_stop_the_reporter(objects: Objects) -> None:
    seen = stored(POISONED, version=2, status={"conditions": [7, None], "lastDrift": 3, "driftCount": "many"})
    objects.store.put(seen)
    result = Result(Target(POISONED, seen), outcome=(await reconcile_all(objects))[POISONED].outcome)
    statuses = await report(objects, result)
    assert statuses[-1]["conditions"][0]["reason"] == "InternalError"


async def test_an_outage_is_reported_on_other_objects_despite_an_object_that_fails(
    objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[Key] = []

    class CountingReporter:
        def report(self, result: Result) -> None:
            reported.append(result.key)
            if len(reported) == len(WELL):
                tasks.cancel_scope.cancel()

    real = session_keeper_module._declined

    def poisoned(target: Target, error: Any) -> Result:
        if target.key == POISONED:
            raise Poison
        return real(target, error)

    monkeypatch.setattr(session_keeper_module, "_declined", poisoned)
    queue = Queue()
    for key in (POISONED, *WELL):
        queue.put("default", Request(key, RequestReason.OBJECT))
    with anyio.fail_after(DEADLINE):
        async with anyio.create_task_group() as tasks:
            error = Transient(Reason.SERVER_NOT_READY, "away")
            await decline(
                make_context(queue, objects, cast("Reporter", CountingReporter())), "default", lambda _: error
            )
    assert set(reported) == set(WELL)


@in_timelapse
async def test_an_outage_is_reported_at_a_limited_rate_but_at_once_on_changed_objects() -> None:
    """When the server is back, every status that reported the outage has to be written again."""
    objects = make_objects()
    many = [Key("shop", f"app-{number}") for number in range(1000)]
    queue, changed = Queue(), set[Key]()
    reported: dict[Key, float] = {}

    class TimingReporter:
        def report(self, result: Result) -> None:
            reported[result.key] = anyio.current_time()
            queue.done(result.key, Done())

    for key in many:
        objects.store.put(stored(key))
        queue.put("default", Request(key, RequestReason.SERVER_NOT_READY, Rank.DEPENDENCY))
    began = anyio.current_time()
    async with anyio.create_task_group() as tasks:
        error = Transient(Reason.SERVER_NOT_READY, "away")
        context = make_context(queue, objects, cast("Reporter", TimingReporter()))
        tasks.start_soon(decline, context, "default", lambda _: error, changed)
        await anyio.sleep(1.0)
        assert 90 <= len(reported) <= 110
        assert not changed
        queue.put("default", Request(POISONED, RequestReason.OBJECT, Rank.CHANGE))
        put = anyio.current_time()
        await anyio.sleep(0.1)
        assert reported[POISONED] - put < 0.05
        assert changed == {POISONED}
        await anyio.sleep(10.0)
        queue.close()
    assert set(many) <= set(reported)
    assert max(reported.values()) - began < 11.0


async def test_an_error_while_emptying_a_role_is_reported_on_its_object(
    objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def poisoned(*_: object, **__: object) -> None:
        raise Poison

    monkeypatch.setattr(background_module, "reassign_owned", poisoned)
    queue = Queue()
    background = make_context(queue, objects).background
    queue.put("default", Request(POISONED, RequestReason.OBJECT))
    await queue.take("default", 1)
    result = Result(objects.read(POISONED, "default", SERVER.server_policy), reassign=cast("Any", "task"))
    await background.empty_role(EmptyingLimits(), cast("Any", None), result, None, None)
    prepared = background.take(POISONED)
    assert prepared is not None
    assert prepared.problem is not None
    assert prepared.problem.reason is Reason.INTERNAL_ERROR
    assert [item.key for item in await queue.take("default", 1)] == [POISONED]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2)
    | st.dictionaries(
        st.sampled_from(
            [
                "serverRef", "name", "memberOf", "role", "password", "secretRef", "connectionSecret", "conditions",
                "type", "deletionPolicy", "drift", "template", "parameters", "databaseParameters", "server", "oid",
            ]
        ),
        inner,
        max_size=4,
    ),
    max_leaves=8,
)  # fmt: skip


@given(spec=JSON, status=JSON, annotations=JSON, finalizers=JSON, terminating=st.booleans())
def test_an_object_of_any_shape_is_indexed_requested_and_read(
    spec: Any, status: Any, annotations: Any, finalizers: Any, terminating: bool
) -> None:
    """An object that bypasses the schema, or has a later version of it, is at most an error of that object."""
    obj = stored(POISONED).object() | {"spec": spec, "status": status}
    obj["metadata"] |= {"annotations": annotations, "finalizers": finalizers}
    if terminating:
        obj["metadata"]["deletionTimestamp"] = "2027-01-01T00:00:00Z"
    namespaces = Store()
    namespaces.put(pack({"metadata": {"name": "shop", "uid": "n1", "resourceVersion": "1"}}))
    objects = Objects(Store(index_pgrole), Store(index_by_owner), Namespaces(cast("Client", None), namespaces), "c1")
    queue, before = Queue(), counted()
    source = PgRoleSource(objects, queue, make_context(queue, objects).background, {"default"}, Grantees())
    objects.store.subscribe(source.changed)
    list(index_by_owner(obj))

    async def go_on() -> None:
        objects.store.put(pack(obj))
        assert counted() == before, "the index and the sources take any shape"
        assert objects.of_server(server_of(obj)) == {POISONED}
        assert objects.sharing(server_of(obj), role_of(obj)) == {POISONED}
        request = objects.read(POISONED, None, SERVER.server_policy)
        assert request.error is None or request.error.reason in (Reason.INVALID_SPEC, Reason.INTERNAL_ERROR)
        objects.store.remove(POISONED, "uid-poisoned")

    anyio.run(go_on)


async def test_the_error_of_a_terminating_object_with_an_invalid_spec_names_the_way_out(objects: Objects) -> None:
    going = {"deletionTimestamp": "2027-01-01T00:00:00Z", "finalizers": [FINALIZER]}
    spec = {"connectionLimit": "none", "deletionPolicy": "Drop"}
    objects.store.put(stored(POISONED, version=2, spec=spec, **going))
    request = objects.read(POISONED, "default", SERVER.server_policy)
    assert request.finalizer is None
    assert request.error is not None
    assert request.error.reason is Reason.INVALID_SPEC
    assert "connectionLimit" in request.error.message
    assert "set spec.deletionPolicy: Retain" in request.error.message
    objects.store.put(stored(POISONED, version=3, spec={**spec, "deletionPolicy": "Retain"}, **going))
    assert objects.read(POISONED, "default", SERVER.server_policy).finalizer is False


async def test_notifications_that_name_a_role_come_before_those_of_many_roles(objects: Objects) -> None:
    """Anyone may send such a notification."""
    queue = Queue()
    worker = make_worker(objects, queue)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(worker._answer_many)
        worker._note_notification(None)
        await anyio.wait_all_tasks_blocked()
        worker._note_notification(("poisoned",))
        items = await queue.take("default", 100)
        tasks.cancel_scope.cancel()
    assert items[0].key == POISONED
    assert {item.key: item.rank for item in items} == {
        POISONED: Rank.DRIFT,
        **dict.fromkeys(WELL, Rank.DEPENDENCY),
    }


async def test_a_notification_about_a_group_reconciles_the_roles_that_want_to_join_it(objects: Objects) -> None:
    """Without this, only a retry with back-off would follow."""
    queue, member = Queue(), Key("shop", "member")
    objects.store.put(stored(member, spec={"memberOf": [{"role": "group"}]}))
    worker = make_worker(objects, queue)
    worker._note_notification(("group",))
    with anyio.fail_after(DEADLINE):
        (item,) = await queue.take("default", 100)
    assert (item.key, item.reason) == (member, RequestReason.NOTIFY_OF_GROUP)


async def test_a_notification_of_the_controllers_own_change_is_not_ranked_as_drift(objects: Objects) -> None:
    """It is reconciled nevertheless, in turn with other changes."""
    queue = Queue()
    worker = make_worker(objects, queue)
    worker.own_changes.begin(["poisoned"])
    worker.own_changes.commit(["poisoned"], 0.0)
    worker._note_notification(("poisoned",))
    assert [(item.key, item.rank) for item in await queue.take("default", 100)] == [(POISONED, Rank.CHANGE)]
    queue.done(POISONED, Done())
    worker._note_notification(("poisoned",))
    assert [(item.key, item.rank) for item in await queue.take("default", 100)] == [(POISONED, Rank.DRIFT)]


async def test_notifications_about_roles_are_passed_on_to_the_databases(
    objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A declaration there may wait for a creator."""
    worker, noted = make_worker(objects, Queue()), list[tuple[str, ...] | None]()
    monkeypatch.setattr(worker.databases, "note_roles", noted.append)
    worker._note_notification(("group",))
    worker._note_notification(None)
    assert noted == [("group",), None]
    monkeypatch.setattr(worker.databases, "note_renamed", noted.append)
    worker.keeper._callbacks.on_rename(("renamed",))
    assert noted[2:] == [("renamed",)]
