"""SQL text of changes to roles, and the functions that quote; `privileges/grant_ddl.py` uses them.

Utility statements take no parameters, so identifiers and literals are quoted here, as PostgreSQL's `quote_ident` and
`quote_literal` do. A backslash makes an E'' literal, whatever `standard_conforming_strings` is.

A database in another encoding can create names that are not UTF-8; they are read with surrogates in place of their
bytes. No client can send such a text, so statements look these names up by their bytes in the server.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
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
from pgrole_controller.core.errors import NOT_UTF8
from pgrole_controller.core.parameters import ALL, LIST_PARAMETERS, elements
from pgrole_controller.core.role import BEFORE_ALL_TIME, Microseconds, Password, Role, to_moment

#: NAMEDATALEN - 1. PostgreSQL silently truncates longer names, so that two names become one.
NAME_BYTES = 63

#: Delimits the hexadecimal bytes of a non-UTF-8 name in a statement. SQL cannot contain NUL.
_MARK = "\x00"

_EXECUTE = """
DECLARE
    names CONSTANT text[] := ARRAY[{names}];
BEGIN
    IF pg_catalog.array_position(names, NULL) IS NOT NULL THEN
        RAISE EXCEPTION 'a role or database was renamed since the controller read it' USING ERRCODE = 'PGR01';
    END IF;
    EXECUTE pg_catalog.format({template}, VARIADIC names);
END
"""

_VERIFY_RESET = """
BEGIN
    IF EXISTS (
        SELECT FROM pg_catalog.pg_db_role_setting AS s
        WHERE s.setrole = (SELECT r.oid FROM pg_catalog.pg_roles AS r WHERE r.rolname = {role})
          AND s.setdatabase = {database}
    ) THEN
        RAISE EXCEPTION 'RESET ALL keeps parameters that only a superuser can reset' USING ERRCODE = '42501';
    END IF;
END
"""

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
    """Quotes a name, always in double quotes. Raises ValueError for a text that cannot be a name."""
    size = len(name.encode())
    if not 1 <= size <= NAME_BYTES:
        raise ValueError(f"a name must have 1 to {NAME_BYTES} bytes, not {size}")
    if "\x00" in name:
        raise ValueError("a name cannot contain NUL")
    return spell_identifier(name)


def spell_identifier(name: str) -> str:
    """Quotes a name in a statement that is only shown. In another encoding the name may be too long, or no text, so the
    statement may not be valid: never send it.
    """
    return '"' + name.replace('"', '""') + '"'


def quote_literal(text: str) -> str:
    """Quotes a text as an SQL literal. Raises ValueError for NUL, which PostgreSQL cannot store."""
    if "\x00" in text:
        raise ValueError("a text cannot contain NUL")
    quoted = "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"
    return "E" + quoted if "\\" in text else quoted


#: What the functions above quote: a literal with or without escapes, or an identifier.
_QUOTED = re.compile(r"""E'(?:[^'\\]|\\.|'')*'|'(?:[^']|'')*'|"(?:[^"]|"")*["]""", re.DOTALL)


def spell_printably(statement: str) -> str:
    """The same statement of this module, on one line and in printable characters, for people and for psql: a name or a
    text can hold what moves a terminal's cursor, or looks like other statements.
    """
    return statement if statement.isprintable() else _QUOTED.sub(_spell_quoted, statement)


def _spell_quoted(found: re.Match[str]) -> str:
    quoted = found[0]
    if quoted.isprintable():
        return quoted
    if quoted.startswith('"'):
        return "U&" + "".join(_escape(sign, "\\", "\\+", 6) for sign in quoted.replace("\\", "\\\\"))
    if not quoted.startswith("E"):
        quoted = "E" + quoted.replace("\\", "\\\\")
    return "".join(_escape(sign, "\\u", "\\U", 8) for sign in quoted)


def _escape(sign: str, prefix: str, long_prefix: str, digits: int) -> str:
    if sign.isprintable():
        return sign
    code = ord(sign)
    return f"{prefix}{code:04X}" if code <= 0xFFFF else f"{long_prefix}{code:0{digits}X}"


def literal(value: str | int | Iterable[str] | None) -> str:
    """Renders a value as an SQL literal: NULL, a number, a text, or an array of texts."""
    match value:
        case None:
            return "NULL"
        case int():
            return str(int(value))
        case str():
            return quote_literal(value)
        case _:
            return "ARRAY[" + ",".join(quote_literal(item) for item in value) + "]::text[]"


def seen_name(name: str, *, database: bool = False) -> str:
    """Renders the name a role or database was observed with; NULL if that is not UTF-8 and none has it any more."""
    if not NOT_UTF8.search(name):
        return quote_literal(name)
    return f"({_look_up_database(_hex(name)) if database else _look_up_role(_hex(name))})"


def divide_names(names: Iterable[str]) -> tuple[list[str], list[bytes]]:
    """Returns the names that a query can send, and the bytes of those that are not UTF-8."""
    some = set(names)
    legible = [name for name in some if not NOT_UTF8.search(name)]
    return legible, [name.encode(errors="surrogateescape") for name in some.difference(legible)]


def storable(text: str) -> str:
    """Returns what a column of text or jsonb can hold, which accept neither NUL nor a name that is not UTF-8."""
    return text.replace("\0", " ").encode(errors="surrogateescape").decode(errors="backslashreplace")


def _look_up_role(name: str) -> str:
    return f"SELECT r.rolname FROM pg_catalog.pg_roles AS r WHERE {_has_bytes('r.rolname', name)}"  # noqa: S608


def _look_up_database(name: str) -> str:
    return f"SELECT d.datname FROM pg_catalog.pg_database AS d WHERE {_has_bytes('d.datname', name)}"  # noqa: S608


def _has_bytes(column: str, name: str) -> str:
    # Not textsend, which in a database of encoding SQL_ASCII refuses the very name that is looked for.
    raw = rf"pg_catalog.decode(pg_catalog.replace({column}::text, E'\\', E'\\\\'), 'escape')"
    same_size = f"pg_catalog.octet_length({column}::text) = {len(name) // 2}"  # cheap: compared first
    return f"{same_size} AND {raw} = pg_catalog.decode('{name}', 'hex')"


def _hex(name: str) -> str:
    return name.encode(errors="surrogateescape").hex()


def render_identifier(name: str) -> str:
    """Quotes a name for a statement that goes through `make_sendable`; one that is not UTF-8 becomes a mark."""
    return f"{_MARK}{_hex(name)}{_MARK}" if NOT_UTF8.search(name) else quote_identifier(name)


def make_sendable(statement: str, catalogs: Mapping[str, str] | None = None) -> str:
    """Returns the statement, or one that executes it in the server if it contains names that cannot be sent.

    Role and database names are looked up alike: names with the same bytes are the same text. `catalogs`: columns with
    names, by catalog, where the names of other objects are looked up too.
    """
    parts = statement.split(_MARK)
    if len(parts) == 1:
        return statement
    names = ", ".join(f"coalesce({', '.join(_look_ups(name, catalogs or {}))})" for name in parts[1::2])
    template = "%I".join(part.replace("%", "%%") for part in parts[::2])
    return f"DO {quote_literal(_EXECUTE.format(names=names, template=quote_literal(template)))}"


def _look_ups(name: str, catalogs: Mapping[str, str]) -> Iterator[str]:
    yield f"({_look_up_role(name)})"
    yield f"({_look_up_database(name)})"
    for catalog, column in catalogs.items():
        has_bytes = _has_bytes(f"o.{column}", name)
        yield f"(SELECT o.{column} FROM pg_catalog.{catalog} AS o WHERE {has_bytes} LIMIT 1)"  # noqa: S608


def statements(changes: Iterable[Change], *, options: bool = True) -> Iterator[str]:
    """Yields the statements in order, without a closing semicolon. Consecutive attributes of one role share one ALTER
    ROLE.

    `options`: the server supports INHERIT and SET options of memberships, and several grantors (PostgreSQL 16 and
    later).
    """
    for attributes, run in groupby(changes, key=lambda change: isinstance(change, SetAttribute)):
        if attributes:
            some = [change for change in run if isinstance(change, SetAttribute)]
            values = " ".join(render_option(change.attribute, change.value) for change in some)
            yield make_sendable(f"ALTER ROLE {render_identifier(some[0].role)} WITH {values}")
        else:
            for change in run:
                yield from map(make_sendable, _statements(change, options=options))


def _statements(change: Change, *, options: bool) -> Iterator[str]:
    match change:
        case GrantMembership():
            yield _grant(change, options=options)
        case RevokeMembership(role=member, group=group, grantors=grantors, cascades_to=cascades_to):
            yield from _revoke("", group, member, grantors if options else (), cascade=bool(cascades_to))
        case RevokeOption(role=member, group=group, option=option, grantors=grantors, cascades_to=cascades_to):
            what = f"{option.upper()} OPTION FOR "
            yield from _revoke(what, group, member, grantors if options else (), cascade=bool(cascades_to))
        case SetParameter(name=name) if name == ALL:
            yield _statement(change)
            yield _verify_reset(change)
        case _:
            yield _statement(change)


def _verify_reset(change: SetParameter) -> str:
    """Fails as PostgreSQL does if a single parameter may not be reset: RESET ALL silently keeps such parameters."""
    database = "0"
    if change.database is not None:
        name = seen_name(change.database, database=True)
        database = f"(SELECT d.oid FROM pg_catalog.pg_database AS d WHERE d.datname = {name})"  # noqa: S608
    return f"DO {quote_literal(_VERIFY_RESET.format(role=seen_name(change.role), database=database))}"


def _grant(change: GrantMembership, *, options: bool) -> str:
    membership = change.membership
    grant = f"GRANT {render_identifier(membership.role)} TO {render_identifier(change.role)}"
    if not options:
        return f"{grant} WITH ADMIN OPTION" if membership.admin else grant
    values = ", ".join(f"{name.upper()} {getattr(membership, name)}".upper() for name in ("admin", "inherit", "set"))
    return f"{grant} WITH {values}"


def _revoke(what: str, group: str, member: str, grantors: Iterable[str], *, cascade: bool) -> Iterator[str]:
    """Yields one statement per grantor: a REVOKE removes only the grant of one grantor."""
    end = " CASCADE" if cascade else ""
    revoke = f"REVOKE {what}{render_identifier(group)} FROM {render_identifier(member)}"
    by = [f" GRANTED BY {render_identifier(grantor)}" for grantor in grantors] or [""]
    yield from (f"{revoke}{grantor}{end}" for grantor in by)


def _statement(change: Change) -> str:
    match change:
        case Create(role=role):
            return f"CREATE ROLE {render_identifier(role.name)}{_creation_options(role)}"
        case Rename(old=old, new=new):
            return f"ALTER ROLE {render_identifier(old)} RENAME TO {render_identifier(new)}"
        case SetComment(role=name, comment=comment):
            return f"COMMENT ON ROLE {render_identifier(name)} IS {literal(comment)}"
        case Drop(role=name):
            return f"DROP ROLE {render_identifier(name)}"
        case SetParameter():
            return _parameter(change)
        case _:
            raise AssertionError(f"{type(change).__name__} has statements of its own")


def _parameter(change: SetParameter) -> str:
    where = "" if change.database is None else f" IN DATABASE {render_identifier(change.database)}"
    role = f"ALTER ROLE {render_identifier(change.role)}{where}"
    if change.name == ALL and change.value is None:
        return f"{role} RESET ALL"
    # The parts of a custom parameter's name are identifiers separated by dots.
    name = ".".join(quote_identifier(part) for part in change.name.split("."))
    if change.value is None:
        return f"{role} RESET {name}"
    if change.name in LIST_PARAMETERS:
        values = ", ".join(quote_literal(element) for element in elements(change.value)) or "''"
    else:
        values = quote_literal(change.value)
    return f"{role} SET {name} = {values}"


def _creation_options(role: Role) -> str:
    # Write only what differs from the defaults: a role that has only CREATEROLE may not even write NOSUPERUSER.
    plain = Role(name=role.name)
    names = (*_FLAGS, "connection_limit", "valid_until", "password")
    options = [
        render_option(name, getattr(role, name)) for name in names if getattr(role, name) != getattr(plain, name)
    ]
    return " WITH " + " ".join(options) if options else ""


def render_option(attribute: str, value: bool | int | Password | None) -> str:
    """Renders an attribute as CREATE ROLE and ALTER ROLE have it; a password by its verifier."""
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


def grants_in_schema(grantee: str, *, truncate: bool) -> tuple[str, ...]:
    """What a role needs to use schema pgrole of another owner. `grantee`: quoted. `truncate`: in a database beside the
    home database, where the controller prunes the history.
    """
    also = ", TRUNCATE" if truncate else ""
    return (
        f"GRANT USAGE ON SCHEMA pgrole TO {grantee}",
        f"GRANT SELECT, INSERT, UPDATE, DELETE{also} ON ALL TABLES IN SCHEMA pgrole TO {grantee}",
        f"GRANT EXECUTE ON ALL ROUTINES IN SCHEMA pgrole TO {grantee}",
    )


def _verifier(password: Password) -> str:
    """Admits verifiers only: PostgreSQL takes any other text for a clear password, and may log it."""
    if password.verifier is None or password.verifier.scram is None:
        raise ValueError("a password is set by its verifier only")
    return quote_literal(password.verifier.text)


def render_valid_until(value: Microseconds | None) -> str:
    """Renders ISO 8601 in UTC, or PostgreSQL's `infinity`. Raises OverflowError outside the years 1 to 9999."""
    if value is None:
        return "infinity"
    if value == BEFORE_ALL_TIME:
        return "-infinity"
    return to_moment(value).isoformat()
