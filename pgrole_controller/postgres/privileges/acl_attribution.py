"""Who changed a privilege in this database: reads the DDL events that may have written a row.

What other roles wrote into an event (application name, statement, names in other encodings) is bounded in SQL, sent as
bytes, and decoded here without errors; control characters become spaces.
"""

import logging
import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain, takewhile

import anyio

from pgrole_controller import resources
from pgrole_controller.core.ddl import storable
from pgrole_controller.core.errors import PgRoleError
from pgrole_controller.core.privileges.attribution import (
    COMMANDS,
    ChangedRow,
    DdlEvent,
    FoundAuthor,
    LastEvents,
    RowWriters,
    group_by_row,
)
from pgrole_controller.core.privileges.privilege_result import DriftAuthor, Evidence
from pgrole_controller.event_loop import run_aside
from pgrole_controller.postgres.connection import Connection
from pgrole_controller.postgres.rows import Row, fetch

#: Maximum number of transactions asked about at once and in all, of events for each, of the last events, and of the
#: newest events that are searched for subtransactions.
MOST_ROWS = 100
_MOST_TRANSACTIONS = 1000
MOST_EVENTS = 20
MOST_LAST = 100
MOST_RECENT = 10_000

#: Seconds that one question may take.
ATTRIBUTION_SECONDS = 2.0
#: After a question that failed, seconds until the next one.
UNANSWERED_SECONDS = 60.0

#: Number of rows from which on a thread compares them with events: each takes up to 50 µs.
MANY_ROWS = 500

log = logging.getLogger(__name__)


async def read_authors(connection: Connection, rows: Sequence[ChangedRow]) -> dict[ChangedRow, DriftAuthor]:
    """Who wrote these rows; those that no event explains are left out. At most MOST_ROWS transactions are looked up,
    those of the first rows. Several rows can have one xmin and different commands.

    Of rows that are gone (`xmin` 0), and of those that a transaction wrote that did not make the change, or has no
    events, or whose statements are not known, the last events are looked at. Raises PgRoleError, also if schema pgrole
    has no events here.
    """
    wanted = list(dict.fromkeys(changed.xmin for changed in rows if changed.xmin))[:MOST_ROWS]
    events = await read_events(connection, wanted) if wanted else {}
    known = [changed for changed in dict.fromkeys(rows) if changed.xmin in events]
    cut = {xmin for xmin, some in events.items() if len(some) >= MOST_EVENTS}
    found = await run_aside(len(known), MANY_ROWS, find_all, known, events, cut)
    proven = {changed for changed, one in found.items() if one.author.proof is Evidence.TRANSACTION}
    unproven = [
        changed for changed in dict.fromkeys(rows) if not changed.xmin or (changed.tags and changed not in proven)
    ]
    not_shown = [changed for changed in found if changed in proven and changed.change and not found[changed].shown]
    authors = {changed: one.author for changed, one in found.items()}
    if unproven or not_shown:
        comparing = any(changed.change for changed in (*unproven, *not_shown))
        tags = COMMANDS if comparing else {tag for changed in unproven for tag in changed.tags}
        grantees = {changed.grantee for changed in (*unproven, *not_shown)}
        stored = await _read_stored(connection, sorted(grantees))
        last = LastEvents(await _read_last_events(connection, sorted(tags)), stored)
        asked = {one: found.get(one, None if one.xmin else FoundAuthor()) for one in (*unproven, *not_shown)}
        better = await run_aside(len(asked), MANY_ROWS, _find_better, last, asked)
        # An earlier statement might explain a row better that was not reached, so that has no author.
        authors = {changed: author for changed, author in authors.items() if changed in better or changed not in asked}
        authors |= {changed: author for changed, author in better.items() if author.login}
    return authors


def _find_better(last: LastEvents, asked: Mapping[ChangedRow, FoundAuthor | None]) -> dict[ChangedRow, DriftAuthor]:
    return {changed: last.find_better(changed, asked[changed]) for changed in in_time(asked)}


def in_time(rows: Iterable[ChangedRow]) -> Iterator[ChangedRow]:
    """The comparison of thousands of rows with statements that name nothing must not slow down others' repairs."""
    until = time.monotonic() + ATTRIBUTION_SECONDS
    return takewhile(lambda _: time.monotonic() < until, rows)


def find_all(
    rows: Iterable[ChangedRow], events: Mapping[int, Sequence[DdlEvent]], cut: Collection[int]
) -> dict[ChangedRow, FoundAuthor]:
    """`events`: by xmin of each row. `cut`: xmins that have more events. Leaves out rows for which time is short, and
    those that the controller wrote itself, as if these had no event: the drift is older.
    """
    writers = {xmin: RowWriters(some, cut=xmin in cut) for xmin, some in events.items()}
    found = {one: writers[one.xmin].find_author(one) for one in in_time(rows)}
    return {changed: one for changed, one in found.items() if not one.own}


@dataclass(slots=True)
class PatientAttribution:
    """Asks who changed rows in one database, and after a failure not for a while: it must not delay many repairs."""

    _asks_from: float = 0.0

    async def ask(
        self, connection: Connection, database: str, rows: Sequence[ChangedRow]
    ) -> dict[ChangedRow, DriftAuthor]:
        """As `read_authors`, for the first 1,000 transactions, and as far as the time suffices. Raises PgRoleError if
        the connection is lost.
        """
        began, found = anyio.current_time(), dict[ChangedRow, DriftAuthor]()
        if began < self._asks_from:
            return {}
        try:
            for some in _portions(rows):
                found |= await read_authors(connection, some)
                if anyio.current_time() >= began + ATTRIBUTION_SECONDS:
                    break
        except PgRoleError as error:
            if connection.is_closed():
                raise
            self._asks_from = anyio.current_time() + UNANSWERED_SECONDS
            log.warning("cannot attribute changes of privileges", extra={"database": database, "error": error.message})
        return found


def _portions(rows: Iterable[ChangedRow]) -> Iterator[list[ChangedRow]]:
    """By transaction, MOST_ROWS of them at once."""
    written: dict[int, list[ChangedRow]] = {}
    for changed in rows:
        written.setdefault(changed.xmin, []).append(changed)
    some = list(written.values())[:_MOST_TRANSACTIONS]
    for start in range(0, len(some), MOST_ROWS):
        yield list(chain.from_iterable(some[start : start + MOST_ROWS]))


async def _read_last_events(connection: Connection, tags: Sequence[str]) -> list[DdlEvent]:
    """The last MOST_LAST with these tags that other sessions than the controller's caused."""
    query = resources.text("sql", "attribution", "last_events.sql")
    rows = await fetch(
        connection, query, list(tags), MOST_LAST, MOST_RECENT, label="attribute", seconds=ATTRIBUTION_SECONDS
    )
    return [read_event(row) for row in rows]


async def _read_stored(connection: Connection, roles: Sequence[str]) -> dict[str, int]:
    """Returns, by role name, the transaction in which the controller last stored what it applied for the role."""
    query = resources.text("sql", "attribution", "stored_applied.sql")
    stored = {storable(role).encode(): role for role in roles}  # names in other encodings, too
    rows = await fetch(connection, query, list(stored), label="attribute", seconds=ATTRIBUTION_SECONDS)
    return {stored[row.get("role_name", bytes)]: row.get("xid", int) for row in rows}


async def read_events(connection: Connection, xmins: Sequence[int]) -> dict[int, tuple[DdlEvent, ...]]:
    """The events that may have written the rows with these xmins; only those with at least one. Raises PgRoleError."""
    query = resources.text("sql", "attribution", "events.sql")
    rows = await fetch(
        connection, query, list(xmins), MOST_EVENTS, MOST_RECENT, label="attribute", seconds=ATTRIBUTION_SECONDS
    )
    return group_by_row([(row.get("xmin", int), read_event(row)) for row in rows])


def read_event(row: Row) -> DdlEvent:
    encoding = row.get("encoding", str)
    return DdlEvent(
        id=row.get("id", int),
        xid=row.get("xid", int),
        login=legible(row.get("login", bytes), encoding),
        role=legible(row.get("role", bytes), encoding),
        application=legible(row.get("app", bytes), encoding),
        address=row.get("address", str),
        time=row.get("at", datetime),
        tag=row.get("tag", str),
        exact=row.get("exact", bool),
        distance=row.get("distance", int),
        object=row.get("object", int),
        statement=legible(row.get("said", bytes), encoding),
        own=row.get("own", bool),
    )


#: PostgreSQL's names of encodings that Python knows under others.
_CODECS = {"UTF8": "utf-8", "SQL_ASCII": "utf-8", "EUC_CN": "gb2312", "UHC": "cp949", "JOHAB": "johab"}

#: Characters that end a line, move the cursor, or reverse the direction of writing.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]+")


def legible(value: bytes, encoding: str = "UTF8") -> str:
    """A text of unknown origin, for people: valid Unicode on one line. Bytes that cannot be decoded become `\\xe9`.

    `encoding`: the database's, as PostgreSQL spells it.
    """
    name = _CODECS.get(encoding, encoding)
    if encoding.startswith("WIN"):
        name = "cp" + encoding.removeprefix("WIN")
    try:
        text = value.decode(name, errors="backslashreplace")
    except LookupError:  # unknown to Python
        text = value.decode("ascii", errors="backslashreplace")
    return _CONTROL.sub(" ", text).strip()
