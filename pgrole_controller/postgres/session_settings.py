"""No setting of a role or a database, which others may make, bends a session of ours or decides who we are in it.

What a connection asks for when it is made comes before any such setting; so this names what must hold from its first
moment on. All else is set back by the first question (sql/inspect/connection.sql), which also tells as whom we came in.
"""

from dataclasses import dataclass

import asyncpg

from pgrole_controller.core.errors import PgRoleError, Reason, Transient

#: What every server knows and every role may ask for.
PINNED = {
    "role": "none",
    "search_path": "pg_catalog, pg_temp",
    "client_encoding": "UTF8",
    "client_min_messages": "error",  # a setting that is wrong is told of at each login, whole
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
    # a parallel worker begins with the settings of the role and the database, and ends with them what it works for
    "max_parallel_workers_per_gather": "0",
    "max_parallel_maintenance_workers": "0",
    # a library that is not there would keep us out
    "local_preload_libraries": "",
    # plpgsql comes with its first function, and takes these then
    "plpgsql.extra_errors": "none",
    "plpgsql.extra_warnings": "none",
    # a server notices that we are gone, and lets go of our locks
    "tcp_keepalives_idle": "10",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
}

#: How long what a server does before its first answer may take: login event triggers, from PostgreSQL 17 on.
LOGIN_SECONDS = 4

_CHECK_INTERVAL = "client_connection_check_interval"
_LOGIN_TIMEOUT = "transaction_timeout"
_EVENT_TRIGGERS = "event_triggers"

#: What not every server knows, or not every role may ask for. The check is unknown to some systems.
_OPTIONAL = {_CHECK_INTERVAL: "5s", _LOGIN_TIMEOUT: f"{LOGIN_SECONDS}s", _EVENT_TRIGGERS: "off"}
_PLAIN = frozenset({_CHECK_INTERVAL})
_LOGIN_TRIGGERS_VERSION = 170_000

#: Bytes of a name, or of what resets it.
_SHOWN = 500

#: What a server says of a setting that it does not know, will not let us set, or cannot do.
_REFUSALS = ("42704", "42501", "22023", "08P01")
#: asyncpg's, for a connection that a server ends, as transaction_timeout does.
_CLOSED = "08003"
_LOGIN_TIMED_OUT = "25P04"
#: What PostgreSQL itself says to who is not let in, and login event triggers hardly do.
_OWN = ("08", "0A", "28", "3D", "53", "55000", "57P", "58P01")
#: What a function raises, and the end of one that takes too long; PostgreSQL itself says neither to who logs in.
_RAISED = ("P0001", _LOGIN_TIMED_OUT)


@dataclass(slots=True)
class OptionalSettings:
    """Which of the optional settings one attempt at a connection asks for: what the server was found to take before."""

    asked: frozenset[str] = _PLAIN
    guessed: bool = False

    @property
    def settings(self) -> dict[str, str]:
        return {name: value for name, value in _OPTIONAL.items() if name in self.asked}

    def met(self, version: int, *, superuser: bool) -> None:
        """It let us in: what the next attempt asks for."""
        asked = self.asked & _PLAIN
        if version >= _LOGIN_TRIGGERS_VERSION:
            asked |= {_LOGIN_TIMEOUT, *([_EVENT_TRIGGERS] if superuser else [])}
        self.asked = asked

    def guess(self) -> bool:
        """The most that there may be, once, as a login event trigger may keep us out; what is refused is given up."""
        guessed, self.guessed = self.guessed, True
        if not guessed:
            self.asked |= {_LOGIN_TIMEOUT, _EVENT_TRIGGERS}
        return not guessed

    def may_retry(self, error: asyncpg.PostgresError) -> bool:
        """Whether it may let us in when it is asked for something else."""
        code, text = error.sqlstate or "", str(error)
        refused = {name for name in self.asked if code in _REFUSALS and name in text}
        if refused:
            self.asked -= refused
            self.guessed = True
            return True
        if code == _LOGIN_TIMED_OUT and _LOGIN_TIMEOUT in self.asked:
            return False  # there is no time for more
        return (code == _CLOSED or not code.startswith(_OWN)) and self.guess()

    def explain(self, error: asyncpg.PostgresError, cause: PgRoleError) -> PgRoleError:
        """Why it does not let us in, with what an administrator can do; `cause` is the error as it is told."""
        if _LOGIN_TIMEOUT not in self.asked or not _is_of_function(error):
            return cause
        return Transient(
            Reason.SERVER_NOT_READY,
            f"{cause.message}. If a login event trigger of the database fails or takes longer than {LOGIN_SECONDS} s, "
            f"a superuser can connect with PGOPTIONS='-c event_triggers=off' and run ALTER EVENT TRIGGER … DISABLE",
        )


def _is_of_function(error: asyncpg.PostgresError) -> bool:
    """Whether it came up in a function, as that of a login event trigger: procedural languages name it as context."""
    return error.sqlstate in _RAISED or bool(getattr(error, "context", None))


def check_identity(row: asyncpg.Record) -> None:
    """Raises Transient unless we act as the role that logged in; `row` is of sql/inspect/connection.sql."""
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
