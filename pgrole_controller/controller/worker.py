"""The worker of one server: takes the keys that are due, reconciles them in batches, and hands the results on.

Expected flow: `SessionKeeper` connects; with each session, every object of the server is reconciled, first those that
changed during the outage, and the claims of deleted objects are released; then the worker reconciles what the queue
gives, until the session ends.

Guarantees: a server that hangs or refuses delays only its own worker; nothing is reconciled before the store has
synced, nor before this process leads.
"""

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import anyio
from anyio.abc import TaskGroup

from pgrole_controller import logs
from pgrole_controller.controller.attributor import Attributor
from pgrole_controller.controller.background import EmptyingLimits
from pgrole_controller.controller.containment import contain
from pgrole_controller.controller.context import WorkerContext
from pgrole_controller.controller.maintenance import Maintenance
from pgrole_controller.controller.objects import RIVALS
from pgrole_controller.controller.orphans import OrphanTimer
from pgrole_controller.controller.privileges.databases import Databases
from pgrole_controller.controller.privileges.grantee_publisher import take_news
from pgrole_controller.controller.queue import Pace
from pgrole_controller.controller.reconcile import reconcile
from pgrole_controller.controller.result import Result
from pgrole_controller.controller.server_config import ServerConfig
from pgrole_controller.controller.session_keeper import SessionKeeper, SessionState
from pgrole_controller.controller.telemetry import (
    BatchMetrics,
    DriftCounts,
    begin_reconciles,
    count_notification,
)
from pgrole_controller.controller.worker_memory import OwnChanges, WorkerMemory
from pgrole_controller.core.errors import PgRoleError, Reason
from pgrole_controller.core.request import Key, Rank, Request, RequestReason
from pgrole_controller.core.server_options import AuditSource
from pgrole_controller.core.workqueue import WorkItem
from pgrole_controller.event_loop import Signal
from pgrole_controller.postgres.session import Session
from pgrole_controller.postgres.watch import ChangeCallbacks

log = logging.getLogger(__name__)

#: Minimum time between two requests for every object after an announcement of many changes, in seconds.
MANY_SECONDS = 1.0

#: How often the worker checks whether Kubernetes became unreachable before reconciles began, in seconds.
ENFORCING_SECONDS = 1.0

#: How long the start waits for Secrets to be listed, in seconds: objects that need none do not wait longer.
SECRETS_SECONDS = 10.0


class ServerWorker:
    def __init__(self, server: ServerConfig, context: WorkerContext) -> None:
        self._context = context
        self._objects = context.objects
        self._queue = context.queue
        self.keeper = SessionKeeper(
            server,
            context,
            self._work,
            ChangeCallbacks(
                self._note_notification,
                lambda names: self.databases.note_databases(names),
                lambda names: self.databases.note_renamed(names),
            ),
            self.enqueue_all,
            self._note_suspension,
        )
        self.ended = anyio.Event()  # since the queue is closed
        self.retimed = Signal()  # pulsed when the period of the resync changes
        self._memory = WorkerMemory(context.grantees, context.contests)
        self._pace = Pace()
        self._emptying = EmptyingLimits()
        self._everything = Signal()  # set: every object is to be reconciled
        self._system_identifier: int | None = None  # of the last session's server
        self._released_in: set[str | None] = set()  # namespaces in which claims were released; None: any
        self._claims_released = Signal()
        self.databases = Databases(lambda: self.server, context, lambda: self.keeper.state is SessionState.SUSPENDED)
        self.attributor = Attributor(
            lambda: self.server,
            context.objects.cluster,
            lambda key: self.enqueue(key, RequestReason.ATTRIBUTED, Rank.DEPENDENCY),
        )
        self.drift_counts = DriftCounts()
        self._orphans: OrphanTimer | None = None  # of the session
        self._session_lock = anyio.Lock()  # one batch or one release of claims at a time

    @property
    def server(self) -> ServerConfig:
        return self.keeper.server

    @property
    def own_changes(self) -> OwnChanges:
        return self._memory.own_changes

    async def run(self) -> None:
        """Runs until the queue is closed."""
        await self.synced()
        await self.keeper.run()
        self.ended.set()

    def remove(self) -> None:
        """After its end: forgets what still waits in the queue."""
        self._queue.remove(self.server.name)
        self._context.grantees.withdraw_all(self.server.name)

    def declare(self, server: ServerConfig) -> None:
        """Takes the current declaration. Reconnects if it changes how to connect, and reconciles every object if it
        changes the policy, or only what claims record of the PgServer.
        """
        before, self.keeper.server = self.server, server
        if before.uid != server.uid:
            self.drift_counts = DriftCounts()
        if before.resync_seconds != server.resync_seconds:
            self.retimed.pulse()
            if self._orphans is not None:
                self._orphans.restart()
        other_problem = server.endpoint is None and _explain_problem(before) != _explain_problem(server)
        if before.access != server.access or other_problem:
            self.keeper.reconnect("server changed")
        elif (before.server_policy, before.address) != (server.server_policy, server.address):
            self.enqueue_all(RequestReason.POLICY, Rank.CHANGE)
        elif (before.uid, before.generation) != (server.uid, server.generation):
            self.enqueue_all(RequestReason.SERVER, Rank.RESYNC)
        if before != server:
            self.databases.note_config()

    async def synced(self) -> None:
        """Waits until the objects are listed, and their Secrets, unless these take too long."""
        await self._objects.store.synced.wait()
        with anyio.move_on_after(SECRETS_SECONDS):
            await self._objects.secrets_answered.wait()

    def keys(self) -> set[Key]:
        return self._objects.of_server(self.server.name)

    def enqueue(self, key: Key, reason: RequestReason, rank: Rank) -> None:
        """Enqueues an object, unless it was deleted meanwhile, or created again for another server: the queue would
        take it from that one.
        """
        if self._objects.is_of_server(self.server.name, key):
            self._queue.put(self.server.name, Request(key, reason, rank))

    def enqueue_all(self, reason: RequestReason, rank: Rank) -> None:
        for key in self.keys():
            self.enqueue(key, reason, rank)

    def _note_notification(self, names: tuple[str, ...] | None) -> None:
        own = {name for name in names or () if self.own_changes.expects(name)}
        count_notification(self.server.name, names, self.own_changes)
        self.databases.note_roles(names)
        if names is None:
            self._everything.set()
            return
        for name in names:
            sharing = self._objects.sharing(self.server.name, name)
            # Of thousands that name one role, those that never had it do not go before the drift of other roles.
            first = sharing if len(sharing) <= RIVALS else self._objects.having(self.server.name, name)
            rank = Rank.CHANGE if name in own else Rank.DRIFT
            for key in sharing:
                self.enqueue(key, RequestReason.NOTIFY, rank if key in first else Rank.DEPENDENCY)
            for key in self._objects.joining(self.server.name, name):
                self.enqueue(key, RequestReason.NOTIFY_OF_GROUP, Rank.DEPENDENCY)

    async def _answer_many(self) -> None:
        """Enqueues every object when many changes are announced.

        Anyone can announce that as often as they like, so changes that were announced by name go first.
        """
        while True:
            await self._everything.wait()
            self._everything.clear()
            self.enqueue_all(RequestReason.NOTIFY, Rank.DEPENDENCY)
            await anyio.sleep(MANY_SECONDS)

    async def _refresh_grantees(self) -> None:
        """Reconciles the objects with privileges after claims of deleted objects were released: the namespace may no
        longer be allowed to grant privileges on what such a role owns.
        """
        while True:
            await self._claims_released.wait()
            self._claims_released.clear()
            namespaces, self._released_in = self._released_in, set()
            for grantee in self._context.grantees.published(self.server.name):
                if {None, grantee.key.namespace} & namespaces:
                    self.enqueue(grantee.key, RequestReason.CLAIM_RELEASED, Rank.DEPENDENCY)
            await anyio.sleep(MANY_SECONDS)

    async def _await_release(self, session: Session) -> None:
        """Waits until reconciles may begin: this process leads with everything listed, or enforces what was applied."""
        while not self._queue.is_released:
            if session.enforcing:
                self._queue.release()
            with anyio.move_on_after(ENFORCING_SECONDS):
                await self._queue.released()

    async def _catch_up(self, orphans: OrphanTimer) -> None:
        """When Kubernetes is back, reconciles every object: does what was postponed, and reports what was done."""
        while True:
            await self._context.leadership.refreshed()
            orphans.restart()
            self.enqueue_all(RequestReason.KUBERNETES_BACK, Rank.DEPENDENCY)

    async def _work(self, session: Session) -> None:
        self._memory = self._memory.of_next_session()
        self._withdraw_others(session.identity.system_identifier)
        keys, changed = self.keys(), self.keeper.changed
        self._context.reporter.withdraw(keys, Reason.SERVER_NOT_READY)
        self._queue.reset_failures(self.server.name)
        for key in changed & keys:
            self.enqueue(key, RequestReason.CONNECTED, Rank.CHANGE)
        changed.clear()
        self.enqueue_all(RequestReason.CONNECTED, Rank.DEPENDENCY)
        await self._await_release(session)
        self.keeper.note_suspended(await session.is_suspended())
        home = await session.read_database_name()
        orphans = self._orphans = OrphanTimer(
            session,
            self._session_lock,
            self.keeper,
            self._objects,
            self._note_released,
            self._context.live_servers.unknown,
        )
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._answer_many)
            tasks.start_soon(self._refresh_grantees)
            tasks.start_soon(self._catch_up, orphans)
            tasks.start_soon(orphans.run)
            tasks.start_soon(self.databases.run, session, home)
            tasks.start_soon(self.attributor.run, session)
            tasks.start_soon(Maintenance(lambda: self.server, self.databases, session, home).run)
            while items := await self._queue.take(self.server.name, self._pace.limit, self._calm_until()):
                await self._reconcile(session, items, tasks)
            tasks.cancel_scope.cancel()

    def _withdraw_others(self, system_identifier: int) -> None:
        """Withdraws the roles of another server that had this name or address before, and forgets what was found and
        applied there. New servers give the same oids to their first roles, so what was found there would count as an
        answer about this server.
        """
        if self._system_identifier != system_identifier:
            self._system_identifier = system_identifier
            self._context.grantees.withdraw_all(self.server.name)
            self.databases.forget_server()
            self.attributor.forget()

    def _calm_until(self) -> float:
        """Before this time only a drift begins a batch, unless enough keys wait to fill one."""
        full = self._queue.backlog(self.server.name).depth >= self._pace.limit
        return -math.inf if full else self._pace.calm_until

    async def _reconcile(self, session: Session, items: Sequence[WorkItem], beside: TaskGroup) -> None:
        ids = begin_reconciles(self.server.name, items)
        batch_metrics = BatchMetrics(self.server.name, items)
        unfinished = {item.key for item in items}
        drifted = {item.key for item in items if item.rank is Rank.DRIFT}
        try:
            async with self._session_lock:
                began = anyio.current_time()
                if not drifted:
                    self._pace.begin(began)
                with logs.tracing(ids.batch):
                    results = await self._reconcile_batch(session, unfinished, drifted)
            batch_metrics.end()
            noted = await self._read_noted_rows(session, results)
            for result in results:
                with logs.tracing(ids.of[result.key]):
                    self._hand_on(result, batch_metrics, session, beside, noted)
                unfinished.discard(result.key)
            self._pace.note(len(items), anyio.current_time() - began)
        finally:
            # Also when it is cancelled: a reconcile that never ends would be the last one of its key.
            for key in unfinished:
                self._context.endings.interrupt(key)

    async def _reconcile_batch(self, session: Session, keys: set[Key], drifted: set[Key]) -> list[Result]:
        background = self._context.background
        prepared = {key: one for key in keys if (one := background.take(key)) is not None}
        return await reconcile(
            list(keys),
            self.server,
            self._objects,
            session,
            self._memory,
            drifted,
            prepared,
        )

    async def _read_noted_rows(self, session: Session, results: Sequence[Result]) -> dict[int, tuple[int, ...]]:
        """Returns, by oid, which transactions wrote the drifted roles before the repair. Empty where pgaudit is not
        used.
        """
        asks = self.server.attribution.audit_log is AuditSource.PGAUDIT and session.identity.superuser
        if not asks or not any(result.drift and result.drift.corrected for result in results):
            return {}
        async with self._session_lock:
            try:
                return await session.read_noted_rows()
            except PgRoleError as error:
                log.warning("cannot read who wrote the rows of roles", extra={"error": error.message})
                return {}

    def _hand_on(
        self,
        result: Result,
        batch_metrics: BatchMetrics,
        session: Session,
        beside: TaskGroup,
        noted: Mapping[int, tuple[int, ...]],
    ) -> None:
        """Counts the result, adds what others know of it, and hands it on, which ends the reconcile."""
        try:
            result = take_news(result, self._context.grantees, self.server.name)
            batch_metrics.count(result)
            self.drift_counts.count(result)
            if _is_suspended_there(result):
                self.keeper.note_suspended(True)
            result = self._attribute(result, noted)
            for name in result.released:
                self._note_released(name, result.key)
        except Exception as error:  # noqa: BLE001 -- this object's error
            contain(error, result.key)
        empty_role, endpoint = self._context.background.empty_role, self.server.endpoint
        if result.reassign is not None and endpoint is not None:
            beside.start_soon(empty_role, self._emptying, endpoint, result, session.fence, session.identity)
        else:
            self._context.hand_on(result)

    def _attribute(self, result: Result, noted: Mapping[int, tuple[int, ...]]) -> Result:
        """Asks who caused the drift, and adds the answer to an earlier question. Whether the password is reported as
        drift too is known once its task is done.
        """
        attributor, is_open = self.attributor, result.password_task is not None
        if result.drift is not None and (result.drift.corrected or not is_open):
            xmins = noted.get(result.drift.oid, ())
            drift = attributor.note(result.key, result.drift, xmins, result.observed_at)
            result = replace(result, drift=drift)
        if result.decided and not is_open and (result.drift is None or result.drift.corrected):
            attributor.note_unreported(result.key)
        if result.claim is not None:
            attributor.note_claim(result.claim)
        cause = attributor.find_cause(result.key) or result.cause
        return replace(result, cause=cause, exposes_all=self.server.attribution.exposes_all)

    def _note_suspension(self) -> None:
        """Handles that changes were suspended on the server, or are no longer: claims may wait to be released."""
        self.databases.note_everything()
        if self._orphans is not None:
            self._orphans.restart()

    def _note_released(self, role_name: str, by: Key | None = None) -> None:
        """Handles that no object claims this role any more, and enqueues those that name it. `by`: the object that
        released it; None: the claim was an orphan's.
        """
        if by is None:
            self._memory.verifiers.forget(role_name)
        self._released_in.add(by.namespace if by else None)
        self._claims_released.set()
        for key in self._objects.sharing(self.server.name, role_name) - {by}:
            self.enqueue(key, RequestReason.CLAIM_RELEASED, Rank.DEPENDENCY)


def _explain_problem(server: ServerConfig) -> str:
    """Why the controller cannot connect to the server; empty if it can."""
    return server.problem.message if server.problem else ""


def _is_suspended_there(result: Result) -> bool:
    """Whether the server is suspended, rather than the object, or a database in which the role has privileges: what
    their workers report comes with a decision about the role.
    """
    desired, outcome = result.target.desired, result.outcome
    is_suspended = outcome is not None and outcome.reason is Reason.SUSPENDED and not result.decided
    return is_suspended and not (desired and desired.suspended)
