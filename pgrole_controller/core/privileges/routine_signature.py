"""How a declaration names a routine: by its name, or with types of arguments as GRANT ON FUNCTION accepts them.

Types are compared in the form in which PostgreSQL's format_type shows them, without type modifiers. A declared name may
use the other names of PostgreSQL's own types.
"""

import re
import string
from functools import lru_cache

#: Other names of types, by the form in which format_type shows them: keywords of SQL, and names in pg_type.
_KEYWORDS = {
    "bit": ("bit",),
    "character": ("char", "nchar", "national char", "national character"),
    "character varying": ("char varying", "nchar varying", "national char varying", "national character varying"),
    "double precision": ("float",),
    "integer": ("int",),
    "numeric": ("dec", "decimal"),
    "bit varying": (),
    "time without time zone": (),
    "time with time zone": (),
    "timestamp without time zone": (),
    "timestamp with time zone": (),
}
_NAMES = {
    "bigint": "int8",
    "bit varying": "varbit",
    "boolean": "bool",
    "character": "bpchar",
    "character varying": "varchar",
    "double precision": "float8",
    "integer": "int4",
    "real": "float4",
    "smallint": "int2",
    "time with time zone": "timetz",
    "time without time zone": "time",
    "timestamp with time zone": "timestamptz",
    "timestamp without time zone": "timestamp",
}
_BY_NAME = {name: shown for shown, name in _NAMES.items()}
_BY_KEYWORD = {name: shown for shown, names in _KEYWORDS.items() for name in (shown, *names)} | _BY_NAME

#: Names in pg_type that format_type quotes. Without quotes and schema, char is another type.
_QUOTED_NAMES = {'"char"': '"char"', "char": '"char"', '"any"': '"any"', "any": '"any"'}

#: Names that mean the same without quotes, unless a keyword of SQL stands for a type of another name.
_NEEDLESSLY_QUOTED = re.compile(r'"([a-z_][a-z0-9_$]*)"')
#: Keywords of SQL that are in pg_type, too.
_TYPES_AND_KEYWORDS = frozenset({*_BY_NAME, "bit", "numeric"})

_QUOTED = r'"(?:[^"]|"")+"'
_MARK = re.compile(r'["()]')
_SEPARATOR = re.compile(rf"{_QUOTED}|\([^()\"]*\)|,")
_FOLDED = re.compile(rf'{_QUOTED}|[^"]+')
_MODE = re.compile(r"(?:in out|inout|in|out|variadic) ")
_MODIFIER = re.compile(rf"({_QUOTED})|(?<=[\w\"]) ?\( ?[+-]?\d+(?: ?, ?[+-]?\d+)* ?\)")
_FLOAT = re.compile(r"float ?\( ?(\d{1,2}) ?\)")
#: Begins at the first bracket of a row: a search that begins at each of them takes quadratic time.
_ARRAY = re.compile(r"(?<!\])(?<!\] )(?: ?\[ ?(?:\d+ ?)?\])+$| array(?: ?\[ ?(?:\d+ ?)?\])?$")
_INTERVAL = re.compile(r"interval (?:year|month|day|hour|minute|second)(?: to (?:month|hour|minute|second))?")
_QUALIFIED = re.compile(rf'({_QUOTED}|[^\s"().,\[\]]+) ?\. ?({_QUOTED}|[^\s"().,\[\]]+)')
_PLAIN = re.compile(rf'{_QUOTED}|[^\s"().,\[\]]+')

#: PostgreSQL folds letters of ASCII only.
_LOWER = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)

#: Single-precision floats have at most this precision.
_REAL_BITS = 24

#: Maximum number of types whose normalized form is remembered, and of declared routines.
_MOST_TYPES = 4096


@lru_cache(maxsize=_MOST_TYPES)
def split_signature(text: str) -> tuple[str, str | None]:
    """Returns the name and the normalized arguments of a declared routine; arguments None: every overload."""
    if not (text.endswith(")") and "(" in text):
        return text, None
    begin = _find_arguments(text)
    return text[:begin], normalize_arguments(text[begin + 1 : -1])


def _find_arguments(text: str) -> int:
    """Returns the place of the parenthesis that the last one closes. A name may contain parentheses, but PostgreSQL
    quotes types whose names do.
    """
    depth, quoted = 0, False
    for found in reversed([*_MARK.finditer(text)]):
        if found[0] == '"':
            quoted = not quoted
        elif not quoted:
            depth += 1 if found[0] == ")" else -1
            if depth == 0:
                return found.start()
    return text.index("(")


def normalize_arguments(arguments: str) -> str:
    """Returns a routine's argument types in the form in which they are compared, such as `integer,app.state[]`.

    Modes, names of arguments and type modifiers are left out, and so are OUT arguments, which identify no routine.
    Arguments with `*` or `?`, and what is no type, are only folded to lower case and single spaces. The result has the
    same normalized form.
    """
    return ",".join(one for one in map(_normalize, _split(arguments)) if one is not None)


def _split(arguments: str) -> list[str]:
    """Splits at commas outside quotes and parentheses."""
    if '"' not in arguments and "(" not in arguments:
        return arguments.split(",")
    parts: list[str] = []
    start = 0
    for found in _SEPARATOR.finditer(arguments):
        if found[0] == ",":
            parts.append(arguments[start : found.start()])
            start = found.end()
    return [*parts, arguments[start:]]


@lru_cache(maxsize=_MOST_TYPES)
def _normalize(argument: str) -> str | None:
    """Returns None for an OUT argument."""
    folded = _FOLDED.sub(_fold, argument).strip()
    if "*" in folded or "?" in folded:
        return _FOLDED.sub(_unquote_qualified, folded)
    mode = _MODE.match(folded)
    declared = folded[mode.end() :] if mode else folded
    shown = _show_type(declared)
    if shown is None:
        name = _PLAIN.match(declared)
        shown = _show_type(declared[name.end() :].lstrip()) if name and declared[name.end() :].startswith(" ") else None
    if shown is None:
        return folded
    return None if mode and mode[0] == "out " else shown


def _fold(part: re.Match[str]) -> str:
    return part[0] if part[0].startswith('"') else re.sub(r"\s+", " ", part[0].translate(_LOWER))


def _show_type(text: str) -> str | None:
    """Returns a folded type as format_type shows it; None if it is no type."""
    array = _ARRAY.search(text)
    text = text[: array.start()] if array else text
    precision = _FLOAT.fullmatch(text)
    if precision:
        shown = "real" if int(precision[1]) <= _REAL_BITS else "double precision"
    else:
        found = _show_element(_MODIFIER.sub(lambda one: one[1] or "", text))
        if found is None:
            return None
        shown = found
    return f"{shown}[]" if array else shown


def _show_element(text: str) -> str | None:
    known = _BY_KEYWORD.get(text)
    if known is not None:
        return known
    if _INTERVAL.fullmatch(text):
        return "interval"
    if _PLAIN.fullmatch(text):
        return _show_plain(text)
    qualified = _QUALIFIED.fullmatch(text)
    if qualified is None:
        return None
    schema, name = map(_unquote, qualified.groups())
    if schema == "pg_catalog":
        return _BY_NAME.get(name) or _QUOTED_NAMES.get(name) or name
    return f"{schema}.{name}"


def _show_plain(name: str) -> str:
    """Shows a type of PostgreSQL, whose name may be quoted: `"int"` is no type, and `"char"` is not `char`."""
    bare = _unquote(name)
    if bare == name or bare in _QUOTED_NAMES or (bare in _BY_KEYWORD and bare not in _TYPES_AND_KEYWORDS):
        return name
    return _BY_NAME.get(bare, bare)


def _unquote_qualified(part: re.Match[str]) -> str:
    before, after = part.string[max(part.start() - 2, 0) : part.start()], part.string[part.end() : part.end() + 2]
    qualified = before.rstrip().endswith(".") or after.lstrip().startswith(".")
    return _unquote(part[0]) if qualified else part[0]


def _unquote(name: str) -> str:
    needless = _NEEDLESSLY_QUOTED.fullmatch(name)
    return needless[1] if needless else name
