"""controller/server_reporter: reports on a PgServer describe what was declared and tried, and do not repeat."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, cast

import anyio
import pytest

from pgrole_controller.controller import server_reporter
from pgrole_controller.controller.leadership import Leadership
from pgrole_controller.controller.namespaces import Namespaces
from pgrole_controller.controller.objects import Objects, index_by_owner, index_pgrole
from pgrole_controller.controller.privileges.databases import DatabaseState
from pgrole_controller.controller.queue import Queue
from pgrole_controller.controller.server_config import ServerConfig
from pgrole_controller.controller.server_reporter import (
    FINALIZER,
    MOST_DATABASES,
    ServerReporter,
    select_databases,
)
from pgrole_controller.controller.session_keeper import SessionState
from pgrole_controller.controller.worker import ServerWorker
from pgrole_controller.core.connection_secret import Address
from pgrole_controller.core.errors import Reason, Refused, Transient, Waiting
from pgrole_controller.core.policy import ServerPolicy
from pgrole_controller.core.request import Key
from pgrole_controller.core.server_options import DatabaseMode
from pgrole_controller.core.status import build_conditions
from pgrole_controller.kube.client import Client
from pgrole_controller.kube.errors import ApiError
from pgrole_controller.kube.store import Store
from pgrole_controller.kube.stored_object import Stored, pack
from pgrole_controller.local.process import reached
from tests.timelapse import in_timelapse
from tests.worker_context import make_context

PATIENCE = 30.0


class ServerStatusApi:
    """Accepts every status; `requests` counts them."""

    def __init__(self) -> None:
        self.statuses: list[dict[str, Any]] = []
        self.requests = 0
        self.refuses = self.babbles = self.older = False
        self.asked = anyio.Event()

    async def request(self, method: str, path: str, *, body: dict[str, Any], **_: object) -> bytes:
        self.requests += 1
        self.asked.set()
        if self.refuses:
            raise ApiError(403, "Forbidden", f"{method} {path}")
        if self.older and "driftsPerHour" in body["status"]:
            raise ApiError(500, "InternalError", ".status.driftsPerHour: field not declared in schema")
        if self.babbles:
            return b"<html>bad gateway</html>"
        self.statuses.append(body["status"])
        about = metadata(2, "second") | {"resourceVersion": str(100 + self.requests)}
        return json.dumps({"metadata": about, "status": body["status"], "kind": "PgServer"}).encode()


def metadata(generation: int, uid: str) -> dict[str, Any]:
    return {
        "name": "main",
        "uid": uid,
        "generation": generation,
        "resourceVersion": str(generation),
        "finalizers": [FINALIZER],
    }


def declared(generation: int, uid: str) -> ServerConfig:
    return ServerConfig(
        "main",
        None,
        ServerPolicy(),
        Address("", 5432, "", ""),
        age=("2027-01-01T00:00:00Z", uid),
        generation=generation,
    )


def stored(generation: int, uid: str, **more: str) -> Stored:
    return pack({"kind": "PgServer", "metadata": metadata(generation, uid) | more, "spec": {}})


class ServerReporterWorld:
    def __init__(self, namespace: str | None = None) -> None:
        self.api, self.store = ServerStatusApi(), Store()
        client = cast("Client", self.api)
        namespaces = Namespaces(client, Store(), namespace)
        objects = self.objects = Objects(Store(index_pgrole), Store(index_by_owner), namespaces, "c1", namespace)
        objects.store.synced.set()
        self.store.answered.set()
        self.worker = ServerWorker(declared(1, "first"), make_context(Queue(), objects))
        self.reporter = ServerReporter(client, self.store, [self.worker], objects, Leadership())


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_reporter, "CHECK_SECONDS", 0.01)


@asynccontextmanager
async def running(world: ServerReporterWorld) -> AsyncIterator[None]:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(world.reporter.run)
        yield
        tasks.cancel_scope.cancel()


async def test_a_recreated_pgserver_does_not_get_the_status_of_its_predecessor() -> None:
    world = ServerReporterWorld()
    world.worker.keeper.state = SessionState.ACTIVE
    world.store.put(stored(2, "second"))
    async with running(world):
        with anyio.move_on_after(0.2):
            await world.api.asked.wait()
        assert world.api.statuses == []
        world.worker.keeper.server = declared(2, "second")
        with anyio.fail_after(PATIENCE):
            await world.api.asked.wait()
    assert world.api.statuses[0]["observedGeneration"] == 2


async def test_a_status_has_the_generation_that_it_describes() -> None:
    world = ServerReporterWorld()
    world.worker.keeper.state, world.worker.keeper.server = SessionState.ACTIVE, declared(1, "second")
    world.store.put(stored(2, "second"))
    async with running(world):
        with anyio.fail_after(PATIENCE):
            await world.api.asked.wait()
    (status,) = world.api.statuses
    assert status["observedGeneration"] == 1
    assert {one["observedGeneration"] for one in status["conditions"]} == {1}


async def test_a_pgserver_that_cannot_be_deleted_yet_reports_what_it_waits_for() -> None:
    world = ServerReporterWorld()
    world.worker.keeper.state, world.worker.keeper.server = SessionState.ACTIVE, declared(2, "second")
    about = {"name": "app", "namespace": "shop", "uid": "u", "resourceVersion": "1", "generation": 1}
    world.objects.store.put(pack({"kind": "PgRole", "metadata": about, "spec": {"serverRef": {"name": "main"}}}))
    world.store.put(stored(2, "second", deletionTimestamp="2027-01-01T00:00:00Z"))
    async with running(world):
        with anyio.fail_after(PATIENCE):
            await world.api.asked.wait()
    (status,) = world.api.statuses
    assert status["roles"]["declared"] == 1
    [ready] = [one for one in status["conditions"] if one["type"] == "Ready"]
    assert ready["status"] == "True"
    assert ready["message"].endswith("it is being deleted, and remains until no PgRole references it")


@pytest.mark.parametrize("namespace", [None, "team-b"])
async def test_a_pgserver_that_other_installations_keep_from_being_deleted_names_their_finalizers(
    namespace: str | None,
) -> None:
    world = ServerReporterWorld(namespace)
    world.worker.keeper.state, world.worker.keeper.server = SessionState.ACTIVE, declared(2, "second")
    finalizers = ["team-a.pgrole.dev/in-use", "example.com/other"]
    about = metadata(2, "second") | {"deletionTimestamp": "2027-01-01T00:00:00Z", "finalizers": finalizers}
    world.store.put(pack({"kind": "PgServer", "metadata": about, "spec": {}}))
    async with running(world):
        with anyio.fail_after(PATIENCE):
            await world.api.asked.wait()
    (status,) = world.api.statuses
    [ready] = [one for one in status["conditions"] if one["type"] == "Ready"]
    assert ready["message"].endswith("; installations for one namespace hold it with team-a.pgrole.dev/in-use")


async def test_a_server_that_reconnects_is_connecting_and_not_active() -> None:
    world = ServerReporterWorld()
    world.worker.keeper.state = SessionState.ACTIVE
    world.worker.keeper.reconnect("another host")
    assert world.worker.keeper.state is SessionState.CONNECTING


async def test_a_pgserver_whose_status_is_not_answered_delays_no_other() -> None:
    world = ServerReporterWorld()
    answering, names = world.api.request, ("hangs", "well")

    async def request(method: str, path: str, **named: Any) -> bytes:
        if "/hangs" in path:
            await anyio.sleep_forever()
        return await answering(method, path, **named)

    world.api.request = request  # type: ignore[method-assign]
    world.reporter._workers = [
        ServerWorker(replace(declared(2, name), name=name), make_context(Queue(), world.objects)) for name in names
    ]
    for name in names:
        world.store.put(pack({"kind": "PgServer", "metadata": metadata(2, name) | {"name": name}, "spec": {}}))
    async with running(world):
        with anyio.fail_after(PATIENCE):
            await world.api.asked.wait()


@in_timelapse
async def test_a_refused_write_is_not_repeated_at_each_check() -> None:
    world = ServerReporterWorld()
    world.api.refuses = True
    world.worker.keeper.server = declared(2, "second")
    world.store.put(stored(2, "second"))
    async with running(world):
        with anyio.move_on_after(0.5):
            await anyio.sleep_forever()
    assert 2 <= world.api.requests <= 7


async def test_an_answer_that_is_not_an_object_does_not_stop_the_reporter() -> None:
    world = ServerReporterWorld()
    world.api.babbles = True
    world.worker.keeper.server = declared(2, "second")
    world.store.put(stored(2, "second"))
    async with running(world):
        with anyio.fail_after(PATIENCE):
            await world.api.asked.wait()
        world.api.babbles = False

        async def is_written() -> bool:
            return bool(world.api.statuses)

        assert await reached(is_written, PATIENCE)


async def test_a_session_without_its_secret_is_reported_until_the_secret_exists_again() -> None:
    world = ServerReporterWorld()
    missing = Waiting(Reason.SERVER_NOT_READY, 'Secret "pg-admin" in namespace x is not there')
    well = declared(2, "second")
    world.worker.keeper.state = SessionState.ACTIVE
    world.store.put(stored(2, "second"))
    said: list[str] = []
    async with running(world):
        for server in (well, replace(well, problem=missing, lapsed=True), well):
            world.worker.keeper.server = server
            count = len(world.api.statuses)

            async def is_written(count: int = count) -> bool:
                return len(world.api.statuses) > count

            assert await reached(is_written, PATIENCE)
            [ready] = [one for one in world.api.statuses[-1]["conditions"] if one["type"] == "Ready"]
            assert ready["status"] == "True"
            said.append(ready["message"])
    assert missing.message in said[1]
    assert said[0] == said[2]
    assert missing.message not in said[2]


async def test_what_may_not_be_meant_as_declared_is_told_although_the_server_is_ready() -> None:
    world = ServerReporterWorld()
    world.worker.keeper.state = SessionState.ACTIVE
    world.worker.keeper.server = replace(declared(2, "second"), caveat="spec.allow.roleNames: {ns}")
    world.store.put(stored(2, "second"))
    async with running(world):

        async def is_written() -> bool:
            return bool(world.api.statuses)

        assert await reached(is_written, PATIENCE)
    [ready] = world.api.statuses[-1]["conditions"]
    assert (ready["status"], ready["reason"]) == ("True", "Reconciled")
    assert ready["message"].endswith("; spec.allow.roleNames: {ns}")


async def test_a_connection_that_is_not_the_declared_one_is_not_ready() -> None:
    world = ServerReporterWorld()
    refused = Transient(Reason.SERVER_NOT_READY, "the objects of spec.connection cannot be read: 403 Forbidden")
    world.worker.keeper.state = SessionState.ACTIVE
    world.store.put(stored(2, "second"))
    for outdated in False, True:
        world.worker.keeper.server = replace(declared(2, "second"), problem=refused, outdated=outdated)
        async with running(world):
            count = len(world.api.statuses)

            async def is_written(count: int = count) -> bool:
                return len(world.api.statuses) > count

            assert await reached(is_written, PATIENCE)
        [ready] = [one for one in world.api.statuses[-1]["conditions"] if one["type"] == "Ready"]
        assert (ready["status"], ready["reason"]) == (
            ("False", "ServerNotReady") if outdated else ("True", "Reconciled")
        )
        assert refused.message in ready["message"]


async def test_a_changed_pgserver_is_not_reported_with_the_error_of_its_former_declaration() -> None:
    world = ServerReporterWorld()
    keeper = world.worker.keeper
    keeper.server, keeper.state = declared(2, "second"), SessionState.UNAVAILABLE
    keeper.trouble, keeper.untried = Refused(Reason.CONFLICT, "the first one's"), True
    world.store.put(stored(2, "second"))
    async with running(world):

        async def is_written() -> bool:
            return bool(world.api.statuses)

        assert await reached(is_written, PATIENCE)
    conditions = {one["type"]: one["reason"] for one in world.api.statuses[-1]["conditions"]}
    assert conditions == {"Ready": "Progressing", "Reconciling": "Progressing"}


async def test_an_error_in_reporting_a_pgserver_does_not_stop_the_reporter(monkeypatch: pytest.MonkeyPatch) -> None:
    world = ServerReporterWorld()
    world.worker.keeper.state, world.worker.keeper.server = SessionState.ACTIVE, declared(2, "second")
    world.store.put(stored(2, "second"))
    real = build_conditions
    broken: list[int] = []

    def poisoned(*arguments: Any, **named: Any) -> Any:
        if not broken:
            broken.append(1)
            raise RuntimeError("hunter2")
        return real(*arguments, **named)

    monkeypatch.setattr(server_reporter, "build_conditions", poisoned)
    async with running(world):
        with anyio.fail_after(PATIENCE):
            await world.api.asked.wait()
    assert broken


#: A fixed time, so that the hour does not change during a test.
DRIFTED_AT = datetime.now(UTC)
HOUR = f"{DRIFTED_AT:%Y-%m-%dT%H}:00:00Z"


def drifted(world: ServerReporterWorld, corrected: int) -> None:
    counts = world.worker.drift_counts
    counts.counted = counts.counted.add(DRIFTED_AT, corrected=corrected)


async def status_with(world: ServerReporterWorld, status: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the statuses written to a PgServer that had this one before."""
    world.worker.keeper.state, world.worker.keeper.server = SessionState.ACTIVE, declared(2, "second")
    world.store.put(pack({"kind": "PgServer", "metadata": metadata(2, "second"), "spec": {}, "status": status}))
    async with running(world):
        with anyio.fail_after(PATIENCE):
            await world.api.asked.wait()
    return world.api.statuses


async def test_drifts_are_added_to_those_that_an_earlier_process_counted() -> None:
    world = ServerReporterWorld()
    drifted(world, 2)
    before = {"hour": HOUR, "corrected": 5, "reported": 1}
    old = {"hour": "2020-01-01T00:00:00Z", "corrected": 9, "reported": 9}
    (status,) = await status_with(world, {"driftsPerHour": [before, old]})
    assert status["driftsPerHour"] == [{"hour": HOUR, "corrected": 7, "reported": 1}]


async def test_a_new_drift_alone_is_not_written_at_once() -> None:
    world = ServerReporterWorld()
    world.worker.keeper.state, world.worker.keeper.server = SessionState.ACTIVE, declared(2, "second")
    world.store.put(stored(2, "second"))
    async with running(world):
        with anyio.fail_after(PATIENCE):
            await world.api.asked.wait()
        drifted(world, 1)
        await anyio.sleep(0.1)
    assert [status["driftsPerHour"] for status in world.api.statuses] == [[]]


async def test_drifts_whose_write_failed_are_written_again_at_once() -> None:
    world = ServerReporterWorld()
    world.api.refuses = True
    drifted(world, 1)
    assert await status_with(world, {"driftsPerHour": []}) == []
    world.api.refuses = False
    async with running(world):

        async def is_written() -> bool:
            return bool(world.api.statuses)

        assert await reached(is_written, PATIENCE)
    assert world.api.statuses[0]["driftsPerHour"] == [{"hour": HOUR, "corrected": 1, "reported": 0}]


async def test_older_crds_get_the_status_without_drifts() -> None:
    world = ServerReporterWorld()
    world.api.older = True
    drifted(world, 2)
    world.worker.keeper.state, world.worker.keeper.server = SessionState.ACTIVE, declared(2, "second")
    world.store.put(stored(2, "second"))
    async with running(world):
        with anyio.fail_after(PATIENCE):
            while not world.api.statuses:  # noqa: ASYNC110 - what the reporter wrote is seen from outside only
                await anyio.sleep(0.01)
        await anyio.sleep(0.1)
    (status,) = world.api.statuses
    assert "driftsPerHour" not in status
    assert world.api.requests == 2


@pytest.mark.parametrize(("namespace", "again"), [("team-a", False), (None, True)])
async def test_installations_of_a_namespace_each_do_not_overwrite_each_others_status(
    namespace: str | None, again: bool
) -> None:
    world = ServerReporterWorld(namespace)
    world.worker.keeper.state, world.worker.keeper.server = SessionState.ACTIVE, declared(2, "second")
    world.store.put(stored(2, "second"))
    async with running(world):
        with anyio.fail_after(PATIENCE):
            while not world.api.statuses:  # noqa: ASYNC110 - what the reporter wrote is seen from outside only
                await anyio.sleep(0.01)
        [own] = world.api.statuses
        others = own | {"databases": [{"name": "theirs", "ready": True, "message": ""}]}
        about = metadata(2, "second") | {"resourceVersion": "200"}
        world.store.put(pack({"kind": "PgServer", "metadata": about, "spec": {}, "status": others}))
        await anyio.sleep(0.1)
        assert (len(world.api.statuses) > 1) is again
        world.worker.keeper.state = SessionState.SUSPENDED
        count = len(world.api.statuses)

        async def is_written() -> bool:
            return len(world.api.statuses) > count

        assert await reached(is_written, PATIENCE)
    assert "databases" not in world.api.statuses[-1]


class TwoInstallations:
    """Two installations, for a namespace each, that share a PgServer. The API server counts the writes of both."""

    def __init__(self) -> None:
        self.one, self.other = ServerReporterWorld("team-a"), ServerReporterWorld("team-b")
        self.other.api = self.one.api
        self.other.reporter._client, self.other.reporter._store = self.one.reporter._client, self.one.store
        for world in (self.one, self.other):
            world.worker.keeper.server = declared(2, "second")
        self.one.store.put(stored(2, "second"))

    @property
    def said(self) -> list[tuple[str, str]]:
        """Status and reason of Ready in each status that was written."""
        return [
            (one["status"], one["reason"])
            for status in self.one.api.statuses
            for one in status["conditions"]
            if one["type"] == "Ready"
        ]


@in_timelapse
async def test_installations_that_find_different_states_do_not_overwrite_each_others_condition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server_reporter, "YIELD_SECONDS", 5.0)
    both = TwoInstallations()
    both.one.worker.keeper.state = SessionState.ACTIVE
    both.other.worker.keeper.trouble = Waiting(Reason.SERVER_NOT_READY, "no answer in time")
    async with running(both.one), running(both.other):
        await anyio.sleep(3.0)
        assert len(both.said) == 2
        await anyio.sleep(4.0)
        assert len(both.said) == 3  # the other one may have been removed
        both.other.worker.keeper.state, both.other.worker.keeper.trouble = SessionState.SUSPENDED, None
        await anyio.sleep(1.0)
        assert both.said[-1] == ("False", "Suspended")


@in_timelapse
async def test_an_installation_that_starts_leaves_the_condition_of_one_that_is_connected() -> None:
    both = TwoInstallations()
    both.one.worker.keeper.state = SessionState.ACTIVE
    async with running(both.one):
        await anyio.sleep(1.0)
        async with running(both.other):
            await anyio.sleep(1.0)
            both.other.worker.keeper.state = SessionState.ACTIVE
            await anyio.sleep(1.0)
    assert set(both.said) == {("True", "Reconciled")}


@in_timelapse
async def test_nothing_is_kept_of_a_removed_pgserver() -> None:
    world = ServerReporterWorld("team-a")
    world.worker.keeper.state, world.worker.keeper.server = SessionState.ACTIVE, declared(2, "second")
    seen = stored(2, "second")
    world.store.put(seen)
    async with running(world):
        await anyio.sleep(1.0)
        assert seen.uid in world.reporter._reportings
        world.store.remove(seen.key, seen.uid)
        await anyio.sleep(1.0)
    kept = {
        name: value for name, value in vars(world.reporter).items() if "second" in str(value) or "main" in str(value)
    }
    assert {name for name in kept if isinstance(kept[name], dict)} == set()
    assert not world.reporter._reportings


@pytest.mark.parametrize("part", [None, "conditions", "version", "systemIdentifier", "detection", "driftsPerHour"])
@pytest.mark.parametrize(
    "odd",
    [
        None,
        5,
        "x",
        [],
        [5],
        [{}],
        {"a": 1},
        {"mode": "Auto", "passwords": True, "claims": "Database"},
        {"mode": "Watch", "passwords": "yes", "claims": "Database"},
        {"mode": "Watch", "passwords": True, "claims": []},
        {"mode": "Watch", "passwords": True, "claims": "Database", "a": 1},
        [{"type": "Ready", "status": "True"}],
        [{"type": [], "status": {}, "lastTransitionTime": "x"}],
        [{"type": "Ready", "status": "True", "lastTransitionTime": 5}],
    ],
)
async def test_a_status_that_no_schema_permits_is_replaced(part: str | None, odd: Any) -> None:
    """It was left as it was, and each attempt logged an unexpected error."""
    world = ServerReporterWorld()
    world.worker.keeper.state, world.worker.keeper.server = SessionState.ACTIVE, declared(2, "second")
    status = odd if part is None else {part: odd}
    world.store.put(pack({"kind": "PgServer", "metadata": metadata(2, "second"), "spec": {}, "status": status}))
    async with running(world):
        with anyio.fail_after(PATIENCE):
            await world.api.asked.wait()
    (written,) = world.api.statuses
    assert [(one["type"], one["status"]) for one in written["conditions"]] == [("Ready", "True")]
    assert isinstance(written["conditions"][0]["lastTransitionTime"], str)
    assert all(isinstance(written.get(name, ""), str) for name in ("version", "systemIdentifier"))
    assert "detection" not in written


async def test_what_is_known_of_a_server_stays_while_it_is_not_connected() -> None:
    world = ServerReporterWorld()
    known = {
        "version": "18.4",
        "systemIdentifier": "7712351501311253472",
        "detection": {"mode": "Watch", "passwords": True, "claims": "Database"},
    }
    world.worker.keeper.state, world.worker.keeper.server = SessionState.UNAVAILABLE, declared(2, "second")
    world.worker.keeper.trouble = Waiting(Reason.SERVER_NOT_READY, "the server is down")
    world.store.put(pack({"kind": "PgServer", "metadata": metadata(2, "second"), "spec": {}, "status": known}))
    async with running(world):
        with anyio.fail_after(PATIENCE):
            await world.api.asked.wait()
    (written,) = world.api.statuses
    assert {name: written.get(name) for name in known} == known


class SharedStatusApi(ServerStatusApi):
    """An admission policy adds a database and a condition to each status."""

    def __init__(self) -> None:
        super().__init__()
        self.database = {"name": "theirs", "ready": True, "message": ""}
        self.condition = {"type": "Theirs", "status": "True", "lastTransitionTime": "2027-01-01T00:00:00Z"}

    async def request(self, method: str, path: str, *, body: Any, **_: object) -> bytes:
        status = body["status"] if isinstance(body, dict) else body[-1]["value"]
        answer = json.loads(await super().request(method, path, body={"status": status}))
        answer["status"] = status | {
            "databases": [*status.get("databases", ()), self.database],
            "conditions": [*status["conditions"], self.condition],
        }
        return json.dumps(answer).encode()


@in_timelapse
async def test_what_a_policy_adds_to_the_status_is_not_written_against_again_and_again() -> None:
    world = ServerReporterWorld()
    world.api = SharedStatusApi()
    world.reporter._client = cast("Client", world.api)
    world.worker.keeper.state, world.worker.keeper.server = SessionState.ACTIVE, declared(2, "second")
    world.store.put(stored(2, "second"))
    async with running(world):
        await anyio.sleep(5.0)
        assert len(world.api.statuses) == 2
        world.worker.keeper.state = SessionState.SUSPENDED
        await anyio.sleep(5.0)
        assert len(world.api.statuses) == 4
        last = world.api.statuses[-1]
        about = metadata(2, "second") | {"resourceVersion": "200"}
        overwritten = {"kind": "PgServer", "metadata": about, "spec": {}, "status": last | {"conditions": []}}
        world.store.put(pack(overwritten))
        world.api.requests = 100
        await anyio.sleep(5.0)
        assert len(world.api.statuses) == 6


class FinalizerApi:
    """A PgServer whose finalizers are applied, each by a field manager of its own. Deleted, it goes with the last."""

    def __init__(self) -> None:
        self.owned: dict[str, list[str]] = {}
        self.deleted = False
        self.version = 2

    @property
    def finalizers(self) -> list[str]:
        return sorted({one for some in self.owned.values() for one in some})

    def read(self) -> Stored:
        about = metadata(2, "second") | {"finalizers": self.finalizers, "resourceVersion": str(self.version)}
        if self.deleted:
            about["deletionTimestamp"] = "2027-01-01T00:00:00Z"
        return pack({"kind": "PgServer", "metadata": about, "spec": {}})

    async def request(
        self, method: str, path: str, *, body: Any = None, query: dict[str, str] | None = None, **_: object
    ) -> bytes:
        self.version += 1
        if method == "PATCH" and not path.endswith("/status") and query is not None:
            wanted = body["metadata"].get("finalizers", [])
            assert not (self.deleted and set(wanted) - set(self.finalizers)), "Kubernetes refuses this"
            self.owned[query["fieldManager"]] = wanted
        return json.dumps(self.read().object()).encode()


@in_timelapse
async def test_a_pgserver_stays_while_any_of_several_installations_has_pgroles_for_it() -> None:
    api = FinalizerApi()
    one, other = ServerReporterWorld("team-a"), ServerReporterWorld("team-b")
    worlds = (one, other)
    for world, name in zip(worlds, ("team-a", "team-b"), strict=True):
        world.reporter._client = cast("Client", api)
        about = {"name": "app", "namespace": name, "uid": name, "resourceVersion": "1", "generation": 1}
        world.objects.store.put(pack({"kind": "PgRole", "metadata": about, "spec": {"serverRef": {"name": "main"}}}))

    async def watch() -> None:
        for world in worlds:
            world.store.put(api.read())
        await anyio.sleep(1.0)
        for world in worlds:
            world.store.put(api.read())

    async with running(one), running(other):
        await watch()
        await watch()
        assert api.finalizers == ["team-a.pgrole.dev/in-use", "team-b.pgrole.dev/in-use"]
        one.objects.store.remove(Key("team-a", "app"), "team-a")
        await watch()
        assert api.finalizers == ["team-b.pgrole.dev/in-use"]
        api.owned["pgrole-controller-finalizer"] = [FINALIZER]  # by an earlier release
        api.deleted, api.version = True, api.version + 1
        await watch()
        assert api.finalizers == ["team-b.pgrole.dev/in-use"]
        other.objects.store.remove(Key("team-b", "app"), "team-b")
        await watch()
        assert api.finalizers == []


class GoneServerApi:
    """The PgServer is gone, or another one has its name."""

    def __init__(self, successor: str | None) -> None:
        self.successor = successor
        self.patches = 0

    async def request(self, method: str, path: str, **_: object) -> bytes:
        self.patches += method == "PATCH"
        if self.successor is None:
            raise ApiError(404, "NotFound", f"{method} {path}")
        if method == "PATCH":
            raise ApiError(409, "Conflict", f"{method} {path}")
        return json.dumps({"kind": "PgServer", "metadata": metadata(1, self.successor)}).encode()


@in_timelapse
@pytest.mark.parametrize("successor", [None, "third"])
async def test_a_pgserver_that_is_gone_before_its_finalizer_is_set_is_forgotten(successor: str | None) -> None:
    world = ServerReporterWorld()
    api = GoneServerApi(successor)
    world.reporter._client = cast("Client", api)
    world.worker.keeper.state, world.worker.keeper.server = SessionState.ACTIVE, declared(2, "second")
    seen = pack({"kind": "PgServer", "metadata": metadata(2, "second") | {"finalizers": []}, "spec": {}})
    world.store.put(seen)
    async with running(world):
        await anyio.sleep(3.0)
    assert world.store.get(seen.key) is None
    assert api.patches == 1


def test_of_too_many_databases_those_without_a_session_are_kept() -> None:
    served = [DatabaseState(f"a{number:04}", DatabaseMode.EVENTS, "") for number in range(MOST_DATABASES)]
    failing = DatabaseState("z", None, "no session")
    assert select_databases([*served, failing]) == [*served[:-1], failing]
