"""Completion: scripts for bash, zsh and fish, and answers to these scripts and to kubectl.

Answers come from the parser alone, without a cluster or a server, so that Tab answers at once.
"""

import argparse
import os
import shlex
import sys
from collections.abc import Iterable, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

from argcomplete.completers import SuppressCompleter
from argcomplete.finders import CompletionFinder
from argcomplete.shell_integration import shellcode

from pgrole_controller.ending import DONE
from pgrole_controller.program import CONTROLLER, PLUGIN_COMPLETER, PLUGIN_EXECUTABLE

#: The first argument by which kubectl's completer asks for completions, as programs made with cobra have it.
ASK = "__complete"

_FOR_KUBECTL = f"""#!/bin/sh
# Completion of `kubectl pgrole`. Save as {PLUGIN_COMPLETER}, executable, in a folder of the PATH.
exec {PLUGIN_EXECUTABLE} {ASK} "$@"
"""
_NO_SPACE, _NO_FILES = 2, 4  # cobra's ShellCompDirective
_SEPARATOR = "\n"


def print_script(shell: str, *, plugin: bool) -> int:
    """Prints the script that a shell reads at its start, or kubectl's completer. Returns the exit code."""
    executable = PLUGIN_EXECUTABLE if plugin else CONTROLLER
    if shell == "kubectl":
        sys.stdout.write(_FOR_KUBECTL)
    else:
        # Files are completed here, where a file is an argument; readline's own would complete them everywhere.
        sys.stdout.write(shellcode([executable], shell=shell, complete_arguments=["-o", "nospace"]))
    return DONE


def answer_shell(parser: argparse.ArgumentParser) -> None:
    """Answers a shell's script, as argcomplete defines it, and ends the process."""
    CompletionFinder()(parser, always_complete_options=False, default_completer=_Paths())


def answer_kubectl(parser: argparse.ArgumentParser, words: Sequence[str]) -> int:
    """Prints completions of the last word, one on a line with its description, and cobra's directive.

    `words` follow `kubectl pgrole`; the last one is empty, or the part that is typed. Returns the exit code.
    """
    found = _complete(parser, words)
    sys.stdout.writelines(f"{value}\t{text}\n" if text else f"{value}\n" for value, text in found)
    without_space = any(value.endswith(("/", "=")) for value, _ in found)
    sys.stdout.write(f":{_NO_FILES | _NO_SPACE if without_space else _NO_FILES}\n")
    return DONE


def _complete(parser: argparse.ArgumentParser, words: Sequence[str]) -> list[tuple[str, str]]:
    *before, last = words or [""]
    line = " ".join([PLUGIN_EXECUTABLE, *map(shlex.quote, before), _escape(last)])
    asked = {
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_SHELL": "fish",
        "_ARGCOMPLETE_IFS": _SEPARATOR,
        "_ARGCOMPLETE_DFS": "\t",
        "_ARGCOMPLETE_SUPPRESS_SPACE": "1",
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
        "COMP_TYPE": "",
    }
    answer = StringIO()
    os.environ.update(asked)
    try:
        _Unquoted()(
            parser,
            always_complete_options=False,
            output_stream=answer,
            exit_method=_go_on,
            append_space=False,
            default_completer=_Paths(),
        )
    finally:
        for name in asked:
            del os.environ[name]
    pairs = (line.partition("\t") for line in answer.getvalue().split(_SEPARATOR) if line)
    return [(value, " ".join(text.split())) for value, _, text in pairs]


def _go_on(code: int) -> None:
    """Replaces the exit of the process: only the answer matters."""


def _escape(word: str) -> str:
    return "".join(sign if sign.isalnum() or sign in "-_./=:@%+," else f"\\{sign}" for sign in word)


class _Unquoted(CompletionFinder):
    """Leaves completions unquoted, since kubectl's own script quotes them."""

    def quote_completions(
        self, completions: list[str], cword_prequote: str, last_wordbreak_pos: int | None
    ) -> list[str]:
        del cword_prequote, last_wordbreak_pos
        return completions


class _Paths(SuppressCompleter):
    """Completes files and folders where an argument is one; only a server knows other values."""

    def suppress(self) -> bool:
        return False

    def __call__(self, prefix: str, action: argparse.Action, **others: Any) -> Iterable[str]:  # noqa: ANN401
        del others
        if action.metavar not in ("FILE", "DIR"):
            return []
        folder, _, name = prefix.rpartition("/")
        place = Path(folder or ("/" if prefix.startswith("/") else ".")).expanduser()
        start = prefix[: len(prefix) - len(name)]
        try:
            entries = sorted(place.iterdir())
        except OSError:
            return []  # completes nothing, such as in a folder that may not be read
        return [
            f"{start}{entry.name}/" if entry.is_dir() else start + entry.name
            for entry in entries
            if (entry.is_dir() or action.metavar == "FILE")
            and (name.startswith(".") or not entry.name.startswith("."))
            and entry.name.isprintable()
        ]
