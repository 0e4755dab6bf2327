"""A reusable event for the tasks of one event loop; callbacks may call `set` and `pulse`."""

import anyio


class Signal:
    """An event that can be set again and again.

    `set` lasts until `clear`: a task that clears, then reads, then waits misses nothing. `pulse` wakes only the tasks
    that wait at that moment.
    """

    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event = anyio.Event()

    def is_set(self) -> bool:
        return self._event.is_set()

    def set(self) -> None:
        self._event.set()

    def clear(self) -> None:
        if self._event.is_set():  # otherwise they would wait for another event
            self._event = anyio.Event()

    def pulse(self) -> None:
        self._event.set()
        self._event = anyio.Event()

    async def wait(self) -> None:
        """Waits until set or pulsed; returns at once while set."""
        await self._event.wait()
