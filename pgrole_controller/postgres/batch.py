"""One question for many: where it cannot be answered for all at once, it is asked for each alone.

What fails for one of them, on the server or when the answer is read, is that one's error, and costs the others one more
round trip each. Where it fails for all of them, it is the server that fails.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import anyio
import anyio.lowlevel

from pgrole_controller.core.errors import PgRoleError, Reason, Transient
from pgrole_controller.postgres.connection import Connection
from pgrole_controller.postgres.privilege import is_lacking

Asked = TypeVar("Asked")
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
    ask: Callable[[Sequence[Asked]], Awaitable[Sequence[Answer | PgRoleError]]],
    asked: Sequence[Asked],
) -> list[Answer | PgRoleError]:
    """The answers, in order. `ask` is called with all, and then with each that has none yet.

    Raises PgRoleError when the connection has ended, or when there is an answer for none and the server is to blame.
    """
    if not asked:
        return []
    failure: PgRoleError | None = None
    try:
        answers = list(await ask(asked))
    except PgRoleError as error:
        if connection.is_closed() or (len(asked) == 1 and _is_servers(error)):
            raise
        if len(asked) == 1:
            return [error]
        answers, failure = [error] * len(asked), error
    ends = anyio.current_time() + ALONE_SECONDS
    for place, one in enumerate(asked):
        if failure is None and not isinstance(answers[place], Deferred):
            continue
        await anyio.lowlevel.checkpoint()
        if anyio.current_time() < ends:
            answers[place] = await _query_alone(connection, ask, one)
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
    ask: Callable[[Sequence[Asked]], Awaitable[Sequence[Answer | PgRoleError]]],
    one: Asked,
) -> Answer | PgRoleError:
    try:
        (answer,) = await ask([one])
    except PgRoleError as error:
        if connection.is_closed():
            raise
        return error
    return answer
