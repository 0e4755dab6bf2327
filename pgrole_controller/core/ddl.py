"""SQL text. The only place that turns a change into SQL, and the only place that quotes.

Utility statements take no parameters, so identifiers and literals are quoted here, as PostgreSQL's own
`quote_ident` and `quote_literal` do; a backslash makes an E'' literal, whatever `standard_conforming_strings` is.
"""

from collections.abc import Iterable, Iterator
from itertools import groupby

from pgrole_controller.core.diff import (
    Change,
    Create,
    Drop,
    GrantMembership,
    Rename,
    RevokeMembership,
    RevokeOption,
    SetAttribute,
    SetComment,
    SetParameter,
)
from pgrole_controller.core.parameters import ALL, LIST_PARAMETERS, elements
from pgrole_controller.core.role import BEFORE_ALL_TIME, Microseconds, Password, Role, to_moment

#: NAMEDATALEN - 1: PostgreSQL truncates a longer name without a word, and two names become one.
NAME_BYTES = 63

_FLAGS = {
    "login": "LOGIN",
    "superuser": "SUPERUSER",
    "createdb": "CREATEDB",
    "createrole": "CREATEROLE",
    "inherit": "INHERIT",
    "replication": "REPLICATION",
    "bypassrls": "BYPASSRLS",
}


def quote_identifier(name: str) -> str:
    """A name as SQL, always in double quotes. Raises ValueError for what cannot be a name."""
    size = len(name.encode())
    if not 1 <= size <= NAME_BYTES:
        raise ValueError(f"a name has 1 to {NAME_BYTES} bytes, this one has {size}")
    if "\x00" in name:
        raise ValueError("a name cannot contain NUL")
    return '"' + name.replace('"', '""') + '"'


def quote_literal(text: str) -> str:
    """A text as an SQL literal. Raises ValueError for NUL, which PostgreSQL cannot hold."""
    if "\x00" in text:
        raise ValueError("a text cannot contain NUL")
    quoted = "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"
    return "E" + quoted if "\\" in text else quoted


def literal(value: str | int | Iterable[str] | None) -> str:
    """A value as an SQL literal: NULL, a number, a text, or an array of texts."""
    match value:
        case None:
            return "NULL"
        case int():
            return str(int(value))
        case str():
            return quote_literal(value)
        case _:
            return "ARRAY[" + ",".join(quote_literal(item) for item in value) + "]::text[]"


def statements(changes: Iterable[Change], *, options: bool = True) -> Iterator[str]:
    """The statements, without a closing semicolon, in order; attributes of one role in a row become one ALTER ROLE.

    `options`: whether the server knows INHERIT and SET of a membership, and grants by several grantors (16 and later).
    """
    for attributes, run in groupby(changes, key=lambda change: isinstance(change, SetAttribute)):
        if attributes:
            some = [change for change in run if isinstance(change, SetAttribute)]
            values = " ".join(_option(change.attribute, change.value) for change in some)
            yield f"ALTER ROLE {quote_identifier(some[0].role)} WITH {values}"
        else:
            for change in run:
                yield from _statements(change, options=options)


def _statements(change: Change, *, options: bool) -> Iterator[str]:
    match change:
        case GrantMembership():
            yield _grant(change, options=options)
        case RevokeMembership(role=member, group=group, grantors=grantors, cascades_to=cascades_to):
            yield from _revoke("", group, member, grantors if options else (), cascade=bool(cascades_to))
        case RevokeOption(role=member, group=group, option=option, grantors=grantors, cascades_to=cascades_to):
            what = f"{option.upper()} OPTION FOR "
            yield from _revoke(what, group, member, grantors if options else (), cascade=bool(cascades_to))
        case _:
            yield _statement(change)


def _grant(change: GrantMembership, *, options: bool) -> str:
    membership = change.membership
    grant = f"GRANT {quote_identifier(membership.role)} TO {quote_identifier(change.role)}"
    if not options:
        return f"{grant} WITH ADMIN OPTION" if membership.admin else grant
    values = ", ".join(f"{name.upper()} {getattr(membership, name)}".upper() for name in ("admin", "inherit", "set"))
    return f"{grant} WITH {values}"


def _revoke(what: str, group: str, member: str, grantors: Iterable[str], *, cascade: bool) -> Iterator[str]:
    """One statement for each grantor: a REVOKE takes away only the grant of one."""
    end = " CASCADE" if cascade else ""
    revoke = f"REVOKE {what}{quote_identifier(group)} FROM {quote_identifier(member)}"
    by = [f" GRANTED BY {quote_identifier(grantor)}" for grantor in grantors] or [""]
    yield from (f"{revoke}{grantor}{end}" for grantor in by)


def _statement(change: Change) -> str:
    match change:
        case Create(role=role):
            return f"CREATE ROLE {quote_identifier(role.name)}{_creation_options(role)}"
        case Rename(old=old, new=new):
            return f"ALTER ROLE {quote_identifier(old)} RENAME TO {quote_identifier(new)}"
        case SetComment(role=name, comment=comment):
            return f"COMMENT ON ROLE {quote_identifier(name)} IS {literal(comment)}"
        case Drop(role=name):
            return f"DROP ROLE {quote_identifier(name)}"
        case SetParameter():
            return _parameter(change)
        case _:
            raise AssertionError(f"{type(change).__name__} has statements of its own")


def _parameter(change: SetParameter) -> str:
    where = "" if change.database is None else f" IN DATABASE {quote_identifier(change.database)}"
    role = f"ALTER ROLE {quote_identifier(change.role)}{where}"
    if change.name == ALL and change.value is None:
        return f"{role} RESET ALL"
    # The parts of a custom parameter's name are identifiers with a dot between.
    name = ".".join(quote_identifier(part) for part in change.name.split("."))
    if change.value is None:
        return f"{role} RESET {name}"
    if change.name in LIST_PARAMETERS:
        values = ", ".join(quote_literal(element) for element in elements(change.value)) or "''"
    else:
        values = quote_literal(change.value)
    return f"{role} SET {name} = {values}"


def _creation_options(role: Role) -> str:
    # Only what differs from the defaults: a role with CREATEROLE alone may not even write NOSUPERUSER.
    plain = Role(name=role.name)
    names = (*_FLAGS, "connection_limit", "valid_until", "password")
    options = [_option(name, getattr(role, name)) for name in names if getattr(role, name) != getattr(plain, name)]
    return " WITH " + " ".join(options) if options else ""


def _option(attribute: str, value: bool | int | Password | None) -> str:
    if isinstance(value, Password):
        return f"PASSWORD {_verifier(value)}"
    if attribute in _FLAGS:
        return _FLAGS[attribute] if value else "NO" + _FLAGS[attribute]
    if attribute == "connection_limit":
        return f"CONNECTION LIMIT {literal(value)}"
    if attribute == "password":
        return "PASSWORD NULL"
    if attribute == "valid_until":
        return f"VALID UNTIL {quote_literal(render_valid_until(value))}"
    raise ValueError(f"not an attribute of a role: {attribute}")


def _verifier(password: Password) -> str:
    """PostgreSQL takes whatever is no verifier for a clear text, and may log it: nothing else gets into SQL."""
    if password.verifier is None or password.verifier.scram is None:
        raise ValueError("a password is set by its verifier only")
    return quote_literal(password.verifier.text)


def render_valid_until(value: Microseconds | None) -> str:
    """ISO 8601 in UTC, or PostgreSQL's word for no end. Raises OverflowError outside the years 1 to 9999."""
    if value is None:
        return "infinity"
    if value == BEFORE_ALL_TIME:
        return "-infinity"
    return to_moment(value).isoformat()
