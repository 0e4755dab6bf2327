"""The servers and their workers: one for each PgServer, and one for PGROLE_DSN where no PgServer is named default.

Guarantees: servers are added, changed and removed while the controller runs; no server delays another; credentials are
read again when their Secret changes, and no change is missed meanwhile, since a worker that connects reconciles every
object.

The resync reconciles every object of a server once in each period, spread evenly, so that a lost request does no
lasting harm.
"""

import logging
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NoReturn

import anyio
from anyio.abc import TaskGroup

from pgrole_controller import metrics
from pgrole_controller.api.reading import read_pgserver
from pgrole_controller.controller.containment import contain
from pgrole_controller.controller.declaration import (
    ControllerConfig,
    declare,
    find_references,
    index_config_map,
    index_secret,
    read_declaration,
    unusable,
)
from pgrole_controller.controller.objects import generation_of, is_own_write
from pgrole_controller.controller.server_config import DEFAULT_SERVER, ServerConfig
from pgrole_controller.controller.worker import ServerWorker
from pgrole_controller.core.errors import PgRoleError, Reason, Refused, Transient, Waiting
from pgrole_controller.core.request import Key, Rank, RequestReason
from pgrole_controller.event_loop import Signal
from pgrole_controller.kube.client import Client
from pgrole_controller.kube.store import Store, StoreChange
from pgrole_controller.kube.stored_object import Stored

log = logging.getLogger(__name__)

#: Pause after a declaration that could not be read, in seconds.
AGAIN_SECONDS = 5.0

#: Maximum number of declarations that are read at once: what is not answered must leave connections to others.
READERS = 12

#: An API server that starts refuses everyone until it has read its RBAC rules. For this long, in seconds, that does not
#: mean that there are no PgServers: PGROLE_DSN may name another server than PgServer default, and allows more.
DENIED_SECONDS = 10.0
_DENIED = ("401", "403")


@dataclass(frozen=True, slots=True)
class ServerStores:
    """PgServers, indexed by `index_pgserver`, and the metadata of Secrets and ConfigMaps in the controller's own
    `namespace`.
    """

    pgservers: Store
    secrets: Store
    config_maps: Store
    namespace: str

    def reserves(self, secret: Key) -> bool:
        """Whether a PgServer references this Secret."""
        return secret.namespace == self.namespace and self.pgservers.count_index(index_secret(secret.name)) > 0


@dataclass(slots=True)
class _Running:
    worker: ServerWorker
    scope: anyio.CancelScope
    ended: anyio.Event


class ServerWorkers:
    def __init__(
        self,
        client: Client,
        observed: ServerStores,
        implied: ServerConfig | None,
        controller_config: ControllerConfig,
        make_worker: Callable[[ServerConfig], ServerWorker],
        moved: Callable[[str], None],
    ) -> None:
        """`implied` is the server of PGROLE_DSN. `moved` is called with the name of a server that got or lost its
        worker: its objects are to be enqueued again.
        """
        self._client = client
        self._observed = observed
        self._implied = implied
        self._controller_config = controller_config
        self._make_worker = make_worker
        self._moved = moved
        self._running: dict[str, _Running] = {}
        self._ending: dict[str, anyio.Event] = {}  # workers that are to end, by the names of their servers
        self._read: dict[str, tuple[object, ServerConfig]] = {}
        self._changed, self._changing, self._updated = Signal(), Signal(), Signal()
        self._updating = False
        self.all_started = anyio.Event()  # every server that is declared has its worker

    def __contains__(self, name: object) -> bool:
        """Whether there is a worker for a server of this name."""
        return name in self._running

    def __iter__(self) -> Iterator[ServerWorker]:
        return iter([running.worker for running in self._running.values()])

    def changed(self, change: StoreChange) -> None:
        """Notes that a PgServer, or anything in the controller's own namespace, changed."""
        if is_own_write(change):
            return
        entries = index_secret(change.key.name), index_config_map(change.key.name)
        named = any(self._observed.pgservers.count_index(entry) for entry in entries)
        if not change.key.namespace or named:
            self._changed.set()
            self._changing.pulse()

    def explain_absence(self, name: str) -> PgRoleError:
        """Returns the error of an object whose server of this name has no worker."""
        pgservers = self._observed.pgservers
        if pgservers.refused is not None and not pgservers.synced.is_set():
            return Transient(Reason.SERVER_NOT_READY, f"the controller cannot list PgServers: {pgservers.refused}")
        return Refused(
            Reason.SERVER_GONE,
            f'spec.serverRef.name: PgServer "{name}" does not exist: create it, or name another one in a new object',
        )

    def note_grantee(self, server: str, key: Key, databases: frozenset[str]) -> None:
        """A role with privileges in these databases was published, changed or withdrawn."""
        if server in self._running:
            self._running[server].worker.databases.note_change(key, databases)

    def note_privileges(self, server: str, key: Key) -> None:
        """A database's worker has a new result about this object."""
        if server in self._running:
            self._running[server].worker.enqueue(key, RequestReason.PRIVILEGES, Rank.CHANGE)

    async def run(self) -> None:
        """Runs until cancelled, with every worker in it."""
        await self._observed.pgservers.answered.wait()
        if (self._observed.pgservers.refused or "").startswith(_DENIED):
            with anyio.move_on_after(DENIED_SECONDS):
                await self._observed.pgservers.synced.wait()
        async with anyio.create_task_group() as tasks:
            while True:
                self._changed.clear()
                self._updating = True
                again = await self._update(tasks)
                self._updating = False
                self._updated.pulse()
                if not self.all_started.is_set():
                    metrics.forget_other_servers(self._running)
                self.all_started.set()
                with anyio.move_on_after(AGAIN_SECONDS if again else float("inf")):
                    await self._changed.wait()

    async def catch_up(self) -> None:
        """Waits until the workers have taken every change that is known by now."""
        while self._changed.is_set() or self._updating:
            await self._updated.wait()

    async def _update(self, tasks: TaskGroup) -> bool:
        """Starts, changes and stops workers as declared, and meanwhile what changes and takes no request. Returns True
        if a declaration could not be read.
        """
        names = self._update_known(tasks)
        problems: list[PgRoleError] = []
        places = anyio.Semaphore(READERS)

        async def read(name: str) -> None:
            async with places:
                declared = await self._declare(name)
            if declared is not None and self._is_current(declared):
                self._take(declared, tasks)
                if declared.problem is not None:
                    problems.append(declared.problem)

        async with anyio.create_task_group() as beside:
            beside.start_soon(self._follow_known, tasks)
            async with anyio.create_task_group() as reads:
                for name in sorted(names):
                    reads.start_soon(read, name)
            beside.cancel_scope.cancel()
        return bool(problems)

    async def _follow_known(self, tasks: TaskGroup) -> NoReturn:
        """What takes no request does not wait for what others are read from."""
        while True:
            await self._changing.wait()
            self._update_known(tasks)

    def _update_known(self, tasks: TaskGroup) -> set[str]:
        """Stops and changes workers as far as that takes no request. Returns the names of all PgServers."""
        names = {key.name for key, _ in self._observed.pgservers.items()}
        implied = self._implied if DEFAULT_SERVER not in names else None
        for name in self._running.keys() - names - ({DEFAULT_SERVER} if implied is not None else set()):
            self._stop(name)
        if implied is not None:
            self._take(implied, tasks)
        self._pass_on()
        return names

    def _is_current(self, declared: ServerConfig) -> bool:
        """Whether the PgServer did not change while this was read: if it did, it is read again."""
        stored = self._observed.pgservers.get(Key("", declared.name))
        return stored is not None and (stored.uid, generation_of(stored)) == (declared.uid, declared.generation)

    def _take(self, declared: ServerConfig, tasks: TaskGroup) -> None:
        running = self._running.get(declared.name)
        if running is None:
            self._start(declared, tasks)
        else:
            running.worker.declare(declared)

    def _pass_on(self) -> None:
        """Passes on what changed in PgServers whose spec.connection did not, such as the policy. What they connect with
        is read afterwards.
        """
        for name, running in self._running.items():
            stored, known = self._observed.pgservers.get(Key("", name)), running.worker.server
            if stored is None or stored.uid != known.uid or generation_of(stored) == known.generation:
                continue
            try:
                declared = declare(stored, read_pgserver(stored.object()), self._controller_config.forbidden_metadata)
            except Exception:  # noqa: BLE001, S112 -- told when it is read
                continue
            if declared.connection == known.connection:
                how = replace(declared, endpoint=known.endpoint, lapsed=known.lapsed, outdated=known.outdated)
                running.worker.declare(replace(how, problem=known.problem))

    async def _declare(self, name: str) -> ServerConfig | None:
        """Returns the declaration as last read, unless a version changed since or it could not be used. None if the
        PgServer was deleted meanwhile.
        """
        stored = self._observed.pgservers.get(Key("", name))
        if stored is None:
            return None
        version = self._version(stored)
        known = self._read.get(name)
        if known is not None and known[0] == version and known[1].problem is None:
            return known[1]
        declared = await self._read_declaration(stored)
        if self._observed.pgservers.get(stored.key) is None:
            return None
        if known is not None:
            declared = self._keep(declared, known[1])
        self._read[name] = (version, declared)
        return declared

    async def _read_declaration(self, stored: Stored) -> ServerConfig:
        try:
            return await read_declaration(self._client, stored, self._controller_config)
        except Exception as error:  # noqa: BLE001 -- one server's error, whatever the object holds
            return unusable(stored, contain(error, stored.key))

    def _keep(self, declared: ServerConfig, known: ServerConfig) -> ServerConfig:
        """A server whose credentials cannot be read now keeps those that it has. Missing credentials serve only the
        current session, and are forgotten with it.
        """
        problem = declared.problem
        if problem is None or known.endpoint is None:
            return declared
        if (declared.age, declared.address) != (known.age, known.address):
            return declared
        outdated = known.outdated or declared.connection != known.connection
        kept = replace(declared, endpoint=known.endpoint, outdated=outdated)
        extra = {"server": declared.name, "error": problem.message}
        if isinstance(problem, Waiting) or known.lapsed:
            running = self._running.get(declared.name)
            if running is None or not running.worker.keeper.state.has_session:
                return declared
            if not known.lapsed:
                log.warning("credentials missing; the session continues", extra=extra)
            return replace(kept, lapsed=True)
        if isinstance(problem, Transient):
            if known.problem is None:
                log.warning("connection not readable; the session continues", extra=extra)
            return kept
        return declared

    def _version(self, stored: Stored) -> object:
        """Differs whenever the PgServer or something that it references does."""
        obj = stored.object()
        secrets, config_maps = find_references(obj)
        own = self._observed.namespace
        parts = [(self._observed.secrets, one) for one in sorted(secrets)]
        parts += [(self._observed.config_maps, one) for one in sorted(config_maps)]
        found = [store.get(Key(own, one)) for store, one in parts]
        return stored.uid, obj["metadata"].get("generation"), tuple(one and one.resource_version for one in found)

    def _start(self, declared: ServerConfig, tasks: TaskGroup) -> None:
        log.info("server added", extra={"server": declared.name})
        metrics.expect_server(declared.name)
        running = _Running(self._make_worker(declared), anyio.CancelScope(), anyio.Event())
        self._running[declared.name] = running
        tasks.start_soon(self._run, declared.name, running, self._ending.get(declared.name))
        self._moved(declared.name)

    def _stop(self, name: str) -> None:
        """Stops a worker; its objects report that the server is gone. A transaction in progress may take a while to
        end.
        """
        log.info("server removed", extra={"server": name})
        running = self._running.pop(name)
        self._read.pop(name, None)
        self._ending[name] = running.ended
        running.scope.cancel()
        self._moved(name)

    async def _run(self, name: str, running: _Running, before: anyio.Event | None) -> None:
        """One worker, once the previous one of this name has ended."""
        try:
            if before is not None:
                await before.wait()
            with running.scope:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(resync, running.worker, random.random)
                    await running.worker.run()
                    tasks.cancel_scope.cancel()
        finally:
            running.ended.set()
            if self._ending.get(name) is running.ended:
                del self._ending[name]
                if name not in self._running:
                    metrics.forget_server(name)
                    self._moved(name)  # requests that arrived in the worker's last moments
                    running.worker.remove()


#: Maximum number of rounds into which a period is divided, and minimum time between two, in seconds.
ROUNDS = 360
_SHORTEST_ROUND = 0.1


async def resync(worker: ServerWorker, draw: Callable[[], float]) -> None:
    """Enqueues every object once in each period of its server, forever: always in the same round, so that none waits
    longer because others are created or deleted. `draw` returns numbers in [0, 1): when it begins.
    """
    await worker.synced()
    await _wait(worker, draw() * worker.server.resync_seconds / ROUNDS)
    number, at = 0, anyio.current_time()
    while True:
        period = worker.server.resync_seconds
        rounds = min(max(int(period / _SHORTEST_ROUND), 1), ROUNDS)
        number, keys = (number + 1) % rounds, worker.keys()
        # a place that follows from the key alone: to keep, or to sort, 100,000 of them would take longer
        for key in [key for key in keys if hash(key) % rounds == number]:
            worker.enqueue(key, RequestReason.RESYNC, Rank.RESYNC)
        at = max(at + period / rounds, anyio.current_time())
        if await _wait(worker, at - anyio.current_time()):
            at = anyio.current_time()


async def _wait(worker: ServerWorker, seconds: float) -> bool:
    """Waits. Returns True, and sooner, if the server gets another period meanwhile."""
    with anyio.move_on_after(seconds):
        await worker.retimed.wait()
        return True
    return False
