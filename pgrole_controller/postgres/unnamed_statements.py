"""Queries that PostgreSQL does not keep prepared.

asyncpg prepares every query under a name and keeps the last 100: PostgreSQL holds the text, the tree and the plan of
each, together some MiB. Queries that run with each event are worth that. Those that run once, or once a minute, are
planned each time instead: the next query frees an unnamed statement.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import asyncpg

_forgets: ContextVar[bool] = ContextVar("forgets", default=False)


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


async def fetch_record(
    connection: "asyncpg.Connection[asyncpg.Record]", query: str, *arguments: object, seconds: float | None = None
) -> asyncpg.Record | None:
    """As `fetchrow` of asyncpg; whether the query is kept depends on the context."""
    if not _forgets.get():
        return await connection.fetchrow(query, *arguments, timeout=seconds)
    statement = await connection.prepare(query, name="", timeout=seconds)
    return await statement.fetchrow(*arguments, timeout=seconds)
