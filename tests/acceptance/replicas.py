"""Two replicas of one installation, whose writes can be told apart.

Each has its own ServiceAccount, for the audit log, and its own role in PostgreSQL, for the server's log. They share the
Lease, the objects and the database.
"""

import json
import secrets
import signal
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import aiohttp
import anyio

from pgrole_controller.local.manifests import apply as apply_manifest
from pgrole_controller.local.process import reached
from pgrole_controller.local.rights import RightsScope, may
from tests.acceptance.service_account import OWN_NAMESPACE, ServiceAccount
from tests.acceptance.world import PATIENCE, Controller, Database, Json, Stage, make_kube, remove
from tests.servers import Servers

#: Prints a figure for the documents: what it is, and seconds.
Say = Callable[[str, float], None]

LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{OWN_NAMESPACE}/leases"
#: Log message of a leader.
LEADS = "session with PostgreSQL begins"
STANDS_BY = "ready to lead"
_RBAC = "rbac.authorization.k8s.io/v1"
_REFUSED = 400
_READING = ("get", "list", "watch")
_PASSWORD = "of a replica"


@dataclass(frozen=True, slots=True)
class ControllerReplica:
    """One replica, not started."""

    controller: Controller
    user: str  # in Kubernetes
    role: str  # in PostgreSQL
    stage: Stage

    async def start(self) -> None:
        await self.controller.start()

    async def leads(self, times: int = 1, seconds: float = PATIENCE) -> None:
        """Waits until it has begun to lead, and to work, this many times."""
        await self.controller.wait_count(LEADS, times, seconds)

    @property
    def stood_by(self) -> int:
        """How often it became a standby. One that took the Lease before it connected never did."""
        return self.controller.log.count(STANDS_BY)

    async def stands_by(self, times: int = 1, seconds: float = PATIENCE) -> None:
        """Waits until it became a standby this many times."""
        await self.controller.wait_count(STANDS_BY, times, seconds)

    def pause(self) -> None:
        self.controller.process.pause()

    def resume(self) -> None:
        self.controller.process.resume()

    async def end(self, signum: signal.Signals = signal.SIGTERM) -> int | None:
        if signum is signal.SIGKILL:
            await self.controller.kill()
            return None
        code = await self.controller.process.stop(signum)
        assert "Traceback" not in self.controller.log, self.controller.log
        return code

    async def readiness(self) -> Json:
        url = f"http://127.0.0.1:{self.controller.health_port}/readyz"
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            said: Json = json.loads(await answer.text())
            return {**said, "status": answer.status}

    async def wait_readiness(self, wanted: Json) -> None:
        """Waits until its readiness contains all of this."""
        said: list[Json] = []

        async def is_said() -> bool:
            said[:] = [await self.readiness()]
            return wanted.items() <= said[0].items()

        assert await reached(is_said, PATIENCE), f"{wanted} expected within {PATIENCE} s, but {said}"

    def wrote(self, since: int = 0) -> list[tuple[str, str, str, int]]:
        """Returns its writes since the audit log had this size: verb, resource, name, code.

        Leaves out writes that the API server rejected, since requests under way may be outdated or abandoned.
        """
        entries = self.stage.kube.server.audit.read(since)
        return [
            (entry.verb, entry.resource, entry.name, entry.code)
            for entry in entries
            if entry.user == self.user and entry.verb not in _READING and entry.code < _REFUSED
        ]

    def changed(self, since: int = 0) -> tuple[int, int]:
        """Counts DDL sent since the server's log had this size, and how much of it was refused."""
        sent = refused = 0
        for line in read_log(self.stage, since).splitlines():
            if f" {self.role}|" not in line:
                continue
            sent += "LOG:  statement:" in line
            refused += "ERROR:  another process leads" in line
        return sent, refused


def name_of(replica: ControllerReplica) -> str:
    return replica.role.removeprefix("replica_")


@dataclass(frozen=True, slots=True)
class Replicas:
    stage: Stage
    first: ControllerReplica
    second: ControllerReplica
    database: Database
    lease: str

    async def start(self) -> None:
        """Starts both: the first leads, the second is standby."""
        await self.first.start()
        await self.first.leads()
        await self.second.start()
        await self.second.stands_by()

    async def read_lease(self) -> Json:
        return await self.stage.kube.server.request("GET", f"{LEASES}/{self.lease}")

    async def edit_lease(self, **spec: Any) -> None:
        body = {"spec": spec}
        path, server = f"{LEASES}/{self.lease}", self.stage.kube.server
        await server.request("PATCH", path, body, content_type="application/merge-patch+json")

    async def drift(self, name: str, seconds: float = PATIENCE) -> float:
        """Makes a role a superuser, and waits until it no longer is; returns the seconds."""
        began = anyio.current_time()
        await self.database.execute(f'ALTER ROLE "{name}" SUPERUSER')
        await self.database.wait_role(name, lambda role: not role["rolsuper"], "NOSUPERUSER", seconds)
        return anyio.current_time() - began

    def writers(self, since: int = 0) -> list[str]:
        """Returns in order whose DDL the database accepted since its log had this size: `first`, `second`."""
        sent: dict[str, str] = {}  # sender of the last DDL, by process
        took: list[tuple[str, str]] = []
        for line in read_log(self.stage, since).splitlines():
            for one in (self.first, self.second):
                if f" {one.role}|" not in line:
                    continue
                process = line.partition("[")[2].partition("]")[0]
                if "LOG:  statement:" in line:
                    took.append((process, name_of(one)))
                    sent[process] = name_of(one)
                elif "ERROR:" in line and process in sent:
                    last = len(took) - 1 - [pid for pid, _ in reversed(took)].index(process)
                    del took[last]
                    del sent[process]
        return [who for who, _ in groupby(name for _, name in took)]

    def audited(self) -> int:
        return self.stage.kube.server.audit.size

    def logged(self) -> int:
        return self.stage.postgres.log.stat().st_size


def read_log(stage: Stage, since: int = 0) -> str:
    with stage.postgres.log.open("rb") as file:
        file.seek(since)
        return file.read().decode(errors="replace")


@asynccontextmanager
async def replicas(stage: Stage, *arguments: str, url: str = "", second_url: str = "") -> AsyncIterator[Replicas]:
    """Yields two replicas that are not started; stops them at the end. `url`, `second_url`: their API server."""
    lease = f"pgrole-controller-{stage.kube.namespace}-{secrets.token_hex(2)}"
    async with stage.database() as database:
        await database.execute("ALTER SYSTEM SET log_statement = 'ddl'")
        await database.execute("SELECT pg_reload_conf()")
        first = await _make(stage, database, "first", lease, arguments, url)
        second = await _make(stage, database, "second", lease, arguments, second_url)
        made = Replicas(stage, first, second, database, lease)
        try:
            yield made
        finally:
            with anyio.CancelScope(shield=True):
                for one in (first, second):
                    await one.controller.kill()


async def _make(
    stage: Stage, database: Database, which: str, lease: str, arguments: tuple[str, ...], url: str
) -> ControllerReplica:
    namespace = stage.kube.namespace
    installation = RightsScope(f"{lease}-{which}", OWN_NAMESPACE, namespace)
    folder = stage.folder / which
    folder.mkdir()
    account = ServiceAccount(stage.kube.server, installation, folder, url)
    await account.prepare()
    await _share_lease(stage, installation, lease)
    role = f"replica_{which}"
    await database.execute(f"CREATE ROLE {role} SUPERUSER LOGIN PASSWORD '{_PASSWORD}'")
    dsn = stage.postgres.dsn(role, password=_PASSWORD)
    controller = Controller(
        account,
        dsn,
        folder,
        *("--namespace", namespace, "--leader-election", "true", "--identity", which),
        *arguments,
        PGROLE_LEASE=lease,
    )
    return ControllerReplica(controller, installation.user, role, stage)


async def _share_lease(stage: Stage, installation: RightsScope, lease: str) -> None:
    """Grants a replica access to the Lease that both share."""
    server = stage.kube.server
    name = f"{installation.name}-shares"
    metadata = {"name": name, "namespace": OWN_NAMESPACE}
    rule = {
        "apiGroups": ["coordination.k8s.io"],
        "resources": ["leases"],
        "resourceNames": [lease],
        "verbs": ["get", "list", "watch", "update"],
    }
    subject = {"kind": "ServiceAccount", "name": installation.name, "namespace": OWN_NAMESPACE}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
    await apply_manifest(server, {"apiVersion": _RBAC, "kind": "Role", "metadata": metadata, "rules": [rule]})
    binding = {"apiVersion": _RBAC, "kind": "RoleBinding", "metadata": metadata}
    await apply_manifest(server, {**binding, "subjects": [subject], "roleRef": reference})

    async def is_effective() -> bool:
        group = "coordination.k8s.io"
        return await may(server, installation.user, "get", group, "leases", namespace=OWN_NAMESPACE, name=lease)

    assert await reached(is_effective, PATIENCE)


Scene = Callable[[Stage], Coroutine[Any, Any, None]]


async def side_by_side(stage: Stage, servers: Servers, *scenes: Scene) -> None:
    """Runs each scene with its own namespace and PostgreSQL, all in parallel, since they mostly wait."""

    async def play(number: int, scene: Scene) -> None:
        folder = stage.folder / f"scene-{number}"
        folder.mkdir()
        kube = await make_kube(stage.kube.server)
        async with servers.run() as server:
            await scene(Stage(kube, server, folder))
        await remove(kube)

    async with anyio.create_task_group() as tasks:
        for number, scene in enumerate(scenes):
            tasks.start_soon(play, number, scene)
