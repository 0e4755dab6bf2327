"""Tells asyncpg the array types of our queries, which are the same in every PostgreSQL.

asyncpg knows few array types. It asks each server about any other one at its first use in each connection, with a
recursive query over pg_type: 20 ms of CPU, and some MiB of catalog cache that the server keeps as long as the session.
The OIDs of PostgreSQL's own types never change, and one that is not listed here is still asked for.
"""

import logging
from collections.abc import Iterator
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
