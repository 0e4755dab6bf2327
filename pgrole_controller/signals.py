"""A reusable event for the tasks of one event loop, and calls that an event ends."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

Answer = TypeVar("Answer")


async def unless(asked: anyio.Event, call: Callable[[], Awaitable[Answer]]) -> Answer | None:
    """Returns what `call` returns, and raises its error. If `asked` is set before that, cancels the call and returns
    None.
    """
    answers: list[Answer] = []
    errors: list[Exception] = []

    async def answer() -> None:
        try:
            answers.append(await call())
        except Exception as error:  # noqa: BLE001 -- raised below, without a group around it
            errors.append(error)
        tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(answer)
        await asked.wait()
        tasks.cancel_scope.cancel()
    if errors:
        raise errors[0]
    return answers[0] if answers else None


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
