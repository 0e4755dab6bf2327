"""What a server sends is checked to consist of messages before asyncpg reads it.

asyncpg 0.32 reads for ever, and with it the event loop stands still for all servers, where the type of a message is NUL
or its length less than its own: from another kind of server behind the port, or a hostile one.
"""

import struct
from typing import Any

import asyncpg.protocol

#: The type of a message and its length, which counts itself but not the type.
_HEADER = struct.Struct("!Bi")
_LEAST = 4


class NotPostgres(ConnectionError):
    def __init__(self) -> None:
        super().__init__("what answers there does not speak PostgreSQL's protocol")


class Framing:
    """Follows the messages in what arrives piece by piece."""

    def __init__(self) -> None:
        self._left = 0  # bytes of the last message that are still to come
        self._begun = b""  # of a header that is not complete

    def check(self, data: bytes) -> None:
        """Raises NotPostgres."""
        if self._begun:
            data = self._begun + data
        place = self._left
        while place + _HEADER.size <= len(data):
            kind, length = _HEADER.unpack_from(data, place)
            if not kind or length < _LEAST:
                raise NotPostgres
            place += 1 + length
        self._left = max(place - len(data), 0)
        self._begun = data[place:]
        if self._begun.startswith(b"\0"):
            raise NotPostgres


class CheckedProtocol(asyncpg.protocol.Protocol):
    """asyncpg's own, of what is well-formed: what is not ends the connection."""

    def __init__(self, *arguments: Any) -> None:  # noqa: ANN401 -- asyncpg's
        super().__init__(*arguments)
        self._framing = Framing()

    def data_received(self, data: bytes) -> None:  # type: ignore[override]  # the stubs name it otherwise
        self._framing.check(data)
        super().data_received(data)


def check_messages() -> None:
    """From now on asyncpg makes its connections so; it has no other place to say it."""
    asyncpg.protocol.Protocol = CheckedProtocol  # type: ignore[misc, assignment]
