"""Makes docs/images/transcript.svg, the session that the README shows: `make transcript`.

Starts `pgrole-controller dev`, runs `COMMANDS` on a terminal, and draws what they print; the picture plays it once, in
the time that the commands took. `--check` starts nothing, and fails if the picture shows other commands;
`test_transcript.py` compares what they print.
"""

import argparse
import codecs
import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from io import StringIO
from pathlib import Path

import anyio
from rich.console import Console
from rich.text import Text

from pgrole_controller.local.display import Display
from tests.deploy.programs import find
from tests.docs.page import ROOT

PICTURE = ROOT / "docs" / "images" / "transcript.svg"
README = ROOT / "README.md"
_COLUMNS = 110
_START_SECONDS = 600.0
_COMMAND_SECONDS = 60.0
_PAUSE_SECONDS = 1.5  # between commands, for the reader
_RUNNING = "Everything is running"
_METADATA = "{http://www.w3.org/2000/svg}metadata"
_FONTS = re.compile(r"\s*@font-face \{.*?\}", re.DOTALL)
_LINE = re.compile(r'(<text )([^>]*clip-path="url\(#[\w-]+-line-(\d+)\)")')
_PLAYS = """
    .shown { animation: show 0s linear both; }
    @keyframes show { from { visibility: hidden; } to { visibility: visible; } }
    @media (prefers-reduced-motion: reduce) { .shown { animation: none; } }
"""


class NotRecorded(Exception):
    """A command did not do what the transcript must show; the message is its output."""


@dataclass(frozen=True, slots=True)
class Typed:
    """A command as shown. `until`: it is repeated until it prints this. `codes`: expected exit codes."""

    text: str
    until: str = ""
    codes: tuple[int, ...] = (0,)


@dataclass(frozen=True, slots=True)
class Printed:
    """What a command printed, with escape sequences for colours, and how long that took in seconds."""

    command: Typed
    text: str
    seconds: float


COMMANDS = (
    Typed("kubectl get pgrole -n shop"),
    Typed('psql -q "$PGROLE_DSN" -c "CREATE TABLE orders (id int)" -c "ALTER ROLE orders_app CREATEDB"'),
    Typed("kubectl pgrole history orders_app", until="corrected"),
    Typed(
        "kubectl get pgrole -n shop orders-app -o yaml | sed 's/Limit: 20/Limit: 50/' | kubectl pgrole plan -f -",
        codes=(3,),
    ),
    Typed("kubectl pgrole access --on public.orders", until="readers"),
    Typed("kubectl pgrole doctor | grep -A 8 SERVER"),
)


def main() -> int:
    parser = argparse.ArgumentParser(description="Makes the README's transcript.")
    parser.add_argument("--check", action="store_true", help="fail if the picture shows other commands")
    if parser.parse_args().check:
        problem = find_problem()
        if problem:
            sys.stderr.write(f"stale: {PICTURE.relative_to(ROOT)}: {problem}; run `make transcript`\n")
        return 1 if problem else 0
    with tempfile.TemporaryDirectory(prefix="pgrole-transcript-") as folder, running(Path(folder)) as environment:
        printed = [type_command(command, environment) for command in COMMANDS]
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(draw(printed), encoding="utf-8")
    return 0


def find_problem() -> str | None:
    """Returns what is wrong with the stored picture, or None."""
    if not PICTURE.exists():
        return "missing"
    shown = [one["command"] for one in read_session(PICTURE.read_text(encoding="utf-8"))]
    if shown != [command.text for command in COMMANDS]:
        return f"it shows {shown}"
    if f"]({PICTURE.relative_to(ROOT)})" not in README.read_text(encoding="utf-8"):
        return "the README does not show it"
    return None


def read_session(picture: str) -> list[dict[str, str]]:
    """Returns the session from the picture's metadata: commands, and the seconds that each took."""
    metadata = ET.fromstring(picture).find(_METADATA)
    session: list[dict[str, str]] = json.loads(metadata.text or "[]") if metadata is not None else []
    return session


@contextmanager
def running(folder: Path) -> Iterator[Mapping[str, str]]:
    """Runs `dev`; yields the environment of a second terminal. Raises NotRecorded."""
    log = folder / "log"
    environment = {name: text for name, text in os.environ.items() if not name.startswith(("PG", "KUBE"))}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "pgrole_controller", "dev"], stdout=output, stderr=output, env=environment
        )
    try:
        end = time.monotonic() + _START_SECONDS
        while _RUNNING not in log.read_text(encoding="utf-8"):
            if process.poll() is not None or time.monotonic() > end:
                raise NotRecorded(log.read_text(encoding="utf-8"))
            time.sleep(0.2)
        said = log.read_text(encoding="utf-8")
        yield {**environment, **_read_guide(said, folder), "TERM": "xterm-256color", "COLUMNS": str(_COLUMNS)}
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)


def _read_guide(said: str, folder: Path) -> dict[str, str]:
    exported = dict(re.findall(r"^ *export (\w+)=(\S+)$", said, flags=re.MULTILINE))
    kubectl = anyio.run(find, Display(sys.stderr)).kubectl
    [psql, *_] = re.findall(r"^ *(\S*psql) ", said, flags=re.MULTILINE)
    # Find it here, before `folder`, which gets the same names, is on the PATH.
    psql = shutil.which(psql) or psql
    own = Path(sys.executable).with_name("kubectl-pgrole")
    for name, program in (("kubectl", kubectl), ("psql", psql), ("kubectl-pgrole", own)):
        (folder / name).write_text(f'#!/bin/sh\nexec "{program}" "$@"\n', encoding="utf-8")
        (folder / name).chmod(0o755)
    return {**exported, "PATH": f"{folder}:{os.environ['PATH']}"}


def type_command(command: Typed, environment: Mapping[str, str]) -> Printed:
    """Raises NotRecorded if the command ends with another exit code, or does not print the expected text."""
    end = time.monotonic() + _COMMAND_SECONDS
    while True:
        started = time.monotonic()
        code, text = _run_on_terminal(command.text, environment)
        if code in command.codes and command.until in text:
            return Printed(command, text, time.monotonic() - started)
        if not command.until or started > end:
            raise NotRecorded(f"{command.text}\nended with {code}:\n{text}")


def _run_on_terminal(text: str, environment: Mapping[str, str]) -> tuple[int, str]:
    """Returns exit code and output, as a terminal of `_COLUMNS` gets it."""
    ours, theirs = pty.openpty()
    wide = f"stty cols {_COLUMNS} rows 50; {text}"
    process = subprocess.Popen(
        ["bash", "-c", wide], stdin=theirs, stdout=theirs, stderr=theirs, env=environment, cwd=ROOT
    )
    os.close(theirs)
    said, decoder = "", codecs.getincrementaldecoder("utf-8")("replace")
    try:
        while True:
            if not select.select([ours], [], [], _COMMAND_SECONDS)[0]:
                process.kill()
                raise NotRecorded(f"{text}\nprinted nothing for {_COMMAND_SECONDS:.0f} s, after:\n{said}")
            said += decoder.decode(os.read(ours, 1 << 16))
    except OSError:
        pass  # EIO: all programs have closed the terminal
    finally:
        os.close(ours)
        code = process.wait()
    return code, said.replace("\r\n", "\n")


def draw(session: Sequence[Printed]) -> str:
    """Returns the picture: an SVG that shows each line when it was printed, and all of them at the end."""
    console = Console(record=True, width=_COLUMNS, file=StringIO(), markup=False, highlight=False, emoji=False)
    appears: list[float] = []
    now = 0.0
    for printed in session:
        said = Text.from_ansi(f"{printed.text.rstrip()}\n" if printed.text.strip() else "")
        lines = console.render_lines(said, pad=False)
        console.print(Text(f"$ {printed.command.text}", style="bold"))
        typed = console.render_lines(Text(f"$ {printed.command.text}"), pad=False)
        appears += [now] * len(typed) + [now + printed.seconds] * len(lines)
        console.print(said)
        now += printed.seconds + _PAUSE_SECONDS
    picture = console.export_svg(title="kubectl pgrole", unique_id="transcript")
    picture = _FONTS.sub("", picture).replace("</style>", f"{_PLAYS}    </style>", 1)
    picture = _LINE.sub(lambda found: _played(found, appears), picture)
    held = [{"command": one.command.text, "seconds": f"{one.seconds:.2f}"} for one in session]
    metadata = f"<metadata>{escape(json.dumps(held))}</metadata>"
    made = re.sub(r"(<svg [^>]*>)", lambda found: found[1] + metadata, picture, count=1)
    return "".join(f"{line.rstrip()}\n" for line in made.splitlines())


def _played(found: re.Match[str], appears: Sequence[float]) -> str:
    at = appears[min(int(found[3]), len(appears) - 1)]
    shown = re.sub(r'class="', 'class="shown ', found[2], count=1)
    return f'{found[1]}style="animation-delay: {at:.2f}s" {shown}'


if __name__ == "__main__":
    sys.exit(main())
