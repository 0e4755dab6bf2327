"""Reads entries of ACLs that the rows of objects do not have: those of long ACLs, and what grantees hold on columns.

An answer has at most MOST_ENTRIES entries of one ACL (sql/privileges/objects.sql, defaults.sql). What it lacks looks
as if it had been revoked. So longer ACLs are read in parts, each of some grantees. Many grantees can hold more
together. The grantees of a part hold more only by grants of several grantors: these follow once the first are revoked.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

import anyio.lowlevel

from pgrole_controller.core.privileges.acl import AclEntry, ObservedAcl
from pgrole_controller.postgres.answer_pages import fetch_pages
from pgrole_controller.postgres.connection import Connection
from pgrole_controller.postgres.privileges.acl_rows import LAST_OID, AclGroup, named_objects, numbers, read_entries
from pgrole_controller.postgres.rows import Row

#: The same number is in the queries.
MOST_ENTRIES = 10_000

#: Catalogs of the named objects. What others have is only reported.
_NAMED = ("pg_class", "pg_proc", "pg_namespace", "pg_database")

#: Maximum number of grantees in a part: each can hold every privilege of the object, and the answer lacks none.
_GRANTEES = 1_000

#: Maximum number of entries of the columns of one table, which could be millions. The others are read once these are
#: revoked.
MOST_COLUMN_ENTRIES = 100_000

#: Entries on the columns of one table, and the columns' versions by name.
ColumnEntries: TypeAlias = tuple[list[AclEntry], dict[str, int]]


async def read_long_acls(
    connection: Connection, question: str, groups: Sequence[AclGroup], grantees: Collection[int]
) -> Mapping[int, tuple[AclEntry, ...]]:
    """Returns all entries of the groups whose rows lack some, by the place of the group. `question`: objects.sql of
    named objects.
    """
    found: dict[int, tuple[AclEntry, ...]] = {}
    for place, group in enumerate(groups):
        if len(grantees) > _GRANTEES and group.oids and group.catalog in _NAMED and _is_cut(group.row):
            entries: list[AclEntry] = []
            for some in _divide(grantees):
                arguments = named_objects(some, group.oids[:1])
                for row in await fetch_pages(connection, question, *arguments, label="read_privileges"):
                    # An object of another catalog can have the same oid.
                    same = row.get("catalog", int) == group.row.get("catalog", int)
                    entries += read_entries(row) if same else ()
            if entries:  # else the object was dropped meanwhile
                found[place] = tuple(entries)
    return found


async def read_long_defaults(
    connection: Connection, question: str, rows: Sequence[Row], grantees: Collection[int], schemas: object
) -> Sequence[Row]:
    """Rows of defaults.sql with all entries: several about the same default privileges if they have too many.
    `schemas`: the question's other argument.
    """
    if len(grantees) <= _GRANTEES or not any(map(_is_cut, rows)):
        return rows
    found: list[Row] = []
    for some in _divide(grantees):
        found += await fetch_pages(connection, question, some, schemas, label="read_defaults")
    return found


def _divide(grantees: Collection[int]) -> Iterator[list[int]]:
    every = list(grantees)
    return (every[start : start + _GRANTEES] for start in range(0, len(every), _GRANTEES))


def _is_cut(row: Row) -> bool:
    return len(row.some("grantees", int)) >= MOST_ENTRIES


async def read_column_entries(
    connection: Connection,
    question: str,
    grantees: Collection[int],
    *,
    tables: Sequence[int] | None = None,
    after: int = 0,
    end: int = LAST_OID,
) -> dict[int, ColumnEntries]:
    """Entries of the grantees on columns, by oid of the table. `question`: sql/privileges/columns.sql. `tables` None:
    all with an oid above `after`, up to `end`.
    """
    found: dict[int, ColumnEntries] = {}
    for row in await fetch_pages(
        connection, question, list(grantees), tables, after, end, label="read_column_privileges"
    ):
        names, versions = row.text("columns").split("\0"), numbers(row, "versions")
        if len(names) != len(versions):
            raise row.wrong("columns")
        entries, written = found.setdefault(row.get("relation", int), ([], {}))
        written.update(zip(names, versions, strict=True))
        listed = list(read_entries(row))
        for column in names[: max(0, MOST_COLUMN_ENTRIES - len(entries)) // max(1, len(listed))]:
            entries += [
                AclEntry(one.grantee, one.grantor, one.grantor_name, one.privilege, one.grantable, column)
                for one in listed
            ]
        await anyio.lowlevel.checkpoint()
    return found


def with_column_entries(one: ObservedAcl, columns: Mapping[int, ColumnEntries]) -> ObservedAcl:
    """The object with the entries on its columns."""
    entries, written = columns.get(one.object.id.oid, ((), {}))
    if not entries or one.object.id.catalog != "pg_class":
        return one
    return replace(one, entries=(*one.entries, *entries), column_xmins=written)
