"""How tests wait: pauses between requests to the API server, which grow with the time waited, and a growing log."""

from pathlib import Path

import anyio

_FIRST_SECONDS = 0.02
_LAST_SECONDS = 0.2
#: Share of the time waited so far.
_SHARE = 1 / 3


class Attempts:
    """For `async for`: continues at once, then after a pause each time, endlessly."""

    def __init__(self) -> None:
        self._began: float | None = None

    def __aiter__(self) -> "Attempts":
        return self

    async def __anext__(self) -> None:
        now = anyio.current_time()
        if self._began is None:
            self._began = now
        else:
            await anyio.sleep(max(_FIRST_SECONDS, min(_LAST_SECONDS, (now - self._began) * _SHARE)))


class Occurrences:
    """Counts a text in a growing file, and reads each part only once, since a debug log has megabytes."""

    def __init__(self, file: Path, text: str) -> None:
        self._file = file
        self._text = text.encode()
        self._read_to = 0
        self._tail = b""  # end of the part read so far, which may begin the text
        self._found = 0

    def count(self) -> int:
        """Returns how often the text is in the file now; 0 if there is no such file."""
        if not self._file.exists():
            return self._found
        with self._file.open("rb") as file:
            file.seek(self._read_to)
            new = file.read()
        self._read_to += len(new)
        unread = self._tail + new
        self._found += unread.count(self._text)
        end = unread.rfind(self._text)
        rest = unread if end < 0 else unread[end + len(self._text) :]
        self._tail = rest[max(0, len(rest) - len(self._text) + 1) :]
        return self._found
