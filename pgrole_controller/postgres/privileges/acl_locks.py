"""Locks of other transactions in one database: on what, who has them, and how long the controller waits for them.

While a transaction waits for a lock, every other repair in the database waits, too. So after the first lock that was
not free, the controller waits for others during PATIENCE_SECONDS at most, and then for none during REST_SECONDS. What
it then leaves out is retried later. Nothing here is read or sent unless a lock was not free.

Every transaction of the controller also reads or writes tables of schema pgrole, which others may have locked.
PostgreSQL's error about a lock that was not free names no table. Its context ends with the function that was called.
"""

import re
from collections.abc import Collection, Hashable, Iterable
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import anyio

from pgrole_controller.core.errors import PgRoleError, Reason, Transient, make_legible
from pgrole_controller.core.privileges.acl import DefaultAclChange, ObjectId
from pgrole_controller.postgres import queries
from pgrole_controller.postgres.connection import Connection, Endpoint, has_raw_names
from pgrole_controller.postgres.database_connection import connect_to
from pgrole_controller.postgres.errors import LOCK_NOT_FREE, is_timed_out, sqlstate_of
from pgrole_controller.postgres.privileges.acl_repair import AclRepair
from pgrole_controller.postgres.rows import Row, fetch

#: Maximum time in seconds that a transaction waits for one lock.
LOCK_SECONDS = 0.2
#: The same for a transaction that only finds out what is locked.
PROBE_SECONDS = 0.01
#: Maximum time in seconds from the first lock that is not free until the controller waits for no further one.
PATIENCE_SECONDS = 0.3
#: Time in seconds after that until the controller waits again.
REST_SECONDS = 2.0
#: Time in seconds during which the controller looks for locks before it changes something.
_REMEMBERED_SECONDS = 10.0

_DEFAULTS = "pg_default_acl"

#: The table of the history, without which drift is corrected all the same.
HISTORY = "drift_history"

#: By function of schema pgrole, the table that it waits for.
_TABLES = {
    "lock_changes": "turn_to_change",
    "check_lead": "leader",
    "store_applied": "applied",
    "store_approval": "applied",
    "record_drifts": HISTORY,
}
_FUNCTION = re.compile(rf"\b(?:{'|'.join(_TABLES)})\b")

#: Time limit in seconds for finding out who has locked what.
_EXPLAINING_SECONDS = 5.0


@dataclass(slots=True)
class LockWaits:
    """The waits for locks in one database. Keys: `key_of`."""

    _began: float = float("-inf")  # the last period of PATIENCE_SECONDS and REST_SECONDS
    _met: float = float("-inf")
    _failed: dict[Hashable, float] = field(default_factory=dict)

    @property
    def met(self) -> bool:
        """Whether locks were not free a moment ago."""
        return anyio.current_time() < self._met + _REMEMBERED_SECONDS

    @property
    def rests(self) -> bool:
        """Whether the controller currently skips locked objects."""
        return PATIENCE_SECONDS <= anyio.current_time() - self._began < PATIENCE_SECONDS + REST_SECONDS

    @property
    def seconds(self) -> float:
        """How long a transaction may wait for one lock now."""
        passed = anyio.current_time() - self._began
        if passed >= PATIENCE_SECONDS + REST_SECONDS:
            return LOCK_SECONDS
        return min(max(PATIENCE_SECONDS - passed, PROBE_SECONDS), LOCK_SECONDS)

    def note(self, keys: Iterable[Hashable] = ()) -> None:
        """A lock was not free; it was that of these, if they are known."""
        now = anyio.current_time()
        if now - self._began >= PATIENCE_SECONDS + REST_SECONDS:
            self._began = now
            self._failed = {key: at for key, at in self._failed.items() if now < at + _REMEMBERED_SECONDS}
        self._met = now
        self._failed.update(dict.fromkeys(keys, now))

    def forget(self, keys: Iterable[Hashable]) -> None:
        """These were changed."""
        for key in keys if self._failed else ():
            self._failed.pop(key, None)

    def failed_at(self, key: Hashable) -> float:
        """When the lock of this one was last not free; -inf: not lately."""
        return self._failed.get(key, float("-inf"))

    def may_wait_for(self, key: Hashable) -> bool:
        return not self.rests and anyio.current_time() >= self.failed_at(key) + REST_SECONDS


_waits: WeakKeyDictionary[Connection, LockWaits] = WeakKeyDictionary()


def waits_of(connection: Connection) -> LockWaits:
    """The same for all calls with one connection."""
    return _waits.setdefault(connection, LockWaits())


async def find_busy(connection: Connection, some: Collection[AclRepair | DefaultAclChange]) -> set[Hashable]:
    """Returns the keys of what other transactions keep from being changed. Raises PgRoleError."""
    objects = [one.observed.object.id.oid for one in some if isinstance(one, AclRepair)]
    creators = list({one.creator for one in some if isinstance(one, DefaultAclChange)})
    rows = await fetch(connection, queries.privileges("busy", raw=has_raw_names(connection)), objects, creators)
    return {_read_key(row) for row in rows}


def _read_key(row: Row) -> Hashable:
    catalog, oid = row.get("catalog", str), row.get("oid", int)
    return (oid, row.text("schema"), row.get("object_type", str)) if catalog == _DEFAULTS else ObjectId(catalog, oid)


def find_locked_table(error: PgRoleError) -> str:
    """Returns the name of the table of schema pgrole whose lock, or that of a row, was not free; empty if the error is
    another one. Tenants choose names in the context, but not in its last line.
    """
    if sqlstate_of(error) != LOCK_NOT_FREE:
        return ""
    lines = str(getattr(error.__cause__, "context", None) or "").splitlines()
    found = _FUNCTION.search(lines[-1]) if lines else None
    return _TABLES[found[0]] if found else ""


async def tell_locked_table(connection: Connection, table: str) -> PgRoleError:
    """Returns the error for a transaction that `find_locked_table` found to wait for this table. Raises PgRoleError."""
    rows = await _read_locks(connection)
    return _tell_locked(
        table, [row for row in rows if row.text("name") == table or row.text("name").startswith(f"{table}_")]
    )


async def explain_session(error: PgRoleError, endpoint: Endpoint, database: str) -> PgRoleError:
    """Returns the error for a session that failed, or did not begin, in this database."""
    if not is_timed_out(error):
        return error
    with anyio.move_on_after(_EXPLAINING_SECONDS):
        try:
            async with connect_to(endpoint, database, "database") as connection:
                rows = [row for row in await _read_locks(connection) if not row.text("name").startswith(HISTORY)]
        except PgRoleError:
            return error
        if rows:
            table = rows[0].text("name")
            return _tell_locked(table, [row for row in rows if row.text("name") == table])
    return error


async def _read_locks(connection: Connection) -> list[Row]:
    return await fetch(connection, queries.privileges("own_locks", raw=has_raw_names(connection)))


def _tell_locked(table: str, rows: list[Row]) -> PgRoleError:
    holders = ", ".join(dict.fromkeys(map(_describe_holder, rows))) or "another transaction"
    what = "records drifts" if table.startswith(HISTORY) else "changes privileges in this database"
    text = f"table pgrole.{table} is locked by {holders}; the controller {what} once it is free"
    return Transient(Reason.PROGRESSING, make_legible(text))


def _describe_holder(row: Row) -> str:
    pid, role = row.find("pid", int), row.find_text("role")
    if pid is None:
        return "a prepared transaction"
    return f'role "{role}" (process {pid})' if role else f"process {pid}"
