"""Settings of a role (ALTER ROLE … SET) as values that can be compared with what PostgreSQL stores of them.

Names are compared without case, as PostgreSQL does. Values are texts as they are given, but for the few parameters that
are lists of names: PostgreSQL stores those quoted element by element, so they are read into elements and written anew.

What is declared is refused when it cannot be read. What is stored is written by whoever may log in: reading it never
fails and takes time in proportion to its length, and what cannot be read equals nothing that can be declared.
"""

import re
from collections.abc import Iterable, Mapping

from pgrole_controller.core.errors import Reason, Refused

#: GUC_LIST_QUOTE, as in pg_dump's variable_is_guc_list_quote: a fixed list, that no extension can add to.
LIST_PARAMETERS = frozenset(
    {
        "local_preload_libraries",
        "search_path",
        "session_preload_libraries",
        "shared_preload_libraries",
        "temp_tablespaces",
        "unix_socket_directories",
    }
)

#: Those whose elements are names in SQL: written without quotes they are in lower case.
_NAMES = frozenset({"search_path", "temp_tablespaces"})

#: Parameters that change who one is: only a policy that names them lets them be set.
IDENTITY_PARAMETERS = frozenset({"role", "session_authorization"})

#: Modules whose parameters are not known before they are loaded, beside the extensions that a server has.
MODULES = frozenset(
    {
        "auth_delay",
        "auto_explain",
        "basebackup_to_shell",
        "basic_archive",
        "passwordcheck",
        "pg_prewarm",
        "pg_stat_statements",
        "plperl",
        "plpgsql",
        "plpython",
        "plpython3",
        "pltcl",
        "pltclu",
        "sepgsql",
    }
)

#: Sorted pairs of a name in lower case and a canonical value; no name is in it twice.
Parameters = tuple[tuple[str, str], ...]

#: A stored value that cannot be read. No text of PostgreSQL contains NUL, and no text that is declared.
UNREADABLE = "\0"

#: In place of a name: what is stored cannot be told apart by name, and can only be reset as a whole.
ALL = "*"

#: A declared value is shorter, and a declared list has fewer elements: what is longer is not taken apart.
LONGEST_VALUE = 16_384
_MOST_ELEMENTS = 2_048

# What PostgreSQL takes in ALTER ROLE … RESET: words with dots between, each as long as an identifier may be.
_WORD = "[A-Za-z_\x80-\ud7ff\ue000-\U0010ffff][A-Za-z0-9_$\x80-\ud7ff\ue000-\U0010ffff]*+"
_NAME = re.compile(rf"{_WORD}(?:[.]{_WORD})*+")
_WORD_BYTES = 63

# scanner_isspace, but for the vertical tab, which is a space from PostgreSQL 16 on: it is none of either here.
_SPACE = " \t\n\r\f"
_ELEMENT = re.compile(rf'(?:"([^"]*+(?:""[^"]*+)*+)"|([^",{_SPACE}\v][^,{_SPACE}\v]*+))[{_SPACE}]*+(,[{_SPACE}]*+|\Z)')
_UPPER = re.compile("[A-Z]")


def canonical(parameters: Mapping[str, str]) -> Parameters:
    """What is declared, in the form that is compared. Raises Refused for a list that cannot be read."""
    return tuple(sorted((fold(name), _declared(fold(name), value)) for name, value in parameters.items()))


def read_settings(settings: Iterable[str] | None) -> Parameters:
    """What pg_db_role_setting.setconfig holds (`name=value`), in the same form; None: what is too long to be looked at.

    Never raises. Where a name is not one, or PostgreSQL would reset another one by it, it is all one: ALL, UNREADABLE.
    """
    found: dict[str, str] = {}
    for setting in () if settings is None else settings:
        spelt, _, value = setting.partition("=")
        name = fold(spelt)
        if name in found or not _is_resettable(spelt):
            return ((ALL, UNREADABLE),)
        found[name] = _stored(name, value)
    return ((ALL, UNREADABLE),) if settings is None else tuple(sorted(found.items()))


def fold(name: str) -> str:
    """In lower case as PostgreSQL has it in UTF-8: the letters of ASCII alone."""
    return _UPPER.sub(lambda letter: letter[0].lower(), name)


def elements(value: str, *, folding: bool = False, strict: bool = False) -> tuple[str, ...]:
    """The elements of a list of names: commas between, double quotes around what is not plain.

    As PostgreSQL reads it (SplitIdentifierString where `folding`, which puts what has no quotes in lower case, else
    SplitGUCList), without cutting names. Raises ValueError for a text that is no such list; where `strict`, also for a
    double quote in a name without quotes, which PostgreSQL takes for a part of it.
    """
    found: list[str] = []
    place, more = len(value) - len(value.lstrip(_SPACE)), ","
    if place == len(value):
        return ("",)
    while more:
        element = _ELEMENT.match(value, place)
        if element is None:
            raise ValueError(_what_is_wrong(value, place))
        quoted, plain, more = element.groups()
        if strict and '"' in (plain or ""):
            raise ValueError(f"{_cut(plain)!r} needs double quotes")
        found.append(quoted.replace('""', '"') if plain is None else fold(plain) if folding else plain)
        place = element.end()
    return tuple(found)


def join(names: Iterable[str]) -> str:
    """The inverse of `elements`, every element in quotes."""
    return ", ".join('"' + name.replace('"', '""') + '"' for name in names)


def _declared(name: str, value: str) -> str:
    if name not in LIST_PARAMETERS:
        return value
    try:
        return join(elements(value, folding=name in _NAMES, strict=True))
    except ValueError as error:
        raise Refused(
            Reason.INVALID_SPEC,
            f"parameter {name}: {error}; its value is a comma-separated list of names, e.g. app, public",
        ) from error


def _stored(name: str, value: str) -> str:
    if len(value) > LONGEST_VALUE:
        return UNREADABLE
    if name not in LIST_PARAMETERS:
        return value
    if value.count(",") >= _MOST_ELEMENTS:
        return UNREADABLE
    try:
        return join(elements(value, folding=name in _NAMES))
    except ValueError:
        return UNREADABLE


def _is_resettable(name: str) -> bool:
    """Whether ALTER ROLE … RESET of the name in lower case resets it.

    PostgreSQL knows its own parameters in any case; those of others it compares with case where they are stored.
    """
    if len(name) > LONGEST_VALUE or not _NAME.fullmatch(name) or ("." in name and name != fold(name)):
        return False
    return all(len(word.encode()) <= _WORD_BYTES for word in name.split("."))


def _what_is_wrong(value: str, place: int) -> str:
    rest = value[place:]
    if rest.startswith('"'):
        end = re.compile(rf'"[^"]*+(?:""[^"]*+)*+"[{_SPACE}]*+').match(rest)
        if end is None:
            return "a closing double quote is missing"
        return f"a comma is missing before {_cut(rest[end.end() :])!r}"
    name = rest.partition(",")[0].strip(_SPACE)
    return f"{_cut(name)!r} needs double quotes"


def _cut(text: str) -> str:
    return text if len(text) <= 20 else text[:20] + "…"
