"""Which databases of one server are served: those that published roles name, and the server's owner allows.

The worker of each keeps a connection, up to `databases.max`; beyond that, databases that have been quiet longest are
polled in turn.

Guarantees: workers live inside the session with the home database, and end with it or with this process's leadership;
whatever happens to one database delays neither the home database nor another one, except that those in turn wait for
each other for a bounded time; no two workers are at work in one database.
"""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import anyio
from anyio.abc import TaskGroup

from pgrole_controller.controller.context import WorkerContext
from pgrole_controller.controller.privileges.database_rotation import DatabaseRotation
from pgrole_controller.controller.privileges.database_worker import DatabaseContext, DatabaseWorker
from pgrole_controller.controller.privileges.privilege_memory import PrivilegeMemory
from pgrole_controller.controller.server_config import ServerConfig
from pgrole_controller.core.errors import PgRoleError, Refused
from pgrole_controller.core.privileges.database_places import Standing, choose_places, outranks
from pgrole_controller.core.privileges.grantee import Grantee, PrivilegePolicy
from pgrole_controller.core.privileges.privilege_policy import check_database
from pgrole_controller.core.privileges.privilege_result import PrivilegeResult
from pgrole_controller.core.request import Key
from pgrole_controller.core.server_options import DatabaseMode
from pgrole_controller.event_loop import Signal
from pgrole_controller.postgres.drift_history import MOST_RECORDED, RecordedDrift
from pgrole_controller.postgres.session import Session

log = logging.getLogger(__name__)

#: Minimum time between two exchanges of databases that have a connection, in seconds: each takes two sessions.
EXCHANGE_SECONDS = 10.0
#: How long a database whose session could not begin leaves its connection to others, in seconds: what keeps it from
#: having one may not keep it from its turns.
LEFT_SECONDS = 600.0


class DatabaseState(NamedTuple):
    """One database with managed privileges, for status and metrics. `mode` None: not served. `message`: why not, or why
    not by Events. `largest_acl`: as ObservedDatabase.largest_acl, when everything was last read.
    """

    name: str
    mode: DatabaseMode | None
    message: str
    largest_acl: int = 0


@dataclass(slots=True)
class _Served:
    """`busy`: whoever works in the database holds it. `scope`: of the worker's own task; None: it is served in turn.
    `left_at`: when it lost its connection, since no session could begin.
    """

    worker: DatabaseWorker
    busy: anyio.Lock
    scope: anyio.CancelScope | None = None
    left_at: float = -math.inf

    @property
    def standing(self) -> Standing:
        worker, placed = self.worker, self.scope is not None
        rested = anyio.current_time() >= self.left_at + LEFT_SECONDS
        reachable = worker.trouble is None if placed else worker.opened and rested
        return Standing(worker.database, placed, reachable, worker.changed_at)


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
        self._served: dict[str, _Served] = {}
        self._ending: dict[str, anyio.Lock] = {}  # of workers that are no longer served, and may still be at work
        self._changed_at: dict[str, float] = {}  # by database, in former sessions
        self._remembered: dict[str, PrivilegeMemory] = {}  # of former workers of databases that roles still name
        self._abandoned: set[str] = set()
        self._unstored: list[RecordedDrift] = []  # of databases that are no longer served, or taken in vain
        self._rotation = DatabaseRotation(config, self._note_turn)
        self._told: dict[str, tuple[str, str]] = {}  # why databases are refused: all their roles were told this
        self._noted: set[Key] = set()  # roles that may have to be told again
        self._exchange_from = -math.inf
        self._changed = Signal()

    async def run(self, session: Session, home: str) -> None:
        """Runs until cancelled, with every worker in it. `session` is with the home database, whose name is `home`."""
        context = DatabaseContext(
            self._config,
            self._grantees,
            self._context.leadership,
            self.cluster,
            session.identity,
            home,
            self._suspended,
        )
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._rotation.run)
                while True:
                    self._changed.clear()
                    self._update(tasks, context)
                    wait = self._exchange_from - anyio.current_time()
                    with anyio.move_on_after(wait if wait > 0.0 else math.inf):
                        await self._changed.wait()
        finally:
            self._changed_at = {name: served.worker.changed_at for name, served in self._served.items()}
            self._remembered |= {name: served.worker.memory.of_next_worker() for name, served in self._served.items()}
            self.keep_unstored(self.take_unstored())
            self._served, self._ending, self._told = {}, {}, {}
            self._rotation = DatabaseRotation(self._config, self._note_turn)

    def note_change(self, key: Key, names: frozenset[str]) -> None:
        """A role with privileges in these databases was published, changed or withdrawn."""
        for name in self._served.keys() & names:
            self._served[name].worker.note_grantee(key)
        self._rotation.wake(names)
        self._noted.add(key)
        self._changed.set()

    def note_config(self) -> None:
        """The server's declaration changed."""
        for name, served in self._served.items():
            served.worker.note_config()
            served.left_at = -math.inf
            self._rotation.retry(name)
        self._changed.set()

    def note_everything(self) -> None:
        """Any role may have to be reconciled in any database."""
        for name, served in self._served.items():
            served.worker.note_everything()
            self._rotation.retry(name)

    def note_databases(self, names: tuple[str, ...] | None) -> None:
        """These databases were created, or changed their name, owner or ACL; None: any."""
        for name in self._served if names is None else self._served.keys() & set(names):
            self._served[name].worker.note_database()
            self._rotation.retry(name)

    def note_roles(self, names: tuple[str, ...] | None) -> None:
        """These roles were created or changed; None: any. A declaration may wait for one of them."""
        for served in self._served.values():
            if waiting := served.worker.memory.waiting_for(names):
                self._note_awaited(served, waiting)

    def note_renamed(self, names: tuple[str, ...] | None) -> None:
        """Another role has these names now, or none; None: any. A declaration may name one as a creator."""
        server = self._config().name
        for name, served in self._served.items():
            if naming := self._grantees.naming(server, name, names):
                self._note_awaited(served, naming)

    def _note_awaited(self, served: _Served, keys: frozenset[Key]) -> None:
        served.worker.note_awaited(keys)
        self._rotation.wake({served.worker.database})

    @property
    def cluster(self) -> str:
        """Of this controller's objects."""
        return self._context.objects.cluster

    def storing(self) -> set[str]:
        """The databases that are served, and have a part of schema pgrole."""
        return {name for name, served in self._served.items() if served.worker.stores}

    def take_recorded(self) -> set[str]:
        """Returns the databases in which drifts were recorded since the last call."""
        return {name for name, served in self._served.items() if served.worker.memory.drifts.take_recorded()}

    def take_unstored(self) -> list[RecordedDrift]:
        """Returns drifts since the last call in databases that store nothing: the home database is to record them."""
        taken, self._unstored = self._unstored, []
        for served in self._served.values():
            taken += served.worker.memory.drifts.take_unstored()
        return taken

    def keep_unstored(self, drifts: Sequence[RecordedDrift]) -> None:
        """Has the next call of `take_unstored` return these again, at most MOST_RECORDED."""
        self._unstored = [*self._unstored, *drifts][-MOST_RECORDED:]

    def forget_server(self) -> None:
        """Forgets the drifts, recorded or not, and what was applied: they were another server's."""
        self._unstored, self._abandoned, self._remembered = [], set(), {}

    def take_abandoned(self) -> set[str]:
        """Returns the databases that are no longer served since the last call, and may have a part of schema pgrole."""
        abandoned, self._abandoned = self._abandoned - self._served.keys(), set()
        return abandoned

    def states(self) -> list[DatabaseState]:
        """The state of every database that published roles name, sorted by name."""
        databases = self._config().databases
        polled = sum(served.scope is None for served in self._served.values())
        in_turn = (
            f"polled in turn, like {polled} of {len(self._served)} databases, since PgServer.spec.databases.max is "
            f"{databases.max if databases else 0}: raise it to have changes noticed sooner"
        )
        names, templates = sorted(self._grantees.databases(self._config().name)), self._templates()
        return [self._state(name, in_turn, templates) for name in names]

    def _state(self, name: str, in_turn: str, templates: frozenset[str]) -> DatabaseState:
        """`in_turn`: the message about a database that is served in turn."""
        served = self._served.get(name)
        if served is None:
            error = self._refuse(name, templates)
            return DatabaseState(name, None, error.message if error else "")
        worker = served.worker
        why = in_turn if served.scope is None else worker.why
        message = why if worker.trouble is None else worker.trouble.message
        return DatabaseState(name, worker.mode, message, worker.memory.largest_acl)

    def _update(self, tasks: TaskGroup, context: DatabaseContext) -> None:
        """Serves databases as declared: on a connection of its own, or in turn."""
        config, now = self._config(), anyio.current_time()
        named = self._grantees.databases(config.name)
        templates = self._templates()
        refused = {name: error for name in named if (error := self._refuse(name, templates)) is not None}
        allowed = named - refused.keys()
        for name in self._served.keys() - allowed:
            self._forget(name)
        for name in self._remembered.keys() - named:
            del self._remembered[name]
        for name in allowed - self._served.keys():
            worker = DatabaseWorker(name, context, self._changed_at.pop(name, now))
            worker.memory = self._remembered.pop(name, worker.memory)
            busy = self._ending.pop(name) if name in self._ending else anyio.Lock()
            self._served[name] = _Served(worker, busy)
        chosen = choose_places(
            [served.standing for served in self._served.values()],
            0 if config.databases is None else config.databases.max,
            exchanging=now >= self._exchange_from,
        )
        for name, served in self._served.items():
            if served.scope is not None and name not in chosen:
                served.scope.cancel()
                served.scope, served.left_at = None, now if served.worker.trouble is not None else -math.inf
                log.debug("database polled in turn", extra={"server": config.name, "database": name})
                self._exchange_from = now + EXCHANGE_SECONDS
            if name not in chosen:
                self._rotation.add(served.worker, served.busy)
            elif served.scope is None:
                self._rotation.remove(name)
                served.scope = anyio.CancelScope()
                tasks.start_soon(self._run, name, served, served.scope)
        self._report_refused(refused, templates)

    def _templates(self) -> frozenset[str]:
        """The databases of published roles that are templates."""
        published = self._grantees.published(self._config().name)
        return frozenset[str]().union(*(one.policy.templates for one in published))

    def _refuse(self, database: str, templates: frozenset[str], *, declared: bool = True) -> Refused | None:
        """`declared`: by a spec, rather than by former ones."""
        databases = self._config().databases
        policy = PrivilegePolicy()
        if databases is not None:
            policy = PrivilegePolicy(None, databases.match, databases.but, templates)
        return check_database(policy, database, declared=declared)

    def _forget(self, name: str) -> None:
        served = self._served.pop(name)
        served.worker.forgotten = True
        self.keep_unstored(served.worker.memory.drifts.take_unstored())
        self._remembered[name] = served.worker.memory.of_next_worker()
        self._abandoned.add(name)
        if served.busy.locked():
            self._ending[name] = served.busy
        self._rotation.remove(name)
        if served.scope is not None:
            served.scope.cancel()

    async def _run(self, name: str, served: _Served, scope: anyio.CancelScope) -> None:
        """One worker on a connection of its own, once no other is at work in the database."""
        with scope:
            async with served.busy:
                await served.worker.run()
        served.worker.await_turn()
        self._note_end(name)
        self._rotation.wake({name})

    def _note_turn(self, name: str) -> None:
        self._note_end(name)
        served = self._served.get(name)
        if served is None or served.scope is not None:
            return
        if any(
            other.scope is not None and outranks(served.standing, other.standing) for other in self._served.values()
        ):
            self._changed.set()

    def _note_end(self, name: str) -> None:
        if name in self._ending and not self._ending[name].locked():
            del self._ending[name]
            if self._told.pop(name, None) is not None:  # its last results may have replaced the refusal
                self._changed.set()

    def _report_refused(self, refused: Mapping[str, Refused], templates: frozenset[str]) -> None:
        """Tells every role in a database why that is refused, and afterwards only roles that are published again: each
        of very many roles may be published in turn.
        """
        server, told = self._config().name, dict[str, tuple[str, str]]()
        noted, self._noted = self._noted, set()
        for name, error in refused.items():
            former = self._refuse(name, templates, declared=False) or error
            published = self._grantees.published_in(server, name)
            told[name] = str(error), str(former)
            keys = noted & published.keys() if self._told.get(name) == told[name] else published.keys()
            for grantee in [published[key] for key in keys]:
                self._report(grantee, name, error if name in grantee.declared else former)
        self._told = told

    def _report(self, grantee: Grantee, database: str, error: PgRoleError) -> None:
        server, digest = self._config().name, grantee.digest_of(database)
        before = self._grantees.results(server, grantee.key).get(database)
        if before is None or before.digest != digest or str(before.error) != str(error):
            self._grantees.report(server, PrivilegeResult(grantee.key, grantee.uid, database, digest, error))
