"""The whole controller as a separate process, observed only from outside: through the API server and SQL."""

import json
import os
import secrets
import sys
import tempfile
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import anyio
import asyncpg

from pgrole_controller.core.scram import Verifier, verifies
from pgrole_controller.local.apiserver import ApiServer, LocalApiError
from pgrole_controller.local.manifests import create_namespace
from pgrole_controller.local.postgres import PostgresServer
from pgrole_controller.local.process import Process, reached, tied_to_parent
from pgrole_controller.local.workspace import free_port
from pgrole_controller.postgres.connection import Connection
from tests.acceptance.service_account import ServiceAccount, find_namespace, installation_for
from tests.acceptance.waiting import Attempts, Occurrences
from tests.forks import Forked

Json = dict[str, Any]

#: How long a test waits for a condition, in seconds: generous, since the machine may be busy.
PATIENCE = 45.0

#: Seconds: longer than the 2 s after which the controller reads its own change again.
REST = 3.0

#: After this many refusals, back-off alone does not reconcile an object for a minute.
REFUSALS = 7

GROUP = "/apis/pgrole.dev/v1alpha1"


async def apply(server: ApiServer, path: str, body: Json) -> Json:
    """Creates or changes an object, like `kubectl apply --server-side`."""
    return await server.request(
        "PATCH",
        path,
        body,
        content_type="application/apply-patch+yaml",
        query={"fieldManager": "test", "force": "true"},
    )


@dataclass(frozen=True, slots=True)
class Kube:
    """The PgRoles of one namespace, used like kubectl."""

    server: ApiServer
    namespace: str

    def path(self, name: str = "") -> str:
        return f"{GROUP}/namespaces/{self.namespace}/pgroles" + (f"/{name}" if name else "")

    async def apply(self, object_name: str, /, **spec: Any) -> Json:
        """Creates an object or changes its spec, like `kubectl apply --server-side`."""
        body = {
            "apiVersion": "pgrole.dev/v1alpha1",
            "kind": "PgRole",
            "metadata": {"name": object_name, "namespace": self.namespace},
            "spec": spec,
        }
        return await apply(self.server, self.path(object_name), body)

    async def patch(self, name: str, body: Json) -> Json:
        return await self.server.request("PATCH", self.path(name), body, content_type="application/merge-patch+json")

    async def get(self, name: str) -> Json | None:
        try:
            return await self.server.request("GET", self.path(name))
        except LocalApiError as error:
            if error.status == 404:
                return None
            raise

    async def delete(self, name: str) -> None:
        await self.server.request("DELETE", self.path(name))

    async def objects(self) -> list[Json]:
        items: list[Json] = (await self.server.request("GET", self.path()))["items"]
        return items

    async def apply_all(self, specs: Mapping[str, Json]) -> None:
        """Applies many objects (name: spec), several in parallel."""
        await _some_at_once([partial(self.apply, name, **spec) for name, spec in specs.items()])

    async def delete_each(self, names: Iterable[str]) -> None:
        await _some_at_once([partial(self.delete, name) for name in names])

    async def wait_all(self, true: Callable[[Json], bool], what: str, seconds: float = PATIENCE) -> list[Json]:
        """Returns every object of the namespace once `true` holds for each."""
        left: list[Json] = []
        with anyio.move_on_after(seconds):
            async for _ in Attempts():
                objects = await self.objects()
                left = [obj for obj in objects if not true(obj)]
                if not left:
                    return objects
        raise AssertionError(f"{what} did not come true for {len(left)} within {seconds} s, as {json.dumps(left[:1])}")

    async def wait_number(self, count: int, seconds: float = PATIENCE) -> None:
        """Waits until the namespace has this many objects."""

        async def is_so() -> bool:
            return len(await self.objects()) == count

        if not await reached(is_so, seconds):
            raise AssertionError(f"{count} objects expected within {seconds} s, but {len(await self.objects())}")

    async def wait_all_ready(self, seconds: float = PATIENCE) -> list[Json]:
        return await self.wait_all(is_ready, "Ready=True", seconds)

    async def delete_all(self) -> None:
        """Deletes every object of the namespace, without waiting and without dropping roles."""
        for obj in (await self.server.request("GET", self.path()))["items"]:
            if obj["spec"]["deletionPolicy"] == "Drop":
                await self.patch(obj["metadata"]["name"], {"spec": {"deletionPolicy": "Retain"}})
        await self.server.request("DELETE", self.path())

    def secret_path(self, name: str = "") -> str:
        return f"/api/v1/namespaces/{self.namespace}/secrets" + (f"/{name}" if name else "")

    async def apply_secret(self, name: str, /, **data: str | bytes) -> Json:
        """Creates a Secret or replaces its content."""
        encoded = {key: b64encode(value if isinstance(value, bytes) else value.encode()) for key, value in data.items()}
        body = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": name, "namespace": self.namespace},
            "data": {key: value.decode() for key, value in encoded.items()},
        }
        return await apply(self.server, self.secret_path(name), body)

    async def patch_secret(self, name: str, body: Json) -> Json:
        return await self.server.request(
            "PATCH", self.secret_path(name), body, content_type="application/merge-patch+json"
        )

    async def secret(self, name: str) -> Json | None:
        """Returns a Secret, with its data in clear text under `text`; None if it does not exist."""
        try:
            found = await self.server.request("GET", self.secret_path(name))
        except LocalApiError as error:
            if error.status == 404:
                return None
            raise
        found["text"] = {key: b64decode(value).decode() for key, value in found.get("data", {}).items()}
        return found

    async def wait_secret(
        self, name: str, true: Callable[[Json], bool] = bool, what: str = "", seconds: float = PATIENCE
    ) -> Json:
        """Returns a Secret once it exists and `true` holds for it."""
        last: Json | None = None
        with anyio.move_on_after(seconds):
            async for _ in Attempts():
                last = await self.secret(name)
                if last is not None and true(last):
                    return last
        seen = None if last is None else {**last, "data": ..., "text": sorted(last["text"])}
        raise AssertionError(f"Secret {name}: {what or 'existence'} did not come true within {seconds} s: {seen}")

    async def delete_secret(self, name: str) -> None:
        await self.server.request("DELETE", self.secret_path(name))

    async def wait_no_secret(self, name: str) -> None:
        async def is_gone() -> bool:
            return await self.secret(name) is None

        if not await reached(is_gone, PATIENCE):
            raise AssertionError(f"Secret {name} was not deleted within {PATIENCE} s")

    async def events(self, reason: str) -> list[Json]:
        answer = await self.server.request("GET", f"/apis/events.k8s.io/v1/namespaces/{self.namespace}/events")
        return [event for event in answer["items"] if event["reason"] == reason]

    async def wait_event(self, reason: str, seconds: float = PATIENCE, *, about: str | None = None) -> Json:
        """Returns the first Event with this reason, about any object or the one of this name."""
        found: list[Json] = []

        async def is_there() -> bool:
            found[:] = [event for event in await self.events(reason) if about in (None, event["regarding"]["name"])]
            return bool(found)

        if not await reached(is_there, seconds):
            raise AssertionError(f"no Event {reason} within {seconds} s")
        return found[0]

    async def table(self, name: str) -> Json:
        """Returns what `kubectl get` prints: columnDefinitions and rows."""
        return await self.server.request("GET", self.path(name), accept="application/json;as=Table;g=meta.k8s.io;v=v1")

    async def wait_for(self, name: str, true: Callable[[Json], bool], what: str, seconds: float = PATIENCE) -> Json:
        """Returns an object once `true` holds for it."""
        last: Json | None = None
        with anyio.move_on_after(seconds):
            async for _ in Attempts():
                last = await self.get(name)
                if last is not None and true(last):
                    return last
        raise AssertionError(f"{name}: {what} did not come true within {seconds} s: {json.dumps(last, indent=1)}")

    async def wait_ready(self, name: str, seconds: float = PATIENCE) -> Json:
        """Like `kubectl wait --for=condition=Ready`, but for the current generation."""
        return await self.wait_for(name, is_ready, "Ready=True", seconds)

    async def wait_reason(self, name: str, reason: str, seconds: float = PATIENCE) -> Json:
        return await self.wait_for(
            name, lambda obj: condition(obj, "Ready").get("reason") == reason, f"reason {reason}", seconds
        )

    async def wait_gone(self, name: str, seconds: float = PATIENCE) -> None:
        if not await reached(partial(self._is_gone, name), seconds):
            raise AssertionError(f"{name} was not deleted within {seconds} s: {await self.get(name)}")

    async def _is_gone(self, name: str) -> bool:
        return await self.get(name) is None


async def remove(kube: Kube) -> None:
    """Deletes every object when no controller runs: removes finalizers."""
    for obj in await kube.objects():
        name = obj["metadata"]["name"]
        if obj["metadata"].get("finalizers"):
            await kube.patch(name, {"metadata": {"finalizers": None}})
        if await kube.get(name) is not None:
            await kube.delete(name)


async def make_kube(api_server: ApiServer) -> Kube:
    name = f"test-{secrets.token_hex(4)}"
    await create_namespace(api_server, name)
    return Kube(api_server, name)


def condition(obj: Json, kind: str) -> Json:
    """Returns a condition of an object; empty if it has none of that type."""
    conditions: list[Json] = obj.get("status", {}).get("conditions", [])
    return next((item for item in conditions if item["type"] == kind), {})


def is_ready(obj: Json) -> bool:
    """Tells whether it is Ready for its current generation."""
    return (
        condition(obj, "Ready").get("status") == "True"
        and obj["status"]["observedGeneration"] == obj["metadata"]["generation"]
    )


def says(obj: Json, reason: str, *words: str) -> bool:
    """Tells whether Ready has this reason, and a message with all of these words."""
    ready = condition(obj, "Ready")
    return ready.get("reason") == reason and all(word in ready["message"] for word in words)


async def _some_at_once(calls: Iterable[Callable[[], Awaitable[object]]], width: int = 8) -> None:
    limit = anyio.CapacityLimiter(width)

    async def run(call: Callable[[], Awaitable[object]]) -> None:
        async with limit:
            await call()

    async with anyio.create_task_group() as tasks:
        for call in calls:
            tasks.start_soon(run, call)


class Database:
    """A superuser's session, like psql."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    async def execute(self, sql: str) -> None:
        await self.connection.execute(sql)

    async def role(self, name: str) -> Mapping[str, Any] | None:
        row = await self.connection.fetchrow(
            "SELECT r.*, shobj_description(r.oid, 'pg_authid') AS comment FROM pg_roles AS r WHERE rolname = $1", name
        )
        return None if row is None else dict(row)

    async def fetchval(self, sql: str, *arguments: object) -> Any:
        return await self.connection.fetchval(sql, *arguments)

    async def verifier(self, name: str) -> Verifier | None:
        """Returns the role's verifier; None if it has no password."""
        text = await self.connection.fetchval("SELECT rolpassword FROM pg_authid WHERE rolname = $1", name)
        return None if text is None else Verifier(text)

    async def wait_password(self, name: str, password: str, seconds: float = PATIENCE) -> None:
        """Waits until the role's password is this one."""

        async def is_so() -> bool:
            verifier = await self.verifier(name)
            return verifier is not None and verifies(password, verifier)

        if not await reached(is_so, seconds):
            raise AssertionError(f"role {name} did not get the password within {seconds} s")

    async def claim(self, name: str) -> Mapping[str, Any] | None:
        row = await self.connection.fetchrow("SELECT * FROM pgrole.claim WHERE role_name = $1", name)
        return None if row is None else dict(row)

    async def wait_role(
        self, name: str, true: Callable[[Mapping[str, Any]], bool], what: str, seconds: float = PATIENCE
    ) -> Mapping[str, Any]:
        """Returns the row of pg_roles once `true` holds for it."""
        last: Mapping[str, Any] | None = None
        with anyio.move_on_after(seconds):
            async for _ in Attempts():
                last = await self.role(name)
                if last is not None and true(last):
                    return last
        raise AssertionError(f"role {name}: {what} did not come true within {seconds} s: {last}")

    async def drop_schema(self) -> None:
        """Retries after a deadlock with a running function, as an administrator would."""
        while True:
            try:
                await self.execute("DROP SCHEMA pgrole CASCADE")
            except asyncpg.DeadlockDetectedError:
                continue
            return

    async def wait_value(self, sql: str, value: object, seconds: float = PATIENCE) -> None:
        async def is_so() -> bool:
            return bool(await self.fetchval(sql) == value)

        if not await reached(is_so, seconds):
            raise AssertionError(f"{sql}: {value!r} expected within {seconds} s, but {await self.fetchval(sql)!r}")


@asynccontextmanager
async def open_database(dsn: str) -> AsyncIterator[Database]:
    connection = await asyncpg.connect(dsn)
    try:
        yield Database(connection)
    finally:
        await connection.close(timeout=5)


class Controller:
    """One controller process. Its log is kept, and shown if it does not start.

    The process is forked, unless `is_executed` or its environment configures the interpreter: then it starts as in
    production.

    `access` is a kubeconfig, an account, or an API server: there it has the account and rights from deploy/, for all
    namespaces or for that of `--namespace`.
    """

    is_executed: ClassVar[bool] = False

    def __init__(
        self, access: ApiServer | ServiceAccount | Path, dsn: str, folder: Path, *arguments: str, **environment: str
    ) -> None:
        self.health_port = free_port()
        if isinstance(access, ApiServer):
            access = ServiceAccount(access, installation_for(find_namespace(arguments)), folder)
        self._account = access if isinstance(access, ServiceAccount) else None
        kubeconfig = access.kubeconfig if isinstance(access, ServiceAccount) else access
        self._environment = {**os.environ, **({"PGROLE_DSN": dsn} if dsn else {}), **environment}
        command = [
            *("run", "--kubeconfig", str(kubeconfig), "--health-port", str(self.health_port)),
            *("--log-level", "debug", "--log-format", "text", *arguments),
        ]
        log = folder / "controller.log"
        self.process: Process
        if self.is_executed or any(name.startswith("PYTHON") for name in environment):
            program = [sys.executable, "-m", "pgrole_controller"]
            self.process = Process("controller", tied_to_parent([*program, *command]), log, self._environment)
        else:
            self.process = Forked("controller", command, log, self._environment)

    async def start(self) -> None:
        if self._account is not None:
            self._environment |= await self._account.prepare() | self._environment
            self._account = None
        await self.process.start()

    async def stop(self) -> int | None:
        return await self.process.stop()

    async def kill(self) -> None:
        await self.process.kill()

    async def wait_log(self, text: str, seconds: float = PATIENCE) -> None:
        """Waits until the log contains `text`."""
        await self.wait_count(text, 1, seconds)

    async def wait_count(self, text: str, times: int, seconds: float = PATIENCE) -> None:
        """Waits until the log contains `text` this many times."""
        found = Occurrences(self.process.log, text)
        with anyio.move_on_after(seconds):
            while found.count() < times:
                if not self.process.running:
                    raise self.process.failure("ended")
                await anyio.sleep(0.02)
            return
        raise self.process.failure(f"did not log {text!r} within {seconds} s")

    async def rest(self) -> None:
        """Waits until nothing has been reconciled for a while, so that no pending confirming read can find the next
        change by chance.
        """
        reconciles = Occurrences(self.process.log, " reconcile begins  ")
        with anyio.fail_after(PATIENCE):
            while True:
                before = reconciles.count()
                for _ in range(round(REST / 0.05)):  # looks, not seconds: the machine may pause
                    await anyio.sleep(0.05)
                    if reconciles.count() > before:
                        break
                else:
                    return

    async def back_off(self, kube: Kube, name: str) -> None:
        """Lets back-off of a refused object grow until it exceeds PATIENCE."""
        begins = f" reconcile begins  object={kube.namespace}/{name} "
        reconciles = Occurrences(self.process.log, begins)
        for number in range(REFUSALS):
            before = reconciles.count()
            await kube.patch(name, {"metadata": {"annotations": {"example.com/poke": str(number)}}})
            await self.wait_count(begins, before + 1)

    @property
    def log(self) -> str:
        path = self.process.log
        return path.read_text(encoding="utf-8") if path.exists() else ""


class ExecutedController(Controller):
    """Started as in production."""

    is_executed = True


@asynccontextmanager
async def running(controller: Controller, *, connected: bool = True) -> AsyncIterator[Controller]:
    """Runs the controller and, by default, waits until it is connected; at the end it must stop with success."""
    await controller.start()
    try:
        await controller.wait_log("session with PostgreSQL begins" if connected else "listed")
        yield controller
    finally:
        code = await controller.stop()
    assert code in (0, None), controller.process.failure(f"ended with {code}")
    assert "Traceback" not in controller.log, controller.log


@dataclass(frozen=True, slots=True)
class Stage:
    """What one test may break: its own namespace and PostgreSQL, and a way to start a controller for both."""

    kube: Kube
    postgres: PostgresServer
    folder: Path

    def controller(self, dsn: str | None = None, *arguments: str, **environment: str) -> Controller:
        """Returns a controller, not started, for this namespace only, with its own log."""
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        dsn = dsn or self.postgres.dsn()
        return Controller(self.kube.server, dsn, folder, "--namespace", self.kube.namespace, *arguments, **environment)

    def database(self) -> AbstractAsyncContextManager[Database]:
        return open_database(self.postgres.dsn())
