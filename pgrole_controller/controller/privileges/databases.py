"""Which databases of one server have a worker: those that published roles name, and the server's owner allows.

Guarantees: workers live inside the session with the home database, and end with it or with the lead; whatever happens
to one database delays neither the home database nor another one.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import anyio
from anyio.abc import TaskGroup

from pgrole_controller.controller.context import WorkerContext
from pgrole_controller.controller.privileges.database_worker import DatabaseContext, DatabaseWorker
from pgrole_controller.controller.server_config import ServerConfig
from pgrole_controller.core.database_options import DatabaseMode
from pgrole_controller.core.errors import PgRoleError, Reason, Refused, Waiting
from pgrole_controller.core.privileges.grantee import PrivilegePolicy
from pgrole_controller.core.privileges.privilege_policy import check_database
from pgrole_controller.core.privileges.privilege_result import PrivilegeResult
from pgrole_controller.core.request import Key
from pgrole_controller.postgres.session import Session
from pgrole_controller.signals import Signal

log = logging.getLogger(__name__)


class DatabaseState(NamedTuple):
    """One database with managed privileges, for status and metrics. `mode` None: not connected. `message`: why not, or
    why not by Events.
    """

    name: str
    mode: DatabaseMode | None
    message: str


@dataclass(slots=True)
class _Running:
    worker: DatabaseWorker
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    ended: anyio.Event = field(default_factory=anyio.Event)


class Databases:
    """The workers of one server's databases. `config` returns the server's current declaration."""

    def __init__(
        self,
        config: Callable[[], ServerConfig],
        context: WorkerContext,
        suspended: Callable[[], bool],
    ) -> None:
        self._config = config
        self._context = context
        self._grantees = context.grantees
        self._suspended = suspended
        self._running: dict[str, _Running] = {}
        self._ending: dict[str, anyio.Event] = {}
        self._changed = Signal()

    async def run(self, session: Session, home: str) -> None:
        """Runs until cancelled, with every worker in it. `session` is with the home database, whose name is `home`."""
        try:
            async with anyio.create_task_group() as tasks:
                while True:
                    self._changed.clear()
                    self._update(tasks, session, home)
                    await self._changed.wait()
        finally:
            self._running, self._ending = {}, {}

    def note_change(self, key: Key, names: frozenset[str]) -> None:
        """A role with privileges in these databases was published, changed or withdrawn."""
        for name in names:
            if name in self._running:
                self._running[name].worker.note_grantee(key)
        self._changed.set()

    def note_config(self) -> None:
        """The server's declaration changed."""
        for running in self._running.values():
            running.worker.note_config()
        self._changed.set()

    def note_databases(self, names: tuple[str, ...] | None) -> None:
        """These databases were created, or changed their name, owner or ACL; None: any."""
        for name in self._running if names is None else self._running.keys() & set(names):
            self._running[name].worker.note_database()

    def read_all(self) -> None:
        """Changes are allowed again, or everything may have changed."""
        for running in self._running.values():
            running.worker.note_everything()

    def storing(self) -> set[str]:
        """The databases that have a session and a part of schema pgrole."""
        return {name for name, running in self._running.items() if running.worker.stores}

    def take_recorded(self) -> set[str]:
        """Returns the databases in which drifts were recorded since the last call."""
        return {name for name, running in self._running.items() if running.worker.take_recorded()}

    def states(self) -> list[DatabaseState]:
        """The state of every database that published roles name, sorted by name."""
        return [self._state(name) for name in sorted(self._grantees.databases(self._config().name))]

    def _state(self, name: str) -> DatabaseState:
        running = self._running.get(name)
        if running is None:
            config = self._config()
            error = self._refuse(name, self._templates()) or _too_many(
                name, config.databases.max if config.databases else 0
            )
            return DatabaseState(name, None, error.message)
        worker = running.worker
        message = worker.trouble.message if worker.trouble else worker.why
        return DatabaseState(name, worker.mode, message)

    def _update(self, tasks: TaskGroup, session: Session, home: str) -> None:
        """Starts and stops workers as declared. If there are too many databases, those that have a worker keep it."""
        config = self._config()
        named = self._grantees.databases(config.name)
        templates = self._templates()
        refused = {name: error for name in named if (error := self._refuse(name, templates)) is not None}
        allowed = named - refused.keys()
        most = 0 if config.databases is None else config.databases.max
        chosen = sorted(allowed, key=lambda name: (name not in self._running, name))[:most]
        for name in self._running.keys() - set(chosen):
            self._stop(name)
        for name in chosen:
            if name not in self._running:
                self._start(name, tasks, session, home)
        for name, error in refused.items():
            self._report(name, error, self._refuse(name, templates, declared=False) or error)
        for name in allowed - set(chosen):
            full = _too_many(name, most)
            self._report(name, full, full)

    def _templates(self) -> frozenset[str]:
        """The databases of published roles that are templates."""
        published = self._grantees.published(self._config().name)
        return frozenset[str]().union(*(one.policy.templates for one in published))

    def _refuse(self, database: str, templates: frozenset[str], *, declared: bool = True) -> Refused | None:
        """`declared`: by a spec, rather than by former ones."""
        some = self._config().databases
        policy = PrivilegePolicy() if some is None else PrivilegePolicy(None, some.match, some.but, templates)
        return check_database(policy, database, declared=declared)

    def _start(self, name: str, tasks: TaskGroup, session: Session, home: str) -> None:
        context = DatabaseContext(
            self._config,
            self._grantees,
            self._context.leadership,
            self._context.objects.cluster,
            session.identity,
            home,
            self._suspended,
        )
        running = self._running[name] = _Running(DatabaseWorker(name, context))
        tasks.start_soon(self._run, name, running, self._ending.get(name))

    def _stop(self, name: str) -> None:
        running = self._running.pop(name)
        self._ending[name] = running.ended
        running.scope.cancel()

    async def _run(self, name: str, running: _Running, before: anyio.Event | None) -> None:
        """One worker, once the previous one of this database has ended."""
        try:
            if before is not None:
                await before.wait()
            with running.scope:
                await running.worker.run()
        finally:
            running.ended.set()
            if self._ending.get(name) is running.ended:
                del self._ending[name]

    def _report(self, database: str, error: PgRoleError, former: PgRoleError) -> None:
        """`former`: for roles whose spec no longer declares privileges there."""
        server = self._config().name
        for grantee in self._grantees.of_database(server, database):
            digest = grantee.digest_of(database)
            before = self._grantees.results(server, grantee.key).get(database)
            told = error if database in grantee.declared else former
            if before is None or before.digest != digest or str(before.error) != str(told):
                self._grantees.report(server, PrivilegeResult(grantee.key, grantee.uid, database, digest, told))


def _too_many(database: str, most: int) -> PgRoleError:
    return Waiting(
        Reason.PRIVILEGE_PENDING,
        f'database "{database}": the controller already serves {most} databases of this server: raise '
        "PgServer.spec.databases.max",
    )
