"""A reader's shell: later commands see what earlier ones set, and the first failure ends it."""

import contextlib
import os
import pty
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import anyio

from pgrole_controller.local.process import Process, reached, tied_to_parent

_END_SECONDS = 30.0
_COMMENT = re.compile(r"\s+#.*")
# A terminal on which an answer was typed would become the session's own, and its end would end the session.
_LOOP = """
trap '' HUP
trap 'for one in $(jobs -p); do kill "$one" || true; done; wait' EXIT
exec 9<>"$1"
while IFS=$'\\t' read -r -u 9 file answers; do
  . "$file" >"$file.out" 2>&1 <"$answers"
  : >"$file.done"
done
"""


class Failed(Exception):
    """A command failed, or took too long; the message is its output."""


@dataclass(slots=True)
class PageShell:
    """Created by `shell`."""

    process: Process
    folder: Path
    pipe: int
    _count: int = field(default=0)

    async def run(self, text: str, *, seconds: float, answer: str = "") -> str:
        """Returns the output; types `answer` at the prompt. Raises Failed."""
        self._count += 1
        file = self.folder / f"{self._count}.sh"
        file.write_text(text, encoding="utf-8")
        out, done = file.with_suffix(".sh.out"), file.with_suffix(".sh.done")
        with _terminal(answer) as terminal:
            os.write(self.pipe, f"{file}\t{terminal}\n".encode())
            ended = await reached(partial(self._has_ended, done), seconds, every=0.01)
        said = out.read_text(encoding="utf-8", errors="replace") if out.exists() else ""
        if not done.exists():
            why = "failed" if ended else f"did not end within {seconds:.0f} s"
            raise Failed(f"{why}:\n{said or self.process.log.read_text(encoding='utf-8')}")
        return said

    async def begin(self, text: str, says: str, *, seconds: float) -> str:
        """Starts a command that keeps running; returns its output once that contains `says`. Raises Failed."""
        log = self.folder / f"stays-{self._count}.log"
        await self.run(f"{_COMMENT.sub('', text.rstrip())} >{log} 2>&1 &\n", seconds=seconds)

        async def has_said() -> bool:
            return log.exists() and says in log.read_text(encoding="utf-8", errors="replace")

        if not await reached(has_said, seconds):
            said = log.read_text(encoding="utf-8", errors="replace")
            raise Failed(f"did not say {says!r} within {seconds:.0f} s, but:\n{said}")
        return log.read_text(encoding="utf-8", errors="replace")

    async def end(self) -> None:
        """Ends the running commands and waits for them."""
        if self.process.running:
            os.write(self.pipe, f"{os.devnull}\t{os.devnull}/\n".encode())  # reading from there fails
            await reached(self._is_gone, _END_SECONDS)
        await self.process.kill()

    async def _has_ended(self, done: Path) -> bool:
        return await anyio.Path(done).exists() or not self.process.running

    async def _is_gone(self) -> bool:
        return not self.process.running


@asynccontextmanager
async def shell(folder: Path, place: Path, environment: Mapping[str, str]) -> AsyncIterator[PageShell]:
    """Runs bash at `place`; it stops at the first failure, and ends with everything it started.

    `folder` receives the output.
    """
    commands = folder / "commands"
    os.mkfifo(commands)
    pipe = os.open(commands, os.O_RDWR | os.O_NONBLOCK)
    loop = f"cd {place}\n{_LOOP}"
    command = ["bash", "--noprofile", "--norc", "-euo", "pipefail", "-c", loop, "bash", str(commands)]
    process = Process("bash", tied_to_parent(command), folder / "bash.log", environment)
    await process.start()
    reader = PageShell(process, folder, pipe)
    try:
        yield reader
    finally:
        with anyio.CancelScope(shield=True):
            await reader.end()
        os.close(pipe)


@contextmanager
def _terminal(answer: str) -> Iterator[str]:
    """Yields the path of a terminal on which `answer` was typed; without one, an empty one."""
    if not answer:
        yield os.devnull
        return
    ours, theirs = pty.openpty()
    try:
        os.write(ours, f"{answer}\n".encode())
        yield os.ttyname(theirs)
    finally:
        for one in (ours, theirs):
            with contextlib.suppress(OSError):
                os.close(one)
