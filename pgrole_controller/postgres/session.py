"""One connected server: three connections, whatever the number of roles.

One writes and inspects, one LISTENs, one runs the procedure `watch`. A session lasts until any of the three fails, and
then ends as a whole: its caller starts a new one and looks at everything that could have been missed.
"""

import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import NoReturn

import anyio

from pgrole_controller.core.disown import Heir
from pgrole_controller.core.errors import PgRoleError, Reason, Transient
from pgrole_controller.core.hint import Key
from pgrole_controller.core.plan import Plan
from pgrole_controller.core.policy import Surroundings
from pgrole_controller.core.scram import Verifier
from pgrole_controller.core.sight import Needs, Sight
from pgrole_controller.postgres import inspect, queries
from pgrole_controller.postgres.connection import Connection, Endpoint, connect, speaking
from pgrole_controller.postgres.inspect import Identity
from pgrole_controller.postgres.install import Installation, install, others_may_create
from pgrole_controller.postgres.notification import CHANNEL, greeting, is_greeting, read_names
from pgrole_controller.postgres.privilege import PARAMETER_GRANTS_VERSION, explain_access, is_lacking
from pgrole_controller.postgres.transaction import Dialect, carry_out

log = logging.getLogger(__name__)


#: How often `watch` compares snapshots: the delay of detection and the cost of idling.
TICK = "5 ms"
#: How long one call of `watch` lasts, so that its caller knows that it is alive.
WATCH_SECONDS = 30
_WATCH_DEADLINE = WATCH_SECONDS + 15.0
#: To plan the look at a role takes several times as long as to do it, so it is planned once, when the tables may still
#: be empty: for few roles among many, by index.
_PLANNING = {
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
}

#: For one look in a transaction of its own.
GUARDED_SECONDS = 10.0
_GREETING_SECONDS = 5.0
_HEARTBEAT_SECONDS = 5.0
_HEARTBEAT_DEADLINE = 3.0


@dataclass(frozen=True, slots=True)
class Session:
    """What a lane may ask of its server while it is connected. Every method raises PgRoleError."""

    identity: Identity
    installation: Installation
    cluster: str
    guarded: bool  # others may create schemas in the home database
    _connection: Connection

    async def look(self, asked: Sequence[tuple[Key, str]]) -> list[Sight]:
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
        async with self._trusting():
            return await inspect.look_for_heirs(self._connection, names, self.identity.system_identifier)

    async def look_for_verifiers(self, oids: Sequence[int]) -> dict[int, Verifier]:
        async with self._trusting():
            return await inspect.look_for_verifiers(self._connection, oids)

    async def look_for_claims(self) -> list[tuple[Key, str, str]]:
        async with self._trusting():
            return await inspect.look_for_claims(self._connection, self.cluster)

    async def carry_out(self, plans: Sequence[Plan]) -> list[PgRoleError | None]:
        version = self.identity.version_number
        dialect = Dialect(
            options=version >= inspect.MEMBERSHIP_OPTIONS_VERSION,
            guarded=self.guarded,
            parameter_grants=version >= PARAMETER_GRANTS_VERSION,
        )
        return await carry_out(self._connection, plans, dialect)

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
    may_install: bool,
    heard: Callable[[tuple[str, ...] | None], None],
    work: Callable[[Session], Awaitable[None]],
) -> None:
    """Connects, installs, and runs `work` while all three connections are well; returns when `work` does.

    `heard` is called with the role names of each notification (None: all of them), from before `work` begins: what
    changes after that is heard. Raises PgRoleError when there is no session to be had or it has failed.
    """
    async with (
        connect(endpoint, "work", **_PLANNING) as writer,
        connect(endpoint, "listen") as ear,
        connect(endpoint, "watch", statement_timeout="0") as eye,
    ):
        async with _explaining(writer):
            identity = await inspect.identify(writer)
            for other in (ear, eye):
                if not identity.is_same_server(await inspect.identify(other)):
                    raise Transient(Reason.SERVER_NOT_READY, "the connections of one address reach different servers")
            installation = await install(writer, allowed=may_install)
            guarded = await others_may_create(writer)
            await _listen(ear, eye, heard)
            with speaking():  # now, since what may not be read must fail the attempt and not the session
                async with eye.transaction():
                    if guarded:
                        await eye.execute(queries.inspect("guard"))
                    await eye.execute("SELECT pgrole.observe()")
        session = Session(identity, installation, cluster, guarded, writer)
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_watch, eye, session.guarded)
                tasks.start_soon(_keep_alive, ear)
                tasks.start_soon(_await_end, (writer, ear, eye))
                await work(session)
                tasks.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            raise _first(group) from group


@asynccontextmanager
async def _explaining(writer: Connection) -> AsyncIterator[None]:
    """Where a privilege is lacking for a session: the error names the grant."""
    try:
        yield
    except PgRoleError as error:
        if not is_lacking(error) or writer.is_closed():
            raise
        raise await explain_access(writer, error) from error


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The failure that ended a session: a PgRoleError where all are, else the group as it is."""
    failures, rest = group.split(PgRoleError)
    if rest is not None or failures is None:
        return group
    failure: BaseException = failures
    while isinstance(failure, BaseExceptionGroup):
        failure = failure.exceptions[0]
    return failure


async def _listen(ear: Connection, eye: Connection, heard: Callable[[tuple[str, ...] | None], None]) -> None:
    """LISTENs, and makes sure that what the watch connection sends arrives: a pooler may have put them apart."""
    token = secrets.token_hex(8)
    greeted = anyio.Event()

    def receive(_connection: object, _pid: int, _channel: str, payload: object) -> None:
        text = str(payload)
        if is_greeting(text, token):
            greeted.set()
            return
        names = read_names(text)
        if names != ():
            heard(names)

    with speaking():
        await ear.add_listener(CHANNEL, receive)
        await eye.execute("SELECT pg_catalog.pg_notify($1, $2)", CHANNEL, greeting(token))
    with anyio.move_on_after(_GREETING_SECONDS):
        await greeted.wait()
        return
    raise Transient(
        Reason.SERVER_NOT_READY,
        "a notification sent on one connection does not arrive on another: connect to the server itself, "
        "not through a pooler in transaction mode",
    )


async def _watch(eye: Connection, guarded: bool) -> NoReturn:
    while True:
        with speaking():
            if guarded:
                await eye.execute(queries.inspect("guard"))
            await eye.execute(
                f"CALL pgrole.watch(interval '{TICK}', interval '{WATCH_SECONDS} s')",
                timeout=_WATCH_DEADLINE,
            )
        log.debug("watch returned and is called again")


async def _keep_alive(ear: Connection) -> NoReturn:
    """A listener whose peer is gone hears nothing and does not know it: asks, with a deadline."""
    while True:
        await anyio.sleep(_HEARTBEAT_SECONDS)
        with speaking():
            channels = await ear.fetch(
                "SELECT channel FROM pg_catalog.pg_listening_channels() AS l (channel)", timeout=_HEARTBEAT_DEADLINE
            )
        if CHANNEL not in {row["channel"] for row in channels}:
            raise Transient(Reason.SERVER_NOT_READY, "the listening connection no longer listens")


async def _await_end(connections: Sequence[Connection]) -> NoReturn:
    ended = anyio.Event()
    for connection in connections:
        connection.add_termination_listener(lambda _connection: ended.set())
    if not any(connection.is_closed() for connection in connections):
        await ended.wait()
    raise Transient(Reason.SERVER_NOT_READY, "a connection to PostgreSQL ended")
