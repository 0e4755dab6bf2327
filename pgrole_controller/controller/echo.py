"""Our own changes come back as notifications, as everybody's do: how long that takes is the delay of detection.

It is counted from the answer to the transaction, which comes a little after the commit, and of changes that mostly
follow another one at once, when a look at the catalogs has just been made. A change that is never told of is overdue.

Caveats: a drift of the same role that comes in between is taken for the echo. What is heard before the answer cannot be
told from what caused the change, and is left out.
"""

from collections.abc import Iterable

#: When an echo is overdue, and when it is not waited for any more, in seconds.
OVERDUE = 30.0
KEPT = 300.0

#: So many are waited for at most: after a change of thousands of roles the first of them will do.
MOST = 1000


class Echoes:
    """Of one session with a server. Times are in seconds of one clock."""

    def __init__(self) -> None:
        self._sending: set[str] = set()
        self._early: set[str] = set()
        self._sent: dict[str, float] = {}  # role name → when the first change was answered; the oldest first

    def send(self, role_names: Iterable[str]) -> None:
        """A transaction that changes these begins; `answer` ends it."""
        self._sending = set(role_names)

    def answer(self, changed: Iterable[str], now: float) -> None:
        """It is over, and these were changed."""
        for name in changed:
            if name in self._sending and name not in self._early and len(self._sent) < MOST:
                self._sent.setdefault(name, now)
        self._sending, self._early = set(), set()

    def hear(self, role_names: Iterable[str] | None, now: float) -> list[float]:
        """Something was noticed of these; None: of all. The seconds since each that we changed."""
        names = set(self._sent) | self._sending if role_names is None else set(role_names)
        self._early |= self._sending & names
        return [max(now - self._sent.pop(name), 0.0) for name in names if name in self._sent]

    def expects(self, role_name: str) -> bool:
        """Whether what is noticed of it now is likely to be our own change."""
        return role_name in self._sent or role_name in self._sending

    def forget(self, role_name: str) -> None:
        """What was sent had no effect: nothing tells of it."""
        self._sent.pop(role_name, None)

    def overdue(self, now: float) -> int:
        for name, since in list(self._sent.items()):
            if now - since > KEPT:
                del self._sent[name]
        return sum(now - since > OVERDUE for since in self._sent.values())
