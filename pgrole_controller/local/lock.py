"""One process at a time gets what all of them need."""

import fcntl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from pgrole_controller.local.display import Display


@asynccontextmanager
async def alone(path: Path, what: str, display: Display) -> AsyncIterator[None]:
    """Held by one process at a time, so that two do not get `what` at once; freed when its holder ends, however."""
    with path.open("a") as file:
        told = False
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not told:
                    display.say(f"Another process is fetching or building {what}; waiting for it")
                    told = True
                await anyio.sleep(0.3)
        yield
