"""Patterns of names: `*` stands for any text, `?` for one character, anything else for itself."""

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Tells whether a name matches any of these patterns."""
    # fnmatch would read a bracket as a character class.
    return any(fnmatchcase(name, pattern.replace("[", "[[]")) for pattern in patterns)


def names_itself(name: str, patterns: Iterable[str]) -> bool:
    """Tells whether the exact name is listed, rather than a pattern that matches it."""
    return any(name == pattern and not is_pattern(pattern) for pattern in patterns)


def is_pattern(name: str) -> bool:
    return "*" in name or "?" in name


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
