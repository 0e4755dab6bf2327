"""A condition that comes true again and again. For tasks of one event loop; `set` and `pulse` suit callbacks."""

import anyio


class Signal:
    """An event that can be used again.

    `set` lasts until `clear`: a task that clears, then reads, then waits misses nothing. `pulse` wakes those that wait
    at the moment, and no one else.
    """

    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event = anyio.Event()

    def is_set(self) -> bool:
        return self._event.is_set()

    def set(self) -> None:
        self._event.set()

    def clear(self) -> None:
        if self._event.is_set():  # else those that wait would wait for another
            self._event = anyio.Event()

    def pulse(self) -> None:
        self._event.set()
        self._event = anyio.Event()

    async def wait(self) -> None:
        """Until it is set or pulsed; at once while it is set."""
        await self._event.wait()
