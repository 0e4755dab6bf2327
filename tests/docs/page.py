"""Parses a documentation page into what its reader copies: blocks of commands, and files that they use.

Instructions for the test are in a comment directly above a fence, invisible to readers::

    <!-- not run: needs Docker -->        why no test runs the block
    <!-- stays: Everything is running --> the command keeps running; continue once it has printed this
    <!-- exits with: 3 -->                the last command of the block ends with this exit code
    <!-- in a new cluster -->             continue in a fresh cluster with a fresh server

A block whose paragraph is a file's name in backquotes and a colon is that file.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: Languages that are run. Any other fence is a file, or only shown.
COMMANDS = frozenset({"sh", "console", "sql"})
SHOWN = frozenset({"", "yaml", "ini", "json", "python", "promql"})

_FENCE = re.compile(
    r"(?P<notes>(?:^ *<!-- [^\n]*? -->\n)*)^(?P<indent> *)```(?P<language>\w*)\n(?P<text>.*?)^ *```$",
    re.MULTILINE | re.DOTALL,
)
_NOTE = re.compile(r"^ *<!-- (not run|stays|exits with|in a new cluster)(?::\s*(.*?))? -->$", re.MULTILINE)
_FILE = re.compile(r"^`([\w./-]+)`:\n+\Z", re.MULTILINE)
_GOES_ON = re.compile(r"\bmake dev\b|\b(?:pgrole-controller (?:dev|run|console)|kubectl pgrole console)\b")
_HERE = re.compile(r"<<-?\s*'?(\w+)'?")


class BadPage(Exception):
    """The page cannot be run as written; the message names page and line."""


@dataclass(frozen=True, slots=True)
class Command:
    """One command, and the answer that the page shows; empty if it shows none. `stays`: text after which to
    continue. `code`: its exit code.
    """

    line: int
    text: str
    answer: str = ""
    stays: str | None = None
    code: int = 0


@dataclass(frozen=True, slots=True)
class Block:
    """`line` is that of its first command. `excuse`: why it is not run. `stays`: texts of the commands that keep
    running. `code`: exit code of the last command.
    """

    page: str
    line: int
    language: str
    text: str
    excuse: str | None = None
    stays: str | None = None
    anew: bool = False
    code: int = 0
    file: str | None = None

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def is_run(self) -> bool:
        return self.language in COMMANDS and self.file is None and self.excuse is None

    def commands(self) -> list[Command]:
        """Raises BadPage for a console block that does not begin with a prompt."""
        if self.language == "console":
            *before, last = _read_console(self)
            return [*before, replace(last, code=self.code)]
        if self.stays is None:
            return [Command(self.line, self.text, code=self.code)]
        lines = enumerate(self.text.splitlines(keepends=True), self.line)
        return [Command(line, text, stays=self.stays if _GOES_ON.search(text) else None) for line, text in lines]


def pages() -> list[Path]:
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def read_page(path: Path) -> list[Block]:
    """Returns every fence of the page in order. Raises BadPage for an unknown language."""
    text = path.read_text(encoding="utf-8")
    page = str(path.relative_to(ROOT))
    blocks = []
    for fence in _FENCE.finditer(text):
        line = text.count("\n", 0, fence.start("text")) + 1
        notes: dict[str, str] = dict(_NOTE.findall(fence["notes"]))
        named = _FILE.search(text, 0, fence.start())
        block = Block(
            page,
            line,
            fence["language"],
            _without_indent(fence["text"], len(fence["indent"])),
            excuse=notes.get("not run"),
            stays=notes.get("stays"),
            anew="in a new cluster" in notes,
            code=_read_code(notes, f"{page}:{line}"),
            file=named[1] if named else None,
        )
        if block.language not in COMMANDS | SHOWN or (block.language == "" and block.text.startswith("$ ")):
            raise BadPage(f"{block.place}: a fence of {block.language!r} is neither run nor known to be only shown")
        blocks.append(block)
    return blocks


def _read_code(notes: dict[str, str], place: str) -> int:
    text = notes.get("exits with", "0")
    if not text.isdecimal():
        raise BadPage(f"{place}: `exits with` names an exit code")
    return int(text)


def _without_indent(text: str, indent: int) -> str:
    return "".join(line[indent:] if line.strip() else line for line in text.splitlines(keepends=True))


def _read_console(block: Block) -> Iterator[Command]:
    lines = block.text.splitlines()
    if not lines or not lines[0].startswith("$ "):
        raise BadPage(f"{block.place}: a console block begins with `$ `")
    at = 0
    while at < len(lines):
        first, typed = at, [lines[at].removeprefix("$ ")]
        at += 1
        end = None
        while at < len(lines) and (end is not None or typed[-1].endswith("\\") or _HERE.search(typed[0])):
            end = end or (found[1] if (found := _HERE.search(typed[0])) else None)
            typed.append(lines[at])
            at += 1
            if typed[-1] == end or (end is None and not typed[-1].endswith("\\")):
                break
        answer = []
        while at < len(lines) and not lines[at].startswith("$ "):
            answer.append(lines[at])
            at += 1
        yield Command(block.line + first, "\n".join(typed) + "\n", "\n".join(answer).strip())
