"""Session settings that must not come from a role or a database, since other roles can change those.

Settings in the startup packet take precedence over settings of the role and the database, so it contains everything
that must hold from the start. The first query verifies that they hold, and the second one
(sql/inspect/connection.sql) resets everything else, and reports the roles that the session acts as and logged in as.
"""

from dataclasses import dataclass

import asyncpg

from pgrole_controller.core.errors import PgRoleError, Reason, Transient

_SEARCH_PATH = "pg_catalog, pg_temp"

#: Settings that every server knows and every role may set.
PINNED = {
    "role": "none",
    "search_path": _SEARCH_PATH,
    "client_encoding": "UTF8",
    "client_min_messages": "error",  # PostgreSQL warns about each invalid setting at every login
    "standard_conforming_strings": "on",
    "DateStyle": "ISO",
    "TimeZone": "UTC",
    "statement_timeout": "20s",
    "lock_timeout": "5s",
    "idle_in_transaction_session_timeout": "30s",
    "default_transaction_isolation": "read committed",
    "default_transaction_read_only": "off",
    "default_transaction_deferrable": "off",
    "row_security": "off",
    "jit": "off",
    "idle_session_timeout": "0",
    # a parallel worker starts with the settings of the role and the database, and an invalid one fails the query
    "max_parallel_workers_per_gather": "0",
    "max_parallel_maintenance_workers": "0",
    # a missing library would prevent the login
    "local_preload_libraries": "",
    # plpgsql reads these when its first function loads it
    "plpgsql.extra_errors": "none",
    "plpgsql.extra_warnings": "none",
    # the server detects a lost client and releases its locks
    "tcp_keepalives_idle": "10",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
}

#: Asks for the search_path without calling any function.
SEARCH_PATH = "SHOW search_path"

#: Time limit in seconds of what the server does before its first answer: login event triggers, since PostgreSQL 17.
LOGIN_SECONDS = 4

_CHECK_INTERVAL = "client_connection_check_interval"
_LOGIN_TIMEOUT = "transaction_timeout"
_EVENT_TRIGGERS = "event_triggers"

#: Settings that not every server knows, or not every role may set. Some operating systems do not support the check.
_OPTIONAL = {_CHECK_INTERVAL: "5s", _LOGIN_TIMEOUT: f"{LOGIN_SECONDS}s", _EVENT_TRIGGERS: "off"}
_PLAIN = frozenset({_CHECK_INTERVAL})
_LOGIN_TRIGGERS_VERSION = 170_000

#: Maximum bytes of a name, or of the statements that reset it, in an error.
_SHOWN = 500

#: SQLSTATEs for a setting that the server does not know, does not permit or does not support.
_REFUSALS = ("42704", "42501", "22023", "08P01")
#: asyncpg's SQLSTATE for a connection that the server closes, as transaction_timeout does.
_CLOSED = "08003"
_LOGIN_TIMED_OUT = "25P04"
#: SQLSTATEs with which PostgreSQL itself rejects a login; login event triggers hardly ever raise them.
_OWN = ("08", "0A", "28", "3D", "53", "55000", "57P", "58P01")
#: SQLSTATEs of a function that raises or takes too long; PostgreSQL itself uses neither during a login.
_RAISED = ("P0001", _LOGIN_TIMED_OUT)


@dataclass(slots=True)
class OptionalSettings:
    """The optional settings of one connection attempt: those that the server accepted before."""

    asked: frozenset[str] = _PLAIN
    guessed: bool = False

    @property
    def settings(self) -> dict[str, str]:
        return {name: value for name, value in _OPTIONAL.items() if name in self.asked}

    def met(self, version: int, *, superuser: bool) -> None:
        """The login succeeded: selects the settings of the next attempt. `version`: e.g. 180004."""
        asked = self.asked & _PLAIN
        if version >= _LOGIN_TRIGGERS_VERSION:
            asked |= {_LOGIN_TIMEOUT, *([_EVENT_TRIGGERS] if superuser else [])}
        self.asked = asked

    def guess(self) -> bool:
        """Adds all settings against login event triggers, once; returns whether it did. Rejected ones are removed."""
        guessed, self.guessed = self.guessed, True
        if not guessed:
            self.asked |= {_LOGIN_TIMEOUT, _EVENT_TRIGGERS}
        return not guessed

    def may_retry(self, error: asyncpg.PostgresError) -> bool:
        """Changes the settings after a failed login; returns whether another attempt makes sense."""
        code, text = error.sqlstate or "", str(error)
        refused = {name for name in self.asked if code in _REFUSALS and name in text}
        if refused:
            self.asked -= refused
            self.guessed = True
            return True
        if code == _LOGIN_TIMED_OUT and _LOGIN_TIMEOUT in self.asked:
            return False  # no time is left
        return (code == _CLOSED or not code.startswith(_OWN)) and self.guess()

    def explain(self, error: asyncpg.PostgresError, cause: PgRoleError) -> PgRoleError:
        """`cause`, the error of the login, with remedies if a login event trigger may be the reason."""
        if _LOGIN_TIMEOUT not in self.asked or not _is_of_function(error):
            return cause
        return Transient(
            Reason.SERVER_NOT_READY,
            f"{cause.message}. Either a login event trigger of the database fails or takes longer than "
            f"{LOGIN_SECONDS} s: a superuser can connect with PGOPTIONS='-c event_triggers=off' and run ALTER EVENT "
            f"TRIGGER … DISABLE. Or a session locks a system catalog there, which pg_locks shows in another database",
        )


def _is_of_function(error: asyncpg.PostgresError) -> bool:
    """Whether a function raised it, e.g. of a login event trigger: procedural languages report a context."""
    return error.sqlstate in _RAISED or bool(getattr(error, "context", None))


def check_search_path(found: object) -> None:
    """Raises Transient unless the session has the search_path that it requested. Comes before any other query: with
    another path, that could call functions of tenants. `found`: the answer to SEARCH_PATH.
    """
    if found != _SEARCH_PATH:
        raise Transient(
            Reason.SERVER_NOT_READY,
            "the session does not have the settings that the controller requested, so it does nothing in it: a pooler "
            "in between drops them, or a login event trigger changes search_path. Connect to the server itself",
        )


def check_identity(row: asyncpg.Record) -> None:
    """Raises Transient unless the session acts as the role that logged in. `row`: of sql/inspect/connection.sql."""
    if row["acting"] is not None and row["acting"] == row["session"] == row["authenticated"]:
        return
    remedies = _text(row["remedies"] or b"")
    remedy = (
        f"A setting of the database or the role causes this: {remedies}"
        if remedies
        else "Check for a pooler in between"
    )
    raise Transient(
        Reason.SERVER_NOT_READY,
        f'the session acts as role "{_text(row["acting_name"])}" instead of the role that logged in, so the controller '
        f"does nothing in it. {remedy}",
    )


def _text(value: bytes) -> str:
    return value[:_SHOWN].decode(errors="backslashreplace")
