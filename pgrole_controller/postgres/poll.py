"""Poll: nothing is installed; digests of all roles are read every interval and compared with those of the last round.

Guarantees: a role whose digest differs, that is new, gone or renamed is announced once in the round that sees it and
once in the next, and so is each that we changed: it may have been changed to the same again between two rounds.

Of each role 12 bytes and its name are kept. They are taken apart only when something differs. The digests are keyed
with a secret of this session, so that nobody can make two states with the same one.
"""

import secrets
import struct
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import NoReturn

import anyio

from pgrole_controller.core.errors import Reason, Transient
from pgrole_controller.postgres import queries
from pgrole_controller.postgres.capabilities import Identity
from pgrole_controller.postgres.connection import Connection
from pgrole_controller.postgres.rows import Row, Unreadable, fetch

#: For one round, in seconds.
ROUND_SECONDS = 15.0

#: More names than this are announced as all of them.
MANY = 1000

_ENTRY = struct.Struct(">Iq")
_STRETCH = 100 * _ENTRY.size


class Poller:
    """Compares one round with the last one, on a connection of its own."""

    def __init__(self, connection: Connection, lock: anyio.Lock, identity: Identity) -> None:
        """`turn` is held while the connection is used."""
        self._connection = connection
        self._lock = lock
        self._started_at = identity.started_at
        self._query = queries.poll(verifiers=identity.sees_passwords)
        self._key = secrets.randbits(64) - 2**63
        self._snapshot: str | None = None
        self._digests, self._names = b"", b""
        self._again: set[str] = set()  # to be announced in the next round, whatever it sees

    def doubt(self, names: Iterable[str]) -> None:
        """These were changed by us: the next round announces them."""
        self._again.update(names)

    async def compare(self) -> set[str]:
        """One round: the names of what differs. Raises PgRoleError."""
        again, self._again = self._again, set()
        async with self._lock:
            rows = await fetch(
                self._connection,
                "poll",
                self._query,
                self._snapshot,
                self._key,
                seconds=ROUND_SECONDS,
                reason=Reason.SERVER_NOT_READY,
            )
        if not rows:
            raise Unreadable("there is no row", Reason.SERVER_NOT_READY)
        row = rows[0]
        if row.get("in_recovery", bool) or row.get("started_at", datetime) != self._started_at:
            raise Transient(Reason.SERVER_NOT_READY, "a different server answers on the same address")
        first = self._snapshot is None
        snapshot, now = row.get("snapshot", str), _read(rows)
        self._snapshot = snapshot
        before = (self._digests, self._names)
        if now is None or now == before:
            return again
        self._digests, self._names = now
        if first:
            return again
        differing = _readable(_differing(before, now))
        self._again |= differing
        return again | differing

    async def run(self, interval: float, on_change: Callable[[tuple[str, ...] | None], None]) -> NoReturn:
        """A round every `interval` seconds. Raises PgRoleError."""
        due = anyio.current_time() + interval
        while True:
            await anyio.sleep_until(due)
            names = await self.compare()
            if names:
                on_change(tuple(names) if len(names) <= MANY else None)
            due = max(due, anyio.current_time()) + interval


def _read(rows: Sequence[Row]) -> tuple[bytes, bytes] | None:
    """Digests and names, as many of each; None where nothing can have changed. Raises PgRoleError."""
    parts = [(row.find("digests", bytes), row.find("names", bytes)) for row in rows]
    if parts == [(None, None)]:
        return None
    found = [(digests, names) for digests, names in parts if digests is not None and names is not None]
    digests, names = b"".join(part[0] for part in found), b"\0".join(part[1] for part in found)
    if len(found) != len(parts) or len(digests) != (names.count(b"\0") + 1) * _ENTRY.size:
        raise rows[0].wrong("digests")
    return digests, names


def _differing(before: tuple[bytes, bytes], now: tuple[bytes, bytes]) -> Iterable[bytes]:
    """The names of what is not the same in both, each as (digests, names)."""
    if before[1] != now[1] or len(before[0]) != len(now[0]):
        return {name for _, name in _entries(*before) ^ _entries(*now)}
    # As it mostly is, the same roles: whole stretches of them are equal, and are not taken apart.
    old, new, size = before[0], now[0], _ENTRY.size
    stretches = (
        start
        for start in range(0, len(new), _STRETCH)
        if old[start : start + _STRETCH] != new[start : start + _STRETCH]
    )
    places = (
        place
        for start in stretches
        for place in range(start, min(start + _STRETCH, len(new)), size)
        if old[place : place + size] != new[place : place + size]
    )
    names = now[1].split(b"\0")
    return [names[place // size] for place in places]


def _entries(digests: bytes, names: bytes) -> set[tuple[tuple[int, ...], bytes]]:
    return set(zip(_ENTRY.iter_unpack(digests), names.split(b"\0"), strict=True))


def _readable(names: Iterable[bytes]) -> set[str]:
    """What another database wrote in its encoding can be nobody's declaration."""
    found: set[str] = set()
    for name in names:
        try:
            found.add(name.decode())
        except UnicodeDecodeError:
            continue
    return found
