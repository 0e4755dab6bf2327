"""A look at every object once in a while, spread evenly, so that no lost hint lasts.

One timer for all of them: what it takes does not come in bursts, and a period has as many rounds whatever their number.
"""

import math
from collections.abc import Callable

import anyio

from pgrole_controller.controller.sources import PgRoleSource

#: Into how many rounds a period is divided.
ROUNDS = 360


async def resync(period: float, source: PgRoleSource, draw: Callable[[], float]) -> None:
    """Hints every object within `period` seconds, for ever. `draw` gives numbers in [0, 1): when it begins."""
    store = source.objects.store
    await store.synced.wait()
    await anyio.sleep(draw() * period / ROUNDS)
    while True:
        keys = sorted(store.keys())
        size = math.ceil(len(keys) / ROUNDS)
        for start in range(ROUNDS):
            for key in keys[start * size : (start + 1) * size]:
                source.resync(key)
            await anyio.sleep(period / ROUNDS)
