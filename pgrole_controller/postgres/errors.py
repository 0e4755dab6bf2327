"""PostgreSQL's errors as PgRoleErrors: one table by SQLSTATE, one translation, and the cause of a lost session.

Codes: https://www.postgresql.org/docs/current/errcodes-appendix.html. The longest matching prefix applies.

Guarantees: an unknown cause is `Cause.OTHER`, which backs off. With several hosts, the one that backs off most applies.
"""

import errno
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from socket import gaierror
from ssl import SSLCertVerificationError, SSLError

import asyncpg

from pgrole_controller import metrics
from pgrole_controller.core.errors import PgRoleError, Reason, Refused, RefusedForNow, Transient, Waiting
from pgrole_controller.core.reconnect import Cause
from pgrole_controller.ending import leaves
from pgrole_controller.postgres.authentication import Unacceptable

#: Raised by functions of schema pgrole if the role or claim changed since it was read: read again; nothing was changed.
SEEN_IS_STALE = "PGR01"

#: Raised by sql/inspect/guard.sql if schema pgrole is no longer trusted: nothing in it is called.
SCHEMA_NOT_TRUSTED = "PGR02"

#: Raised by functions of schema pgrole if another process leads: nothing was changed.
NOT_LEADING = "PGR04"

#: Raised while a superuser has suspended all changes: nothing was changed.
CHANGES_SUSPENDED = "PGR05"

#: Raised by postgres/privileges/acl_checks.py: nothing was changed.
FOREIGN_EVENT_TRIGGER = "PGR07"

#: Raised by sql/reassign/revoke_delegated.sql: nothing was changed.
NOT_THE_GRANTOR = "PGR08"
GRANTOR_IS_SUPERUSER = "PGR09"

IS_STANDBY = "the server is a read-only standby (pg_is_in_recovery): name the primary, or every host"
#: The remedy where two connections with one address reach two servers.
NAME_ONE_SERVER = "a load balancer or pooler is in between; name one server"

_TABLE: dict[str, Callable[[str], PgRoleError]] = {
    "": lambda text: Transient(Reason.DATABASE_ERROR, f"PostgreSQL: {text}"),
    "08": lambda text: Transient(Reason.SERVER_NOT_READY, f"the connection to PostgreSQL failed: {text}"),
    "08P01": lambda text: Transient(
        Reason.SERVER_NOT_READY,
        f"the connection to PostgreSQL failed: {text}. A pooler in between, such as PgBouncer, may reject the "
        "settings that the controller requests: connect to the server itself",
    ),
    "0LP01": lambda text: RefusedForNow(
        Reason.INVALID_SPEC,
        f"spec.memberOf: PostgreSQL rejects the membership; remove it, or the one that it conflicts with: {text}",
    ),
    "22": lambda text: Refused(Reason.INVALID_SPEC, f"PostgreSQL rejects a value in spec; correct it: {text}"),
    "23505": lambda text: Transient(Reason.PROGRESSING, f"a concurrent transaction changed the role first: {text}"),
    "25001": lambda text: Refused(
        Reason.INVALID_SPEC,
        f"spec.parameters: {text}. Set the parameter of that name that begins with default_ instead",
    ),
    "25006": lambda text: Transient(Reason.SERVER_NOT_READY, f"the server is read-only: {text}"),
    "28": lambda text: Transient(
        Reason.SERVER_NOT_READY, f"PostgreSQL rejects the credentials; correct the Secret or the DSN: {text}"
    ),
    "2BP01": lambda text: Waiting(Reason.DROP_BLOCKED, f"the role is still needed: {text}"),
    "3D000": lambda text: Transient(
        Reason.SERVER_NOT_READY, f"the home database is missing; create it, or name another: {text}"
    ),
    "3F000": lambda text: Transient(Reason.SERVER_NOT_READY, f"schema pgrole is missing: {text}"),
    "40": lambda text: Transient(Reason.PROGRESSING, f"a concurrent transaction changed the role first: {text}"),
    "42501": lambda text: Transient(Reason.DATABASE_ERROR, f"the controller's role lacks a privilege: {text}"),
    "42883": lambda text: Transient(Reason.SERVER_NOT_READY, f"schema pgrole is incomplete: {text}"),
    "42P01": lambda text: Transient(Reason.SERVER_NOT_READY, f"schema pgrole is incomplete: {text}"),
    "42710": lambda text: Transient(Reason.PROGRESSING, f"a concurrent transaction changed the role first: {text}"),
    "42704": lambda text: Transient(Reason.PROGRESSING, f"a concurrent transaction changed the role first: {text}"),
    "42939": lambda text: Refused(Reason.INVALID_SPEC, f"PostgreSQL rejects the name: {text}"),
    "53": lambda text: Transient(Reason.SERVER_NOT_READY, f"the server is short of resources; see its log: {text}"),
    "54001": lambda text: Transient(
        Reason.SERVER_NOT_READY,
        f"PostgreSQL: {text}: max_stack_depth is too low for the controller's role or database; raise it",
    ),
    "53100": lambda text: Transient(Reason.SERVER_NOT_READY, f"the server's disk is full; free some space: {text}"),
    "53200": lambda text: Transient(
        Reason.SERVER_NOT_READY,
        f"the server is out of memory, or has no room for more locks (max_locks_per_transaction); see its log: {text}",
    ),
    "53300": lambda text: Transient(
        Reason.SERVER_NOT_READY,
        "the server has no connection left for the controller; close some, or raise max_connections or the "
        f"CONNECTION LIMIT of the controller's role or database: {text}",
    ),
    "55000": lambda text: Transient(Reason.SERVER_NOT_READY, f"the server is not in the required state: {text}"),
    "55P02": lambda text: Refused(Reason.INVALID_SPEC, f"spec.parameters: {text}"),
    "55P03": lambda text: Transient(
        Reason.DATABASE_ERROR, f"a lock was not available in time; find the session that holds it in pg_locks: {text}"
    ),
    "55006": lambda text: Waiting(Reason.DROP_BLOCKED, f"the role is in use: {text}"),
    "57014": lambda text: Transient(
        Reason.DATABASE_ERROR,
        "a statement exceeded its timeout, or was canceled; look for locks and load in pg_locks and pg_stat_activity: "
        f"{text}",
    ),
    "57": lambda text: Transient(
        Reason.SERVER_NOT_READY, f"the server ended the session, is starting up or is shutting down: {text}"
    ),
    "58P01": lambda text: Transient(
        Reason.SERVER_NOT_READY,
        f"PostgreSQL: {text}. If the file is a library, reset session_preload_libraries or dynamic_library_path with "
        f"ALTER DATABASE … RESET or ALTER ROLE … RESET",
    ),
    SEEN_IS_STALE: lambda text: Transient(Reason.PROGRESSING, f"the role changed while the controller read it: {text}"),
    SCHEMA_NOT_TRUSTED: lambda text: Transient(Reason.SERVER_NOT_READY, text),
    NOT_LEADING: lambda text: Transient(Reason.PROGRESSING, text),
    CHANGES_SUSPENDED: lambda text: Refused(
        Reason.SUSPENDED, f"{text}: the controller changes nothing on this server until a superuser resets it"
    ),
    FOREIGN_EVENT_TRIGGER: lambda text: Transient(Reason.SERVER_NOT_READY, text),
    NOT_THE_GRANTOR: lambda text: Waiting(Reason.DROP_BLOCKED, text),
    GRANTOR_IS_SUPERUSER: lambda text: Waiting(Reason.DROP_BLOCKED, text),
    "XX000": lambda text: _internal("XX000, an internal error", text),
    "XX001": lambda text: _internal("XX001, corrupted data", text),
    "XX002": lambda text: _internal("XX002, a corrupted index", text),
}


#: PostgreSQL's own: a lock was not available in time; other objects depend on this one; the database does not exist.
LOCK_NOT_FREE = "55P03"
DEPENDENT = "2BP01"
NO_DATABASE = "3D000"

#: A lock was not available in time, or a statement was canceled.
_TIMED_OUT = (LOCK_NOT_FREE, "57014")

#: Messages of XX000, always in English, if another transaction was first.
_CONCURRENT = ("tuple concurrently updated", "tuple concurrently deleted")


def _internal(name: str, text: str) -> PgRoleError:
    if text.startswith(_CONCURRENT):
        return Transient(Reason.PROGRESSING, f"a concurrent transaction changed the role first: {text}")
    return Transient(Reason.DATABASE_ERROR, f"PostgreSQL reports {name}: {text}. See the server log")


def classify(sqlstate: str | None, text: str) -> PgRoleError:
    """The error to report on the object. `text`: PostgreSQL's primary message."""
    code = sqlstate or ""
    for length in range(len(code), -1, -1):
        if code[:length] in _TABLE:
            return _TABLE[code[:length]](text)
    raise AssertionError("the table has an entry for every code")


#: Causes, by how much another attempt costs the server, the cheapest first.
_SPARED = (Cause.REFUSED, Cause.STARTING, Cause.LOST, Cause.OVERTAKEN, Cause.OTHER)

_REFUSED = {errno.ECONNREFUSED}
#: The file of a Unix socket is removed with its server.
_REFUSED_SOCKET = {errno.ECONNREFUSED, errno.ENOENT}
#: InterfaceError, InternalClientError: as in LOST.
_BROKEN = (
    ConnectionResetError,
    ConnectionAbortedError,
    BrokenPipeError,
    EOFError,
    asyncpg.ConnectionDoesNotExistError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
)

#: asyncio joins the errors of a host's addresses in the text of one OSError.
_ERRNO = re.compile(r"\[Errno (\d+)\]")


class StandbyError(ConnectionError):
    """The server is in recovery: after a failover, another host is the primary, or this one is about to be."""


def cause_of(error: BaseException | None) -> Cause:
    """Why a session could not be started, or why it ended."""
    match error:
        case BaseExceptionGroup():
            return max(map(cause_of, error.exceptions), key=_SPARED.index)
        case PgRoleError(reason=Reason.PROGRESSING):
            return Cause.OVERTAKEN
        case PgRoleError():
            return cause_of(error.__cause__)
        case asyncpg.CannotConnectNowError():
            return Cause.STARTING
        case Unacceptable():
            return Cause.OTHER
        case StandbyError():
            return Cause.LOST
        case OSError() if _is_refused(error):
            return Cause.REFUSED
        case _ if isinstance(error, _BROKEN):
            return Cause.LOST
    return Cause.OTHER


def _is_refused(error: OSError) -> bool:
    if error.errno is None:
        found = {int(number) for number in _ERRNO.findall(str(error))}
        return bool(found) and found <= _REFUSED
    return error.errno in (_REFUSED_SOCKET if error.filename is None else _REFUSED)


def sqlstate_of(error: BaseException | None) -> str:
    """The SQLSTATE of the error that caused this one; empty if PostgreSQL did not send it."""
    return getattr(getattr(error, "__cause__", None), "sqlstate", None) or ""


def is_lacking(error: BaseException | None) -> bool:
    """Whether the controller's role lacks a privilege (insufficient_privilege)."""
    return error is not None and isinstance(error.__cause__, asyncpg.InsufficientPrivilegeError)


def is_rejection(error: PgRoleError) -> bool:
    """Whether PostgreSQL rejects what one plan does, so that a smaller plan for the same role may succeed.

    Not if it timed out, nor if a privilege is missing that is known: `apply_plans` then did all that needs no more.
    """
    if error.reason is Reason.DATABASE_ERROR:
        return isinstance(error, Transient) and sqlstate_of(error) not in _TIMED_OUT
    return error.reason is Reason.INVALID_SPEC


def is_passing(error: PgRoleError) -> bool:
    """Whether the next attempt may succeed although no one changes anything: a timeout, or an error of the server."""
    if sqlstate_of(error) in _TIMED_OUT:
        return True
    return isinstance(error, Transient) and error.reason in (Reason.PROGRESSING, Reason.SERVER_NOT_READY)


def is_timed_out(error: PgRoleError) -> bool:
    """Whether a lock was not available in time, or a statement had no answer in time."""
    return sqlstate_of(error) in _TIMED_OUT or isinstance(error.__cause__, TimeoutError)


def is_without_schema(error: BaseException | None) -> bool:
    """Whether the database has no schema pgrole (invalid_schema_name)."""
    return error is not None and isinstance(error.__cause__, asyncpg.InvalidSchemaNameError)


#: Exceptions of a lost connection. InternalClientError: a statement was sent while the server closed the connection.
LOST = (asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, EOFError)


#: The functions of PostgreSQL that look up the language of a DO block, and of a routine.
_LANGUAGE_LOOKUPS = ("ExecuteDoStmt", "CreateFunction")
_NO_LANGUAGE = "the database has no language plpgsql, which the controller needs: run CREATE EXTENSION plpgsql there"


def is_without_language(error: BaseException | None) -> bool:
    """Whether the database has no language plpgsql, so that hardly any of the controller's statements can be run."""
    return error is not None and _is_without_language(error.__cause__)


def _is_without_language(error: BaseException | None) -> bool:
    """By PostgreSQL's function, since the message may be translated, and names in it are others' texts."""
    found = isinstance(error, asyncpg.UndefinedObjectError)
    return found and getattr(error, "server_source_function", None) in _LANGUAGE_LOOKUPS


#: Maximum length of a text from a server, in characters.
_LONGEST_TEXT = 500


class UnexpectedError(Transient):
    """An unforeseen exception, caused by the server's answer or by a bug. Log its cause with the traceback."""

    def __init__(self, error: BaseException) -> None:
        kinds = type(error).__name__
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
            kinds = f"{kinds}: {type(error).__name__}"
        super().__init__(
            Reason.SERVER_NOT_READY,
            f"unexpected error in the session ({kinds}); see the controller's log for the traceback",
        )


#: asyncpg's message if the server does not offer TLS.
_NO_TLS = "rejected SSL upgrade"

#: asyncpg's message if a statement is sent while the connection closes.
_CLOSED_MEANWHILE = "cannot switch to"


@contextmanager
def translate_errors(label: str = "") -> Iterator[None]:
    """Translates asyncpg's exceptions into PgRoleErrors by the table of SQLSTATEs.

    `label`: of the metric of the duration, which includes failures; empty: not measured.
    """
    began = time.perf_counter()
    try:
        yield
    except (asyncpg.PostgresError, *LOST, TimeoutError) as error:
        ended = error.__cause__  # where it was us who ended it
        if isinstance(error, asyncpg.PostgresError) and not isinstance(ended, Unacceptable):
            raise translate(error) from error
        cause = ended if isinstance(ended, Unacceptable) else error
        raise Transient(Reason.SERVER_NOT_READY, f"the connection to PostgreSQL failed: {_words(cause)}") from cause
    except (PgRoleError, UnicodeEncodeError):  # UnicodeEncodeError: an argument cannot be sent
        raise
    except Exception as error:
        if label == "connect" and isinstance(error, ValueError):  # an invalid argument: `_naming`
            raise
        raise UnexpectedError(error) from error
    finally:
        if label:
            metrics.SQL_SECONDS.labels(label).observe(time.perf_counter() - began)


def translate(error: asyncpg.PostgresError) -> PgRoleError:
    """The error to report on an object. Without detail and context, which may quote a statement; with the hint about a
    parameter's value, which lists those that are valid.
    """
    message = getattr(error, "message", None) or (str(error) or type(error).__name__)  # asyncpg's own have no `message`
    text = shorten(str(message))
    if isinstance(error, asyncpg.InvalidParameterValueError) and error.hint:
        text = f"{text}. {shorten(str(error.hint))}"
    if _is_forbidden_to_connect(error):
        text = f"{text}. A superuser can allow it: GRANT CONNECT ON DATABASE … TO this role"
    if _is_without_language(error):
        return Transient(Reason.SERVER_NOT_READY, _NO_LANGUAGE)
    return classify(getattr(error, "sqlstate", None), text)


def _is_forbidden_to_connect(error: asyncpg.PostgresError) -> bool:
    """Whether the role lacks CONNECT on the database. By PostgreSQL's function, since the message may be translated."""
    found = isinstance(error, asyncpg.InsufficientPrivilegeError)
    return found and getattr(error, "server_source_function", None) == "CheckMyDatabase"


@contextmanager
def convert_unexpected() -> Iterator[None]:
    """Converts every exception but PgRoleError and cancellation into UnexpectedError."""
    try:
        yield
    except PgRoleError:
        raise
    except Exception as error:
        raise UnexpectedError(error) from error


@contextmanager
def unwrap_group() -> Iterator[None]:
    """Around a task group: raises the first error of a group of PgRoleErrors, with the cause that it has, by which
    `cause_of` and others judge it. A group that holds anything else is raised as it is.
    """
    try:
        yield
    except BaseExceptionGroup as group:
        failures, others = group.split(PgRoleError)
        if failures is None or others is not None:
            raise
        failure = next(leaves(failures))
        raise failure from failure.__cause__


def shorten(text: str, most: int = _LONGEST_TEXT) -> str:
    """A text from a server on one line, without control characters, cut after `most` characters."""
    cut = text[:most]
    shown = cut if cut.isprintable() else "".join(sign if sign.isprintable() else " " for sign in cut)
    return shown if len(text) <= most else f"{shown}… ({len(text) - most} more characters)"


def _words(error: BaseException) -> str:
    return shorten(_say(error))


def _say(error: BaseException) -> str:
    match error:
        case TimeoutError():
            return "no answer in time"
        case SSLCertVerificationError():
            return f"the server's certificate is not trusted: {error.verify_message}"
        case SSLError():
            return f"TLS failed: {error.reason or error}"
        case ConnectionError() if _NO_TLS in str(error):
            return "the server does not offer TLS, which sslMode requires"
        case gaierror():
            return f"the host name does not resolve: {error.strerror}"
        case asyncpg.InternalClientError() if _CLOSED_MEANWHILE in str(error):
            return "the server closed it while a statement was sent"
    return str(error) or type(error).__name__


def refusing_connections(database: str) -> PgRoleError:
    """Returns the error for a database that its administrator has closed."""
    return Waiting(
        Reason.PRIVILEGE_PENDING,
        f'database "{database}" does not accept connections: run ALTER DATABASE … ALLOW_CONNECTIONS true',
    )
