"""How messages name things. Of several, people read the first few, and the rest is only counted."""

import re
from collections.abc import Iterable, Sequence

_PLAIN = re.compile(r"[\w$-]+", re.ASCII)


def spell_name(name: str) -> str:
    """Returns a name that others chose as a part of a sentence: in quotes, as in SQL, if it could pass for more words
    of the sentence. Anyone who can create a table can call it `t was granted by alice`.
    """
    return name if _PLAIN.fullmatch(name) else '"' + name.replace('"', '""') + '"'


def name_some(names: Sequence[str], separator: str = ", ", *, most: int = 5, count: int | None = None) -> str:
    """Returns the first of these names, at most `most`, and the number of the others. `count`: of all, if `names` are
    only the first.
    """
    shown = names[:most]
    more = (len(names) if count is None else count) - len(shown)
    return separator.join(shown) + (f" and {more} more" if more > 0 else "")


def quote_some(names: Iterable[str]) -> str:
    """As `name_some`, each name in quotes."""
    return name_some([f'"{name}"' for name in names])


def count_things(number: int, noun: str) -> str:
    """Returns e.g. `1 warning` or `2 warnings`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
