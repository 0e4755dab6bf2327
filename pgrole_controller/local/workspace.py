"""What a local server is given: a folder, a port of 127.0.0.1 that no one uses, and a lock on what is fetched once."""

import atexit
import fcntl
import random
import socket
import sys
import tempfile
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import chain
from pathlib import Path

import anyio

from pgrole_controller.local.display import Display


@contextmanager
def server_folder(state: Path | None, prefix: str) -> Iterator[Path]:
    """`state`, made when it is not there, and kept; without one, a temporary folder that is removed at the end."""
    if state is not None:
        folder = state.absolute()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix=prefix) as scratch:
        yield Path(scratch)


@asynccontextmanager
async def exclusive(path: Path, what: str, display: Display) -> AsyncIterator[None]:
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


#: Below those that the kernel gives to outgoing connections: what is picked here stays free until it is bound, and
#: while its server is stopped.
_RANGE = range(15_000, 32_000)

#: So many of the last ports that were picked are kept from other processes that pick one.
_KEPT = 128
_kept: deque[socket.socket] = deque()


@atexit.register
def _let_go() -> None:
    while _kept:
        _kept.pop().close()


def free_port(wanted: int | None = None) -> int:
    """`wanted` when it is free, else a random one, which on Linux no other process is given while this one lives.

    Nobody listens there until a server binds it, as servers do, with SO_REUSEADDR. Raises OSError when none is free.
    """
    others = random.sample(_RANGE, len(_RANGE))
    for port in chain([wanted] if wanted else [], others):
        if _keep(port, alone=port != wanted):
            return port
    raise OSError("no free port on 127.0.0.1")


def _keep(port: int, *, alone: bool) -> bool:
    """Whether it is free; if so it is bound from now on, and nobody listens. `alone`: also nobody else keeps it."""
    keeper = socket.socket()
    try:
        alone = alone and sys.platform == "linux"  # elsewhere no server could bind what is kept
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, not alone)
        keeper.bind(("127.0.0.1", port))
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    except OSError:
        keeper.close()
        return False
    if not alone:
        keeper.close()
        return True
    _kept.append(keeper)
    if len(_kept) > _KEPT:
        _kept.popleft().close()
    return True
