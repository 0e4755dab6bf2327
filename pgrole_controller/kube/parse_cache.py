"""Cache of the objects of the API server that were parsed last."""

import json
import zlib
from collections import OrderedDict
from typing import Any

#: Limits of cached parsed objects, in bytes of JSON: in total, and for one. Parsed, they take several times as much.
PARSED_BYTES = 2**17
PARSED_LARGEST = 2**14


class ParseCache:
    """Caches the objects parsed last, by body, because each is requested several times within moments.

    Limited by the size of the uncompressed JSON, in total and per object (`largest`), so large or highly compressed
    objects cannot fill the memory.
    """

    def __init__(self, most: int = PARSED_BYTES, largest: int = PARSED_LARGEST) -> None:
        self._most = most
        self._largest = largest
        self._size = 0
        self._kept: OrderedDict[bytes, tuple[dict[str, Any], int]] = OrderedDict()

    def get(self, body: bytes) -> dict[str, Any]:
        known = self._kept.get(body)
        if known is not None:
            self._kept.move_to_end(body)
            return known[0]
        text = zlib.decompress(body)
        parsed: dict[str, Any] = json.loads(text)
        self.put(body, parsed, len(text))
        return parsed

    def put(self, body: bytes, parsed: dict[str, Any], size: int) -> None:
        """Caches what `body` contains; `size` is its uncompressed size in bytes."""
        if size > self._largest or body in self._kept:
            return
        self._kept[body] = parsed, size
        self._size += size
        while self._size > self._most:
            _, (_, gone) = self._kept.popitem(last=False)
            self._size -= gone
