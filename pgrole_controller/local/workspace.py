"""Resources for a local server: a folder, a free port on 127.0.0.1, and a lock for downloads."""

import atexit
import fcntl
import glob
import secrets
import shutil
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
    """Yields `state`, created if missing and kept; without one, a temporary folder that is removed at the end."""
    if state is not None:
        folder = state.absolute()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix=prefix) as scratch:
        yield Path(scratch)


def write_private(path: Path, text: str) -> None:
    """Writes a file readable only by its owner."""
    path.touch(mode=0o600)
    path.write_text(text, encoding="utf-8")


@asynccontextmanager
async def exclusive(path: Path, what: str, display: Display) -> AsyncIterator[None]:
    """Holds a lock so that only one process at a time provides `what`; released however its holder ends."""
    with path.open("a") as file:
        waiting = False
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not waiting:
                    display.say(f"Another process is fetching or building {what}; waiting for it")
                    waiting = True
                await anyio.sleep(0.3)
        yield


@contextmanager
def scratch_for(folder: Path) -> Iterator[Path]:
    """Yields a temporary folder beside `folder`, to make its content in; first removes what killed processes left.

    The caller keeps others from making the same `folder`.
    """
    prefix = f"making-{folder.name}-"
    for left in folder.parent.glob(f"{glob.escape(prefix)}*"):
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=folder.parent) as scratch:
        yield Path(scratch)


#: Below the ephemeral ports, so a chosen port stays free until it is bound, and while its server is stopped.
_RANGE = range(15_000, 32_000)

#: This many of the last chosen ports are reserved from other processes.
_KEPT = 128
_kept: deque[socket.socket] = deque()


@atexit.register
def _release_ports() -> None:
    while _kept:
        _kept.pop().close()


def free_port(wanted: int | None = None) -> int:
    """Returns `wanted` if it is free, else the first free port after a random one; on Linux no other process gets it
    while this one lives.

    The port stays unused until a server binds it with SO_REUSEADDR, as servers do. Raises OSError if none is free.
    """
    first = secrets.choice(_RANGE)
    others = chain(range(first, _RANGE.stop), range(_RANGE.start, first))
    for port in chain([wanted] if wanted else [], others):
        if _keep(port, alone=port != wanted):
            return port
    raise OSError("no free port on 127.0.0.1")


def _keep(port: int, *, alone: bool) -> bool:
    """Tells whether the port is free, and if so keeps it bound without listening. `alone`: no one else may keep it
    either.
    """
    keeper = socket.socket()
    try:
        alone = alone and sys.platform == "linux"  # elsewhere no server could bind a port that we keep
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
