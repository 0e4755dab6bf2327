"""A look at every object of a lane once in a while, spread evenly, so that no lost request lasts.

One timer for all of them: what it takes does not come in bursts, and a period has as many rounds whatever their number.
"""

import math
from collections.abc import Callable

import anyio

from pgrole_controller.controller.lane import Lane
from pgrole_controller.core.request import Rank, RequestReason

#: Into how many rounds a period is divided, at most.
ROUNDS = 360


async def resync(lane: Lane, draw: Callable[[], float]) -> None:
    """Enqueues every object within the period of its server, for ever. `draw` gives numbers in [0, 1): when it
    begins.
    """
    await lane.synced()
    await _wait(lane, draw() * lane.server.resync_seconds / ROUNDS)
    while True:
        period, keys = lane.server.resync_seconds, sorted(lane.keys())
        rounds = min(max(len(keys), 1), ROUNDS)
        size = math.ceil(len(keys) / rounds)
        for start in range(rounds):
            for key in keys[start * size : (start + 1) * size]:
                lane.enqueue(key, RequestReason.RESYNC, Rank.RESYNC)
            if await _wait(lane, period / rounds):
                break


async def _wait(lane: Lane, seconds: float) -> bool:
    """True, and sooner, when the server has another period from now on."""
    with anyio.move_on_after(seconds):
        await lane.retimed.wait()
        return True
    return False
