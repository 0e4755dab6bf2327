"""What other sessions' DDL in one database changed, as its event triggers recorded it, and what to read for that.

Guarantees: an event is read once, in whatever order transactions commit. Anyone who may run DDL chooses the texts of
statements and names, so these only suggest where to look first: whatever they do not explain widens the read.
"""

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum

import anyio

from pgrole_controller import resources
from pgrole_controller.core.errors import Reason
from pgrole_controller.core.privileges.acl import ObjectId
from pgrole_controller.core.privileges.attribution import ChangedRow, LastEvents
from pgrole_controller.core.privileges.privilege_result import DriftAuthor, Evidence
from pgrole_controller.event_loop import run_aside
from pgrole_controller.postgres.connection import Connection
from pgrole_controller.postgres.errors import translate_errors
from pgrole_controller.postgres.privileges.acl_attribution import MANY_ROWS, MOST_LAST, find_all, in_time, read_event
from pgrole_controller.postgres.privileges.acl_attribution import MOST_EVENTS as MOST_EXPLAINING
from pgrole_controller.postgres.rows import Row, Unreadable, fetch, fetch_row, first
from pgrole_controller.postgres.trusted_schema import trusting

#: A transaction with this many events has an incomplete list (sql/database).
CUT = 100
#: A text with this many characters is incomplete (sql/database).
MOST_SAID = 1000
#: An answer with this many events is incomplete (sql/events/new.sql).
MOST_EVENTS = 1000
#: Maximum number of events deleted at once (pgrole.prune_events).
PRUNED_AT_ONCE = 10_000

_SECONDS = 5.0
#: The part of a transaction's id that a row has: the lower 32 bits.
_XID = 2**32 - 1
_LONGEST_XID = len(str(2**64 - 1))


class Scope(IntEnum):
    """How much to read, from the least to the most.

    NOTHING. NAMED: objects whose rows are recent, and that an event names. RECENT: every object whose row is recent.
    FULL: everything.
    """

    NOTHING = 0
    NAMED = 1
    RECENT = 2
    FULL = 3


@dataclass(frozen=True, slots=True)
class CommittedCommand:
    """One command. `tag`: of the statement that it is part of. `xid`: of its transaction, 64 bits. `object` None: of
    GRANT and the like. `said`: the text of the statement, if it is a single GRANT or REVOKE. `siblings`: events of the
    same transaction, itself included.
    """

    xid: int
    command: str
    tag: str = ""
    kind: str = ""
    object: ObjectId | None = None
    said: str = ""
    siblings: int = 1


@dataclass(frozen=True, slots=True)
class PrivilegeRead:
    """What to read.

    `names` may belong to objects of any schema. `xid`: only rows that this transaction or a later one wrote (0: none).
    `columns`: these may be rows of columns. `defaults`: also default privileges. `dropped`: kinds of objects that are
    gone, which no read shows. `searches`: for what no event tells; events of a moment ago come first.
    """

    scope: Scope = Scope.NOTHING
    names: frozenset[str] = frozenset()
    objects: frozenset[ObjectId] = frozenset()
    xid: int = 0
    columns: bool = False
    defaults: bool = False
    dropped: frozenset[str] = frozenset()
    searches: bool = False

    @property
    def is_needed(self) -> bool:
        """Whether there is anything to find out."""
        return self.scope is not Scope.NOTHING or bool(self.dropped)

    @property
    def takes_long(self) -> bool:
        """Whether it may read many objects, and no event waits for it."""
        return self.scope is Scope.FULL or (self.scope is Scope.RECENT and self.searches)

    def __or__(self, other: "PrivilegeRead") -> "PrivilegeRead":
        """Returns everything that either reads."""
        return PrivilegeRead(
            max(self.scope, other.scope),
            self.names | other.names,
            self.objects | other.objects,
            min(filter(None, (self.xid, other.xid)), default=0),
            self.columns or other.columns,
            self.defaults or other.defaults,
            self.dropped | other.dropped,
            self.searches or other.searches,
        )


EVERYTHING = PrivilegeRead(Scope.FULL)

_CATALOGS = {1247: "pg_type", 1255: "pg_proc", 1259: "pg_class", 2615: "pg_namespace"}

#: Its events are those of REVOKE, also for default privileges.
_DROP_OWNED = "DROP OWNED"
#: Commands whose effect on names and owners reaches objects that have no event of their own. The name of a type is part
#: of its routines' signatures.
_FAR_REACHING = (
    *("ALTER SCHEMA", "CREATE SCHEMA", "ALTER EXTENSION", "CREATE EXTENSION", "ALTER TYPE", "ALTER DOMAIN"),
    _DROP_OWNED,
)
#: Commands that create objects without an event of their own: the constructors of a range, a view made of a table.
_CREATING_MORE = ("CREATE TYPE", "CREATE RULE")
#: Commands that change ACLs and name no object.
_GRANTING = ("GRANT", "REVOKE")
_DEFAULTS = "ALTER DEFAULT PRIVILEGES"
#: The events for what DROP removes (sql/database).
_DROP = "DROP"
SCHEMA = "schema"
#: Kinds in events of GRANT and REVOKE that cannot be declared, and that only a full read finds.
_ONLY_REPORTED = frozenset({"TYPE", "DOMAIN", "LANGUAGE", "FOREIGN DATA WRAPPER", "FOREIGN SERVER", "LARGE OBJECT"})
#: Kinds of what PostgreSQL lists as dropped that can have privileges; of all columns, the last word.
WITH_PRIVILEGES = frozenset(
    {
        *(SCHEMA, "table", "view", "materialized view", "foreign table", "sequence", "column"),
        *("function", "procedure", "aggregate", "type", "domain", "language", "foreign-data wrapper", "server"),
    }
)

_STATEMENT = re.compile(r"\s*(?:grant|revoke)\b(?P<rest>.*)", re.IGNORECASE | re.DOTALL)
_UNCERTAIN = re.compile(
    r"\ball\s+(?:tables|sequences|functions|procedures|routines)\s+in\s+schema\b|/\*|--|u&|'", re.IGNORECASE
)
_NAME = re.compile(r'"(?P<quoted>(?:[^"]|"")+)"|(?P<plain>[^\W\d][\w$]*)')
_MOST_NAMES = 100


def read_names(said: str) -> frozenset[str] | None:
    """Returns the names that a GRANT or REVOKE may be about, with all its other words; None if they cannot be
    determined.

    A quote in a comment or a string can hide a name. Whether PostgreSQL folds letters outside of ASCII depends on the
    encoding, which the text does not tell.
    """
    found = _STATEMENT.match(said)
    if found is None or not said.isascii() or _UNCERTAIN.search(said):
        return None
    names = set()
    for name in _NAME.finditer(found["rest"]):
        quoted = name["quoted"]
        names.add(name["plain"].lower() if quoted is None else quoted.replace('""', '"'))
        if len(names) > _MOST_NAMES:
            return None
    return frozenset(names)


def choose(events: Iterable[CommittedCommand]) -> PrivilegeRead:
    """Returns what to read after these events."""
    to_read, said = PrivilegeRead(), set[tuple[int, str]]()
    for event in events:
        # An event trigger of others may grant more within a GRANT: its event has the text of the outer statement.
        again = (event.xid, event.said) in said
        said.add((event.xid, event.said))
        to_read |= _choose(replace(event, said="") if again else event)
    return to_read


def _choose(event: CommittedCommand) -> PrivilegeRead:
    command = event.command.upper()
    if event.siblings >= CUT or command.startswith(_FAR_REACHING):
        return PrivilegeRead(Scope.FULL, xid=event.xid)
    if command == _DROP:
        return _choose_after_drop(event)
    if command in _GRANTING:
        if event.kind.upper() in _ONLY_REPORTED:
            return PrivilegeRead(Scope.FULL, xid=event.xid)
        if event.tag.upper() == _DROP_OWNED:
            return PrivilegeRead(Scope.RECENT, xid=event.xid, defaults=True)
        names = read_names(event.said) if event.said else None
        if names is None:
            return PrivilegeRead(Scope.RECENT, xid=event.xid)
        # Only a list in parentheses names columns.
        return PrivilegeRead(Scope.NAMED, names=names, xid=event.xid, columns="(" in event.said)
    if command == _DEFAULTS:
        return PrivilegeRead(Scope.NAMED, xid=event.xid, defaults=True)
    if event.object is None or command in _CREATING_MORE:
        return PrivilegeRead(Scope.RECENT, xid=event.xid)
    return PrivilegeRead(Scope.NAMED, objects=frozenset({event.object}), xid=event.xid)


def _choose_after_drop(event: CommittedCommand) -> PrivilegeRead:
    """A dropped object leaves nothing to revoke, but a declaration that names it now waits for it."""
    if event.tag.upper() in (_DROP_OWNED, "DROP EXTENSION"):
        return PrivilegeRead(Scope.FULL, xid=event.xid)
    kind = "column" if event.kind.endswith(" column") else event.kind
    return PrivilegeRead(dropped=frozenset({kind}) & WITH_PRIVILEGES)


@dataclass(slots=True)
class EventReader:
    """Reads the events of one database on one connection. `guarded`: others can create objects in the database.
    `own_acl`: how to read the privileges on the database itself.
    """

    connection: Connection
    guarded: bool
    own_acl: PrivilegeRead
    snapshot: str = ""
    _database: int | None = None  # the transaction that wrote its row
    _rows: Sequence[Row] = ()
    _query: str = field(default_factory=lambda: resources.text("sql", "events", "new.sql"))

    async def begin(self) -> None:
        """Counts everything committed from now on as new. A full read must follow. Raises PgRoleError."""
        query = resources.text("sql", "events", "snapshot.sql")
        row = await fetch_row(self.connection, query, label="events")
        self.snapshot = row.get("snapshot", str)

    async def read(self, *, gated: bool = False) -> PrivilegeRead:
        """Returns what to read after the events since the last call, and if the database itself changed. `gated`: cheap
        if no transaction ended. Raises PgRoleError.
        """
        async with trusting(self.connection, guarded=self.guarded):
            rows = await fetch(
                self.connection,
                self._query,
                self.snapshot,
                gated,
                label="events",
                seconds=_SECONDS,
                reason=Reason.SERVER_NOT_READY,
            )
        found = [row for row in rows if row.find("id", int) is not None]
        self._rows = found or self._rows
        to_read = choose(map(_read_command, found))
        if to_read.xid:
            # An older transaction that was still running may have overwritten a row since, without an event of its own.
            to_read = replace(to_read, xid=oldest_running(self.snapshot))
        before, self._database = self._database, first(rows).find("database", int)
        if before not in (None, self._database):
            to_read |= self.own_acl
        self.snapshot = first(rows).get("snapshot", str)
        return EVERYTHING | to_read if len(found) >= MOST_EVENTS else to_read

    def forget(self) -> None:
        """A round begins: `find_authors` needs the events of earlier ones no more."""
        self._rows = ()

    async def find_authors(self, rows: Collection[ChangedRow]) -> dict[ChangedRow, DriftAuthor]:
        """Returns who changed these rows, as far as the last events tell that `read` found since `forget`: those of the
        transaction that wrote the row, if they explain the change.

        Leaves out rows that a subtransaction wrote, since events of older transactions may explain them, too, and rows
        that an earlier event explains better. Raises PgRoleError.
        """
        if len(self._rows) >= MOST_EVENTS:
            return {}
        return await run_aside(len(rows), MANY_ROWS, self._find_authors, rows)

    def _find_authors(self, rows: Collection[ChangedRow]) -> dict[ChangedRow, DriftAuthor]:
        wanted = {changed.xmin for changed in rows}
        by_row: dict[int, list[Row]] = {}
        for row in self._rows:
            xmin = row.get("xid", int) & _XID
            if xmin in wanted:
                by_row.setdefault(xmin, []).append(row)
        events = {xmin: [read_event(one) for one in some[-MOST_EXPLAINING:]] for xmin, some in by_row.items()}
        cut = {xmin for xmin, some in by_row.items() if len(some) > MOST_EXPLAINING}
        found = find_all([one for one in rows if one.xmin in events], events, cut)
        said = LastEvents([read_event(row) for row in self._rows if row.get("said", bytes)][-MOST_LAST:])
        return {
            changed: one.author
            for changed in in_time(found)
            if (one := found[changed]).author.proof is Evidence.TRANSACTION
            and (one.shown or not said.find_better(changed, one).login)
        }


def oldest_running(snapshot: str) -> int:
    """Returns the id of the oldest transaction that had not ended when the snapshot was taken, at most that of any
    event since. Raises Unreadable.
    """
    xmin = snapshot.partition(":")[0]
    if not (xmin.isdecimal() and len(xmin) <= _LONGEST_XID):
        raise Unreadable("column snapshot", Reason.SERVER_NOT_READY)
    return int(xmin)


def _read_command(row: Row) -> CommittedCommand:
    said = row.find_text("said") or ""
    catalog, oid = _CATALOGS.get(row.find("class", int) or 0), row.get("object", int)
    return CommittedCommand(
        xid=row.get("xid", int),
        command=row.get("command", str),
        tag=row.get("tag", str),
        kind=row.get("kind", str),
        object=None if catalog is None or not oid else ObjectId(catalog, oid),
        said=said if len(said) < MOST_SAID else "",
        siblings=row.get("count", int),
    )


async def prune_events(connection: Connection, *, guarded: bool) -> int:
    """Deletes events that are older than 7 days, or beyond the newest 100,000; at most PRUNED_AT_ONCE. Returns their
    number.

    `guarded`: others may create objects in the database. Raises PgRoleError.
    """
    with translate_errors("prune"), anyio.fail_after(_SECONDS):
        async with trusting(connection, guarded=guarded):
            pruned: int = await connection.fetchval("SELECT pgrole.prune_events()")
    return pruned
