"""Remembers what was read back after a change, so that the next reconciles can compare instead of deciding again.

The controller reads a role that it changed twice more: when the change's own NOTIFY arrives, and after two seconds.
Mostly nothing differs by then. These reconciles read the object, its policy and the role again; if all of it is equal,
so is the decision.

Guarantees: each of them reads from the database everything that a reconcile reads about the role; any difference leads
to a full reconcile.
"""

from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Any

from pgrole_controller.controller.objects import Objects, Target, declared_version
from pgrole_controller.core.next_attempt import CONFIRM_SECONDS
from pgrole_controller.core.password import PasswordOrigin
from pgrole_controller.core.plan import Plan
from pgrole_controller.core.policy import ServerPolicy
from pgrole_controller.core.request import Key
from pgrole_controller.core.state import Observed, Server

#: Maximum number of entries, and how long each is kept, in seconds: until both reconciles have happened.
MOST = 512
KEPT_SECONDS = 2.0 * CONFIRM_SECONDS

#: A reconcile this many seconds after the change confirms it: no other is expected.
LAST_SECONDS = 0.75 * CONFIRM_SECONDS

_NO_PASSWORD = (PasswordOrigin.ELSEWHERE, PasswordOrigin.NOWHERE)


@dataclass(frozen=True, slots=True)
class ReadBack:
    """One object whose role was read back as declared: what was read, and the decision."""

    target: Target
    version: tuple[Any, ...]
    server: Server
    observed: Observed
    decision: Plan


class ReadBackCache:
    """The entries of one session with a server. Times are in seconds of one clock."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Key, tuple[ReadBack, float]] = OrderedDict()  # the oldest first

    def note(self, target: Target, server: Server, observed: Observed, decision: Plan, now: float) -> None:
        """Notes a role that was changed and read back."""
        if target.stored is None or not _depends_on_row_alone(target, server, observed, decision):
            return
        self._kept.pop(target.key, None)
        self._kept[target.key] = ReadBack(target, declared_version(target.stored), server, observed, decision), now
        self._drop_old(now)

    def find(
        self, key: Key, server: Server, objects: Objects, server_policy: ServerPolicy, now: float
    ) -> ReadBack | None:
        """Returns the entry, with the object as it is now; None if the object must be reconciled in full."""
        self._drop_old(now)
        known, since = self._kept.get(key, (None, 0.0))
        if known is None:
            return None
        if now - since >= LAST_SECONDS:
            del self._kept[key]
        stored = objects.find_unchanged(known.target, known.version, server_policy)
        if stored is None or known.server != server:
            self.forget(key)
            return None
        return replace(known, target=replace(known.target, stored=stored))

    def forget(self, key: Key) -> None:
        """Forgets an entry because something differs."""
        self._kept.pop(key, None)

    def _drop_old(self, now: float) -> None:
        while self._kept:
            key, (_, since) = next(iter(self._kept.items()))
            if len(self._kept) <= MOST and now - since <= KEPT_SECONDS:
                return
            del self._kept[key]


def _depends_on_row_alone(target: Target, server: Server, observed: Observed, decision: Plan) -> bool:
    """Whether the decision needed only the object, its policy and the role's row, and nothing is left to do."""
    desired = target.desired
    if desired is None or server.away or server.claims != "Database" or not observed.row or observed.claim is None:
        return False
    if (
        desired.terminating
        or desired.suspended
        or desired.older_rivals
        or desired.proven_rivals
        or target.finalizer is not None
    ):
        return False
    if (
        desired.password.origin not in _NO_PASSWORD
        or desired.connection
        or desired.password_result
        or desired.secrets.stale
    ):
        return False
    if (
        desired.remembered
        or observed.claim.record.digest
        or observed.former
        or desired.role.member_of
        or desired.role.parameters
    ):
        return False
    if desired.privileges or observed.claim.privileges:
        return False
    if desired.role.database_parameters or any(one.role.member_of for one in (observed.named, observed.claimed) if one):
        return False
    undone = decision.writes or decision.pending or decision.password_task or decision.reassign or decision.reported
    return not (undone or decision.drift)
