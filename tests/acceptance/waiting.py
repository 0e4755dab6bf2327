"""Pauses between two requests to the API server while a test waits; they grow with the time waited."""

import anyio

_FIRST_SECONDS = 0.02
_LAST_SECONDS = 0.1
#: Share of the time waited so far.
_SHARE = 1 / 10


class Attempts:
    """For `async for`: continues at once, then after a pause each time, endlessly."""

    def __init__(self) -> None:
        self._began: float | None = None

    def __aiter__(self) -> "Attempts":
        return self

    async def __anext__(self) -> None:
        now = anyio.current_time()
        if self._began is None:
            self._began = now
        else:
            await anyio.sleep(max(_FIRST_SECONDS, min(_LAST_SECONDS, (now - self._began) * _SHARE)))
