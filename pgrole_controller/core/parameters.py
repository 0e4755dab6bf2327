"""A role's settings (ALTER ROLE … SET) in a form that can be compared with what PostgreSQL stores.

Names are compared case-insensitively, as in PostgreSQL. Values are compared as text, except for the few parameters that
are lists of names: PostgreSQL stores those quoted element by element, so they are parsed and written again.

A declared value that cannot be parsed is refused. Stored values are written by anyone who may log in: reading them
never fails and takes time proportional to their length, and an unreadable value equals nothing that can be declared.
"""

import math
import re
from collections.abc import Iterable, Mapping

from pgrole_controller.core.errors import Reason, Refused
from pgrole_controller.core.names import cut_end

#: GUC_LIST_QUOTE, as in pg_dump's variable_is_guc_list_quote: a fixed list that extensions cannot add to.
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

#: Lists whose elements are SQL names: PostgreSQL folds unquoted ones to lower case.
_NAMES = frozenset({"search_path", "temp_tablespaces"})

#: Parameters that change the current user; they can be set only if the policy names them.
IDENTITY_PARAMETERS = frozenset({"role", "session_authorization"})

#: Parameters of superusers that ALTER ROLE … SET accepts, and that pg_settings hides from roles without
#: pg_read_all_settings (GUC_SUPERUSER_ONLY); each with the first version that has it.
_HIDDEN = {"dynamic_library_path": 0, "extension_control_path": 180_000, "session_preload_libraries": 0}

#: Modules, besides the server's extensions, whose parameters are unknown until they are loaded.
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

#: Sorted pairs of a lower-case name and a canonical value; names are unique.
Parameters = tuple[tuple[str, str], ...]

#: An unreadable stored value. Neither PostgreSQL nor a declaration can hold NUL.
UNREADABLE = "\0"

#: Replaces the name when stored names are ambiguous, so that only RESET ALL is safe.
ALL = "*"

#: Declared values are shorter, and declared lists have fewer elements. Longer ones are not parsed.
LONGEST_VALUE = 16_384
_MOST_ELEMENTS = 2_048
#: Of a text that is not a valid list, a message shows so many characters.
_SHOWN = 20

# Names that ALTER ROLE … RESET accepts: words separated by dots, each as long as an identifier may be.
# The classes list the excluded characters, including surrogates: re compiles these in a tenth of the time.
_WORD = "[^\0-@\\[-^`{-\x7f\ud800-\udfff][^\0-#%-/:-@\\[-^`{-\x7f\ud800-\udfff]*+"
_NAME = re.compile(rf"{_WORD}(?:[.]{_WORD})*+")
_WORD_BYTES = 63

# scanner_isspace without the vertical tab, which is a space only from PostgreSQL 16 on. Neither version gets one here.
_SPACE = " \t\n\r\f"
_ELEMENT = re.compile(rf'(?:"([^"]*+(?:""[^"]*+)*+)"|([^",{_SPACE}\v][^,{_SPACE}\v]*+))[{_SPACE}]*+(,[{_SPACE}]*+|\Z)')
_UPPER = re.compile("[A-Z]")


def canonical(parameters: Mapping[str, str]) -> Parameters:
    """Converts declared parameters into the compared form. Raises Refused for a list that cannot be parsed."""
    return tuple(sorted((fold(name), _declared(fold(name), value)) for name, value in parameters.items()))


def hidden_contexts(names: Iterable[str], version: int) -> dict[str, str]:
    """Returns pg_settings.context of those lower-case names that pg_settings may hide. `version`: as 180004."""
    return {name: "superuser" for name in names if version >= _HIDDEN.get(name, math.inf)}


def read_settings(settings: Iterable[str] | None) -> Parameters:
    """Converts pg_db_role_setting.setconfig (`name=value`) into the same form. None means too long to be read.

    Never raises. If any name is invalid, or RESET of it would hit another one, the result is only (ALL, UNREADABLE).
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
    """Lowers ASCII letters only, as PostgreSQL does in UTF-8."""
    return _UPPER.sub(lambda letter: letter[0].lower(), name)


def elements(value: str, *, folding: bool = False, strict: bool = False) -> tuple[str, ...]:
    """Splits a comma-separated list of names, which are in double quotes if they are not plain.

    Parses like PostgreSQL (SplitIdentifierString with `folding`, which lowers unquoted names, else SplitGUCList), but
    does not truncate names. Raises ValueError for a malformed list; with `strict`, also for a double quote inside an
    unquoted name, which PostgreSQL takes as part of the name.
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
            raise ValueError(f"{cut_end(plain, _SHOWN)!r} needs double quotes")
        found.append(quoted.replace('""', '"') if plain is None else fold(plain) if folding else plain)
        place = element.end()
    return tuple(found)


def join(names: Iterable[str]) -> str:
    """Inverse of `elements`: a setting's value, not SQL. Double-quotes every element."""
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
    """Tells whether ALTER ROLE … RESET of the lower-case name resets this one.

    PostgreSQL matches its own parameters case-insensitively, but stored custom ones case-sensitively.
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
        return f"a comma is missing before {cut_end(rest[end.end() :], _SHOWN)!r}"
    name = rest.partition(",")[0].strip(_SPACE)
    return f"{cut_end(name, _SHOWN)!r} needs double quotes"
