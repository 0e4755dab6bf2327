"""Workers of servers: a session that fails unexpectedly is retried with back-off and affects no other server, and a
PgServer may lead to another server.
"""

import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import pairwise
from typing import Any, cast

import anyio
import pytest

from pgrole_controller import metrics
from pgrole_controller.controller import session_keeper as keeper_module
from pgrole_controller.controller import worker as worker_module
from pgrole_controller.controller.namespaces import Namespaces
from pgrole_controller.controller.objects import Objects, index_by_owner, index_pgrole
from pgrole_controller.controller.privileges.database_worker import DatabaseWorker
from pgrole_controller.controller.queue import Queue
from pgrole_controller.controller.reporter import Reporter
from pgrole_controller.controller.result import Result
from pgrole_controller.controller.server_config import ServerConfig
from pgrole_controller.controller.session_keeper import SessionState
from pgrole_controller.controller.worker import ServerWorker
from pgrole_controller.core.connection_secret import Address
from pgrole_controller.core.errors import Reason
from pgrole_controller.core.next_attempt import Done
from pgrole_controller.core.policy import NOTHING_ALLOWED, ServerPolicy
from pgrole_controller.core.privileges.grantee import PrivilegePolicy, PrivilegeRule
from pgrole_controller.core.reconnect import FIRST_DELAY, TROUBLED_SECONDS
from pgrole_controller.core.request import Key, Rank, Request, RequestReason
from pgrole_controller.core.server_options import DatabasesConfig
from pgrole_controller.kube.client import Client
from pgrole_controller.kube.store import Store
from pgrole_controller.kube.stored_object import Stored, pack
from pgrole_controller.local.postgres import PostgresServer
from pgrole_controller.postgres.connection import Endpoint
from pgrole_controller.postgres.errors import UnexpectedError
from tests.servers import Servers
from tests.worker_context import make_context

DEADLINE = 45.0
SECRET = "hunter2"
#: Number of failures of the broken session.
FAILURES = 6


class Reports:
    """In place of the reporter: records the reasons reported on each object, and ends the reconciles."""

    def __init__(self, queue: Queue) -> None:
        self.told: dict[Key, list[Reason]] = {}
        self._queue = queue

    def withdraw(self, keys: Iterable[Key], reason: Reason) -> None:
        pass

    def report(self, finding: Result) -> None:
        if finding.outcome is not None:
            self.told.setdefault(finding.key, []).append(finding.outcome.reason)
        self._queue.done(finding.key, Done())


def declared(name: str, server: PostgresServer) -> ServerConfig:
    server_policy = ServerPolicy(
        replace(NOTHING_ALLOWED, role_names=("*",), attributes=frozenset({"login"})), namespaces=("*",)
    )
    return ServerConfig(name, Endpoint(server.dsn()), server_policy, Address("pg", 5432, "postgres", "require"))


def stored(server: str, name: str, **fields: Any) -> Stored:
    metadata = {
        "namespace": "shop",
        "name": name,
        "uid": f"uid-{name}",
        "resourceVersion": "1",
        "generation": 1,
        "creationTimestamp": "2027-01-01T00:00:00Z",
    }
    spec = {"login": True, "serverRef": {"name": server}, **fields}
    return pack({"apiVersion": "pgrole.dev/v1alpha1", "kind": "PgRole", "metadata": metadata, "spec": spec})


def make_objects() -> Objects:
    namespaces = Store()
    namespaces.put(pack({"metadata": {"name": "shop", "uid": "n1", "resourceVersion": "1"}}))
    objects = Objects(Store(index_pgrole), Store(index_by_owner), Namespaces(cast("Client", None), namespaces), "c1")
    objects.store.synced.set()
    objects.secrets_answered.set()
    for server in ("broken", "well"):
        objects.store.put(stored(server, f"app-{server}"))
    return objects


def break_work(monkeypatch: pytest.MonkeyPatch) -> None:
    real = vars(worker_module)["reconcile"]

    async def reconcile(keys: Any, server: ServerConfig, *arguments: Any) -> Any:
        if server.name == "broken":
            raise KeyError(SECRET)
        return await real(keys, server, *arguments)

    monkeypatch.setattr(worker_module, "reconcile", reconcile)


def break_task(monkeypatch: pytest.MonkeyPatch) -> None:
    real = ServerWorker._catch_up

    async def catch_up(worker: ServerWorker, *arguments: Any) -> None:
        if worker.server.name == "broken":
            raise ExceptionGroup(SECRET, [KeyError(SECRET), ValueError(SECRET)])
        await real(worker, *arguments)

    monkeypatch.setattr(ServerWorker, "_catch_up", catch_up)


def attempting(monkeypatch: pytest.MonkeyPatch, endpoint: Endpoint | None) -> list[float]:
    """Returns a list to which the start of each later session with this server is added."""
    begun: list[float] = []
    real = vars(keeper_module)["run_session"]

    async def run_session(where: Endpoint, *arguments: Any, **named: Any) -> None:
        if where == endpoint:
            begun.append(time.monotonic())
        await real(where, *arguments, **named)

    monkeypatch.setattr(keeper_module, "run_session", run_session)
    return begun


async def until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(DEADLINE):
        while not condition():  # noqa: ASYNC110 -- nothing tells of it
            await anyio.sleep(0.02)


@asynccontextmanager
async def running(*workers: ServerWorker) -> AsyncIterator[None]:
    async with anyio.create_task_group() as tasks:
        for worker in workers:
            tasks.start_soon(worker.run)
        yield
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("break_session", [break_work, pytest.param(break_task, marks=pytest.mark.slow)])
async def test_an_unexpected_error_in_a_session_affects_only_its_server(
    servers: Servers,
    own_postgres: PostgresServer,
    break_session: Callable[[pytest.MonkeyPatch], None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "pgrole_controller")
    break_session(monkeypatch)
    objects, queue = make_objects(), Queue()
    reports = Reports(queue)
    context = make_context(queue, objects, cast("Reporter", reports))
    queue.release()
    internal = metrics.INTERNAL_ERRORS.labels("session")._value
    before = internal.get()
    async with servers.run() as other:
        broken, well = (
            ServerWorker(declared(name, server), context)
            for name, server in (("broken", own_postgres), ("well", other))
        )
        begun = attempting(monkeypatch, broken.server.endpoint)
        sessions = metrics.SESSIONS.labels("well")._value
        sessions_before = sessions.get()
        async with running(broken, well):
            await until(lambda: len(begun) > FAILURES and Key("shop", "app-broken") in reports.told)
            trouble, errors = broken.keeper.trouble, internal.get() - before

            late = stored("well", "app-late")
            objects.store.put(late)
            queue.put("well", Request(late.key, RequestReason.OBJECT))
            await until(lambda: {late.key, Key("shop", "app-well")} <= reports.told.keys())
            assert (well.keeper.state, well.keeper.trouble) == (SessionState.ACTIVE, None)
    assert isinstance(trouble, UnexpectedError)
    assert trouble.reason is Reason.SERVER_NOT_READY
    assert "unexpected error" in trouble.message
    assert "KeyError" in trouble.message
    assert set(reports.told[Key("shop", "app-broken")]) == {Reason.SERVER_NOT_READY}
    assert all(Reason.SERVER_NOT_READY not in reports.told[key] for key in (late.key, Key("shop", "app-well")))
    assert sessions.get() == sessions_before + 1
    assert errors >= FAILURES
    # The first retry follows a session, if a short one; from the next one on, the server counts as troubled.
    gaps = [later - sooner for sooner, later in pairwise(begun[: FAILURES + 1])]
    assert all(gap >= TROUBLED_SECONDS for gap in gaps[1:])
    assert gaps[-1] >= FIRST_DELAY * 2.0 ** (FAILURES - 2)
    lines = [record for record in caplog.records if record.message == "unexpected error in a session"]
    assert len(lines) >= FAILURES
    assert {vars(line)["server"] for line in lines} == {"broken"}
    assert SECRET not in "".join(str(vars(record)) for record in caplog.records) + trouble.message


async def test_privileges_found_on_one_server_are_no_answer_about_the_next_one(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects, queue = make_objects(), Queue()
    app = stored("main", "app", privileges=[{"database": "postgres", "onDatabase": ["CREATE"]}])
    objects.store.put(app)
    reports = Reports(queue)
    context = make_context(queue, objects, cast("Reporter", reports))
    queue.release()
    async with servers.run() as before, servers.run() as after:
        first = declared("main", before)
        allowed = PrivilegePolicy((PrivilegeRule(databases=("postgres",)),), databases=("*",))
        template = replace(first.server_policy.template, privileges=allowed)
        opened = replace(first.server_policy, template=template)
        first = replace(first, server_policy=opened, databases=DatabasesConfig(("*",)))
        worker = ServerWorker(first, context)
        context.grantees.connect(
            lambda _server, key, names: worker.databases.note_change(key, names),
            lambda _server, key: worker.enqueue(key, RequestReason.PRIVILEGES, Rank.CHANGE),
            lambda _server, _result: False,
        )
        async with running(worker):
            await until(lambda: Reason.RECONCILED in reports.told.get(app.key, ()))
            found = context.grantees.get("main", app.key)
            reports.told.clear()
            monkeypatch.setattr(DatabaseWorker, "run", lambda _worker: anyio.sleep_forever())
            worker.declare(replace(first, endpoint=Endpoint(after.dsn())))
            await until(lambda: len(reports.told.get(app.key, ())) > 1)
            assert set(reports.told[app.key]) == {Reason.PROGRESSING}
            assert context.grantees.get("main", app.key) == found, "new servers give their first roles the same oids"
