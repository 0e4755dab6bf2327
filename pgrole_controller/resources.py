"""Where the files that travel with the package are: `sql/` and `crds/`.

In a checkout (and an editable install) they stand beside the package; in a wheel they are inside it, under `_data`.
"""

from pathlib import Path

_PACKAGE = Path(__file__).parent


def path(*parts: str) -> Path:
    """The path of `sql/...` or `crds/...`, wherever this installation keeps it."""
    packed = _PACKAGE / "_data"
    return (packed if packed.is_dir() else _PACKAGE.parent).joinpath(*parts)


def text(*parts: str) -> str:
    return path(*parts).read_text(encoding="utf-8")
