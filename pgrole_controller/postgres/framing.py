"""Splits what a server sends into messages, and passes only valid ones on to asyncpg.

asyncpg trusts the server. If the server is hostile or compromised, or another program listens on the port, asyncpg 0.32
loops forever on an invalid length or type, reads past the end of a message for a text without terminator, reads memory
before its buffer for a negative length, allocates lists of any length that an array claims, and buffers without limit.
All of this happens on the event loop and in the memory that all servers share.

Therefore a message reaches asyncpg only if it is complete, has a type that PostgreSQL sends for the controller's
statements and a size that they need, and its fields fill it exactly. Notices are dropped, since nothing reads them.
Notifications go to a `NotificationFilter`, since asyncpg calls a callback for each. Tenants can make error messages
long, since these list what depends on a role: a long one is cut, and the rest is dropped as it arrives.
"""

import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pgrole_controller.postgres.authentication import Login, Unacceptable


class MessageType:
    """The first byte of each message that PostgreSQL may send. No Enum, which would take a quarter more time for each
    row.
    """

    PARSE_COMPLETE = ord("1")
    BIND_COMPLETE = ord("2")
    CLOSE_COMPLETE = ord("3")
    NOTIFICATION_RESPONSE = ord("A")
    COMMAND_COMPLETE = ord("C")
    DATA_ROW = ord("D")
    ERROR_RESPONSE = ord("E")
    EMPTY_QUERY_RESPONSE = ord("I")
    BACKEND_KEY_DATA = ord("K")
    NOTICE_RESPONSE = ord("N")
    AUTHENTICATION_REQUEST = ord("R")
    PARAMETER_STATUS = ord("S")
    ROW_DESCRIPTION = ord("T")
    READY_FOR_QUERY = ord("Z")
    NO_DATA = ord("n")
    PORTAL_SUSPENDED = ord("s")
    PARAMETER_DESCRIPTION = ord("t")


#: Type and length of a message; the length includes itself, but not the type.
_HEADER = struct.Struct("!Bi")
_LEAST = 4
_INT16, _INT32 = struct.Struct("!H"), struct.Struct("!i")
_COLUMN = struct.Struct("!iHIHiH")

#: Maximum size of the answer to one statement in bytes, including the overhead of rows and values in memory.
VOLUME: Final = 16 << 20
_ROW, _VALUE = 64, 32

_KIB = 1 << 10
_ERROR, _NOTE = 64 * _KIB, 8 * _KIB + 256
#: Messages that are cut after _ERROR bytes.
_CUT = frozenset({MessageType.ERROR_RESPONSE, MessageType.NOTICE_RESPONSE})
_LONGEST: Final[dict[int, int]] = {
    MessageType.PARSE_COMPLETE: _LEAST,
    MessageType.BIND_COMPLETE: _LEAST,
    MessageType.CLOSE_COMPLETE: _LEAST,
    MessageType.EMPTY_QUERY_RESPONSE: _LEAST,
    MessageType.NO_DATA: _LEAST,
    MessageType.PORTAL_SUSPENDED: _LEAST,
    MessageType.READY_FOR_QUERY: _LEAST + 1,
    MessageType.AUTHENTICATION_REQUEST: 4 * _KIB,
    MessageType.BACKEND_KEY_DATA: _LEAST + 8,
    MessageType.PARAMETER_STATUS: 8 * _KIB,
    MessageType.COMMAND_COMPLETE: _KIB,
    MessageType.NOTIFICATION_RESPONSE: _NOTE,  # PostgreSQL's own limit is just below 8 KiB
    MessageType.ERROR_RESPONSE: 8 << 20,
    MessageType.NOTICE_RESPONSE: 8 << 20,
    MessageType.PARAMETER_DESCRIPTION: 64 * _KIB,
    MessageType.ROW_DESCRIPTION: 64 * _KIB,
    MessageType.DATA_ROW: 8 << 20,  # the longest row: digests and names of 50,000 roles
}
_NAMES: Final[dict[int, str]] = {
    MessageType.ERROR_RESPONSE: "an error",
    MessageType.NOTICE_RESPONSE: "a notice",
    MessageType.NOTIFICATION_RESPONSE: "a notification",
    MessageType.PARAMETER_STATUS: "a parameter",
    MessageType.DATA_ROW: "a row",
}

#: Maximum number of parameters that a server reports; PostgreSQL 18 has 15.
_PARAMETERS = 100
_COLUMNS = 1664
_ELEMENTS = 100_000

#: Types whose values asyncpg reads without trusting a length or count inside them: scalars, and arrays of scalars.
_SCALARS = {16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 28, 29, 30, 114, 650, 700, 701, 705, 869, 1042, 1043, 1082}
_SCALARS |= {1083, 1114, 1184, 1186, 1700, 2202, 2205, 2206, 2275, 2278, 2950, 3220, 3802, 4089, 4096, 5069}
_ARRAYS = {199, 1000, 1001, 1002, 1003, 1005, 1006, 1007, 1009, 1011, 1012, 1013, 1014, 1015, 1016, 1021, 1022, 1028}
_ARRAYS |= {1041, 1115, 1182, 1185, 1231, 2210, 2951, 3807, 4097}
_TYPES = frozenset(_SCALARS | _ARRAYS)
_DIMENSIONS = range(1, 7)


class NotPostgres(Unacceptable):
    def __init__(self) -> None:
        super().__init__("the program at this address does not speak the PostgreSQL protocol")


@dataclass(slots=True)
class NotificationFilter:
    """Delivers the notifications of one channel, in order, as (pid of the sender, payload).

    Every notification of `trusted`, the pid of the watch connection, is delivered. Those of all other sessions share a
    limit: `burst` at once, and `rate` per second. Any above the limit are dropped, which `left_out` reports.
    """

    channel: str
    trusted: int
    deliver: Callable[[list[tuple[int, bytes]], bool], None]
    burst: float = 1000.0
    rate: float = 500.0
    left_out: bool = False
    _credit: float = 1000.0
    _at: float | None = None

    def skipping(self) -> re.Pattern[bytes]:
        """Matches complete notifications of other sessions on this channel. A payload contains no NUL."""
        pid = re.escape(_INT32.pack(self.trusted))
        channel = re.escape(self.channel.encode())
        return re.compile(rb"(?:A\0\0[\0-\x20][\0-\xff](?!" + pid + rb")[\0-\xff]{4}" + channel + rb"\0[^\0]*\0)+")

    def refill(self, now: float) -> None:
        if self._at is not None:
            self._credit = min(self.burst, self._credit + (now - self._at) * self.rate)
        self._at = now

    def admit(self, pid: int) -> bool:
        if pid == self.trusted:
            return True
        self._credit -= 1
        return self._credit >= 0

    @property
    def exhausted(self) -> bool:
        return self._credit < 1


class Framing:
    """The messages of one connection: `feed` what arrives, and `take` what asyncpg may read."""

    def __init__(self, login: Login, volume: int = VOLUME) -> None:
        self.answered = False  # the server has sent a message
        self.notes: NotificationFilter | None = None
        self.noted: list[tuple[int, bytes]] = []  # since `take` was called
        self._data = bytearray()
        self._needed = _HEADER.size  # bytes of _data at which the next message is complete
        self.dropped = 0  # bytes, since `take` was called
        self._to_drop = 0  # bytes that arrive next: the rest of a message that was cut
        self._login = login
        self._let_in = False
        self._most = volume
        self._volume = 0  # since the last statement ended
        self._parameters: set[bytes] = set()
        self._skipping: re.Pattern[bytes] | None = None
        self._passed: list[bytes] = []

    def feed(self, data: bytes) -> None:
        dropped = min(self._to_drop, len(data))
        self._to_drop -= dropped
        self.dropped += dropped
        self._data += data[dropped:] if dropped else data

    @property
    def has_more(self) -> bool:
        """Whether `take` may return or drop something."""
        return len(self._data) >= self._needed or self.dropped > 0

    def listen(self, notes: NotificationFilter) -> None:
        """From now on, collects the notifications that this filter admits."""
        self.notes, self._skipping = notes, notes.skipping()

    def take(self, most: int) -> bytes:
        """Up to `most` complete messages, without those that are not for asyncpg. Raises Unacceptable."""
        self._passed, self.noted, self.dropped = [], [], 0
        data, place, taken = bytes(self._data), 0, 0
        self._needed = _HEADER.size
        while taken < most and place + _HEADER.size <= len(data):
            kind, length = _HEADER.unpack_from(data, place)
            if not _LEAST <= length <= _LONGEST.get(kind, 0):
                raise _too_long(kind, length)
            end = place + 1 + length
            kept = place + 1 + min(length, _ERROR) if kind in _CUT else end
            if kept > len(data):
                self._needed = kept - place
                break
            if (
                kind == MessageType.NOTIFICATION_RESPONSE
                and self._skipping is not None
                and self.notes is not None
                and self.notes.exhausted
            ):
                place, skipped = self._skip(data, place, end)
                taken += skipped
                continue
            self._read(kind, data, place, kept)
            if end > kept:
                self._drop(end - kept, len(data) - kept)
            place = min(end, len(data))
            taken += 1
        else:
            if place < len(data) and data[place] not in _LONGEST:
                raise NotPostgres
        del self._data[:place]
        return b"".join(self._passed)

    def _drop(self, many: int, arrived: int) -> None:
        """Drops the rest of a message: `many` bytes, of which `arrived` have arrived. Raises Unacceptable."""
        self._to_drop = max(0, many - arrived)
        self.dropped += min(many, arrived)
        self._volume += many
        if self._volume > self._most:
            raise _too_large(self._most)

    def _skip(self, data: bytes, place: int, end: int) -> tuple[int, int]:
        """Skips notifications above the limit: the end of the run, and its cost as a number of messages."""
        run = self._skipping.match(data, place) if self._skipping else None
        if run is None or self.notes is None:
            self._read(MessageType.NOTIFICATION_RESPONSE, data, place, end)
            return end, 1
        self.notes.left_out = True
        return run.end(), 1 + (run.end() - place) // 1000

    def _read(self, kind: int, data: bytes, place: int, end: int) -> None:
        body = data[place + _HEADER.size : end]
        self.answered = True
        try:
            message = self._check(kind, body)
        except (ValueError, LookupError, struct.error):
            raise NotPostgres from None
        if message is not None:
            whole = message is body
            self._passed.append(data[place:end] if whole else _HEADER.pack(kind, _LEAST + len(message)) + message)

    def _check(self, kind: int, body: bytes) -> bytes | None:
        """The body for asyncpg; None: asyncpg does not get the message. Raises ValueError for an invalid body."""
        if kind == MessageType.NOTIFICATION_RESPONSE:  # not charged: tenants can send any number of them
            self._note(body)
            return None
        self._charge(kind, body)
        match kind:
            case MessageType.DATA_ROW:
                check_row(body)
            case MessageType.NOTICE_RESPONSE:
                return None
            case MessageType.PARAMETER_STATUS:
                self._check_parameter(body)
            case MessageType.ROW_DESCRIPTION:
                check_description(body)
            case MessageType.READY_FOR_QUERY:
                _expect(body in (b"I", b"T", b"E"))
                self._let_in, self._volume = True, 0
            case MessageType.ERROR_RESPONSE:
                return legible(_ended(body))
            case MessageType.AUTHENTICATION_REQUEST:
                _expect(not self._let_in)
                self._login.check(body)
            case MessageType.COMMAND_COMPLETE:
                _expect(body.find(b"\0") == len(body) - 1 and body.isascii())
            case MessageType.PARAMETER_DESCRIPTION:
                _expect(len(body) == 2 + 4 * _INT16.unpack_from(body)[0])
            case MessageType.BACKEND_KEY_DATA:
                _expect(len(body) == 8 and not self._let_in)
        return body

    def _charge(self, kind: int, body: bytes) -> None:
        self._volume += len(body) + _ROW
        if kind == MessageType.DATA_ROW:
            self._volume += _VALUE * _INT16.unpack_from(body)[0]
        if self._volume > self._most:
            raise _too_large(self._most)

    def _note(self, body: bytes) -> None:
        channel, payload, rest = body[4:].split(b"\0", 2)
        _expect(not rest)
        if self.notes is None or channel != self.notes.channel.encode():
            return
        (pid,) = _INT32.unpack_from(body)
        if self.notes.admit(pid):
            self.noted.append((pid, payload))
        else:
            self.notes.left_out = True

    def _check_parameter(self, body: bytes) -> None:
        name, value, rest = body.split(b"\0", 2)
        _expect(not rest)
        body.decode()
        self._parameters.add(name)
        _expect(len(self._parameters) <= _PARAMETERS)
        if name == b"client_encoding" and value not in (b"UTF8", b"UNICODE", b"UTF-8", b"utf-8"):
            raise NotPostgres


def _expect(condition: bool) -> None:
    if not condition:
        raise ValueError


def _too_large(most: int) -> Unacceptable:
    return Unacceptable(f"the answer to one statement is larger than {most >> 20} MiB")


def _too_long(kind: int, length: int) -> Unacceptable:
    if length < _LEAST or kind not in _LONGEST:
        return NotPostgres()
    what = _NAMES.get(kind)
    if what is None:
        return NotPostgres()
    return Unacceptable(f"the server sends {what} of {length} bytes; the limit is {_LONGEST[kind]}")


def check_row(body: bytes) -> None:
    """Checks that the values fill the row, and that anything that looks like an array is one. Raises ValueError."""
    count = _INT16.unpack_from(body)[0]
    _expect(count <= _COLUMNS)
    place, read, left = 2, _INT32.unpack_from, _ELEMENTS
    for _ in range(count):
        size = read(body, place)[0]
        place += 4
        if size > 0:
            # No text contains a NUL, and no query returns other values that begin so: it can only be an array.
            if size >= 20 and not body[place] and read(body, place)[0] in _DIMENSIONS:
                left -= _check_array(body, place, size)
                _expect(left >= 0)
            place += size
        elif size < -1:
            raise ValueError
    _expect(place == len(body))


def _check_array(body: bytes, place: int, size: int) -> int:
    """The number of elements of an array, which must fill it. Raises ValueError."""
    end, read = place + size, _INT32.unpack_from
    dimensions = read(body, place)[0]
    place += 12
    _expect(place + 8 * dimensions <= end <= len(body))
    count = 1
    for _ in range(dimensions):
        many = read(body, place)[0]
        _expect(0 <= many <= _ELEMENTS)
        count *= many
        place += 8
    _expect(count <= _ELEMENTS)
    for _ in range(count):
        length = read(body, place)[0]
        _expect(length >= -1)
        place += 4 + max(length, 0)
        _expect(place <= end)
    _expect(place == end)
    return count


def check_description(body: bytes) -> None:
    """Checks that the columns fill the description. Raises ValueError; Unacceptable for a type that is not safe."""
    count = _INT16.unpack_from(body)[0]
    _expect(count <= _COLUMNS)
    place = 2
    for _ in range(count):
        place = body.index(b"\0", place) + 1
        _, _, kind, _, _, _ = _COLUMN.unpack_from(body, place)
        if kind not in _TYPES:
            raise Unacceptable(f"the server sends values of type {kind}, which no statement of the controller requests")
        place += _COLUMN.size
    _expect(place == len(body))


def _ended(body: bytes) -> bytes:
    """Terminates an error message that was cut; its last field is shorter then."""
    return body if len(body) < _ERROR - _LEAST else body.rstrip(b"\0") + b"\0\0"


def legible(body: bytes) -> bytes:
    """An error message in which a question mark replaces every byte that is not UTF-8. Raises ValueError.

    Role names can be in the encoding of any database of the server.
    """
    fields = body.split(b"\0")
    _expect(fields[-2:] == [b"", b""] and all(fields[:-2]))
    try:
        body.decode()
    except UnicodeDecodeError:
        return re.sub("[\ud800-\udfff]", "?", body.decode(errors="surrogateescape")).encode()
    return body
