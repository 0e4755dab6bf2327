"""The checks of a transaction that changes privileges, as prepared statements, since planning them takes longer than
running them.

A DO block runs each check, and raises an error if its answer is true.
"""

from dataclasses import dataclass
from weakref import WeakSet

from pgrole_controller.core.ddl import literal
from pgrole_controller.postgres import queries
from pgrole_controller.postgres.connection import Connection
from pgrole_controller.postgres.errors import CHANGES_SUSPENDED, FOREIGN_EVENT_TRIGGER, translate_errors

#: SQLSTATE if an object is not as it was read, or not as it should be afterwards. Nothing was changed.
NOT_AS_EXPECTED = "PGR06"

_TABLES = "pgrole_tables_to_lock"


@dataclass(frozen=True, slots=True)
class _Check:
    """`message`: %s stands for the name of the database."""

    name: str
    question: str
    code: str
    message: str

    @property
    def statement(self) -> str:
        return (
            "DO $check$ DECLARE failed boolean; BEGIN "
            f"EXECUTE 'EXECUTE {self.name}' INTO failed; "
            f"IF failed THEN RAISE EXCEPTION USING ERRCODE = '{self.code}', "
            f"MESSAGE = format({literal(self.message)}, current_database()); END IF; END $check$"
        )


_CHECKS = (
    _Check(
        "pgrole_suspended",
        queries.inspect("suspended"),
        CHANGES_SUSPENDED,
        'pgrole.suspend is on for database "%s", or for the controller\'s role',
    ),
    _Check(
        "pgrole_foreign_triggers",
        queries.privileges("foreign_triggers"),
        FOREIGN_EVENT_TRIGGER,
        "an event trigger of a role that is not trusted would run with the controller's privileges: disable it, or "
        "make a superuser the owner of it and of its function",
    ),
    _Check(
        "pgrole_unexpected",
        queries.privileges("unexpected"),
        NOT_AS_EXPECTED,
        "an object changed since it was read",
    ),
    _Check(
        "pgrole_ineffective",
        queries.privileges("ineffective"),
        NOT_AS_EXPECTED,
        "privileges differ from what the controller granted or revoked; it reads them again",
    ),
    _Check(
        "pgrole_unwritten",
        queries.privileges("unwritten"),
        "40001",
        "an object was renamed while the controller changed its privileges",
    ),
)

#: Statements that fail if changes are suspended, if an event trigger of others would run, if the objects of the setting
#: pgrole.expected are not as they were read, if their privileges are not as they should be afterwards, and if the
#: statements changed others than those of the setting pgrole.changed.
CHECK_SUSPENDED, CHECK_TRIGGERS, CHECK_EXPECTED, CHECK_EFFECT, CHECK_WRITTEN = (one.statement for one in _CHECKS)

#: Locks the relations among the objects of the setting pgrole.objects. If that would remove a comment that someone made
#: a moment ago, nothing is changed, and the objects are tried again.
LOCK_TABLES = (
    "DO $lock$ DECLARE names text; others text; removed bigint; BEGIN "
    f"EXECUTE 'EXECUTE {_TABLES}' INTO names, others; "
    "IF names IS NOT NULL THEN EXECUTE 'LOCK TABLE ' || names || ' IN SHARE UPDATE EXCLUSIVE MODE'; END IF; "
    "IF others IS NOT NULL THEN "
    "removed := pg_stat_get_xact_tuples_deleted('pg_description'::regclass); "
    "EXECUTE others; "
    "IF pg_stat_get_xact_tuples_deleted('pg_description'::regclass) <> removed THEN "
    "RAISE EXCEPTION USING ERRCODE = '40001', MESSAGE = 'a comment was made meanwhile'; END IF; END IF; "
    "END $lock$"
)

_prepared: WeakSet[Connection] = WeakSet()


async def prepare_checks(connection: Connection) -> None:
    """Prepares the checks. Call it once per connection, before the first of these statements. Raises PgRoleError."""
    if connection in _prepared:
        return
    statements = [f"PREPARE {one.name} AS {one.question}" for one in _CHECKS]
    statements.append(f"PREPARE {_TABLES} AS {queries.privileges('tables_to_lock')}")
    with translate_errors("prepare"):
        await connection.execute(";\n".join(statements))
    _prepared.add(connection)
