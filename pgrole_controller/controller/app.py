"""The controller as a whole: wires its parts together, runs until it is asked to stop, and stops in order."""

import asyncio
import itertools
import logging
import secrets
import signal
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import anyio
from anyio.abc import TaskGroup

from pgrole_controller import metrics
from pgrole_controller.api import reading
from pgrole_controller.controller.background import Background
from pgrole_controller.controller.containment import CannotStart, Misconfigured
from pgrole_controller.controller.context import LiveServers, WorkerContext
from pgrole_controller.controller.declaration import ControllerConfig, index_pgserver
from pgrole_controller.controller.health import Health, Scraper
from pgrole_controller.controller.leadership import Leadership
from pgrole_controller.controller.namespaces import Namespaces, read_cluster_id
from pgrole_controller.controller.objects import Objects, index_by_owner, index_pgrole
from pgrole_controller.controller.passwords import PasswordTasks
from pgrole_controller.controller.privileges.grantees import Grantees
from pgrole_controller.controller.queue import Endings, Queue
from pgrole_controller.controller.reporter import Reporter
from pgrole_controller.controller.server_config import DEFAULT_SERVER, ServerConfig
from pgrole_controller.controller.server_reporter import ServerReporter
from pgrole_controller.controller.servers import ServerStores, ServerWorkers
from pgrole_controller.controller.session_keeper import decline
from pgrole_controller.controller.sources import NO_SERVER, NamespaceSource, PgRoleSource, SecretSource
from pgrole_controller.controller.telemetry import count_news
from pgrole_controller.controller.worker import ServerWorker
from pgrole_controller.core.contest import Contests
from pgrole_controller.core.privileges.privilege_result import PrivilegeResult
from pgrole_controller.core.request import Key
from pgrole_controller.event_loop import LookupThreads, Signal, report_unhandled, unless
from pgrole_controller.kube.client import Client
from pgrole_controller.kube.election import Elector
from pgrole_controller.kube.errors import KubeError, WrongKubeconfig
from pgrole_controller.kube.events import Recorder
from pgrole_controller.kube.lease import Term
from pgrole_controller.kube.reflector import reflect
from pgrole_controller.kube.resource import CONFIGMAPS, NAMESPACES, PGROLES, PGSERVERS, SECRETS
from pgrole_controller.kube.store import Store

log = logging.getLogger(__name__)

#: Time after SIGTERM, in seconds, for the current reconcile, for writing its results, and for its Events. A transaction
#: that has begun is not interrupted, and its own deadline is added to the first of these.
RECONCILE_SECONDS = 1.5
WRITE_SECONDS = 1.5
EVENT_SECONDS = 0.5

#: How often the controller checks whether everything is listed again, in seconds.
RELIST_SECONDS = 0.02

#: How long a new leader waits for its workers to take what PgServers declare by now, in seconds: that may need Secrets.
DECLARE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class ElectionConfig:
    """Leader election. `lease`: name of a Lease in the controller's own namespace. `identity`: name of this process
    for people; a suffix makes it unique.
    """

    lease: str
    identity: str


@dataclass(frozen=True, slots=True)
class Config:
    """What to run. `server`: the one of PGROLE_DSN. `cluster` None: the uid of namespace kube-system. `namespace`: the
    only one whose PgRoles are reconciled. `election` None: no other process works for this cluster.
    """

    server: ServerConfig | None
    controller_config: ControllerConfig
    kubeconfig: str | None = None
    context: str | None = None
    strict_tls: bool = True
    cluster: str | None = None
    namespace: str | None = None
    election: ElectionConfig | None = None
    health_host: str = "127.0.0.1"
    health_port: int | None = None


async def run(config: Config) -> None:
    """Runs until SIGTERM or SIGINT. Raises a group of CannotStart, or of the errors of tasks that ended
    unexpectedly.
    """
    asked, health = anyio.Event(), Health()
    asyncio.get_running_loop().set_default_executor(LookupThreads())
    asyncio.get_running_loop().set_exception_handler(report_unhandled)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_await_signal, asked)
        if config.health_port is not None:
            tasks.start_soon(health.serve, config.health_host, config.health_port)
        try:
            connecting = Client.connect(config.kubeconfig, context=config.context, strict_tls=config.strict_tls)
            async with AsyncExitStack() as stack:
                client = await unless(asked, partial(stack.enter_async_context, connecting))
                if client is not None:
                    cluster = config.cluster or await unless(asked, partial(read_cluster_id, client))
                    if cluster is not None:
                        await _run_terms(config, client, cluster, health, asked)
        except KubeError as error:
            raise (Misconfigured if isinstance(error, WrongKubeconfig) else CannotStart)(str(error)) from error
        tasks.cancel_scope.cancel()


async def _run_terms(config: Config, client: Client, cluster: str, health: Health, asked: anyio.Event) -> None:
    """Runs one controller per term. When leadership is lost, everything the term knew is discarded, and the next one
    stands by.
    """
    if config.election is None:
        await _RunningController(config, client, cluster, health, Leadership()).run(asked)
        return
    lease = Key(config.controller_config.namespace, config.election.lease)
    elector = Elector(client, lease, f"{config.election.identity}_{secrets.token_hex(4)}")
    terms = itertools.count(1)
    while not asked.is_set():
        term = Term()
        # Each term is another holder in databases, so that a statement sent in a lost term does not count in the next
        # one.
        leadership = Leadership(term, f"{cluster}/{lease}", f"{elector.identity}_{next(terms)}")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(elector.run, term)
            await _RunningController(config, client, cluster, health, leadership).run(asked)
            tasks.cancel_scope.cancel()
    await elector.resign()


async def _await_signal(asked: anyio.Event) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for number in signals:
            log.info("asked to stop", extra={"signal": number.name})
            asked.set()


async def _load_models() -> None:
    """Imports the models before the first object is stored, since the import would block the event loop for
    too long.
    """
    await asyncio.get_running_loop().run_in_executor(None, reading.load)


class _RunningController:
    def __init__(self, config: Config, client: Client, cluster: str, health: Health, leadership: Leadership) -> None:
        client = client.limited(lambda: leadership.leading)
        self._config = config
        self._client = client
        self._leadership = leadership
        self._queue = Queue(held=not leadership.leading)
        self._store = Store(index=index_pgrole)
        self._secrets = Store(index=index_by_owner)
        self._namespaces = Store()
        self._observed = ServerStores(Store(index_pgserver), Store(), Store(), config.controller_config.namespace)
        namespaces = Namespaces(client, self._namespaces, config.namespace)
        self._objects = Objects(self._store, self._secrets, namespaces, cluster, config.namespace)
        self._recorder = Recorder(client)
        password_tasks = PasswordTasks(client, self._secrets, self._recorder, self._observed.reserves)
        contests = Contests()
        endings = Endings(self._queue, contests)
        self._reporter = Reporter(client, self._store, endings, self._recorder)
        self._background = Background(client, self._store, endings, password_tasks, self._reporter)
        live_servers = LiveServers(lambda: [key.name for key, _ in self._observed.pgservers.items()])
        self._context = WorkerContext(
            self._objects,
            self._queue,
            endings,
            self._background,
            self._reporter,
            live_servers,
            leadership,
            Grantees(),
            contests,
        )
        self._servers = ServerWorkers(
            client,
            self._observed,
            config.server,
            config.controller_config,
            lambda declared: ServerWorker(declared, self._context),
            lambda name: self._source.enqueue_server(name),
        )
        self._context.grantees.connect(self._servers.note_grantee, self._servers.note_privileges, self._announce)
        self._declared_again, self._relisted = Signal(), Signal()
        leadership.synced = self._is_synced
        self._health = health
        health.watch(
            self._store,
            self._servers,
            leadership,
            Scraper(self._servers, self._objects, self._queue, leadership).scrape,
        )
        self._source = PgRoleSource(self._objects, self._queue, self._background, self._servers, self._context.grantees)
        self._secret_source = SecretSource(self._source, self._secrets)
        self._namespace_source = NamespaceSource(self._source)
        self._server_reporter = ServerReporter(
            client, self._observed.pgservers, self._servers, self._objects, leadership
        )

    async def run(self, asked: anyio.Event) -> None:
        """Runs until the process is asked to stop or loses leadership. In the latter case, all tasks are cancelled at
        once. Otherwise they end in the order in which data flows: workers, sources, writers, then the rest.
        """
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._lose, tasks.cancel_scope)
            await self._run(asked)
            tasks.cancel_scope.cancel()

    def _announce(self, server: str, result: PrivilegeResult) -> bool:
        """A database's worker has nothing new about an object but news. Returns whether they were announced."""
        announced = self._reporter.announce(result)
        if announced:
            count_news(server, result.news)
        return announced

    def _is_synced(self) -> bool:
        """Whether everything declared has been listed once."""
        return all(store.listed for store in self._declared())

    def _is_known(self) -> bool:
        return all(store.synced.is_set() for store in self._declared())

    def _declared(self) -> list[Store]:
        """The stores that decisions depend on, except those that the API server refuses to list."""
        others = [self._observed.pgservers] if self._config.namespace else [self._observed.pgservers, self._namespaces]
        return [self._store, *(store for store in others if store.refused is None)]

    async def _relist_when_back(self) -> None:
        """Lists everything again when Kubernetes is back: a watch can be cut off without an error and miss what was
        declared meanwhile.
        """
        while True:
            await self._leadership.confirmed_again()
            while self._leadership.leading and self._leadership.stale:
                count = self._leadership.confirmations
                self._relisted.pulse()
                await self._list_declared()
                self._leadership.refresh(count)

    async def _list_declared(self) -> None:
        """Lists again everything declared that the API server does not refuse to list."""
        for store in self._declared():
            store.doubt()
        self._declared_again.pulse()
        while not self._is_known():  # noqa: ASYNC110 -- a store may come to be refused meanwhile
            await anyio.sleep(RELIST_SECONDS)

    async def _lose(self, everything: anyio.CancelScope) -> None:
        await self._leadership.end()
        everything.cancel()

    async def _run(self, asked: anyio.Event) -> None:
        async with anyio.create_task_group() as rest:
            rest.start_soon(self._recorder.run)
            async with anyio.create_task_group() as writers:
                writers.start_soon(self._reporter.run)
                writers.start_soon(self._run_background)
                async with anyio.create_task_group() as sources:
                    self._start_sources(sources)
                    async with anyio.create_task_group() as workers:
                        workers.start_soon(self._servers.run)
                        await asked.wait()
                        self._stop_reconciles(workers)
                    sources.cancel_scope.cancel()
                self._background.close()
                writers.cancel_scope.deadline = anyio.current_time() + WRITE_SECONDS
            self._recorder.close()
            rest.cancel_scope.deadline = anyio.current_time() + EVENT_SECONDS

    async def _run_background(self) -> None:
        """Closes the reporter only when the background ended, whose errors it reports."""
        await self._background.run()
        self._reporter.close()

    async def _take_over(self) -> None:
        """Lists everything declared again before the first reconcile if this process stood by: a watch can be cut off
        without an error, and the objects and policies that it knows are then out of date.
        """
        stood_by = not self._leadership.leading
        await self._leadership.stand_by()
        metrics.LEADERSHIPS.inc()
        if stood_by and self._store.synced.is_set():
            await self._list_declared()
            with anyio.move_on_after(DECLARE_SECONDS):
                await self._servers.catch_up()
        self._queue.release()

    def _start_sources(self, tasks: TaskGroup) -> None:
        tasks.start_soon(self._take_over)
        tasks.start_soon(self._relist_when_back)
        for one in self._declared_reflections():
            tasks.start_soon(self._keep_listed, one, self._declared_again)
        for one in self._other_reflections():
            tasks.start_soon(self._keep_listed, one, self._relisted)
        tasks.start_soon(self._secret_source.announce_all)
        tasks.start_soon(self._secret_source.keys.run)
        tasks.start_soon(self._namespace_source.keys.run)
        tasks.start_soon(
            self._objects.namespaces.run,
            self._namespace_source.known,
            self._namespace_source.relabelled,
            self._objects.namespaces_in_use,
        )
        tasks.start_soon(self._server_reporter.run)
        tasks.start_soon(self._decline_unknown)

    def _declared_reflections(self) -> Iterator[Callable[[], Coroutine[Any, Any, None]]]:
        """Yields what keeps the stores that decisions depend on equal to the API server."""
        client, namespace, changed = self._client, self._config.namespace, self._source.changed
        yield partial(reflect, client, PGROLES, self._store, changed, namespace=namespace, prepare=_load_models)
        yield partial(reflect, client, PGSERVERS, self._observed.pgservers, self._servers.changed, prepare=_load_models)
        if namespace is None:
            yield partial(reflect, client, NAMESPACES, self._namespaces, self._namespace_source.changed)

    def _other_reflections(self) -> Iterator[Callable[[], Coroutine[Any, Any, None]]]:
        """Yields what keeps the stores of Secrets and ConfigMaps equal to the API server."""
        client, secrets, source, namespace = self._client, self._secrets, self._secret_source, self._config.namespace
        yield partial(reflect, client, SECRETS, secrets, source.changed, namespace=namespace, metadata_only=True)
        observed, changed = self._observed, self._servers.changed
        own = self._config.controller_config.namespace
        for resource, store in ((SECRETS, observed.secrets), (CONFIGMAPS, observed.config_maps)):
            yield partial(reflect, client, resource, store, changed, namespace=own, metadata_only=True)

    async def _keep_listed(self, reflection: Callable[[], Coroutine[Any, Any, None]], again: Signal) -> None:
        """Runs it, and begins again with a list at each pulse of `again`."""
        while True:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(reflection)
                await again.wait()
                tasks.cancel_scope.cancel()

    async def _decline_unknown(self) -> None:
        """Declines objects whose PgServer does not exist, or is not known."""
        await self._servers.all_started.wait()
        names = self._context.objects.server_name
        await decline(self._context, NO_SERVER, lambda key: self._servers.explain_absence(names(key) or DEFAULT_SERVER))

    def _stop_reconciles(self, workers: TaskGroup) -> None:
        """Lets current reconciles finish until the deadline. Servers without a session have none."""
        self._health.stopping = True
        self._queue.close()
        connected = [worker for worker in self._servers if worker.keeper.state.is_active]
        workers.cancel_scope.deadline = anyio.current_time() + RECONCILE_SECONDS
        workers.start_soon(self._end, connected, workers.cancel_scope)

    async def _end(self, connected: Sequence[ServerWorker], workers: anyio.CancelScope) -> None:
        for worker in connected:
            await worker.ended.wait()
        workers.cancel()
