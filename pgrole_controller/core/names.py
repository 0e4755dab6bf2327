"""Names: how patterns match them, and how messages spell and count them.

In a pattern, `*` stands for any text, `?` for one character, anything else for itself; in a server's policy,
`{namespace}` stands for the object's. Of several names, people read the first few, and the rest is only counted.
"""

import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

#: The object's namespace, in a pattern of a policy.
NAMESPACE = "{namespace}"

_PLAIN = re.compile(r"[\w$-]+", re.ASCII)
_PLACEHOLDER = re.compile(r"\{[^{}]*\}")


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Tells whether a name matches any of these patterns."""
    # fnmatch would read a bracket as a character class.
    return any(fnmatchcase(name, pattern.replace("[", "[[]")) for pattern in patterns)


def names_itself(name: str, patterns: Iterable[str]) -> bool:
    """Tells whether the exact name is listed, rather than a pattern that matches it. `patterns`: as written, before
    NAMESPACE is replaced.
    """
    return any(name == pattern and not is_pattern(pattern) and NAMESPACE not in pattern for pattern in patterns)


def is_pattern(name: str) -> bool:
    return "*" in name or "?" in name


def explain_names(missing: Iterable[str]) -> str:
    """Returns what to add to the message that these names do not exist, where patterns are not allowed."""
    return " (names here are not patterns: * and ? match only themselves)" if any(map(is_pattern, missing)) else ""


def find_unknown_placeholders(patterns: Iterable[str]) -> list[str]:
    """Returns what looks like NAMESPACE in these patterns and is not: it stands for itself."""
    return sorted({one for pattern in patterns for one in _PLACEHOLDER.findall(pattern)} - {NAMESPACE})


def compile_patterns(patterns: Iterable[str]) -> re.Pattern[str]:
    """Returns an expression whose `fullmatch` tells what `matches` does, however many patterns there are."""
    return re.compile("|".join(map(_expression, patterns)) or r"(?!)", re.DOTALL)


def _expression(pattern: str) -> str:
    """Atomic groups keep a pattern with many asterisks from taking exponential time."""
    first, *others = ("".join("." if one == "?" else re.escape(one) for one in part) for part in pattern.split("*"))
    if not others:
        return first
    *middle, last = others
    return first + "".join(f"(?>.*?{part})" for part in middle if part) + ".*" + last


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


def name_most(names: Sequence[str]) -> str:
    """As `name_some`, for a message that goes on with what to do: at most 12 names; `none` if there are none."""
    return name_some(names, most=12) or "none"


def quote_some(names: Iterable[str]) -> str:
    """As `name_some`, each name in quotes."""
    return name_some([f'"{name}"' for name in names])


def count_things(number: int, noun: str) -> str:
    """Returns e.g. `1 warning` or `2 warnings`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def cut_end(text: str, most: int) -> str:
    """Returns a text of at most this many characters as it is, or that many of it, and an ellipsis."""
    return text if len(text) <= most else f"{text[:most]}…"


def cut_middle(text: str, most: int) -> str:
    """Returns at most this many characters of a text, without its middle: a message ends with what to do."""
    end = (most - 1) // 2
    return text if len(text) <= most else f"{text[: most - 1 - end]}…{text[len(text) - end :]}"


#: A long text has no room for more.
_MOST_MESSAGES = 100


def join_messages(messages: Iterable[str], most: int) -> str:
    """Returns these messages, each once, separated by semicolons. If that exceeds `most` characters, long ones are
    shortened, and those that do not fit are counted.
    """
    texts = list(dict.fromkeys(messages))
    joined = "; ".join(texts)
    if len(joined) <= most:
        return joined
    texts = [cut_middle(one, most // min(len(texts), 3) - 10) for one in texts]
    for shown in range(min(len(texts), _MOST_MESSAGES), 0, -1):
        left = len(texts) - shown
        joined = "; ".join(texts[:shown]) + (f"; and {left} more" if left else "")
        if len(joined) <= most:
            break
    return joined
