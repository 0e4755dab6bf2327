"""How a command ends: its exit code, and one line for an error, whatever its standard files are.

Guarantees: no traceback unless PGROLE_LOG_LEVEL is `debug`; a reader that closes the pipe is no error to report.
"""

import codecs
import io
import os
import sys
from collections.abc import Callable, Iterator
from typing import TextIO

from pgrole_controller.program import program_name, spell_commands

DONE = 0
FAILED = 1
#: As argparse reports it.
MISUSED = 2
#: As a shell reports a program that the signals SIGINT and SIGPIPE ended.
INTERRUPTED = 128 + 2
UNREAD = 128 + 13

#: The name of the error handler for encodings that lack a sign.
ENCODABLE = "pgrole-encodable"
_SIGNS = {"✓": "*", "✗": "x", "→": "->", "…": "...", "─": "-"}

_DEBUG = "PGROLE_LOG_LEVEL"


def end(command: Callable[[], int]) -> int:
    """Runs a command to its end and returns the exit code. Lets SystemExit pass."""
    _fill_standard_files()
    try:
        try:
            return command()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:  # noqa: BLE001 -- whatever happens, one line
        return _end_by(_first_of(error))


def _end_by(error: BaseException) -> int:
    if not isinstance(error, OSError):
        return _fail(error, describe_unexpected(error))
    _discard_output()
    if isinstance(error, BrokenPipeError):
        return UNREAD
    return _fail(error, f"{describe_os_error(error)}{_name_file(error)}")


def escape_unencodable(stream: TextIO) -> None:
    """Has what the terminal's encoding lacks written otherwise, since it would end the program: the program's own signs
    in ASCII, names as escapes.
    """
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors=ENCODABLE)


def _replace(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end]
    return "".join(_SIGNS.get(sign) or sign.encode("ascii", "backslashreplace").decode() for sign in text), error.end


codecs.register_error(ENCODABLE, _replace)


def leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    """The errors of a group and of the groups in it."""
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from leaves(error)
        else:
            yield error


def _first_of(error: BaseException) -> BaseException:
    """The error; of a group, its first."""
    return next(leaves(error)) if isinstance(error, BaseExceptionGroup) else error


def describe_os_error(error: OSError) -> str:
    """The operating system's words, without the address that Python appends to those about a socket."""
    return (error.strerror or type(error).__name__).partition(" (while ")[0]


def describe_unexpected(error: BaseException) -> str:
    """What no one foresaw, and where it was raised. Its own text is left out, since it may quote a secret."""
    error = _first_of(error)
    return f"unexpected error: {type(error).__name__}{_name_place(error)}; with {_DEBUG}=debug, its traceback is shown"


def shows_tracebacks() -> bool:
    """Whether the user asked for them."""
    return os.environ.get(_DEBUG, "").lower() == "debug"


def make_printable(text: str) -> str:
    """Escapes what a name can contain besides printable characters, such as terminal control sequences."""
    if text.isprintable():
        return text
    return "".join(
        sign if sign.isprintable() else sign.encode("unicode_escape", "surrogatepass").decode() for sign in text
    )


def print_error(text: str) -> None:
    """Prints one line to standard error, with the commands in it as this user types them."""
    print(f"{program_name()}: {make_printable(spell_commands(text))}", file=sys.stderr)  # noqa: T201


def _fill_standard_files() -> None:
    """A standard file that is closed would become the next file or connection that is opened."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115, PTH123 -- until the end


def _discard_output() -> None:
    """What is left in the buffers is not written at exit either."""
    for file in (sys.stdout, sys.stderr):
        try:
            file.flush()
        except OSError:
            try:
                os.dup2(os.open(os.devnull, os.O_WRONLY), file.fileno())
            except io.UnsupportedOperation:
                continue  # no file of the operating system


def _fail(error: BaseException, text: str) -> int:
    if shows_tracebacks():
        sys.excepthook(type(error), error, error.__traceback__)
    try:
        print_error(text)
    except OSError:
        _discard_output()
    return FAILED


def _name_file(error: OSError) -> str:
    return f": {str(error.filename)[:200]!a}" if error.filename is not None else ""


def _name_place(error: BaseException) -> str:
    """Where it was raised."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return ""
    return f" in {os.path.basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno}"  # noqa: PTH119
