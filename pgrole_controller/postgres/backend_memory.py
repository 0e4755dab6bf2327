"""Keeps small what PostgreSQL's backend keeps in memory for a connection: array types and prepared statements.

asyncpg knows few array types. It asks each server about any other one at its first use in each connection, with a
recursive query over pg_type: 20 ms of CPU, and some MiB of catalog cache that the server keeps as long as the session.
The OIDs of PostgreSQL's own types never change, so asyncpg is told those of our queries. One that is not listed here is
still asked for.

asyncpg prepares every query under a name and keeps the last 100: PostgreSQL holds the text, the tree and the plan of
each, together some MiB. Queries that run with each event are worth that. Those that run once, or once a minute, are
planned each time instead: the next query frees an unnamed statement.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

import asyncpg

log = logging.getLogger(__name__)

#: OID of the array type, OID and name of its elements' type: as in pg_type of PostgreSQL 14 to 18.
ARRAY_TYPES: Final = (
    (1000, 16, "bool"),
    (1001, 17, "bytea"),
    (1002, 18, "char"),
    (1003, 19, "name"),
    (1005, 21, "int2"),
    (1007, 23, "int4"),
    (1009, 25, "text"),
    (1011, 28, "xid"),
    (1016, 20, "int8"),
    (1022, 701, "float8"),
    (1028, 26, "oid"),
    (1185, 1184, "timestamptz"),
)

#: What asyncpg raises if it is another version, whose types have another form.
_UNKNOWN_FORM = (
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
)

_forgets: ContextVar[bool] = ContextVar("forgets", default=False)


def register_array_types(connection: "asyncpg.Connection[asyncpg.Record]") -> bool:
    """Returns whether asyncpg accepted them; if not, it asks the server, as it does without."""
    try:
        connection.get_settings().register_data_types(list(_records()))
    except _UNKNOWN_FORM as error:
        log.debug("asyncpg does not accept the array types", extra={"error": type(error).__name__})
        return False
    return True


def _records() -> Iterator[dict[str, object]]:
    """Yields rows as those of asyncpg's own query (asyncpg.introspection)."""
    for oid, element, name in ARRAY_TYPES:
        yield {
            "oid": oid,
            "ns": "pg_catalog",
            "name": f"_{name}",
            "kind": b"b",
            "basetype": None,
            "elemtype": element,
            "elemdelim": ",",
            "range_subtype": None,
            "attrtypoids": None,
            "attrnames": None,
            "basetype_name": None,
            "elemtype_name": name,
            "range_subtype_name": None,
        }


@contextmanager
def forgetting() -> Iterator[None]:
    """Queries of `rows` in this context are not kept. No other task may use the connection meanwhile: it would replace
    the statement.
    """
    token = _forgets.set(True)
    try:
        yield
    finally:
        _forgets.reset(token)


async def fetch_records(
    connection: "asyncpg.Connection[asyncpg.Record]", query: str, *arguments: object, seconds: float | None = None
) -> Sequence[asyncpg.Record]:
    """As `fetch` of asyncpg; whether the query is kept depends on the context."""
    if not _forgets.get():
        return await connection.fetch(query, *arguments, timeout=seconds)
    statement = await connection.prepare(query, name="", timeout=seconds)
    return await statement.fetch(*arguments, timeout=seconds)
