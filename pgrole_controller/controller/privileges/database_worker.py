"""The worker of one database: keeps the privileges of published roles there as declared.

Expected flow: with each session it reads everything, decides, applies, reads back and reports. Then it waits for an
event, a changed role, a retry or the resync, reads what that asks for, and does the same again. In a database that has
no connection of its own, each session is one turn, and ends after the first round.

Guarantees: whatever goes wrong with this database is reported on the objects that name it, and delays nothing else; a
role whose privileges cannot be read or decided delays no other role; after every reconnect everything is read.
"""

import logging
import math
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial

import anyio

from pgrole_controller import metrics
from pgrole_controller.controller.leadership import Leadership
from pgrole_controller.controller.privileges.grantees import Grantees
from pgrole_controller.controller.privileges.privilege_memory import PrivilegeMemory
from pgrole_controller.controller.privileges.privilege_reconcile import RoundContext
from pgrole_controller.controller.privileges.privilege_round import run_round
from pgrole_controller.controller.privileges.read_pace import CompleteReads, DatabaseChecks, RoleRetries
from pgrole_controller.controller.privileges.small_rounds import Notice
from pgrole_controller.controller.server_config import ServerConfig
from pgrole_controller.core.backoff import Backoff
from pgrole_controller.core.errors import PgRoleError, Reason, Transient
from pgrole_controller.core.privileges.grantee import Grantee
from pgrole_controller.core.privileges.privilege_policy import check_template
from pgrole_controller.core.privileges.privilege_result import PrivilegeResult
from pgrole_controller.core.request import Key
from pgrole_controller.core.server_options import DatabaseMode
from pgrole_controller.event_loop import Signal
from pgrole_controller.logs import describe_error
from pgrole_controller.postgres.capabilities import Identity
from pgrole_controller.postgres.database_connection import DatabaseMissing
from pgrole_controller.postgres.errors import UnexpectedError, unwrap_group
from pgrole_controller.postgres.fence import Fence
from pgrole_controller.postgres.privileges.database_opening import open_database
from pgrole_controller.postgres.privileges.database_session import DatabaseSession
from pgrole_controller.postgres.privileges.ddl_events import EVERYTHING, PrivilegeRead, Scope

log = logging.getLogger(__name__)

#: Minimum time between the beginnings of two reads, in seconds: changes in between are read together.
COALESCE_SECONDS = 0.005
#: Pause after a read that found nothing, in seconds: any role can send notifications.
_REST = Backoff(0.001, 0.1)

#: Pause between two attempts to begin a session, in seconds.
_RECONNECT = Backoff(0.25, 15.0)
#: A session that lasted this long does not count as a failure, in seconds.
_HEALTHY_SECONDS = 10.0
#: How long a turn may take until its session begins, and from then on, in seconds: other databases wait for their turn.
OPENING_SECONDS = 20.0
TURN_SECONDS = 60.0
#: Minimum seconds from one attempt to connect to the next, whatever is announced meanwhile.
_SOONEST_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class DatabaseContext:
    """What the workers of one server's databases share. `server`: identity of the server of the home session, whose
    database is `home`. `suspended`: whether changes are suspended there.
    """

    config: Callable[[], ServerConfig]
    grantees: Grantees
    leadership: Leadership
    cluster: str
    server: Identity
    home: str
    suspended: Callable[[], bool]


class DatabaseWorker:
    """`mode` None: no session, or the last turn failed. `trouble`: why there is no session. `why`: why the session does
    not use Events. `stores`: it has a session, or had one in its last turn, and the database has its part of schema
    pgrole. `opened`: a session began in the last turn. `failures`: in a row. `changed_at`: when a declaration for this
    database changed, or a drift or new object was found there, on the loop's clock.
    `forgotten`: the database is no longer served, so a result is no answer any more.
    """

    def __init__(self, database: str, context: DatabaseContext, changed_at: float = -math.inf) -> None:
        self.database = database
        self.mode: DatabaseMode | None = None
        self.trouble: PgRoleError | None = None
        self.why = ""
        self.stores = False
        self.opened = False
        self.failures = 0
        self.forgotten = False
        self.changed_at = changed_at
        self._context = context
        self._wake = Signal()
        self._notice = Notice()
        self._changed: set[Key] = set()
        self._everything = True
        self._checks = DatabaseChecks()
        self._retry_now = Signal()
        self._access: object = None
        self._scope: anyio.CancelScope | None = None
        self._fence: Fence | None = None  # of the last turn
        self.memory = PrivilegeMemory()
        self._complete_reads = CompleteReads()
        self._retries = RoleRetries()

    def note_grantee(self, key: Key) -> None:
        """The role was published, changed or withdrawn."""
        server, grantees = self._context.config().name, self._context.grantees
        grantee, before = grantees.get(server, key), grantees.results(server, key).get(self.database)
        if grantee is None or before is None or before.digest != grantee.digest_of(self.database):
            self.changed_at = anyio.current_time()
        self._changed.add(key)
        self._retries.end({key})
        self._wake.set()
        if self.mode is None and self.trouble is not None and grantee and self.database in grantee.databases:
            self._report_trouble(self.trouble, [grantee])

    def note_awaited(self, keys: frozenset[Key]) -> None:
        """What these roles may wait for was created, or what they name was renamed."""
        self.memory.further.put_off(keys)
        self._wake.set()

    def note_everything(self) -> None:
        self._everything = True
        self._wake.set()

    def note_config(self) -> None:
        """The server's declaration changed. Begins another session if it changes how to connect or to detect
        changes.
        """
        if self._access is not None and self._access != self._describe_access() and self._scope is not None:
            self._scope.cancel()
        self._retry_now.set()
        self.note_everything()

    def note_database(self) -> None:
        """The database was created, or changed its name, owner or ACL. The cause of a failed session may be gone."""
        self._retry_now.set()
        self._checks.request()
        self._wake.set()

    @property
    def _grantees(self) -> tuple[Grantee, ...]:
        return self._context.grantees.of_database(self._context.config().name, self.database)

    def _describe_access(self) -> object:
        config = self._context.config()
        detection = config.databases.detection if config.databases else None
        return config.endpoint, config.may_install, config.interval, detection

    @property
    def asked_at(self) -> float:
        """From when on there is something to read, on the loop's clock; -inf: already."""
        return -math.inf if self._everything or self._changed else min(self._checks.due_at, self._next_retry)

    @property
    def _next_retry(self) -> float:
        return min(self._retries.next, self.memory.next_check())

    async def run(self) -> None:
        """Runs until cancelled. Then it may be given turns."""
        while True:
            began = anyio.current_time()
            self._retry_now.clear()
            if await self._attempt(self._run_session, _HEALTHY_SECONDS):
                self.mode, self.stores = None, False
                continue  # to connect in another way
            with anyio.move_on_after(_RECONNECT.delay(self.failures, random.random())):  # noqa: S311 -- no secret
                await self._retry_now.wait()
                await anyio.sleep_until(began + _SOONEST_SECONDS)

    async def serve_turn(self) -> None:
        """Reads everything in a session of its own, and does what that asks for. Raises nothing."""
        await self._attempt(self._run_turn, math.inf)

    def await_turn(self) -> None:
        """Its own session ended. The database counts as served until its next turn."""
        if self.mode is not None:
            self.mode = turn_mode(self._context.config())

    async def _attempt(self, run: Callable[[], Awaitable[None]], healthy: float) -> bool:
        """Whether it ended without an error. One after this many seconds is the first one in a row."""
        began = anyio.current_time()
        try:
            with anyio.CancelScope() as self._scope:
                await run()
            self.failures = 0
            return True
        except PgRoleError as error:
            failure = error
        except Exception as error:  # noqa: BLE001 -- this database's error
            failure = UnexpectedError(error)
        self.mode, self.stores = None, False
        if anyio.current_time() - began >= healthy:
            self.failures = 0
        self.failures += 1
        metrics.DATABASE_SESSION_FAILURES.labels(self._context.config().name).inc()
        self._fail(failure)
        return False

    def _fail(self, error: PgRoleError) -> None:
        where = {"server": self._context.config().name, "database": self.database}
        if isinstance(error, UnexpectedError):
            metrics.INTERNAL_ERRORS.labels("session").inc()
            log.error("unexpected error in a session", extra=where | describe_error(error.__cause__ or error))
        level = logging.WARNING if self.trouble is None or self.trouble.message != error.message else logging.DEBUG
        log.log(level, "no session with a database", extra={**where, "error": error.message})
        if self.failures > 1 or error.reason is not Reason.SERVER_NOT_READY:
            self.trouble = error
            self._report_trouble(error, self._grantees)

    def _report_trouble(self, error: PgRoleError, grantees: Iterable[Grantee]) -> None:
        """Reports the trouble on objects that name the database. A missing database holds nothing to revoke."""
        gone = isinstance(error, DatabaseMissing)
        for grantee in grantees:
            former = gone and self.database not in grantee.declared
            before = self._context.grantees.results(self._context.config().name, grantee.key).get(self.database)
            self.report(
                PrivilegeResult(
                    grantee.key,
                    grantee.uid,
                    self.database,
                    grantee.digest_of(self.database),
                    None if former else error,
                    confirmed=former,
                    drift_count=before.drift_count if before else 0,
                    last_drifts=before.last_drifts if before else (),
                )
            )

    def report(self, result: PrivilegeResult) -> None:
        """Reports a result. An error with the same text is no news."""
        server = self._context.config().name
        if result.news:
            self.changed_at = anyio.current_time()
        before = self._context.grantees.results(server, result.key).get(self.database)
        if before is not None and before.error is not result.error and _are_equal(before.error, result.error):
            result = replace(result, error=before.error)
        if self.forgotten:
            result = replace(result, digest="")
        self._context.grantees.report(server, result)

    @asynccontextmanager
    async def _open(self, known: Fence | None = None, *, in_turn: bool = False) -> AsyncIterator[DatabaseSession]:
        config = self._context.config()
        if config.endpoint is None or config.databases is None:
            raise Transient(Reason.SERVER_NOT_READY, "the controller cannot connect to the server")
        self._access = self._describe_access()
        async with open_database(
            config.endpoint,
            self.database,
            self._context.home,
            self._context.server,
            detection=config.databases.detection,
            interval=config.interval,
            may_install=config.may_install,
            candidate=self._context.leadership.candidate(_stand_by),
            on_notice=self._note_event,
            known=known,
            in_turn=in_turn,
            if_template=check_template(config.databases.match, self.database),
        ) as session:
            yield session

    async def _run_session(self) -> None:
        async with self._open() as session:
            await self._serve(session)

    async def _run_turn(self) -> None:
        self.opened, began = False, anyio.current_time()
        with anyio.move_on_after(OPENING_SECONDS) as limit:
            async with self._open(self._fence, in_turn=True) as session:
                limit.deadline = anyio.current_time() + TURN_SECONDS
                self.opened, self._fence = True, session.fence
                self.memory = self.memory.of_database(session.oid)
                self._everything, further = True, self.memory.further.is_asked
                await self._round(session, *await self._collect(session, anyio.current_time()))
                if session.stores:
                    await session.prune()
                self.mode, self.stores, self.trouble = turn_mode(self._context.config()), session.stores, None
                self._checks.note(began, anyio.current_time())
                if further:
                    self.memory.further.note(began, anyio.current_time())
        if limit.cancelled_caught:
            where = f'{"in" if self.opened else "connecting to"} database "{self.database}"'
            raise Transient(Reason.PROGRESSING, f"the controller ran out of time {where}; it retries")

    async def _serve(self, session: DatabaseSession) -> None:
        log.info(
            "session with a database begins",
            extra={
                "server": self._context.config().name,
                "database": self.database,
                "detection": session.mode.value,
                "why": session.why,
            },
        )
        self._retry_now.clear()
        self.memory = self.memory.of_database(session.oid)
        self.mode, self.trouble, self._everything = session.mode, None, True
        self.stores = session.stores
        self.why = "" if session.mode is DatabaseMode.EVENTS else session.why
        with unwrap_group():
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(session.run)
                await self._work(session)

    async def _work(self, session: DatabaseSession) -> None:
        rest, prepared, resynced_at = 0.0, False, -math.inf
        while True:
            self._wake.clear()
            began = now = anyio.current_time()
            if now >= resynced_at + self._context.config().resync_seconds:
                self._everything, resynced_at = True, now
            to_read, keys, since = await self._collect(session, now)
            if to_read.is_needed or keys or now >= self.memory.drifts.record_at:
                rest = 0.0
                await self._round(session, to_read, keys, since)
                self._complete_reads.note(began, anyio.current_time())
                self._checks.note(began, anyio.current_time())
                if self.memory.is_full and to_read.scope is not Scope.FULL:
                    self.note_everything()
                if not prepared:
                    prepared = True
                    await session.prepare()
            else:
                rest = _REST.longer(rest)
            resync_at = resynced_at + self._context.config().resync_seconds
            due = min(resync_at, self._next_retry, self._complete_reads.due_at, self._checks.due_at)
            with anyio.move_on_after(max(due - anyio.current_time(), 0.0)):
                await self._wake.wait()
            await anyio.sleep(max(began + max(COALESCE_SECONDS, rest) - anyio.current_time(), 0.0))

    async def _collect(self, session: DatabaseSession, now: float) -> tuple[PrivilegeRead, frozenset[Key], float]:
        """Returns what to read for all roles, the roles for which to read everything, and as `Notice.since`."""
        since = self._notice.take()
        everything, self._everything = self._everything, False
        due = self._retries.due(now) | self.memory.due(now)
        to_read = EVERYTHING if everything else PrivilegeRead()
        if since < math.inf or everything:
            async with session.lock:
                found = await session.next_read()
            if session.may_tell_of_database(found):
                self._checks.request()
            to_read |= found
        to_read = self._complete_reads.moderate(to_read, now, forced=everything)
        if self._checks.take(now):
            await session.check_database()
            to_read |= session.own_acl
        # Last: nothing may be published between this and the round, which then takes it for applied.
        changed, self._changed = self._changed, set()
        return to_read, frozenset(changed | due), since

    async def _round(
        self, session: DatabaseSession, to_read: PrivilegeRead, keys: frozenset[Key], since: float
    ) -> None:
        config = self._context.config()
        if to_read.scope is not Scope.NOTHING or keys:
            metrics.PRIVILEGE_READS.labels(config.name, (to_read.scope or Scope.FULL).name.lower()).inc()
        published = partial(self._context.grantees.published_in, config.name, self.database)
        context = RoundContext(session, self.memory, config, published, self._context.cluster, self._context.suspended)
        results = await run_round(context, to_read, keys, since, self._notice, self._report_results)
        last = {result.key: result for result in results}
        self._retries.end(keys - last.keys())  # withdrawn, or an adoptee that waits for its turn
        for result in last.values():
            self._retries.note(result)

    def _report_results(self, results: Sequence[PrivilegeResult]) -> None:
        for result in results:
            self.report(result)

    def _note_event(self) -> None:
        self._notice.give()
        self._wake.set()


def turn_mode(config: ServerConfig) -> DatabaseMode:
    """How changes are detected in databases that take turns."""
    resync = config.databases is not None and config.databases.detection is DatabaseMode.RESYNC
    return DatabaseMode.RESYNC if resync else DatabaseMode.POLL


async def _stand_by() -> None:
    """Never called: a database's worker exists only while this process leads."""


def _are_equal(one: PgRoleError | None, other: PgRoleError | None) -> bool:
    if one is None or other is None:
        return one is other
    return (type(one), one.reason, one.message) == (type(other), other.reason, other.message)
