"""Poll: without installing anything, reads digests of all roles every interval and compares them with the last round.

Guarantees: every role that changed, or was created, dropped or renamed, is announced in the round that detects it and
again in the next. A role that the controller changed is announced in the next round, since another change may have
restored its digest in between; so is a role whose drift it reported although no round announced it.

Memory: 12 bytes and the name of each role, parsed only if something differs. The digests are keyed with a secret of the
session, so that no one can construct two states with the same digest.
"""

import secrets
import struct
from collections.abc import Iterable, Sequence
from typing import NoReturn

import anyio

from pgrole_controller.core.errors import Reason
from pgrole_controller.postgres import queries
from pgrole_controller.postgres.capabilities import Identity
from pgrole_controller.postgres.connection import Connection
from pgrole_controller.postgres.rows import Row, fetch, first
from pgrole_controller.postgres.watch import ChangeCallbacks

#: Time limit of one round, in seconds.
ROUND_SECONDS = 15.0

#: Above this number of names, all roles are announced.
MANY = 1000

_ENTRY = struct.Struct(">Iq")
_OID = 4
_STRETCH = 100 * _ENTRY.size


class Poller:
    """Compares each round with the previous one, on its own connection."""

    def __init__(self, connection: Connection, lock: anyio.Lock, identity: Identity) -> None:
        """`lock` is held while the connection is in use."""
        self._connection = connection
        self._lock = lock
        self._identity = identity
        self._query = queries.poll(verifiers=identity.sees_passwords)
        self._key = secrets.randbits(64) - 2**63
        self._snapshot: str | None = None
        self._digests, self._names = b"", b""
        self._again: set[str] = set()  # to be announced in the next round in any case
        self.renamed: tuple[str, ...] | None = ()  # names that another role has since the last round; None: any

    def doubt(self, names: Iterable[str]) -> None:
        """The next round announces these roles, whatever it reads."""
        self._again.update(names)

    async def compare(self) -> set[str]:
        """One round: the names of the roles to announce. Raises PgRoleError."""
        again, self._again, self.renamed = self._again, set(), ()
        async with self._lock:
            rows = await fetch(
                self._connection,
                self._query,
                self._snapshot,
                self._key,
                label="poll",
                seconds=ROUND_SECONDS,
                reason=Reason.SERVER_NOT_READY,
            )
        row = first(rows)
        self._identity.check_answer(row)
        initial = self._snapshot is None
        snapshot, now = row.get("snapshot", str), _read(rows)
        self._snapshot = snapshot
        before = (self._digests, self._names)
        if now is None or now == before:
            return again
        self._digests, self._names = now
        if initial:
            return again
        found, renamed = find_differing(before, now)
        differing, self.renamed = _readable(found), tuple(_readable(renamed)) if len(found) <= MANY else None
        self._again |= differing
        return again | differing

    async def run(self, interval: float, callbacks: ChangeCallbacks) -> NoReturn:
        """Runs a round every `interval` seconds, and announces changed and renamed roles. Raises PgRoleError."""
        due = anyio.current_time() + interval
        while True:
            await anyio.sleep_until(due)
            names = await self.compare()
            if names:
                callbacks.on_role(tuple(names) if len(names) <= MANY else None)
            if self.renamed != ():
                callbacks.on_rename(self.renamed)
            due = max(due, anyio.current_time()) + interval


def _read(rows: Sequence[Row]) -> tuple[bytes, bytes] | None:
    """Digests and names, the same number of each; None if nothing can have changed. Raises PgRoleError."""
    parts = [(row.find("digests", bytes), row.find("names", bytes)) for row in rows]
    if parts == [(None, None)]:
        return None
    found = [(digests, names) for digests, names in parts if digests is not None and names is not None]
    digests, names = b"".join(part[0] for part in found), b"\0".join(part[1] for part in found)
    if len(found) != len(parts) or len(digests) != (names.count(b"\0") + 1) * _ENTRY.size:
        raise rows[0].wrong("digests")
    return digests, names


def find_differing(before: tuple[bytes, bytes], now: tuple[bytes, bytes]) -> tuple[set[bytes], set[bytes]]:
    """The names of the roles that differ between two rounds, each given as (digests, names) in the order of the oids,
    and those of them that belong to another role, or to none.

    Compares stretches of the same oids, since mostly few differ. Stops once more than MANY differ.
    """
    old, new, size = before[0], now[0], _ENTRY.size
    old_names, new_names = before[1].split(b"\0"), now[1].split(b"\0")
    found: set[bytes] = set()
    renamed: set[bytes] = set()
    place = new_place = 0
    while place < len(old) and len(found) <= MANY:
        end = min(place + _STRETCH, len(old))
        new_end = _end_of(new, new_place, old[end - size : end - size + _OID], new_place + end - place)
        if old[place:end] != new[new_place:new_end]:
            gone = set(zip(_split(old[place:end]), old_names[place // size : end // size], strict=True))
            come = set(zip(_split(new[new_place:new_end]), new_names[new_place // size : new_end // size], strict=True))
            found.update(name for _, name in gone ^ come)
            renamed.update(name for _, name in _owners_of(gone) ^ _owners_of(come))
        place, new_place = end, new_end
    created = new_names[new_place // size :][: MANY + 1]
    return found.union(created), renamed.union(created)


def _owners_of(entries: Iterable[tuple[bytes, bytes]]) -> set[tuple[bytes, bytes]]:
    """Oids and names."""
    return {(entry[:_OID], name) for entry, name in entries}


def _end_of(digests: bytes, place: int, oid: bytes, guess: int) -> int:
    """Where the entries from `place` on end whose oids are not greater. `guess`: where they end if no oid differs."""
    size = _ENTRY.size
    if place < guess <= len(digests) and digests[guess - size : guess - size + _OID] == oid:
        return guess
    first, last = place // size, len(digests) // size
    while first < last:
        middle = (first + last) // 2
        if digests[middle * size : middle * size + _OID] <= oid:
            first = middle + 1
        else:
            last = middle
    return first * size


def _split(digests: bytes) -> list[bytes]:
    return [digests[place : place + _ENTRY.size] for place in range(0, len(digests), _ENTRY.size)]


def _readable(names: Iterable[bytes]) -> set[str]:
    """The names that are UTF-8: no object can declare a name that another database wrote in its own encoding."""
    found: set[str] = set()
    for name in names:
        try:
            found.add(name.decode())
        except UnicodeDecodeError:
            continue
    return found
