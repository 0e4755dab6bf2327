"""The program as its user calls it: its name in help, examples and messages, and how help is laid out."""

import argparse
import re
import sys
from pathlib import PurePath
from typing import Any

CONTROLLER = "pgrole-controller"
PLUGIN = "kubectl pgrole"
#: The executable that kubectl runs for `kubectl pgrole`.
PLUGIN_EXECUTABLE = "kubectl-pgrole"
#: The executable that kubectl asks for completions (kubectl 1.26 and later).
PLUGIN_COMPLETER = "kubectl_complete-pgrole"

#: Without `run` and `dev`, which the plugin does not have.
SHARED_COMMANDS = (
    "crds",
    "sql",
    "claims",
    "plan",
    "diff",
    "approve",
    "export",
    "access",
    "history",
    "doctor",
    "console",
    "completion",
)

_CALL = re.compile(rf"(?<![\w/.=-]){CONTROLLER}(?= (?:{'|'.join(SHARED_COMMANDS)}|--version|--help)\b)")


def program_name() -> str:
    """The words that the user types: `pgrole-controller` or `kubectl pgrole`."""
    called = PurePath(sys.argv[0]).name
    return PLUGIN if called.startswith((PLUGIN_EXECUTABLE, PLUGIN_COMPLETER)) else CONTROLLER


def spell_commands(text: str) -> str:
    """Replaces `pgrole-controller COMMAND` by the words that this user types, e.g. in a remedy."""
    return _CALL.sub(program_name(), text)


def show_examples(*commands: str) -> str:
    """The epilog of a command: its examples, each on a line of its own."""
    return "\n".join(
        ["Example:" if len(commands) == 1 else "Examples:", *(f"  {spell_commands(one)}" for one in commands)]
    )


class CommandParser(argparse.ArgumentParser):
    """A parser whose help keeps lines that are indented; its subcommands have the same.

    It knows no abbreviated options: one that is unique today may be ambiguous in the next version.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:  # noqa: ANN401 - those of ArgumentParser
        super().__init__(*arguments, **{"formatter_class": HelpLayout, "allow_abbrev": False, **options})


class HelpLayout(argparse.HelpFormatter):
    """Fills each line of a text on its own, and leaves indented ones, such as examples, as they are."""

    def add_argument(self, action: argparse.Action) -> None:
        """Measures commands with their indentation, which argparse forgets: the longest had two lines."""
        super().add_argument(action)
        for command in self._iter_indented_subactions(action):
            width = len(self._format_action_invocation(command)) + self._current_indent
            self._action_max_length = max(self._action_max_length, width)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        fill = super()._fill_text
        return "\n".join(
            indent + line if line.startswith("  ") or not line else fill(line, width, indent)
            for line in text.splitlines()
        )
