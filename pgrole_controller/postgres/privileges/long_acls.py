"""Reads ACLs with more entries than fit in a row of an answer, in parts, each of some grantees.

An answer has at most MOST_ENTRIES entries of one ACL (sql/privileges/objects.sql, defaults.sql). What it lacks looks
as if it had been revoked. Many grantees can hold more together. The grantees of a part hold more only by grants of
several grantors: these follow once the first are revoked.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence

from pgrole_controller.core.privileges.acl import AclEntry
from pgrole_controller.postgres.answer_pages import fetch_pages
from pgrole_controller.postgres.connection import Connection
from pgrole_controller.postgres.privileges.acl_rows import AclGroup, named_objects, read_entries
from pgrole_controller.postgres.rows import Row

#: The same number is in the queries.
MOST_ENTRIES = 10_000

#: Catalogs of the named objects. What others have is only reported.
_NAMED = ("pg_class", "pg_proc", "pg_namespace", "pg_database")

#: Number of grantees that can hold every privilege of an object in a part.
_GRANTEES = 1_000


async def read_long_acls(
    connection: Connection, question: str, groups: Sequence[AclGroup], grantees: Collection[int]
) -> Mapping[int, tuple[AclEntry, ...]]:
    """All entries of those of these groups that have too many, by place. `question`: objects.sql of named objects."""
    found: dict[int, tuple[AclEntry, ...]] = {}
    for place, group in enumerate(groups):
        if len(grantees) > _GRANTEES and group.oids and group.catalog in _NAMED and _is_cut(group.row):
            entries: list[AclEntry] = []
            for some in _divide(grantees):
                arguments = named_objects(some, group.oids[:1])
                for row in await fetch_pages(connection, "read_privileges", question, *arguments):
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
        found += await fetch_pages(connection, "read_defaults", question, some, schemas)
    return found


def _divide(grantees: Collection[int]) -> Iterator[list[int]]:
    every = list(grantees)
    return (every[start : start + _GRANTEES] for start in range(0, len(every), _GRANTEES))


def _is_cut(row: Row) -> bool:
    return len(row.some("grantees", int)) >= MOST_ENTRIES
