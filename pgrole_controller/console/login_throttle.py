"""Attempts to log in that fail are counted, and slowed down once there are too many."""

import anyio

#: Attempts to log in that fail: for one address and altogether, in a minute. After that, they are slowed down.
MOST_FAILURES = 10
MOST_FAILURES_IN_ALL = 60
FAILURE_SECONDS = 60.0
#: Seconds between two checks of those that are slowed down.
SLOWED_SECONDS = 0.05
MOST_WAITING = 100


class Rejected(Exception):
    """The viewer is not admitted; the message says why, without the token. `status` is of HTTP."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Failures:
    """Counts failed attempts to log in. An attempt counts from its beginning. Times are in seconds of one clock."""

    def __init__(self) -> None:
        self._since = 0.0
        self._by_address: dict[str, int] = {}

    def exceeded(self, address: str | None, now: float) -> bool:
        if address is None:
            return False
        if now - self._since >= FAILURE_SECONDS:
            self._since, self._by_address = now, {}
        in_all = sum(self._by_address.values())
        return self._by_address.get(address, 0) >= MOST_FAILURES or in_all >= MOST_FAILURES_IN_ALL

    def count(self, address: str | None) -> None:
        if address is not None:
            self._by_address[address] = self._by_address.get(address, 0) + 1

    def forgive(self, address: str | None) -> None:
        """The attempt did not fail, or not through its own fault."""
        if address is not None and self._by_address.get(address):
            self._by_address[address] -= 1


class LoginQueues:
    """Where attempts wait after too many failed. Addresses take turns, and attempts from one are in order.

    A correct token waits for those before it, for MOST_WAITING turns at most. When so many wait, the newest attempt of
    the address with the most of them is refused, so an address that floods the console delays no other.
    """

    def __init__(self) -> None:
        self._turn = anyio.Lock()
        self._by_address: dict[str, tuple[anyio.Lock, list[anyio.CancelScope]]] = {}

    def __len__(self) -> int:
        """Attempts that wait."""
        return sum(len(waiting) for _, waiting in self._by_address.values())

    async def wait(self, address: str) -> None:
        """Returns when it is this attempt's turn. Raises Rejected."""
        queue, waiting = self._by_address.setdefault(address, (anyio.Lock(), []))
        with anyio.CancelScope() as scope:
            waiting.append(scope)
            try:
                if len(self) > MOST_WAITING:
                    max((each for _, each in self._by_address.values()), key=len)[-1].cancel()
                async with queue, self._turn:  # locks are fair: one attempt of each address waits for a turn
                    await anyio.sleep(SLOWED_SECONDS)
            finally:
                waiting.remove(scope)
                if not waiting:
                    self._by_address.pop(address, None)
        if scope.cancelled_caught:
            raise Rejected(429, "too many attempts to log in failed: wait a minute")
