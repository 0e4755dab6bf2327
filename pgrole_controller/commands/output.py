"""What commands print: tables and colours on a terminal, plain text in a pipe, NO_COLOR respected (by rich)."""

import io
import json
import logging
import sys
from collections.abc import Callable, Mapping
from typing import TextIO

from rich.console import Console

from pgrole_controller.core.errors import PgRoleError, Reason, Transient, escape_bytes
from pgrole_controller.ending import (
    FAILED,
    MISUSED,
    describe_unexpected,
    escape_unencodable,
    leaves,
    print_error,
    shows_tracebacks,
)
from pgrole_controller.kube.errors import KubeError, WrongKubeconfig, explain_error
from pgrole_controller.program import spell_commands

log = logging.getLogger(__name__)

#: Columns of a terminal for which cells of a wide table are folded; on a narrower one, words would be, too.
NARROWEST = 110

#: Columns of a table in a pipe, so that no row is cut or folded.
_WIDE = 10_000


class OutputConsole(Console):
    """Lets the program decide how it ends when the reader closes the pipe: rich would treat that as an error."""

    def on_broken_pipe(self) -> None:
        raise  # what rich has caught


def make_console(stream: TextIO | None = None, *, least: int = 0) -> Console:
    """Prints to `stream` (default: standard output). No markup and no highlighting: names may contain brackets.

    `least`: on a terminal of fewer columns, tables are printed as in a pipe, and the terminal wraps their rows.
    """
    stream = stream or sys.stdout
    escape_unencodable(stream)
    wraps = stream.isatty()
    width = None if wraps else _WIDE
    console = OutputConsole(file=stream, markup=False, highlight=False, emoji=False, soft_wrap=not wraps, width=width)
    if console.width < least:
        console.width = _WIDE
    return console


def write_document(text: str) -> None:
    """Writes JSON, SQL or a picture to standard output: in UTF-8, whatever the encoding of the terminal."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")
    sys.stdout.write(text)


def render_document(content: object) -> str:
    """JSON in ASCII, valid for every reader: bytes of names in another encoding are shown as in messages."""
    return json.dumps(_make_valid(content), indent=2) + "\n"


def _make_valid(value: object) -> object:
    if isinstance(value, str):
        return escape_bytes(value)
    if isinstance(value, Mapping):
        return {_make_valid(key): _make_valid(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_make_valid(one) for one in value]
    return value


def make_unexpected(error: Exception) -> Transient:
    """Turns an unexpected error into one of a single object or check, so that it hides no other."""
    log.error("unexpected error", exc_info=error)
    return Transient(Reason.INTERNAL_ERROR, describe_unexpected(error))


def spell_error(error: BaseException) -> str:
    """Returns the message, with the commands in it as this user types them."""
    if isinstance(error, KubeError):
        return spell_commands(explain_error(error))
    return spell_commands(error.message if isinstance(error, PgRoleError) else str(error))


def finish(command: Callable[[], int]) -> int:
    """Runs a command and returns its exit code. Prints expected errors; the program's end handles the rest."""
    if not shows_tracebacks() and not logging.getLogger().handlers:
        logging.getLogger().addHandler(logging.NullHandler())  # otherwise Python prints them to standard error
    try:
        return command()
    except* (PgRoleError, KubeError) as group:
        error = next(leaves(group))  # of several errors, the first suffices
        print_error(spell_error(error))
    return MISUSED if isinstance(error, WrongKubeconfig) else FAILED
