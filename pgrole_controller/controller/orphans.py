"""Orphans: claims whose object no longer exists. Claims are read in pages, and orphans released in chunks.

Guarantees: one chunk is one transaction of at most CHUNK claims; a claim that cannot be released delays no other, and
is tried once for each read of the claims.
"""

import logging
from collections import deque
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import NoReturn

import anyio

from pgrole_controller.controller.objects import Objects
from pgrole_controller.controller.session_keeper import SessionKeeper, SessionState
from pgrole_controller.core.claim import ClaimKey
from pgrole_controller.core.errors import PgRoleError
from pgrole_controller.core.plan import Plan
from pgrole_controller.core.request import Key
from pgrole_controller.event_loop import Signal
from pgrole_controller.postgres.session import Session

log = logging.getLogger(__name__)

#: Maximum number of claims that one transaction releases.
CHUNK = 500


class Orphans:
    """The orphans of one read of a server's claims."""

    def __init__(self) -> None:
        self._after: str | None = ""  # role name of the last claim read; None: every claim was read
        self._claims: deque[tuple[Key, str, str]] = deque()
        self._keys: dict[ClaimKey, Key] = {}  # in the current chunk
        self._size = CHUNK

    @property
    def done(self) -> bool:
        """Whether no claim of this read is left to be released."""
        return self._after is None and not self._claims

    @property
    def due(self) -> str | None:
        """The role name after which claims must be read now; None: not now."""
        return None if self._claims else self._after

    def load(self, claims: Sequence[tuple[Key, str, str]], after: str | None = None) -> None:
        """One page of the server's claims: (object, role name, uid of the object). `after`: as in `HeldClaims`."""
        self._claims.extend(claims)
        self._after = after

    def take(self, is_orphan: Callable[[Key, str], bool]) -> tuple[ClaimKey, ...]:
        """The next chunk: claims whose object, with that uid, does not exist now."""
        self._keys = {}
        while self._claims and len(self._keys) < self._size:
            key, role_name, uid = self._claims.popleft()
            if is_orphan(key, uid):
                self._keys[ClaimKey(role_name, uid)] = key
        return tuple(self._keys)

    def end(self, chunk: Sequence[ClaimKey], failure: PgRoleError | None) -> None:
        """Notes that the chunk's transaction ended. After a failure, smaller chunks follow; a claim that fails alone
        is skipped.
        """
        if failure is None:
            self._size = min(2 * self._size, CHUNK)
            return
        if len(chunk) > 1:
            self._claims.extendleft((self._keys[one], *one) for one in reversed(chunk))
        self._size = max(len(chunk) // 2, 1)


#: Orphans are released this long after a session begins, and with these pauses, in seconds.
FIRST_SECONDS = 0.5
PAUSE_SECONDS = 0.2

#: While changes are suspended or Kubernetes cannot be reached, the next attempt follows after this many seconds.
POSTPONED_SECONDS = 10.0


class OrphanTimer:
    """Releases orphans in one session: soon after it begins, and once in each period of the resync.

    An object that is deleted while no controller watches, or recreated for another server, leaves its claim. The claim
    of an object that was recreated for the same server is left to its reconcile.

    The claim of an existing object that names another PgServer was made through that one: either this server is a copy
    of its server, or two PgServers name one server. The latter is possible as long as the other has no session.
    """

    def __init__(
        self,
        session: Session,
        session_lock: anyio.Lock,
        keeper: SessionKeeper,
        objects: Objects,
        released: Callable[[str], None],
        unknown: Callable[[], Collection[str]],
    ) -> None:
        """`session_lock` guards the session. `released` is called with the role name of each claim. `unknown` returns
        the names of PgServers without a session.
        """
        self._session = session
        self._session_lock = session_lock
        self._keeper = keeper
        self._objects = objects
        self._released = released
        self._unknown = unknown
        self._orphans = Orphans()
        self._restarted = Signal()

    def restart(self) -> None:
        """Reads the claims again at once."""
        self._restarted.set()

    async def run(self) -> NoReturn:
        """Runs until cancelled. Raises PgRoleError when the session fails."""
        pause = FIRST_SECONDS
        while True:
            with anyio.move_on_after(pause):
                await self._restarted.wait()
            if self._restarted.is_set():
                self._restarted.clear()
                self._orphans = Orphans()
            async with self._session_lock:
                pause = await self._release()

    async def _release(self) -> float:
        """Releases one chunk. Returns the seconds until the next one."""
        if self._session.enforcing or self._keeper.state is SessionState.SUSPENDED:
            return POSTPONED_SECONDS
        if (after := self._orphans.due) is not None:
            self._orphans.load(*await self._session.read_claims(after))
        chunk = self._orphans.take(partial(self._is_orphan, self._unknown()))
        if chunk:
            began = anyio.current_time()
            (failure,) = await self._session.apply_plans([Plan(role_name="", releases=chunk)])
            self._orphans.end(chunk, failure)
            extra = {"server": self._keeper.server.name, "claims": len(chunk)}
            if failure is not None:
                log.warning("claims of deleted objects not released", extra={**extra, "error": failure.message})
                # A chunk that waited for a lock delayed reconciles: at most a twentieth of the time is spent so.
                return max(PAUSE_SECONDS, 20 * (anyio.current_time() - began))
            log.info("released claims of deleted objects", extra=extra)
            for name, _ in chunk:
                self._released(name)
        if not self._orphans.done:
            return PAUSE_SECONDS
        self._orphans = Orphans()
        return self._keeper.server.resync_seconds

    def _is_orphan(self, unknown: Collection[str], key: Key, uid: str) -> bool:
        named = self._objects.server_name(key)
        if not self._objects.covers(key) or named == self._keeper.server.name:
            return False
        return named not in unknown or self._objects.uid(key) != uid
