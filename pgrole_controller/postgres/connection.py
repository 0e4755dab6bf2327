"""Connections to one server, with pinned values for every session setting that a role or a database could change."""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from ssl import SSLContext
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeAlias

import anyio
import anyio.to_thread
import asyncpg

from pgrole_controller.core.errors import PgRoleError, Reason, Refused, Transient
from pgrole_controller.dsn import split_methods, verifies_by_default
from pgrole_controller.postgres import queries
from pgrole_controller.postgres.authentication import Unacceptable
from pgrole_controller.postgres.backend_memory import fetch_records, forgetting, register_array_types
from pgrole_controller.postgres.errors import IS_STANDBY, LOST, StandbyError, shorten, translate, translate_errors
from pgrole_controller.postgres.framing import VOLUME, NotPostgres
from pgrole_controller.postgres.protocol import ConnectionLimits, check_messages, limiting, reason_of
from pgrole_controller.postgres.session_settings import (
    PINNED,
    SEARCH_PATH,
    OptionalSettings,
    check_identity,
    check_search_path,
)
from pgrole_controller.postgres.tls import SslMode, make_context

check_messages()

log = logging.getLogger(__name__)

# asyncpg's class is generic in its stubs alone.
if TYPE_CHECKING:
    Connection = asyncpg.Connection[asyncpg.Record]
else:
    Connection = asyncpg.Connection

CONNECT_SECONDS = 5.0
COMMAND_SECONDS = 30.0
CLOSE_SECONDS = 0.4
_PATIENCE_SECONDS = 1.0
#: Of a ROLLBACK: the server may not answer.
_ROLLBACK_SECONDS = 1.0

#: Optional settings that servers accepted, by hash of address and user.
_ACCEPTED: dict[int, frozenset[str]] = {}
_PLACES = 1000


_LONGEST_LIST = 4000


#: Returns the password for a host, port and user; called for each connection. Raises PgRoleError, and limits its own
#: time. If two factories are equal, existing connections are kept.
PasswordFactory: TypeAlias = Callable[[str, int, str], Awaitable[str]]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The address of a server and the credentials for it. If two endpoints differ, a new connection is needed.

    Either a DSN, or hosts with their parameters (`of`). `repr` shows no secrets.
    """

    dsn: str | None = field(default=None, repr=False)
    ssl: SslMode | None = None  # None: as the DSN says
    database: str | None = None  # None: as the DSN says
    hosts: tuple[str, ...] = ()
    port: int = 5432
    user: str = ""
    password: str | PasswordFactory = field(default="", repr=False)
    ca: str | None = field(default=None, repr=False)
    methods: frozenset[str] | None = None  # as in protocol.ConnectionLimits
    volume: int = VOLUME  # maximum bytes of the answer to one statement

    @classmethod
    def of_dsn(cls, dsn: str) -> "Endpoint":
        """As libpq would, except that TLS to another machine verifies the server unless the DSN has a sslmode."""
        plain, methods = split_methods(dsn)
        return cls(plain, ssl="verify-full" if verifies_by_default(dsn) else None, methods=methods)

    @classmethod
    def of(
        cls,
        hosts: Sequence[str],
        port: int,
        database: str,
        user: str,
        password: str | PasswordFactory,
        sslmode: SslMode,
        ca: str | None = None,
        methods: frozenset[str] | None = None,
    ) -> "Endpoint":
        """The first of these hosts that is not in recovery. `ca`: certificates in PEM; None: those of the system."""
        return cls(
            ssl=sslmode,
            database=database,
            hosts=tuple(hosts),
            port=port,
            user=user,
            password=password,
            ca=ca,
            methods=methods,
        )

    def at(self, database: str) -> "Endpoint":
        """The same server and role, in another database."""
        return replace(self, database=database)


@asynccontextmanager
async def connect(endpoint: Endpoint, purpose: str, **settings: str) -> AsyncIterator[Connection]:
    """A connection for one purpose, which application_name shows. Raises Transient or Refused if it fails.

    The server has answered a query and is not a standby. This takes at most CONNECT_SECONDS, plus the time of the
    password factory. Every statement has a timeout of COMMAND_SECONDS; pass `timeout` to change it for one statement.
    """
    pinned = {**PINNED, **settings, "application_name": f"pgrole-controller {purpose}"}
    connection = await (_find_primary(endpoint, pinned) if endpoint.dsn is None else _use_dsn(endpoint, pinned))
    try:
        yield connection
    finally:
        with anyio.CancelScope(shield=True):
            await _close(connection)


async def _use_dsn(endpoint: Endpoint, settings: dict[str, str]) -> Connection:
    with _naming("the DSN"):
        return await _open(
            endpoint, CONNECT_SECONDS, settings, dsn=endpoint.dsn, database=endpoint.database, ssl=endpoint.ssl
        )


async def _find_primary(endpoint: Endpoint, settings: dict[str, str]) -> Connection:
    """Tries the hosts in order: starts with the next host when one has failed or has not answered for a while.

    A host that hangs leaves time for the others, and a slow host can still be used. Raises the error of each host.
    """
    # in a thread: reading the system's CAs takes 50 ms, and must not delay other servers
    context = await anyio.to_thread.run_sync(make_context, endpoint.ssl or "verify-full", endpoint.ca)
    search = _Search(endpoint, settings, context)
    patience = min(_PATIENCE_SECONDS, CONNECT_SECONDS / 2 / max(1, len(endpoint.hosts)))
    try:
        async with anyio.create_task_group() as tasks:
            for host in endpoint.hosts:
                ended = anyio.Event()
                tasks.start_soon(search.attempt, host, ended, tasks.cancel_scope)
                with anyio.move_on_after(patience):
                    await ended.wait()
    except BaseException:
        if search.found is not None:
            search.found.terminate()
        raise
    if search.found is None:
        raise search.failure()
    return search.found


@dataclass(slots=True)
class _Search:
    """A search for the first host that answers and is not a standby."""

    endpoint: Endpoint
    settings: dict[str, str]
    context: SSLContext | Literal[False]
    found: Connection | None = None
    failures: dict[str, PgRoleError] = field(default_factory=dict)
    began: float = field(default_factory=anyio.current_time)

    async def attempt(self, host: str, ended: anyio.Event, others: anyio.CancelScope) -> None:
        """Tries one host; cancels the other attempts if it succeeds."""
        try:
            connection = await self._connect_to(host)
        except PgRoleError as error:
            self.failures[host] = error
            ended.set()
            return
        if self.found is None:
            self.found = connection
            others.cancel()
        else:  # another attempt succeeded before this one was cancelled
            connection.terminate()

    async def _connect_to(self, host: str) -> Connection:
        endpoint, password = self.endpoint, self.endpoint.password
        if not isinstance(password, str):
            password = await password(host, endpoint.port, endpoint.user)
        with _naming("the address, the user name, the password or the name of the database"):
            return await _open(
                endpoint,
                max(self.began + CONNECT_SECONDS - anyio.current_time(), CONNECT_SECONDS / 2),
                self.settings,
                host=host,
                port=endpoint.port,
                user=endpoint.user,
                password=password,
                database=endpoint.database,
                ssl=self.context,
                direct_tls=False,
                target_session_attrs="any",
            )

    def failure(self) -> PgRoleError:
        """The errors of all hosts as one error."""
        port = self.endpoint.port
        texts = [f"{_spell(host, port)}: {error.message}" for host, error in self.failures.items()]
        if len(texts) == 1:
            (error,) = self.failures.values()
            return error.reword(texts[0])
        error = Transient(
            Reason.SERVER_NOT_READY, shorten(f"no host accepts the connection: {'; '.join(texts)}", _LONGEST_LIST)
        )
        error.__cause__ = ExceptionGroup("of each host", list(self.failures.values()))
        return error


async def _open(
    endpoint: Endpoint,
    seconds: float,
    settings: dict[str, str],
    **arguments: Any,  # noqa: ANN401 -- asyncpg's
) -> Connection:
    """A connection that has answered a query within `seconds`: poolers accept logins before they have a server."""
    # a hash, since a DSN may contain a password
    place = hash((endpoint.dsn, arguments.get("host"), endpoint.port, endpoint.user))
    optional = OptionalSettings(_ACCEPTED[place]) if place in _ACCEPTED else OptionalSettings()
    try:
        with translate_errors("connect"), anyio.fail_after(seconds):
            return await _connect_with_fewer_settings(endpoint, optional, settings, seconds, **arguments)
    except Transient as error:
        if isinstance(error.__cause__, TimeoutError):
            optional.guess()
        raise
    finally:
        if len(_ACCEPTED) >= _PLACES:
            _ACCEPTED.clear()
        _ACCEPTED[place] = optional.asked


async def _connect_with_fewer_settings(
    endpoint: Endpoint,
    optional: OptionalSettings,
    settings: dict[str, str],
    seconds: float,
    **arguments: Any,  # noqa: ANN401 -- asyncpg's
) -> Connection:
    """Retries with other optional settings if they may be the reason of a failed login."""
    while True:
        try:
            connection, row = await _log_in(endpoint, {**settings, **optional.settings}, seconds, **arguments)
        except asyncpg.PostgresError as error:
            if isinstance(error.__cause__, Unacceptable):  # the controller closed it
                raise
            if not optional.may_retry(error):
                raise optional.explain(error, translate(error)) from error
            continue
        try:
            optional.met(row["version_number"], superuser=row["superuser"])
            _check_usable(row)
        except BaseException:
            connection.terminate()
            raise
        return connection


async def _log_in(
    endpoint: Endpoint,
    settings: dict[str, str],
    seconds: float,
    **arguments: Any,  # noqa: ANN401 -- asyncpg's
) -> tuple[Connection, asyncpg.Record]:
    """One attempt: the connection, and the row of sql/inspect/connection.sql."""
    limits = ConnectionLimits(endpoint.methods, endpoint.volume)
    with limiting(limits):
        try:
            connection: Connection = await asyncpg.connect(
                **arguments,
                timeout=seconds,
                command_timeout=COMMAND_SECONDS,
                # a drift after a quiet hour is repaired with statements that are still prepared
                max_cached_statement_lifetime=0,
                server_settings=settings,
            )
        except BaseException as error:
            limits.abandon()
            if not isinstance(error, (AttributeError, LookupError, TypeError, ValueError)):
                raise
            # raised by asyncpg for an answer that it does not understand, or for an invalid argument
            if isinstance(error, asyncpg.InterfaceError) or not (limits.answered or isinstance(error, AttributeError)):
                raise
            raise NotPostgres from error
        register_array_types(connection)
        try:
            with forgetting():
                paths = await fetch_records(connection, SEARCH_PATH)
                check_search_path(paths[0][0] if paths and paths[0] else None)
                rows = await fetch_records(connection, queries.inspect("connection"))
            if not rows:
                raise NotPostgres
        except BaseException:
            connection.terminate()
            raise
    return connection, rows[0]


def _check_usable(row: asyncpg.Record) -> None:
    """Raises Transient for a standby, and unless the session acts as the role that logged in."""
    if row["in_recovery"]:
        raise Transient(Reason.SERVER_NOT_READY, IS_STANDBY) from StandbyError()
    check_identity(row)


@contextmanager
def _naming(what: str) -> Iterator[None]:
    """Raises Refused for arguments that cannot be sent, without Python's message, which may contain a secret."""
    try:
        yield
    except ValueError as error:
        kind = type(error).__name__
        raise Refused(
            Reason.SERVER_NOT_READY, f"the controller cannot connect: {what} is not usable ({kind})"
        ) from None


def has_raw_names(connection: Connection) -> bool:
    """Whether the database has encoding SQL_ASCII, where names need not be UTF-8: `raw` of postgres/queries.py."""
    return bool(connection.get_settings().server_encoding == "SQL_ASCII")


async def await_end(connections: Sequence[Connection]) -> NoReturn:
    """Waits until one of these connections ends; raises Transient with the reason."""
    ended = anyio.Event()
    for connection in connections:
        connection.add_termination_listener(lambda _connection: ended.set())
    if not any(connection.is_closed() for connection in connections):
        await ended.wait()
    reason = next((found for connection in connections if (found := reason_of(connection))), None)
    text = "" if reason is None else f": {shorten(str(reason))}"
    raise Transient(Reason.SERVER_NOT_READY, f"a connection to PostgreSQL ended{text}") from (
        reason or ConnectionResetError()
    )


async def roll_back(connection: Connection) -> None:
    """Ends the open transaction, if there is one. Ends the connection if the server does not answer."""
    if connection.is_closed():
        return
    with anyio.move_on_after(_ROLLBACK_SECONDS, shield=True) as limit:
        await connection.execute("ROLLBACK")
    if limit.cancelled_caught:
        connection.terminate()


def _spell(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def _close(connection: Connection) -> None:
    # A graceful close waits for the server, which may be gone.
    with anyio.move_on_after(CLOSE_SECONDS):
        try:
            await connection.close(timeout=CLOSE_SECONDS)
        except Exception as error:
            if not isinstance(error, (*LOST, TimeoutError, asyncpg.PostgresError)):
                log.debug("unexpected error while closing a connection", exc_info=error)
            connection.terminate()
            return
    if not connection.is_closed():
        connection.terminate()
