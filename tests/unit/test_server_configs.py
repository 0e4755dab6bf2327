"""controller/servers: PgServers that are created, changed and deleted while other work is in progress."""

import copy
import json
from base64 import b64encode
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest

from pgrole_controller import metrics
from pgrole_controller.controller import servers as module
from pgrole_controller.controller.context import LiveServers
from pgrole_controller.controller.declaration import READ_SECONDS, ControllerConfig, index_pgserver, read_declaration
from pgrole_controller.controller.server_config import ServerConfig
from pgrole_controller.controller.servers import DENIED_SECONDS, ServerStores, ServerWorkers
from pgrole_controller.controller.session_keeper import SessionState
from pgrole_controller.controller.worker import ServerWorker
from pgrole_controller.core.connection_secret import Address
from pgrole_controller.core.errors import PgRoleError, Reason, Refused, Transient
from pgrole_controller.core.policy import ServerPolicy
from pgrole_controller.core.request import Key
from pgrole_controller.event_loop import Signal
from pgrole_controller.kube.client import Client
from pgrole_controller.kube.errors import ApiError, Unreachable
from pgrole_controller.kube.store import Store
from pgrole_controller.kube.stored_object import Stored, pack, pack_metadata
from pgrole_controller.local.process import reached
from pgrole_controller.postgres.capabilities import Identity
from tests.cpu_time import within_a_callback
from tests.timelapse import in_timelapse

SecretAnswer = Callable[[], dict[str, Any]]


def secret(password: str = "p") -> dict[str, Any]:
    data = {"username": "postgres", "password": password}
    return {
        "metadata": {"name": "any", "namespace": "default", "uid": "s", "resourceVersion": "1"},
        "type": "Opaque",
        "data": {key: b64encode(value.encode()).decode() for key, value in data.items()},
    }


class ServerConfigApi:
    """Answers every request with the same Secret; requests wait until `opened` is set."""

    def __init__(self) -> None:
        self.opened = anyio.Event()
        self.asked = anyio.Event()
        self.failure: Exception | None = None
        self.opened.set()

    async def request(self, *_: object, **__: object) -> bytes:
        self.asked.set()
        await self.opened.wait()
        if self.failure is not None:
            raise self.failure
        return json.dumps(secret()).encode()


class FakeWorker:
    """Once cancelled, ends only when `may_end` is set, like a worker whose transaction is shielded."""

    def __init__(self, server: ServerConfig) -> None:
        self.server = server
        self.began, self.may_end, self.ended = anyio.Event(), anyio.Event(), anyio.Event()
        self.retimed = Signal()
        self.keeper = SimpleNamespace(state=SessionState.CONNECTING)
        self.removed = anyio.Event()
        self.may_end.set()

    def remove(self) -> None:
        assert self.ended.is_set()
        self.removed.set()

    def declare(self, server: ServerConfig) -> None:
        self.server = server

    async def synced(self) -> None:
        await anyio.sleep_forever()

    async def run(self) -> None:
        self.began.set()
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await self.may_end.wait()
            self.ended.set()


class ServerConfigWorld:
    def __init__(self) -> None:
        self.api, self.observed = ServerConfigApi(), ServerStores(Store(index_pgserver), Store(), Store(), "default")
        self.workers: list[FakeWorker] = []
        self.moved: list[str] = []
        client = cast("Client", self.api)
        self.servers = ServerWorkers(client, self.observed, None, ControllerConfig(), self._make, self.moved.append)
        for store in (self.observed.pgservers, self.observed.secrets, self.observed.config_maps):
            store.subscribe(self.servers.changed)
        self._version = 0

    def _make(self, server: ServerConfig) -> ServerWorker:
        self.workers.append(FakeWorker(server))
        return cast("ServerWorker", self.workers[-1])

    def put(
        self,
        name: str,
        *,
        uid: str = "",
        database: str = "postgres",
        adopt: bool = False,
        by: Key | None = None,
        **more: object,
    ) -> None:
        """`more`: of spec.connection."""
        self._version += 1
        connection = {
            "hosts": ["127.0.0.1"],
            "database": database,
            "sslMode": "disable",
            "credentialsSecretRef": {"name": f"of-{name}"},
            **more,
        }
        metadata = {
            "name": name,
            "uid": uid or f"uid-{name}",
            "resourceVersion": str(self._version),
            "generation": self._version,
            "creationTimestamp": "2027-01-01T00:00:00Z",
        }
        spec = {"connection": connection, "allow": {"adopt": adopt}}
        obj = {"apiVersion": "pgrole.dev/v1alpha1", "kind": "PgServer", "metadata": metadata, "spec": spec}
        self.observed.pgservers.put(pack(obj), by)

    def remove(self, name: str) -> None:
        stored = self.observed.pgservers.get(Key("", name))
        assert stored is not None
        self.observed.pgservers.remove(stored.key, stored.uid)

    def worker(self, name: str) -> FakeWorker:
        return next(worker for worker in reversed(self.workers) if worker.server.name == name)

    async def until(self, true: Callable[[], bool], what: str) -> None:
        async def is_true() -> bool:
            return true()

        assert await reached(is_true, 5), f"timed out waiting for {what}"


@asynccontextmanager
async def running(world: ServerConfigWorld) -> AsyncIterator[None]:
    world.observed.pgservers.answered.set()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(world.servers.run)
        try:
            yield
        finally:
            for worker in world.workers:
                worker.may_end.set()
            tasks.cancel_scope.cancel()


async def test_a_pgserver_deleted_while_another_is_read_gets_no_worker() -> None:
    world = ServerConfigWorld()
    async with running(world):
        world.api.opened = anyio.Event()
        world.put("a")
        world.put("b")
        await world.api.asked.wait()
        world.remove("b")
        world.api.opened.set()
        await world.until(lambda: "a" in world.servers, "the worker of the other one")
        assert "b" not in world.servers


async def test_a_server_deleted_between_two_terms_leaves_no_series() -> None:
    for name in ("went", "stays"):
        metrics.expect_server(name)  # in the previous term
    world = ServerConfigWorld()
    world.put("stays")
    async with running(world):
        await world.until(world.servers.all_started.is_set, "the declared servers")
        text = metrics.render(None, 0.0).decode()
        assert 'server="went"' not in text
        assert 'pgrole_sessions_total{server="stays"}' in text
    metrics.forget_server("stays")


async def test_a_server_whose_worker_cannot_end_yet_does_not_delay_others() -> None:
    world = ServerConfigWorld()
    async with running(world):
        world.put("stuck")
        await world.until(lambda: "stuck" in world.servers, "the worker")
        stuck = world.worker("stuck")
        await stuck.began.wait()
        stuck.may_end = anyio.Event()
        world.remove("stuck")
        world.put("other")
        await world.until(lambda: "other" in world.servers, "the worker of the other one")
        assert not stuck.ended.is_set()


async def test_a_recreated_server_waits_for_its_former_worker_to_end() -> None:
    world = ServerConfigWorld()
    async with running(world):
        world.put("a")
        await world.until(lambda: "a" in world.servers, "the worker")
        first = world.worker("a")
        await first.began.wait()
        first.may_end = anyio.Event()
        world.remove("a")
        await world.until(lambda: "a" not in world.servers, "the removal")
        world.put("a", uid="second")
        await world.until(lambda: len(world.workers) == 2, "the second worker")
        second = world.workers[1]
        await anyio.lowlevel.checkpoint()
        assert not second.began.is_set()
        first.may_end.set()
        with anyio.fail_after(30):
            await second.began.wait()
        assert first.ended.is_set()
        assert not first.removed.is_set()  # the second worker has its keys
        assert world.moved[-1] == "a"


async def test_the_worker_of_a_deleted_server_is_removed_after_its_objects_have_moved() -> None:
    world = ServerConfigWorld()
    async with running(world):
        world.put("a")
        await world.until(lambda: "a" in world.servers, "the worker")
        worker = world.worker("a")
        await worker.began.wait()
        world.moved.clear()
        world.remove("a")
        with anyio.fail_after(30):
            await worker.removed.wait()
        assert world.moved == ["a", "a"]


async def test_another_policy_is_passed_on_before_any_secret_is_read() -> None:
    world = ServerConfigWorld()
    async with running(world):
        for name in ("a", "gone", "other"):
            world.put(name)
        await world.servers.catch_up()
        before = world.worker("a").server
        world.api.opened = anyio.Event()
        world.put("other", database="another")
        world.put("a", adopt=True)
        world.remove("gone")
        await world.until(lambda: world.worker("a").server.server_policy.template.adopt, "the other policy")
        assert world.worker("a").server.access == before.access
        assert "gone" not in world.servers
        assert world.worker("other").server.address.database == "postgres", "it cannot connect there yet"


@in_timelapse
async def test_a_secret_that_is_not_answered_delays_no_other_server_and_is_given_up() -> None:
    world = ServerConfigWorld()
    answers, opened = world.api.request, anyio.Event()

    async def request(method: str, path: str, **more: object) -> bytes:
        if path.endswith("/of-a"):
            await opened.wait()
        return await answers(method, path, **more)

    world.api.request = request  # type: ignore[method-assign, assignment]
    async with running(world):
        world.put("a")
        world.put("b")
        await anyio.sleep(1.0)
        assert "b" in world.servers
        assert "a" not in world.servers
        await anyio.sleep(READ_SECONDS)
        problem = world.worker("a").server.problem
        assert problem is not None
        assert problem.message == "the objects of spec.connection cannot be read: no answer in time"
        opened.set()
        await anyio.sleep(10.0)
        assert world.worker("a").server.problem is None


async def test_another_policy_and_a_deletion_do_not_wait_for_secrets_that_are_being_read() -> None:
    world = ServerConfigWorld()
    async with running(world):
        for name in ("a", "gone", "other"):
            world.put(name)
        await world.servers.catch_up()
        world.api.opened, world.api.asked = anyio.Event(), anyio.Event()
        world.put("other", database="another")
        await world.api.asked.wait()
        world.put("a", adopt=True)
        world.remove("gone")
        await world.until(lambda: world.worker("a").server.server_policy.template.adopt, "the other policy")
        assert "gone" not in world.servers
        world.put("other", database="a third")
        world.api.opened.set()
        await world.until(lambda: world.worker("other").server.address.database == "a third", "the latest")


async def test_who_catches_up_waits_until_the_workers_have_what_is_declared() -> None:
    world = ServerConfigWorld()
    async with running(world):
        await world.servers.catch_up()  # nothing is declared
        world.put("a")
        await world.servers.catch_up()
        assert "a" in world.servers
        world.api.opened, world.api.asked = anyio.Event(), anyio.Event()
        world.put("a", database="another")
        with anyio.move_on_after(0.1):
            await world.servers.catch_up()
            pytest.fail("the Secret is not read yet")
        world.api.opened.set()
        await world.servers.catch_up()
        assert world.worker("a").server.address.database == "another"


@pytest.mark.parametrize("failure", [Unreachable("no route"), ApiError(503, "Unavailable", "later")])
async def test_an_unreachable_api_server_does_not_end_a_session(failure: Exception) -> None:
    world = ServerConfigWorld()
    async with running(world):
        world.put("a")
        await world.until(lambda: "a" in world.servers, "the worker")
        world.api.failure = failure
        before = world.worker("a").server
        world.put("a", adopt=True)
        await world.until(lambda: world.worker("a").server.server_policy.template.adopt, "the other policy")
        assert world.worker("a").server.access == before.access


async def test_former_access_is_not_used_for_a_changed_connection_with_an_unreadable_secret() -> None:
    world = ServerConfigWorld()
    async with running(world):
        world.put("a")
        await world.until(lambda: "a" in world.servers, "the worker")
        world.api.failure = Unreachable("no route")
        world.put("a", database="another")
        await world.until(lambda: world.worker("a").server.problem is not None, "the problem")
        assert world.worker("a").server.endpoint is None


async def test_former_access_that_stays_in_use_for_a_changed_connection_is_told() -> None:
    """The address of applications is the same, so the session continues."""
    world = ServerConfigWorld()
    async with running(world):
        world.put("a")
        await world.until(lambda: "a" in world.servers, "the worker")
        world.api.failure = ApiError(403, "Forbidden", "no")
        world.put("a", adopt=True)
        await world.until(lambda: world.worker("a").server.problem is not None, "the problem")
        assert not world.worker("a").server.outdated, "only the policy changed"
        world.put("a", requireAuth=["scram-sha-256"])
        await world.until(lambda: world.worker("a").server.outdated, "the former connection")
        assert world.worker("a").server.endpoint is not None
        world.api.failure = None
        world.put("a", requireAuth=["scram-sha-256"], adopt=True)
        await world.until(lambda: world.worker("a").server.problem is None, "the connection")
        assert not world.worker("a").server.outdated


GONE = ApiError(404, "NotFound", "no such Secret")


async def until_lapsed(world: ServerConfigWorld) -> None:
    world.api.failure = GONE
    world.observed.secrets.put(pack_metadata(secret()))
    world.observed.secrets.remove(Key("default", "any"), "s")
    world.put("a", adopt=True)  # any change that causes another read
    await world.until(lambda: world.worker("a").server.problem is not None, "the missing Secret to be noticed")


async def test_a_session_continues_when_its_credentials_secret_is_deleted() -> None:
    world = ServerConfigWorld()
    async with running(world):
        world.put("a")
        await world.until(lambda: "a" in world.servers, "the worker")
        worker, before = world.worker("a"), world.worker("a").server
        worker.keeper.state = SessionState.ACTIVE
        await until_lapsed(world)
        assert worker.server.access == before.access, "the session is not ended"
        assert worker.server.lapsed, "but a new one cannot start"
        assert worker.server.server_policy.template.adopt, "its policy is the declared one"


async def test_credentials_of_a_deleted_secret_are_forgotten_with_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AGAIN_SECONDS", 0.01)
    world = ServerConfigWorld()
    async with running(world):
        world.put("a")
        await world.until(lambda: "a" in world.servers, "the worker")
        worker = world.worker("a")
        worker.keeper.state = SessionState.ACTIVE
        await until_lapsed(world)
        worker.keeper.state = SessionState.CONNECTING
        await world.until(lambda: worker.server.endpoint is None, "the credentials to be forgotten")
        assert all(declared.endpoint is None for _, declared in world.servers._read.values())
        world.api.failure = None
        await world.until(lambda: worker.server.endpoint is not None, "the restored Secret")
        assert not worker.server.lapsed
        assert worker.server.problem is None


async def test_a_server_whose_secret_never_existed_is_not_connected_to() -> None:
    world = ServerConfigWorld()
    world.api.failure = GONE
    async with running(world):
        world.put("a")
        await world.until(lambda: "a" in world.servers, "the worker")
        server = world.worker("a").server
        assert (server.endpoint, server.lapsed) == (None, False)
        assert server.problem is not None
        assert server.problem.reason is Reason.SERVER_NOT_READY


async def test_a_change_that_arrives_with_the_answer_to_an_own_write_takes_effect() -> None:
    """Only the answer to the write reveals the change, since the store has it from then on."""
    world = ServerConfigWorld()
    async with running(world):
        world.put("a")
        await world.until(lambda: "a" in world.servers, "the worker")
        world.put("a", adopt=True, by=Key("", "a"))
        await world.until(lambda: world.worker("a").server.server_policy.template.adopt, "the other policy")


async def test_the_controllers_own_status_does_not_cause_a_pgserver_to_be_read_again() -> None:
    world = ServerConfigWorld()
    world.put("a")
    before = world.observed.pgservers.get(Key("", "a"))
    assert before is not None
    obj = copy.deepcopy(before.object())
    obj["metadata"]["resourceVersion"] = "99"
    changed = world.servers._changed = Signal()
    world.observed.pgservers.put(pack(obj | {"status": {"roles": {"declared": 1, "ready": 1}}}), by=Key("", "a"))
    assert not changed.is_set()
    obj["metadata"]["resourceVersion"] = "100"
    world.observed.pgservers.put(pack(obj))
    assert changed.is_set()


async def test_an_error_in_reading_one_pgserver_does_not_affect_others(monkeypatch: pytest.MonkeyPatch) -> None:
    real = read_declaration

    async def poisoned(client: Any, stored: Any, controller_config: Any) -> ServerConfig:
        if stored.key.name == "a":
            raise RuntimeError("hunter2")
        return await real(client, stored, controller_config)

    monkeypatch.setattr(module, "read_declaration", poisoned)
    world = ServerConfigWorld()
    async with running(world):
        world.put("a")
        world.put("b")
        await world.until(lambda: "a" in world.servers and "b" in world.servers, "both workers")
        assert world.worker("b").server.problem is None
        problem = world.worker("a").server.problem
        assert problem is not None
        assert problem.reason is Reason.INTERNAL_ERROR
        assert "hunter2" not in problem.message


@pytest.mark.parametrize("spec", [None, [], {"connection": None}, {"connection": {"caRef": [1]}}, "text"])
async def test_a_malformed_pgserver_does_not_affect_others(spec: Any) -> None:
    world = ServerConfigWorld()
    async with running(world):
        metadata = {"name": "odd", "uid": "o", "resourceVersion": "1", "creationTimestamp": "2027-01-01T00:00:00Z"}
        world.observed.pgservers.put(pack({"kind": "PgServer", "metadata": metadata, "spec": spec}))
        world.put("b")
        await world.until(lambda: "odd" in world.servers and "b" in world.servers, "both workers")
        assert world.observed.reserves(Key("default", "of-b"))
        problem = world.worker("odd").server.problem
        assert problem is not None
        assert problem.reason is Reason.INVALID_SPEC


@pytest.mark.parametrize(
    ("refusal", "listed_after", "served"),
    [
        ("403 Forbidden: RBAC: not yet", DENIED_SECONDS - 1.0, False),
        ("403 Forbidden: no such right", None, True),
        ("404 NotFound: the server could not find the requested resource", None, True),
    ],
)
@in_timelapse
async def test_the_server_of_the_dsn_does_not_replace_a_pgserver_that_an_api_server_hides_while_it_starts(
    refusal: str, listed_after: float | None, served: bool
) -> None:
    world = ServerConfigWorld()
    implied = ServerConfig("default", None, ServerPolicy(), Address("of-dsn", 5432, "", ""))
    world.servers._implied = implied
    world.observed.pgservers.refuse(refusal)
    async with running(world):
        if listed_after is not None:
            await anyio.sleep(listed_after)
            assert world.workers == []
            world.put("default")
            world.observed.pgservers.synced.set()
        await anyio.sleep(DENIED_SECONDS + 1.0)
        assert [worker.server is implied for worker in world.workers] == [served]


def test_while_pgservers_cannot_be_listed_none_is_said_not_to_exist() -> None:
    """Objects of existing PgServers were told to create them, and with that their status was final."""
    world = ServerConfigWorld()
    world.observed.pgservers.refuse("403 Forbidden: pgservers.pgrole.dev is forbidden")
    error = world.servers.explain_absence("main")
    assert isinstance(error, Transient)
    assert error.reason is Reason.SERVER_NOT_READY
    assert error.message == "the controller cannot list PgServers: 403 Forbidden: pgservers.pgrole.dev is forbidden"
    world.observed.pgservers.allow()
    world.observed.pgservers.synced.set()
    assert world.servers.explain_absence("main").reason is Reason.SERVER_GONE
    world.observed.pgservers.refuse("403 Forbidden")  # what was listed before is still known
    assert world.servers.explain_absence("main").reason is Reason.SERVER_GONE


def test_listed_secrets_are_compared_with_the_names_in_many_pgservers_at_once() -> None:
    """Each Secret in the controller's namespace had every PgServer parsed again, which took seconds at a start."""
    world = ServerConfigWorld()
    for number in range(200):
        world.put(f"s{number}", database="x" * 1_000)
    listed = [Stored(Key("default", f"other-{number}"), f"u{number}", "1", b"") for number in range(1_000)]
    with within_a_callback():
        world.observed.secrets.replace(listed)
        assert not any(world.observed.reserves(one.key) for one in listed)
    assert world.observed.reserves(Key("default", "of-s7"))
    assert not world.observed.reserves(Key("shop", "of-s7"))


class HeldServer:
    def __init__(self, server: ServerConfig, trouble: PgRoleError | None = None) -> None:
        self.server, self.trouble, self.reconnects = server, trouble, 0

    def reconnect(self, why: str) -> None:
        assert why == "another PgServer was removed"
        self.reconnects += 1


@pytest.mark.parametrize(
    ("age", "expected"),
    [
        (
            ("", ""),
            "PGROLE_DSN declares the same server: delete this PgServer, or name it default, which replaces PGROLE_DSN",
        ),
        (
            ("2026-05-06T07:08:09Z", "uid-1"),
            'PgServer "default", which is older, declares the same server: delete one of them',
        ),
    ],
)
def test_the_conflict_of_two_declarations_of_a_server_names_the_one_that_holds_it(
    age: tuple[str, str], expected: str
) -> None:
    identity = Identity("18.4", 180004, 7, datetime(2026, 5, 6, tzinfo=UTC), frozenset(), True, True)
    older = ServerConfig("default", None, ServerPolicy(), Address("db", 5432, "postgres", "require"), age=age)
    live = LiveServers(lambda: ())
    live.hold(HeldServer(older), identity)
    with pytest.raises(Refused) as refused:
        live.hold(HeldServer(replace(older, name="other", age=("2026-05-07T07:08:09Z", "uid-2"))), identity)
    assert (refused.value.reason, refused.value.message) == (Reason.CONFLICT, expected)


def test_servers_without_a_session_are_those_that_are_stored_or_declared_and_held_by_none() -> None:
    identity = Identity("18.4", 180004, 7, datetime(2026, 5, 6, tzinfo=UTC), frozenset(), True, True)
    first = ServerConfig("first", None, ServerPolicy(), Address("db", 5432, "postgres", "require"))
    holder = HeldServer(first)
    live = LiveServers(lambda: ["first", "second"])
    live.add(HeldServer(replace(first, name="default")))  # of PGROLE_DSN
    live.add(holder)
    live.hold(holder, identity)
    assert live.unknown() == {"default", "second"}
    live.release(holder)
    assert live.unknown() == {"default", "first", "second"}


def test_whoever_was_refused_for_a_conflict_tries_again_when_a_pgserver_is_removed() -> None:
    config = ServerConfig("a", None, ServerPolicy(), Address("db", 5432, "postgres", "require"))
    conflict, away = Refused(Reason.CONFLICT, "x"), Transient(Reason.SERVER_NOT_READY, "x")
    removed, refused, other, well = (HeldServer(config, one) for one in (None, conflict, away, None))
    live = LiveServers(lambda: ())
    for one in removed, refused, other, well:
        live.add(one)
    live.remove(removed)
    assert [one.reconnects for one in (removed, refused, other, well)] == [0, 1, 0, 0]
