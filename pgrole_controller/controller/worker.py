"""The worker of one server: keeps a session with it and reconciles the keys that are ready; says so while there is
none.

Expected flow: connect, reconcile every object of the worker and read every claim whose object is gone, then reconcile
what the queue gives; when the session fails, connect again (`core.reconnect` says when), and reconcile everything
again: first what is known to have changed.

Guarantees: a server that hangs or refuses delays only this worker; nothing is reconciled before the store has synced,
nor before this process leads. Until then the session is kept ready.
"""

import logging
import math
import random
from collections.abc import Sequence
from dataclasses import replace

import anyio
from anyio.abc import TaskGroup

from pgrole_controller import logs, metrics
from pgrole_controller.controller.context import WorkerContext
from pgrole_controller.controller.decline import decline
from pgrole_controller.controller.errors import contain
from pgrole_controller.controller.orphans import Orphans
from pgrole_controller.controller.queue import Pace
from pgrole_controller.controller.reconcile import reconcile
from pgrole_controller.controller.repeats import Repeats
from pgrole_controller.controller.result import Result
from pgrole_controller.controller.server import ServerConfig
from pgrole_controller.controller.telemetry import BatchMetrics, Echoes, begin_reconciles, count_notification
from pgrole_controller.controller.verifiers import Verifiers
from pgrole_controller.core.errors import PgRoleError, Reason, Transient
from pgrole_controller.core.plan import Plan
from pgrole_controller.core.reconnect import LONGEST_DELAY, Cause, Outage, add_failure
from pgrole_controller.core.request import Key, Rank, Request, RequestReason
from pgrole_controller.core.workqueue import WorkItem
from pgrole_controller.logs import describe_error
from pgrole_controller.postgres.errors import UnexpectedError, cause_of
from pgrole_controller.postgres.schema import SchemaState
from pgrole_controller.postgres.session import Session, run_session
from pgrole_controller.postgres.status_claims import StatusClaims
from pgrole_controller.signals import Signal

log = logging.getLogger(__name__)

#: An outage that lasts this long is reported on every object, in seconds; on objects that change, at once.
REPORT_OUTAGE_SECONDS = 5.0

#: Between two requests for everything because many were announced, in seconds.
MANY_SECONDS = 1.0

#: How often the controller checks whether Kubernetes went away before reconciles began, in seconds.
ENFORCING_SECONDS = 1.0

#: What may not be done while Kubernetes is away, or changes are suspended, is tried again after so long, in seconds.
LATER_SECONDS = 10.0

#: At the start, for Secrets to be listed, in seconds: what needs none does not wait for longer.
SECRETS_SECONDS = 10.0

#: Claims of deleted objects are released this long after a session begins, and with these pauses, in seconds.
FIRST_ORPHANS_SECONDS = 0.5
ORPHANS_PAUSE = 0.2

#: A session that ended sooner, in seconds, counts as a failure to connect.
HEALTHY_SECONDS = 10.0


class ServerWorker:
    def __init__(self, server: ServerConfig, context: WorkerContext) -> None:
        self.server = server
        self.trouble: PgRoleError | None = None  # why there is no session
        self.connected = False
        self.standing_by = False  # with a session that is ready
        self.suspended = False  # a superuser has suspended all changes
        self.ended = anyio.Event()  # since the queue is closed
        self.session: Session | None = None
        self.echoes = Echoes()  # of the session
        self._repeats = Repeats()  # of the session
        self._context = context
        self._objects = context.objects
        self._queue = context.queue
        self._reporter = context.reporter
        self._endings = context.endings
        self._background = context.background
        self._live_servers = context.live_servers
        self._leadership = context.leadership
        self._status_claims = StatusClaims()
        self._verifiers = Verifiers()
        self._why = ""  # a lesser mode of detection was chosen last
        self.retimed = Signal()  # pulsed when the period of the resync changes
        self._since = -math.inf  # of the session, on the loop's clock
        self._outage: Outage | None = None  # failures in a row, with sessions between them that did not last
        self._reported = False  # the trouble, on every object
        self._changed: set[Key] = set()  # while there was no server
        self._orphans_due = math.inf  # on the loop's clock
        self._orphans = Orphans()
        self._pace = Pace()
        self._everything = Signal()  # set: every object is to be reconciled
        self._session_scope: anyio.CancelScope | None = None

    async def run(self) -> None:
        """Until the queue is closed."""
        await self.synced()
        while not self._queue.closed:
            try:
                with anyio.CancelScope() as self._session_scope:
                    await self._run_session()
            finally:
                self.connected, self.standing_by, self.session = False, False, None
                if self.server.lapsed:
                    self.server = replace(self.server, endpoint=None)
                self._live_servers.release(self)
        self._live_servers.mark_connected(self)
        self.ended.set()

    def remove(self) -> None:
        """After its end: what still waits is of objects that are gone, and nothing else forgets it."""
        self._queue.remove(self.server.name)

    @property
    def has_session(self) -> bool:
        return self.connected or self.standing_by

    def declare(self, server: ServerConfig) -> None:
        """The server as it is declared now: connects anew where that changed, and reconciles everything where the
        policy did.
        """
        before, self.server = self.server, server
        if before.resync_seconds != server.resync_seconds:
            self.retimed.pulse()
        if before.access != server.access:
            self.reconnect("server changed")
        elif (before.server_policy, before.address) != (server.server_policy, server.address):
            self.enqueue_all(RequestReason.POLICY, Rank.CHANGE)

    def reconnect(self, why: str) -> None:
        """Ends the session, or the wait for the next one, and begins another at once."""
        log.info(why, extra={"server": self.server.name})
        self._outage = None
        self.connected = False  # to what is declared now
        if self._session_scope is not None:
            self._session_scope.cancel()

    async def synced(self) -> None:
        """Until it is known what there is to be done."""
        await self._objects.store.synced.wait()
        with anyio.move_on_after(SECRETS_SECONDS):
            await self._objects.secrets_answered.wait()

    def keys(self) -> set[Key]:
        return self._objects.of_server(self.server.name)

    def enqueue(self, key: Key, reason: RequestReason, rank: Rank) -> None:
        self._queue.put(self.server.name, Request(key, reason, rank))

    async def _run_session(self) -> None:
        """One session, or the attempt at one and the wait for the next. Nothing that goes wrong in it leaves it."""
        server = self.server
        try:
            if server.endpoint is None or server.lapsed:
                raise server.problem or Transient(Reason.SERVER_NOT_READY, "the controller cannot connect to it")
            await run_session(
                server.endpoint,
                self._objects.cluster,
                detection=server.mode,
                interval=server.interval,
                may_install=server.may_install,
                on_change=self._note_notification,
                work=self._work,
                suspended=self._note_suspended,
                status_claims=self._status_claims,
                candidate=self._leadership.candidate(self._stand_by),
            )
        except PgRoleError as error:
            if isinstance(error, UnexpectedError):
                metrics.INTERNAL_ERRORS.labels("session").inc()
                extra = {"server": server.name, **describe_error(error.__cause__ or error)}
                log.error("unexpected error in a session", extra=extra)
            try:
                self._fail(error)
                await self._pause()
            except Exception as unexpected:  # noqa: BLE001 -- this server's error
                metrics.INTERNAL_ERRORS.labels("session").inc()
                extra = {"server": server.name, **describe_error(unexpected)}
                log.error("unexpected error outside a session", extra=extra)
                await anyio.sleep(LONGEST_DELAY)

    async def _stand_by(self) -> None:
        log.info("ready to lead", extra={"server": self.server.name})
        self.standing_by, self.trouble, self._since = True, None, anyio.current_time()
        self._reported = False
        self._live_servers.mark_connected(self)
        await self._leadership.stand_by()
        self.standing_by = False

    def _note_suspended(self, suspended: bool) -> None:
        if suspended != self.suspended:
            self.suspended = suspended
            log.warning("pgrole.suspend changed", extra={"server": self.server.name, "suspended": suspended})
            self.enqueue_all(RequestReason.SUSPENSION, Rank.RESYNC)

    def enqueue_all(self, reason: RequestReason, rank: Rank) -> None:
        for key in self._objects.of_server(self.server.name):
            self._queue.put(self.server.name, Request(key, reason, rank))

    def _fail(self, error: PgRoleError) -> None:
        now = anyio.current_time()
        had_one = self.connected or self.standing_by
        if had_one and now - self._since >= HEALTHY_SECONDS:
            self._outage = None
        cause = Cause.ENDED if had_one and self._outage is None else cause_of(error)
        outage = self._outage = add_failure(
            self._outage, cause, error.message, now, self._live_servers.mark_disconnected(self)
        )
        message = "session with PostgreSQL ended" if had_one else "no session with PostgreSQL"
        extra = {"server": self.server.name, "error": error.message, "attempts": outage.failures}
        log.log(logging.WARNING if outage.is_news or had_one else logging.DEBUG, message, extra=extra)
        metrics.SESSION_FAILURES.labels(self.server.name).inc()
        self.connected = self.standing_by = False
        # A connection that was dropped is mostly there again at once.
        if outage.failures == 1 and cause in (Cause.ENDED, Cause.OVERTAKEN):
            return
        if self.trouble is None or (outage.is_news and self.trouble.message != error.message):
            self.trouble, self._reported = error, False
        if not self._reported and now - outage.since >= REPORT_OUTAGE_SECONDS:
            self._reported = True
            self.enqueue_all(RequestReason.SERVER_NOT_READY, Rank.DEPENDENCY)

    async def _pause(self) -> None:
        """Waits for the next attempt, and meanwhile says on the objects that there is no server."""
        delay = self._outage.delay if self._outage else 0.0
        delay *= random.uniform(1.0, 1.2)  # noqa: S311 -- spreads attempts, no secret
        if self.trouble is None:
            await anyio.sleep(delay)
            return
        reported = Transient(Reason.SERVER_NOT_READY, f'server "{self.server.name}": {self.trouble.message}')
        with anyio.move_on_after(delay):
            await decline(self._context, self.server.name, reported, self._changed)

    def _note_notification(self, names: tuple[str, ...] | None) -> None:
        own = {name for name in names or () if self.echoes.expects(name)}
        count_notification(self.server.name, names, self.echoes)
        if names is None:
            self._everything.set()
            return
        for name in names:
            for key in self._objects.sharing(self.server.name, name):
                self._queue.put(
                    self.server.name, Request(key, RequestReason.NOTIFY, Rank.CHANGE if name in own else Rank.DRIFT)
                )
            for key in self._objects.joining(self.server.name, name):
                self._queue.put(self.server.name, Request(key, RequestReason.NOTIFY_OF_GROUP, Rank.DEPENDENCY))

    async def _answer_many(self) -> None:
        """Enqueues every object when many are announced.

        Anybody can announce that as often as they like: what was announced by name goes first.
        """
        while True:
            await self._everything.wait()
            self._everything.clear()
            self.enqueue_all(RequestReason.NOTIFY, Rank.DEPENDENCY)
            await anyio.sleep(MANY_SECONDS)

    async def _await_release(self, session: Session) -> None:
        """Until reconciles may begin: this process leads with everything listed, or enforces what was applied."""
        while not self._queue.is_released:
            if session.enforcing:
                self._queue.release()
            with anyio.move_on_after(ENFORCING_SECONDS):
                await self._queue.released()

    async def _catch_up(self) -> None:
        """When Kubernetes is back every object is reconciled: what was put off is done, and what was done is said."""
        while True:
            await self._leadership.refreshed()
            self._orphans, self._orphans_due = Orphans(), anyio.current_time()
            self.enqueue_all(RequestReason.KUBERNETES_BACK, Rank.DEPENDENCY)

    async def _work(self, session: Session) -> None:
        self._live_servers.hold(self, session.identity)
        log.info(
            "session with PostgreSQL begins",
            extra={
                "server": self.server.name,
                "version": session.identity.version,
                "detection": session.detection.mode.value,
                "schema": session.schema_state.value,
                "passwords": session.detection.passwords,
                "claims": session.detection.claims,
            },
        )
        if session.why and session.why != self._why:
            log.info("detection mode is Poll", extra={"server": self.server.name, "why": session.why})
        self._why = session.why
        if session.schema_state in (SchemaState.MADE, SchemaState.CHANGED):
            expected = session.schema_state is SchemaState.MADE and self._since == -math.inf
            level = logging.INFO if expected else logging.WARNING  # while we ran, somebody dropped it
            log.log(level, "schema pgrole was installed", extra={"server": self.server.name})
        self.connected, self.trouble, self._since = True, None, anyio.current_time()
        self.standing_by = self._reported = False
        self._live_servers.mark_connected(self)
        self.session, self.echoes, self._repeats = session, Echoes(), Repeats()
        metrics.SESSIONS.labels(self.server.name).inc()
        keys = self.keys()
        self._reporter.withdraw(keys, Reason.SERVER_NOT_READY)
        self._queue.forgive(self.server.name)
        for key in self._changed & keys:
            self.enqueue(key, RequestReason.CONNECTED, Rank.CHANGE)
        self._changed.clear()
        self.enqueue_all(RequestReason.CONNECTED, Rank.DEPENDENCY)
        await self._await_release(session)
        self._note_suspended(await session.is_suspended())
        self._orphans, self._orphans_due = Orphans(), anyio.current_time() + FIRST_ORPHANS_SECONDS
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._answer_many)
            tasks.start_soon(self._catch_up)
            while not self._queue.closed:
                items: tuple[WorkItem, ...] = ()
                with anyio.CancelScope(deadline=self._orphans_due):
                    items = await self._queue.take(self.server.name, self._pace.limit, self._calm_until())
                if items:
                    await self._reconcile(session, items, tasks)
                if anyio.current_time() >= self._orphans_due and not self._queue.closed:
                    await self._release_orphans(session)
            tasks.cancel_scope.cancel()

    def _calm_until(self) -> float:
        """Before this only a drift begins a batch, unless enough waits to fill one."""
        full = self._queue.figures(self.server.name).depth >= self._pace.limit
        return -math.inf if full else self._pace.calm_until

    async def _release_orphans(self, session: Session) -> None:
        """Objects that went while no one watched still hold claims. One that was made again is left to its reconcile.

        Done in every session, and once in a period of the resync: an object that is made again at once for another
        server is reconciled by that worker only. They are released in chunks, between batches of reconciles.
        """
        if session.enforcing or self.suspended:
            self._orphans_due = anyio.current_time() + LATER_SECONDS
            return
        self._orphans_due = anyio.current_time() + ORPHANS_PAUSE
        if not self._orphans.loaded:
            self._orphans.load(await session.read_claims())
        chunk = self._orphans.take(self._is_orphan)
        if chunk:
            began = anyio.current_time()
            (failure,) = await session.apply_plans([Plan(role_name="", releases=chunk)])
            self._orphans.end(chunk, failure)
            extra = {"server": self.server.name, "claims": len(chunk)}
            if failure is not None:
                log.warning("claims of deleted objects not released", extra={**extra, "error": failure.message})
                # What waited for a lock held up the objects for as long: a small part of the time is spent so.
                took = anyio.current_time() - began
                self._orphans_due = anyio.current_time() + max(ORPHANS_PAUSE, 20 * took)
                return
            log.info("released claims of deleted objects", extra=extra)
            for name, _ in chunk:
                self._verifiers.forget(name)
                self._enqueue_sharing(name)
        if self._orphans.done:
            self._orphans = Orphans()
            self._orphans_due = anyio.current_time() + self.server.resync_seconds

    def _is_orphan(self, key: Key) -> bool:
        return self._objects.covers(key) and self._objects.server_name(key) != self.server.name

    async def _reconcile(self, session: Session, items: Sequence[WorkItem], beside: TaskGroup) -> None:
        ids = begin_reconciles(self.server.name, items)
        batch_metrics = BatchMetrics(self.server.name, items)
        under_way = {item.key for item in items}
        began = anyio.current_time()
        drifted = {item.key for item in items if item.rank is Rank.DRIFT}
        if not drifted:
            self._pace.begin(began)
        prepared = {key: one for key in under_way if (one := self._background.take(key)) is not None}
        try:
            with logs.tracing(ids.batch):
                results = await reconcile(
                    list(under_way),
                    self.server,
                    self._objects,
                    session,
                    self.echoes,
                    self._verifiers,
                    self._repeats,
                    drifted,
                    prepared,
                )
            batch_metrics.end()
            for result in results:
                with logs.tracing(ids.of[result.key]):
                    self._hand_on(result, batch_metrics, session, beside)
                under_way.discard(result.key)
            self._pace.note(len(items), anyio.current_time() - began)
        finally:
            # Also when it is cancelled: a reconcile that never ends would be the last one of its key.
            for key in under_way:
                self._endings.interrupt(key)

    def _hand_on(self, result: Result, batch_metrics: BatchMetrics, session: Session, beside: TaskGroup) -> None:
        """To the reporter or the background, which ends the reconcile."""
        try:
            batch_metrics.count(result)
            if _is_suspended_there(result):
                self._note_suspended(True)
            for name in result.released:
                self._enqueue_sharing(name, result.key)
        except Exception as error:  # noqa: BLE001 -- this object's error
            contain(error, result.key)
        endpoint = self.server.endpoint
        if result.reassign is not None and endpoint is not None:
            beside.start_soon(self._background.empty_role, self.server.name, endpoint, result, session.fence)
        elif result.password_task is not None and result.target.finalizer is None and not result.done_with:
            self._reporter.record(result)
            self._background.prepare_password(result, result.password_task)
        else:
            self._reporter.report(result)

    def _enqueue_sharing(self, role_name: str, but: Key | None = None) -> None:
        """What nobody claims any more is of interest to the others that name it."""
        for key in self._objects.sharing(self.server.name, role_name) - {but}:
            self._queue.put(self.server.name, Request(key, RequestReason.CLAIM_RELEASED, Rank.DEPENDENCY))


def _is_suspended_there(result: Result) -> bool:
    """Whether the database says so, and not the object."""
    desired, outcome = result.target.desired, result.outcome
    return outcome is not None and outcome.reason is Reason.SUSPENDED and not (desired and desired.suspended)
