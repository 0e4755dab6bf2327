"""Finds the files shipped with the package: `sql/` and `crds/`.

In a checkout (and an editable install) they are beside the package; in a wheel they are inside it, under `_data`.
"""

from functools import cache
from pathlib import Path

_PACKAGE = Path(__file__).parent


def path(*parts: str) -> Path:
    """Returns the path of `sql/...` or `crds/...` in this installation."""
    packed = _PACKAGE / "_data"
    return (packed if packed.is_dir() else _PACKAGE.parent).joinpath(*parts)


def text(folder: str, *parts: str) -> str:
    """Reads a file of `sql/...`."""
    return _texts(folder)["/".join(parts)]


def named_texts(folder: str, *parts: str) -> list[tuple[str, str]]:
    """Reads all files in one folder of `sql/`: their names and texts, in the order of the names."""
    within = "/".join([*parts, ""])
    return [
        (name.removeprefix(within), each) for name, each in sorted(_texts(folder).items()) if name.startswith(within)
    ]


@cache
def _texts(folder: str) -> dict[str, str]:
    """Reads all of them at once: later, no file descriptor may be left (EMFILE)."""
    top = path(folder)
    return {each.relative_to(top).as_posix(): each.read_text(encoding="utf-8") for each in top.rglob("*.sql")}
