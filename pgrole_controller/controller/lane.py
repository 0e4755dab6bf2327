"""The lane of one server: keeps a session with it and visits the keys that are ready; says so while there is none.

Expected flow: connect, look at every object of the lane and at every claim whose object is gone, then visit what the
queue gives; when the session fails, connect again at once, then with back-off, and look at everything again.

Guarantees: a server that hangs or refuses delays only this lane; nothing is visited before the store has synced, nor
before this process leads. Until then the session is kept ready.
"""

import logging
import math
import random
from collections.abc import Sequence

import anyio
from anyio.abc import TaskGroup

from pgrole_controller import logs, metrics
from pgrole_controller.controller.echo import Echoes
from pgrole_controller.controller.identities import Identities
from pgrole_controller.controller.lead import Lead
from pgrole_controller.controller.objects import Objects, Request
from pgrole_controller.controller.queue import Queue
from pgrole_controller.controller.reconcile import Finding, reconcile, refuse
from pgrole_controller.controller.reporter import Reporter
from pgrole_controller.controller.server import DeclaredServer
from pgrole_controller.controller.tally import Tally, count_ending, hear
from pgrole_controller.controller.trace import begin_visits
from pgrole_controller.core.allowance import Allowance
from pgrole_controller.core.disown import Disown, Emptied
from pgrole_controller.core.ending import name_way_out
from pgrole_controller.core.errors import PgRoleError, Reason, Transient
from pgrole_controller.core.hint import Hint, Key, Rank
from pgrole_controller.core.plan import Plan
from pgrole_controller.core.schedule import After, Visit
from pgrole_controller.postgres.connection import Endpoint, Unexpected
from pgrole_controller.postgres.disown import disown
from pgrole_controller.postgres.fence import Fence
from pgrole_controller.postgres.install import Installation
from pgrole_controller.postgres.ledger import Ledger
from pgrole_controller.postgres.session import Session, attend

log = logging.getLogger(__name__)

#: How many keys one visit takes at most: one query and one transaction.
BATCH = 100

#: How many roles are emptied at once, each on connections of its own.
EMPTYING = 2

#: Between attempts to connect, in seconds; doubled up to the second, with jitter.
FIRST_DELAY = 0.25
LONGEST_DELAY = 15.0

#: Between two hints for everything because many were announced, in seconds.
MANY_SECONDS = 1.0

#: At the start, for Secrets to be listed, in seconds: what needs none does not wait for longer.
SECRETS_SECONDS = 10.0

#: A session that ended sooner, in seconds, counts as a failure to connect.
HEALTHY_SECONDS = 10.0


class Lane:
    def __init__(
        self,
        server: DeclaredServer,
        objects: Objects,
        queue: Queue,
        reporter: Reporter,
        identities: Identities,
        lead: Lead,
    ) -> None:
        self.server = server
        self.trouble: PgRoleError | None = None  # why there is no session
        self.connected = False
        self.standing_by = False  # with a session that is ready
        self.ended = anyio.Event()  # since the queue is closed
        self.session: Session | None = None
        self.echoes = Echoes()  # of the session
        self._objects = objects
        self._queue = queue
        self._reporter = reporter
        self._identities = identities
        self._lead = lead
        self._ledger = Ledger()
        self._why = ""  # a lesser mode of detection was chosen last
        self.retimed = anyio.Event()  # set when the period of the resync changes, and replaced
        self._delay = 0.0
        self._since = -math.inf  # of the session, on the loop's clock
        self._failures = 0  # in a row
        self._orphans_due = math.inf  # on the loop's clock
        self._everything = anyio.Event()  # set: every object is to be looked at
        self._turn: anyio.CancelScope | None = None
        self._emptying = anyio.CapacityLimiter(EMPTYING)

    async def run(self) -> None:
        """Until the queue is closed."""
        await self.synced()
        while not self._queue.closed:
            try:
                with anyio.CancelScope() as self._turn:
                    await self._take_turn()
            finally:
                self.connected, self.standing_by, self.session = False, False, None
                self._identities.give_up(self)
        self.ended.set()

    def declare(self, server: DeclaredServer) -> None:
        """The server as it is declared now: connects anew where that changed, and looks anew where the policy did."""
        before, self.server = self.server, server
        if before.resync_seconds != server.resync_seconds:
            self.retimed.set()
            self.retimed = anyio.Event()
        if before.access != server.access:
            self.reconnect("server is declared anew")
        elif (before.allowance, before.address) != (server.allowance, server.address):
            self.hint_all("policy", Rank.CHANGE)

    def reconnect(self, why: str) -> None:
        """Ends the session, or the wait for the next one, and begins another at once."""
        log.info(why, extra={"server": self.server.name})
        self._failures = 0
        self.connected = False  # to what is declared now
        if self._turn is not None:
            self._turn.cancel()

    async def synced(self) -> None:
        """Until it is known what there is to be done."""
        await self._objects.store.synced.wait()
        with anyio.move_on_after(SECRETS_SECONDS):
            await self._objects.secrets_answered.wait()

    def keys(self) -> set[Key]:
        return self._objects.of_server(self.server.name)

    def hint(self, key: Key, reason: str, rank: Rank) -> None:
        self._queue.put(self.server.name, Hint(key, reason, rank))

    async def _take_turn(self) -> None:
        """One session, or the attempt at one and the wait for the next. Nothing that goes wrong in it leaves it."""
        server = self.server
        try:
            if server.endpoint is None:
                raise server.problem or Transient(Reason.SERVER_NOT_READY, "it cannot be connected to")
            await attend(
                server.endpoint,
                self._objects.cluster,
                detection=server.mode,
                interval=server.interval,
                may_install=server.may_install,
                heard=self._heard,
                work=self._work,
                ledger=self._ledger,
                candidacy=self._lead.stand(self._stand_by),
            )
        except PgRoleError as error:
            if isinstance(error, Unexpected):
                metrics.INTERNAL_ERRORS.labels("session").inc()
                log.error("unexpected error in a session", extra={"server": server.name}, exc_info=error.__cause__)
            self._fail(error)
            try:
                await self._pause(error)
            except Exception:
                metrics.INTERNAL_ERRORS.labels("session").inc()
                log.exception("unexpected error without a session", extra={"server": server.name})
                await anyio.sleep(LONGEST_DELAY)

    async def _stand_by(self) -> None:
        log.info("ready to lead", extra={"server": self.server.name})
        self.standing_by, self.trouble, self._since = True, None, anyio.current_time()
        await self._lead.stand_by()
        self.standing_by = False

    def hint_all(self, reason: str, rank: Rank) -> None:
        for key in self._objects.of_server(self.server.name):
            self._queue.put(self.server.name, Hint(key, reason, rank))

    def _fail(self, error: PgRoleError) -> None:
        had_one = self.connected or self.standing_by
        message = "session with PostgreSQL ended" if had_one else "no session with PostgreSQL"
        log.warning(message, extra={"server": self.server.name, "error": error.message})
        metrics.SESSION_FAILURES.labels(self.server.name).inc()
        if had_one and anyio.current_time() - self._since >= HEALTHY_SECONDS:
            self._failures = 0
        self.connected = self.standing_by = False
        self._failures += 1
        self._delay = min(FIRST_DELAY * 2.0 ** min(self._failures - 1, 16), LONGEST_DELAY)
        # Said on every object, but only when it stays so: a connection that was dropped is mostly there again at once.
        stays = self._failures > 1 or self.trouble is not None
        if stays and (self.trouble is None or self.trouble.message != error.message):
            self.trouble = error
            self.hint_all("server not ready", Rank.DEPENDENCY)

    async def _pause(self, error: PgRoleError) -> None:
        """Waits for the next attempt, and meanwhile says on the objects that there is no server."""
        if self.trouble is None:
            await anyio.sleep(self._delay)
            return
        said = Transient(Reason.SERVER_NOT_READY, f'server "{self.server.name}": {error.message}')
        with anyio.move_on_after(self._delay * random.uniform(0.8, 1.2)):  # noqa: S311 -- spreads attempts, no secret
            await decline(self.server.name, self._queue, self._objects, self._reporter, said)

    def _heard(self, names: tuple[str, ...] | None) -> None:
        hear(self.server.name, names, self.echoes)
        if names is None:
            self._everything.set()
            return
        for name in names:
            for key in self._objects.sharing(self.server.name, name):
                self._queue.put(self.server.name, Hint(key, "notify", Rank.CHANGE))
            for key in self._objects.joining(self.server.name, name):
                self._queue.put(self.server.name, Hint(key, "notify of a role to join", Rank.DEPENDENCY))

    async def _answer_many(self) -> None:
        """Hints every object when many are announced: anybody can announce that as often as they like."""
        while True:
            await self._everything.wait()
            self._everything = anyio.Event()
            self.hint_all("notify", Rank.CHANGE)
            await anyio.sleep(MANY_SECONDS)

    async def _work(self, session: Session) -> None:
        self._identities.hold(self, session.identity)
        log.info(
            "session with PostgreSQL begins",
            extra={
                "server": self.server.name,
                "version": session.identity.version,
                "detection": session.detection.mode.value,
                "schema": session.installation.value,
                "passwords": session.detection.passwords,
                "claims": session.detection.claims,
            },
        )
        if session.why and session.why != self._why:
            log.info("changes are noticed by Poll", extra={"server": self.server.name, "why": session.why})
        self._why = session.why
        if session.installation in (Installation.MADE, Installation.CHANGED):
            expected = session.installation is Installation.MADE and self._since == -math.inf
            level = logging.INFO if expected else logging.WARNING  # while we ran, somebody dropped it
            log.log(level, "schema pgrole was installed", extra={"server": self.server.name})
        self.connected, self.trouble, self._since = True, None, anyio.current_time()
        self.session, self.echoes = session, Echoes()
        metrics.SESSIONS.labels(self.server.name).inc()
        self.hint_all("connected", Rank.DEPENDENCY)
        await self._queue.released()
        await self._release_orphans(session)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._answer_many)
            while visits := await self._queue.take(self.server.name, BATCH):
                await self._visit(session, visits, tasks)
                if anyio.current_time() >= self._orphans_due:
                    await self._release_orphans(session)
            tasks.cancel_scope.cancel()

    async def _release_orphans(self, session: Session) -> None:
        """Objects that went while nobody looked still hold claims. One that was made again is left to its visit.

        Done in every session, and once in a period of the resync: an object that is made again at once for another
        server is visited in that lane only.
        """
        self._orphans_due = anyio.current_time() + self.server.resync_seconds
        claims = await session.look_for_claims()
        orphans = [(name, uid) for key, name, uid in claims if self._is_orphan(key)]
        if not orphans:
            return
        log.info("claims of objects that went are released", extra={"server": self.server.name, "claims": len(orphans)})
        for failure in await session.carry_out([Plan(role_name="", releases=tuple(orphans))]):
            if failure is not None:
                raise failure
        for name, _ in orphans:
            self._hint_sharing(name)

    def _is_orphan(self, key: Key) -> bool:
        return self._objects.covers(key) and self._objects.server_name(key) != self.server.name

    async def _visit(self, session: Session, visits: Sequence[Visit], beside: TaskGroup) -> None:
        trace = begin_visits(self.server.name, visits)
        tally = Tally(self.server.name, visits)
        under_way = {visit.key for visit in visits}
        try:
            with logs.tracing(trace.batch):
                findings = await reconcile(list(under_way), self.server, self._objects, session, self.echoes)
            tally.end()
            for finding in findings:
                tally.count(finding)
                with logs.tracing(trace.of[finding.key]):
                    if finding.disown is not None:
                        beside.start_soon(self._empty, finding, finding.disown, session.fence)
                    else:
                        self._reporter.report(finding)
                under_way.discard(finding.key)
                for name in finding.released:
                    self._hint_sharing(name, finding.key)
        finally:
            # Also when it is cancelled: a visit that never ends would be the last one to its key.
            for key in under_way:
                self._queue.done(key, After(0.0))

    async def _empty(self, finding: Finding, task: Disown, fence: Fence | None) -> None:
        """Empties a role that shall be dropped; its key is visited again when that is done or the object changes."""
        stored, endpoint = finding.request.stored, self.server.endpoint
        try:
            if stored is None or endpoint is None:
                return
            with self._objects.interrupted(stored):
                async with self._emptying:
                    self._objects.hand_over(stored, await self._disown(endpoint, task, fence))
        finally:
            self._queue.done(finding.key, After(0.0))

    async def _disown(self, endpoint: Endpoint, task: Disown, fence: Fence | None) -> Emptied:
        try:
            await disown(endpoint, task, fence=fence)
        except PgRoleError as error:
            return Emptied(error)
        return Emptied()

    def _hint_sharing(self, role_name: str, but: Key | None = None) -> None:
        """What nobody claims any more is of interest to the others that name it."""
        for key in self._objects.sharing(self.server.name, role_name) - {but}:
            self._queue.put(self.server.name, Hint(key, "claim released", Rank.DEPENDENCY))


async def decline(lane: str, queue: Queue, objects: Objects, reporter: Reporter, error: PgRoleError) -> None:
    """Visits the keys of a lane without a server: says why nothing can be done, until cancelled or closed."""
    while visits := await queue.take(lane, 1):
        (visit,) = visits
        found = False
        try:
            with logs.tracing(begin_visits(lane, visits).batch):
                finding = _declined(await objects.read(visit.key, None, Allowance()), error)
                count_ending(lane, finding)
                reporter.report(finding)
            found = True
        finally:
            if not found:
                queue.done(visit.key, After(0.0))


def _declined(request: Request, error: PgRoleError) -> Finding:
    ask = request.ask
    if request.finalizer is False or (ask and ask.terminating and not ask.drop):
        return Finding(request, done_with=True)  # its way out does not need the server
    if request.stored is None:
        return Finding(request)
    said = request.error or error
    return refuse(request, name_way_out(said) if ask and ask.terminating else said)
