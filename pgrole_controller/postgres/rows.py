"""Rows of a server that is not trusted: a column has the type that its query promises, or an error names the column.

A server may be hostile, or may have been replaced: a column can be missing, NULL or of another type, and a text need
not be UTF-8. In all these cases `Row` raises PgRoleError and nothing else; the error never shows the value.

One query reads many subjects. If it fails, each subject is queried alone: an error on the server or in a row belongs to
its subject only, and costs the others one more round trip each. If every subject fails, the server is at fault.
"""

import json
import struct
from collections.abc import Awaitable, Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import anyio
import anyio.lowlevel
import asyncpg

from pgrole_controller.core.errors import PgRoleError, Reason, Transient
from pgrole_controller.postgres.backend_memory import fetch_records
from pgrole_controller.postgres.connection import Connection
from pgrole_controller.postgres.errors import is_lacking, translate_errors

T = TypeVar("T")

#: asyncpg's exceptions for values that it cannot decode, e.g. text that is not UTF-8 or dates outside Python's range.
UNDECODABLE = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError, struct.error, RecursionError)


class Unreadable(Transient):
    """The server's answer does not have the form that the query promises."""

    def __init__(self, what: str, reason: Reason) -> None:
        super().__init__(reason, f"the controller cannot read PostgreSQL's answer: {what}")


class Row:
    """One row, or a JSON object in one of its columns. `reason`: of the errors it raises."""

    __slots__ = ("_reason", "_record")

    def __init__(self, record: Mapping[str, Any] | asyncpg.Record, reason: Reason = Reason.DATABASE_ERROR) -> None:
        self._record = record
        self._reason = reason

    def __getitem__(self, column: str) -> Any:  # noqa: ANN401 -- any value
        try:
            return self._record[column]
        except (LookupError, TypeError):
            raise self.wrong(column) from None

    def get(self, column: str, kind: type[T]) -> T:
        """The value of a column that is never NULL. `kind` is its exact type: True is not an int."""
        value = self.find(column, kind)
        if value is None:
            raise self.wrong(column)
        return value

    def find(self, column: str, kind: type[T]) -> T | None:
        """The value of a column; None for NULL."""
        value = self[column]
        if value is not None and type(value) is not kind:
            raise self.wrong(column)
        found: T | None = value
        return found

    def some(self, column: str, kind: type[T]) -> tuple[T, ...]:
        """The elements of an array, none of which is NULL; empty for NULL."""
        values = self.find(column, list) or []
        if any(type(value) is not kind for value in values):
            raise self.wrong(column)
        return tuple(values)

    def text(self, column: str) -> str:
        return _decode(self.get(column, bytes))

    def find_text(self, column: str) -> str | None:
        """A text sent as bytes; None for NULL. Bytes that are not UTF-8 become surrogates, which no spec contains."""
        value = self.find(column, bytes)
        return None if value is None else _decode(value)

    def texts(self, column: str) -> tuple[str, ...]:
        return tuple(_decode(value) for value in self.some(column, bytes))

    def objects(self, column: str) -> list["Row"]:
        """The objects of a JSON array sent as bytes; empty for NULL."""
        values = self._json(column)
        if values is not None and type(values) is not list:
            raise self.wrong(column)
        if any(type(value) is not dict for value in values or ()):
            raise self.wrong(column)
        return [Row(value, self._reason) for value in values or ()]

    def object(self, column: str) -> dict[str, Any]:
        """A JSON object sent as bytes; empty for NULL."""
        value = self._json(column)
        if value is not None and type(value) is not dict:
            raise self.wrong(column)
        return value or {}

    def content(self, besides: Container[str]) -> tuple[Any, ...]:
        """The values as they were sent, in the order of the columns, except those of `besides`."""
        return tuple(value for column, value in self._record.items() if column not in besides)

    def wrong(self, column: str) -> PgRoleError:
        """The error for a column with an unexpected value."""
        return Unreadable(f"column {column}", self._reason)

    def _json(self, column: str) -> Any:  # noqa: ANN401 -- any value
        text = self.find_text(column)
        if text is None:
            return None
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            raise self.wrong(column) from None


def _decode(value: bytes) -> str:
    return value.decode(errors="surrogateescape")


async def fetch(
    connection: Connection,
    query: str,
    *arguments: object,
    label: str = "",
    seconds: float | None = None,
    reason: Reason = Reason.DATABASE_ERROR,
) -> list[Row]:
    """The rows of a query. Raises PgRoleError; if asyncpg cannot decode a row, the server is at fault.

    `label`: of the metric of its duration (empty: none). `seconds`: timeout. `reason`: of the errors that reading a
    column raises later.
    """
    with _decoding(label):
        records = await fetch_records(connection, query, *arguments, seconds=seconds)
    return [Row(record, reason) for record in records]


async def fetch_row(
    connection: Connection, query: str, *arguments: object, label: str = "", seconds: float | None = None
) -> Row:
    """The single row of a query about the server. Raises PgRoleError; any error in the row is the server's fault."""
    rows = await fetch(connection, query, *arguments, label=label, seconds=seconds, reason=Reason.SERVER_NOT_READY)
    return first(rows)


def first(rows: Sequence[Row]) -> Row:
    """The first row of a query about the server, which always has one. Raises PgRoleError if it has none."""
    if not rows:
        raise Unreadable("there is no row", Reason.SERVER_NOT_READY)
    return rows[0]


@contextmanager
def _decoding(label: str) -> Iterator[None]:
    """Raises PgRoleError for every error of PostgreSQL, and for rows that asyncpg cannot decode."""
    with translate_errors(label):
        try:
            yield
        except asyncpg.InterfaceError:  # some are ValueErrors as well
            raise
        except UNDECODABLE as error:
            raise Unreadable(type(error).__name__, Reason.SERVER_NOT_READY) from None


Subject = TypeVar("Subject")
Answer = TypeVar("Answer")

#: Time limit in seconds for the queries of single subjects; the remaining subjects are deferred.
ALONE_SECONDS = 3.0


class Deferred(Transient):
    """The subject has too much stored to be read together with others; it must be read alone."""

    def __init__(self) -> None:
        super().__init__(
            Reason.DATABASE_ERROR, "the database stores much about the role; the controller reads it in a later batch"
        )


async def query_each(
    connection: Connection,
    query: Callable[[Sequence[Subject]], Awaitable[Sequence[Answer | PgRoleError]]],
    subjects: Sequence[Subject],
) -> list[Answer | PgRoleError]:
    """The answers for all subjects, in order. `query` is called with all, then with each that has no answer yet.

    Raises PgRoleError if the connection is lost, or if no subject has an answer and the server is at fault.
    """
    if not subjects:
        return []
    failure: PgRoleError | None = None
    try:
        answers = list(await query(subjects))
    except PgRoleError as error:
        if connection.is_closed() or (len(subjects) == 1 and _is_servers(error)):
            raise
        if len(subjects) == 1:
            return [error]
        answers, failure = [error] * len(subjects), error
    deadline = anyio.current_time() + ALONE_SECONDS
    for place, one in enumerate(subjects):
        if failure is None and not isinstance(answers[place], Deferred):
            continue
        await anyio.lowlevel.checkpoint()
        if anyio.current_time() < deadline:
            answers[place] = await _query_alone(connection, query, one)
        else:
            answers[place] = Deferred()
    if failure is not None and _is_servers(failure) and all(isinstance(answer, PgRoleError) for answer in answers):
        raise failure
    return answers


def _is_servers(error: PgRoleError) -> bool:
    """Whether the server is probably at fault, and not one subject."""
    return error.reason is Reason.SERVER_NOT_READY or is_lacking(error)


async def _query_alone(
    connection: Connection,
    query: Callable[[Sequence[Subject]], Awaitable[Sequence[Answer | PgRoleError]]],
    one: Subject,
) -> Answer | PgRoleError:
    try:
        (answer,) = await query([one])
    except PgRoleError as error:
        if connection.is_closed():
            raise
        return error
    return answer
