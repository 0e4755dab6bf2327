"""The folder that a local server lives in."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def home(state: Path | None, prefix: str) -> Iterator[Path]:
    """`state`, made when it is not there, and kept; without one, a temporary folder that is removed at the end."""
    if state is not None:
        folder = state.absolute()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix=prefix) as scratch:
        yield Path(scratch)
