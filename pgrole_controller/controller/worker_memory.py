"""What one worker remembers between reconciles: a cache that is safe to lose.

- `Verifiers`: those that were last set, which restore passwords while Kubernetes is unreachable, and tell whether a
  Secret still has that password. A verifier is remembered only when its digest is the one in the role's claim, never
  the clear text. It is as secret as what is in pg_authid, and stays in memory as long as the role's object exists.
- `OwnChanges`: roles whose change comes back as a notification.
- `ReadBackCache`: what was read back after a change. The controller reads a role that it changed twice more: when the
  change's own NOTIFY arrives, and after two seconds. Mostly nothing differs by then. These reconciles read the object,
  its policy and the role again; if all of it is equal, so is the decision. Each of them reads from the database
  everything that a reconcile reads about the role; any difference leads to a full reconcile.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pgrole_controller.controller.objects import Objects, Target, declared_version
from pgrole_controller.controller.privileges.grantees import Grantees
from pgrole_controller.controller.result import ObjectReconcile
from pgrole_controller.core.contest import Contests
from pgrole_controller.core.next_attempt import CONFIRM_SECONDS
from pgrole_controller.core.password import PasswordOrigin
from pgrole_controller.core.plan import Plan
from pgrole_controller.core.policy import ServerPolicy
from pgrole_controller.core.request import Key
from pgrole_controller.core.role import Password
from pgrole_controller.core.scram import Verifier
from pgrole_controller.core.state import Observed, Server

#: Time after which the notification of an own change is overdue, and after which it is no longer expected, in seconds.
OVERDUE_SECONDS = 30.0
EXPECTED_SECONDS = 300.0

#: Maximum number of expected notifications: after a change of thousands of roles, the first ones suffice.
MOST_EXPECTED = 1000

#: Maximum number of entries of the cache, and how long each is kept, in seconds: until both reconciles have happened.
MOST_READ_BACK = 512
KEPT_SECONDS = 2.0 * CONFIRM_SECONDS

#: A reconcile this many seconds after the change confirms it: no other is expected.
LAST_SECONDS = 0.75 * CONFIRM_SECONDS

_NO_PASSWORD = (PasswordOrigin.ELSEWHERE, PasswordOrigin.NOWHERE)


class Verifiers:
    """The verifiers by role name."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def get(self, role_name: str) -> Verifier | None:
        text = self._known.get(role_name)
        return None if text is None else Verifier(text)

    def note(self, role_name: str, verifier: Verifier) -> None:
        """Notes a verifier that was set."""
        self._known[role_name] = verifier.text

    def forget(self, role_name: str) -> None:
        self._known.pop(role_name, None)

    def unknown(self, seen: Iterable[ObjectReconcile]) -> dict[int, str]:
        """Returns the roles whose password is the claimed one but whose verifier is not known: oid to digest."""
        found: dict[int, str] = {}
        for one in seen:
            digest = one.claim.record.digest if one.claim else ""
            if not digest or one.named is None or one.named.role.password != Password(digest):
                continue
            known = self.get(one.role_name)
            if known is None or known.digest != digest:
                found[one.named.oid] = digest
        return found

    def learn(
        self, seen: Iterable[ObjectReconcile], digests: Mapping[int, str], stored: Mapping[int, Verifier]
    ) -> None:
        """Learns the verifiers read for `unknown`; ignores those that were replaced meanwhile."""
        for one in seen:
            verifier = stored.get(one.named.oid) if one.named else None
            if verifier is not None and one.named is not None and verifier.digest == digests.get(one.named.oid):
                self.note(one.role_name, verifier)


class OwnChanges:
    """Roles changed in one session whose notification has not arrived. Times are in seconds of one clock.

    The controller's own changes come back as notifications like all others, and the time that takes is the delay of
    detection. It is measured from the answer to the transaction, shortly after the commit. An own change without a
    notification becomes overdue.

    Caveats: a drift of the same role in between counts as the own change. A notification before the answer may be about
    the cause of the change, and is not counted.
    """

    def __init__(self) -> None:
        self._changing: set[str] = set()
        self._early: set[str] = set()  # notified during the transaction
        self._expected: dict[str, float] = {}  # role name → when the first change was answered; the oldest first

    def begin(self, role_names: Iterable[str]) -> None:
        """Notes that a transaction begins that changes these roles; `commit` ends it."""
        self._changing = set(role_names)

    def commit(self, changed: Iterable[str], now: float) -> None:
        """Notes that the transaction ended and changed these roles."""
        for name in changed:
            if name in self._changing and name not in self._early and len(self._expected) < MOST_EXPECTED:
                self._expected.setdefault(name, now)
        self._changing, self._early = set(), set()

    def notice(self, role_names: Iterable[str] | None, now: float) -> list[float]:
        """Handles a notification of these roles; None: any role. Returns the seconds since each own change."""
        names = set(self._expected) | self._changing if role_names is None else set(role_names)
        self._early |= self._changing & names
        return [max(now - self._expected.pop(name), 0.0) for name in names if name in self._expected]

    def expects(self, role_name: str) -> bool:
        """Whether a notification that names this role now is probably about an own change."""
        return role_name in self._expected or role_name in self._changing

    def discard(self, role_name: str) -> None:
        """Notes that the change had no effect, so no notification follows."""
        self._expected.pop(role_name, None)

    def overdue(self, now: float, interval: float = 0.0) -> int:
        """Returns how many changes were not noticed in time. `interval`: seconds between two rounds of Poll, which
        notices none sooner; one that is too long leaves none to count.
        """
        for name, since in list(self._expected.items()):
            if now - since > EXPECTED_SECONDS:
                del self._expected[name]
        return sum(now - since > OVERDUE_SECONDS + interval for since in self._expected.values())


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
            if len(self._kept) <= MOST_READ_BACK and now - since <= KEPT_SECONDS:
                return
            del self._kept[key]


def _depends_on_row_alone(target: Target, server: Server, observed: Observed, decision: Plan) -> bool:
    """Whether the decision needed only the object, its policy and the role's row, and nothing is left to do."""
    desired = target.desired
    if desired is None or server.enforcing or server.claims != "Database" or not observed.row or observed.claim is None:
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
        or observed.other_claims
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


@dataclass(frozen=True, slots=True)
class WorkerMemory:
    """What one worker remembers between reconciles: a cache that is safe to lose."""

    grantees: Grantees  # shared with every worker
    contests: Contests  # likewise
    verifiers: Verifiers = field(default_factory=Verifiers)
    own_changes: OwnChanges = field(default_factory=OwnChanges)  # of the session
    read_back: ReadBackCache = field(default_factory=ReadBackCache)  # of the session

    def of_next_session(self) -> "WorkerMemory":
        return WorkerMemory(self.grantees, self.contests, self.verifiers)
