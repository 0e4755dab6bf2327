"""Splits a watch's body into lines: aiohttp's own `readline()` fails above 4 MiB."""

from pgrole_controller.kube.errors import BadStream

LIMIT = 64 * 2**20  # bytes; etcd refuses objects above 1.5 MiB, aggregated servers may not


class LineTooLong(BadStream):
    pass


class LineSplitter:
    """Chunks in, whole lines out. A last line without its newline is never given out: it is truncated."""

    __slots__ = ("_limit", "_pending", "_size")

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._pending: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that this chunk completes, without newlines, blank ones left out."""
        head, *rest = chunk.split(b"\n")
        self._hold(head)
        if not rest:
            return []
        first = b"".join(self._pending)
        *whole, tail = rest
        self._pending, self._size = [], 0
        self._hold(tail)
        return [line for line in (first, *whole) if line.strip()]

    def _hold(self, part: bytes) -> None:
        self._size += len(part)
        if self._size > self._limit:
            message = f"a line of the watch is longer than {self._limit} bytes"
            raise LineTooLong(message)
        self._pending.append(part)
