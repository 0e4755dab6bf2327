"""Rows as a server sends them, read with suspicion: a column is what its query promises, or a typed error names it.

A server may be hostile, or not the one that it was: a column can be missing, NULL or of another type, and a text need
not be UTF-8. Whoever reads a row through this gets a PgRoleError for all of that and nothing else; it names the column
and never shows the value.

One query reads many subjects. If it fails for all at once, each is queried alone: what fails for one of them, on the
server or when its row is read, is that one's error, and costs the others one more round trip each. If it fails for
every subject, the server is at fault.
"""

import json
import struct
from collections.abc import Awaitable, Callable, Container, Mapping, Sequence
from typing import Any, TypeVar

import anyio
import anyio.lowlevel
import asyncpg

from pgrole_controller.core.errors import PgRoleError, Reason, Transient
from pgrole_controller.postgres.connection import Connection
from pgrole_controller.postgres.errors import is_lacking, translate_errors

T = TypeVar("T")

#: What asyncpg raises for a value that it cannot decode: a text that is not UTF-8, a date that Python does not know.
UNDECODABLE = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError, struct.error, RecursionError)


class Unreadable(Transient):
    """What a server sent is not what was asked for."""

    def __init__(self, what: str, reason: Reason) -> None:
        super().__init__(reason, f"the controller cannot read PostgreSQL's answer: {what}")


class Row:
    """One row, or an object in one of its columns; `reason` for the errors."""

    __slots__ = ("_reason", "_record")

    def __init__(self, record: Mapping[str, Any] | asyncpg.Record, reason: Reason = Reason.DATABASE_ERROR) -> None:
        self._record = record
        self._reason = reason

    def __getitem__(self, column: str) -> Any:  # noqa: ANN401 -- whatever it is
        try:
            return self._record[column]
        except (LookupError, TypeError):
            raise self.wrong(column) from None

    def get(self, column: str, kind: type[T]) -> T:
        """The value of a column; it is never NULL. `kind` is its very type: True is no int."""
        value = self.find(column, kind)
        if value is None:
            raise self.wrong(column)
        return value

    def find(self, column: str, kind: type[T]) -> T | None:
        """The value of a column, None where it is NULL."""
        value = self[column]
        if value is not None and type(value) is not kind:
            raise self.wrong(column)
        found: T | None = value
        return found

    def some(self, column: str, kind: type[T]) -> tuple[T, ...]:
        """The elements of an array, none of them NULL; none where all of it is."""
        values = self.find(column, list) or []
        if any(type(value) is not kind for value in values):
            raise self.wrong(column)
        return tuple(values)

    def text(self, column: str) -> str:
        return _decode(self.get(column, bytes))

    def find_text(self, column: str) -> str | None:
        """A text that comes as bytes. What is not UTF-8 stays distinct and equals nothing that can be declared."""
        value = self.find(column, bytes)
        return None if value is None else _decode(value)

    def texts(self, column: str) -> tuple[str, ...]:
        return tuple(_decode(value) for value in self.some(column, bytes))

    def objects(self, column: str) -> list["Row"]:
        """The objects of a JSON array that comes as bytes; none where it is NULL."""
        values = self._json(column)
        if values is not None and type(values) is not list:
            raise self.wrong(column)
        if any(type(value) is not dict for value in values or ()):
            raise self.wrong(column)
        return [Row(value, self._reason) for value in values or ()]

    def object(self, column: str) -> dict[str, Any]:
        """A JSON object that comes as bytes; an empty one where it is NULL."""
        value = self._json(column)
        if value is not None and type(value) is not dict:
            raise self.wrong(column)
        return value or {}

    def content(self, besides: Container[str]) -> tuple[Any, ...]:
        """All that it holds, as it was sent, in the order of its columns, besides these."""
        return tuple(value for column, value in self._record.items() if column not in besides)

    def wrong(self, column: str) -> PgRoleError:
        """The error for a column with anything but what it should be."""
        return Unreadable(f"column {column}", self._reason)

    def _json(self, column: str) -> Any:  # noqa: ANN401 -- whatever it is
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
    statement: str,
    query: str,
    *arguments: object,
    seconds: float | None = None,
    reason: Reason = Reason.DATABASE_ERROR,
) -> list[Row]:
    """The rows of a question. Raises PgRoleError; a row that cannot even be decoded is the server's fault.

    `reason`: the reason of errors that reading a column raises later.
    """
    with translate_errors(statement):
        try:
            records: Sequence[asyncpg.Record] = await connection.fetch(query, *arguments, timeout=seconds)
        except asyncpg.InterfaceError:
            raise
        except UNDECODABLE as error:
            raise Unreadable(type(error).__name__, Reason.SERVER_NOT_READY) from None
    return [Row(record, reason) for record in records]


async def fetch_row(
    connection: Connection, statement: str, query: str, *arguments: object, seconds: float | None = None
) -> Row:
    """The one row that a question about the server has: what is wrong with it is wrong with the server."""
    with translate_errors(statement):
        try:
            record = await connection.fetchrow(query, *arguments, timeout=seconds)
        except asyncpg.InterfaceError:
            raise
        except UNDECODABLE as error:
            raise Unreadable(type(error).__name__, Reason.SERVER_NOT_READY) from None
    if record is None:
        raise Unreadable("there is no row", Reason.SERVER_NOT_READY)
    return Row(record, Reason.SERVER_NOT_READY)


Subject = TypeVar("Subject")
Answer = TypeVar("Answer")

#: For all that are asked for alone: what does not get its turn is put off.
ALONE_SECONDS = 3.0


class Deferred(Transient):
    """The answer for one is too much to be read with that for others: it is to be asked for alone."""

    def __init__(self) -> None:
        super().__init__(
            Reason.DATABASE_ERROR, "the database stores much about the role; the controller reads it in a later batch"
        )


async def query_each(
    connection: Connection,
    query: Callable[[Sequence[Subject]], Awaitable[Sequence[Answer | PgRoleError]]],
    subjects: Sequence[Subject],
) -> list[Answer | PgRoleError]:
    """The answers, in order. `query` is called with all, and then with each that has none yet.

    Raises PgRoleError when the connection has ended, or when there is an answer for none and the server is to blame.
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
    ends = anyio.current_time() + ALONE_SECONDS
    for place, one in enumerate(subjects):
        if failure is None and not isinstance(answers[place], Deferred):
            continue
        await anyio.lowlevel.checkpoint()
        if anyio.current_time() < ends:
            answers[place] = await _query_alone(connection, query, one)
        else:
            answers[place] = Deferred()
    if failure is not None and _is_servers(failure) and all(isinstance(answer, PgRoleError) for answer in answers):
        raise failure
    return answers


def _is_servers(error: PgRoleError) -> bool:
    """Whether it may well be about all that could be asked for."""
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
