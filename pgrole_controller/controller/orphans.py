"""Orphans: claims whose object no longer exists. They are released in chunks.

Guarantees: one chunk is one transaction of at most CHUNK claims; a claim that cannot be released delays no other, and
is tried once for each read of the claims.
"""

from collections import deque
from collections.abc import Callable, Sequence

from pgrole_controller.core.errors import PgRoleError
from pgrole_controller.core.request import Key

#: How many claims one transaction releases at most.
CHUNK = 500


class Orphans:
    """Those of one read of the claims of a server."""

    def __init__(self) -> None:
        self.loaded = False
        self._claims: deque[tuple[Key, str, str]] = deque()
        self._keys: dict[tuple[str, str], Key] = {}  # of the chunk under way
        self._size = CHUNK

    @property
    def done(self) -> bool:
        """Nothing of this read is left to be released."""
        return self.loaded and not self._claims

    def load(self, claims: Sequence[tuple[Key, str, str]]) -> None:
        """Every claim of the server: (object, role name, uid of the object)."""
        self.loaded = True
        self._claims.extend(claims)

    def take(self, is_orphan: Callable[[Key], bool]) -> tuple[tuple[str, str], ...]:
        """The next chunk, as (role name, uid): of those whose object is gone now, whatever was so before."""
        self._keys = {}
        while self._claims and len(self._keys) < self._size:
            key, role_name, uid = self._claims.popleft()
            if is_orphan(key):
                self._keys[role_name, uid] = key
        return tuple(self._keys)

    def end(self, chunk: Sequence[tuple[str, str]], failure: PgRoleError | None) -> None:
        """The transaction of the chunk is over: after a failure smaller ones are tried, and of one it is given up."""
        if failure is None:
            self._size = min(2 * self._size, CHUNK)
            return
        if len(chunk) > 1:
            self._claims.extendleft((self._keys[one], *one) for one in reversed(chunk))
        self._size = max(len(chunk) // 2, 1)
