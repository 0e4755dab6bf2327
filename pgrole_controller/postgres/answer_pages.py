"""Reads answers of any length in pages, whatever a tenant created.

A question has a column `page_key`, which is different on each row, and `page_size`: at least what the row takes of
`framing.VOLUME`. PostgreSQL adds the sizes up in the order of the keys and sends the rows that fit, at least one. What
fits into one page takes one query, as it would without pages. Another question can be answered in the same round trip.
"""

import re
from dataclasses import dataclass
from functools import cache

from pgrole_controller.postgres.connection import Connection
from pgrole_controller.postgres.rows import Row, fetch

#: Maximum size of a page in bytes, if it has several rows. `framing.VOLUME` is more: the longest row also fits.
PAGE_BYTES = 12 << 20
#: In a database with another encoding, a name in UTF-8 takes up to three times as many bytes.
_SAME_SIZE = ("UTF8", "SQL_ASCII")
_RECODED = 3

#: Names of the columns with the key and the size of a row, or expressions of its columns.
_KEY, _SIZE = "page_key", "page_size"

_PARAMETER = re.compile(r"\$(\d+)")


@dataclass(frozen=True, slots=True)
class SingleRow:
    """A question with exactly one row, and its arguments."""

    question: str
    arguments: tuple[object, ...] = ()

    def and_one(self, other: "SingleRow") -> "SingleRow":
        """One row with the columns of both, whose names differ."""
        after = _renumber(other.question, len(self.arguments))
        parts = ("SELECT * FROM (", self.question, ") AS one CROSS JOIN (", after, ") AS other")
        return SingleRow("\n".join(parts), (*self.arguments, *other.arguments))

    def beside(self, question: str, *, parameters: int) -> str:
        """The rows of another question; `parameters`: number of its parameters, which this one's follow. The first row
        has the columns of both; on the others, this one's are NULL. Without rows of the other, its columns are NULL.
        """
        parts = (
            "SELECT * FROM (SELECT 1::bigint AS place, o.* FROM (",
            _renumber(self.question, parameters),
            ") AS o) AS one FULL JOIN (SELECT row_number() OVER () AS place, m.* FROM (",
            question,
            ") AS m) AS many USING (place) ORDER BY place",
        )
        return "\n".join(parts)


def _renumber(question: str, by: int) -> str:
    return _PARAMETER.sub(lambda found: f"${int(found[1]) + by}", question)


async def fetch_pages(
    connection: Connection,
    question: str,
    *arguments: object,
    beside: SingleRow | None = None,
    label: str = "",
    key: str = _KEY,
    size: str = _SIZE,
    seconds: float | None = None,
) -> list[Row]:
    """The rows of a question, as `rows.fetch`. `beside`: another question; the first row has its columns, too, as in
    `SingleRow.beside`. A question can use the parameter after its own: rows have a greater key. Raises PgRoleError.
    """
    paged, most = _paged(question, len(arguments), key, size), PAGE_BYTES // expansion(connection)
    if beside is None:
        page = await fetch(connection, paged, *arguments, -1, most, label=label, seconds=seconds)
    else:
        both = beside.beside(paged, parameters=len(arguments) + 2)
        page = await fetch(connection, both, *arguments, -1, most, *beside.arguments, label=label, seconds=seconds)
    found = page
    while page and len(page) < (page[0].find("page_rows", int) or 0):
        last = max(row.get("page_last", int) for row in page)
        page = await fetch(connection, paged, *arguments, last, most, label=label, seconds=seconds)
        found = found + page
    return found


def expansion(connection: Connection) -> int:
    """How many times as long a name can be in UTF-8 as in this database."""
    return 1 if connection.get_settings().server_encoding in _SAME_SIZE else _RECODED


@cache
def _paged(question: str, parameters: int, key: str, size: str) -> str:
    """Two parameters follow: rows with a greater key; maximum size of a page."""
    parts = (
        "SELECT p.* FROM (",
        "SELECT q.*, (sum(q.page_own) OVER (ORDER BY q.page_last))::bigint AS page_sum, count(*) OVER () AS page_rows",
        "FROM (SELECT r.*,",
        f"({key})::bigint AS page_last, ({size})::bigint AS page_own FROM (",
        question,
        f") AS r WHERE ({key})::bigint > ${parameters + 1}::bigint) AS q) AS p",
        f"WHERE p.page_sum <= ${parameters + 2}::bigint OR p.page_sum = p.page_own ORDER BY p.page_last",
    )
    return "\n".join(parts)
