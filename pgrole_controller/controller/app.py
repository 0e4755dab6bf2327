"""The controller as a whole: wires the rooms together, runs until it is asked to stop, and stops in order."""

import json
import logging
import random
import signal
from dataclasses import dataclass

import anyio
from anyio.abc import TaskGroup

from pgrole_controller.controller.errands import Errands
from pgrole_controller.controller.errors import CannotStart
from pgrole_controller.controller.health import Health
from pgrole_controller.controller.lane import Lane, decline
from pgrole_controller.controller.namespaces import Namespaces
from pgrole_controller.controller.objects import DEFAULT_SERVER, Objects, index_by_owner, index_pgrole
from pgrole_controller.controller.queue import Queue
from pgrole_controller.controller.reporter import Reporter
from pgrole_controller.controller.resync import resync
from pgrole_controller.controller.server import DeclaredServer
from pgrole_controller.controller.sources import NO_SERVER, PgRoleSource, SecretSource
from pgrole_controller.core.errors import Reason, Refused
from pgrole_controller.kube.client import NAMESPACES, PGROLES, SECRETS, Client
from pgrole_controller.kube.errors import ApiError, KubeError, Unreachable
from pgrole_controller.kube.events import Recorder
from pgrole_controller.kube.reflector import reflect
from pgrole_controller.kube.store import Store

log = logging.getLogger(__name__)

#: From SIGTERM on, in seconds: for the visit under way, for what it found to be written, and for the Events of it.
# A transaction that has begun is not interrupted: its own deadline comes on top of the first.
VISIT_SECONDS = 1.5
WRITE_SECONDS = 1.5
EVENT_SECONDS = 0.5

_CLUSTER_ID_NAMESPACE = "kube-system"


@dataclass(frozen=True, slots=True)
class Plan:
    """What is run. `cluster` None: the uid of namespace kube-system."""

    server: DeclaredServer
    kubeconfig: str | None = None
    context: str | None = None
    strict_tls: bool = True
    cluster: str | None = None
    namespace: str | None = None
    resync_seconds: float = 3600.0
    health_host: str = "127.0.0.1"
    health_port: int | None = None


async def run(plan: Plan) -> None:
    """Runs until SIGTERM or SIGINT. Raises a group of CannotStart, or of whatever ended a task that should not end."""
    asked, health = anyio.Event(), Health()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_await_signal, asked)
        if plan.health_port is not None:
            tasks.start_soon(health.serve, plan.health_host, plan.health_port)
        try:
            async with Client.connect(plan.kubeconfig, context=plan.context, strict_tls=plan.strict_tls) as client:
                cluster = plan.cluster or await _read_cluster_id_until(asked, client)
                if cluster is not None:
                    await _Controller(plan, client, cluster, health).run(asked)
        except KubeError as error:
            raise CannotStart(str(error)) from error
        tasks.cancel_scope.cancel()


async def _await_signal(asked: anyio.Event) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for number in signals:
            log.info("asked to stop", extra={"signal": number.name})
            asked.set()


async def _read_cluster_id_until(asked: anyio.Event, client: Client) -> str | None:
    """None when it is asked to stop before the API server has answered."""
    cluster: str | None = None

    async def read() -> None:
        nonlocal cluster
        cluster = await _read_cluster_id(client)
        tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        await asked.wait()
        tasks.cancel_scope.cancel()
    return cluster


async def _read_cluster_id(client: Client) -> str:
    while True:
        try:
            answer = await client.request("GET", NAMESPACES.path(name=_CLUSTER_ID_NAMESPACE), timeout=10.0)
        except ApiError as error:
            if error.status not in (401, 403, 404):
                raise
            raise CannotStart(
                f"this cluster's id cannot be read (the uid of namespace {_CLUSTER_ID_NAMESPACE}): {error}. "
                f"Allow it, or give --cluster-id"
            ) from error
        except Unreachable as error:
            log.warning("API server not reached", extra={"error": str(error)})
            await anyio.sleep(1.0)
        else:
            uid: str = json.loads(answer)["metadata"]["uid"]
            return uid


class _Controller:
    def __init__(self, plan: Plan, client: Client, cluster: str, health: Health) -> None:
        self._plan = plan
        self._client = client
        self._queue = Queue()
        self._store = Store(index=index_pgrole)
        self._secrets = Store(index=index_by_owner)
        namespaces = Namespaces(client, Store())
        self._objects = Objects(self._store, self._secrets, namespaces, cluster, plan.namespace)
        self._recorder = Recorder(client)
        errands = Errands(client, self._secrets, self._recorder)
        self._reporter = Reporter(client, self._objects, self._queue, self._recorder, errands)
        self._lane = Lane(plan.server, self._objects, self._queue, self._reporter)
        self._health = health
        health.watch(self._store, [self._lane])
        self._source = PgRoleSource(self._objects, self._queue, frozenset({plan.server.name}))
        self._secret_source = SecretSource(self._source, self._secrets)

    async def run(self, asked: anyio.Event) -> None:
        """The tasks end in the order of the way of the data: the lane, the sources, what writes, then the rest."""
        async with anyio.create_task_group() as rest:
            rest.start_soon(self._recorder.run)
            async with anyio.create_task_group() as writers:
                writers.start_soon(self._reporter.run)
                async with anyio.create_task_group() as sources:
                    sources.start_soon(self._reflect)
                    sources.start_soon(self._reflect_secrets)
                    sources.start_soon(self._secret_source.announce_all)
                    sources.start_soon(self._resync)
                    sources.start_soon(self._decline_unknown)
                    async with anyio.create_task_group() as lanes:
                        lanes.start_soon(self._lane.run)
                        await asked.wait()
                        self._start_no_visit(lanes)
                    sources.cancel_scope.cancel()
                self._reporter.close()
                writers.cancel_scope.deadline = anyio.current_time() + WRITE_SECONDS
            self._recorder.close()
            rest.cancel_scope.deadline = anyio.current_time() + EVENT_SECONDS

    async def _reflect(self) -> None:
        await reflect(self._client, PGROLES, self._store, self._source.changed, namespace=self._plan.namespace)

    async def _reflect_secrets(self) -> None:
        heard, namespace = self._secret_source.changed, self._plan.namespace
        await reflect(self._client, SECRETS, self._secrets, heard, namespace=namespace, metadata_only=True)

    async def _resync(self) -> None:
        await resync(self._plan.resync_seconds, self._source, random.random)

    async def _decline_unknown(self) -> None:
        """Objects for a server that nobody declared."""
        error = Refused(
            Reason.SERVER_GONE,
            f'spec.serverRef.name: there is no such server; this controller knows "{DEFAULT_SERVER}" (PGROLE_DSN)',
        )
        await decline(NO_SERVER, self._queue, self._objects, self._reporter, error)

    def _start_no_visit(self, lanes: TaskGroup) -> None:
        """The visit that is under way may end until the deadline."""
        self._health.stopping = True
        self._queue.close()
        lanes.cancel_scope.deadline = anyio.current_time() + (VISIT_SECONDS if self._lane.connected else 0.0)
