"""One connected server: two or three connections, whatever the number of roles.

One writes and inspects; the others notice changes: by Watch, one LISTENs and one runs the procedure `watch`, by Poll
one reads digests. A session lasts until any of them fails, and then ends as a whole: its caller starts a new one and
looks at everything that could have been missed. It also ends when something else has become possible: the next one
chooses anew.
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import NoReturn

import anyio

from pgrole_controller.core.contest import Culprit
from pgrole_controller.core.detection import Detection, Mode
from pgrole_controller.core.disown import Heir
from pgrole_controller.core.errors import PgRoleError, Reason, Transient
from pgrole_controller.core.hint import Key
from pgrole_controller.core.plan import Plan
from pgrole_controller.core.policy import Surroundings
from pgrole_controller.core.scram import Verifier
from pgrole_controller.core.sight import Needs, Sight
from pgrole_controller.postgres import inspect, queries
from pgrole_controller.postgres.access import RECONSIDER_SECONDS, await_change, read_access
from pgrole_controller.postgres.connection import Connection, Endpoint, connect, expecting, speaking
from pgrole_controller.postgres.culprits import look_for_culprits
from pgrole_controller.postgres.fence import Candidacy, Fence, take_lead
from pgrole_controller.postgres.inspect import Identity
from pgrole_controller.postgres.install import Installation, is_current
from pgrole_controller.postgres.ledger import Ledger
from pgrole_controller.postgres.poll import Poller
from pgrole_controller.postgres.privilege import PARAMETER_GRANTS_VERSION
from pgrole_controller.postgres.sense import POLL_SECONDS, Heard, Sense, open_sense
from pgrole_controller.postgres.survey import Survey, explaining, look, survey
from pgrole_controller.postgres.transaction import Dialect, carry_out

log = logging.getLogger(__name__)

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
    fence: Fence | None = None  # None: nobody else could lead

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
        stack.enter_context(expecting())
        writer = await stack.enter_async_context(connect(endpoint, "work", **_PLANNING))
        sensing = partial(open_sense, stack, endpoint, writer, detection=detection, interval=interval, heard=heard)
        found = sense = None
        while candidacy is not None and not candidacy.is_leading():
            async with explaining(writer):
                found = await look(writer)
            sense = await sensing(found) if found else None
            await _stand_by(candidacy, writer, sense)
        async with explaining(writer):
            found = await survey(writer, detection, may_install, found)
            fence = await _fence(writer, found, candidacy)
        sense = sense or await sensing(found)
        session = Session(
            found.identity,
            found.installation,
            cluster,
            found.guarded,
            writer,
            Detection(sense.mode, found.identity.sees_passwords, found.claims),
            sense.why,
            _open(ledger, found),
            sense.poller,
            fence,
        )
        try:
            async with anyio.create_task_group() as tasks:
                for task in sense.tasks:
                    tasks.start_soon(task)
                tasks.start_soon(_await_end, (writer, *sense.connections))
                period = min(RECONSIDER_SECONDS, 60 * interval)
                tasks.start_soon(_reconsider, sense, found, period, tasks.cancel_scope)
                if found.installation is Installation.OLDER:
                    tasks.start_soon(_await_upgrade, sense, period, tasks.cancel_scope)
                await work(session)
                tasks.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            raise _first(group) from group


def _open(ledger: Ledger | None, found: Survey) -> Ledger | None:
    opened = (ledger or Ledger()).open(found.identity.system_identifier if found.missing else None)
    return opened if found.missing else None


async def _stand_by(candidacy: Candidacy, writer: Connection, sense: Sense | None) -> None:
    """Until this process leads; without a `sense`, or until whoever leads has installed what that needs.

    Raises PgRoleError when a connection fails meanwhile.
    """
    connections = (writer, *(sense.connections if sense else ()))
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_await_end, connections)
            tasks.start_soon(_keep_alive, connections, tasks.cancel_scope if sense is None else None)
            await candidacy.stand_by()
            tasks.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        raise _first(group) from group


async def _keep_alive(connections: Sequence[Connection], installed: anyio.CancelScope | None) -> NoReturn:
    """Neither is a peer that is gone taken for one that has nothing to say, nor is a connection idle for long.

    Cancels `installed` when schema pgrole is there. A question is not interrupted: the session goes on with the first
    connection.
    """
    while True:
        await anyio.sleep(PULSE_SECONDS)
        with speaking(), anyio.fail_after(PULSE_SECONDS, shield=True):
            for connection in connections:
                await connection.fetchval("SELECT 1", timeout=_PULSE_DEADLINE)
            if installed is not None and await is_current(connections[0]):
                installed.cancel()


async def _fence(writer: Connection, found: Survey, candidacy: Candidacy | None) -> Fence | None:
    if candidacy is None:
        return None
    if found.installation is Installation.OLDER:
        log.warning("schema pgrole is of the version before: no fencing number until an administrator installs it anew")
    fencing = found.missing is None and found.installation is not Installation.OLDER
    return await take_lead(writer, candidacy, guarded=found.guarded, fencing=fencing)


async def _reconsider(sense: Sense, found: Survey, seconds: float, session: anyio.CancelScope) -> None:
    """Ends the session when another one could do more, or this one could not be begun any more."""
    only = "sees_passwords" if sense.mode is Mode.WATCH else None
    changed = await await_change(sense.connection, sense.turn, found.access, seconds, only)
    log.info("what the controller may do has changed", extra={"changed": ", ".join(changed)})
    session.cancel()


async def _await_upgrade(sense: Sense, seconds: float, session: anyio.CancelScope) -> None:
    """Ends the session when an administrator has brought schema pgrole up to date, with the rights on what is new."""
    while True:
        await anyio.sleep(seconds)
        async with sense.turn:
            with anyio.fail_after(GUARDED_SECONDS, shield=True):
                access = await read_access(sense.connection)
                if (access["owns"] or access["uses"]) and await is_current(sense.connection):
                    break
    log.info("schema pgrole was brought up to date")
    session.cancel()


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
