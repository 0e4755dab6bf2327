"""How messages name several things: people read the first few, and the rest is only counted."""

from collections.abc import Sequence


def name_some(names: Sequence[str], separator: str = ", ", *, most: int = 5, count: int | None = None) -> str:
    """Returns the first of these names, at most `most`, and the number of the others. `count`: of all, if `names` are
    only the first.
    """
    shown = names[:most]
    more = (len(names) if count is None else count) - len(shown)
    return separator.join(shown) + (f" and {more} more" if more > 0 else "")
