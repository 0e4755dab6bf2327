"""Progress output for people: short lines, and one rewritten line for a slow step."""

import time
from typing import TextIO

from pgrole_controller.ending import ENCODABLE

_PLAIN_SECONDS = 15.0
_TERMINAL_SECONDS = 0.1


class Display:
    """Writes to a stream. On a terminal, progress rewrites its line; elsewhere it prints a line every 15 s at most."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._terminal = stream.isatty()
        self._told = float("-inf")
        self._open = False

    def say(self, text: str) -> None:
        """Prints a permanent line."""
        self._write(f"{text}\n")

    def done(self, text: str, since: float | None = None) -> None:
        """Prints what is ready; `since` (time.monotonic) adds the seconds that it took."""
        took = "" if since is None else f" ({time.monotonic() - since:.1f} s)"
        self._write(f"✓ {text}{took}\n")

    def advance(self, text: str) -> None:
        """Shows the progress of the current step, unless the last update was a moment ago."""
        now = time.monotonic()
        if now - self._told < (_TERMINAL_SECONDS if self._terminal else _PLAIN_SECONDS):
            return
        self._told = now
        if self._terminal:
            self._write(f"  {text[:100]}")
            self._open = True
        else:
            self._write(f"  {text}\n")

    def _write(self, text: str) -> None:
        if self._open:
            self._stream.write("\r\x1b[2K")
            self._open = False
        encoding = self._stream.encoding or "utf-8"
        self._stream.write(text.encode(encoding, errors=ENCODABLE).decode(encoding))
        self._stream.flush()
