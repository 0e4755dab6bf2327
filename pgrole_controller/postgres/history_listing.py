"""Reads the history of drifts for people, as a login that may not be the controller's.

Schema pgrole may belong to anyone, and the reader may be a superuser. Therefore only the table is read, and only after
the catalogs show that reading it runs no code of others (postgres/trusted_schema.py).
"""

from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from pgrole_controller import resources
from pgrole_controller.core.errors import Reason, Refused
from pgrole_controller.core.listed_drift import ListedDrift, read_details, read_proof
from pgrole_controller.core.privileges.privilege_result import DriftAuthor
from pgrole_controller.postgres.access_catalog import access_query
from pgrole_controller.postgres.connection import Connection
from pgrole_controller.postgres.drift_history import STATEMENT_SHOWN
from pgrole_controller.postgres.rows import Row, fetch, fetch_row
from pgrole_controller.postgres.trusted_schema import explain_unsafe, find_tables

_SECONDS = 20.0


class HistoryState(Enum):
    """Whether the connected database has a history that this login may read."""

    ABSENT = "schema pgrole does not exist there"
    OLDER = "schema pgrole there is older than version 4, the first with a history"
    FORBIDDEN = "this login may not read it"
    READABLE = "readable"


@dataclass(frozen=True, slots=True)
class HistoryPlace:
    """The connected database. `home`: it has the history of roles, and copies of the other databases' rows."""

    database: str
    login: str
    state: HistoryState
    home: bool


async def find_history(connection: Connection) -> HistoryPlace:
    """`connection`: in a transaction whose first statement this is. Raises PgRoleError, in particular Refused if
    reading the table could run code of its owner.
    """
    history, claims = await find_tables(connection, "drift_history", "claim")
    row = await fetch_row(connection, access_query(connection, "login"), seconds=_SECONDS)
    database, login = row.text("database"), row.text("login")
    if history.unsafe:
        raise Refused(Reason.SERVER_NOT_READY, explain_unsafe("drift_history", database, login))
    if history.readable:
        state = HistoryState.READABLE
    elif history.exists:
        state = HistoryState.FORBIDDEN
    else:
        state = HistoryState.OLDER if history.present else HistoryState.ABSENT
    return HistoryPlace(database, login, state, claims.exists)


async def list_drifts(connection: Connection, since: datetime, role: str | None, most: int) -> list[ListedDrift]:
    """The latest drifts, at most `most`, the latest first. Call find_history first, in the same transaction. Raises
    PgRoleError.
    """
    query = resources.text("sql", "diagnosis", "history.sql")
    rows = await fetch(connection, query, since, role, most, seconds=_SECONDS)
    return [_drift(row) for row in rows]


def _drift(row: Row) -> ListedDrift:
    values, words = read_details(row.find_text("details"))
    of_role = row.get("kind", str) == "role"
    return ListedDrift(
        role=row.text("role"),
        at=row.get("at", datetime),
        last_at=row.get("last_at", datetime),
        fields=row.texts("fields") if of_role else ("privileges",),
        corrected=row.get("corrected", bool),
        count=row.get("count", int),
        database="" if of_role else row.text("database"),
        values=values,
        words=words,
        by=DriftAuthor(
            read_proof(row.text("proof")),
            login=row.text("login"),
            role=row.text("acting"),
            application=row.text("application"),
            address=row.text("address"),
            time=row.get("at", datetime),
            statement=row.text("statement")[:STATEMENT_SHOWN],
        ),
        cluster=row.text("cluster"),
    )
