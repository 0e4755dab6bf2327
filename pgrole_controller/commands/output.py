"""What commands print: tables and colours on a terminal, plain text in a pipe, NO_COLOR respected (by rich)."""

import os
import sys
from collections.abc import Callable
from typing import TextIO

from rich.console import Console

from pgrole_controller.commands.arguments import DONE, FAILED
from pgrole_controller.core.errors import PgRoleError
from pgrole_controller.kube.errors import ApiError, BadStream, NotConfigured, Unreachable
from pgrole_controller.program import program_name, spell_commands

#: Columns of a table in a pipe, so that no row is cut or folded.
_WIDE = 10_000


def make_console(stream: TextIO | None = None) -> Console:
    """Prints to `stream` (default: standard output). No markup and no highlighting: names may contain brackets."""
    stream = stream or sys.stdout
    width = None if stream.isatty() else _WIDE
    return Console(file=stream, markup=False, highlight=False, emoji=False, soft_wrap=not stream.isatty(), width=width)


def make_printable(text: str) -> str:
    """Escapes what a name can contain besides printable characters, such as terminal control sequences."""
    if text.isprintable():
        return text
    return "".join(
        sign if sign.isprintable() else sign.encode("unicode_escape", "surrogatepass").decode() for sign in text
    )


def spell_error(error: Exception) -> str:
    """The message, with the commands that it names as this user types them."""
    return spell_commands(error.message if isinstance(error, PgRoleError) else str(error))


def finish(command: Callable[[], int]) -> int:
    """Runs a command and returns its exit code. Prints expected errors; survives a reader that closes the pipe."""
    try:
        code = command()
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except (PgRoleError, ApiError, Unreachable, BadStream, NotConfigured) as error:
        print(f"{program_name()}: {make_printable(spell_error(error))}", file=sys.stderr)  # noqa: T201
        return FAILED
    return code
