"""Reads several servers, databases or namespaces, a few at a time."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import anyio

Place = TypeVar("Place")
Found = TypeVar("Found")


async def read_each(places: Sequence[Place], read: Callable[[Place], Awaitable[Found]], most: int) -> list[Found]:
    """Returns what `read` returns for each, in this order. `most`: of them are read at once.

    Raises what the first that fails raises, and ends the others.
    """
    found: dict[int, Found] = {}
    failed: list[Exception] = []
    turns = anyio.CapacityLimiter(most)

    async def read_one(number: int, place: Place) -> None:
        try:
            async with turns:
                found[number] = await read(place)
        except Exception as error:  # noqa: BLE001 -- raised below, without a group around it
            failed.append(error)
            tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        for number, place in enumerate(places):
            tasks.start_soon(read_one, number, place)
    if failed:
        raise failed[0]
    return [found[number] for number in range(len(places))]
