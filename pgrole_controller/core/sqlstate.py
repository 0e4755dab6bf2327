"""What PostgreSQL's errors mean here, by SQLSTATE: one table.

Codes: https://www.postgresql.org/docs/current/errcodes-appendix.html. The longest prefix decides.
"""

from collections.abc import Callable

from pgrole_controller.core.errors import PgRoleError, Reason, Refused, Transient, Waiting

#: Raised by schema pgrole's own functions when what was seen is no longer so: look again, nothing was changed.
SEEN_IS_STALE = "PGR01"

#: Raised by sql/inspect/guard.sql when schema pgrole is not ours any more: nothing in it is called.
SCHEMA_NOT_TRUSTED = "PGR02"

#: Raised by schema pgrole's own functions when another process leads: nothing was changed, and nothing may be.
NOT_LEADING = "PGR04"

#: Raised while a superuser has suspended all changes: nothing was changed, and nothing may be.
CHANGES_SUSPENDED = "PGR05"

_TABLE: dict[str, Callable[[str], PgRoleError]] = {
    "": lambda text: Transient(Reason.DATABASE_ERROR, f"PostgreSQL: {text}"),
    "08": lambda text: Transient(Reason.SERVER_NOT_READY, f"the connection to PostgreSQL failed: {text}"),
    "0LP01": lambda text: Refused(Reason.INVALID_SPEC, f"spec.memberOf: PostgreSQL rejects the membership: {text}"),
    "22": lambda text: Refused(Reason.INVALID_SPEC, f"PostgreSQL rejects a value of the spec: {text}"),
    "23505": lambda text: Transient(Reason.PROGRESSING, f"a concurrent transaction changed the role first: {text}"),
    "25006": lambda text: Transient(Reason.SERVER_NOT_READY, f"the server is read-only: {text}"),
    "28": lambda text: Transient(Reason.SERVER_NOT_READY, f"PostgreSQL rejects the controller's credentials: {text}"),
    "2BP01": lambda text: Waiting(Reason.DROP_BLOCKED, f"the role is still needed: {text}"),
    "3D000": lambda text: Transient(Reason.SERVER_NOT_READY, f"the home database is missing: {text}"),
    "3F000": lambda text: Transient(Reason.SERVER_NOT_READY, f"schema pgrole is missing: {text}"),
    "40": lambda text: Transient(Reason.PROGRESSING, f"a concurrent transaction changed the role first: {text}"),
    "42501": lambda text: Transient(Reason.DATABASE_ERROR, f"the controller's role lacks a privilege: {text}"),
    "42883": lambda text: Transient(Reason.SERVER_NOT_READY, f"schema pgrole is incomplete: {text}"),
    "42P01": lambda text: Transient(Reason.SERVER_NOT_READY, f"schema pgrole is incomplete: {text}"),
    "42710": lambda text: Transient(Reason.PROGRESSING, f"a concurrent transaction changed the role first: {text}"),
    "42704": lambda text: Transient(Reason.PROGRESSING, f"a concurrent transaction changed the role first: {text}"),
    "42939": lambda text: Refused(Reason.INVALID_SPEC, f"PostgreSQL rejects the name: {text}"),
    "53": lambda text: Transient(Reason.SERVER_NOT_READY, f"the server is short of resources: {text}"),
    "54001": lambda text: Transient(
        Reason.SERVER_NOT_READY,
        f"PostgreSQL: {text}: max_stack_depth is too low for the controller's role or database; raise it",
    ),
    "53100": lambda text: Transient(Reason.SERVER_NOT_READY, f"the server's disk is full; free some space: {text}"),
    "53200": lambda text: Transient(Reason.SERVER_NOT_READY, f"the server is out of memory: {text}"),
    "53300": lambda text: Transient(
        Reason.SERVER_NOT_READY,
        "the server has no connection left for the controller; close some, or raise max_connections or the "
        f"CONNECTION LIMIT of the controller's role or database: {text}",
    ),
    "55000": lambda text: Transient(Reason.SERVER_NOT_READY, f"the server is not in the required state: {text}"),
    "55P02": lambda text: Refused(Reason.INVALID_SPEC, f"spec.parameters: {text}"),
    "55P03": lambda text: Transient(Reason.DATABASE_ERROR, f"a lock was not available in time: {text}"),
    "55006": lambda text: Waiting(Reason.DROP_BLOCKED, f"the role is in use: {text}"),
    "57014": lambda text: Transient(Reason.DATABASE_ERROR, f"a statement exceeded its timeout: {text}"),
    "57": lambda text: Transient(Reason.SERVER_NOT_READY, f"the server is starting up or shutting down: {text}"),
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
    "XX000": lambda text: _internal("XX000, an internal error", text),
    "XX001": lambda text: _internal("XX001, corrupted data", text),
    "XX002": lambda text: _internal("XX002, a corrupted index", text),
}


#: What PostgreSQL says in XX000, in English always, where another transaction came first.
_CONCURRENT = ("tuple concurrently updated", "tuple concurrently deleted")


def _internal(name: str, text: str) -> PgRoleError:
    if text.startswith(_CONCURRENT):
        return Transient(Reason.PROGRESSING, f"a concurrent transaction changed the role first: {text}")
    return Transient(Reason.DATABASE_ERROR, f"PostgreSQL reports {name}: {text}. See the server log")


def classify(sqlstate: str | None, text: str) -> PgRoleError:
    """The error to say on the object for an error of PostgreSQL with its primary message `text`."""
    code = sqlstate or ""
    for length in range(len(code), -1, -1):
        if code[:length] in _TABLE:
            return _TABLE[code[:length]](text)
    raise AssertionError("the table has an entry for every code")
