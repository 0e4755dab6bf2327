"""Keeps a session with one server: connects, stands by until this process leads, reconnects, and reports outages.

::

    CONNECTING ──▶ STANDBY ──▶ ACTIVE ◀──▶ SUSPENDED      a session ends in any state
        ▲  │                     │
        │  └───▶ UNAVAILABLE ◀───┘                        attempts fail, and `trouble` says why
        └── a session that lasted ended: the next attempt follows at once

Expected flow: `run` begins a session and calls `work` with it once this process leads; when the session ends, it
begins another one after the delay that `core.reconnect` gives, and reports on the objects why there is none.

Guarantees: whatever goes wrong in a session is the trouble of this server alone; a short outage is reported on no
object, and a long one on every object.
"""

import logging
import math
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from enum import Enum

import anyio

from pgrole_controller import logs, metrics
from pgrole_controller.controller.containment import contain
from pgrole_controller.controller.context import WorkerContext
from pgrole_controller.controller.objects import Target
from pgrole_controller.controller.result import Result, refuse
from pgrole_controller.controller.server_config import ServerConfig
from pgrole_controller.controller.telemetry import begin_reconciles, count_ending
from pgrole_controller.core.deletion import add_way_out
from pgrole_controller.core.errors import PgRoleError, Reason, Transient
from pgrole_controller.core.policy import ServerPolicy
from pgrole_controller.core.reconnect import LONGEST_DELAY, Cause, Outage, add_failure
from pgrole_controller.core.request import Key, Rank, RequestReason
from pgrole_controller.logs import describe_error
from pgrole_controller.postgres.errors import UnexpectedError, cause_of
from pgrole_controller.postgres.schema import SchemaState
from pgrole_controller.postgres.session import Session, run_session
from pgrole_controller.postgres.status_claims import StatusClaims
from pgrole_controller.postgres.watch import ChangeCallbacks

log = logging.getLogger(__name__)

#: After this many seconds, an outage is reported on every object; on objects that change, at once.
REPORT_OUTAGE_SECONDS = 5.0

#: A session that ended sooner than this, in seconds, counts as a failure to connect.
HEALTHY_SECONDS = 10.0

#: Between two unchanged objects on which an outage is reported, in seconds: when the server is back, each of these
#: statuses has to be written again.
OUTAGE_REPORT_PAUSE = 0.01


class SessionState(Enum):
    """CONNECTING: no session yet, and no failure that is worth reporting. SUSPENDED: as ACTIVE, but a superuser has
    suspended all changes.
    """

    CONNECTING = "connecting"
    UNAVAILABLE = "unavailable"
    STANDBY = "standby"
    ACTIVE = "active"
    SUSPENDED = "suspended"

    @property
    def is_active(self) -> bool:
        """Whether the worker reconciles."""
        return self in (SessionState.ACTIVE, SessionState.SUSPENDED)

    @property
    def has_session(self) -> bool:
        return self.is_active or self is SessionState.STANDBY


class SessionKeeper:
    """`server` is the declaration that the next session uses. `trouble`: why there is no session, while UNAVAILABLE.
    `untried`: of an earlier declaration, since no attempt with the current one has ended.
    """

    def __init__(
        self,
        server: ServerConfig,
        context: WorkerContext,
        work: Callable[[Session], Awaitable[None]],
        callbacks: ChangeCallbacks,
        enqueue_all: Callable[[RequestReason, Rank], None],
        on_suspension: Callable[[], None] = lambda: None,
    ) -> None:
        """`work` runs for as long as the session. `on_suspension`: changes were suspended on the server, or are no
        longer.
        """
        self.server = server
        self.state = SessionState.CONNECTING
        self.trouble: PgRoleError | None = None
        self.untried = False
        self.session: Session | None = None
        self.changed: set[Key] = set()  # objects that changed during the outage
        self._context = context
        self._work = work
        self._callbacks = callbacks
        self._on_suspension = on_suspension
        self._enqueue_all = enqueue_all
        self._status_claims = StatusClaims()
        self._since = -math.inf  # of the session, on the loop's clock
        self._outage: Outage | None = None  # failures in a row, with sessions between them that did not last
        self._reported = False  # the trouble, on every object
        self._last_why = ""  # Watch did not work last time
        self._scope: anyio.CancelScope | None = None

    async def run(self) -> None:
        """Runs until the queue is closed."""
        self._context.live_servers.add(self)
        try:
            while not self._context.queue.closed:
                try:
                    with anyio.CancelScope() as self._scope:
                        await self._run_session()
                finally:
                    self.session = None
                    self._set_down()
                    if self.server.lapsed:
                        self.server = replace(self.server, endpoint=None)
                    self._context.live_servers.release(self)
        finally:
            self._context.live_servers.remove(self)

    def reconnect(self, why: str) -> None:
        """Ends the session, or the wait for the next one, and begins another at once."""
        log.info(why, extra={"server": self.server.name})
        self._outage, self.untried = None, True
        self._set_down()
        if self._scope is not None:
            self._scope.cancel()

    def note_suspended(self, suspended: bool) -> None:
        """Notes whether changes are suspended in the database, each time that this is read."""
        state = SessionState.SUSPENDED if suspended else SessionState.ACTIVE
        if not self.state.is_active or state is self.state:
            return
        self.state = state
        log.warning("pgrole.suspend changed", extra={"server": self.server.name, "suspended": suspended})
        self._enqueue_all(RequestReason.SUSPENSION, Rank.RESYNC)
        self._on_suspension()

    def _set_down(self) -> None:
        self.state = SessionState.CONNECTING if self.trouble is None else SessionState.UNAVAILABLE

    def _set_up(self, state: SessionState) -> None:
        self.state, self.trouble, self._since = state, None, anyio.current_time()
        self.untried = False
        self._reported = False
        self._context.live_servers.mark_connected(self)

    async def _run_session(self) -> None:
        """Runs one session, or one attempt and the wait for the next. Raises no error of the session."""
        server = self.server
        try:
            if server.endpoint is None or server.lapsed:
                raise server.problem or Transient(Reason.SERVER_NOT_READY, "the controller cannot connect to it")
            await run_session(
                server.endpoint,
                self._context.objects.cluster,
                detection=server.mode,
                interval=server.interval,
                may_install=server.may_install,
                callbacks=self._callbacks,
                work=self._begin,
                suspended=self.note_suspended,
                status_claims=self._status_claims,
                candidate=self._context.leadership.candidate(self._stand_by),
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
        self._set_up(SessionState.STANDBY)
        await self._context.leadership.stand_by()
        self._set_down()

    async def _begin(self, session: Session) -> None:
        """Notes that everything is connected, and that this process leads."""
        self._context.live_servers.hold(self, session.identity)
        self._log_begin(session)
        self._set_up(SessionState.ACTIVE)
        self.session = session
        metrics.SESSIONS.labels(self.server.name).inc()
        await self._work(session)

    def _log_begin(self, session: Session) -> None:
        name = self.server.name
        log.info(
            "session with PostgreSQL begins",
            extra={
                "server": name,
                "version": session.identity.version,
                "detection": session.detection.mode.value,
                "schema": session.schema_state.value,
                "passwords": session.detection.passwords,
                "claims": session.detection.claims,
            },
        )
        if session.why and session.why != self._last_why:
            log.info("detection mode is Poll", extra={"server": name, "why": session.why})
        self._last_why = session.why
        if session.schema_state in (SchemaState.MADE, SchemaState.CHANGED):
            expected = session.schema_state is SchemaState.MADE and self._since == -math.inf
            level = logging.INFO if expected else logging.WARNING  # someone dropped or changed it during a session
            log.log(level, "schema pgrole was installed", extra={"server": name})

    def _fail(self, error: PgRoleError) -> None:
        """Handles the error that ended a session, or an attempt to begin one."""
        now = anyio.current_time()
        self.untried = False
        had_session = self.state.has_session
        if had_session and now - self._since >= HEALTHY_SECONDS:
            self._outage = None
        cause = Cause.ENDED if had_session and self._outage is None else cause_of(error)
        away = self._context.live_servers.mark_disconnected(self)
        outage = self._outage = add_failure(self._outage, cause, error.message, now, away)
        message = "session with PostgreSQL ended" if had_session else "no session with PostgreSQL"
        extra = {"server": self.server.name, "error": error.message, "attempts": outage.failures}
        log.log(logging.WARNING if outage.is_news or had_session else logging.DEBUG, message, extra=extra)
        metrics.SESSION_FAILURES.labels(self.server.name).inc()
        # After a connection is lost, the next attempt mostly succeeds at once.
        if outage.failures > 1 or cause not in (Cause.ENDED, Cause.OVERTAKEN):
            self._note_trouble(error, outage, now)
        self._set_down()

    def _note_trouble(self, error: PgRoleError, outage: Outage, now: float) -> None:
        if self.trouble is None or (outage.is_news and self.trouble.message != error.message):
            self.trouble, self._reported = error, False
        if not self._reported and now - outage.since >= REPORT_OUTAGE_SECONDS:
            self._reported = True
            self._enqueue_all(RequestReason.SERVER_NOT_READY, Rank.DEPENDENCY)

    async def _pause(self) -> None:
        """Waits for the next attempt, and meanwhile reports on the objects that the server is unavailable."""
        delay = self._outage.delay if self._outage else 0.0
        delay *= random.uniform(1.0, 1.2)  # noqa: S311 -- spreads attempts, no secret
        if self.trouble is None:
            await anyio.sleep(delay)
            return
        name = self.server.name
        reported = Transient(Reason.SERVER_NOT_READY, f'server "{name}": {self.trouble.message}')
        with anyio.move_on_after(delay):
            await decline(self._context, name, lambda _: reported, self.changed)


async def decline(
    context: WorkerContext, server: str, find_error: Callable[[Key], PgRoleError], changed: set[Key] | None = None
) -> None:
    """Reconciles without a server: reports an error on the objects of `server` that are due, until cancelled or the
    queue is closed. Also for objects whose PgServer does not exist.

    `find_error` is called for each object. `changed`: during an outage, collects the keys of objects that changed; the
    others are reported with pauses.
    """
    while items := await context.queue.take(server, 1):
        (item,) = items
        if changed is not None and item.rank is Rank.CHANGE:
            changed.add(item.key)
        try:
            with logs.tracing(begin_reconciles(server, items).batch):
                context.background.take(item.key)  # what was prepared is old when the server is back
                result = _declined(context.objects.read(item.key, None, ServerPolicy()), find_error(item.key))
                count_ending(server, result)
                context.hand_on(result)
        except Exception as unexpected:  # noqa: BLE001 -- this object's error
            contain(unexpected, item.key)
            context.endings.fail(item.key)
        if changed is not None and item.rank > Rank.CHANGE and not item.failures:
            await anyio.sleep(OUTAGE_REPORT_PAUSE)


def _declined(target: Target, error: PgRoleError) -> Result:
    desired = target.desired
    if target.finalizer is False or (desired and desired.terminating and not desired.drop):
        return Result(target, done_with=True)  # it can be deleted without the server
    if target.stored is None or target.quiet:
        return Result(target)
    problem = target.error or error
    return refuse(target, add_way_out(problem) if desired and desired.terminating else problem)
