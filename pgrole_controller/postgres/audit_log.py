"""The server's jsonlog, read through SQL for commands that change roles. PostgreSQL writes it since version 15.

Guarantees: one read takes at most 1,000,000 bytes, however much was written; what is older than that is skipped. A
line that is not complete yet is read by the next one. A rotated file is read to its end before the next one. Only
files that have a size are read: a FIFO, as some operators put in place of the log, has none, and belongs to its reader.

Caveats: files that were begun and ended between two reads are skipped.
"""

from collections import deque
from dataclasses import dataclass, field

import anyio.to_thread

from pgrole_controller import resources
from pgrole_controller.core.audit_line import RoleCommand, read_lines
from pgrole_controller.postgres.connection import Connection
from pgrole_controller.postgres.rows import Row, fetch, first

#: jsonlog exists since this version.
JSONLOG_VERSION = 150_000

#: Bytes that one read takes, and commands that are kept.
MOST_BYTES = 1_000_000
MOST_COMMANDS = 1000

_READ_SECONDS = 2.0


@dataclass(slots=True)
class JsonLog:
    """What was read of one server's log: the place, and the latest commands, oldest first.

    `own_login`: as whom it was read.
    """

    commands: deque[RoleCommand] = field(default_factory=lambda: deque(maxlen=MOST_COMMANDS))
    own_login: str = ""
    _name: str = ""
    _zone: int = 0
    _offset: int = 0
    _in_line: bool = False  # the offset is inside a line whose beginning was skipped

    async def read_new(self, connection: Connection) -> bool:
        """Reads what was written since the last read; False if the server writes no jsonlog.

        Raises PgRoleError, e.g. if the role may not read it.
        """
        current = first(await _ask(connection, "current_log"))
        name = current.find_text("name")
        if not name:
            return False
        self.own_login, self._zone = current.text("own_login"), current.get("zone", int)
        size, left = current.find("size", int) or 0, MOST_BYTES
        if self._name and self._name != name:
            old = await _ask(connection, "log_size", self._name)
            # The current file is newer, and the last drift is probably in it.
            most = max(MOST_BYTES - size, 0)
            left -= await self._read(connection, old[0].find("size", int) or 0 if old else 0, most)
            self._offset, self._in_line = 0, False
        self._name = name
        await self._read(connection, size, left)
        return True

    async def _read(self, connection: Connection, size: int, most: int) -> int:
        """Reads the file up to `size`, its last `most` bytes at most; returns how many it read."""
        if size < self._offset:  # truncated
            self._offset, self._in_line = 0, False
        if size - self._offset > most:
            self._offset, self._in_line = size - most, True
        wanted = size - self._offset
        if wanted <= 0:
            return 0
        rows = await _ask(connection, "log_part", self._name, self._offset, wanted)
        part = (rows[0].find("part", bytes) if rows else None) or b""
        end = part.rfind(b"\n") + 1
        if end == 0 and len(part) == most:  # a line longer than a read
            self._offset, self._in_line = self._offset + len(part), True
            return len(part)
        begin = part.find(b"\n") + 1 if self._in_line else 0
        if end > 0:
            self._offset, self._in_line = self._offset + end, False
            self.commands.extend(await anyio.to_thread.run_sync(_parse, part[begin:end], self._zone))
        return len(part)


def _parse(part: bytes, zone: int) -> list[RoleCommand]:
    return list(read_lines(part.split(b"\n"), zone))[-MOST_COMMANDS:]


async def _ask(connection: Connection, name: str, *arguments: object) -> list[Row]:
    query = resources.text("sql", "attribution", f"{name}.sql")
    return await fetch(connection, "audit_log", query, *arguments, seconds=_READ_SECONDS)
