"""commands/server_reading: several places are read at once, and answered in their order."""

import anyio
import anyio.lowlevel

from pgrole_controller.commands.server_reading import read_each


async def test_answers_are_in_the_order_of_the_places_whichever_comes_first() -> None:
    last = anyio.Event()
    reading: list[str] = []
    most = 0

    async def read(place: str) -> str:
        nonlocal most
        reading.append(place)
        most = max(most, len(reading))
        if place == "c":
            last.set()
        elif place == "a":
            await last.wait()
        await anyio.lowlevel.checkpoint()
        reading.remove(place)
        return place.upper()

    with anyio.fail_after(5.0):
        assert await read_each(["a", "b", "c"], read, 2) == ["A", "B", "C"]
    assert most == 2
