"""Finds who caused the drift of a round in one database, before it is repaired.

Guarantees: what no event explains has a DriftAuthor without a login; one question is asked for all roles.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from pgrole_controller.controller.privileges import large_rounds
from pgrole_controller.controller.privileges.privilege_progress import PrivilegeProgress
from pgrole_controller.core.privileges.acl import ObjectId, ObjectKind, ObservedAcl
from pgrole_controller.core.privileges.attribution import DEFAULTS, GRANTED, REVOKED, ChangedRow
from pgrole_controller.core.privileges.default_acl_decision import label_place
from pgrole_controller.core.privileges.observed_database import ObservedDatabase
from pgrole_controller.core.privileges.privilege_difference import PrivilegeDifference
from pgrole_controller.core.privileges.privilege_result import DriftAuthor, Evidence
from pgrole_controller.core.privileges.recorded_statement import ChangedPrivilege
from pgrole_controller.event_loop import run_aside
from pgrole_controller.postgres.privileges.database_session import DatabaseSession

_LONGEST_STATEMENT = 1000

#: Maximum number of authors found in one round. The rest of the drift has an unknown one.
_MOST_AUTHORS = 10

#: What one author did.
AuthorDifferences = tuple[DriftAuthor, tuple[PrivilegeDifference, ...]]


async def find_authors(
    some: Sequence[tuple[PrivilegeProgress, Sequence[PrivilegeDifference]]],
    observed: ObservedDatabase,
    session: DatabaseSession,
) -> list[list[AuthorDifferences]]:
    """By author, the given differences of each role; the latest author last. Raises PgRoleError."""
    number = sum(len(differences) for _, differences in some)
    rows = await run_aside(number, large_rounds.MANY_COMPARISONS, _find_rows, some, observed)
    # Entries of several grantors for one privilege have the same.
    distinct = dict.fromkeys(row for by_one in rows for row in by_one.values() if row is not None)
    authors = await session.read_authors(list(distinct))
    return [
        await run_aside(
            len(drift), large_rounds.MANY_COMPARISONS, group_by_author, drift, found, authors, one.role.authors
        )
        for (one, drift), found in zip(some, rows, strict=True)
    ]


def _find_rows(
    some: Sequence[tuple[PrivilegeProgress, Sequence[PrivilegeDifference]]], observed: ObservedDatabase
) -> list[dict[PrivilegeDifference, ChangedRow | None]]:
    acls = {one.object.id: one for one in observed.acls}
    defaults = {label_place(one.place): one.xmin for one in observed.defaults or ()}
    return [
        {each: _changed_row(each, acls, defaults, one.grantee.role_name) for each in differences}
        for one, differences in some
    ]


def _changed_row(
    difference: PrivilegeDifference,
    acls: Mapping[ObjectId, ObservedAcl],
    defaults: Mapping[str, int],
    role_name: str,
) -> ChangedRow | None:
    """The row that shows who changed this privilege. None: unknown.

    Of missing default privileges, none shows it: the row is gone, or others changed it since.
    """
    change = ChangedPrivilege(difference.privilege, difference.held, difference.column, difference.option)
    if difference.object is None:
        xmin = defaults.get(difference.default_label, 0) if difference.held else 0
        return ChangedRow(xmin, DEFAULTS, (role_name,), change=change)
    found = acls.get(difference.object.id)
    if found is None or not found.xmin:
        return None
    tags = GRANTED if difference.held else REVOKED
    xmin = found.column_xmins.get(difference.column, found.xmin)
    obj = difference.object
    schema = "" if obj.kind is ObjectKind.SCHEMA else obj.schema
    return ChangedRow(xmin, tags, (obj.name, role_name), obj.id.oid, schema, change)


def sum_up(commands: Sequence[DriftAuthor]) -> DriftAuthor:
    """What one author did, with all its statements and the time of the first."""
    times = [one.time for one in commands if one.time is not None]
    statements = "; ".join(dict.fromkeys(one.statement for one in commands if one.statement))
    return replace(commands[0], time=min(times, default=None), statement=statements[:_LONGEST_STATEMENT])


def _certainty(by: DriftAuthor) -> int:
    return {Evidence.TRANSACTION: 2, Evidence.NONE: 0}.get(by.proof, 1)


def group_by_author(
    drift: Iterable[PrivilegeDifference],
    rows: Mapping[PrivilegeDifference, ChangedRow | None],
    authors: Mapping[ChangedRow, DriftAuthor],
    noted: Mapping[PrivilegeDifference, DriftAuthor],
) -> list[AuthorDifferences]:
    """Who caused which differences, the latest last; beyond a limit of authors, the rest has an unknown one. `noted`:
    known from before, of rows that may no longer tell it.
    """
    by_row: dict[ChangedRow | None, DriftAuthor] = {}
    grouped: dict[DriftAuthor, list[PrivilegeDifference]] = {}
    commands: dict[DriftAuthor, list[DriftAuthor]] = {}
    for difference in drift:
        row = rows[difference]
        who = by_row.get(row)
        if who is None:
            by = authors.get(row, DriftAuthor()) if row is not None else DriftAuthor()
            by = max(by, noted.get(difference, by), key=_certainty)
            who = replace(by, time=None, statement="")
            if who not in grouped and len(grouped) >= _MOST_AUTHORS:
                by = who = DriftAuthor()
            by_row[row] = who
            commands.setdefault(who, []).append(by)
        grouped.setdefault(who, []).append(difference)
    found = [(sum_up(commands[who]), tuple(differences)) for who, differences in grouped.items()]
    return sorted(found, key=lambda one: one[0].time.timestamp() if one[0].time else 0.0)
