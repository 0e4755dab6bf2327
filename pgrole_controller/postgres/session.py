"""One connected server: two or three connections, whatever the number of roles.

One writes and inspects; the others notice changes: by Watch, one LISTENs and one runs the procedure `watch`, by Poll
one reads digests. A session lasts until any of them fails, and then ends as a whole: its caller starts a new one and
looks at everything that could have been missed. It also ends when something else has become possible: the next one
chooses anew.
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn

import anyio

from pgrole_controller.core.contest import Culprit
from pgrole_controller.core.detection import Claims, Detection, Mode
from pgrole_controller.core.disown import Heir
from pgrole_controller.core.errors import PgRoleError, Reason, Transient
from pgrole_controller.core.hint import Key
from pgrole_controller.core.plan import Plan
from pgrole_controller.core.policy import Surroundings
from pgrole_controller.core.scram import Verifier
from pgrole_controller.core.sight import Needs, Sight
from pgrole_controller.postgres import inspect, queries, watch
from pgrole_controller.postgres.access import RECONSIDER_SECONDS, Access, await_change, read_access
from pgrole_controller.postgres.connection import Connection, Endpoint, connect, speaking
from pgrole_controller.postgres.culprits import look_for_culprits
from pgrole_controller.postgres.fence import Candidacy, Fence, take_lead
from pgrole_controller.postgres.inspect import Identity
from pgrole_controller.postgres.install import Installation, Missing, install, is_current, others_may_create
from pgrole_controller.postgres.ledger import Ledger
from pgrole_controller.postgres.poll import Poller
from pgrole_controller.postgres.privilege import PARAMETER_GRANTS_VERSION, explain_access, is_lacking
from pgrole_controller.postgres.transaction import Dialect, carry_out

log = logging.getLogger(__name__)

#: Between two rounds of Poll, in seconds, unless the server's owner says otherwise.
POLL_SECONDS = 1.0

#: To plan the look at a role takes several times as long as to do it, so it is planned once, when the tables may still
#: be empty: for few roles among many, by index.
_PLANNING = {
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
}

#: Between two questions on each connection while another process leads, in seconds, and for one to be answered.
PULSE_SECONDS = 5.0
_PULSE_DEADLINE = 3.0

#: For one look in a transaction of its own.
GUARDED_SECONDS = 10.0

#: Called with the role names that something was noticed of; None: all of them.
Heard = Callable[[tuple[str, ...] | None], None]


@dataclass(frozen=True, slots=True)
class Session:
    """What a lane may ask of its server while it is connected. Every method raises PgRoleError.

    `why` says what keeps Watch from working, where another mode had to be chosen.
    """

    identity: Identity
    installation: Installation
    cluster: str
    guarded: bool  # others may create schemas in the home database
    _connection: Connection
    detection: Detection = field(default_factory=Detection)
    why: str = ""
    _ledger: Ledger | None = None  # the claims, where schema pgrole is not there
    _poller: Poller | None = None
    fence: Fence | None = None  # None: nobody else could lead, or the schema cannot tell

    async def look(self, asked: Sequence[tuple[Key, str]]) -> list[Sight]:
        if self._ledger is not None:
            return await inspect.look_without_schema(self._connection, self.identity, self.cluster, self._ledger, asked)
        async with self._trusting():
            return await inspect.look(self._connection, self.cluster, self.identity.system_identifier, asked)

    async def look_around(
        self, groups: Collection[str], parameters: Collection[str], databases: Collection[str]
    ) -> Surroundings:
        version = self.identity.version_number
        return await inspect.look_around(self._connection, groups, parameters, databases, version)

    async def look_for_needs(self, oids: Sequence[int]) -> dict[int, tuple[Needs, ...]]:
        return await inspect.look_for_needs(self._connection, oids)

    async def look_for_sessions(self, oids: Sequence[int]) -> dict[int, int]:
        return await inspect.look_for_sessions(self._connection, oids)

    async def look_for_heirs(self, names: Collection[str]) -> dict[str, Heir]:
        system_identifier = self.identity.system_identifier
        if self._ledger is not None:
            return await inspect.look_for_heirs_without_schema(self._connection, names, system_identifier, self._ledger)
        async with self._trusting():
            return await inspect.look_for_heirs(self._connection, names, system_identifier)

    async def look_for_verifiers(self, oids: Sequence[int]) -> dict[int, Verifier]:
        if self._ledger is not None:
            return await inspect.look_for_verifiers(self._connection, oids, identity=self.identity)
        async with self._trusting():
            return await inspect.look_for_verifiers(self._connection, oids)

    async def look_for_claims(self) -> list[tuple[Key, str, str]]:
        if self._ledger is not None:
            return self._ledger.held()
        async with self._trusting():
            return await inspect.look_for_claims(self._connection, self.cluster)

    async def look_for_culprits(self, role_names: Sequence[str]) -> dict[str, tuple[Culprit, ...]]:
        return await look_for_culprits(self._connection, role_names)

    async def carry_out(self, plans: Sequence[Plan]) -> list[PgRoleError | None]:
        version = self.identity.version_number
        dialect = Dialect(
            options=version >= inspect.MEMBERSHIP_OPTIONS_VERSION,
            guarded=self.guarded,
            parameter_grants=version >= PARAMETER_GRANTS_VERSION,
            ledger=self._ledger,
            system_identifier=self.identity.system_identifier,
            fence=self.fence,
        )
        try:
            return await carry_out(self._connection, plans, dialect)
        finally:
            if self._poller is not None:
                changed = [plan for plan in plans if plan.changes]
                self._poller.doubt({name for plan in changed for name in (plan.role_name, plan.seen_as)})

    @asynccontextmanager
    async def _trusting(self) -> AsyncIterator[None]:
        """What is read of schema pgrole in here is ours: where others could put theirs in its place, it is locked."""
        if not self.guarded:
            yield
            return
        with speaking(), anyio.fail_after(GUARDED_SECONDS, shield=True):
            async with self._connection.transaction():
                await self._connection.execute(queries.inspect("guard"))
                yield


@dataclass(frozen=True, slots=True)
class _Home:
    """What was found in the home database. `missing`: why there is no schema pgrole; then claims are in status."""

    identity: Identity
    access: Access
    installation: Installation
    guarded: bool
    missing: Missing | None

    @property
    def claims(self) -> Claims:
        return "Status" if self.missing else "Database"


@dataclass(frozen=True, slots=True)
class _Sense:
    """How changes are noticed: what runs beside the work, and what it runs on.

    `connection` answers questions in between, in its `turn`.
    """

    mode: Mode
    connections: tuple[Connection, ...]
    tasks: tuple[Callable[[], Coroutine[Any, Any, NoReturn]], ...] = ()
    turn: anyio.Lock = field(default_factory=anyio.Lock)
    poller: Poller | None = None
    why: str = ""

    @property
    def connection(self) -> Connection:
        return self.connections[0]


async def attend(
    endpoint: Endpoint,
    cluster: str,
    *,
    detection: Mode = Mode.AUTO,
    interval: float = POLL_SECONDS,
    may_install: bool,
    heard: Heard,
    work: Callable[[Session], Awaitable[None]],
    ledger: Ledger | None = None,
    candidacy: Candidacy | None = None,
) -> None:
    """Connects, installs, and runs `work` while all connections are well.

    With a `candidacy`, it changes nothing before this process leads, and waits for that with its connections open.

    Returns when `work` does, or when what the server lets us do has changed: then another session is to be begun.
    `heard` is called with the names of roles of which something was noticed, from before `work` begins: what changes
    after that is heard. `ledger` keeps the claims where the database cannot; give the same one in every session with
    the server. Raises PgRoleError when there is no session to be had or it has failed.
    """
    async with AsyncExitStack() as stack:
        writer = await stack.enter_async_context(connect(endpoint, "work", **_PLANNING))
        sensing = partial(_sense, stack, endpoint, writer, detection=detection, interval=interval, heard=heard)
        home = sense = None
        if candidacy is not None and not candidacy.is_leading():
            async with _explaining(writer):
                home = await _look_at_home(writer)
            sense = await sensing(home) if home else None
            await _stand_by(candidacy, (writer, *(sense.connections if sense else ())))
        async with _explaining(writer):
            home = await _find_home(writer, detection, may_install, home)
            fence = await _fence(writer, home, candidacy)
        sense = sense or await sensing(home)
        session = Session(
            home.identity,
            home.installation,
            cluster,
            home.guarded,
            writer,
            Detection(sense.mode, home.identity.sees_passwords, home.claims),
            sense.why,
            _open(ledger, home),
            sense.poller,
            fence,
        )
        try:
            async with anyio.create_task_group() as tasks:
                for task in sense.tasks:
                    tasks.start_soon(task)
                tasks.start_soon(_await_end, (writer, *sense.connections))
                tasks.start_soon(_reconsider, sense, home, min(RECONSIDER_SECONDS, 60 * interval), tasks.cancel_scope)
                await work(session)
                tasks.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            raise _first(group) from group


def _open(ledger: Ledger | None, home: _Home) -> Ledger | None:
    opened = (ledger or Ledger()).open(home.identity.system_identifier if home.missing else None)
    return opened if home.missing else None


async def _look_at_home(writer: Connection) -> _Home | None:
    """Where there is nothing to bring in; changes nothing."""
    if not await is_current(writer):
        return None
    identity, access = await inspect.identify(writer), await read_access(writer)
    return _Home(identity, access, Installation.PRESENT, await others_may_create(writer), None)


async def _stand_by(candidacy: Candidacy, connections: Sequence[Connection]) -> None:
    """Until this process leads. Raises PgRoleError when a connection fails meanwhile."""
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_await_end, connections)
            tasks.start_soon(_keep_alive, connections)
            await candidacy.stand_by()
            tasks.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        raise _first(group) from group


async def _keep_alive(connections: Sequence[Connection]) -> NoReturn:
    """Neither is a peer that is gone taken for one that has nothing to say, nor is a connection idle for long."""
    while True:
        await anyio.sleep(PULSE_SECONDS)
        for connection in connections:
            with speaking():
                await connection.fetchval("SELECT 1", timeout=_PULSE_DEADLINE)


async def _fence(writer: Connection, home: _Home, candidacy: Candidacy | None) -> Fence | None:
    if candidacy is None or home.missing is not None:
        return None
    if home.installation is Installation.OLDER:
        log.warning("schema pgrole is of the version before: no fencing number until an administrator installs it anew")
        return None
    return await take_lead(writer, candidacy, guarded=home.guarded)


async def _find_home(writer: Connection, detection: Mode, may_install: bool, seen: _Home | None) -> _Home:
    """`seen`: as it was found before this process led; it must be so still."""
    if seen is not None:
        if await install(writer, allowed=may_install) is not Installation.PRESENT:
            raise Transient(Reason.SERVER_NOT_READY, "schema pgrole changed meanwhile")
        return seen
    identity = await inspect.identify(writer)
    access = await read_access(writer)
    try:
        installation = await install(writer, allowed=may_install)
    except Missing as error:
        if detection is Mode.WATCH:
            raise
        return _Home(identity, access, Installation.NONE, False, error)
    if installation is not Installation.PRESENT:
        access = await read_access(writer)
    return _Home(identity, access, installation, await others_may_create(writer), None)


async def _sense(
    stack: AsyncExitStack,
    endpoint: Endpoint,
    writer: Connection,
    home: _Home,
    *,
    detection: Mode,
    interval: float,
    heard: Heard,
) -> _Sense:
    """The best of what may be done of what is asked for; its connections are closed with the stack."""
    why = home.missing.message if home.missing else ""
    if detection in (Mode.AUTO, Mode.WATCH) and not home.missing:
        try:
            async with _explaining(writer):
                return await stack.enter_async_context(_watching(endpoint, home, heard))
        except PgRoleError as error:
            if detection is Mode.WATCH or not (is_lacking(error) or isinstance(error, watch.NotHeard)):
                raise
            why = error.message
    if detection is Mode.RESYNC:
        return await stack.enter_async_context(_resyncing(endpoint, home))
    why = why if detection is Mode.AUTO else ""
    return await stack.enter_async_context(_polling(endpoint, home, interval, heard, why))


@asynccontextmanager
async def _watching(endpoint: Endpoint, home: _Home, heard: Heard) -> AsyncIterator[_Sense]:
    async with connect(endpoint, "listen") as ear, connect(endpoint, "watch", statement_timeout="0") as eye:
        await _check_same(home.identity, ear, eye)
        await watch.listen(ear, eye, heard)
        await watch.observe(eye, guarded=home.guarded)
        turn = anyio.Lock()
        tasks = (partial(watch.watch, eye, home.guarded), partial(watch.keep_alive, ear, turn))
        yield _Sense(Mode.WATCH, (ear, eye), tasks, turn)


@asynccontextmanager
async def _polling(endpoint: Endpoint, home: _Home, interval: float, heard: Heard, why: str) -> AsyncIterator[_Sense]:
    async with connect(endpoint, "poll") as connection:
        await _check_same(home.identity, connection)
        turn = anyio.Lock()
        poller = Poller(connection, turn, home.identity)
        await poller.compare()
        yield _Sense(Mode.POLL, (connection,), (partial(poller.run, interval, heard),), turn, poller, why)


@asynccontextmanager
async def _resyncing(endpoint: Endpoint, home: _Home) -> AsyncIterator[_Sense]:
    async with connect(endpoint, "resync") as connection:
        await _check_same(home.identity, connection)
        yield _Sense(Mode.RESYNC, (connection,))


async def _check_same(identity: Identity, *others: Connection) -> None:
    for other in others:
        if not identity.is_same_server(await inspect.identify(other)):
            raise Transient(Reason.SERVER_NOT_READY, "the connections of one address reach different servers")


async def _reconsider(sense: _Sense, home: _Home, seconds: float, session: anyio.CancelScope) -> None:
    """Ends the session when another one could do more, or this one could not be begun any more."""
    only = "sees_passwords" if sense.mode is Mode.WATCH else None
    changed = await await_change(sense.connection, sense.turn, home.access, seconds, only)
    log.info("what the controller may do has changed", extra={"changed": ", ".join(changed)})
    session.cancel()


@asynccontextmanager
async def _explaining(writer: Connection) -> AsyncIterator[None]:
    """Where a privilege is lacking for a session: the error names the grant."""
    try:
        yield
    except PgRoleError as error:
        if not is_lacking(error) or writer.is_closed():
            raise
        raise await explain_access(writer, error) from error.__cause__


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The failure that ended a session: a PgRoleError where all are, else the group as it is."""
    failures, rest = group.split(PgRoleError)
    if rest is not None or failures is None:
        return group
    failure: BaseException = failures
    while isinstance(failure, BaseExceptionGroup):
        failure = failure.exceptions[0]
    return failure


async def _await_end(connections: Sequence[Connection]) -> NoReturn:
    ended = anyio.Event()
    for connection in connections:
        connection.add_termination_listener(lambda _connection: ended.set())
    if not any(connection.is_closed() for connection in connections):
        await ended.wait()
    raise Transient(Reason.SERVER_NOT_READY, "a connection to PostgreSQL ended")
