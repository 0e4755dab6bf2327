"""Reads what grantees hold on columns, and adds it to their tables."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

import anyio.lowlevel

from pgrole_controller.core.privileges.acl import AclEntry, ObservedAcl
from pgrole_controller.postgres.answer_pages import fetch_pages
from pgrole_controller.postgres.connection import Connection
from pgrole_controller.postgres.privileges.acl_rows import LAST_OID, numbers, read_entries

#: Maximum number of entries of the columns of one table, which could be millions. The others are read once these are
#: revoked.
MOST_ENTRIES = 100_000

#: Entries on the columns of one table, and the columns' versions by name.
ColumnEntries: TypeAlias = tuple[list[AclEntry], dict[str, int]]


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
    for row in await fetch_pages(connection, "read_column_privileges", question, list(grantees), tables, after, end):
        names, versions = row.text("columns").split("\0"), numbers(row, "versions")
        if len(names) != len(versions):
            raise row.wrong("columns")
        entries, written = found.setdefault(row.get("relation", int), ([], {}))
        written.update(zip(names, versions, strict=True))
        listed = list(read_entries(row))
        for column in names[: max(0, MOST_ENTRIES - len(entries)) // max(1, len(listed))]:
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
