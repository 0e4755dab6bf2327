"""What a server answers while a role is emptied. Whatever that is, no more than a PgRoleError comes of it."""

from collections.abc import Iterator
from contextlib import contextmanager

import asyncpg

from pgrole_controller.core.errors import Reason, Transient, Waiting
from pgrole_controller.postgres.connection import Connection, translate_errors


async def ask(connection: Connection, query: str, *arguments: object) -> list[asyncpg.Record]:
    """The rows; what is taken from them is taken inside `reading`."""
    with translate_errors("disown"), reading():
        return list(await connection.fetch(query, *arguments))


@contextmanager
def reading() -> Iterator[None]:
    """An answer that makes no sense is the server's fault: raises Transient."""
    try:
        yield
    except asyncpg.InterfaceError:  # some are ValueErrors as well
        raise
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, AssertionError) as error:
        kind = type(error).__name__
        raise Transient(Reason.SERVER_NOT_READY, f"the controller cannot read the server's answer ({kind})") from error


@contextmanager
def understanding() -> Iterator[None]:
    """Raises Waiting for an error message that is not UTF-8: it may quote a name of another encoding."""
    try:
        yield
    except UnicodeDecodeError as error:
        words = "PostgreSQL's error message is in an encoding that cannot be read: run REASSIGN OWNED there by hand"
        raise Waiting(Reason.DROP_BLOCKED, words) from error


def number(value: object) -> int | None:
    return None if value is None else int(str(value))


def octets(value: object) -> bytes:
    if not isinstance(value, bytes):  # of a number, `bytes` would make so many
        raise TypeError(type(value).__name__)
    return value


def show(name: bytes) -> str:
    """A name in whatever encoding; what is not UTF-8 by its bytes."""
    return name.decode(errors="backslashreplace")
