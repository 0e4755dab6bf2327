"""Settings of a role (ALTER ROLE … SET) as values that can be compared with what PostgreSQL stores of them.

Names are compared without case, as PostgreSQL does. Values are texts as they are given, but for the few parameters that
are lists of names: PostgreSQL stores those quoted element by element, so they are read into elements and written anew.
"""

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

#: Sorted pairs of a name in lower case and a canonical value.
Parameters = tuple[tuple[str, str], ...]


def canonical(parameters: Mapping[str, str]) -> Parameters:
    """What is declared, in the form that is compared. Raises Refused for a list that cannot be read."""
    return tuple(sorted((name.lower(), _canonical_value(name.lower(), value)) for name, value in parameters.items()))


def read_settings(settings: Iterable[str]) -> Parameters:
    """What pg_db_role_setting.setconfig holds (`name=value`), in the same form."""
    return canonical(dict(setting.split("=", 1) for setting in settings))


def elements(value: str, *, fold: bool = False) -> tuple[str, ...]:
    """The elements of a list of names: commas between, double quotes around what is not plain.

    `fold`: what has no quotes is in lower case. Raises ValueError for a text that is no such list.
    """
    found: list[str] = []
    rest = value.strip()
    if not rest:
        return ("",)
    while True:
        element, rest = _quoted(rest) if rest.startswith('"') else _plain(rest, fold=fold)
        found.append(element)
        rest = rest.lstrip()
        if not rest:
            return tuple(found)
        if not rest.startswith(","):
            raise ValueError(f"a comma is missing before {rest[:20]!r}")
        rest = rest[1:].lstrip()


def join(names: Iterable[str]) -> str:
    """The inverse of `elements`, every element in quotes."""
    return ", ".join('"' + name.replace('"', '""') + '"' for name in names)


def _canonical_value(name: str, value: str) -> str:
    if name not in LIST_PARAMETERS:
        return value
    try:
        return join(elements(value, fold=name in _NAMES))
    except ValueError as error:
        raise Refused(
            Reason.INVALID_SPEC, f"parameter {name}: {error}; it takes names with commas between, e.g. app, public"
        ) from error


def _quoted(text: str) -> tuple[str, str]:
    place, element = 1, ""
    while (end := text.find('"', place)) >= 0:
        element += text[place:end]
        if text[end : end + 2] != '""':
            return element, text[end + 1 :]
        element, place = element + '"', end + 2
    raise ValueError("a closing double quote is missing")


def _plain(text: str, *, fold: bool) -> tuple[str, str]:
    head, comma, tail = text.partition(",")
    name = head.strip()
    if not name or any(letter in name for letter in '" \t\n'):
        raise ValueError(f"{name!r} is no name without double quotes")
    return name.lower() if fold else name, comma + tail
