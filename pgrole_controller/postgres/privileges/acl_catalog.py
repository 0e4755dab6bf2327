"""Reads the privileges of some roles, the grantees, in the database of a connection.

Every read works on distinct ACLs: PostgreSQL groups the objects by schema, kind, owner and ACL, and parses each ACL
once. So few rows arrive, whatever the number of objects, and those that concern no declaration and no grantee never do.
A row has the names of its objects, though: if these do not fit, the database is read in portions, in one snapshot.

Names are sent as bytes: in a database of encoding SQL_ASCII they need not be UTF-8 (`rows.Row.text`).
"""

import itertools
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager

import anyio.lowlevel

from pgrole_controller.core.parameters import elements
from pgrole_controller.core.privileges.acl import (
    DatabaseObject,
    DefaultAcl,
    ObjectId,
    ObjectKind,
    ObservedAcl,
)
from pgrole_controller.core.privileges.observed_database import ObservedDatabase
from pgrole_controller.core.privileges.privilege_policy import DatabaseFacts
from pgrole_controller.postgres import queries
from pgrole_controller.postgres.answer_pages import SingleRow, expansion, fetch_pages
from pgrole_controller.postgres.connection import Connection, has_raw_names
from pgrole_controller.postgres.errors import translate_errors
from pgrole_controller.postgres.privileges.acl_entries import (
    ColumnEntries,
    read_column_entries,
    read_long_acls,
    read_long_defaults,
    with_column_entries,
)
from pgrole_controller.postgres.privileges.acl_rows import (
    CATALOGS,
    LAST_OID,
    MEMBER,
    SchemaFilter,
    TooManyObjects,
    is_touched,
    named_objects,
    numbers,
    observed_acls,
    pair,
    read_entries,
    read_group,
)
from pgrole_controller.postgres.rows import Row, fetch, fetch_row

_PG_AUTHID = 1260

#: Number of objects parsed without a pause, in which tasks of other servers run.
_AT_ONCE = 2000

#: Maximum number of objects of one answer: at most 72 bytes each if they have few owners and ACLs, which fit in a row
#: (sql/privileges/objects.sql).
PORTION_OBJECTS = 50_000
#: Maximum number of routines and types that one question names, and of tables.
_ARGUMENTS, _TYPES, _TABLES_WITH_COLUMNS = 50_000, 5_000, 10_000
#: Maximum number of different lists of types in an answer (sql/privileges/arguments.sql).
_LISTS = 15_000

#: Maximum number of values of search_path read, and of bytes of each (sql/privileges/facts.sql).
_MOST_PATHS, _LONGEST_PATH = 1000, 2000


async def read_database(
    connection: Connection,
    grantees: Collection[int],
    creators: Collection[str],
    touched: SchemaFilter,
    with_columns: Callable[[DatabaseObject], bool],
) -> ObservedDatabase:
    """Reads everything that is decided about, in one snapshot.

    `creators`: roles that declarations name. `with_columns`: whether declarations name columns of this table.
    """
    async with _one_snapshot(connection):
        schemas = await read_schemas(connection)
        acls, largest_acl = await _read_acls(connection, grantees, schemas, touched)
        facts, roles = await read_facts(connection, creators)
        tables = [one.object.id.oid for one in acls if one.object.id.catalog == "pg_class" and with_columns(one.object)]
        return ObservedDatabase(
            facts=facts,
            acls=acls,
            defaults=await read_defaults(connection, grantees),
            roles=roles,
            schemas=frozenset(schemas.values()),
            columns=await read_columns(connection, tables),
            largest_acl=largest_acl,
        )


async def _read_acls(
    connection: Connection, grantees: Collection[int], schemas: Mapping[int, str], touched: SchemaFilter
) -> tuple[list[ObservedAcl], int]:
    """Reads every object that a declaration may match, or on which a grantee that does not own it holds something;
    returns also the number of entries in the largest ACL.

    These are all objects in touched schemas, every schema, the database, and objects in other schemas with entries of a
    grantee, but not objects of PostgreSQL itself.
    """
    relations = [oid for oid, name in schemas.items() if touched(name, ObjectKind.TABLE)]
    routines = [oid for oid, name in schemas.items() if touched(name, ObjectKind.ROUTINE)]
    query = _query(connection, "objects", "every_object")

    async def read(after: int, end: int) -> tuple[list[ObservedAcl], int]:
        columns = await read_column_entries(connection, _query(connection, "columns"), grantees, after=after, end=end)
        arguments = (list(grantees), relations, routines, list(columns), after, end)
        acls, row = await _read_objects(connection, query, arguments, grantees, columns=columns)
        return acls, row.get("largest_acl", int) if acls else 0

    try:
        return await read(0, LAST_OID)
    except TooManyObjects:
        pass
    size = max(1, PORTION_OBJECTS // expansion(connection) ** 2)  # with the ACL, names of several bytes a character fit
    row = await fetch_row(connection, queries.privileges("portions"), size)
    found: list[ObservedAcl] = []
    largest = 0
    for after, end in itertools.pairwise([0, *row.some("ends", int), LAST_OID]):
        acls, entries = await read(after, end)
        found += acls
        largest = max(largest, entries)
    return found, largest


async def read_recent_acls(
    row: SingleRow,
    connection: Connection,
    grantees: Collection[int],
    xid: int,
    touched: SchemaFilter,
    tables: Collection[int],
    *,
    database: bool,
) -> tuple[list[ObservedAcl], Row]:
    """Reads the objects whose ACL this transaction (64 bits) or a later one may have written; with the answer to
    another question. `database`: also the database itself, whenever it was written.

    `tables`: whose columns are looked at. Pass those with declared columns: a column whose last privilege was revoked
    is found in no catalog but pg_attribute, which is not searched.
    """
    query = _query(connection, "objects", "recent_objects")
    arguments = (list(grantees), None, None, sorted(tables), str(xid), database)
    return await _read_objects(connection, query, arguments, grantees, touched=touched, beside=row)


async def read_named_acls(
    connection: Connection, grantees: Collection[int], oids: Collection[int], tables: Collection[int]
) -> list[ObservedAcl]:
    """Reads objects with these oids, in whichever catalog. Columns can be newer than their tables.

    The duration does not depend on the number of objects in the database. `tables`: of the oids, those that had entries
    on columns. Other tables' columns are not searched if only the table's owner holds something on them, which
    pg_shdepend does not tell.
    """
    query = _query(connection, "objects", "named_objects")
    arguments = named_objects(grantees, oids, tables=tables)
    return (await _read_objects(connection, query, arguments, grantees))[0]


async def read_named_acls_and(
    row: SingleRow,
    connection: Connection,
    grantees: Collection[int],
    oids: Collection[int],
    names: Collection[str],
    xid: int,
    *,
    columns: bool,
) -> tuple[list[ObservedAcl], Row]:
    """As `read_named_acls`, also of objects with these names, in whichever schema; with the answer to another question.
    Of these, only those that this transaction (64 bits) or a later one may have written; with `columns` also those with
    a column that it may have. 0: all. Schemas often have tables of the same names.
    """
    query = _query(connection, "objects", "named_objects")
    searched = [name.encode(errors="surrogateescape")[:63] for name in names]
    valid = [name.decode() for name in searched if _is_utf8(name)]  # no statement that we were sent has another one
    arguments = named_objects(grantees, oids, names=valid, since=str(xid) if xid else None, columns=columns)
    return await _read_objects(connection, query, arguments, grantees, beside=row)


def _is_utf8(name: bytes) -> bool:
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return True


async def read_schemas(connection: Connection) -> dict[int, str]:
    """Reads the names of all schemas by oid, except those of temporary tables."""
    question = _query(connection, "schemas")
    rows = await fetch_pages(connection, question, label="read_schemas", key="oid::bigint", size="250")
    return {row.get("oid", int): row.text("name") for row in rows}


async def read_columns(connection: Connection, tables: Sequence[int]) -> dict[ObjectId, frozenset[str]]:
    """Reads the columns of those of these relations that exist."""
    found: dict[ObjectId, frozenset[str]] = {}
    for some in _portions(tables, _TABLES_WITH_COLUMNS):
        for row in await fetch_pages(connection, _query(connection, "column_names"), some, label="read_columns"):
            found[ObjectId("pg_class", row.get("relation", int))] = frozenset(row.text("columns").split("\0"))
            await anyio.lowlevel.checkpoint()
    return found


async def read_defaults(
    connection: Connection, grantees: Collection[int], schemas: Collection[str] | None = None
) -> list[DefaultAcl]:
    """Reads default privileges for the grantees, except those of a creator for itself. `schemas`: as in DefaultAcl;
    None: all.
    """
    question = _query(connection, "defaults")
    names = None if schemas is None else [name.encode(errors="surrogateescape") for name in schemas]
    rows: Sequence[Row] = await fetch_pages(connection, question, list(grantees), names, label="read_defaults")
    rows = await read_long_defaults(connection, question, rows, grantees, names)
    return [
        DefaultAcl(
            creator=row.get("creator", int),
            creator_name=row.text("creator_name"),
            schema=row.text("schema"),
            object_type=row.get("object_type", str),
            entries=tuple(read_entries(row)),
            xmin=row.get("version", int),
        )
        for row in rows
    ]


async def read_older(
    connection: Connection, asked: Collection[tuple[int, ObjectId]]
) -> frozenset[tuple[int, ObjectId]]:
    """Of these pairs of a role and an object (`pg_authid`: a role), those whose object certainly existed when what the
    role declares was last applied. Schema pgrole must exist. Raises PgRoleError.
    """
    names = {**CATALOGS, _PG_AUTHID: "pg_authid"}
    catalogs = {name: oid for oid, name in names.items()}
    pairs = [(role, catalogs[one.catalog], one.oid) for role, one in asked]
    columns = [[pair[place] for pair in pairs] for place in range(3)]
    rows = await fetch(connection, queries.privileges("older"), *columns, label="read_objects")
    return frozenset(
        (row.get("role", int), ObjectId(names[row.get("catalog", int)], row.get("oid", int))) for row in rows
    )


async def read_facts(connection: Connection, creators: Collection[str]) -> tuple[DatabaseFacts, dict[str, int]]:
    """What policies need to know of the database, and the oids of those of these roles that exist, by name."""
    asked = ask_facts(connection, creators, search_paths=True)
    return facts_of(await fetch_row(connection, asked.question, *asked.arguments, label="read_facts"))


def ask_facts(connection: Connection, creators: Collection[str], *, search_paths: bool) -> SingleRow:
    """The question for `facts_of`. `creators`: roles that declarations name. `search_paths`: whether to read them."""
    question = _query(connection, "facts")
    if connection.get_settings().is_superuser == "on":
        question = question.replace("/* configuration */", f"UNION ALL\n{_query(connection, 'configuration')}")
    return SingleRow(question, (list(creators), search_paths))


def facts_of(row: Row) -> tuple[DatabaseFacts, dict[str, int]]:
    """As `read_facts`."""
    paths = row.texts("search_paths")
    facts = DatabaseFacts(
        database=row.text("database"),
        version=row.get("version", int),
        superusers=frozenset(row.some("superusers", int)),
        own_roles=frozenset(row.some("own_roles", int)),
        search_path_schemas=frozenset(
            (*row.texts("role_schemas"), *(name for path in paths for name in _schemas_of(path)))
        ),
        search_paths_cut=row.get("search_paths_cut", bool)
        or len(paths) >= _MOST_PATHS
        or any(len(path) >= _LONGEST_PATH for path in row.some("search_paths", bytes)),
    )
    return facts, dict(pair(row, row.texts("creator_names"), row.some("creators", int), "creators"))


def _schemas_of(search_path: str) -> Iterable[str]:
    try:
        return elements(search_path, folding=True)
    except ValueError:  # PostgreSQL ignores it with a warning
        return ()


def _portions(oids: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    return (oids[start : start + size] for start in range(0, len(oids), size))


def _query(connection: Connection, name: str, objects: str = "") -> str:
    return queries.privileges(name, objects=objects, raw=has_raw_names(connection))


@asynccontextmanager
async def _one_snapshot(connection: Connection) -> AsyncIterator[None]:
    """Opens a transaction in which all queries see the same state; within a transaction, uses that one."""
    if not connection.is_closed() and connection.is_in_transaction():
        yield
        return
    with translate_errors():
        transaction = connection.transaction(isolation="repeatable_read", readonly=True)
        await transaction.start()
        try:
            yield
        except BaseException:
            if not connection.is_closed():  # else the error says why: that it cannot be rolled back would hide it
                await transaction.rollback()
            raise
        await transaction.commit()


async def _read_objects(
    connection: Connection,
    query: str,
    arguments: Sequence[object],
    grantees: Collection[int],
    *,
    touched: SchemaFilter | None = None,
    columns: Mapping[int, ColumnEntries] | None = None,
    beside: SingleRow | None = None,
) -> tuple[list[ObservedAcl], Row]:
    """`touched`: objects in other schemas are left out unless a grantee holds something there. `columns`: entries to
    add; None: they are read. Returns the objects, and a row with the answer to the question `beside`.
    """
    rows = await fetch_pages(connection, query, *arguments, label="read_privileges", beside=beside)
    groups = [read_group(row) for row in rows if row.find("catalog", int) is not None]
    answer = rows[0] if rows else Row({})
    if touched is not None:
        groups = [group for group in groups if is_touched(group, touched)]
    if not groups:
        return [], answer
    signatures = await _read_arguments(
        connection, [oid for one in groups if one.catalog == "pg_proc" for oid in one.oids]
    )
    unknown = any(one.row.find("extension", bool) is None for one in groups)
    members = await _read_members(connection) if unknown else frozenset[ObjectId]()
    if columns is None:
        tables = [oid for one in groups if one.row.find("with_columns", bool) for oid in one.oids]
        question = _query(connection, "columns")
        columns = await read_column_entries(connection, question, grantees, tables=tables) if tables else {}
    found: list[ObservedAcl] = []
    long = await read_long_acls(connection, _query(connection, "objects", "named_objects"), groups, grantees)
    for place, group in enumerate(groups):
        for one in observed_acls(group, signatures, members, long.get(place)):
            found.append(with_column_entries(one, columns))
            if len(found) % _AT_ONCE == 0:
                await anyio.lowlevel.checkpoint()
    return found, answer


async def _read_arguments(connection: Connection, oids: Sequence[int]) -> dict[int, str]:
    """Arguments of those of these routines that exist. Routines with the same arguments share a text."""
    signatures: dict[int, tuple[int, ...]] = {}
    names: dict[int, str] = {}
    routines, types = list(oids), list[int]()
    while routines or types:
        asked, routines = routines[:_ARGUMENTS], routines[_ARGUMENTS:]
        question = _query(connection, "arguments")
        rows = await fetch(connection, question, asked, types[:_TYPES], label="read_arguments")
        names |= {row.get("type", int): row.text("name") for row in rows if row.find("name", bytes) is not None}
        lists = {numbers(row, "types"): numbers(row, "routines") for row in rows if row.find("name", bytes) is None}
        signatures |= {oid: types_of for types_of, found in lists.items() for oid in found}
        if len(lists) >= _LISTS:
            routines += [oid for oid in asked if oid not in signatures]
        types = sorted({one for types_of in lists for one in types_of}.union(types) - names.keys())
        await anyio.lowlevel.checkpoint()
    texts: dict[tuple[int, ...], str] = {}
    for types_of in signatures.values():
        if types_of not in texts:
            texts[types_of] = ", ".join(names[one] for one in types_of)
            if len(texts) % _AT_ONCE == 0:
                await anyio.lowlevel.checkpoint()
    return {oid: texts[types_of] for oid, types_of in signatures.items()}


async def _read_members(connection: Connection) -> frozenset[ObjectId]:
    found: set[ObjectId] = set()
    for row in await fetch_pages(connection, _query(connection, "extension_members"), label="read_extensions"):
        members = row.get("members", bytes)
        if len(members) % MEMBER.size:
            raise row.wrong("members")
        pairs = [(CATALOGS.get(catalog), oid) for catalog, oid in MEMBER.iter_unpack(members)]
        found.update(ObjectId(catalog, oid) for catalog, oid in pairs if catalog is not None)
        await anyio.lowlevel.checkpoint()
    return frozenset(found)
