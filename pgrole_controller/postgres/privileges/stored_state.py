"""What one database tells: what was last applied for each role, whether a superuser suspended all changes, and what
time it is by the server's clock.

A partial read asks for it together with something else, in one row. The row omits long values, and in a database with
many roles all values. `read_left_out` reads what it omits, for the few roles that are decided about.

After a declaration's text, its origin, `@SERVER:OID`, tells for which role of which server it was stored. So what a
logical restore brought is not lost where the role has another oid.
"""

import json
import logging
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from pgrole_controller import resources
from pgrole_controller.core.ddl import literal, storable
from pgrole_controller.postgres.answer_pages import SingleRow, fetch_pages
from pgrole_controller.postgres.backend_memory import forgetting
from pgrole_controller.postgres.connection import Connection
from pgrole_controller.postgres.errors import translate_errors
from pgrole_controller.postgres.rows import Row, fetch_row, first
from pgrole_controller.postgres.trusted_schema import trusting

log = logging.getLogger(__name__)

#: Of more roles than these, the row beside something else omits all: to read them takes longer than to ask once more
#: for the few that are decided about.
MOST_BESIDE = 100

#: At the end of the text. Anyone who may write the table may have written another.
_ORIGIN = re.compile(r" @(\d{1,20}):(\d{1,10})$", re.ASCII)


@dataclass(frozen=True, slots=True)
class StoredDeclaration:
    """What was last applied for one role in a database, by `holder` (`Grantee.holder_in`). `last_drift`: as the
    repairing transaction stored it; only with a full read. `made_for`: system identifier and oid of the role that the
    declaration is about; None: not known.
    """

    holder: str
    declaration: str
    drift_count: int
    approve_handled: str = ""
    last_drift: Mapping[str, object] | None = None
    made_for: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class StoredState:
    """`suspended`: a superuser has suspended all changes, here or in the home database. `at`: when that was read,
    by the server's clock. `incomplete`: the row omitted some of what was applied.
    """

    suspended: bool
    at: datetime
    _applied: Mapping[int, StoredDeclaration]
    incomplete: bool = False

    @classmethod
    def of(cls, row: Row, *, stores: bool) -> "StoredState":
        """`row`: of `ask_state`. `stores`: the database stores what was applied. Raises PgRoleError."""
        applied = dict(_read_short(row)) if stores else {}
        incomplete = stores and row.get("left_out", bool)
        return cls(row.get("suspended", bool), row.get("at", datetime), applied, incomplete)

    def find(self, role: int) -> StoredDeclaration | None:
        """Returns what was last applied for the role with this oid; None if nothing was, or if the row omitted it."""
        return self._applied.get(role)


def ask_state(roles: Sequence[int], home: str, *, stores: bool) -> SingleRow:
    """The question for `StoredState.of`. `home`: name of the home database."""
    suspended = _ask_suspended(home)
    asked = list(roles) if len(roles) <= MOST_BESIDE else None
    return SingleRow(_query("short_applied"), (asked,)).and_one(suspended) if stores else suspended


def build_applied_statement(
    server: int, role: int, name: str, holder: str, declaration: str, drift: Mapping[str, object] | None
) -> str:
    """Stores what was applied for a role, and counts `drift` if it was corrected with it: at most 2 KiB of JSON.

    `server`: its system identifier. `name`: of the role, which need not be UTF-8. The texts of `drift` are legible, and
    sent as they are: a database of encoding SQL_ASCII accepts no escaped character in jsonb.
    """
    counted, text = int(drift is not None), declaration and f"{declaration} @{server}:{role}"
    told = None if drift is None else json.dumps(drift, ensure_ascii=False)
    values = (role, storable(name), holder, text, counted, told)
    return f"SELECT pgrole.store_applied({', '.join(map(literal, values))})"


def build_approval_statement(role: int, holder: str, handled: str) -> str:
    """Stores the handled approval; without what was applied for the role, it stores nothing."""
    return f"SELECT pgrole.store_approval({role}, {literal(holder)}, {literal(handled)})"


def split_origin(text: str) -> tuple[str, tuple[int, int] | None]:
    """Returns the declaration's text, and for which role it was stored, as `made_for`."""
    found = _ORIGIN.search(text)
    return (text, None) if found is None else (text[: found.start()], (int(found[1]), int(found[2])))


async def move_applied(connection: Connection, server: int, *, guarded: bool) -> None:
    """Moves what a logical restore brought to the oids that the roles have here. `server`: as above. `guarded`: as in
    DatabaseSession. Raises PgRoleError.
    """
    with forgetting():
        async with trusting(connection, guarded=guarded):
            row = await fetch_row(connection, _query("foreign_applied"), str(server), label="applied")
            if row.get("foreign", bool):
                with translate_errors("applied"):
                    await connection.execute(_query("move_applied"), str(server))
                log.info("applied state comes from another server: roles are matched by name")


async def read_left_out(connection: Connection, state: StoredState, roles: Collection[int]) -> StoredState:
    """Returns the state with what the row omitted about these roles. Raises PgRoleError."""
    wanted = [role for role in roles if state.find(role) is None] if state.incomplete else []
    if not wanted:
        return state
    rows = await fetch_pages(connection, _query("applied"), wanted, False, label="applied")
    return replace(state, _applied={**state._applied, **dict(_read_applied(rows))})  # noqa: SLF001 -- its own kind


async def read_state(connection: Connection, roles: Sequence[int], home: str, *, stores: bool) -> StoredState:
    """Everything that is stored about these roles, with the last drift of each. `home`: as `ask_state`. Raises
    PgRoleError.
    """
    suspended = _ask_suspended(home)
    if not stores:
        row = await fetch_row(connection, suspended.question, *suspended.arguments, label="applied")
        return StoredState.of(row, stores=False)
    rows = await fetch_pages(connection, _query("applied"), list(roles), True, label="applied", beside=suspended)
    row = first(rows)
    return StoredState(row.get("suspended", bool), row.get("at", datetime), dict(_read_applied(rows)))


def _read_short(row: Row) -> Iterator[tuple[int, StoredDeclaration]]:
    roles = row.some("roles", int)
    columns = (row.texts("holders"), row.texts("digests"), row.some("drift_counts", int), row.texts("handled"))
    if any(len(column) != len(roles) for column in columns):
        raise row.wrong("roles")
    return zip(roles, map(_make_declaration, *columns), strict=True)


def _read_applied(rows: Iterable[Row]) -> Iterator[tuple[int, StoredDeclaration]]:
    for row in rows:
        role = row.find("role", int)
        if role is not None:
            yield (
                role,
                _make_declaration(
                    row.text("holder"),
                    row.text("digest"),
                    row.get("drift_count", int),
                    row.text("handled"),
                    row.object("last_drift") or None,
                ),
            )


def _make_declaration(
    holder: str, text: str, drift_count: int, handled: str, last_drift: Mapping[str, object] | None = None
) -> StoredDeclaration:
    declaration, made_for = split_origin(text)
    return StoredDeclaration(holder, declaration, drift_count, handled, last_drift, made_for)


def _ask_suspended(home: str) -> SingleRow:
    return SingleRow(_query("suspended"), (home,))


def _query(name: str) -> str:
    return resources.text("sql", "events", f"{name}.sql")
